"""Packing weights: from the format of a file to the tiles that the kernels read (pack.c).

C reads the blocks of all formats as they are stored. The readers of `blocks.py` are their specification,
which the tests compare with.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from ctypes import Structure
from threading import Thread
from time import sleep
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import ModelError, NoMemoryError
from glassloop.ops.grids import grid
from glassloop.ops.memory import format_bytes, host_memory
from glassloop.ops.native import library as lib
from glassloop.ops.quant import Bytes, Format
from glassloop.ops.tensor import Tensor

CACHE_LINE = 64
_CHUNK = 1 << 25
_AT_ONCE = 1 << 24  # bytes packed in one call
_PAGES_AFTER = 0.5  # seconds after loading: the first tokens come first
_HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25  # Linux 6.1; the module mmap does not name it


class NativeMatrix:
    def __init__(self, tensor: Tensor, packer: Packer) -> None:
        self.out, self.into = tensor.shape
        self.layout = layout_of(tensor.shape, tensor.format)
        self.is_quantized = tensor.format.take_apart is not None
        self.data = packer.pack(tensor, self.layout)


def packed_bytes(shape: tuple[int, ...], format: Format) -> int:
    """Returns the bytes that a matrix takes when it is packed."""
    return int(lib.library().gl_pack_size(ctypes.byref(layout_of(shape, format))))


def layout_of(shape: tuple[int, ...], format: Format) -> Any:
    """Returns the `gl_matrix` of a tensor, but for its data and the size of a tile."""
    out, into = shape
    if format.take_apart is None:
        packing = format.name.lower()
    else:
        packing = "table" if format.table and format.bits == 4 else f"q{format.bits}"
    return lib.Matrix(
        out=out,
        packing=lib.PACKINGS.index(packing),
        has_minimum=format.minimum,
        scale=lib.SCALES.index(f"scale_{format.scale}"),
        half_groups=format.group == 16,
        factor=format.factor,
        table=format.table,
        **{"in": into},
    )


class Packer:
    """Packs matrices, many in one call: between calls the caller needs Python's lock, and would wait long for
    it while another thread reads the vocabulary.
    """

    def __init__(self) -> None:
        self._arena = _Arena()
        self._waiting: list[tuple[Tensor, Structure]] = []
        self._bytes = 0

    def pack(self, tensor: Tensor, layout: Any) -> NDArray[np.uint8]:
        """Returns the memory that will hold the matrix once `finish` has been called."""
        tensor = tensor._replace(data=np.ascontiguousarray(tensor.data))
        _check_tensor(tensor)
        data = self._arena.take(lib.library().gl_pack_size(ctypes.byref(layout)))
        layout.data = data.ctypes.data
        rows = tensor.data.reshape(tensor.shape[0], -1)
        self._waiting.append((tensor, _job(layout, tensor.format, rows)))
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


def _job(layout: Any, format: Format, rows: Bytes) -> Structure:
    """Returns the job to pack all rows of a matrix."""
    points = None if format.grid is None else grid(format.grid).ctypes.data  # which `grid` keeps
    return lib.PackJob(
        rows.ctypes.data,
        layout.data,
        ctypes.pointer(layout),
        len(rows),
        rows.shape[1],
        points,
        format.gguf_id,
        0,
    )


def _check_tensor(tensor: Tensor) -> None:
    """Raises unless a matrix has as many bytes as its shape takes, which C reads."""
    out, into = tensor.shape
    format = tensor.format
    blocks, rest = divmod(into, format.block_values)
    if out < 1 or into < 1 or rest or tensor.data.nbytes != out * blocks * format.block_bytes:
        raise ModelError(
            f"{tensor.name} has {tensor.data.nbytes} bytes, no {format.name} matrix of {out} × {into}"
        )


class _Chunk(NamedTuple):
    """A piece of memory, which lives as long as any matrix in it."""

    memory: ref[NDArray[np.uint8]]
    used: int  # bytes


class _Arena:
    """Memory for packed weights, allocated in large chunks, each of which lives as long as any matrix in it.

    Weights are read up to 1.6 times as fast from huge pages, but the system may take long to find some: up to
    0.3 s for 100 MB. So memory starts with small pages, which are replaced in the background once all is
    packed.
    """

    def __init__(self) -> None:
        self._chunk = np.empty(0, np.uint8)
        self._chunks: list[_Chunk] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        if size > len(self._chunk):
            size_mapped = max(size, _CHUNK)
            try:
                chunk = mmap.mmap(-1, size_mapped, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except (OSError, OverflowError) as error:
                what = f"{format_bytes(size_mapped)} of weights"
                raise NoMemoryError(f"there is no memory for {what} ({error}); {host_memory()}") from None
            self._trim()
            self._chunk = np.frombuffer(chunk, np.uint8)
            self._chunks.append(_Chunk(ref(self._chunk), len(self._chunk)))
        taken, self._chunk = self._chunk[:size], self._chunk[-(-size // CACHE_LINE) * CACHE_LINE :]
        return taken

    def settle(self) -> None:
        self._trim()
        large = [chunk for chunk in self._chunks if chunk.used >= _HUGE_PAGE]
        if large:
            Thread(target=_use_huge_pages, args=(large,), daemon=True).start()
        self._chunks = []

    def _trim(self) -> None:
        """Forgets what is not used of the last chunk: it needs no pages."""
        if self._chunks:
            memory, size = self._chunks[-1]
            self._chunks[-1] = _Chunk(memory, size - len(self._chunk))


def _use_huge_pages(chunks: list[_Chunk]) -> None:
    """Replaces the pages of some memory with huge ones: now, or where the system cannot do that on demand,
    whenever its own scan comes by. Programs can read the memory all the while."""
    sleep(_PAGES_AFTER)
    with suppress(AttributeError, OSError):  # a system without huge pages
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for chunk in chunks:
            memory = chunk.memory()
            if memory is None:  # the model has been dropped
                continue
            start = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
            size = memory.ctypes.data + chunk.used - start
            for advice in (mmap.MADV_HUGEPAGE, _MADV_COLLAPSE):
                advise(start, size, advice)
