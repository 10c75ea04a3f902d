"""Hostile GGUF files: a tiny model with values replaced, tables of a wrong length, or random bytes."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from attacks.tiny import GGUF, TOKENS, Info, tiny_gguf

_NUMBERS = (0, 1, 2, 3, 7, 16, 255, 2**15, 2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), 3.4e38, 1e300)
_TEXTS = (
    "",
    "x",
    "\0",
    "llama",
    "gpt2",
    "mamba",
    "\x1b[2J",
    "a" * 2000,
    "{{ 1 }}",
    "\ud800",
    "qwen2",
    "gemma3",
)


@cache
def _good() -> GGUF:
    return tiny_gguf()


@cache
def _bytes() -> bytes:
    return _good().to_bytes()


def mutated(rng: Random) -> bytes:
    """One hostile file."""
    kind = rng.random()
    if kind < 0.3:
        return _flipped(rng)
    if kind < 0.35:
        return _bytes()[: rng.randrange(len(_bytes()))]
    file = _good()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        file = rng.choice([_metadata, _metadata, _tokens, _tokens, _tensor, _tensor, _frame])(file, rng)
    try:
        return file.to_bytes()
    except (struct.error, OverflowError, TypeError, ValueError, AttributeError):
        return _flipped(rng)  # a value that cannot be written at all


def _flipped(rng: Random) -> bytes:
    raw = bytearray(_bytes())
    # The header comes first, and most of a file is weights, where a byte is only a number.
    end = len(raw) if rng.random() < 0.2 else len(raw) // 2
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(end - 8)
        if rng.random() < 0.7:
            raw[at] = rng.randrange(256)
        else:
            raw[at : at + 8] = struct.pack("<Q", rng.choice(_NUMBERS))
    return bytes(raw)


def _hostile(rng: Random, like: Any) -> Any:
    if isinstance(like, list) and rng.random() < 0.8:
        items = list(like)
        change = rng.randrange(4)
        if change == 0:
            return items[: rng.randrange(len(items) + 1)]
        if change == 1:
            return items + items[: rng.randrange(len(items) + 1)]
        if change == 2 and items:
            items[rng.randrange(len(items))] = items[rng.randrange(len(items))]
        return items * rng.choice([0, 1, 3])
    if isinstance(like, str) and rng.random() < 0.7:
        return rng.choice(_TEXTS)
    return rng.choice(
        [rng.choice(_NUMBERS), rng.choice(_FLOATS), rng.choice(_TEXTS), -1, True, [], [1, 2], ["a"]]
    )


def _metadata(file: GGUF, rng: Random) -> GGUF:
    metadata = dict(file.metadata)
    key = rng.choice(list(metadata))
    kind = rng.random()
    if kind < 0.1:
        del metadata[key]
    elif kind < 0.25:
        extra = rng.choice(_EXTRA)
        metadata[extra] = _hostile(rng, 1)
    else:
        metadata[key] = _hostile(rng, metadata[key])
    return replace(file, metadata=metadata)


_EXTRA = (
    *(
        "general.alignment",
        "llama.vocab_size",
        "llama.attention.sliding_window",
        "llama.attention.key_length",
    ),
    *(
        "llama.attention.value_length",
        "llama.rope.scaling.type",
        "llama.rope.scaling.factor",
        "llama.attention.scale",
    ),
    *(
        "llama.rope.scaling.original_context_length",
        "llama.final_logit_softcapping",
        "tokenizer.ggml.add_eos_token",
    ),
    *(
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.add_space_prefix",
        "general.name",
    ),
)


def _tokens(file: GGUF, rng: Random) -> GGUF:
    """A vocabulary that lies: control tokens of one character, twins, more tokens than rows."""
    metadata = dict(file.metadata)
    tokens, types = list(TOKENS), list(file.metadata.get("tokenizer.ggml.token_type", [1] * len(TOKENS)))
    if not isinstance(types, list) or len(types) != len(tokens):
        types = [1] * len(tokens)
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
        tokens[at] = rng.choice(
            ["", "x", "<", "<|", tokens[rng.randrange(len(tokens))], "\ud800", "é", "Ġ" * 600]
        )
        types[at] = rng.choice([1, 3, 4, 6])
    elif kind == 3:
        cut = rng.randrange(1, len(tokens))
        tokens, types = tokens[:cut], types[:cut]
    elif kind == 4:
        metadata["tokenizer.ggml.merges"] = [f"{rng.choice(tokens)} {rng.choice(tokens)}" for _ in range(20)]
    else:
        metadata["tokenizer.ggml.model"] = "llama"
        metadata["tokenizer.ggml.scores"] = [rng.choice([0.0, -1.0, float("nan"), 1e30])] * len(tokens)
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return replace(file, metadata=metadata)


def _tensor(file: GGUF, rng: Random) -> GGUF:
    tensors = list(file.tensors)
    at = rng.randrange(len(tensors))
    info = tensors[at]
    kind = rng.randrange(8)
    if kind == 0:
        del tensors[at]
    elif kind == 1:
        tensors.append(
            replace(info, name=rng.choice([info.name, "x", "output.weight", "rope_freqs.weight", "\0"]))
        )
    elif kind == 2:
        dims = tuple(rng.choice([dim, dim, dim + 1, max(dim - 1, 0), *_NUMBERS]) for dim in info.dims)
        tensors[at] = replace(info, dims=dims)
    elif kind == 3:
        tensors[at] = replace(info, kind=rng.choice([1, 2, 8, 10, 12, 14, 30, 99, 2**31]))
    elif kind == 4:
        tensors[at] = replace(info, offset=rng.choice([0, 32, 7, 2**20, 2**63, 2**64 - 32]))
    elif kind == 5:
        tensors[at] = replace(info, data=_weights(info, rng))
    elif kind == 6:
        tensors[at] = replace(info, dims=tuple(reversed(info.dims)))
    else:  # fewer rows than there are tokens, and all of it consistent
        rows = rng.choice([1, 100, 200, len(TOKENS) - 1])
        embedding = file.tensors[0]
        cut = replace(
            embedding, dims=(embedding.dims[0], rows), data=embedding.data[: 4 * embedding.dims[0] * rows]
        )
        tensors[0] = cut
    return replace(file, tensors=tuple(tensors))


def _weights(info: Info, rng: Random) -> bytes:
    value = rng.choice([float("nan"), float("inf"), -float("inf"), 0.0, 3e38, 1e-45])
    return struct.pack("<f", value) * (len(info.data) // 4)


def _frame(file: GGUF, rng: Random) -> GGUF:
    kind = rng.randrange(3)
    if kind == 0:
        return replace(file, version=rng.choice([0, 1, 2, 4, 2**32 - 1]))
    if kind == 1:
        return replace(file, tensor_count=rng.choice(_NUMBERS))
    return replace(file, entry_count=rng.choice(_NUMBERS))
