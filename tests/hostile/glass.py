"""Hostile `.glass` files: taken apart by the documented layout, changed, and put together with the right
checksums, so that what is tried is what comes after the checksums. Shares no code with the project's reader.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from copy import deepcopy
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hostile import raw
from hostile.values import Literal, changed, dumps, spelled, twice, value

_FRONT = struct.Struct("<8sHHQ")
_SECTION = struct.Struct("<III")
_MAGIC = b"\x89GLASS\r\n"
_START = _FRONT.size + 4
_DIGEST = 32


@dataclass(frozen=True)
class Section:
    """One run: its header, and its columns as one uncompressed block. A header of bytes is
    written as it is."""

    header: Any
    block: bytes
    plain_size: int | None = None  # what the section says of the header's size, if that is not so


def read(data: bytes) -> list[Section]:
    count = _FRONT.unpack_from(data)[2]
    at, sections = _START, []
    for _ in range(count):
        packed, _, records = _SECTION.unpack_from(data, at)
        start = at + _SECTION.size
        header = json.loads(zlib.decompress(data[start : start + packed]).decode("utf-8", "surrogatepass"))
        at = start + packed + records
        sections.append(Section(header, zlib.decompress(data[start + packed : at])))
    return sections


def write(sections: list[Section], count: int | None = None, version: int = 1) -> bytes:
    """A file of these, with every checksum right, and every length that is not given otherwise."""
    body = bytearray()
    for section in sections:
        plain = section.header if isinstance(section.header, bytes) else dumps(section.header)
        packed, records = zlib.compress(plain, 1), zlib.compress(section.block, 1)
        said = len(plain) if section.plain_size is None else section.plain_size
        body += _SECTION.pack(len(packed), said % 2**32, len(records)) + packed + records
    return sealed(bytes(body), len(sections) if count is None else count, version)


def sealed(body: bytes, count: int, version: int = 1) -> bytes:
    """These bytes as a file whose checksums are right."""
    front = _FRONT.pack(_MAGIC, version, count, _START + len(body) + _DIGEST)
    whole = front + struct.pack("<I", zlib.crc32(front)) + body
    return whole + hashlib.sha256(whole).digest()


def with_headers(data: bytes, *headers: Any) -> bytes:
    """A file with other headers before the columns of the first run."""
    block = read(data)[0].block
    return write([Section(header, block) for header in headers])


def renamed(data: bytes, rng: Random) -> bytes:
    """The same runs under ids of their own, so that a server that has them already takes them."""
    sections = read(data)
    for section in sections:
        section.header["id"] = f"{rng.getrandbits(64):016x}"
    return write(sections)


# ── changes of a header ────────────────────────────────────────────────────────────────────────────────────

IDS: tuple[Any, ...] = (
    *("driveby", "../../x", "a" * 65, 'a"\r\nX-Evil: 1', "", "\0", "\x1b]0;x\x07", "\ud800", "ÄÖÜ", "last"),
    *("0" * 16, "F" * 16, "f" * 16, 7, None, ["a"], {"a": 1}, True),
)
PROMPT_IDS: tuple[Any, ...] = (
    *(
        [],
        [100_000_000],
        [2**31 - 1],
        [2**31],
        [-(2**30)],
        [-5],
        [2**40],
        [2**64],
        [1.5],
        ["1"],
        [None],
        [True],
    ),
    *("abc", None, 7, {}, [[1]], [72] * 30_000, [261], [262], [263], [49159], [0] * 600, [Literal("1e999")]),
)
MODELS: tuple[Any, ...] = (
    *("hf:evil-owner/evil-repo", "/etc/passwd", "../../x", "\x1b[2J", "", "a" * 10_000, None, 7, ["x"]),
)
SPECIAL: dict[str, tuple[Any, ...]] = {
    "id": IDS,
    "parent": IDS,
    "prompt_ids": PROMPT_IDS,
    "model": MODELS,
    "model_hash": ("", "0" * 64, "x" * 100_000, None, 7),
    "prompt": ("\ud800", "x" * 100_000, "\x1b[31m", None, 7, ["x"], "\u2028"),
    "messages": (
        *("x", 7, [], [7], [{}], {"role": "user"}, [{"role": 7}], [{"role": "user", "content": 7}], None),
        *(
            [{"role": "\x1b[2J", "content": "\x1b]0;x\x07\ud800"}],
            [{"role": "user", "content": [{"text": 7}]}],
        ),
        *([{"role": "user", "content": "x" * 3_000_000}], [{"role": "user", "tool_calls": [7]}]),
        *([{"role": "user", "content": "x"}] * 20_000, [{"role": "user", "a\r\nb": {"c": [None]}}]),
    ),
    "tail": ("\ud800", 7, None, "\x1b[2J", "x" * 100_000),
    "context": (0, -1, 2**31, 2**63, 10**400, "x", None, 1.5, True),
    "seed": (-1, 2**64, 10**400, 1.5, "x", None),
    "salt": (-1, 2**64, 10**400, 1.5, "x", None),
    "sample": (-1, 2**31, 10**400, "x", None),
    "fork_at": (-1, 2**31, 10**400, "x", 10**6, 1.5),
    "created": (-1, 1e308, float("nan"), Literal("1e999"), "x", None, 10**400),
    "finish_reason": ("x", "\x1b[2J", 7, ["stop"], "error", None),
    "stop_reason": ("\x1b[2J\x07", 7, ["x"], "x" * 100_000, None),
    "samples": (["x"], ["0" * 16] * 5000, "x", None, [7], [None]),
    "cached_tokens": (-1, 2**63, "x", 1.5, None),
    "revised": (-1, 2**63, "x", 1.5, None, True),
    "beams": ([[1]], [[0, 0, 0, 0, 0]] * 5000, "x", [[-1, 10**6, 10**6, float("nan"), "x"]], None),
    "forks": ({"x": 1}, {"-1": -1}, {"0": 10**400}, [], "x", {str(i): i for i in range(5000)}),
    "refused": ([[0]], [[10**6, 1]], [[-1, 1, 2, 3]], "x", [None], [["0", "1"]]),
    "prompt_records": (-1, 10**6, 10**400, "x", None, 1.5),
    "records": (-1, 10**6, 10**400, "x", None, 1.5),
    "end_records": (-1, 2, 10**400, "x", None, True),
    "timings": ({}, [], "x", None, {"queued": "x"}, {"x": 1}),
    "drafts": ({}, [], "x", None, {"tried": "x"}, {"x": 1}),
    "past": ([{}], "x", [None], [{"at": -1}], [{}] * 5000),
    "sampling": ({}, [], "x", None, {"timeout": 1e9}, {"stop": ["x"] * 20_000}, {"top_k": 2**70}),
    "plugins": (
        *(None, [], "x", {"": {}}, {"a": None}, {"a": {"file": "a.py"}}, {"a": {"sha256": "0" * 64}}),
        *({"a": {"file": name, "sha256": "0" * 64}} for name in ("../a.py", "", "\x1b[2J", "x" * 256, 7)),
        *({"a": {"file": "a.py", "sha256": hash}} for hash in ("0" * 63, "F" * 64, None, "0" * 100_000)),
        {"a": {"file": "a.py", "sha256": "0" * 64}},
        {"x" * 5000: {"file": "a.py", "sha256": "0" * 64}},
        {f"s{number}": {"file": "a.py", "sha256": "0" * 64} for number in range(1025)},
    ),
    "ops": ("\x1b[2J", 7, None, "x" * 10_000),
    "reason": ("\x1b[2J", 7, "x" * 10_000),
    "columns": ([], "x", None, [["ids"]], [["ids", "i4", -1]], [["ids", "i4", 2**60]], [[1, 2, 3]]),
}


def _changed_header(header: dict[str, Any], rng: Random) -> Any:
    kind = rng.random()
    if kind < 0.5:
        header = deepcopy(header)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            name = rng.choice(list(SPECIAL))
            header[name] = rng.choice(SPECIAL[name])
        return header
    if kind < 0.55:
        return {**header, str(rng.randrange(99)): value(rng)}
    if kind < 0.57:
        return twice(spelled(header)).encode("utf-8", "surrogatepass")
    if kind < 0.65:
        return raw.changed(dumps(header), rng)
    return changed(header, rng)


def _changed_block(block: bytes, rng: Random) -> bytes:
    return raw.changed(block, rng, in_place=rng.random() < 0.8)


def _changed_plan(header: dict[str, Any], rng: Random) -> dict[str, Any]:
    header = deepcopy(header)
    plan = header["columns"]
    entry = rng.choice(plan)
    kind = rng.randrange(5)
    if kind == 0:
        entry[rng.randrange(3)] = value(rng, 0)
    elif kind == 1:
        entry[1] = rng.choice(["u1", "u2", "u4", "i4", "f4", "f8", "u8", "O", "S1"])
    elif kind == 2:
        plan.remove(entry)
    elif kind == 3:
        plan.append(list(entry))
    else:
        other = rng.choice(plan)
        entry[2], other[2] = other[2], entry[2]
    return header


def _changed_body(data: bytes, rng: Random) -> bytes:
    """Bytes as they are in the file: lengths of sections and compressed blocks."""
    body = data[_START:-_DIGEST]
    if rng.random() < 0.5:
        front = [rng.choice((0, 1, each, each + 1, 2**31, 2**32 - 1)) for each in _SECTION.unpack_from(body)]
        body = _SECTION.pack(*front) + body[_SECTION.size :]
    else:
        body = raw.changed(body, rng)
    return sealed(body, rng.choice([1, 1, 1, 0, 2, 5000, 65535]), rng.choice([1, 1, 1, 0, 2, 65535]))


def _changed_family(sections: list[Section], rng: Random) -> list[Section]:
    """Families that are none: runs twice or left out, a circle of parents."""
    if rng.random() < 0.5:
        return [rng.choice(sections) for _ in range(rng.randrange(1, 4))]
    section = deepcopy(rng.choice(sections))
    again = deepcopy(section.header)
    again["id"] = rng.choice([again["id"], "0" * 16])
    section.header["parent"], again["parent"] = again["id"], section.header["id"]
    again["samples"] = section.header["samples"] = [again["id"], section.header["id"]]
    return [section, replace(section, header=again)]


def mutated(data: bytes, rng: Random) -> bytes:
    """One hostile file made of a good one."""
    kind = rng.random()
    if kind < 0.06:
        return raw.changed(data, rng)
    if kind < 0.09:
        return raw.cut(data, rng)
    return resealed(data, rng)


def resealed(data: bytes, rng: Random) -> bytes:
    """One hostile file made of a good one, whose checksums are right."""
    kind = rng.random()
    if kind < 0.1:
        return _changed_body(data, rng)
    sections = read(data)
    if kind < 0.17:
        return write(_changed_family(sections, rng), rng.choice([None, None, 0, 1, 2, 5000, 65535]))
    for _ in range(rng.choice([1, 1, 1, 2])):
        place = rng.randrange(len(sections))
        section = sections[place]
        if isinstance(section.header, bytes):  # of an earlier change
            continue
        if kind < 0.75:
            section = replace(section, header=_changed_header(section.header, rng))
        elif kind < 0.83:
            section = replace(section, header=_changed_plan(section.header, rng))
        elif kind < 0.97:
            section = replace(section, block=_changed_block(section.block, rng))
        else:
            section = replace(section, plain_size=rng.choice([0, 1, 2**31, 2**32 - 1]))
        sections[place] = section
    return write(sections)


# ── bombs ──────────────────────────────────────────────────────────────────────────────────────────────────


def bomb(data: bytes, kind: str, size: int) -> bytes:
    """A small file that says, rightly, that it is large: `size` bytes of header or of columns."""
    section = read(data)[0]
    section.header["id"] = "feedfeedfeedfeed"
    block = zlib.compress(section.block, 1)
    if kind == "columns":
        plain = dumps({**section.header, "columns": [["ids", "u1", size]]})
        block = _zeros(size)
    elif kind == "spaces":
        plain = dumps(section.header)[:-1] + b" " * size + b"}"
    elif kind == "text":
        plain = dumps({**section.header, "prompt": "@"}).replace(b'"@"', b'"' + b" " * size + b'"')
    else:
        plain = dumps({**section.header, "a": "@"}).replace(b'"@"', b"[" + b"[]," * (size // 3) + b"1]")
    packed = zlib.compress(plain, 9)
    body = _SECTION.pack(len(packed), len(plain) % 2**32, len(block)) + packed + block
    return sealed(body, 1)


def _zeros(size: int) -> bytes:
    stream, chunk = zlib.compressobj(9), b"\0" * (1 << 20)
    parts = [stream.compress(chunk) for _ in range(size >> 20)]
    return b"".join([*parts, stream.compress(b"\0" * (size % (1 << 20))), stream.flush()])
