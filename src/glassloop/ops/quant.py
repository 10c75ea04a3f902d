"""Stored number formats: the table of all of them, and how to read their values and to write some.

Every quantized format consists of the same parts: small codes, a scale for each group of codes, in some
formats a minimum for each group, so that `value = scale * code + minimum`, and in some a table of at most 16
values, in which the code is a place. Everything about a format is in its row of `FORMATS`: the loaders find
it by GGUF's number or the dtype of safetensors, the reference op set computes the values, and the native and
the torch op set pack codes and scales for their kernels as the row says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from glassloop.ops import blocks as read
from glassloop.ops import quantizers as write
from glassloop.ops.blocks import Blocks, Bytes, Float32

__all__ = [
    "BF16",
    "F8_E4M3",
    "F16",
    "F32",
    "FORMATS",
    "FORMAT_BY_DTYPE",
    "FORMAT_BY_GGUF_ID",
    "FORMAT_BY_SAFETENSORS",
    "INT4",
    "Blocks",
    "Bytes",
    "Float32",
    "Format",
    "dequantize",
    "factors",
    "quantize",
]

# Blocks converted at a time, so that the intermediate arrays stay in the processor's cache.
_BLOCKS_AT_ONCE = 1 << 13

# How the native op set stores scales and minimums, exactly: as floats, or as whole numbers of a float16 for
# each 256 values, in a byte (with codes of two bits, a minimum shares the byte of its scale: four bits each).
# With zeros, the minimum is the code that stands for 0, in a byte.
Scale = Literal["f16", "bf16", "f32", "steps", "zeros"]


class Format(NamedTuple):
    """One stored number format: all that is known about it.

    A new format is a row of `FORMATS` and a reader in `blocks.py`; with a writer in `quantizers.py`, models
    can be converted to it. Plain floats have blocks of a single value."""

    name: str  # as GGUF and the documentation call it
    gguf_id: int
    block_values: int
    block_bytes: int
    # Takes blocks [blocks, bytes] apart; None for floats.
    take_apart: Callable[[Bytes], Blocks] | None = None
    group: int = 32  # values that share a scale; of longer groups, the scale is repeated for each 32
    bits: int = 4  # of a code as op sets store it: 2, 4 or 8; of a float: 16 or 32
    scale: Scale = "f16"
    minimum: bool = False
    table: tuple[float, ...] = ()  # the values of codes, at most 16; without it, a code is its own value
    factor: float = 1.0  # of all scales: a power of two
    middle: int = 0  # with a minimum, the code in the middle: the GPU stores codes relative to it
    # Converts float32 values [blocks, values] (floats: flat) to bytes; None: the format is only read.
    write: Callable[[Float32], Bytes] | None = None
    widen: Callable[[Bytes], Float32] | None = None  # of floats: converts bytes to float32
    grid: str | None = None  # whose points the codes are (grids.py)
    safetensors: str | None = None  # its dtype in safetensors
    dtype: str | None = None  # its name in config.json

    def size_of(self, values: int) -> int:
        return values // self.block_values * self.block_bytes


def _floats(name: str, gguf_id: int, bits: int, dtype: str, **functions: Any) -> Format:
    return Format(name, gguf_id, 1, bits // 8, bits=bits, safetensors=name, dtype=dtype, **functions)


F32 = _floats("F32", 0, 32, "float32", widen=read.from_f32, write=write.to_f32)
F16 = _floats("F16", 1, 16, "float16", widen=read.from_f16, write=write.to_f16)
BF16 = _floats("BF16", 30, 16, "bfloat16", widen=read.from_bf16, write=write.to_bf16)
# Name, number in GGUF, values and bytes of a block, reader, group, bits, scale.
_ROWS = (
    F32,
    F16,
    BF16,
    Format("Q4_0", 2, 32, 18, read.q4_0, write=write.quantize_q4_0),
    Format("Q4_1", 3, 32, 20, read.q4_1, minimum=True, middle=8, write=write.quantize_q4_1),
    Format("Q5_0", 6, 32, 22, read.q5_0, bits=8),
    Format("Q5_1", 7, 32, 24, read.q5_1, bits=8, minimum=True, middle=16),
    Format("Q8_0", 8, 32, 34, read.q8_0, bits=8, write=write.quantize_q8_0),
    Format("Q2_K", 10, 256, 84, read.q2_k, 16, 2, "steps", minimum=True, table=(0, 1, 2, 3), middle=2),
    Format("Q3_K", 11, 256, 110, read.q3_k, 16, 4, "steps", table=(-4, -3, -2, -1, 0, 1, 2, 3)),
    Format("Q4_K", 12, 256, 144, read.q4_k, 32, 4, "steps", True, middle=8, write=write.quantize_q4_k),
    Format("Q5_K", 13, 256, 176, read.q5_k, 32, 8, "steps", True, middle=16, write=write.quantize_q5_k),
    Format("Q6_K", 14, 256, 210, read.q6_k, 16, 8, "steps", write=write.quantize_q6_k),
    Format(
        "IQ2_XXS",
        16,
        256,
        66,
        read.iq2_xxs,
        32,
        4,
        "steps",
        table=read.IQ2_VALUES,
        factor=1 / 8,
        grid="IQ2_XXS",
    ),
    Format(
        "IQ2_XS", 17, 256, 74, read.iq2_xs, 16, 4, "steps", table=read.IQ2_VALUES, factor=1 / 8, grid="IQ2_XS"
    ),
    Format(
        "IQ3_XXS",
        18,
        256,
        98,
        read.iq3_xxs,
        32,
        4,
        "steps",
        table=read.IQ3_XXS_VALUES,
        factor=1 / 4,
        grid="IQ3_XXS",
    ),
    Format("IQ1_S", 19, 256, 50, read.iq1_s, 32, 4, "steps", table=read.IQ1_VALUES, factor=1 / 8, grid="IQ1"),
    Format("IQ4_NL", 20, 32, 18, read.iq4_nl, table=read.IQ4_VALUES, write=write.quantize_iq4_nl),
    Format("IQ3_S", 21, 256, 110, read.iq3_s, 32, 4, "steps", table=read.IQ3_S_VALUES, grid="IQ3_S"),
    Format(
        "IQ2_S", 22, 256, 82, read.iq2_s, 16, 4, "steps", table=read.IQ2_VALUES, factor=1 / 8, grid="IQ2_S"
    ),
    Format("IQ4_XS", 23, 256, 136, read.iq4_xs, 32, 4, "steps", table=read.IQ4_VALUES),
    Format("IQ1_M", 29, 256, 56, read.iq1_m, 16, 4, "steps", table=read.IQ1_VALUES, factor=1 / 8, grid="IQ1"),
    Format("TQ1_0", 34, 256, 54, read.tq1_0, 32, 2, "steps", table=read.TERNARY_VALUES),
    Format("TQ2_0", 35, 256, 66, read.tq2_0, 32, 2, "steps", table=read.TERNARY_VALUES),
    Format(
        "MXFP4", 39, 32, 17, read.mxfp4, 32, 4, "bf16", table=read.E2M1_DOUBLED, write=write.quantize_mxfp4
    ),
    Format("NVFP4", 40, 64, 36, read.nvfp4, 16, table=read.E2M1_DOUBLED),
    Format("Q1_0", 41, 128, 18, read.q1_0, table=(-1, 1)),
    Format("Q2_0", 42, 64, 18, read.q2_0, table=read.TERNARY_VALUES),
)
# Floats of 8 bits with a scale for each 128 of a row: how safetensors of FP8 are handed to the GPU, which
# keeps them so. No other op set multiplies with them (`Tensor.origin`), and GGUF does not have them.
F8_E4M3 = Format(
    "F8_E4M3", -1, 128, 132, read.f8_e4m3, 128, 8, "f32", table=read.E4M3_VALUES, safetensors="F8_E4M3"
)
FORMATS: dict[str, Format] = {format.name: format for format in _ROWS}
# In no GGUF file: AWQ, GPTQ and compressed-tensors become it, whose groups have a scale and a zero.
INT4 = Format("INT4", -1, 32, 19, read.int4, scale="zeros", minimum=True, middle=8)
FORMAT_BY_GGUF_ID = {format.gguf_id: format for format in _ROWS}
FORMAT_BY_SAFETENSORS = {format.safetensors: format for format in _ROWS if format.safetensors}
FORMAT_BY_DTYPE = {format.dtype: format for format in _ROWS if format.dtype}


def quantize(format: Format, values: Float32) -> Bytes:
    """Returns float32 values (flat, whole blocks) in a stored format that has a writer."""
    assert format.write is not None, f"{format.name} is not written"
    if format.take_apart is None:
        return format.write(values)
    blocks = values.reshape(-1, format.block_values)
    raw = np.empty((len(blocks), format.block_bytes), np.uint8)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        some = slice(start, start + _BLOCKS_AT_ONCE)
        raw[some] = format.write(blocks[some])
    return raw.reshape(-1)


def factors(format: Format, blocks: Blocks) -> tuple[Float32, Float32 | None]:
    """Returns the scales and minimums of blocks as numbers: [blocks, groups]."""
    _, scale, minimum, unit, minimum_unit = blocks
    if unit is not None:
        scale = (unit * np.float32(format.factor)) * scale.astype(np.float32)
    if minimum is not None and minimum_unit is not None:
        minimum = -(minimum_unit * minimum.astype(np.float32))
    return scale.astype(np.float32), None if minimum is None else minimum.astype(np.float32)


def dequantize(format: Format, raw: Bytes) -> Float32:
    """Returns the stored values as float32, flat, in order. `raw` is flat and holds whole blocks."""
    if format.widen is not None:
        return format.widen(raw)
    assert format.take_apart is not None
    stored = raw.reshape(-1, format.block_bytes)
    values = np.empty((len(stored), format.block_values), np.float32)
    table = np.array(format.table, np.float32)
    for start in range(0, len(stored), _BLOCKS_AT_ONCE):
        blocks = format.take_apart(stored[start : start + _BLOCKS_AT_ONCE])
        scale, minimum = factors(format, blocks)
        out = values[start : start + _BLOCKS_AT_ONCE].reshape(blocks.codes.shape)
        codes = table[blocks.codes] if format.table else blocks.codes
        np.multiply(codes, scale[..., None], out=out, dtype=np.float32)
        if minimum is not None:
            out += minimum[..., None]
    return values.reshape(-1)
