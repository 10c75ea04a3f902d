"""Weight matrices on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from glassloop.ops.quant import BF16, F16
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import DEVICE, HALF


class TorchMatrix:
    """A weight matrix [out, in] in half precision. It is copied to the device when it is first used; matrices
    that one product reads are then placed one below the other."""

    def __init__(self, tensor: Tensor) -> None:
        self.out, self.into = tensor.shape
        self._tensor: Tensor | None = tensor
        self._values: torch.Tensor | None = None

    @classmethod
    def of(cls, values: torch.Tensor) -> TorchMatrix:
        """Returns a matrix whose values are on the device already."""
        matrix = cls.__new__(cls)
        matrix.out, matrix.into = values.shape
        matrix._tensor, matrix._values = None, values
        return matrix

    @property
    def missing_bytes(self) -> int:
        """The bytes that the matrix will take on the device; 0 if it is there."""
        return 0 if self._values is not None else int(self.out * self.into * HALF.itemsize)

    @property
    def values(self) -> torch.Tensor:
        if self._tensor is not None:
            self._values = _stored(self._tensor).to(DEVICE).to(HALF)
            self._tensor.release()
            self._tensor = None
        return self._values

    @staticmethod
    def stacked(matrices: Sequence[TorchMatrix]) -> torch.Tensor:
        """Returns the matrices one below the other as one array, of which each then is a part."""
        parts = [matrix.values for matrix in matrices]
        first, at = parts[0], parts[0].data_ptr()
        for part in parts:
            if (
                part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
                or part.data_ptr() != at
            ):
                break
            at += part.nbytes
        else:
            rows = sum(matrix.out for matrix in matrices)
            return first.as_strided((rows, first.shape[1]), first.stride(), first.storage_offset())
        whole = torch.cat(parts)
        for matrix, part in zip(matrices, whole.split([matrix.out for matrix in matrices]), strict=True):
            matrix._values = part
        return whole


def _stored(tensor: Tensor) -> torch.Tensor:
    """Returns the values of a tensor on the host, floats in the precision in which they are stored."""
    if tensor.format is BF16 or tensor.format is F16:
        kind = torch.bfloat16 if tensor.format is BF16 else torch.float16
        return torch.from_numpy(np.array(tensor.data)).view(kind).reshape(tensor.shape)
    return torch.from_numpy(np.require(tensor.float32(), requirements="W"))
