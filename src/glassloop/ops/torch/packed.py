"""Packed matrices: the codes and scales of a quantized file, in the order in which kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from glassloop.ops.quant import F8_E4M3, Bytes, Float32, Format, factors
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import Device

CHUNK = 128  # columns that lie together; a matrix has a multiple of so many
UNIT = 8  # rows that lie together
_SLAB = 2048  # rows that are packed at a time


class Form(NamedTuple):
    """What the values of a packed matrix consist of."""

    bits: int  # of a code: 8 (-128 to 127) or 4 (-8 to 7, stored as 0 to 15)
    group: int  # columns that share a scale: 16 or 32; of small floats 128
    has_middle: bool
    table: tuple[int, ...] = ()  # the 16 values of 4-bit codes, each of 8 bits; (): a code is its own value
    is_float: bool = False  # codes are floats of 8 bits (E4M3), and scales are float32

    @classmethod
    def of(cls, tensor: Tensor) -> Form | None:
        """Returns the form that a tensor has if it is packed; None if it cannot be: it is not quantized, or
        its rows are no whole chunks."""
        format = tensor.format
        if format.take_apart is None or tensor.shape[1] % CHUNK:
            return None
        if format is F8_E4M3:
            return cls(8, CHUNK, False, is_float=True)
        if not format.table:
            return cls(format.bits, format.group, format.minimum)
        values = [int(value) - format.middle for value in format.table]
        if -8 <= min(values) <= max(values) <= 7:  # they are codes themselves
            return cls(4, format.group, format.minimum)
        return cls(4, format.group, format.minimum, (*values, *[0] * (16 - len(values))))

    @classmethod
    def common(cls, forms: Sequence[Form]) -> Form | None:
        """Returns a form in which the values of all these can be stored, if there is one."""
        if len({*forms}) == 1:
            return forms[0]
        if any(form.is_float for form in forms):
            return None
        return cls(8, min(form.group for form in forms), any(form.has_middle for form in forms))

    @property
    def chunk_bytes(self) -> int:
        """The bytes of a chunk of a unit."""
        factor_bytes = 4 if self.has_middle or self.is_float else 2
        return CHUNK * self.bits + UNIT * (CHUNK // self.group) * factor_bytes

    def bytes(self, out: int, columns: int) -> int:
        """Returns the bytes of a matrix with so many rows and columns."""
        return -(-out // UNIT) * (columns // CHUNK) * self.chunk_bytes


class PackedMatrix(NamedTuple):
    """A quantized matrix [out, in], whose values are `scale * code + middle`, rounded once to half precision.
    Each group of a row has one scale and perhaps one middle (the value of a code of 0, in the middle of all
    codes), which are in half precision too. A code is an integer, or the place of one in a table. Small
    floats have scales in float32: a product is rounded to float32 first, then to half precision, as when such
    a matrix is expanded on the host.

    The rows are divided into units of 8, and their columns into chunks of 128. A chunk of a unit has the
    codes, then for each row the scale of each group, followed by its middle. The codes are in the order in
    which lanes of `packed_linear.cu` read them, 16 bytes each: `_CODE_AXES` says how."""

    data: torch.Tensor  # [units, bytes] uint8
    shape: tuple[int, int]
    form: Form
    matrices: int = 1  # whose units lie one below the other and whose rows are taken in turn: 1 or 2

    @classmethod
    def of(
        cls,
        codes: torch.Tensor,
        scale: torch.Tensor,
        middle: torch.Tensor | None,
        bits: int,
        table: tuple[int, ...] = (),
        is_float: bool = False,
    ) -> PackedMatrix:
        """Packs codes [out, in], int8, and scales and middles [out, groups]."""
        form = Form(bits, codes.shape[1] // scale.shape[1], middle is not None, table, is_float)
        codes = (codes + 8 if bits == 4 and not table else codes).view(torch.uint8)
        out, into = codes.shape
        factors = scale[..., None] if middle is None else torch.stack([scale, middle], 2)
        missing = -out % UNIT
        codes = functional.pad(codes, (0, 0, 0, missing))
        factors = factors.float() if is_float else factors.bfloat16()
        factors = functional.pad(factors, (0, 0, 0, 0, 0, missing)).unflatten(0, (-1, UNIT))
        sizes, order = _CODE_AXES[bits]
        units, chunks = len(codes) // UNIT, into // CHUNK
        turned = codes.view(units, UNIT, chunks, *sizes).permute(order)
        if bits == 4:
            turned = turned[..., 0] | (turned[..., 1] << 4)
        parts = [
            turned.reshape(units, chunks, -1),
            factors.unflatten(2, (chunks, -1)).transpose(1, 2).contiguous().view(torch.uint8).flatten(2),
        ]
        data = torch.cat(parts, 2).flatten(1)
        return cls(data, (out, into), form)

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns codes as int8, [out, in], and scales and middles, [out, groups]: the opposite of `of`. The
        codes of a table are its values."""
        (out, into), chunks = self.shape, self.shape[1] // CHUNK
        bits, _, has_middle, table, is_float = self.form
        data = self.data.unflatten(1, (chunks, -1))
        codes, factors = data[..., : CHUNK * bits], data[..., CHUNK * bits :].contiguous()
        sizes, order = _CODE_AXES[bits]
        whole = [len(data), UNIT, chunks, *sizes]
        if bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], -1)
            codes = torch.tensor(table or range(-8, 8), dtype=torch.int8, device=codes.device)[codes.long()]
        back = [order.index(axis) for axis in range(len(order))]
        codes = codes.reshape([whole[axis] for axis in order]).permute(back).reshape(-1, into)
        kind = torch.float32 if is_float else torch.bfloat16
        factors = factors.view(kind).view(len(data), chunks, UNIT, -1, 1 + has_middle)
        factors = factors.transpose(1, 2).reshape(len(codes), -1, 1 + has_middle)
        parts = [codes.view(torch.int8), *factors.unbind(-1)]
        if self.matrices > 1:
            parts = [each.unflatten(0, (self.matrices, -1)).transpose(0, 1).flatten(0, 1) for each in parts]
        parts = [each[:out] for each in parts]
        return parts[0], parts[1], parts[2] if has_middle else None

    def expanded(self, half: torch.dtype) -> torch.Tensor:
        """Returns the values in half precision, which is float32 under Triton's interpreter."""
        codes, scale, middle = self.parts()
        if self.form.is_float:
            floats = torch.tensor(F8_E4M3.table, device=codes.device)[codes.view(torch.uint8).long()]
            return (floats.unflatten(1, (-1, CHUNK)) * scale[..., None]).flatten(1).to(half)
        values = codes.double().unflatten(1, (-1, self.form.group)) * scale.double()[..., None]
        if middle is not None:
            values += middle.double()[..., None]
        return values.flatten(1).to(half)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments by which Triton's kernels read the matrix."""
        return {
            "words": self.data.view(torch.int32),
            "scales": self.data.view(torch.int16),  # the bits of bfloat16
            "table": _table_on(self.form.table or (0,), self.data.device),
            "BITS": self.form.bits,
            "GROUP": self.form.group,
            "MIDDLE": self.form.has_middle,
            "TABLE": bool(self.form.table),
            "FLOAT": self.form.is_float,
        }

    def like(self, form: Form) -> PackedMatrix:
        """Returns the same values in another form that `Form.common` has found for this one too."""
        if form == self.form:
            return self
        assert not form.table and not form.is_float
        codes, scale, middle = self.parts()
        if middle is None and form.has_middle:
            middle = torch.full_like(scale, -0.0)  # changes no bit of a sum
        times = self.form.group // form.group
        scale = scale.repeat_interleave(times, 1)
        middle = None if middle is None else middle.repeat_interleave(times, 1)
        return PackedMatrix.of(codes, scale, middle, form.bits)


# The axes of the codes of a unit, by their bits. In a matrix they are: units, rows, chunks; steps of 16
# columns (two axes), lanes of a row, the two halves of the four columns of a lane, the columns of a half. And
# the order in which they are stored: a word of 32 bits has one step of 8 bits or two of 4 bits, and in each
# half of the word one column of each half. With 4 bits, the last axis is within a byte.
_CODE_AXES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    8: ((2, 4, 4, 2, 2), (0, 2, 3, 1, 5, 4, 7, 6)),
    4: ((4, 2, 4, 2, 2), (0, 2, 1, 5, 3, 7, 4, 6)),
}


@cache
def _table_on(table: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Returns the values of codes as an array that Triton's kernels read."""
    return torch.tensor(table, dtype=torch.int32, device=device)


def pack(tensor: Tensor, device: Device) -> PackedMatrix:
    """Returns a quantized tensor as codes, scales and middles, on the device."""
    (out, into), form = tensor.shape, Form.of(tensor)
    assert form is not None
    blocks = tensor.data.reshape(out, -1, tensor.format.block_bytes)
    slabs: list[torch.Tensor] = []
    for first in range(0, out, _SLAB):
        rows = blocks[first : first + _SLAB]
        arrays = take_apart(tensor.format, form, rows.reshape(-1, tensor.format.block_bytes))
        codes, scale, middle = (
            None
            if array is None
            else torch.from_numpy(np.ascontiguousarray(array)).to(device.torch).view(len(rows), -1)
            for array in arrays
        )
        assert codes is not None and scale is not None
        longer = into // scale.shape[1] // form.group  # groups of the kernels in one of the format
        if longer > 1:
            scale = scale.repeat_interleave(longer, 1)
        packed = PackedMatrix.of(codes, scale, middle, form.bits, form.table, form.is_float)
        slabs.append(packed.data)
    return PackedMatrix(torch.cat(slabs), (out, into), form)


def take_apart(
    format: Format, form: Form, blocks: Bytes
) -> tuple[np.ndarray[Any, np.dtype[np.int8]], Float32, Float32 | None]:
    """Returns the codes, scales and middles of blocks of a quantized format. Formats with a minimum have
    codes from 0 on; the code in the middle becomes 0, and its value is small, so that its rounding costs
    little."""
    assert format.take_apart is not None
    parts = format.take_apart(blocks)
    codes, (scale, minimum) = parts.codes, factors(format, parts)
    if format.table and not form.table and not form.is_float:
        codes = np.array(format.table, np.int8)[codes]
    codes = codes.view(np.int8) if form.is_float else codes.astype(np.int8)
    if minimum is None:
        return codes, scale, None
    if not form.table:  # whose values are relative to the middle already
        codes = codes - np.int8(format.middle)
    return codes, scale, minimum + scale * np.float32(format.middle)


def has_nan(tensor: Tensor) -> bool:
    """Returns whether a matrix of small floats has a NaN, which the kernels do not know."""
    codes = tensor.data.reshape(-1, tensor.format.block_bytes)[:, 4:]
    return tensor.format is F8_E4M3 and bool(((codes & 127) == 127).any())
