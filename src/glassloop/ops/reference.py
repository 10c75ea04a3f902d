"""The reference op set: NumPy in float32. It is the specification of every operation, the oracle of the
tests, and the op set of machines without a compiler. Written to be read; a matrix is kept as plain float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassloop.ops import rows as reference_rows
from glassloop.ops.batch import PAGE, Batch, BatchError, Span, check_page, check_spans, pages_for
from glassloop.ops.expert_choice import choose_experts
from glassloop.ops.kv_cache import CacheSpec, Pages, Place, make_pools
from glassloop.ops.memory import FreeMemory, free_host_memory, host_memory
from glassloop.ops.protocol import Activation, Forward, LowRank, Output, QueryGrowth
from glassloop.ops.quant import Float32, Format
from glassloop.ops.reference_states import conv
from glassloop.ops.routing import Expert, Gating, Router, Routing
from glassloop.ops.rows import RowOps
from glassloop.ops.state_cache import HostStates, StateSpec, check_slots, lines_of
from glassloop.ops.tensor import Tensor

# Queries that attend at a time; this bounds the score matrix of a long prompt.
_QUERIES_AT_ONCE = 256
_ROWS_OF_EXPERT = 8  # rows that an expert computes at a time


class ReferencePages:
    """Keys and values: [layers, pages, tokens of a page, kv heads, head dim]."""

    lines = 1

    def __init__(self, spec: CacheSpec, count: int) -> None:
        self.count = count
        shape = (spec.layers, count, PAGE, spec.kv_heads, spec.head_dim)
        # `zeros` takes memory from the system when a page is first written; `zeros_like` would write all of
        # it.
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.page_bytes = ReferenceOps.page_bytes(spec)

    def copy(self, source: int, target: int) -> None:
        check_page(source, self.count)
        check_page(target, self.count)
        self.keys[:, target], self.values[:, target] = self.keys[:, source], self.values[:, source]

    def write(self, place: Place, span: Span, keys: Float32, values: Float32) -> None:
        group, layer = place
        positions = np.arange(span.first, span.length)
        pages, slots = span.pages[group, positions // PAGE], positions % PAGE
        self.keys[layer, pages, slots] = keys
        self.values[layer, pages, slots] = values

    def read(self, place: Place, span: Span) -> tuple[Float32, Float32]:
        """Returns keys and values up to the end of the span: each [length, kv heads, head dim]"""
        group, layer = place
        pages = span.pages[group, : pages_for(span.length)]
        shape = (-1, *self.keys.shape[3:])
        keys, values = self.keys[layer, pages].reshape(shape), self.values[layer, pages].reshape(shape)
        return keys[: span.length], values[: span.length]

    def read_keys(self, place: Place, span: Span) -> Float32:
        return self.read(place, span)[0]


class ReferenceOps:
    name = description = "reference"
    step_rows, rows_beside, most_running = 512, 128, 64
    lacks: frozenset[str] = frozenset()
    rows: RowOps = reference_rows

    def host(self, array: Float32) -> Float32:
        return array

    def seconds(self, results: object) -> None:
        return None

    def program(
        self, compute: Forward[Output], sizes: Sequence[int] = (), adapted: bool = False
    ) -> Forward[Output]:
        def checked(batch: Batch, pages: Sequence[Pages]) -> Any:
            _check(batch, pages)
            return compute(batch, pages)

        return checked

    def cache_memory(self) -> int:
        return free_host_memory() // 4

    def free_memory(self) -> FreeMemory:
        return host_memory()

    def matrix_bytes(self, shape: tuple[int, ...], format: Format) -> int:
        return 4 * math.prod(shape)

    @staticmethod
    def page_bytes(spec: CacheSpec) -> int:
        return 2 * 4 * PAGE * spec.layers * spec.kv_heads * spec.head_dim

    def cache(self, specs: Sequence[CacheSpec], memory: int) -> list[Pages]:
        return make_pools(specs, memory, self.page_bytes, ReferencePages)

    def states(self, spec: StateSpec, states: int, rows: int) -> HostStates:
        return HostStates(spec, states, rows)

    def matrix(self, tensor: Tensor) -> Float32:
        values = tensor.float32()
        tensor.release()
        return values

    def vector(self, tensor: Tensor) -> Float32:
        return tensor.float32()

    def low_rank(self, down: Tensor, up: Tensor, scale: float) -> LowRank[Float32]:
        return LowRank(self.matrix(down), self.matrix(up), scale)

    def embed(self, table: Float32, ids: Sequence[int]) -> Float32:
        if min(ids) < 0 or max(ids) >= len(table):
            wrong = next(id for id in ids if not 0 <= id < len(table))
            raise BatchError(f"a row has the number {wrong}; one from 0 to {len(table) - 1} is expected")
        return table[ids]

    def linear(self, x: Float32, weight: Float32, bias: Float32 | None) -> Float32:
        y: Float32 = x @ weight.T
        return y if bias is None else y + bias

    def head(self, x: Float32, weight: Float32) -> Float32:
        return self.linear(x, weight, None)

    def adapt(
        self, y: Float32, x: Float32, adapters: Sequence[int], parts: Sequence[LowRank[Float32] | None]
    ) -> Float32:
        out = y.copy()
        for number in set(adapters):
            part = parts[number]
            if part is not None:
                rows = np.array(adapters) == number
                out[rows] += (x[rows] @ part.down.T) @ part.up.T * np.float32(part.scale)
        return out

    def rms_norm(self, x: Float32, weight: Float32, eps: float) -> Float32:
        mean_square: Float32 = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
        out: Float32 = x / np.sqrt(mean_square + np.float32(eps)) * weight
        return out

    def layer_norm(self, x: Float32, weight: Float32, bias: Float32, eps: float) -> Float32:
        centred: Float32 = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
        variance: Float32 = np.mean(np.square(centred), axis=-1, keepdims=True, dtype=np.float32)
        out: Float32 = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
        return out

    def split_heads(self, x: Float32, heads: int) -> Float32:
        return x.reshape(len(x), heads, -1)

    def angles(
        self, positions: Sequence[int], frequencies: Float32, factor: float, growth: QueryGrowth | None = None
    ) -> tuple[Float32, Float32]:
        at = np.array(positions)[:, None, None]
        turns = at.astype(np.float32) * frequencies  # [rows, 1, half]
        factors = np.float32(factor)
        if growth is not None:
            factors = factors * (1 + growth.rate * np.log1p(at // growth.step)).astype(np.float32)
        return np.cos(turns) * factors, np.sin(turns) * factors

    def rotate(self, x: Float32, angles: tuple[Float32, Float32]) -> Float32:
        cos, sin = angles
        half = cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def attention(
        self,
        q: Float32,
        k: Float32,
        v: Float32,
        batch: Batch,
        pages: Sequence[Any],
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Float32 | None = None,
    ) -> Float32:
        for span in batch.spans:
            rows = slice(span.start, span.stop)
            pages[place[0]].write(place, span, k[rows], v[rows])
        return self.attend(q, k.shape[1], batch, pages, place, scale, window, softcap, sinks)

    def attend(
        self,
        q: Float32,
        kv_heads: int,
        batch: Batch,
        pages: Sequence[Any],
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Float32 | None = None,
    ) -> Float32:
        out = np.empty_like(q)  # [rows, heads, head dim]
        for span in batch.spans:
            keys, values = pages[place[0]].read(place, span)
            for start in range(span.start, span.stop, _QUERIES_AT_ONCE):
                rows = slice(start, min(start + _QUERIES_AT_ONCE, span.stop))
                visible = _visible(batch, span, rows, window)
                out[rows] = _attend(q[rows], keys, values, visible, scale, softcap, sinks)
        return out.reshape(len(q), -1)

    def conv(
        self,
        x: Float32,
        kernel: Float32,
        bias: Float32 | None,
        kind: Activation,
        batch: Batch,
        pages: Sequence[Any],
        place: Place,
    ) -> Float32:
        return self.activate(conv(x, kernel, bias, batch, pages[place[0]], place), kind)

    def activate(self, x: Float32, kind: Activation) -> Float32:
        out: Float32
        match kind:
            case "none":
                out = x
            case "relu":
                out = np.maximum(x, np.float32(0))
            case "relu2":
                out = np.square(np.maximum(x, np.float32(0)))
            case "sigmoid":
                with np.errstate(over="ignore"):
                    out = np.reciprocal(1 + np.exp(-x))
            case "silu":
                # exp overflows to infinity for very negative x, and x / infinity is 0, the right limit.
                with np.errstate(over="ignore"):
                    out = x / (1 + np.exp(-x))
            case "gelu_tanh":
                inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
                out = np.float32(0.5) * x * (1 + np.tanh(inner))
            case "gelu":
                out = np.float32(0.5) * x * (1 + _erf(x * np.float32(math.sqrt(0.5))))
        return out

    def gate(self, gate: Float32, up: Float32, kind: Activation) -> Float32:
        return self.activate(gate, kind) * up

    def route(self, x: Float32, router: Router, routing: Routing) -> Float32:
        logits = self.linear(x, router.weight, router.bias)
        return choose_experts(logits, routing, router.choice_bias, router.factors)

    def experts(
        self, x: Float32, routes: Float32, experts: Sequence[Expert], gating: Gating, weigh_input: bool
    ) -> Float32:
        out = np.zeros_like(x)
        chosen = routes.shape[1] // 2
        numbers, weights = routes[:, :chosen].astype(np.intp), routes[:, chosen:, None]
        for number in np.unique(numbers):
            rows, places = np.nonzero(numbers == number)
            weight = weights[rows, places]
            inputs = x[rows] * weight if weigh_input else x[rows]
            # Always so many rows, for BLAS may add up in another order if there are more or fewer.
            for start in range(0, len(rows), _ROWS_OF_EXPERT):
                part = slice(start, start + _ROWS_OF_EXPERT)
                count = len(rows[part])
                given = np.zeros((_ROWS_OF_EXPERT, x.shape[1]), np.float32)
                given[:count] = inputs[part]
                outputs = self._expert(given, experts[number], gating)[:count]
                out[rows[part]] += outputs if weigh_input else outputs * weight[part]
        return out

    def _expert(self, x: Float32, expert: Expert, gating: Gating) -> Float32:
        gate = self.linear(x, expert.gate, expert.gate_bias)
        up = self.linear(x, expert.up, expert.up_bias)
        return self.linear(self._gated(gate, up, gating), expert.down, expert.down_bias)

    def _gated(self, gate: Float32, up: Float32, gating: Gating) -> Float32:
        kind, limit, slope, shift = gating
        if limit is not None:
            gate = np.minimum(gate, np.float32(limit))
            up = np.clip(up, np.float32(-limit), np.float32(limit))
        if slope != 1.0:
            with np.errstate(over="ignore"):
                active: Float32 = gate / (1 + np.exp(-(np.float32(slope) * gate)))
        else:
            active = self.activate(gate, kind)
        return active * (up + np.float32(shift) if shift else up)

    def add(self, x: Float32, y: Float32) -> Float32:
        return x + y

    def scale(self, x: Float32, factor: float) -> Float32:
        return x * np.float32(factor)

    def softcap(self, x: Float32, cap: float) -> Float32:
        out: Float32 = np.tanh(x / np.float32(cap)) * np.float32(cap)
        return out

    def take(self, x: Float32, rows: Sequence[int]) -> Float32:
        return x[rows]


def _check(batch: Batch, pages: Sequence[Pages]) -> None:
    """Raises if a number of the batch is out of range. NumPy would count negative ones from the end."""
    check_spans(batch, lines_of(pages))
    if batch.wanted and (min(batch.wanted) < 0 or max(batch.wanted) >= len(batch.tokens)):
        raise BatchError(f"rows {batch.wanted} are wanted; there are {len(batch.tokens)}")
    for number, span in enumerate(batch.spans):
        positions = batch.positions[span.start : span.stop]
        if not batch.reach and list(positions) != list(range(span.first, span.length)):
            raise BatchError(f"span {number} has positions that are not its own")
        used = span.pages[:, : pages_for(span.length)]
        for group, (pool, table) in enumerate(zip(pages, used, strict=False)):
            if isinstance(pool, HostStates):
                check_slots(batch, span, group, pool.count, pool.row_count)
                continue
            check_page(int(table.min()), pool.count)
            check_page(int(table.max()), pool.count)


def _visible(batch: Batch, span: Span, rows: slice, window: int | None) -> np.ndarray:
    """Returns the mask of attention: which slots of its branch each row sees. [rows, length]"""
    key = np.arange(span.length)
    own_slots = span.first + np.arange(rows.start, rows.stop)[:, None] - span.start
    reach = np.array(batch.reach[rows])[:, None] if batch.reach else own_slots + 1
    return key < reach if window is None else (key < reach) & (key > own_slots - window)


def _attend(
    q: Float32,
    keys: Float32,
    values: Float32,
    visible: np.ndarray,
    scale: float,
    softcap: float | None,
    sinks: Float32 | None,
) -> Float32:
    """Returns the values weighted by attention. [rows, heads, head dim]"""
    weights = attention_weights(q, keys, visible, scale, softcap, sinks)
    mixed: Float32 = weights @ values.transpose(1, 0, 2)[:, None]  # [kv heads, group, rows, head dim]
    return mixed.transpose(2, 0, 1, 3).reshape(q.shape)


def attention_weights(
    q: Float32,
    keys: Float32,
    visible: np.ndarray,
    scale: float,
    softcap: float | None,
    sinks: Float32 | None = None,
) -> Float32:
    """Returns the weight of each key for each head of each row. Several query heads share a key-value head.
    With sinks, the weights of a row add up to less than 1. [kv heads, group, rows, length]"""
    rows, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.reshape(rows, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)
    scores = grouped @ keys.transpose(1, 2, 0)[:, None] * np.float32(scale)  # [kv heads, group, rows, length]
    if softcap is not None:
        scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    scores = np.where(visible, scores, np.float32(-np.inf))
    most = scores.max(axis=-1, keepdims=True)
    if sinks is None:
        weights: Float32 = np.exp(scores - most)
        total = weights.sum(axis=-1, keepdims=True)
    else:
        sink = sinks.reshape(kv_heads, -1, 1, 1)
        most = np.maximum(most, sink)
        weights = np.exp(scores - most)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - most)
    weights /= total
    return weights


def _erf(x: Float32) -> Float32:
    """Computes erf value by value, since NumPy has none; only old models need it, for plain GELU."""
    flat = x.reshape(-1)
    return np.fromiter(map(math.erf, flat.tolist()), np.float32, len(flat)).reshape(x.shape)
