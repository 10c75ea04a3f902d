"""The bytes of a `.glass` file: one run or several, as docs/trace-format.md specifies. A file is written
whole or not at all, and read whole or not at all. Errors distinguish a damaged file, one that was cut off,
and one that is not ours. `glass_file.py` reads files as `Run`s.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from glassloop.errors import GlassloopError, TraceError
from glassloop.record.format.check_columns import check_columns, check_plan
from glassloop.record.format.check_header import read_header
from glassloop.record.format.columns import inflate, pack, unpack
from glassloop.record.format.file_limits import MOST_RUNS, FileLimits
from glassloop.record.format.header import from_header, records_of, to_header
from glassloop.record.format.packing import pack_tokens, unpack_tokens
from glassloop.record.run_record import RunRecord
from glassloop.record.run_tree import link
from glassloop.util.files import read_at_most
from glassloop.util.shown import printable

R = TypeVar("R", bound=RunRecord)
MAGIC = b"\x89GLASS\r\n"  # no text begins like this, and a change of line ends is noticed
VERSION = 2  # the latest; a file is written as the oldest version that can hold its runs
_FRONT = struct.Struct("<8sHHQ")  # magic, version, number of runs, bytes of the whole file
_CHECK = struct.Struct("<I")  # CRC-32 of the front, in every version
_SECTION = struct.Struct("<III")  # bytes of the header, of the header uncompressed, of the records
_DIGEST = 32  # SHA-256 of all before it, at the end
LIMITS = FileLimits()


def to_bytes(runs: Sequence[RunRecord]) -> bytes:
    """Returns the bytes of a file with these runs."""
    if not 0 < len(runs) <= MOST_RUNS:
        raise TraceError(f"{len(runs)} runs for one file; 1 to {MOST_RUNS} are expected")
    left, sections = LIMITS.total, []
    for run in runs:
        section, plain = _section(run)
        left -= plain
        if left < 0:
            raise TraceError(f"the runs have more than {LIMITS.total} bytes, uncompressed, for one file")
        sections.append(section)
    body = b"".join(sections)
    size = _FRONT.size + _CHECK.size + len(body) + _DIGEST
    front = _FRONT.pack(MAGIC, version_of(runs), len(runs), size)
    whole = front + _CHECK.pack(zlib.crc32(front)) + body
    return whole + hashlib.sha256(whole).digest()


def version_of(runs: Sequence[RunRecord]) -> int:
    """Returns the version of a file with these runs: 2 if masks were filled, else 1."""
    tokens = (token for run in runs for token in records_of(run))
    guesses = (token.refused for run in runs for token in records_of(run) if token.refused is not None)
    if any(not run.origin.in_order for run in runs) or any(token.source == "mask" for token in tokens):
        return 2
    return 2 if any(guess.by == "masks" for guess in guesses) else 1


def from_bytes_as(
    kind: type[R],
    data: bytes,
    name: str = "the file",
    *,
    limits: FileLimits = LIMITS,
    only_first: bool = False,
) -> list[R]:
    """Returns the runs of a file, or its first one alone, as objects of this class. Every number in them was
    checked; all errors are `TraceError`s, which call the file `name`."""
    count = _check(data, name)
    try:
        runs, samples = list[R](), []
        at, left = _FRONT.size + _CHECK.size, limits.total
        for _ in range(1 if only_first else count):
            run, ids, at, plain = _run(kind, data, at, limits, left)
            left -= plain
            runs.append(run)
            samples.append(ids)
        if not only_first and at != len(data) - _DIGEST:
            raise TraceError("there is other data after the last run")
        link(runs, samples)
    except (GlassloopError, struct.error) as error:
        # Its checksum is right, so another program wrote it like this.
        raise TraceError(f"{name} is not a valid trace: {printable(str(error), 900)}") from error
    return runs


def write(path: str | os.PathLike[str], runs: Sequence[RunRecord]) -> None:
    """Writes a file with these runs."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(to_bytes(runs))
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise TraceError(f"cannot write {target}: {error.strerror or error}") from error


def read_as(kind: type[R], path: str | os.PathLike[str]) -> list[R]:
    """Returns the runs of a file as objects of this class."""
    name = os.fspath(path)
    return from_bytes_as(kind, read_at_most(name, LIMITS.total, TraceError), name)


def _section(run: RunRecord) -> tuple[bytes, int]:
    """Returns a run as it is in a file, and its size uncompressed."""
    plan, records = pack(pack_tokens(records_of(run)))
    size = sum(size for _, _, size in plan)
    try:
        written = json.dumps(
            {**to_header(run), "columns": plan}, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
    except (ValueError, RecursionError) as error:
        raise TraceError(f"run {run.id} cannot be written as JSON: {error}") from error
    plain = written.encode("utf-8", "surrogatepass")
    for what, size_now, most in (("header", len(plain), LIMITS.header), ("columns", size, LIMITS.columns)):
        if size_now > most:
            raise TraceError(f"run {run.id} has {what} of {size_now} bytes; at most {most} can be read back")
    packed = zlib.compress(plain, 9)
    return _SECTION.pack(len(packed), len(plain), len(records)) + packed + records, len(plain) + size


def _run(kind: type[R], data: bytes, at: int, limits: FileLimits, left: int) -> tuple[R, list[str], int, int]:
    """Returns the run at an offset, the ids of its samples, the offset of its end, and its size uncompressed,
    which is at most `left`."""
    packed, plain, records = _SECTION.unpack_from(data, at)
    start = at + _SECTION.size
    middle, end = start + packed, start + packed + records
    if end > len(data) - _DIGEST:
        raise TraceError("a run is longer than the file")
    if plain > min(limits.header, left):
        raise TraceError(f"a header has {plain} bytes; at most {min(limits.header, left)} are expected")
    header = read_header(inflate(data[start:middle], plain))
    plan = header["columns"]
    count = header["prompt_records"] + header["records"] + header["end_records"]
    tokens = len(header["prompt_ids"]) + count
    if tokens > limits.tokens:
        raise TraceError(f"prompt_ids and records are {tokens}; at most {limits.tokens} are expected")
    check_plan(plan, count, min(limits.columns, left - plain))
    columns = unpack(plan, data[middle:end])
    check_columns(columns, unknown=header.get("upstream") is not None)
    run = from_header(kind, header, unpack_tokens(columns))
    return run, header["samples"], end, plain + sum(size for _, _, size in plan)


def _check(data: bytes, name: str) -> int:
    """Returns the number of runs in a file. Raises unless it is a `.glass` file of a known version that has
    not changed since it was written."""
    least = _FRONT.size + _CHECK.size
    if not data.startswith(MAGIC):
        cut = data and MAGIC.startswith(data)
        raise TraceError(f"{name} is cut off" if cut else f"{name} is not a glassloop trace")
    if len(data) < least:
        raise TraceError(f"{name} is cut off: it has {len(data)} bytes of {least} and more")
    _, version, count, size = _FRONT.unpack_from(data)
    if _CHECK.unpack_from(data, _FRONT.size)[0] != zlib.crc32(data[: _FRONT.size]):
        raise TraceError(f"{name} is damaged: its first bytes were changed")
    if version > VERSION:
        raise TraceError(
            f"{name} is of version {version} of the format; this glassloop reads up to {VERSION}: update it"
        )
    if len(data) < size:
        raise TraceError(f"{name} is cut off: it has {len(data)} bytes of {size}")
    if len(data) > size or hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise TraceError(f"{name} is damaged: its checksum does not match")
    if not 0 < count <= MOST_RUNS:
        raise TraceError(f"{name} is not a valid trace: it has {count} runs; 1 to {MOST_RUNS} are expected")
    return int(count)
