"""A tiny model as GGUF whose matrices have a given type: random blocks, or random values that the `gguf`
package has quantized.
"""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import quantize
from hostile.gguf import GGUF, Tensor
from hostile.tiny import TOKENS, tiny_gguf
from ops.random_models import random_tensor

from glassloop.ops.quant import FORMATS

DIM = 256  # the longest block of a format
# Types that the `gguf` package can quantize to.
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "BF16")


def typed_gguf(*names: str, seed: int = 0) -> GGUF:
    """Returns a llama of two layers. Its matrices have these types, in turn; its head has the last one."""
    rng = np.random.default_rng(seed)
    tensors = [
        _tensor(rng, tensor.name, tensor.dims, names[index % len(names)])
        for index, tensor in enumerate(tiny_gguf(rich=True).tensors)
    ]
    model = tiny_gguf()
    values = {
        "llama.embedding_length": DIM,
        "llama.feed_forward_length": DIM,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.rope.dimension_count": DIM // 4,
    }
    return GGUF(model.with_metadata(values).entries, tuple(tensors))


def _tensor(rng: np.random.Generator, name: str, dims: tuple[int, ...], kind: str) -> Tensor:
    if len(dims) == 1:
        return Tensor(name, (DIM,), 0, rng.normal(1, 0.1, DIM).astype("<f4").tobytes())
    rows = len(TOKENS) if dims[1] == len(TOKENS) else DIM
    if kind in QUANTIZED:
        values = rng.standard_normal((rows, DIM)).astype(np.float32) / 8
        raw = quantize(values, gguf.GGMLQuantizationType[kind])
    else:
        raw = random_tensor(rng, name, (rows, DIM), FORMATS[kind]).data
    return Tensor(name, (DIM, rows), FORMATS[kind].gguf_id, raw.tobytes())
