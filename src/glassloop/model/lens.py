"""The forward pass once more, with its inside handed out: what each layer would have said, at which keys each
head looked, and the table of embeddings.

These are programs of their own over the one forward pass of `transformer.py`, on whichever op set the model
runs, and made when they are first asked for: the program that generates text knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch, pages_for
from glassloop.ops.kv_cache import Pages
from glassloop.ops.protocol import Array, Forward, Ops
from glassloop.ops.quant import Float32
from glassloop.ops.reference import attention_weights


class Lens:
    def __init__(self, transformer: Transformer) -> None:
        self._model = transformer

    def layers(self, batch: Batch, pages: Sequence[Pages]) -> Float32:
        """What the language head says of the stream before the first layer and after each one, of the one
        wanted row. The last of them are the model's logits. [layers + 1, vocabulary]"""
        said = self._layers(batch, pages)
        return np.stack([np.asarray(logits[0]) for logits in said])

    def attention(self, batch: Batch, pages: Sequence[Pages], layers: Sequence[int] | None = None) -> Float32:
        """How much each head of the one wanted row, the batch's last, looks at each token of its branch, in
        these layers or in all. [layers, heads, length]

        The queries are the op set's own, and the keys are read from its pages, with the bits that it saw;
        the weights are computed from them here, in NumPy, whichever the op set.
        """
        model, config, span = self._model, self._model.config, batch.spans[0]
        queries = self._queries(batch, pages)
        shown = range(len(config.layers)) if layers is None else layers
        weights = np.zeros((len(shown), config.heads, span.length), np.float32)
        for at, index in enumerate(shown):
            layer, place = config.layers[index], model.places[index]
            q = np.asarray(queries[index]).reshape(1, config.heads, config.head_dim)
            # Behind its window a layer's pages may have been given away.
            first = 0 if layer.window is None else max(0, span.length - layer.window)
            keys = pages[place[0]].read_keys(place, span)[first:]
            seen = np.ones((1, len(keys)), bool)
            found = attention_weights(q, keys, seen, config.attention_scale, config.attention_softcap)
            weights[at, :, first:] = found.reshape(config.heads, -1)
        return weights

    def embeddings(self, ids: Sequence[int]) -> Float32:
        """The vectors of these tokens, as the op set keeps them. [tokens, dim]

        It may be called from any thread.
        """
        # Nothing is written to a page, but a batch has room for the keys of all of its tokens.
        no_pages = np.zeros((len(self._one_page), pages_for(len(ids))), np.int32)
        batch = Batch.of([(no_pages, 0, ids)], [len(ids)])
        return np.array(self._embeddings(batch, self._one_page))

    @cached_property
    def _layers(self) -> Forward:
        model = self._model

        def compute(batch: Batch, pages: Sequence[Pages]) -> Array:
            return [model.say(model.finish(x, batch)) for x in model.stream(batch, pages)]

        return model.ops.program(compute)

    @cached_property
    def _queries(self) -> Forward:
        def compute(batch: Batch, pages: Sequence[Pages]) -> Array:
            watching = Watching(self._model.ops)
            model = copy(self._model)
            model.ops = watching
            for _ in model.stream(batch, pages):
                pass
            return watching.queries

        return self._model.ops.program(compute)

    @cached_property
    def _embeddings(self) -> Forward:
        ops, table = self._model.ops, self._model.token_embedding

        def compute(batch: Batch, pages: Sequence[Pages]) -> Array:
            return ops.take(ops.embed(table, batch.tokens), batch.wanted)

        return ops.program(compute)

    @cached_property
    def _one_page(self) -> list[Pages]:
        return self._model.ops.cache(self._model.cache_specs, self._model.page_bytes)


class Watching:
    """Another op set, which also notes the queries of the wanted rows, layer by layer."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.queries: list[Array] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def attention(self, q: Array, k: Array, v: Array, batch: Batch, *rest: Any) -> Array:
        self.queries.append(self._ops.take(q, batch.wanted))
        return self._ops.attention(q, k, v, batch, *rest)
