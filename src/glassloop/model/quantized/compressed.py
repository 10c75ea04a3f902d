"""compressed-tensors, what llm-compressor writes: integers of 1 to 8 bits, FP8, NVFP4 and MXFP4. Each group
of `config_groups` says how the weights of the layers that it targets are stored; here the stored tensors say
which layers those are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.model.quantized.codes import CodeArray, Groups, matrix_of_codes
from glassloop.model.quantized.small_floats import fp8_matrix, mxfp4_matrix, nvfp4_matrix
from glassloop.model.quantized.source import FLOATS, Source, unpacked
from glassloop.ops.quant import Bytes, quantize
from glassloop.ops.tensor import Computed, Tensor
from glassloop.util.fields import Fields
from glassloop.util.shown import shown

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized")
_MORE_FORMATS = ("mxfp4-pack-quantized", "dense", "mixed-precision")


def read_compressed(source: Source, fields: Fields) -> dict[str, Tensor]:
    """Reads every matrix that has scales beside it."""
    readable = (*_FORMATS, *_MORE_FORMATS)
    format = fields.get("format", "dense")
    if format not in readable:
        raise fields.error("format", f"is {shown(format)}; one of {', '.join(readable)} is read")
    bits = _bits(fields)
    matrices = {}
    for stem in source.stems(".weight_scale"):
        name = f"{stem}.weight"
        if source.optional(f"{stem}.weight_global_scale"):
            matrices[name] = _nvfp4(source, stem)
        elif source.optional(f"{stem}.weight_packed"):
            is_words = source.entry(f"{stem}.weight_packed", ("I32", "U8")).kind == "I32"
            matrices[name] = _packed(source, stem, bits) if is_words else _mxfp4(source, stem)
        elif source.entry(name, ("I8", "F8_E4M3"), 2).kind == "F8_E4M3":
            matrices[name] = fp8_matrix(source, _block_fields(fields), stem, f"{stem}.weight_scale")
        else:
            matrices[name] = _plain_integers(source, stem)
        source.forget(f"{stem}.input_scale", f"{stem}.input_global_scale", f"{stem}.input_zero_point")
        source.forget(f"{stem}.weight_shape", f"{stem}.weight_g_idx")
    for ending in (".k_scale", ".v_scale", ".q_scale"):
        source.forget(*(f"{stem}{ending}" for stem in source.stems(ending)))
    return matrices


def _weight_options(fields: Fields) -> list[Fields]:
    """Returns the options for weights of each of the `config_groups`."""
    groups = fields.inner("config_groups")
    options = []
    for name in groups.values if groups is not None else ():
        group = groups.inner(str(name)) if groups is not None else None
        weights = group.inner("weights") if group is not None else None
        if weights is not None:
            options.append(weights)
    return options


def _bits(fields: Fields) -> int:
    """Returns the bits of integers in 32-bit words, the same for all groups."""
    bits = {weights.whole("num_bits", 8, most=8) for weights in _weight_options(fields)}
    if len(bits) > 1 and fields.get("format") == "pack-quantized":
        raise fields.error("config_groups", f"has num_bits {sorted(bits)}; the same for all is expected")
    return bits.pop() if bits else 8


def _block_fields(fields: Fields) -> Fields:
    """Returns the options with the size of blocks where `fp8_matrix` looks for it."""
    blocks = [weights.get("block_structure") for weights in _weight_options(fields)]
    return Fields(fields.where, {"weight_block_size": next((block for block in blocks if block), None)})


def _packed(source: Source, stem: str, bits: int) -> Tensor:
    """Returns a matrix of `weight_packed` [out, words], signed numbers stored from 0 on, `weight_scale` [out,
    groups] and perhaps `weight_zero_point`, as packed words [out * bits / 32, groups] or as bytes."""
    out, words = source.entry(f"{stem}.weight_packed", ("I32",), 2).shape
    shape = source.whole(f"{stem}.weight_shape", ("I64", "I32"), (2,))
    into = int(shape[1])
    if int(shape[0]) != out or not into > 0 or -(-into * bits // 32) != words:
        raise source.error(
            f"{stem}.weight_shape", f"is {shape.tolist()}, not that of {out} rows of {words} words"
        )
    middle = 1 << (bits - 1)

    def codes() -> NDArray[np.int16]:
        return unpacked(source.whole(f"{stem}.weight_packed", ("I32",)), bits, into).astype(np.int16) - middle

    zero = f"{stem}.weight_zero_point"
    zeros = None
    if source.optional(zero):
        groups = source.entry(f"{stem}.weight_scale", tuple(FLOATS), 2).shape[1]
        if source.entry(zero, ("I32", "I8"), 2).kind == "I32":
            packed = source.whole(zero, ("I32",), (-(-out * bits // 32), groups)).T
            zeros = unpacked(packed, bits, out).T.astype(np.int16) - middle
        else:
            zeros = source.whole(zero, ("I8",), (out, groups)).astype(np.int16)
    return _integers(source, stem, (out, into), bits, codes, zeros)


def _plain_integers(source: Source, stem: str) -> Tensor:
    out, into = source.entry(f"{stem}.weight", ("I8",), 2).shape

    def codes() -> NDArray[np.int16]:
        return source.whole(f"{stem}.weight", ("I8",)).astype(np.int16)

    zeros = None
    if source.optional(f"{stem}.weight_zero_point"):
        scale_shape = source.entry(f"{stem}.weight_scale", tuple(FLOATS)).shape
        zeros = source.whole(f"{stem}.weight_zero_point", ("I8",), scale_shape).astype(np.int16)
        zeros = zeros.reshape(zeros.shape[0], -1) if zeros.ndim else zeros.reshape(1, 1)
    return _integers(source, stem, (out, into), 8, codes, zeros)


def _integers(
    source: Source, stem: str, shape: tuple[int, int], bits: int, codes: Any, zeros: NDArray[np.int16] | None
) -> Tensor:
    """Returns a matrix of signed integers with a scale for all of it, for each row, or for each group."""
    out, into = shape
    stored = f"{stem}.weight_scale"
    floats = FLOATS[source.entry(stored, tuple(FLOATS)).kind]
    scale = source.floats(stored)
    scale = scale.reshape(1, 1) if scale.size == 1 else scale.reshape(scale.shape[0], -1)
    groups = scale.shape[1]
    if scale.shape[0] not in (1, out) or into % groups:
        raise source.error(stored, f"has shape {scale.shape} for a matrix of {out} × {into}")
    if zeros is not None and zeros.shape != scale.shape:
        raise source.error(f"{stem}.weight_zero_point", f"has shape {zeros.shape}; {scale.shape} is expected")
    scale = np.broadcast_to(scale, (out, groups))
    zeros = None if zeros is None else np.broadcast_to(zeros, (out, groups))
    order = None
    if source.optional(f"{stem}.weight_g_idx"):
        order = source.whole(f"{stem}.weight_g_idx", ("I32", "I64"), (into,))
        if (order == -1).all() or (order == np.arange(into) // (into // groups)).all():
            order = None
        elif order.min() < 0 or order.max() >= groups:
            raise source.error(f"{stem}.weight_g_idx", f"has a group outside 0 to {groups - 1}")

    def read() -> CodeArray:
        grouped = codes().reshape(out, groups, -1)
        shifted = grouped if zeros is None else grouped - zeros[..., None]
        return np.asarray(shifted.reshape(out, into))

    def ordered() -> Bytes:
        shifted = codes() if zeros is None else codes() - zeros[:, order]
        with np.errstate(invalid="ignore", over="ignore"):
            values = shifted.astype(np.float32) * scale[:, order]
        return quantize(floats, values.reshape(-1))

    if order is not None:
        return Computed.later(f"{stem}.weight", shape, floats, ordered)
    middle = 1 << (bits - 1)
    low = -middle - (0 if zeros is None else int(zeros.max()))
    high = middle - 1 - (0 if zeros is None else int(zeros.min()))
    zero = None if zeros is None or bits > 4 or int(zeros.min()) < -middle else zeros + middle
    return matrix_of_codes(f"{stem}.weight", shape, Groups(scale, zero=zero), low, high, floats, read)


def _nvfp4(source: Source, stem: str) -> Tensor:
    scales = (f"{stem}.weight_scale", f"{stem}.weight_global_scale")
    return nvfp4_matrix(source, f"{stem}.weight", f"{stem}.weight_packed", *scales, divided=True)


def _mxfp4(source: Source, stem: str) -> Tensor:
    return mxfp4_matrix(source, f"{stem}.weight", f"{stem}.weight_packed", f"{stem}.weight_scale")
