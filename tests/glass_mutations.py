"""Mutations of `.glass` files whose checksums are right, so that they reach what reads behind those.

`mutated_glass(data, rng)` changes a valid file in one to three places: the front, the compressed bytes, a
field of a header (its type, its range, its length), the plan of the columns, or a number of a column.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from random import Random
from typing import Any

_FRONT = struct.Struct("<8sHHQ")
_SECTION = struct.Struct("<III")
Section = tuple[bytes, bytes]  # the header and the columns, uncompressed

# What a value is replaced by: other types, the ends of ranges and beyond, texts that steer or are none.
_VALUES: tuple[str, ...] = (
    "null", "true", "false", "0", "-0", "1", "-1", "1.5", "-1.5", "1e-320", "1e308", "1e999", "-1e999",
    "NaN", "Infinity", "-Infinity", "2147483647", "2147483648", "-2147483648", "4294967296",
    "18446744073709551615", "18446744073709551616", "9" * 400, "9" * 5000, '""', '"abc"', '"../../x"',
    '"0123456789abcdef"', '"0123456789ABCDEF"', '"a\\"\\r\\nX-Evil: 1"', '"\\u001b[2J"', '"\\ud800"',
    '"\\u202e"', '"\\u0000"', '"' + "x" * 5000 + '"', "[]", "{}", "[[]]", "[null]", "[0]", "[-1]", '[""]',
    '{"a": 1}', '{"a": 1, "a": 2}', '{"": {}}', "[" * 300 + "]" * 300, "[" * 5000 + "]" * 5000,
    "[" + "0," * 3000 + "0]", '["0123456789abcdef","0123456789abcdef"]', "[[0,0,0,0,0]]", "[[0,1,2]]",
)  # fmt: skip


def sections(data: bytes) -> list[Section]:
    """The runs of a valid file, uncompressed."""
    found, at = [], _FRONT.size + 4
    while at < len(data) - 32:
        packed, _, records = _SECTION.unpack_from(data, at)
        middle = at + _SECTION.size + packed
        found.append(
            (zlib.decompress(data[at + _SECTION.size : middle]), zlib.decompress(data[middle:][:records]))
        )
        at = middle + records
    return found


def joined(parts: list[Section], count: int | None = None, version: int = 1) -> bytes:
    """A file of these, with every checksum and every length right."""
    return sealed(b"".join(_packed(*part) for part in parts), len(parts) if count is None else count, version)


def with_headers(data: bytes, *headers: Any) -> bytes:
    """A file with other headers (as Python has them) before the same columns."""
    parts = sections(data)
    return joined([(json.dumps(header).encode(), parts[0][1]) for header in headers])


def sealed(body: bytes, count: int, version: int = 1) -> bytes:
    size = _FRONT.size + 4 + len(body) + 32
    front = _FRONT.pack(b"\x89GLASS\r\n", version, count, size)
    whole = front + struct.pack("<I", zlib.crc32(front)) + body
    return whole + hashlib.sha256(whole).digest()


def mutated_glass(data: bytes, rng: Random) -> bytes:
    parts = sections(data)
    way = rng.random()
    if way < 0.1:
        return _mutated_body(data, rng, len(parts))
    if way < 0.15:
        several = [rng.choice(parts) for _ in range(rng.randrange(1, 4))]  # twice the same id, or cut off
        return joined(several, rng.choice((None, 0, 1, 2, 5000, 65535)), rng.choice((0, 1, 1, 1)))
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(parts))
        header, columns = parts[place]
        if way < 0.75:
            header = mutated_json(header, rng)
        elif way < 0.8:
            header = _mutated_bytes(header, rng)
        else:
            columns = _mutated_bytes(columns, rng, in_place=rng.random() < 0.8)
        parts[place] = header, columns
    return joined(parts)


def mutated_json(text: bytes, rng: Random) -> bytes:
    """One value anywhere in it replaced, removed, repeated or renamed."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return _mutated_bytes(text, rng)
    mark = "\x00here\x00"
    found = list(_places(tree))
    if not found:
        return _mutated_bytes(text, rng)
    # A top-level field half of the time: most values are deep within long lists.
    holder, key = rng.choice(found if rng.random() < 0.5 else [each for each in found if each[0] is tree])
    how = rng.random()
    if how < 0.1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif how < 0.2:
        del holder[key]
    elif how < 0.3 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif how < 0.4 and type(holder[key]) is int:
        holder[key] += rng.choice((-1, 1, 1 << 8, 1 << 31, -(1 << 31)))
    else:
        holder[key] = mark
    made = json.dumps(tree, ensure_ascii=False).replace(json.dumps(mark), rng.choice(_VALUES))
    return made.encode("utf-8", "surrogatepass")


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            found += [(holder, key) for key in keys]
            waiting += [holder[key] for key in keys]
    return found


def _mutated_bytes(data: bytes, rng: Random, in_place: bool = False) -> bytes:
    """`in_place`: it stays as long as it is."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 16))):
        at = rng.randrange(len(made) + 1)
        how = rng.random() * (0.6 if in_place else 1)
        if how < 0.6 and at < len(made):
            made[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, made[at] ^ (1 << rng.randrange(8))))
        elif in_place:
            continue
        elif how < 0.8:
            del made[at : at + rng.choice((1, 4, 100))]
        else:
            made[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
    return bytes(made)


def _mutated_body(data: bytes, rng: Random, count: int) -> bytes:
    """Bytes as they are in the file: lengths of sections and compressed blocks."""
    body = data[_FRONT.size + 4 : -32]
    if rng.random() < 0.5:
        front = [rng.choice((0, 1, each, each + 1, 0xFFFFFFFF)) for each in _SECTION.unpack_from(body)]
        body = _SECTION.pack(*front) + body[_SECTION.size :]
    else:
        body = _mutated_bytes(body, rng)
    return sealed(body, count)


def _packed(header: bytes, columns: bytes) -> bytes:
    packed, records = zlib.compress(header, 1), zlib.compress(columns, 1)
    return _SECTION.pack(len(packed), len(header), len(records)) + packed + records
