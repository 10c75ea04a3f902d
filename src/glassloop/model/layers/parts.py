"""What all kinds of layers share: linear layers, norms, and what one forward pass hands to each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from glassloop.model.config import NormConfig
from glassloop.model.rope import Rope
from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import Pages
from glassloop.ops.protocol import Array, LowRank, Matrix, Ops


class Linear(NamedTuple):
    name: str  # "layers.0.q"
    weight: Matrix
    bias: Array | None

    def forward(self, x: Array, step: ForwardStep) -> Array:
        y = step.ops.linear(x, self.weight, self.bias)
        # A compiled layer that is trained must not depend on the name: it would be compiled for each.
        if not step.adapted or self.name not in step.adapted:
            return y
        return step.ops.adapt(y, x, step.batch.adapters, step.adapted[self.name])


class Norm(NamedTuple):
    config: NormConfig
    weight: Array
    bias: Array | None

    def forward(self, x: Array, ops: Ops) -> Array:
        if self.config.kind == "layer":
            assert self.bias is not None
            return ops.layer_norm(x, self.weight, self.bias, self.config.eps)
        return ops.rms_norm(x, self.weight, self.config.eps)


class ForwardStep(NamedTuple):
    """What all layers of one forward pass share."""

    ops: Ops
    batch: Batch
    pages: Sequence[Pages]
    angles: Mapping[Rope, Array]
    adapted: Mapping[str, Sequence[LowRank[Matrix] | None]]  # by linear layer: what each adapter adds to it
