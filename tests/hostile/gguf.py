"""Hostile GGUF files: a good one with values replaced, types changed, tables of a wrong length, or bytes
changed. `GGUF` is a file before it is bytes; writing it takes no library, so a child process starts quickly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hostile import raw
from hostile.raw import NUMBERS

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 4, 5, 6, 7, 8, 9, 10, 12
# Types of metadata values by the struct layout of one value.
_LAYOUTS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    11: "q",
    F64: "d",
}
_FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.4e38, 1e300, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
_TEXTS = (
    *("", "a", "x", "\0", "x" * 300, "a" * 2000, "\x1b[2J", "é\u2028", "\ud800", "../up", "{{ 1 }}"),
    *("llama", "gpt2", "mamba", "qwen2", "gemma3", "yarn", "<|im_end|>"),
)


@dataclass(frozen=True)
class Entry:
    """One value of the metadata. That of an array is (type of its items, items)."""

    key: str
    kind: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    """One tensor as the header describes it. `dims` has the fastest axis first."""

    name: str
    dims: tuple[int, ...]
    kind: int  # 0 is F32
    data: bytes
    offset: int | None = None  # where it really is unless given


@dataclass(frozen=True)
class GGUF:
    """A file before it is bytes. Whatever stands here is written, however wrong."""

    entries: tuple[Entry, ...]
    tensors: tuple[Tensor, ...]
    version: int = 3
    tensor_count: int | None = None
    entry_count: int | None = None

    def __getitem__(self, key: str) -> Any:
        """A value of the metadata; of an array, its items."""
        entry = next(entry for entry in self.entries if entry.key == key)
        return entry.value[1] if entry.kind == ARRAY else entry.value

    def with_metadata(self, changes: dict[str, Any]) -> GGUF:
        """Other values for keys that are there, of the same types, or new keys."""
        named = dict(changes)
        entries = []
        for entry in self.entries:
            if entry.key in named:
                value = named.pop(entry.key)
                entry = replace(entry, value=(entry.value[0], value) if entry.kind == ARRAY else value)
            entries.append(entry)
        return replace(self, entries=(*entries, *metadata(named)))

    def to_bytes(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entry_count = len(self.entries) if self.entry_count is None else self.entry_count
        out = bytearray(b"GGUF" + struct.pack("<IQQ", self.version, tensor_count, entry_count))
        for entry in self.entries:
            out += _string(entry.key) + struct.pack("<I", entry.kind) + _value(entry.kind, entry.value)
        data = bytearray()
        for tensor in self.tensors:
            data += b"\0" * (-len(data) % ALIGNMENT)
            offset = len(data) if tensor.offset is None else tensor.offset
            out += _string(tensor.name) + struct.pack("<I", len(tensor.dims))
            out += b"".join(struct.pack("<Q", dim % 2**64) for dim in tensor.dims)
            out += struct.pack("<IQ", tensor.kind % 2**32, offset % 2**64)
            data += tensor.data
        out += b"\0" * (-len(out) % ALIGNMENT)
        return bytes(out + data)


def metadata(values: dict[str, Any]) -> tuple[Entry, ...]:
    """Entries for plain values, with the types that writers of GGUF choose."""
    return tuple(_entry(key, value) for key, value in values.items())


def _entry(key: str, value: Any) -> Entry:
    if isinstance(value, list):
        return Entry(key, ARRAY, (_kind(value[0]) if value else U32, value))
    return Entry(key, _kind(value), value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, str):
        return STRING
    if isinstance(value, float):
        return F64 if abs(value) > 3.4e38 else F32
    return I32 if value < 0 else U32 if value < 2**32 else U64


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    """Any value as any type: what does not fit is cut, and what is of another type is 0 or empty."""
    if kind == STRING:
        return _string(value if isinstance(value, str) else "x")
    if kind == ARRAY:
        inner, items = value if isinstance(value, tuple) else (U32, [])
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    layout = "<" + _LAYOUTS.get(kind, "I")
    number = value if isinstance(value, int | float) else 0
    if kind in (F32, F64):
        try:
            return struct.pack(layout, number)
        except OverflowError:
            return struct.pack(layout, float("inf"))
    whole = int(number) if abs(number) < float("inf") else 0  # also for NaN
    size = struct.calcsize(layout)
    return (whole % (1 << 8 * size)).to_bytes(size, "little")


# ── mutations ──────────────────────────────────────────────────────────────────────────────────────────────


def mutated(file: GGUF, rng: Random) -> bytes:
    """One hostile file made of a good one."""
    kind = rng.random()
    if kind < 0.3:
        data = file.to_bytes()
        # The header comes first, and most of a file is weights, where a byte is only a number.
        weights = sum(len(tensor.data) for tensor in file.tensors)
        return raw.changed(data, rng, None if rng.random() < 0.2 else len(data) - weights)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        file = rng.choice(_CHANGES)(file, rng)
    data = file.to_bytes()
    return raw.cut(data, rng) if kind < 0.36 else data


def _replaced(rng: Random, entry: Entry) -> Entry:
    if rng.random() < 0.2:
        kind, value = rng.choice(
            [
                (STRING, rng.choice(_TEXTS)),
                (F32, rng.choice(_FLOATS)),
                (F64, rng.choice(_FLOATS)),
                (U64, rng.choice(NUMBERS)),
                (I32, -1),
                (BOOL, rng.choice([0, 1, 2])),
                (ARRAY, (rng.choice([U32, F32, STRING, ARRAY]), [])),
                (ARRAY, (F32, [rng.choice(_FLOATS)] * 4)),
                (ARRAY, (U32, [1, 2])),
                (ARRAY, (STRING, ["a"])),
                (99, 0),
            ]
        )
        return Entry(entry.key, kind, value)
    if entry.kind == ARRAY:
        inner, items = entry.value
        for _ in range(rng.choice([1, 1, 2, 3])):
            items = _changed_items(inner, items, rng)
        return replace(entry, value=(rng.choice([inner] * 9 + [ARRAY, F64]), items))
    return replace(entry, value=_one(entry.kind, rng))


def _one(kind: int, rng: Random) -> Any:
    return rng.choice(_TEXTS if kind == STRING else _FLOATS if kind in (F32, F64) else NUMBERS)


def _changed_items(inner: int, items: list[Any], rng: Random) -> list[Any]:
    items = list(items)
    match rng.randrange(6):
        case 0:
            return items[: rng.randrange(len(items) + 1)]
        case 1:
            return items + items[: rng.randrange(len(items) + 1)]
        case 2 if items:
            items[rng.randrange(len(items))] = items[rng.randrange(len(items))]
        case 3:
            return items * rng.choice([0, 3])
        case 4:
            return [*items, *(items[-3:] or [_one(inner, rng)])]
        case _ if items:
            items[rng.randrange(len(items))] = _one(inner, rng)
    return items


def _metadata(file: GGUF, rng: Random) -> GGUF:
    entries = list(file.entries)
    at = rng.randrange(len(entries))
    kind = rng.random()
    if kind < 0.1:
        del entries[at]
    elif kind < 0.2:
        entries.insert(rng.randrange(len(entries)), entries[at])  # a key twice
    elif kind < 0.35:
        entries.append(_replaced(rng, Entry(rng.choice(_EXTRA), rng.choice([U32, F32, STRING]), 0)))
    else:
        entries[at] = _replaced(rng, entries[at])
    return replace(file, entries=tuple(entries))


_EXTRA = (
    "general.alignment",
    "llama.vocab_size",
    "llama.attention.sliding_window",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.attention.scale",
    "llama.rope.scaling.original_context_length",
    "llama.final_logit_softcapping",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.add_space_prefix",
    "general.name",
)


def _tokens(file: GGUF, rng: Random) -> GGUF:
    """A vocabulary that lies: control tokens of one character, twins, more tokens than rows."""
    try:
        tokens = list(file["tokenizer.ggml.tokens"])
    except (StopIteration, TypeError):  # removed by an earlier change, or no array any more
        return _metadata(file, rng)
    if not tokens:
        return file
    changes: dict[str, Any] = {}
    types = [1] * (len(tokens) - 3) + [3] * 3
    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.choice([1, 1, 5, 250])):
            types[rng.randrange(len(types))] = rng.choice([2, 3, 3, 3, 4, 5, 6])
    elif kind == 1:
        more = rng.choice([1, 30, 5000])
        tokens += [f"<more{number}>" for number in range(more)]
        types += [rng.choice([1, 3, 4])] * more
    elif kind == 2:
        at = rng.randrange(len(tokens))
        tokens[at] = rng.choice(["", "x", "<", "<|", rng.choice(tokens), "\ud800", "é", "Ġ" * 600])
        types[at] = rng.choice([1, 3, 4, 6])
    elif kind == 3:
        cut = rng.randrange(len(tokens))
        tokens, types = tokens[:cut], types[:cut]
    elif kind == 4:
        changes["tokenizer.ggml.merges"] = [f"{rng.choice(tokens)} {rng.choice(tokens)}" for _ in range(20)]
    else:
        changes["tokenizer.ggml.model"] = "llama"
        changes["tokenizer.ggml.scores"] = [rng.choice([0.0, -1.0, float("nan"), 1e30])] * len(tokens)
    changes |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return file.with_metadata(changes)


def _tensor(file: GGUF, rng: Random) -> GGUF:
    tensors = list(file.tensors)
    if not tensors:
        return file
    at = rng.randrange(len(tensors))
    tensor = tensors[at]
    kind = rng.randrange(9)
    if kind == 0:
        del tensors[at]
    elif kind == 1:
        names = (tensor.name, rng.choice(tensors).name, "output.weight", "rope_freqs.weight", *_TEXTS)
        tensors[at : at + rng.randrange(2)] = [replace(tensor, name=rng.choice(names))]
    elif kind == 2:
        dims = tuple(rng.choice([dim, dim, dim + 1, max(dim - 1, 0), *NUMBERS]) for dim in tensor.dims)
        tensors[at] = replace(tensor, dims=dims)
    elif kind == 3:
        tensors[at] = replace(tensor, kind=rng.choice([1, 2, 3, 6, 7, 8, 10, 12, 13, 14, 30, 99, 2**31]))
    elif kind == 4:
        tensors[at] = replace(
            tensor, offset=rng.choice([*NUMBERS, 32, 64, 2**20, 2**64 - 32, len(tensors[0].data)])
        )
    elif kind == 5:
        tensors[at] = replace(tensor, data=_weights(tensor, rng))
    elif kind == 6:
        tensors[at] = replace(tensor, dims=tuple(reversed(tensor.dims)))
    elif kind == 7:  # of other dimensions
        tensors[at] = replace(tensor, dims=tensor.dims * rng.randint(0, 3) + (1,) * rng.randint(0, 2))
    elif len(tensor.dims) == 2:  # fewer rows, as of the embedding for its tokens, and all of it consistent
        at = rng.choice([0, at])
        size, rows = tensors[at].dims[0], rng.choice([1, 100, 200, max(tensors[at].dims[-1] - 1, 0)])
        tensors[at] = replace(tensors[at], dims=(size, rows), data=tensors[at].data[: 4 * size * rows])
    return replace(file, tensors=tuple(tensors))


def _weights(tensor: Tensor, rng: Random) -> bytes:
    value = rng.choice([float("nan"), float("inf"), -float("inf"), 0.0, 3e38, 1e-45])
    return struct.pack("<f", value) * (len(tensor.data) // 4)


def _frame(file: GGUF, rng: Random) -> GGUF:
    kind = rng.randrange(3)
    if kind == 0:
        return replace(file, version=rng.choice([0, 1, 2, 4, 2**32 - 1]))
    if kind == 1:
        return replace(file, tensor_count=rng.choice(NUMBERS))
    return replace(file, entry_count=rng.choice(NUMBERS))


_CHANGES: tuple[Callable[[GGUF, Random], GGUF], ...] = (
    *(_metadata, _metadata, _tokens, _tokens, _tensor, _tensor, _frame),
)
