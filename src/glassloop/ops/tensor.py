"""A weight as it is stored in a file: a shape, a number format and the bytes, usually memory-mapped.

Loaders make tensors, and `Ops.matrix` and `Ops.vector` convert them for an op set. Rows can be selected and
reordered in the stored format, since no block crosses the end of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from mmap import MADV_DONTNEED, PAGESIZE, mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.quant import F32, Bytes, Float32, Format, dequantize, quantize


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]  # row-major: the last axis runs fastest
    format: Format
    data: Bytes  # flat
    mapping: mmap | None = None  # the mapped file that `data` lies in or was copied from

    @staticmethod
    def of(name: str, values: Float32) -> Tensor:
        """Returns a tensor with these float32 values."""
        values = np.ascontiguousarray(values, np.float32)
        return Tensor(name, values.shape, F32, values.reshape(-1).view(np.uint8))

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def origin(self) -> Tensor | None:
        """The same values in a smaller format, from which they were rounded to `format`, if there is one."""
        return None

    def float32(self) -> Float32:
        return dequantize(self.format, self.data).reshape(self.shape)

    def stored_as(self, format: Format) -> Tensor:
        """Returns the tensor in another format, rounded to what that can hold."""
        if format is self.format:
            return self
        if format is F32:
            return Tensor.of(self.name, self.float32())
        return Tensor(self.name, self.shape, format, quantize(format, self.float32().reshape(-1)))

    def rows(self, index: slice | NDArray[np.intp]) -> Tensor:
        """Returns the tensor with only these rows (first axis), in this order, in its stored format."""
        taken = self.data.reshape(self.shape[0], -1)[index]
        return self._replace(shape=(len(taken), *self.shape[1:]), data=taken.reshape(-1))

    def release(self) -> None:
        """Gives the memory of the mapped file back to the system. The tensor can still be read."""
        if self.mapping is None or not hasattr(self.mapping, "madvise"):
            return
        # Only whole pages within: those at the edges are shared with the neighbouring tensors.
        whole = np.frombuffer(self.mapping, np.uint8)
        start = self.data.ctypes.data - whole.ctypes.data
        if 0 <= start <= len(whole) - len(self.data):
            first = -(-start // PAGESIZE) * PAGESIZE
            length = (start + len(self.data)) // PAGESIZE * PAGESIZE - first
            if length > 0:
                self.mapping.madvise(MADV_DONTNEED, first, length)

    def transposed(self) -> Tensor:
        return Tensor.of(self.name, self.float32().T)


class Computed(Tensor):
    """A tensor whose bytes are computed from what a file stores, again each time they are read. So a model
    whose matrices all have to be converted needs memory for one of them at a time."""

    _compute: Callable[[], Bytes]
    _origin: Tensor | None
    _reads = _left = 0  # how often the bytes are read before they are dropped, if they are kept at all
    _kept: Bytes | None = None

    @classmethod
    def later(
        cls,
        name: str,
        shape: tuple[int, ...],
        format: Format,
        compute: Callable[[], Bytes],
        origin: Tensor | None = None,
    ) -> Computed:
        """Returns a tensor with the bytes that `compute` returns."""
        tensor = cls(name, shape, format, np.empty(0, np.uint8))
        tensor._compute, tensor._origin = compute, origin
        return tensor

    @property
    def origin(self) -> Tensor | None:
        return self._origin

    def keep_for(self, reads: int) -> None:
        """Keeps the bytes, once they are computed, until they have been read so often: for a tensor of which
        each part is read by itself."""
        self._reads = reads

    @property
    def data(self) -> Bytes:
        if not self._reads:
            return self._compute()
        if self._kept is None:
            self._kept, self._left = self._compute(), self._reads
        kept = self._kept
        self._left -= 1
        if not self._left:
            self._kept = None
        return kept

    def rows(self, index: slice | NDArray[np.intp]) -> Tensor:
        kept = len(np.empty(self.shape[0], np.bool_)[index])

        def compute() -> Bytes:
            return self.data.reshape(self.shape[0], -1)[index].reshape(-1)

        origin = None if self._origin is None else self._origin.rows(index)
        return Computed.later(self.name, (kept, *self.shape[1:]), self.format, compute, origin)

    def _replace(self, **changes: Any) -> Tensor:  # type: ignore[override]
        if "data" not in changes:
            changes["data"] = self.data
        return Tensor(*self)._replace(**changes)
