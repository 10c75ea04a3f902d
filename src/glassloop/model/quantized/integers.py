"""AWQ, GPTQ and MLX: whole numbers of a few bits in 32-bit words, with scales for groups of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.model.quantized.codes import CodeArray, Groups, matrix_of_codes
from glassloop.model.quantized.source import FLOATS, Source, unpacked
from glassloop.ops.quant import Bytes, Float32, Format, quantize
from glassloop.ops.tensor import Computed, Tensor
from glassloop.util.fields import Fields
from glassloop.util.shown import printable, shown

# Where AWQ puts the columns of eight that share a word.
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])


def _group_size(fields: Fields, into: int, name: str, source: Source) -> int:
    """Returns how many inputs share a scale; -1 stands for all of them."""
    size = fields.get("group_size", fields.get("q_group_size", 128))
    if size == -1:
        return into
    if type(size) is not int or size < 1 or into % size:
        raise source.error(
            name, f"has {into} inputs, which groups of {shown(size)} (group_size) do not divide"
        )
    return size


def _scale_format(source: Source, name: str) -> Format:
    return FLOATS[source.entry(name, tuple(FLOATS)).kind]


def read_awq(source: Source, fields: Fields) -> dict[str, Tensor]:
    """Reads AWQ: `qweight` [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out], 4 bits."""
    bits = fields.get("bits", fields.get("w_bit", 4))
    if bits != 4:
        raise fields.error("bits", f"is {shown(bits)}; AWQ of 4 bits is read")
    version = fields.get("version", "gemm")
    if not isinstance(version, str) or version.lower() != "gemm":
        raise fields.error("version", f"is {shown(version)}; AWQ's version 'gemm' is read")
    return {f"{stem}.weight": _awq_matrix(source, fields, stem) for stem in source.stems(".qweight")}


def _awq_matrix(source: Source, fields: Fields, stem: str) -> Tensor:
    into, words = source.entry(f"{stem}.qweight", ("I32",), 2).shape
    out, group = 8 * words, _group_size(fields, into, f"{stem}.qweight", source)
    groups = into // group
    scale = source.floats(f"{stem}.scales", (groups, out)).T
    zero = _awq_columns(source.whole(f"{stem}.qzeros", ("I32",), (groups, words))).T  # [out, groups]

    def read() -> CodeArray:
        columns = _awq_columns(source.whole(f"{stem}.qweight", ("I32",))).T  # [out, in]
        codes = columns.reshape(out, groups, group).astype(np.int8) - zero[..., None]
        return np.asarray(codes.reshape(out, into))

    floats = _scale_format(source, f"{stem}.scales")
    low, high = -int(zero.max()), 15 - int(zero.min())
    shared = Groups(scale, zero=zero)
    return matrix_of_codes(f"{stem}.weight", (out, into), shared, low, high, floats, read)


def _awq_columns(words: NDArray[Any]) -> NDArray[np.int8]:
    """Unpacks [rows, n] words into [rows, 8 n] numbers, in the order of the columns."""
    codes = unpacked(words, 4, 8 * words.shape[1]).reshape(len(words), -1, 8)
    return codes[..., _AWQ_ORDER].reshape(len(words), -1).view(np.int8)


def read_gptq(source: Source, fields: Fields) -> dict[str, Tensor]:
    """Reads GPTQ: `qweight` [in * bits / 32, out], `qzeros` [groups, out * bits / 32], `scales` [groups,
    out] and `g_idx` [in], the group of each input, which is in no order if the file was made with
    `desc_act`."""
    bits = fields.get("bits", 4)
    if bits not in (2, 3, 4, 8) or type(bits) is not int:
        raise fields.error("bits", f"is {shown(bits)}; GPTQ of 2, 3, 4 or 8 bits is read")
    kind = fields.get("checkpoint_format", "gptq")
    if kind not in ("gptq", "gptq_v2"):
        raise fields.error("checkpoint_format", f"is {shown(kind)}; 'gptq' or 'gptq_v2' is read")
    # The first version stores zeros minus one.
    offset = 1 if kind == "gptq" else 0
    return {
        f"{stem}.weight": _gptq_matrix(source, fields, stem, bits, offset)
        for stem in source.stems(".qweight")
    }


def _gptq_matrix(source: Source, fields: Fields, stem: str, bits: int, offset: int) -> Tensor:
    words, out = source.entry(f"{stem}.qweight", ("I32",), 2).shape
    into, rest = divmod(32 * words, bits)
    groups = source.entry(f"{stem}.scales", tuple(FLOATS), 2).shape[0]
    if rest or out * bits % 32:
        raise source.error(f"{stem}.qweight", f"has shape {(words, out)}, which is no matrix of {bits} bits")
    scale = source.floats(f"{stem}.scales", (groups, out)).T
    stored_zero = source.whole(f"{stem}.qzeros", ("I32",), (groups, out * bits // 32))
    zero = (unpacked(stored_zero, bits, out).T.astype(np.int16) + offset) & ((1 << bits) - 1)
    order = None
    if source.optional(f"{stem}.g_idx"):
        order = source.whole(f"{stem}.g_idx", ("I32", "I64"), (into,))
        if order.min() < 0 or order.max() >= groups:
            raise source.error(f"{stem}.g_idx", f"has a group outside 0 to {groups - 1}")
        if into % groups == 0 and (order == np.arange(into) // (into // groups)).all():
            order = None
    if order is None and (
        into % groups or _group_size(fields, into, f"{stem}.qweight", source) * groups != into
    ):
        raise source.error(f"{stem}.scales", f"has {groups} groups for {into} inputs and no g_idx that fits")

    def codes() -> NDArray[np.int16]:  # [out, in], not yet minus zero
        packed = source.whole(f"{stem}.qweight", ("I32",)).T
        return unpacked(packed, bits, into).astype(np.int16)

    def read() -> CodeArray:
        grouped = codes().reshape(out, groups, -1) - zero[..., None]
        return np.asarray(grouped.reshape(out, into))

    floats = _scale_format(source, f"{stem}.scales")
    if order is None:
        low, high = -int(zero.max()), (1 << bits) - 1 - int(zero.min())
        shared = Groups(scale, zero=zero if bits <= 4 else None)
        return matrix_of_codes(f"{stem}.weight", (out, into), shared, low, high, floats, read)

    def ordered() -> Bytes:  # every input has the scale of its own group: no run of columns shares one
        with np.errstate(invalid="ignore", over="ignore"):
            values = (codes() - zero[:, order]).astype(np.float32) * scale[:, order]
        return quantize(floats, values.reshape(-1))

    return Computed.later(f"{stem}.weight", (out, into), floats, ordered)


def read_mlx(source: Source, fields: Fields) -> dict[str, Tensor]:
    """Reads MLX's affine groups: `weight` [out, in * bits / 32], `scales` and `biases` [out, groups]. The
    options of one matrix may differ from those of the others, under its name."""
    return {f"{stem}.weight": _mlx_matrix(source, fields, stem) for stem in source.stems(".scales")}


def _mlx_matrix(source: Source, fields: Fields, stem: str) -> Tensor:
    of_matrix = fields.get(stem)
    if isinstance(of_matrix, dict):
        fields = Fields(f"{fields.where}: {printable(stem)}", {**fields.values, **of_matrix})
    mode = fields.get("mode", "affine")
    if mode != "affine":
        raise fields.error("mode", f"is {shown(mode)}; MLX's mode 'affine' is read")
    bits = fields.whole("bits", 4, most=8)
    out, words = source.entry(f"{stem}.weight", ("U32",), 2).shape
    into, rest = divmod(32 * words, bits)
    group = _group_size(fields, into, f"{stem}.weight", source)
    if rest:
        raise source.error(f"{stem}.weight", f"has {words} words a row, which are no numbers of {bits} bits")
    scale: Float32 = source.floats(f"{stem}.scales", (out, into // group))
    minimum: Float32 = source.floats(f"{stem}.biases", (out, into // group))

    def read() -> CodeArray:
        return unpacked(source.whole(f"{stem}.weight", ("U32",)), bits, into)

    floats = _scale_format(source, f"{stem}.scales")
    name = f"{stem}.weight"
    shared = Groups(scale, minimum)
    return matrix_of_codes(name, (out, into), shared, 0, (1 << bits) - 1, floats, read)
