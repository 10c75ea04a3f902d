"""Weights in floats of 8 and 4 bits: FP8 (E4M3), MXFP4 and NVFP4, with scales for a matrix, a row, a block
of a matrix or a group of inputs.

Values of MXFP4 are exact in GGUF's format of this name, in Q8_0 or in bfloat16. The others are a small float
times a scale in float32, which no packed format holds: they are computed in float32 and rounded once to the
model's own type.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassloop.model.quantized.codes import CodeArray, Groups, matrix_of_codes
from glassloop.model.quantized.source import FLOATS, Source
from glassloop.ops.quant import BF16, F8_E4M3, F32, FORMATS, Bytes, Float32, quantize
from glassloop.ops.tensor import Computed, Tensor
from glassloop.util.fields import Fields

# The values of E2M1, doubled: whole numbers.
_DOUBLED_E2M1 = np.array(FORMATS["MXFP4"].table, np.int8)


E4M3 = np.array(F8_E4M3.table, np.float32)


def e8m0(codes: NDArray[np.uint8]) -> Float32:
    """Returns powers of two from their biased exponents; 255 is NaN."""
    powers = np.ldexp(np.float32(1), np.minimum(codes, 254).astype(np.int32) - 127)
    return np.where(codes == 255, np.float32(np.nan), powers).astype(np.float32)


def read_fp8(source: Source, fields: Fields) -> dict[str, Tensor]:
    """Reads FP8 with `weight_scale_inv` for blocks of the matrix (DeepSeek, Qwen), or `weight_scale` for the
    matrix or for each row."""
    matrices = {}
    for name, entry in source.entries.items():
        if entry.kind == "F8_E4M3" and name.endswith(".weight"):
            stem = name.removesuffix(".weight")
            scales = f"{stem}.weight_scale_inv"
            matrices[name] = fp8_matrix(
                source, fields, stem, scales if source.optional(scales) else f"{stem}.weight_scale"
            )
            source.forget(f"{stem}.input_scale", f"{stem}.activation_scale", f"{stem}.input_scale_ub")
    source.forget(*(name for name in source.entries if name.endswith((".k_scale", ".v_scale"))))
    return matrices


def fp8_matrix(source: Source, fields: Fields, stem: str, scales: str) -> Tensor:
    """Returns a matrix of E4M3 with these scales: one, one for each row, or one for each block."""
    name = f"{stem}.weight"
    out, into = source.entry(name, ("F8_E4M3",), 2).shape
    kind = source.entry(scales, (*FLOATS, "F8_E8M0")).kind
    scale = e8m0(source.whole(scales, ("F8_E8M0",))) if kind == "F8_E8M0" else source.floats(scales)
    block = fields.get("weight_block_size")
    rows, columns = block if isinstance(block, list) and len(block) == 2 else (128, 128)
    if type(rows) is not int or type(columns) is not int or rows < 1 or columns < 1:
        raise fields.error("weight_block_size", "is not two whole numbers of at least 1")
    in_blocks = scale.shape == (-(-out // rows), -(-into // columns))
    if scale.size == 1:
        factors, in_blocks = scale.reshape(1, 1), False
    elif scale.shape in ((out,), (out, 1)):
        factors, in_blocks = scale.reshape(out, 1), False
    elif in_blocks:
        factors = scale
    else:
        raise source.error(
            scales, f"has shape {scale.shape}; one scale, {out}, or one for each block of {rows} × {columns}"
        )

    def compute() -> Bytes:
        values = E4M3[source.whole(name, ("F8_E4M3",))]
        with np.errstate(invalid="ignore", over="ignore"):
            if in_blocks:
                for index, row in enumerate(factors):  # one strip of blocks at a time
                    strip = values[index * rows : (index + 1) * rows]
                    strip *= row[np.arange(into) // columns]
            else:
                values *= factors
        return quantize(source.dtype, values.reshape(-1))

    origin = None
    if into % F8_E4M3.block_values == 0 and source.dtype in (BF16, F32):
        # The scale of each 128 columns of a row, if blocks are no narrower.
        at = np.arange(0, into, F8_E4M3.block_values) // columns
        by_row = factors[np.arange(out) // rows] if in_blocks else factors
        if not in_blocks:
            origin = _fp8_tensor(source, name, np.broadcast_to(by_row, (out, len(at))))
        elif columns % F8_E4M3.block_values == 0:
            origin = _fp8_tensor(source, name, by_row[:, at])
    return Computed.later(name, (out, into), source.dtype, compute, origin)


def _fp8_tensor(source: Source, name: str, scale: Float32) -> Tensor:
    """Returns a matrix of E4M3 as it is stored, with the scale of each 128 columns before them."""

    def compute() -> Bytes:
        codes = source.whole(name, ("F8_E4M3",))
        blocks = np.empty((*scale.shape, F8_E4M3.block_bytes), np.uint8)
        blocks[..., :4] = np.ascontiguousarray(scale, "<f4").view(np.uint8).reshape(*scale.shape, 4)
        blocks[..., 4:] = codes.reshape(*scale.shape, -1)
        return blocks.reshape(-1)

    return Computed.later(name, source.entries[name].shape, F8_E4M3, compute)


def fp4_codes(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Returns the doubled values of E2M1 codes, of which a byte holds two, the first in its low half."""
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return _DOUBLED_E2M1[pairs].reshape(*packed.shape[:-1], -1)


def mxfp4_matrix(source: Source, name: str, packed: str, scales: str) -> Tensor:
    """Returns a matrix of MXFP4: `packed` [out, in / 2], `scales` [out, in / 32], exponents of two."""
    out, half = source.entry(packed, ("U8",), 2).shape
    into = 2 * half
    if into % 32:
        raise source.error(packed, f"has {into} inputs; a multiple of 32 is expected")
    exponents = source.whole(scales, ("U8", "F8_E8M0"), (out, into // 32))
    if exponents.max() < 255:  # 255 is NaN, which GGUF's blocks do not have
        return Computed.later(
            name,
            (out, into),
            FORMATS["MXFP4"],
            lambda: _mxfp4_blocks(source.whole(packed, ("U8",)), exponents),
        )
    shared = Groups(e8m0(exponents) / np.float32(2))

    def read() -> CodeArray:
        return fp4_codes(source.whole(packed, ("U8",)))

    return matrix_of_codes(name, (out, into), shared, -12, 12, BF16, read)


def _mxfp4_blocks(packed: NDArray[np.uint8], exponents: NDArray[np.uint8]) -> Bytes:
    """Returns GGUF's blocks of MXFP4: the exponent, then 32 codes, the first 16 in the low halves of the
    bytes."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, 32)
    halves = codes[:, :16] | codes[:, 16:] << 4
    return np.concatenate([exponents.reshape(-1, 1), halves], axis=-1).reshape(-1)


def nvfp4_matrix(
    source: Source, name: str, packed: str, scales: str, whole_scale: str, divided: bool = False
) -> Tensor:
    """Returns a matrix of NVFP4: `packed` [out, in / 2], `scales` [out, in / 16] in E4M3, and one scale for
    the whole of it, by which the others are multiplied or `divided`."""
    whole = source.floats(whole_scale)
    if whole.size != 1:
        raise source.error(whole_scale, f"has shape {whole.shape}; one number is expected")
    factor = whole.reshape(1, 1)
    out, half = source.entry(packed, ("U8",), 2).shape
    into = 2 * half
    if into % 16:
        raise source.error(packed, f"has {into} inputs; a multiple of 16 is expected")
    source.whole(scales, ("F8_E4M3",), (out, into // 16))

    def compute() -> Bytes:
        small = E4M3[source.whole(scales, ("F8_E4M3",))]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scale = small / factor if divided else small * factor
        codes = fp4_codes(source.whole(packed, ("U8",))).reshape(out, into // 16, 16)
        with np.errstate(invalid="ignore", over="ignore"):
            values = codes.astype(np.float32) * np.float32(0.5) * scale[..., None]
        return quantize(source.dtype, values.reshape(-1))

    return Computed.later(name, (out, into), source.dtype, compute)


def read_gpt_oss(source: Source, fields: Fields) -> dict[str, Tensor]:
    """Reads MXFP4 as gpt-oss stores its experts: `_blocks` [experts, out, groups, 16] and `_scales`
    [experts, out, groups]. Each becomes [experts, out, in], or with a NaN among the scales, floats [experts,
    in, out] as in the files without MXFP4."""
    matrices: dict[str, Tensor] = {}
    for stem in source.stems("_blocks"):
        shape = source.entry(f"{stem}_blocks", ("U8",), 4).shape
        if shape[-1] != 16:
            raise source.error(f"{stem}_blocks", f"has shape {shape}; blocks of 16 bytes are expected")
        exponents = source.whole(f"{stem}_scales", ("U8",), shape[:-1])

        if exponents.max() < 255:
            experts, out, groups = shape[:-1]

            def packed(stem: str = stem, exponents: NDArray[np.uint8] = exponents) -> Bytes:
                rows = source.whole(f"{stem}_blocks", ("U8",))
                return _mxfp4_blocks(
                    rows.reshape(-1, rows.shape[2] * 16), exponents.reshape(-1, rows.shape[2])
                )

            shape = experts, out, groups * 32
            matrices[stem] = Computed.later(stem, shape, FORMATS["MXFP4"], packed)
            continue

        def compute(stem: str = stem, exponents: NDArray[np.uint8] = exponents) -> Bytes:
            codes = fp4_codes(source.whole(f"{stem}_blocks", ("U8",)))
            with np.errstate(invalid="ignore", over="ignore"):
                values = codes.astype(np.float32) * (e8m0(exponents) / np.float32(2))[..., None]
            values = values.reshape(*values.shape[:2], -1).swapaxes(1, 2)
            return quantize(BF16, np.ascontiguousarray(values).reshape(-1))

        matrices[stem] = Computed.later(stem, (shape[0], shape[2] * 32, shape[1]), BF16, compute)
    return matrices


def read_modelopt(source: Source, fields: Fields) -> dict[str, Tensor]:
    """Reads ModelOpt's FP8 (one scale for a matrix) and NVFP4 (`weight_scale` in E4M3 for 16 inputs, times
    `weight_scale_2`)."""
    matrices = {}
    for stem in source.stems(".weight_scale"):
        name = f"{stem}.weight"
        if source.optional(f"{stem}.weight_scale_2"):
            scales = (f"{stem}.weight_scale", f"{stem}.weight_scale_2")
            matrices[name] = nvfp4_matrix(source, name, name, *scales)
        else:
            matrices[name] = fp8_matrix(source, fields, stem, f"{stem}.weight_scale")
        source.forget(f"{stem}.input_scale")
    source.forget(*(name for name in source.entries if name.endswith((".k_scale", ".v_scale"))))
    return matrices
