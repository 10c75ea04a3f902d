"""Launches the product of a few rows with a matrix, `kernels/few_rows.cu`, which is compiled on first use."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch

from glassloop.ops.torch import nvrtc
from glassloop.ops.torch.matrix import Packed, Stored
from glassloop.ops.torch.recorder import Norm

SOURCE = Path(__file__).parent / "kernels" / "few_rows.cu"

# Which products the kernel computes: up to so many rows, with a packed matrix and with one in half precision.
MOST_ROWS = 16
MOST_HALF_ROWS = 0
# And up to so many rows and columns, it computes the norm of x too. Every block does so, of all rows.
MOST_NORMED_ROWS = 2
MOST_NORMED_COLUMNS = 4096

# How it divides them, which decides the speed alone; few_rows.cu says what the words mean.
MOST_CHAINS = 3  # tiles that a block adds up at a time
GROUPS = {1: 6, 2: 6, 3: 6, 4: 8}  # of 2 warps that unpack, by the number of chains
MOST_SLOTS = 24
DEPTHS = {4: 2, 8: 1, 16: 1}  # slots for which a warp reads codes ahead, by their bits
# Two blocks fit on a multiprocessor with so many bytes each: then the next kernel, launched early, can read
# its matrix while this one ends. A product that needs more runs alone.
SHARED_OF_TWO = 113 << 10
MOST_SHARED = 227 << 10

# As in the kernel.
_MULTIPLIERS = 4
_STEP = 256
_SLOT_BYTES = 16 * _STEP * 2
_BARRIER_BYTES = 512
_GELU = 0  # the activation that it does not have


class FewRows(NamedTuple):
    """A product of a few rows with a matrix: x @ weight.T + bias + added or, if gated,
    activated(x @ gate.T) * (x @ up.T) for a weight that has the rows of gate and of up in turn. With a norm,
    x is float32 and is normalized first."""

    rows: int  # of x, out and added, which may have more
    out: torch.Tensor
    x: torch.Tensor
    added: torch.Tensor | None
    weight: Stored
    bias: torch.Tensor | None = None
    gated: bool = False
    activation: int = 0  # an index of `ACTIVATIONS`
    norm: Norm | None = None

    def can_launch(self) -> bool:
        """Returns whether the kernel computes this product, and computes it faster than `linear_kernel`."""
        weight, columns = self.weight, self.weight.shape[1]
        most = MOST_ROWS if isinstance(weight, Packed) else MOST_HALF_ROWS
        if self.rows > most or not nvrtc.is_available():
            return False
        if isinstance(weight, Packed):
            one_scale = weight.group % (128 // weight.bits) == 0  # for the 16 bytes that a lane reads
            if not one_scale or not weight.codes.is_contiguous():
                return False
        elif weight.dtype is not torch.bfloat16 or not weight.is_contiguous():
            return False
        if self.norm is not None:
            can_normalize = self.rows <= MOST_NORMED_ROWS and columns <= MOST_NORMED_COLUMNS
            if not can_normalize or self.x.dtype is not torch.float32:
                return False
        whole_steps = columns % _STEP == 0 and self.x.stride(0) % 8 == 0
        is_wide = self.added is None or self.added.dtype is torch.float32
        has_activation = not (self.gated and self.activation == _GELU)
        return whole_steps and is_wide and has_activation and bool(self._slots(MOST_CHAINS))

    def launch(self, processors: int, early: bool) -> None:
        """Computes the product on the current stream, with the bits of `linear_kernel` (and `norm_kernel`).
        `processors` is the number of multiprocessors; `early` is whether the kernel starts before the
        previous one has ended."""
        out, x, weight, norm = self.out, self.x, self.weight, self.norm
        settings = self.settings(processors, early)
        # An argument that the kernel does not read is any array.
        codes = scales = minimums = weight.codes if isinstance(weight, Packed) else weight
        if isinstance(weight, Packed):
            scales = weight.scale
            minimums = scales if weight.minimum is None else weight.minimum
        bias, residual = (out if each is None else each for each in (self.bias, self.added))
        norm_weight = out if norm is None else norm.weight
        norm_bias = norm_weight if norm is None or norm.bias is None else norm.bias
        arrays = (x, codes, scales, minimums, bias, residual, out, norm_weight, norm_bias)
        sizes = (self.rows, out.shape[1], weight.shape[1], x.stride(0), residual.stride(0), out.stride(0))
        eps = ctypes.c_float(0.0 if norm is None else norm.eps)
        arguments = [*[ctypes.c_void_p(each.data_ptr()) for each in arrays], *map(ctypes.c_int, sizes), eps]
        # A block on every multiprocessor, even if it has nothing to do: where there is none, two blocks of
        # the next kernel would start, and another multiprocessor would have none of them.
        threads, shared = _threads(settings["CHAINS"]), self.shared_bytes(settings["SLOTS"])
        nvrtc.launch(SOURCE, tuple(settings.items()), processors, threads, shared, arguments, early)

    def settings(self, processors: int, early: bool) -> dict[str, int]:
        """Returns the constants that the kernel is compiled with."""
        weight, out, norm = self.weight, self.out, self.norm
        columns, chains = weight.shape[1], self._chains(processors)
        slots = self._slots(chains)
        packed = weight if isinstance(weight, Packed) else None
        bits = 16 if packed is None else packed.bits
        return {
            "BITS": bits,
            "MINIMUM": int(packed is not None and packed.minimum is not None),
            "WIDE_SCALES": int(packed is not None and packed.scale.dtype is torch.float32),
            "ZERO": 0 if packed is None else packed.zero,
            "GROUP": 32 if packed is None else packed.group,
            "GATED": int(self.gated),
            "ACTIVATION": self.activation if self.gated else 0,
            "BIASED": int(self.bias is not None),
            "ADDED": int(self.added is not None),
            "HALF_OUT": int(out.dtype is torch.bfloat16),
            "MANY": int(self.rows > 8),
            "NORM": 0 if norm is None else 1 if norm.bias is None else 2,
            "NORM_VECTORS": 1 if norm is None else -(-columns // (4 * 32 * _MULTIPLIERS)),
            "EARLY": int(early),
            "CHAINS": chains,
            "GROUPS": GROUPS[chains],
            "SLOTS": slots,
            "DEPTH": DEPTHS[bits],
            "BLOCKS": 2 if self.shared_bytes(slots) <= SHARED_OF_TWO and _threads(chains) <= 512 else 1,
        }

    def shared_bytes(self, slots: int) -> int:
        """Returns the bytes of shared memory of a block: the slots, x and the barriers."""
        return slots * _SLOT_BYTES + self.rows * (2 * self.weight.shape[1] + 16) + _BARRIER_BYTES

    def _chains(self, processors: int) -> int:
        """Returns how many tiles a block adds up at a time, so that it has to begin anew as rarely as
        possible."""
        tiles = -(-self.weight.shape[0] // (16 * processors))  # of a block
        return -(-tiles // -(-tiles // MOST_CHAINS))

    def _slots(self, chains: int) -> int:
        """Returns the slots of a block, a multiple of the groups; 0 if x leaves no room."""
        for most in (SHARED_OF_TWO, MOST_SHARED):
            room = (most - self.shared_bytes(0)) // _SLOT_BYTES
            slots = min(room, MOST_SLOTS) // GROUPS[chains] * GROUPS[chains]
            if slots >= 2 * chains:  # a multiplier waits for the next one before it releases one
                return slots
        return 0


def _threads(chains: int) -> int:
    """Returns the threads of a block."""
    return 32 * (_MULTIPLIERS + 2 * GROUPS[chains])
