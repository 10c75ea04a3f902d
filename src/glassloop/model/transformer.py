"""The forward pass: tokens in, logits out. There is only this one, for every family and every op set.

Read it top to bottom: embed, position, then for each layer a mixer and a feed-forward with their norms and
residuals, and at the end the language head. What a family does differently is in its ModelConfig; a new kind
of mixer or feed-forward is a class here with a `forward`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakMethod, ref

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.config import (
    AttentionConfig,
    DenseConfig,
    FeedForward,
    LayerConfig,
    Mixer,
    ModelConfig,
    NormConfig,
)
from glassloop.model.drafter import Drafter, DrafterFile
from glassloop.model.needed_ops import check_ops
from glassloop.model.rope import Rope
from glassloop.ops.batch import Batch, BatchError
from glassloop.ops.drafting import DraftChain, DraftOps
from glassloop.ops.exact import exp, log_of, sin_cos
from glassloop.ops.kv_cache import CacheSpec, Pages, Place, shapes_of
from glassloop.ops.protocol import Array, Forward, LowRank, Matrix, Ops, check_has
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor

if TYPE_CHECKING:
    from glassloop.model.adapter import Adapter


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
            return ops.layer_norm(x, self.weight, self.bias, self.config.eps)
        return ops.rms_norm(x, self.weight, self.config.eps)


class ForwardStep(NamedTuple):
    """What all layers of one forward pass share."""

    ops: Ops
    batch: Batch
    pages: Sequence[Pages]
    angles: Mapping[Rope, Array]
    adapted: Mapping[str, Sequence[LowRank | None]]  # by linear layer: what each adapter adds to it


class Attention(NamedTuple):
    """Each token looks at those before it in its branch."""

    config: AttentionConfig
    place: Place  # where its keys and values are in the pages
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: Norm | None
    k_norm: Norm | None

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        ops, config = step.ops, self.config
        q = ops.split_heads(self.q.forward(x, step), config.heads)  # [rows, heads, head dim]
        k = ops.split_heads(self.k.forward(x, step), config.kv_heads)  # [rows, kv heads, head dim]
        v = ops.split_heads(self.v.forward(x, step), config.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.forward(q, ops), self.k_norm.forward(k, ops)
        if config.rope is not None:
            turn = step.angles[config.rope]
            q, k = ops.rotate(q, turn), ops.rotate(k, turn)
        mixed = ops.attention(
            q, k, v, step.batch, step.pages, self.place, config.scale, config.window, config.softcap
        )
        return self.o.forward(mixed, step)


class Dense(NamedTuple):
    """Each token goes through the same matrices on its own."""

    config: DenseConfig
    gate: Linear | None
    up: Linear
    down: Linear

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """[rows, dim] to [rows, dim]."""
        ops, activation = step.ops, self.config.activation
        up = self.up.forward(x, step)  # [rows, ffn dim]
        if self.gate is None:
            h = ops.activate(up, activation)
        else:
            h = ops.gate(self.gate.forward(x, step), up, activation)
        return self.down.forward(h, step)


class Sublayer(NamedTuple):
    """A mixer or a feed-forward with its norms: of its input, of its output, and of the sum."""

    kind: Attention | Dense
    norm: Norm | None
    output_norm: Norm | None
    sum_norm: Norm | None

    def forward(self, x: Array, step: ForwardStep) -> Array:
        """Returns the residual stream with what this sublayer adds to it. [rows, dim]"""
        ops = step.ops
        h = x if self.norm is None else self.norm.forward(x, ops)
        h = self.kind.forward(h, step)
        if self.output_norm is not None:
            h = self.output_norm.forward(h, ops)
        x = ops.add(x, h)
        return x if self.sum_norm is None else self.sum_norm.forward(x, ops)


class AdapterTable(NamedTuple):
    """The adapters that are loaded, by the numbers that rows have; 0 is none."""

    loaded: tuple[Adapter | None, ...] = (None,)
    parts: Mapping[str, Sequence[LowRank | None]] = {}  # by linear layer, then by number
    embedding: Matrix = None  # [numbers, dim], added to the embedding of a row

    @staticmethod
    def of(loaded: tuple[Adapter | None, ...], before: AdapterTable, dim: int, ops: Ops) -> AdapterTable:
        """Returns these adapters in the form in which an op set reads them. `before` has some of them."""
        parts: dict[str, list[LowRank | None]] = {}
        # Adding -0.0 leaves every number as it is; adding 0.0 would turn -0.0 into 0.0.
        embedding = np.full((len(loaded), dim), -0.0, np.float32)
        for number, adapter in enumerate(loaded):
            if adapter is None:
                continue
            known = number < len(before.loaded) and before.loaded[number] is adapter
            for name, (down, up) in adapter.matrices.items():
                made = before.parts[name][number] if known else ops.low_rank(down, up, adapter.scale)
                parts.setdefault(name, [None] * len(loaded))[number] = made
            if adapter.embedding is not None:
                embedding[number] = adapter.embedding
        return AdapterTable(loaded, parts, ops.matrix(Tensor.of("adapter_embedding.weight", embedding)))


class AdaptedForward:
    """A computation over the forward pass, prepared for the op set twice: without adapters and, when the
    first batch with adapters comes, with all that are loaded then."""

    def __init__(self, model: Transformer, compute: Forward) -> None:
        # A model holds the programs of its own methods. These must not hold it too, or only the garbage
        # collector could free it.
        own = getattr(compute, "__self__", None) is model
        self._model = ref(model)
        self._compute: Callable[[], Forward | None] = WeakMethod(compute) if own else lambda: compute
        self.plain = model.ops.program(compute)
        self._adapted = self.plain
        self._made_with = model.adapters

    def __call__(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        if not any(batch.adapters):
            return self.plain(batch, pages)
        model, compute = self._model(), self._compute()
        assert model is not None and compute is not None  # the caller holds the model
        adapters = model.adapters
        if adapters.embedding is None:
            raise BatchError(f"a row has the adapter {max(batch.adapters)}; none is loaded")
        if self._adapted is self.plain or self._made_with is not adapters:
            self._adapted = model.ops.program(compute, adapted=True)
            self._made_with = adapters
        return self._adapted(batch, pages)


def cache_groups(caches: Sequence[CacheSpec]) -> tuple[list[CacheSpec], list[Place]]:
    """Divides layers, given by what each keeps, into groups with the same window, each with a page table of
    its own, and returns their specs and the place of each layer.

    All groups have the same number of layers, so all pages have one size and come from one pool: a page that
    a window gives back can be used for any layers.
    """
    layers = math.gcd(*Counter(caches).values())
    groups: dict[tuple[CacheSpec, int], int] = {}
    places: list[Place] = []
    for index, cache in enumerate(caches):
        number = caches[:index].count(cache)
        group = groups.setdefault((cache, number // layers), len(groups))
        places.append((group, number % layers))
    return [replace(cache, layers=layers) for cache, _ in groups], places


def page_bytes_of(specs: Sequence[CacheSpec], ops: Ops) -> int:
    """Returns the bytes of the keys and values of one page of tokens, in all groups of layers."""
    return len(specs) * sum(map(ops.page_bytes, set(shapes_of(specs))))


class Transformer:
    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        ops: Ops,
        drafter: DrafterFile | None = None,
    ) -> None:
        """With a drafter, which an op set with chains can have, the pages also keep what its chains attend
        to."""
        check_ops(config, ops)
        self.config = config
        self.ops = ops
        load = _Weights(weights, ops)
        self.drafter = None if drafter is None else Drafter(drafter.config, config, drafter.weights, ops)
        self.token_embedding = load.matrix("token_embedding.weight")
        self.position_embedding = self._position_table(weights)
        caches = [layer.mixer.cache for layer in config.layers]
        if self.drafter is not None:
            caches.append(self.drafter.mixer.cache)
        self.cache_specs, self.places = cache_groups(caches)
        self.layers = [
            load.layer(f"layers.{index}.", layer, self.places[index])
            for index, layer in enumerate(config.layers)
        ]
        self.final_norm = load.norm("final_norm", config.final_norm)
        self.head = self.token_embedding if config.tied else load.matrix("head.weight")
        ropes = dict.fromkeys(layer.mixer.rope for layer in config.layers)
        self.frequencies = {rope: rope.frequencies() for rope in ropes if rope is not None}
        self.adapters = AdapterTable()
        self._one_change = Lock()  # of the adapters
        self._program = AdaptedForward(self, self._logits if drafter is None else self._logits_and_states)
        self.chain: DraftChain | None = None
        if drafter is not None and isinstance(ops, DraftOps):
            self.chain = ops.chain(self._draft, drafter.tokens)

    def forward(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        """Returns the logits of the wanted rows, [wanted, vocabulary], and writes the keys and values of all
        rows to their pages."""
        return self._program(batch, pages) if self.drafter is None else self._program(batch, pages)[0]

    def forward_with_states(self, batch: Batch, pages: Sequence[Pages]) -> tuple[Array, Array]:
        """Returns what `forward` does, and the states of the wanted rows, [wanted, dim], that chains of
        drafts begin with. The model has a drafter."""
        logits, states = self._program(batch, pages)
        return logits, states

    def hidden(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        """Returns what the language head would read of the wanted rows, [wanted, dim]."""
        return self._hidden_program(batch, pages)

    @cached_property
    def _hidden_program(self) -> Forward:
        """Made when it is first used: most models only compute logits."""
        return AdaptedForward(self, self._hidden)

    def load_adapter(self, adapter: Adapter) -> int:
        """Loads an adapter. Returns the number by which rows of a batch refer to it: the first that none
        has."""
        check_has(self.ops, ["adapt"], f"adapter {adapter.name}")
        shapes = self.config.shapes()
        for name, (down, up) in adapter.matrices.items():
            out, into = shapes.get(f"{name}.weight", (0, 0))
            if name not in self._adaptable or down.shape != (adapter.rank, into):
                raise ModelError(f"adapter {adapter.name}: {name}.down {down.shape} does not fit the model")
            if up.shape != (out, adapter.rank):
                raise ModelError(f"adapter {adapter.name}: {name}.up {up.shape} does not fit the model")
        if adapter.embedding is not None and adapter.embedding.shape != (self.config.dim,):
            raise ModelError(f"adapter {adapter.name}: the embedding does not fit the model")
        with self._one_change:
            loaded = [*self.adapters.loaded, None]
            number = loaded.index(None, 1)  # 0 is no adapter
            loaded[number] = adapter
            self._set_adapters(tuple(loaded if loaded[-1] is not None else loaded[:-1]))
        return number

    def unload_adapter(self, number: int) -> None:
        """Releases an adapter. No batch may have its number any more."""
        with self._one_change:
            loaded = self.adapters.loaded
            self._set_adapters((*loaded[:number], None, *loaded[number + 1 :]))

    def _set_adapters(self, loaded: tuple[Adapter | None, ...]) -> None:
        self.adapters = AdapterTable.of(loaded, self.adapters, self.config.dim, self.ops)

    @cached_property
    def _adaptable(self) -> set[str]:
        """The names of the linear layers, to which an adapter can add something."""
        kinds = [sublayer.kind for layer in self.layers for sublayer in layer]
        return {field.name for kind in kinds for field in kind if isinstance(field, Linear)}

    @property
    def page_bytes(self) -> int:
        """The bytes of the keys and values of one page of tokens, in all layers."""
        return page_bytes_of(self.cache_specs, self.ops)

    def _logits(self, batch: Batch, pages: Sequence[Pages]) -> Array:
        return self.logits(self._hidden(batch, pages))

    def _logits_and_states(self, batch: Batch, pages: Sequence[Pages]) -> list[Array]:
        """The forward pass with the drafter's part: all rows get a state, and its keys and values are
        kept."""
        drafter, ops = self.drafter, self.ops
        assert drafter is not None and isinstance(ops, DraftOps)
        features: dict[int, Array] = {}
        for number, x in enumerate(self.residuals(batch, pages, ops)):
            if number in drafter.config.features:
                features[number] = x
        states = drafter.state([features[number] for number in drafter.config.features])
        ops.keep(*drafter.keys_and_values(states, self._draft_angles(batch)), self.places[-1])
        return [self.logits(self.final_hidden(x, batch)), ops.take(states, batch.wanted)]

    def _draft(self, batch: Batch, pages: Sequence[Pages]) -> list[Array]:
        """A step of a chain: the logits of the drafted tokens, and the next states."""
        drafter, ops = self.drafter, self.ops
        assert drafter is not None and isinstance(ops, DraftOps)
        mixer = drafter.mixer

        def attend(q: Array) -> Array:
            return ops.attend(q, mixer.kv_heads, self.places[-1], mixer.scale, None, mixer.softcap)

        state = drafter.step(
            ops.given(self.config.dim), self._embedded(batch, ops), self._draft_angles(batch), attend
        )
        return [ops.take(drafter.logits(state), batch.wanted), ops.take(state, batch.wanted)]

    def _draft_angles(self, batch: Batch) -> Array | None:
        assert self.drafter is not None
        rope = self.drafter.mixer.rope
        if rope is None:
            return None
        return self.ops.angles(batch.positions, self.frequencies[rope], rope.sharpness)

    def _embedded(self, batch: Batch, ops: Ops) -> Array:
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
        x = self._embedded(batch, ops)  # [rows, dim]
        adapters = self.adapters if batch.adapters else AdapterTable()
        if batch.adapters:
            x = ops.add(x, ops.embed(adapters.embedding, batch.adapters))

        # Position: added here by older models, turned into queries and keys by newer ones.
        if self.position_embedding is not None:
            x = ops.add(x, ops.embed(self.position_embedding, batch.positions))
        angles = {
            rope: ops.angles(batch.positions, frequencies, rope.sharpness)
            for rope, frequencies in self.frequencies.items()
        }
        step = ForwardStep(ops, batch, pages, angles, adapters.parts)

        yield x

        # Layers: each adds what it found to the stream of residuals.
        for mixer, feed_forward in self.layers:
            x = mixer.forward(x, step)
            x = feed_forward.forward(x, step)
            yield x

    def final_hidden(self, x: Array, batch: Batch) -> Array:
        """Returns what the language head reads of the residual stream. [wanted, dim]"""
        x = self.ops.take(x, batch.wanted)
        return x if self.final_norm is None else self.final_norm.forward(x, self.ops)

    def logits(self, hidden: Array) -> Array:
        """The language head: a score for each entry of the vocabulary. [wanted, vocabulary]"""
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


class _Weights:
    """Hands weights to the op set. The loader has checked that all that the config asks for are there."""

    def __init__(self, tensors: Mapping[str, Tensor], ops: Ops) -> None:
        self._tensors = tensors
        self._ops = ops

    def matrix(self, name: str) -> Matrix:
        return self._ops.matrix(self._tensors[name])

    def vector(self, name: str) -> Array | None:
        return self._ops.vector(self._tensors[name]) if name in self._tensors else None

    def linear(self, name: str) -> Linear:
        return Linear(name, self.matrix(f"{name}.weight"), self.vector(f"{name}.bias"))

    def norm(self, name: str, config: NormConfig | None) -> Norm | None:
        if config is None:
            return None
        return Norm(config, self.vector(f"{name}.weight"), self.vector(f"{name}.bias"))

    def layer(self, at: str, config: LayerConfig, place: Place) -> tuple[Sublayer, Sublayer]:
        """Returns the mixer and the feed-forward of a layer, each with its norms."""
        mixer = self._mixer(at, config.mixer, place)
        feed_forward = self._feed_forward(at, config.feed_forward)
        return self._sublayer(f"{at}attn", config, mixer), self._sublayer(f"{at}ffn", config, feed_forward)

    def _mixer(self, at: str, config: Mixer, place: Place) -> Attention:
        match config:
            case AttentionConfig():
                q, k, v, o = (self.linear(at + name) for name in "qkvo")
                q_norm, k_norm = (self.norm(f"{at}{name}_norm", config.qk_norm) for name in "qk")
                return Attention(config, place, q, k, v, o, q_norm, k_norm)

    def _feed_forward(self, at: str, config: FeedForward) -> Dense:
        match config:
            case DenseConfig():
                gate = self.linear(f"{at}gate") if config.gated else None
                return Dense(config, gate, self.linear(f"{at}up"), self.linear(f"{at}down"))

    def _sublayer(self, at: str, config: LayerConfig, kind: Attention | Dense) -> Sublayer:
        norm = self.norm(f"{at}_norm", config.norm)
        if config.norm_place == "post":
            return Sublayer(kind, None, None, norm)
        sandwich = config.norm_place == "sandwich"
        return Sublayer(kind, norm, self.norm(f"{at}_post_norm", config.norm) if sandwich else None, None)


def sinusoids(count: int, dim: int) -> Float32:
    """Sines in the first half of the dimensions, cosines in the second, from fast to slow. [count, dim]"""
    half = dim // 2
    slowness = log_of(10_000) / max(half - 1, 1)
    frequencies = exp(np.arange(half, dtype=np.float64) * -slowness).astype(np.float32)
    turns = np.arange(count, dtype=np.float32)[:, None] * frequencies
    table = np.zeros((count, dim), np.float32)
    table[:, :half], table[:, half : 2 * half] = sin_cos(turns.astype(np.float64))
    return table
