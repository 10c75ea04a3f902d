"""Packed matrices: the codes and scales of a quantized file, in the order in which kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from glassloop.ops.quant import Bytes, Float32, Format, factors
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import Device

CHUNK = 128  # columns that lie together; a matrix has a multiple of so many
UNIT = 8  # rows that lie together
_SLAB = 2048  # rows that are packed at a time


class Form(NamedTuple):
    """What the values of a packed matrix consist of."""

    bits: int  # of a code: 8 (-128 to 127) or 4 (-8 to 7, stored as 0 to 15)
    group: int  # columns that share a scale: 16 or 32
    has_middle: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Form | None:
        """Returns the form that a tensor has if it is packed; None if it cannot be: its format has a table of
        values, which the kernels do not have, or its rows are no whole chunks."""
        format = tensor.format
        if format.take_apart is None or format.table or tensor.shape[1] % CHUNK:
            return None
        return cls(format.bits, format.group, format.minimum)

    @classmethod
    def common(cls, forms: Sequence[Form]) -> Form:
        """Returns a form in which the values of all these can be stored."""
        if len({*forms}) == 1:
            return forms[0]
        return cls(8, min(form.group for form in forms), any(form.has_middle for form in forms))

    @property
    def chunk_bytes(self) -> int:
        """The bytes of a chunk of a unit."""
        return CHUNK * self.bits + UNIT * (CHUNK // self.group) * (4 if self.has_middle else 2)

    def bytes(self, out: int, columns: int) -> int:
        """Returns the bytes of a matrix with so many rows and columns."""
        return -(-out // UNIT) * (columns // CHUNK) * self.chunk_bytes


class PackedMatrix(NamedTuple):
    """A quantized matrix [out, in], whose values are `scale * code + middle`, rounded once to half precision.
    Each group of a row has one scale and perhaps one middle (the value of a code of 0, in the middle of all
    codes), which are in half precision too.

    The rows are divided into units of 8, and their columns into chunks of 128. A chunk of a unit has the
    codes, then for each row the scale of each group, followed by its middle. The codes are in the order in
    which lanes of `packed_linear.cu` read them, 16 bytes each: `_CODE_AXES` says how."""

    data: torch.Tensor  # [units, bytes] uint8
    shape: tuple[int, int]
    form: Form
    matrices: int = 1  # whose units lie one below the other and whose rows are taken in turn: 1 or 2

    @classmethod
    def of(
        cls, codes: torch.Tensor, scale: torch.Tensor, middle: torch.Tensor | None, bits: int
    ) -> PackedMatrix:
        """Packs codes [out, in], int8, and scales and middles [out, groups]."""
        codes = (codes + 8 if bits == 4 else codes).view(torch.uint8)
        out, into = codes.shape
        factors = scale[..., None] if middle is None else torch.stack([scale, middle], 2)
        missing = -out % UNIT
        codes = functional.pad(codes, (0, 0, 0, missing))
        factors = functional.pad(factors.bfloat16(), (0, 0, 0, 0, 0, missing)).unflatten(0, (-1, UNIT))
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
        return cls(data, (out, into), Form(bits, into // scale.shape[1], middle is not None))

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns codes as int8, [out, in], and scales and middles, [out, groups]: the opposite of `of`."""
        (out, into), (bits, _, has_middle), chunks = self.shape, self.form, self.shape[1] // CHUNK
        data = self.data.unflatten(1, (chunks, -1))
        codes, factors = data[..., : CHUNK * bits], data[..., CHUNK * bits :].contiguous()
        sizes, order = _CODE_AXES[bits]
        whole = [len(data), UNIT, chunks, *sizes]
        if bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], -1) - 8
        back = [order.index(axis) for axis in range(len(order))]
        codes = codes.reshape([whole[axis] for axis in order]).permute(back).reshape(-1, into)
        factors = factors.view(torch.bfloat16).view(len(data), chunks, UNIT, -1, 1 + has_middle)
        factors = factors.transpose(1, 2).reshape(len(codes), -1, 1 + has_middle)
        found = [codes.view(torch.int8), *factors.unbind(-1)]
        if self.matrices > 1:
            found = [each.unflatten(0, (self.matrices, -1)).transpose(0, 1).flatten(0, 1) for each in found]
        found = [each[:out] for each in found]
        return found[0], found[1], found[2] if has_middle else None

    def expanded(self, half: torch.dtype) -> torch.Tensor:
        """Returns the values in half precision, which is float32 under Triton's interpreter."""
        codes, scale, middle = self.parts()
        values = codes.double().unflatten(1, (-1, self.form.group)) * scale.double()[..., None]
        if middle is not None:
            values += middle.double()[..., None]
        return values.flatten(1).to(half)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments by which Triton's kernels read the matrix."""
        return {
            "words": self.data.view(torch.int32),
            "scales": self.data.view(torch.int16),  # the bits of bfloat16
            "BITS": self.form.bits,
            "GROUP": self.form.group,
            "MIDDLE": self.form.has_middle,
        }

    def like(self, form: Form) -> PackedMatrix:
        """Returns the same values in another form that `Form.common` has found for this one too."""
        if form == self.form:
            return self
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


def pack(tensor: Tensor, device: Device) -> PackedMatrix:
    """Returns a quantized tensor as codes, scales and middles, on the device."""
    (out, into), form = tensor.shape, Form.of(tensor)
    assert form is not None
    blocks = tensor.data.reshape(out, -1, tensor.format.block_bytes)
    slabs: list[torch.Tensor] = []
    for first in range(0, out, _SLAB):
        rows = blocks[first : first + _SLAB]
        made = [
            None
            if each is None
            else torch.from_numpy(np.ascontiguousarray(each)).to(device.torch).view(len(rows), -1)
            for each in take_apart(tensor.format, rows.reshape(-1, tensor.format.block_bytes))
        ]
        assert made[0] is not None and made[1] is not None
        slabs.append(PackedMatrix.of(made[0], made[1], made[2], form.bits).data)
    return PackedMatrix(torch.cat(slabs), (out, into), form)


def take_apart(
    stored: Format, blocks: Bytes
) -> tuple[np.ndarray[Any, np.dtype[np.int8]], Float32, Float32 | None]:
    """Returns the codes, scales and middles of blocks of a quantized format. Formats with a minimum have
    codes from 0 on; the code in the middle becomes 0, and its value is small, so that its rounding costs
    little."""
    assert stored.take_apart is not None
    parts = stored.take_apart(blocks)
    codes, (scale, minimum) = parts.codes, factors(stored, parts)
    if minimum is None:
        return codes.astype(np.int8), scale, None
    return codes.astype(np.int8) - np.int8(stored.middle), scale, minimum + scale * np.float32(stored.middle)
