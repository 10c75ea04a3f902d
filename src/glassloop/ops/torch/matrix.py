"""Weight matrices on the device: in half precision, or packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from glassloop.ops.quant import BF16, F16
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.packed import UNIT, Form, PackedMatrix, pack

Stored: TypeAlias = torch.Tensor | PackedMatrix


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

    def __init__(self, tensor: Tensor, device: Device) -> None:
        self.out, self.into = tensor.shape
        self.device = device
        self._tensor: Tensor | None = tensor
        self._stored: Stored | None = None
        self.stays_packed = False  # whether a quantized matrix stays so

    @classmethod
    def of(cls, values: torch.Tensor | PackedMatrix, device: Device) -> TorchMatrix:
        """Returns a matrix whose values are on the device already."""
        matrix = cls.__new__(cls)
        matrix.out, matrix.into = values.shape
        matrix.device = device
        matrix._tensor, matrix._stored = None, values
        matrix.stays_packed = isinstance(values, PackedMatrix)
        return matrix

    @property
    def form(self) -> Form | None:
        """The form in which the matrix is packed, or could be; None if it is not and cannot be."""
        if self._tensor is not None:
            return Form.of(self._tensor)
        return self._stored.form if isinstance(self._stored, PackedMatrix) else None

    @staticmethod
    def missing_bytes(matrices: Sequence[TorchMatrix], packed: bool) -> int:
        """Returns the bytes that matrices, joined, will take on the device, 0 if they are there; with
        `packed`, if they stay packed where they can."""
        missing = [matrix for matrix in matrices if matrix._tensor is not None]
        form = _joined_form(matrices) if packed else None
        if form is not None:
            return sum(form.bytes(matrix.out, matrix.into) for matrix in missing)
        return sum(matrix.out * matrix.into * matrix.device.half.itemsize for matrix in missing)

    @property
    def stored(self) -> Stored:
        """The matrix on the device, to which the first use copies it."""
        if self._tensor is not None:
            if self.stays_packed and self.form is not None:
                self._stored = pack(self._tensor, self.device)
            else:
                self._stored = _values(self._tensor).to(self.device.torch).to(self.device.half)
            self._tensor.release()
            self._tensor = None
        assert self._stored is not None
        return self._stored

    @staticmethod
    def joined(matrices: Sequence[TorchMatrix], in_turn: bool = False) -> Stored:
        """Concatenates matrices along the output axis (rows interleaved if `in_turn`) and turns each into a
        view of the result."""
        if len(matrices) == 1:
            return matrices[0].stored
        form = _joined_form(matrices)
        for matrix in matrices:
            matrix.stays_packed &= form is not None
        parts = [matrix.stored for matrix in matrices]
        packed = [part for part in parts if isinstance(part, PackedMatrix)]
        if form is not None and len(packed) == len(parts):
            return _joined_units(matrices, [part.like(form) for part in packed], in_turn)
        whole = (_in_turn if in_turn else _stacked)(
            [
                part.expanded(matrices[0].device.half) if isinstance(part, PackedMatrix) else part
                for part in parts
            ]
        )
        starts = np.cumsum([0, *[matrix.out for matrix in matrices]]).tolist()
        for number, matrix in enumerate(matrices):
            rows = slice(number, None, len(matrices)) if in_turn else slice(*starts[number : number + 2])
            matrix._stored = whole[rows]
        return whole


def _joined_form(matrices: Sequence[TorchMatrix]) -> Form | None:
    """Returns the form in which matrices can be packed as one; None if they cannot: one is not quantized, or
    another one would not begin with a unit."""
    forms = [matrix.form for matrix in matrices]
    packable = [form for form in forms if form is not None]
    whole_units = len(matrices) == 1 or not any(matrix.out % UNIT for matrix in matrices)
    return Form.common(packable) if whole_units and len(packable) == len(forms) else None


def _joined_units(
    matrices: Sequence[TorchMatrix], parts: Sequence[PackedMatrix], in_turn: bool
) -> PackedMatrix:
    """Concatenates packed matrices of the same form and turns each into a view of the result."""
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


def _values(tensor: Tensor) -> torch.Tensor:
    """Returns the values of a tensor on the host, floats in the precision in which they are stored."""
    if tensor.format is BF16 or tensor.format is F16:
        kind = torch.bfloat16 if tensor.format is BF16 else torch.float16
        return torch.from_numpy(np.array(tensor.data)).view(kind).reshape(tensor.shape)
    return torch.from_numpy(np.require(tensor.float32(), requirements="W"))
