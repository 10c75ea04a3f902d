"""Hostile bytes: a file with bytes changed, removed or inserted anywhere."""

from __future__ import annotations

from random import Random

# Lengths and offsets as binary headers have them.
NUMBERS = (
    *(0, 1, 2, 3, 7, 16, 255, 2**15, 2**16, 2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**48),
    *(2**63 - 1, 2**63, 2**64 - 1),
)


def changed(data: bytes, rng: Random, end: int | None = None, in_place: bool = False) -> bytes:
    """Changes bytes before `end`. With `in_place`, the length stays the same."""
    made = bytearray(data)
    end = len(data) if end is None else end
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(end + 1)
        size = min(rng.choice((1, 4, 8, 40, 100)), max(len(made) - at, 0))
        match rng.randrange(5 if in_place else 8):
            case 0 | 1 | 2 | 3 if at < len(made):
                flipped = made[at] ^ (1 << rng.randrange(8))
                made[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, flipped, rng.randrange(256)))
            case 4 if at + 8 <= len(made):
                made[at : at + 8] = rng.choice(NUMBERS).to_bytes(8, "little")
            case 5:
                del made[at : at + size]
            case 6:
                made[at:at] = made[at : at + size]
            case 7:
                made[at:at] = rng.randbytes(size)
            case _:
                pass
    return bytes(made)


def cut(data: bytes, rng: Random) -> bytes:
    """Returns the beginning of it."""
    return data[: rng.randrange(len(data) + 1)]
