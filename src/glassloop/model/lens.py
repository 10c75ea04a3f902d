"""Looks inside the forward pass: the logits after each layer, the attention of each head, the embeddings.

Each is a program of its own over the one forward pass of `transformer.py`, on the model's op set, and is made
when it is first used: the program that generates text knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.adapted import AdaptedForward
from glassloop.model.config import AttentionConfig, ExpertsConfig
from glassloop.model.layers.attention import Attention
from glassloop.model.layers.experts import ALWAYS
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch, pages_for
from glassloop.ops.kv_cache import Pages
from glassloop.ops.protocol import Array, Forward, Ops
from glassloop.ops.quant import Float32
from glassloop.ops.reference import attention_weights
from glassloop.ops.routing import Router, Routing


class Lens:
    def __init__(self, transformer: Transformer) -> None:
        self._model = transformer

    def layers(self, batch: Batch, pages: Sequence[Pages]) -> Float32:
        """Returns the logits that the language head gives for the residual stream of the one wanted row,
        before the first layer and after each one. The last are the model's own. [layers + 1, vocabulary]"""
        logits = self._layers(batch, pages)
        return np.stack([self._model.ops.host(each)[0] for each in logits])

    def attention(self, batch: Batch, pages: Sequence[Pages], layers: Sequence[int] | None = None) -> Float32:
        """Returns how much each head of the one wanted row, the batch's last, attends to each token of its
        branch, in these layers or in all: layers with attention are counted, no others. [layers, heads,
        length]

        The op set computes the queries and keys; the weights are computed from them here, in NumPy.
        """
        model, config, span = self._model, self._model.config, batch.spans[0]
        queries = self._queries(batch, pages)
        mixers = config.attention_layers
        places = [
            number for number, layer in enumerate(config.layers) if isinstance(layer.mixer, AttentionConfig)
        ]
        chosen = range(len(mixers)) if layers is None else layers
        heads = {mixers[index].heads for index in chosen}
        if len(heads) > 1:
            raise ModelError(
                f"the layers have {min(heads)} to {max(heads)} heads; attention is shown of layers that have"
                " equally many: ask for one layer"
            )
        weights = np.zeros((len(chosen), *heads, span.length), np.float32)
        for at, index in enumerate(chosen):
            mixer, place = mixers[index], model.places[places[index]]
            q = model.ops.host(queries[index]).reshape(1, mixer.heads, mixer.head_dim)
            # Behind its window a layer's pages may have been given away.
            first = 0 if mixer.window is None else max(0, span.length - mixer.window)
            keys = pages[place[0]].read_keys(place, span)[first:]
            visible = np.ones((1, len(keys)), bool)
            attention = model.layers[places[index]][0].parts[0]
            sinks = attention.sink_scores if isinstance(attention, Attention) else None
            weights_of_heads = attention_weights(q, keys, visible, mixer.scale, mixer.softcap, sinks)
            weights[at, :, first:] = weights_of_heads.reshape(mixer.heads, -1)
        return weights

    def experts(self, batch: Batch, pages: Sequence[Pages]) -> dict[int, Float32]:
        """Returns the routes of the one wanted row (`ops/routing.py`) by the layers that have experts:
        [2 * chosen]"""
        routes = self._routes(batch, pages)
        return {
            layer: self._model.ops.host(route)[0]
            for layer, route in zip(self.routed_layers, routes, strict=True)
        }

    @property
    def routed_layers(self) -> list[int]:
        """The layers that have experts."""
        layers = self._model.config.layers
        return [index for index, each in enumerate(layers) if isinstance(each.feed_forward, ExpertsConfig)]

    def embeddings(self, ids: Sequence[int]) -> Float32:
        """Returns the vectors of these tokens, as the op set keeps them. [tokens, dim]

        May be called from any thread.
        """
        # Nothing is written to a page, but a batch has room for the keys of all of its tokens.
        no_pages = np.zeros((len(self._one_page), pages_for(len(ids))), np.int32)
        batch = Batch.of([(no_pages, 0, ids)], [len(ids)])
        return np.array(self._model.ops.host(self._embeddings(batch, self._one_page)))

    @cached_property
    def _layers(self) -> Forward[list[Array]]:
        model = self._model

        def compute(batch: Batch, pages: Sequence[Pages]) -> list[Array]:
            stream = model.residuals(batch, pages, model.ops)
            return [model.logits(model.final_hidden(x, batch)) for x in stream]

        return AdaptedForward(model, compute)

    @cached_property
    def _queries(self) -> Forward[list[Array]]:
        def compute(batch: Batch, pages: Sequence[Pages]) -> list[Array]:
            watching = Watching(self._model.ops, batch)
            for _ in self._model.residuals(batch, pages, watching):
                pass
            return watching.queries

        return AdaptedForward(self._model, compute)

    @cached_property
    def _routes(self) -> Forward[list[Array]]:
        def compute(batch: Batch, pages: Sequence[Pages]) -> list[Array]:
            watching = Watching(self._model.ops, batch)
            for _ in self._model.residuals(batch, pages, watching):
                pass
            return watching.routes

        return AdaptedForward(self._model, compute)

    @cached_property
    def _embeddings(self) -> Forward[Array]:
        ops, table = self._model.ops, self._model.token_embedding

        def compute(batch: Batch, pages: Sequence[Pages]) -> Array:
            return ops.take(ops.embed(table, batch.tokens), batch.wanted)

        return ops.program(compute)

    @cached_property
    def _one_page(self) -> list[Pages]:
        return self._model.ops.cache(self._model.cache_specs, self._model.page_bytes)


class Watching:
    """An op set that also collects the queries and the routes of the wanted rows, layer by layer."""

    def __init__(self, ops: Ops, batch: Batch) -> None:
        self._ops, self._wanted = ops, batch.wanted
        self.queries: list[Array] = []
        self.routes: list[Array] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def route(self, x: Array, router: Router, routing: Routing) -> Array:
        routes = self._ops.route(x, router, routing)
        if routing is not ALWAYS:
            self.routes.append(self._ops.take(routes, self._wanted))
        return routes

    def attention(self, q: Array, k: Array, v: Array, batch: Batch, *rest: Any) -> Array:
        self.queries.append(self._ops.take(q, batch.wanted))
        return self._ops.attention(q, k, v, batch, *rest)

    def attend(self, q: Array, kv_heads: int, batch: Batch, *rest: Any) -> Array:
        self.queries.append(self._ops.take(q, batch.wanted))
        return self._ops.attend(q, kv_heads, batch, *rest)
