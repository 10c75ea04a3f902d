"""The `.glass` file: one run or several, as docs/trace-format.md specifies. Written whole or not at all; what
was changed, cut off or is not ours is told apart and never half read.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassloop.errors import GlassloopError, TraceError
from glassloop.trace.columns import inflate, pack, unpack
from glassloop.trace.header import from_header, records_of, to_header
from glassloop.trace.packing import pack_tokens, unpack_tokens
from glassloop.trace.run import Run

MAGIC = b"\x89GLASS\r\n"  # no text begins like that, and what mangles line ends is noticed
VERSION = 1
_FRONT = struct.Struct("<8sHHQ")  # magic, version, number of runs, bytes of the whole file
_CHECK = struct.Struct("<I")  # CRC-32 of the front, in every version
_SECTION = struct.Struct("<III")  # bytes of the header, of the header uncompressed, of the records
_DIGEST = 32  # SHA-256 of all before it, at the end
_MOST_RUNS = 0xFFFF


def to_bytes(runs: Sequence[Run]) -> bytes:
    """A whole file."""
    if not 0 < len(runs) <= _MOST_RUNS:
        raise TraceError(f"{len(runs)} runs for one file; 1 to {_MOST_RUNS} are expected")
    body = b"".join(map(_section, runs))
    size = _FRONT.size + _CHECK.size + len(body) + _DIGEST
    front = _FRONT.pack(MAGIC, VERSION, len(runs), size)
    whole = front + _CHECK.pack(zlib.crc32(front)) + body
    return whole + hashlib.sha256(whole).digest()


def from_bytes(data: bytes, name: str = "the file") -> list[Run]:
    """The runs of a whole file; `name` is for errors."""
    count = _check(data, name)
    try:
        runs, samples = [], []
        at = _FRONT.size + _CHECK.size
        for _ in range(count):
            run, ids, at = _run(data, at)
            runs.append(run)
            samples.append(ids)
        if at != len(data) - _DIGEST:
            raise TraceError("there is more in it than runs")
    except (GlassloopError, ValueError, KeyError, TypeError, IndexError, struct.error, zlib.error) as error:
        # Its checksum is right, so it was written like this: by somebody else's program.
        raise TraceError(f"{name} is no valid trace: {error}") from error
    _link(runs, samples)
    return runs


def write(path: str | os.PathLike[str], runs: Sequence[Run]) -> None:
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(to_bytes(runs))
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise TraceError(f"cannot write {target}: {error.strerror or error}") from error


def read(path: str | os.PathLike[str]) -> list[Run]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    return from_bytes(data, os.fspath(path))


def _link(runs: Sequence[Run], samples: Sequence[list[str]]) -> None:
    """Runs that were read find their samples, parents and forks among each other."""
    by_id = {run.id: run for run in runs}
    for run, ids in zip(runs, samples, strict=True):
        run.samples = [by_id[each] for each in ids if each in by_id]
        run.above = by_id.get(run.parent or "")
        if run.above is not None:
            run.above.children.append(run)


def _section(run: Run) -> bytes:
    plan, records = pack(pack_tokens(records_of(run)))
    header = {**to_header(run), "columns": plan}
    plain = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )
    packed = zlib.compress(plain, 9)
    return _SECTION.pack(len(packed), len(plain), len(records)) + packed + records


def _run(data: bytes, at: int) -> tuple[Run, list[str], int]:
    packed, plain, records = _SECTION.unpack_from(data, at)
    start = at + _SECTION.size
    middle, end = start + packed, start + packed + records
    if end > len(data) - _DIGEST:
        raise TraceError("a run is longer than the file")
    header: dict[str, Any] = json.loads(inflate(data[start:middle], plain).decode("utf-8", "surrogatepass"))
    run = from_header(header, unpack_tokens(unpack(header["columns"], data[middle:end])))
    return run, header["samples"], end


def _check(data: bytes, name: str) -> int:
    """How many runs are in it, if it is ours, of a version that we read, and as it was written."""
    least = _FRONT.size + _CHECK.size
    if not data.startswith(MAGIC):
        cut = data and MAGIC.startswith(data)
        raise TraceError(f"{name} is cut off" if cut else f"{name} is not a glassloop trace")
    if len(data) < least:
        raise TraceError(f"{name} is cut off: it has {len(data)} bytes of {least} and more")
    _, version, count, size = _FRONT.unpack_from(data)
    if _CHECK.unpack_from(data, _FRONT.size)[0] != zlib.crc32(data[: _FRONT.size]):
        raise TraceError(f"{name} is damaged: its first bytes are not as they were written")
    if version > VERSION:
        raise TraceError(
            f"{name} is of version {version} of the format; this glassloop reads up to {VERSION}: update it"
        )
    if len(data) < size:
        raise TraceError(f"{name} is cut off: it has {len(data)} bytes of {size}")
    if len(data) > size or hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise TraceError(f"{name} is damaged: its checksum does not fit")
    return int(count)
