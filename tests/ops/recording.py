"""Writes a recorded program, its weights and some batches to a file that `driver.c` runs without Python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np

from glassloop.model.cache import Branches
from glassloop.model.transformer import Transformer
from glassloop.ops.grids import grid
from glassloop.ops.native import library as lib
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.native.packer import NativeMatrix, layout_of
from glassloop.ops.protocol import LowRank
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor

Work = Sequence[tuple[int, int, Sequence[int]]]  # (branch, first position, tokens)


class RecordingOps(NativeOps):
    """The native op set, which keeps the matrices as they are stored and the vectors that a program reads."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices: dict[int, bytes] = {}  # by the address of the packed matrix
        self.vectors: dict[int, Float32] = {}
        self.tables: dict[int, Any] = {}  # of adapters, by address

    def matrix(self, tensor: Tensor) -> NativeMatrix:
        made = super().matrix(tensor)
        raw = np.ascontiguousarray(tensor.data)
        layout = layout_of(tensor.shape, tensor.format)
        points = b"" if tensor.format.grid is None else grid(tensor.format.grid).tobytes()
        about = pack("3q", tensor.format.gguf_id, raw.size // tensor.shape[0], len(points)) + bytes(layout)
        self.matrices[ctypes.addressof(made.layout)] = about + points + raw.tobytes()
        return made

    def adapt(self, y: Any, x: Any, adapters: Any, parts: Sequence[LowRank | None]) -> Any:
        made = super().adapt(y, x, adapters, parts)
        table = self._kept[-2]
        self.tables[ctypes.addressof(table)] = table
        return made

    def _pointer(self, array: Float32 | None) -> int | None:
        found = super()._pointer(array)
        if found is not None and array is not None:
            self.vectors[found] = array
        return found


def write_recording(
    file: Path,
    model: Transformer,
    works: Sequence[Work],
    tokens: int,
    branches: int,
    adapters: Sequence[Sequence[int]] = (),
) -> list[bytes]:
    """Writes the program of a model made with `RecordingOps`, and batches that follow one another, with the
    adapters of the rows of each. Returns the logits of each batch as this process computes them."""
    cache = Branches(model, tokens, branches)
    batches = [cache.batch(work, every_logit=True) for work in works]
    if adapters:
        batches = [one._replace(adapters=of) for one, of in zip(batches, adapters, strict=True)]
    logits = [model.forward(batch, cache.pages).tobytes() for batch in batches]
    programs: Any = model._program
    program = (programs._adapted if adapters else programs.plain).__self__
    ops: Any = model.ops
    matrices, vectors, tables = list(ops.matrices), list(ops.vectors), list(ops.tables)
    with file.open("wb") as out:
        sizes = len(matrices), len(vectors), program._program.count, len(program._rooms), len(cache.pages)
        out.write(pack("8q", *sizes, len(batches), tokens, len(tables)))
        for data in ops.matrices.values():
            out.write(data)
        for vector in ops.vectors.values():
            out.write(pack("q", vector.nbytes) + vector.tobytes())
        for table in ops.tables.values():
            out.write(pack("q", len(table)))
            for part in table:
                pair = [1 + matrices.index(each) if each else 0 for each in (part.down, part.up)]
                out.write(pack("2qd", *pair, part.scale))
        for op in program._program.ops[: program._program.count]:
            copy = type(op).from_buffer_copy(op)
            place = 1 + matrices.index(ctypes.addressof(op.matrix.contents)) if op.matrix else 0
            copy.matrix = ctypes.cast(place, type(op.matrix))
            copy.weight = 1 + vectors.index(op.weight) if op.weight else 0
            copy.adapters = 1 + tables.index(op.adapters) if op.adapters else 0
            copy.bias = 1 + vectors.index(op.bias) if op.bias else 0
            out.write(bytes(copy))
        for index, room in enumerate(program._rooms):
            out.write(pack("4q", room.width, room.wanted, room.quantized, index in program._results))
        for pages in cache.pages:
            layout = lib.Cache.from_buffer_copy(pages.layout)  # type: ignore[attr-defined]
            layout.keys = layout.values = 0
            out.write(bytes(layout))
        for batch in batches:
            out.write(pack("3q", len(batch.tokens), len(batch.wanted), len(batch.spans)))
            out.write(np.array([*batch.tokens, *batch.positions, *batch.wanted], np.int32).tobytes())
            out.write(pack("q", len(batch.adapters)) + np.array(batch.adapters, np.int32).tobytes())
            for s in batch.spans:
                out.write(pack("4i", s.start, s.stop - s.start, s.first, s.pages.shape[1]))
                out.write(np.ascontiguousarray(s.pages, np.int32).tobytes())
    return logits
