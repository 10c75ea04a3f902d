"""Hostile GGUF files whose matrices have every type of the table of formats: random blocks, then a change of
bytes, of a type, or of what the header says.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
from hostile import gguf, raw
from hostile.tiny import TOKENS, tiny_gguf

from glassloop.ops.quant import FORMATS

DIM = 256  # the longest block of a format
_NAMES = tuple(FORMATS)


@cache
def _good() -> gguf.GGUF:
    """Returns a llama of one layer, still without the bytes of its matrices."""
    model = tiny_gguf(rich=True)
    values = {
        "llama.block_count": 1,
        "llama.embedding_length": DIM,
        "llama.feed_forward_length": DIM,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.rope.dimension_count": DIM // 4,
    }
    tensors = [each for each in model.tensors if not each.name.startswith("blk.1.")]
    return gguf.GGUF(tiny_gguf().with_metadata(values).entries, tuple(tensors))


def _filled(tensor: gguf.Tensor, rng: Random) -> gguf.Tensor:
    if len(tensor.dims) == 1:
        return replace(tensor, dims=(DIM,), data=np.ones(DIM, "<f4").tobytes())
    rows = len(TOKENS) if tensor.dims[1] == len(TOKENS) else DIM
    format = FORMATS[rng.choice(_NAMES)]
    return replace(
        tensor, dims=(DIM, rows), kind=format.gguf_id, data=rng.randbytes(format.size_of(DIM * rows))
    )


def mutated_types(rng: Random) -> bytes:
    """Returns a file whose matrices have random types and random blocks, most often damaged further."""
    good = _good()
    tensors = [_filled(tensor, rng) for tensor in good.tensors]
    kind = rng.randrange(6)
    if kind == 0:
        at = rng.randrange(len(tensors))
        tensors[at] = replace(tensors[at], kind=rng.randrange(45))
    if kind == 1:
        at = rng.randrange(len(tensors))
        sizes = [rng.choice([size, size - 1, size + 1, size // 2, 64, 32, 1, 0]) for size in tensors[at].dims]
        tensors[at] = replace(tensors[at], dims=tuple(sizes))
    file = replace(good, tensors=tuple(tensors))
    if kind == 2:
        return gguf.mutated(file, rng)
    data = file.to_bytes()
    return raw.changed(data, rng, 4000) if kind == 3 else data
