"""The forward pass: tokens in, logits out. There is only this one, for every family and every op set.

Read it top to bottom: embed, position, then for each layer a mixer and a feed-forward with their norms and
residuals, and at the end the language head. What a family does differently is in its ModelConfig; the kinds
of mixers and feed-forwards are in `model/layers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from glassloop.model.adapted import AdaptedForward, AdapterTable
from glassloop.model.cache_groups import cache_plan
from glassloop.model.config import ModelConfig
from glassloop.model.layers.build import LayerBuilder
from glassloop.model.layers.parts import ForwardStep, Linear
from glassloop.model.needed_ops import check_ops
from glassloop.ops.batch import Batch
from glassloop.ops.exact import exp, log_of, sin_cos
from glassloop.ops.kv_cache import CacheSpec, Pages
from glassloop.ops.protocol import Array, Forward, Matrix, Ops, check_has
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor

if TYPE_CHECKING:
    from glassloop.model.adapter import Adapter
    from glassloop.model.drafter import Drafter
    from glassloop.ops.drafting import DraftChain


class Transformer:
    """A model on an op set. `DraftingTransformer` is one that also drafts its next tokens."""

    drafter: Drafter | None = None
    chain: DraftChain | None = None

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        ops: Ops,
        more_caches: Sequence[CacheSpec] = (),
    ) -> None:
        """`more_caches` are kept in the pages beside those of the layers, as if of further layers."""
        check_ops(config, ops)
        self.config = config
        self.ops = ops
        load = LayerBuilder(weights, ops)
        self.token_embedding = load.matrix("token_embedding.weight")
        self.position_embedding = self._position_table(weights)
        self.cache_plan = cache_plan([*config.caches, *more_caches])
        self.places = config.places_of_layers(self.cache_plan.places)
        self.layers = [
            load.layer(f"layers.{index}.", layer, self.places[index])
            for index, layer in enumerate(config.layers)
        ]
        self.final_norm = load.norm("final_norm", config.final_norm)
        self.head = self.token_embedding if config.tied else load.matrix("head.weight")
        self.frequencies = {rope: rope.frequencies() for rope in config.ropes}
        self.adapters = AdapterTable()
        self._one_change = Lock()  # of the adapters
        self._program = AdaptedForward(self, self._outputs)

    def forward(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        """Returns the logits of the wanted rows, [wanted, vocabulary], and writes the keys and values of all
        rows to their pages."""
        logits = self._program(batch, pages)
        assert not isinstance(logits, list)
        return logits

    def forward_with_states(self, batch: Batch, pages: Sequence[Pages]) -> tuple[Array, Array | None]:
        """Returns what `forward` does, and the states that drafts begin with: None without a drafter."""
        return self.forward(batch, pages), None

    def hidden(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        """Returns what the language head would read of the wanted rows, [wanted, dim]."""
        return self._hidden_program(batch, pages)

    @cached_property
    def _hidden_program(self) -> Forward[Array]:
        """Made when it is first used: most models only compute logits."""
        return AdaptedForward(self, self._hidden)

    def load_adapter(self, adapter: Adapter) -> int:
        """Loads an adapter. Returns the number by which rows of a batch refer to it: the first that none
        has."""
        check_has(self.ops, ["adapt"], f"adapter {adapter.name}")
        adapter.check_shapes(self.config, self._adaptable)
        with self._one_change:
            self.adapters, number = self.adapters.with_adapter(adapter, self.config.dim, self.ops)
        return number

    def unload_adapter(self, number: int) -> None:
        """Releases an adapter. No batch may have its number any more."""
        with self._one_change:
            self.adapters = self.adapters.without(number, self.config.dim, self.ops)

    @cached_property
    def _adaptable(self) -> set[str]:
        """The names of the linear layers, to which an adapter can add something."""
        kinds = [kind for layer in self.layers for sublayer in layer for kind in sublayer.parts]
        return {field.name for kind in kinds for field in kind if isinstance(field, Linear)}

    @property
    def page_bytes(self) -> int:
        """The bytes of the keys and values of one page of tokens, in all layers."""
        return self.cache_plan.page_bytes(self.ops)

    @property
    def cache_specs(self) -> list[CacheSpec]:
        """What each group of attention layers keeps in pages."""
        return self.cache_plan.specs

    def _outputs(self, batch: Batch, pages: Sequence[Pages]) -> Array | list[Array]:
        """What the main program computes: the logits of the wanted rows, and perhaps more."""
        return self.logits(self._hidden(batch, pages))

    def embedded(self, batch: Batch, ops: Ops) -> Array:
        """A vector for each token. [rows, dim]"""
        x = ops.embed(self.token_embedding, batch.tokens)
        return x if self.config.embedding_scale == 1.0 else ops.scale(x, self.config.embedding_scale)

    def _hidden(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        for x in self.residuals(batch, pages, self.ops):  # noqa: B007  # the last one is what counts
            pass
        return self.final_hidden(x, batch)

    def residuals(self, batch: Batch, pages: Sequence[Pages], ops: Ops) -> Iterator[Array]:
        """Yields the residual stream as it enters the first layer, and as it leaves each one. [rows, dim]"""
        # Embedding: a vector for each token.
        x = self.embedded(batch, ops)  # [rows, dim]
        adapters = self.adapters if batch.adapters else AdapterTable()
        if adapters.embedding is not None:
            x = ops.add(x, ops.embed(adapters.embedding, batch.adapters))

        # Position: added here by older models, turned into queries and keys by newer ones.
        if self.position_embedding is not None:
            x = ops.add(x, ops.embed(self.position_embedding, batch.positions))
        angles = {
            rope: ops.angles(batch.positions, frequencies, rope.sharpness, rope.growth)
            for rope, frequencies in self.frequencies.items()
        }
        step = ForwardStep(ops, batch, pages, angles, adapters.parts)

        yield x

        # Layers: each adds what it found to the stream of residuals.
        for layer in self.layers:
            for sublayer in layer:
                x = sublayer.forward(x, step)
            yield x

    def final_hidden(self, x: Array, batch: Batch) -> Array:
        """Returns what the language head reads of the residual stream. [wanted, dim]"""
        x = self.ops.take(x, batch.wanted)
        return x if self.final_norm is None else self.final_norm.forward(x, self.ops)

    def logits(self, hidden: Array) -> Array:
        """The language head: a score for each entry of the vocabulary. [wanted, vocabulary]"""
        if self.config.logit_scale != 1.0:
            hidden = self.ops.scale(hidden, self.config.logit_scale)
        logits = self.ops.head(hidden, self.head)
        cap = self.config.logit_softcap
        return logits if cap is None else self.ops.softcap(logits, cap)

    def _position_table(self, weights: Mapping[str, Tensor]) -> Matrix | None:
        config = self.config
        if config.positions == "rotary":
            return None
        if config.positions == "learned":
            table = weights["position_embedding.weight"]
        else:
            rows = config.context + config.position_offset
            table = Tensor.of("position_embedding.weight", sinusoids(rows, config.dim))
        return self.ops.matrix(table.rows(slice(config.position_offset, None)))


def sinusoids(count: int, dim: int) -> Float32:
    """Sines in the first half of the dimensions, cosines in the second, from fast to slow. [count, dim]"""
    half = dim // 2
    slowness = log_of(10_000) / max(half - 1, 1)
    frequencies = exp(np.arange(half, dtype=np.float64) * -slowness).astype(np.float32)
    turns = np.arange(count, dtype=np.float32)[:, None] * frequencies
    table = np.zeros((count, dim), np.float32)
    table[:, :half], table[:, half : 2 * half] = sin_cos(turns.astype(np.float64))
    return table
