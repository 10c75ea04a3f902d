"""Launches products of rows with weight matrices, by the kernel that is the fastest for so many rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from glassloop.ops.torch import packed_linear
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.kernels import linear
from glassloop.ops.torch.kernels.packed import expand_kernel
from glassloop.ops.torch.matrix import MatrixProduct
from glassloop.ops.torch.packed import PackedMatrix
from glassloop.ops.torch.tiles import WIDE, cdiv

_AHEAD = 256  # columns of a step up to which a product reads its first weights while the previous kernel runs
_EXPANDED_ROWS, _EXPANDED_COLUMNS = 8, 512  # of a packed matrix that one program writes in half precision


class Products:
    """Launches products, and has the memory that several of them use: an expanded matrix, descriptors."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.processors = device.tma_processors
        self.shared_memory = device.shared_memory
        self._expanded = torch.empty(
            0, dtype=device.half, device=device.torch
        )  # a packed matrix in half precision
        self._moved = False  # whether that is a larger one than before the step
        # Descriptors by the array, its shape and the tile. They keep the memory of the array, so only those
        # of weights outlive a step.
        self._weights: dict[tuple[int, ...], TensorDescriptor] = {}
        self._inputs: dict[tuple[int, ...], TensorDescriptor] = {}

    def end(self) -> bool:
        """Forgets what only the products of one step use. Returns True if a buffer was reallocated, which
        invalidates captured graphs."""
        self._inputs.clear()
        moved, self._moved = self._moved, False
        return moved

    def launch(self, product: MatrixProduct, launch: Callable[..., None], early: bool) -> None:
        """Computes a product of any number of rows. `launch` launches one of Triton's kernels; `early` is
        whether kernels are launched before the previous one has ended."""
        if packed_linear.can_launch(product, self._device):
            packed_linear.launch(product, self._device, early)
            return
        rows, out, x, added, weight, bias, gated, activation = product
        width, columns, slices = out.shape[1], weight.shape[1], 1
        if isinstance(weight, PackedMatrix):
            weight, slices = self._expand(weight, launch), packed_linear.SLICES
        weight_rows = 2 * width if gated else width
        wide = self.processors > 0 and rows >= WIDE and columns % 8 == 0 and slices == 1
        if wide:
            tile = self._device.tiles.wide(rows, weight_rows, gated, self.shared_memory)
        elif slices > 1:
            tile = self._device.tiles.sliced(rows, weight_rows, self.shared_memory)
        else:
            tile = self._device.tiles.plain(rows, weight_rows, self.shared_memory)
        tiles = cdiv(rows, tile.rows) * cdiv(weight_rows, tile.width)
        settings = {
            "ROWS": tile.rows,
            "WIDTH": tile.width,
            "STEP": tile.step,
            "BIASED": bias is not None,
            "ADDED": added is not None,
            "GATED": gated,
            "ACTIVATION": activation,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }
        # An argument that a kernel does not read is any array.
        bias, residual = weight if bias is None else bias, out if added is None else added
        sizes = (bias, residual, out, rows, width, columns, residual.stride(0), out.stride(0))
        if wide:
            launch(
                linear.wide_linear_kernel,
                (min(tiles, self.processors),),
                _described(self._inputs, x, rows, columns, tile.rows, tile.step),
                _described(self._weights, weight, len(weight), columns, tile.width, tile.step),
                *sizes,
                PIECES=tile.pieces,
                **settings,
            )
        else:
            even = columns % tile.step == 0
            ahead = early and even and rows <= 16 and tile.step <= _AHEAD and slices == 1
            settings |= {"SWAPPED": tile.swapped, "EVEN": even, "AHEAD": ahead, "SLICES": slices}
            launch(linear.linear_kernel, (tiles,), x, weight, *sizes, x.stride(0), **settings)

    def _expand(self, weight: PackedMatrix, launch: Callable[..., None]) -> torch.Tensor:
        """Returns a packed matrix in half precision, until the next call."""
        rows, columns = weight.shape
        if self._expanded.numel() < rows * columns:
            self._expanded = torch.empty(rows * columns, dtype=self._device.half, device=self._device.torch)
            self._moved = True
        out = self._expanded[: rows * columns].view(rows, columns)
        launch(
            expand_kernel,
            (cdiv(rows, _EXPANDED_ROWS), cdiv(columns, _EXPANDED_COLUMNS)),
            out=out,
            rows=rows,
            columns=columns,
            ROWS=_EXPANDED_ROWS,
            STEP=_EXPANDED_COLUMNS,
            MATRICES=weight.matrices,
            **weight.arguments(),
        )
        return out


def _described(
    descriptors: dict[tuple[int, ...], TensorDescriptor], array: Any, rows: int, columns: int, *tile: int
) -> TensorDescriptor:
    """Returns a descriptor by which a kernel copies tiles of the first rows of an array. Most are known: the
    products of all layers read the same few buffers."""
    key = (array.data_ptr(), array.stride(0), rows, columns, *tile)
    descriptor = descriptors.get(key)
    if descriptor is None:
        descriptor = descriptors[key] = TensorDescriptor(
            array, [rows, columns], [array.stride(0), 1], [*tile]
        )
    return descriptor
