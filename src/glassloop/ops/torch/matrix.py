"""Weight matrices on the device: in half precision, or as the codes and scales of a quantized file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from glassloop.ops.quant import BF16, F16
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import DEVICE, HALF

CHUNK = 128  # columns of a packed matrix that lie together; it has a multiple of so many
UNIT = 8  # rows that lie together
_SLAB = 2048  # rows that are packed at a time


class Packed(NamedTuple):
    """A quantized matrix [out, in], whose values are `scale * code + middle`, rounded once to half precision.
    Each group of a row has one scale and perhaps one middle (the value of a code of 0, in the middle of all
    codes), which are in half precision too.

    The rows are divided into units of 8, and their columns into chunks of 128. A chunk of a unit has the
    codes, then for each row the scale of each group, followed by its middle. The codes are in the order in
    which lanes of `packed_linear.cu` read them, 16 bytes each: `_CODE_AXES` says how."""

    data: torch.Tensor  # [units, bytes] uint8
    shape: tuple[int, int]
    bits: int  # of a code: 8 (-128 to 127) or 4 (-8 to 7, stored as 0 to 15)
    group: int  # columns that share a scale: 16 or 32
    has_middle: bool
    matrices: int = 1  # whose units lie one below the other and whose rows are taken in turn: 1 or 2

    @classmethod
    def of(cls, codes: torch.Tensor, scale: torch.Tensor, middle: torch.Tensor | None, bits: int) -> Packed:
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
        return cls(data, (out, into), bits, into // scale.shape[1], middle is not None)

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns codes as int8, [out, in], and scales and middles, [out, groups]: the opposite of `of`."""
        (out, into), chunks = self.shape, self.shape[1] // CHUNK
        data = self.data.unflatten(1, (chunks, -1))
        codes, factors = data[..., : CHUNK * self.bits], data[..., CHUNK * self.bits :].contiguous()
        sizes, order = _CODE_AXES[self.bits]
        whole = [len(data), UNIT, chunks, *sizes]
        if self.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], -1) - 8
        back = [order.index(axis) for axis in range(len(order))]
        codes = codes.reshape([whole[axis] for axis in order]).permute(back).reshape(-1, into)
        factors = factors.view(torch.bfloat16).view(len(data), chunks, UNIT, -1, 1 + self.has_middle)
        factors = factors.transpose(1, 2).reshape(len(codes), -1, 1 + self.has_middle)
        found = [codes.view(torch.int8), *factors.unbind(-1)]
        if self.matrices > 1:
            found = [each.unflatten(0, (self.matrices, -1)).transpose(0, 1).flatten(0, 1) for each in found]
        found = [each[:out] for each in found]
        return found[0], found[1], found[2] if self.has_middle else None

    def expanded(self) -> torch.Tensor:
        """Returns the values in half precision."""
        codes, scale, middle = self.parts()
        values = codes.double().unflatten(1, (-1, self.group)) * scale.double()[..., None]
        if middle is not None:
            values += middle.double()[..., None]
        return values.flatten(1).to(HALF)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments by which Triton's kernels read the matrix."""
        return {
            "words": self.data.view(torch.int32),
            "scales": self.data.view(torch.int16),  # the bits of bfloat16
            "BITS": self.bits,
            "GROUP": self.group,
            "MIDDLE": self.has_middle,
        }

    def like(self, others: Sequence[Packed]) -> Packed:
        """Returns the same values in a form that these matrices can have too, so that one kernel reads all of
        them."""
        if len({each[2:] for each in others}) == 1:
            return self
        codes, scale, middle = self.parts()
        times = self.group // min(each.group for each in others)
        if middle is None and any(each.has_middle for each in others):
            middle = torch.full_like(scale, -0.0)  # changes no bit of a sum
        scale = scale.repeat_interleave(times, 1)
        middle = None if middle is None else middle.repeat_interleave(times, 1)
        return Packed.of(codes, scale, middle, 8)


# The axes of the codes of a unit, by their bits. In a matrix they are: units, rows, chunks; steps of 16
# columns (two axes), lanes of a row, the two halves of the four columns of a lane, the columns of a half. And
# the order in which they are stored: a word of 32 bits has one step of 8 bits or two of 4 bits, and in each
# half of the word one column of each half. With 4 bits, the last axis is within a byte.
_CODE_AXES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    8: ((2, 4, 4, 2, 2), (0, 2, 3, 1, 5, 4, 7, 6)),
    4: ((4, 2, 4, 2, 2), (0, 2, 1, 5, 3, 7, 4, 6)),
}

Stored: TypeAlias = torch.Tensor | Packed


class MatrixProduct(NamedTuple):
    """A product of rows with a matrix: x @ weight.T + bias + added or, if gated,
    activated(x @ gate.T) * (x @ up.T) for a weight that has the rows of gate and of up in turn."""

    rows: int  # of x, out and added, which may have more
    out: torch.Tensor
    x: torch.Tensor
    added: torch.Tensor | None
    weight: Stored
    bias: torch.Tensor | None = None
    gated: bool = False
    activation: int = 0  # an index of `ACTIVATIONS`


class TorchMatrix:
    """A weight matrix [out, in]. It is copied to the device when it is first used; matrices that one product
    reads are then joined."""

    def __init__(self, tensor: Tensor) -> None:
        self.out, self.into = tensor.shape
        self._tensor: Tensor | None = tensor
        self._stored: Stored | None = None
        self.stays_packed = False  # whether a quantized matrix stays so

    @classmethod
    def of(cls, values: torch.Tensor | Packed) -> TorchMatrix:
        """Returns a matrix whose values are on the device already."""
        matrix = cls.__new__(cls)
        matrix.out, matrix.into = values.shape
        matrix._tensor, matrix._stored = None, values
        matrix.stays_packed = isinstance(values, Packed)
        return matrix

    def missing_bytes(self, packed: bool) -> int:
        """Returns the bytes that the matrix will take on the device, 0 if it is there; with `packed`, if it
        stays packed where it can."""
        if self._tensor is None:
            return 0
        if packed and can_pack(self._tensor):
            stored = self._tensor.format
            size = 4 if stored.name in _FOUR_BITS else 8
            scales = 4 if stored.name in _WITH_MINIMUM else 2
            out = self.out + -self.out % UNIT
            return out * self.into * size // 8 + out * self.into // _group(stored.name) * scales
        return int(self.out * self.into * HALF.itemsize)

    @property
    def stored(self) -> Stored:
        """The matrix on the device, to which the first use copies it."""
        if self._tensor is not None:
            if self.stays_packed and can_pack(self._tensor):
                self._stored = pack(self._tensor)
            else:
                self._stored = _values(self._tensor).to(DEVICE).to(HALF)
            self._tensor.release()
            self._tensor = None
        assert self._stored is not None
        return self._stored

    @staticmethod
    def joined(matrices: Sequence[TorchMatrix], in_turn: bool = False) -> Stored:
        """Returns matrices as one, of which each then is a part: one below the other or, if `in_turn`, a row
        of each in turn."""
        parts = [matrix.stored for matrix in matrices]
        if len(parts) == 1:
            return parts[0]
        packed = [part for part in parts if isinstance(part, Packed)]
        # The matrices behind the first one begin with a unit.
        if len(packed) == len(parts) and not any(matrix.out % UNIT for matrix in matrices):
            return _joined_units(matrices, [part.like(packed) for part in packed], in_turn)
        whole = (_in_turn if in_turn else _stacked)(
            [part.expanded() if isinstance(part, Packed) else part for part in parts]
        )
        starts = np.cumsum([0, *[matrix.out for matrix in matrices]]).tolist()
        for number, matrix in enumerate(matrices):
            rows = slice(number, None, len(matrices)) if in_turn else slice(*starts[number : number + 2])
            matrix._stored = whole[rows]
        return whole


def _joined_units(matrices: Sequence[TorchMatrix], parts: Sequence[Packed], in_turn: bool) -> Packed:
    """Returns packed matrices of the same form as one, of which each then is a part."""
    data = _stacked([part.data for part in parts])
    units = np.cumsum([0, *[matrix.out // UNIT for matrix in matrices]]).tolist()
    for number, (matrix, part) in enumerate(zip(matrices, parts, strict=True)):
        matrix._stored = part._replace(data=data[slice(*units[number : number + 2])])
    shape = sum(matrix.out for matrix in matrices), matrices[0].into
    return parts[0]._replace(data=data, shape=shape, matrices=len(matrices) if in_turn else 1)


def _stacked(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns arrays one below the other: as they are, if they lie so already, else copied."""
    first = parts[0]
    places = [0, *np.cumsum([part.nbytes for part in parts]).tolist()]
    if not _lie_at(parts, places, first.shape[1]):
        return torch.cat([*parts])
    rows = sum(len(part) for part in parts)
    return first.as_strided((rows, first.shape[1]), first.stride(), first.storage_offset())


def _in_turn(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns a row of each array in turn, of arrays of the same shape: as they are, if they lie so already,
    else copied."""
    first, count = parts[0], len(parts)
    rows, columns = first.shape
    places = [number * columns * first.itemsize for number in range(count)]
    if not _lie_at(parts, places, count * columns):
        return torch.stack([*parts], 1).flatten(0, 1)
    return first.as_strided((count * rows, columns), (columns, 1), first.storage_offset())


def _lie_at(parts: Sequence[torch.Tensor], places: Sequence[int], stride: int) -> bool:
    """Returns whether arrays share their memory, lie at these places (in bytes) from the first one on, and
    have rows with this stride."""
    first = parts[0]
    return all(
        part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and part.data_ptr() == first.data_ptr() + place
        and part.stride() == (stride, 1)
        for part, place in zip(parts, places, strict=False)
    )


_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
_WITH_MINIMUM = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def _group(name: str) -> int:
    """Returns how many values of a quantized format share a scale."""
    return 16 if name == "Q6_K" else 32


def can_pack(tensor: Tensor) -> bool:
    """Returns whether a tensor is a quantized one that can stay so on the device."""
    return tensor.format.take_apart is not None and tensor.shape[1] % CHUNK == 0


def pack(tensor: Tensor) -> Packed:
    """Returns a quantized tensor as codes, scales and middles, on the device."""
    out, into = tensor.shape
    stored = tensor.format
    assert stored.take_apart is not None
    blocks = tensor.data.reshape(out, -1, stored.block_bytes)
    slabs: list[Packed] = []
    for first in range(0, out, _SLAB):
        rows = min(_SLAB, out - first)
        slab = blocks[first : first + rows].reshape(-1, stored.block_bytes)
        codes, scale, middle = stored.take_apart(slab)
        bits = 4 if stored.name in _FOUR_BITS else 8
        if middle is not None:  # it is the value of the lowest code
            half = 8 if bits == 4 else 16
            codes, middle = codes.astype(np.int8) - np.int8(half), middle + scale * np.float32(half)
        made = [
            None if each is None else torch.from_numpy(np.ascontiguousarray(each)).to(DEVICE).view(rows, -1)
            for each in (codes, scale, middle)
        ]
        assert made[0] is not None and made[1] is not None
        slabs.append(Packed.of(made[0], made[1], made[2], bits))
    return slabs[0]._replace(data=torch.cat([slab.data for slab in slabs]), shape=(out, into))


def _values(tensor: Tensor) -> torch.Tensor:
    """Returns the values of a tensor on the host, floats in the precision in which they are stored."""
    if tensor.format is BF16 or tensor.format is F16:
        kind = torch.bfloat16 if tensor.format is BF16 else torch.float16
        return torch.from_numpy(np.array(tensor.data)).view(kind).reshape(tensor.shape)
    return torch.from_numpy(np.require(tensor.float32(), requirements="W"))
