"""A model together with its drafter: one forward pass computes the logits and what chains of drafts begin
with, and keeps the drafter's keys and values in the model's pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassloop.model.config import ModelConfig
from glassloop.model.drafter import Drafter, DrafterFile
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch
from glassloop.ops.drafting import DraftOps
from glassloop.ops.kv_cache import Pages
from glassloop.ops.protocol import Array, Ops
from glassloop.ops.tensor import Tensor


class DraftingTransformer(Transformer):
    drafter: Drafter

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], ops: Ops, drafter: DrafterFile
    ) -> None:
        """The op set has chains (`DraftOps`)."""
        self.drafter = Drafter(drafter.config, config, drafter.weights, ops)
        super().__init__(config, weights, ops, [self.drafter.mixer.cache])
        assert isinstance(ops, DraftOps)
        self.chain = ops.chain(self._draft, drafter.tokens)

    def forward(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        return self.forward_with_states(batch, pages)[0]

    def forward_with_states(self, batch: Batch, pages: Sequence[Pages]) -> tuple[Array, Array]:
        """Returns what `forward` does, and the states of the wanted rows, [wanted, dim], that chains of
        drafts begin with."""
        outputs = self._program(batch, pages)
        assert isinstance(outputs, list)
        logits, states = outputs
        return logits, states

    def _outputs(self, batch: Batch, pages: Sequence[Pages]) -> list[Array]:
        """The forward pass with the drafter's part: all rows get a state, and its keys and values are
        kept."""
        drafter, ops = self.drafter, self._draft_ops
        features: dict[int, Array] = {}
        for number, x in enumerate(self.residuals(batch, pages, ops)):
            if number in drafter.config.features:
                features[number] = x
        states = drafter.state([features[number] for number in drafter.config.features])
        ops.keep(*drafter.keys_and_values(states, self._draft_angles(batch)), self.places[-1])
        return [self.logits(self.final_hidden(x, batch)), ops.take(states, batch.wanted)]

    def _draft(self, batch: Batch, pages: Sequence[Pages]) -> list[Array]:
        """A step of a chain: the logits of the drafted tokens, and the next states."""
        drafter, ops = self.drafter, self._draft_ops
        mixer = drafter.mixer

        def attend(q: Array) -> Array:
            place = self.places[-1]
            return ops.attend(q, mixer.kv_heads, batch, pages, place, mixer.scale, None, mixer.softcap)

        state = drafter.step(
            ops.given(self.config.dim), self.embedded(batch, ops), self._draft_angles(batch), attend
        )
        return [ops.take(drafter.logits(state), batch.wanted), ops.take(state, batch.wanted)]

    @property
    def _draft_ops(self) -> DraftOps:
        assert isinstance(self.ops, DraftOps)
        return self.ops

    def _draft_angles(self, batch: Batch) -> Array | None:
        rope = self.drafter.mixer.rope
        if rope is None:
            return None
        return self.ops.angles(batch.positions, self.frequencies[rope], rope.sharpness)
