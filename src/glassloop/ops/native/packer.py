"""Packing weights: from the format of a file to the tiles that the kernels read (pack.c)."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from ctypes import Structure

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import ModelError
from glassloop.ops.native import library as lib
from glassloop.ops.tensor import Tensor

_CACHE_LINE = 64
_CHUNK = 1 << 25
_AT_ONCE = 1 << 24  # bytes packed in one call


class NativeMatrix:
    def __init__(self, tensor: Tensor, packer: Packer) -> None:
        self.out, self.into = tensor.shape
        self.layout = lib.Matrix()
        self.is_quantized = tensor.format.take_apart is not None
        self.data = packer.pack(tensor, self.layout)


class Packer:
    """Packs matrices, many in one call: between calls the caller needs Python's lock, and would wait long for
    it while another thread reads the vocabulary.
    """

    def __init__(self) -> None:
        self._arena = _Arena()
        self._waiting: list[tuple[Tensor, Structure]] = []
        self._bytes = 0

    def pack(self, tensor: Tensor, layout: Structure) -> NDArray[np.uint8]:
        """Returns the memory that will hold the matrix once `finish` has been called."""
        tensor = tensor._replace(data=np.ascontiguousarray(tensor.data))
        format = tensor.format.gguf_id
        _check_tensor(tensor)
        size = lib.library().gl_pack_size(format, *tensor.shape, ctypes.byref(layout))
        if not size:
            raise ModelError(f"{tensor.name} is in {tensor.format.name}, which the native op set cannot pack")
        data = self._arena.take(size)
        job = lib.PackJob(tensor.data.ctypes.data, data.ctypes.data, ctypes.pointer(layout), format)
        self._waiting.append((tensor, job))
        self._bytes += len(tensor.data)
        if self._bytes >= _AT_ONCE:
            self._pack_waiting()
        return data

    def finish(self) -> None:
        """Packs the matrices that are still waiting. To be called after the last `pack`."""
        self._pack_waiting()
        self._arena.settle()

    def _pack_waiting(self) -> None:
        jobs = [job for _, job in self._waiting]
        lib.library().gl_pack((lib.PackJob * len(jobs))(*jobs), len(jobs))
        for tensor, _ in self._waiting:
            tensor.release()
        self._waiting, self._bytes = [], 0


def _check_tensor(tensor: Tensor) -> None:
    """Raises unless a matrix has as many bytes as its shape takes, which C reads."""
    out, into = tensor.shape
    format = tensor.format
    blocks, rest = divmod(into, format.block_values)
    if out < 1 or into < 1 or rest or tensor.data.nbytes != out * blocks * format.block_bytes:
        raise ModelError(
            f"{tensor.name} has {tensor.data.nbytes} bytes, no {format.name} matrix of {out} × {into}"
        )


class _Arena:
    """Memory for packed weights, allocated in large chunks, each of which lives as long as any matrix in it.

    Weights are read faster from huge pages, but the system may take long to find some: up to 0.3 s for 100
    MB. So memory starts with small pages, and huge ones are requested once all is packed; the system then
    replaces them in the background.
    """

    def __init__(self) -> None:
        self._chunk = np.empty(0, np.uint8)
        self._maps: list[mmap.mmap] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        if size > len(self._chunk):
            size_mapped = max(size, _CHUNK)
            try:
                chunk = mmap.mmap(-1, size_mapped, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except (OSError, OverflowError) as error:
                raise ModelError(f"there is no memory for {size_mapped} bytes of weights: {error}") from None
            self._maps.append(chunk)
            self._chunk = np.frombuffer(self._maps[-1], np.uint8)
        taken, self._chunk = self._chunk[:size], self._chunk[-(-size // _CACHE_LINE) * _CACHE_LINE :]
        return taken

    def settle(self) -> None:
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        for chunk in self._maps:
            if advice is not None:
                with suppress(OSError):  # a system without huge pages
                    chunk.madvise(advice)
        self._maps = []
