"""The op set for training a gated adapter: clean rows as the model computes them, masked rows with it.

An array is a `Two`: the clean rows, which never see a masked row and need no gradients, and the masked rows,
which see clean and masked ones and have gradients. The forward pass is the one of `model/transformer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from glassloop.errors import GlassloopError
from glassloop.ops.kv_cache import Pages, Place
from glassloop.ops.protocol import Activation, QueryGrowth
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor
from glassloop.train.gradient_ops import TrainMatrix, TrainOps

Angles = tuple[torch.Tensor, torch.Tensor]


class Two(NamedTuple):
    """Clean rows and masked rows of one forward pass. Either may have no rows."""

    clean: torch.Tensor
    masked: torch.Tensor


@dataclass
class MaskedBatch:
    """Sequences with equally many clean rows and equally many masked rows, each with its rotary position.

    By default a clean row sees the clean rows up to itself, in the order in which they are given, and a
    masked row sees all rows of its sequence. `clean_seen` and `masked_seen` say it row by row instead.
    """

    tokens: Two  # [sequences * clean], [sequences * masked]
    positions: Two
    sequences: int
    clean_seen: torch.Tensor | None = None  # [sequences, clean, clean], bool
    masked_seen: torch.Tensor | None = None  # [sequences, masked, clean + masked], bool
    wanted: torch.Tensor | None = None  # clean rows whose logits are computed; None: all masked rows
    adapters: Sequence[int] = ()  # as in `Batch`; which rows have the adapter in training is given above


class MaskedOps(TrainOps):
    """Implements `Ops` over `Two` arrays. The adapter of a matrix acts on masked rows; `mask_vector` is added
    to their embeddings."""

    def __init__(self, device: str = "cpu", dtype: Any = torch.float32) -> None:
        super().__init__(device, dtype)
        self.mask_vector: torch.Tensor | None = None

    def _parameter(self, tensor: Tensor) -> torch.Tensor:
        return super()._parameter(tensor).requires_grad_(False)

    def embed(self, table: TrainMatrix, ids: Any) -> Any:
        clean, masked = (F.embedding(each, table.weight) for each in ids)
        if self.mask_vector is not None and table is self.matrices["token_embedding.weight"]:
            masked = masked + self.mask_vector.to(masked.dtype)
        return Two(clean, masked)

    def linear(self, x: Any, weight: TrainMatrix, bias: torch.Tensor | None) -> Any:
        if not isinstance(x, Two):
            return super().linear(x, weight, bias)
        with torch.no_grad():
            clean = F.linear(x.clean, weight.weight, bias)
        masked = F.linear(x.masked, weight.weight, bias)
        adapter = weight.adapter
        if adapter is not None:
            lowered = F.linear(x.masked, adapter.down)
            masked = torch.addmm(masked, lowered, adapter.up.T, alpha=adapter.scaling)
        return Two(clean, masked)

    def rms_norm(self, x: Any, weight: torch.Tensor, eps: float) -> Any:
        return _each(lambda each: super(MaskedOps, self).rms_norm(each, weight, eps), x)

    def layer_norm(self, x: Any, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Any:
        return _each(lambda each: super(MaskedOps, self).layer_norm(each, weight, bias, eps), x)

    def split_heads(self, x: Two, heads: int) -> Two:
        return Two(*(each.reshape(len(each), heads, each.shape[-1] // heads) for each in x))

    def angles(
        self, positions: Any, frequencies: Float32, factor: float, growth: QueryGrowth | None = None
    ) -> Any:
        clean, masked = (
            super(MaskedOps, self).angles(each, frequencies, factor, growth) for each in positions
        )
        return clean, masked

    def rotate(self, x: Two, angles: tuple[Angles, Angles]) -> Two:
        with torch.no_grad():
            clean = super().rotate(x.clean, angles[0])
        return Two(clean, super().rotate(x.masked, angles[1]))

    def gate(self, gate: Two, up: Two, kind: Activation) -> Two:
        with torch.no_grad():
            clean = super().gate(gate.clean, up.clean, kind)
        return Two(clean, super().gate(gate.masked, up.masked, kind))

    def activate(self, x: Any, kind: Activation) -> Any:
        return _each(lambda each: super(MaskedOps, self).activate(each, kind), x)

    def add(self, x: Two, y: Two) -> Two:
        return Two(x.clean + y.clean, x.masked + y.masked)

    def scale(self, x: Two, factor: float) -> Two:
        return Two(*(each * float(np.float32(factor)) for each in x))

    def take(self, x: Two, rows: torch.Tensor | None) -> torch.Tensor:
        return x.masked if rows is None else x.clean[rows]

    def attention(
        self,
        q: Two,
        k: Two,
        v: Two,
        batch: Any,
        pages: Sequence[Pages],
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> Two:
        """Lets clean rows attend to clean rows and masked rows to both. No pages are written."""
        if window is not None or softcap is not None:
            raise GlassloopError("a model with windows or soft caps of attention cannot get a masked adapter")
        masked: MaskedBatch = batch
        q, k, v = (Two(*(self._by_sequence(each, masked.sequences) for each in x)) for x in (q, k, v))
        with torch.no_grad():
            clean = _attention(q.clean, k.clean, v.clean, masked.clean_seen, scale, causal=True)
        if not len(masked.positions.masked):
            return Two(clean, q.masked.new_empty(0, clean.shape[-1]))
        keys, values = (torch.cat([x.clean, x.masked], dim=2) for x in (k, v))
        return Two(clean, _attention(q.masked, keys, values, masked.masked_seen, scale, causal=False))

    def _by_sequence(self, x: torch.Tensor, sequences: int) -> torch.Tensor:
        """Returns [rows, heads, head dim] as [sequences, heads, rows of one, head dim]."""
        rows, heads, head_dim = x.shape
        return x.to(self.dtype).reshape(sequences, rows // sequences, heads, head_dim).transpose(1, 2)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor | None,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    shared = q.shape[1] != k.shape[1]
    if shared and seen is not None:  # the kernels that take a mask do not share heads
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        shared = False
    mask = None if seen is None else seen[:, None]
    mixed = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal and mask is None, scale=scale, enable_gqa=shared
    )
    sequences, heads, rows, head_dim = mixed.shape
    return mixed.transpose(1, 2).reshape(sequences * rows, heads * head_dim)


def _each(compute: Callable[[torch.Tensor], torch.Tensor], x: Any) -> Any:
    """Applies a function to clean and masked rows, or to a single array."""
    if not isinstance(x, Two):
        return compute(x)
    with torch.no_grad():
        clean = compute(x.clean)
    return Two(clean, compute(x.masked))
