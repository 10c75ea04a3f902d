"""Launches the product of a few rows with a packed matrix, `kernels/few_rows.cu`, which is compiled on first
use."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch

from glassloop.ops.torch import nvrtc
from glassloop.ops.torch.matrix import Packed, Stored

SOURCE = Path(__file__).parent / "kernels" / "few_rows.cu"

# Which products the kernel computes: up to so many rows.
MOST_ROWS = 16

# How it divides them, which decides the speed alone; few_rows.cu says what the words mean.
MOST_TILES = 8  # that pass through the warps together
# By the bits of a code, and for products that need more registers (more than 8 rows, float32 scales):
SPANS = {4: 1, 8: 1}  # times 128 columns that a warp adds up at a time
DEPTHS = {4: 1, 8: 1}  # such chunks that a warp reads ahead
LARGE_SPAN = 1
LARGE_DEPTH = 1
ENTRIES = 4  # of a mailbox
X_AHEAD = False  # whether a warp reads x before the sums have come
BLOCKS = 1  # that the registers leave room for on a multiprocessor
# A block takes at least so many bytes of shared memory, so that no two share a multiprocessor: else two
# blocks of a kernel that is launched early could, while another multiprocessor has none.
LEAST_SHARED = 116 << 10
MOST_SHARED = 227 << 10

# As in the kernel.
_CHUNK = 128
_WARPS = 16
_GELU = 0  # the activation that it does not have


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

    def can_launch(self) -> bool:
        """Returns whether the kernel for few rows computes this product."""
        weight, columns = self.weight, self.weight.shape[1]
        if not isinstance(weight, Packed) or self.rows > MOST_ROWS or not nvrtc.is_available():
            return False
        in_order = weight.codes.is_contiguous() and weight.scale.is_contiguous()
        if not in_order or weight.group not in (16, 32) or columns % _CHUNK or self.x.stride(0) % 8:
            return False
        is_wide = self.added is None or self.added.dtype is torch.float32
        return is_wide and not (self.gated and self.activation == _GELU)

    def launch(self, processors: int, early: bool) -> None:
        """Computes the product by that kernel on the current stream, with the bits of `linear_kernel`.
        `processors` is the number of multiprocessors; `early` is whether the kernel starts before the
        previous one has ended."""
        out, x, weight = self.out, self.x, self.weight
        assert isinstance(weight, Packed)
        # An argument that the kernel does not read is any array.
        minimums = weight.scale if weight.minimum is None else weight.minimum
        bias, residual = (out if each is None else each for each in (self.bias, self.added))
        arrays = (x, weight.codes, weight.scale, minimums, bias, residual, out)
        sizes = (self.rows, out.shape[1], weight.shape[1], x.stride(0), residual.stride(0), out.stride(0))
        arguments = [*[ctypes.c_void_p(each.data_ptr()) for each in arrays], *map(ctypes.c_int, sizes)]
        # A block on every multiprocessor, even if it has nothing to do: where there is none, two blocks of
        # the next kernel would start, and another multiprocessor would have none of them.
        settings, shared = tuple(self.settings(processors, early).items()), self.shared_bytes()
        nvrtc.launch(SOURCE, settings, processors, 32 * _WARPS, shared, arguments, early)

    def settings(self, processors: int, early: bool) -> dict[str, int]:
        """Returns the constants that the kernel is compiled with."""
        weight, columns = self.weight, self.weight.shape[1]
        assert isinstance(weight, Packed)
        many, wide = self.rows > 8, weight.scale.dtype is torch.float32
        span = LARGE_SPAN if many or wide else SPANS[weight.bits]
        tiles = -(-weight.shape[0] // (16 * processors))  # of a block
        return {
            "BITS": weight.bits,
            "MINIMUM": int(weight.minimum is not None),
            "WIDE_SCALES": int(wide),
            "ZERO": weight.zero,
            "GROUP": weight.group,
            "GATED": int(self.gated),
            "ACTIVATION": self.activation if self.gated else 0,
            "BIASED": int(self.bias is not None),
            "ADDED": int(self.added is not None),
            "HALF_OUT": int(self.out.dtype is torch.bfloat16),
            "MANY": int(many),
            "X_GLOBAL": int(not self._x_fits()),
            "X_AHEAD": int(X_AHEAD),
            "EARLY": int(early),
            # Groups of the same size, as far as possible.
            "TILES": -(-tiles // -(-tiles // MOST_TILES)),
            "SPAN": span if columns % (span * _CHUNK) == 0 else 1,
            "DEPTH": LARGE_DEPTH if many or wide else DEPTHS[weight.bits],
            "ENTRIES": ENTRIES,
            "BLOCKS": BLOCKS,
        }

    def shared_bytes(self) -> int:
        """Returns the bytes of shared memory of a block: mailboxes, barriers and, if it fits, x."""
        return max(LEAST_SHARED, self._mail_bytes() + (self._x_bytes() if self._x_fits() else 0))

    def _x_fits(self) -> bool:
        """Returns whether the shared memory has room for x."""
        return self._mail_bytes() + self._x_bytes() <= MOST_SHARED

    def _x_bytes(self) -> int:
        return self.rows * (2 * self.weight.shape[1] + 64)

    def _mail_bytes(self) -> int:
        """Returns the bytes of mailboxes and their barriers."""
        entry = 512 * (2 if self.rows > 8 else 1) + 16
        return _WARPS * ENTRIES * entry
