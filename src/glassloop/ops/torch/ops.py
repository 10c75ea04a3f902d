"""The torch op set. Its methods record the forward pass; the recorded program runs on the device, for any
batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch

from glassloop.errors import ModelError
from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import CacheSpec, Pages, Place, make_pools
from glassloop.ops.memory import FreeMemory
from glassloop.ops.protocol import Activation, Forward, LowRank, QueryGrowth
from glassloop.ops.quant import Float32, Format
from glassloop.ops.routing import Expert, Gating, Router, Routing
from glassloop.ops.rows import RowOps
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import Device, default_device
from glassloop.ops.torch.device_rows import DeviceRows
from glassloop.ops.torch.kernels.pointwise import ACTIVATIONS
from glassloop.ops.torch.matrix import TorchMatrix
from glassloop.ops.torch.pages import TorchPages, page_bytes
from glassloop.ops.torch.program import SIZES, CudaProgram
from glassloop.ops.torch.recorder import (
    Angles,
    Lazy,
    Normed,
    Product,
    RecordedNorm,
    SplitHeads,
    TorchRecorder,
    TorchValue,
)
from glassloop.ops.torch.selftest import exact
from glassloop.ops.without_states import RECURRENT_OPS, WithoutStates


class _Placeholder:
    """The batch that a forward pass is recorded with: of its fields only the names."""

    tokens, positions, wanted = "tokens", "positions", "wanted"
    adapters: str | None = None  # without adapters


class _AdaptedPlaceholder(_Placeholder):
    adapters = "adapters"


class TorchOps(WithoutStates):
    """The op set on a GPU; implements `ops/protocol.py:Ops`."""

    name = "torch"
    step_rows = 2048
    rows_beside = 2048  # fewer save little: a step of 1,164 rows takes 0.7 of the time
    most_running = SIZES[-1]
    lacks: frozenset[str] = frozenset({"route", "experts"}) | RECURRENT_OPS

    def __init__(self, device: Device | None = None) -> None:
        self.device = device or default_device()
        self._description = f"torch/{self.device.description}" + ("" if exact(self.device) else "/inexact")
        self._keeps_packed = False  # whether a program has weights that stay packed
        self.rows = _row_ops(self.device)
        self._recorder = TorchRecorder()
        self._one_recording = Lock()

    @property
    def description(self) -> str:
        """The name with what bits may depend on; products with packed weights are other sums."""
        return self._description + ("/packed" if self._keeps_packed else "")

    def host(self, array: Float32 | DeviceRows) -> Float32:
        return array.host() if isinstance(array, DeviceRows) else array

    def seconds(self, results: object) -> float | None:
        return results.seconds() if isinstance(results, DeviceRows) else None

    def program(
        self, compute: Forward[Any], sizes: Sequence[int] = (), adapted: bool = False
    ) -> Forward[Any]:
        with self._one_recording, self.device.current(), self.device.memory_errors("the weights"):
            self._recorder = recorder = TorchRecorder()
            batch = _AdaptedPlaceholder() if adapted else _Placeholder()
            result = compute(batch, ())  # type: ignore[arg-type]
            several = isinstance(result, list)
            results = [recorder.value(each) for each in (result if several else [result])]
            program = CudaProgram(recorder, results, self.device)
            self._keeps_packed |= program.is_packed
        return program if several else program.only

    def page_bytes(self, spec: CacheSpec) -> int:
        return page_bytes(spec, self.device)

    def cache_memory(self) -> int:
        """Returns two thirds of the free memory; the rest is for buffers of programs and a draft model."""
        return self.device.free_memory() * 2 // 3

    def free_memory(self) -> FreeMemory:
        return FreeMemory(self.device.free_memory(), "" if self.device.interpreted else "on the GPU")

    def matrix_bytes(self, shape: tuple[int, ...], format: Format) -> int:
        """Returns what a matrix takes in half precision, or packed, in which form it stays if need be."""
        count = math.prod(shape)
        return min(count * int(self.device.half.itemsize), format.size_of(count))

    def cache(self, specs: Sequence[CacheSpec], memory: int) -> list[Pages]:
        with self.device.memory_errors("keys and values"):
            return make_pools(specs, memory, self.page_bytes, partial(TorchPages, device=self.device))

    def matrix(self, tensor: Tensor) -> TorchMatrix:
        return TorchMatrix(tensor, self.device)

    def vector(self, tensor: Tensor) -> torch.Tensor:
        return torch.from_numpy(np.array(tensor.float32())).to(self.device.torch)

    def low_rank(self, down: Tensor, up: Tensor, scale: float) -> LowRank[Tensor]:
        """Returns the matrices as they are: a program places those of all adapters side by side."""
        return LowRank(down, up, scale)

    def embed(self, table: TorchMatrix, ids: Any) -> TorchValue:
        return self._recorder.call("embed", table.into, wanted=False, table=table, ids=ids)

    def linear(self, x: Lazy, weight: TorchMatrix, bias: torch.Tensor | None) -> Product:
        if isinstance(x, Product | SplitHeads):
            x = self._recorder.value(x)
        return Product(x, weight, bias)

    def head(self, x: Lazy, weight: TorchMatrix) -> TorchValue:
        return self._recorder.value(self.linear(x, weight, None))

    def adapt(self, y: Product, x: Lazy, adapters: Any, parts: Sequence[LowRank[Tensor] | None]) -> Product:
        return replace(y, parts=parts)

    def rms_norm(self, x: Lazy, weight: torch.Tensor, eps: float) -> Lazy:
        return self._norm(x, weight, None, eps)

    def layer_norm(self, x: Lazy, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Lazy:
        return self._norm(x, weight, bias, eps)

    def _norm(self, x: Lazy, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> Lazy:
        norm = RecordedNorm(weight, bias, eps)
        if not isinstance(x, Product | SplitHeads) or not x.heads:
            return Normed(self._recorder.value(x), norm)
        if x.norm is not None or x.angles is not None:  # a norm comes before the rotation, and once
            x = SplitHeads(self._recorder.value(x), x.width, x.heads)
        return replace(x, norm=norm)

    def split_heads(self, x: Lazy, heads: int) -> Product | SplitHeads:
        if isinstance(x, Product):
            return replace(x, heads=heads)
        assert not isinstance(x, SplitHeads)
        return SplitHeads(x, x.width, heads)

    def angles(
        self, positions: Any, frequencies: Float32, factor: float, growth: QueryGrowth | None = None
    ) -> Angles:
        return Angles(np.asarray(frequencies, np.float32), factor, growth)

    def rotate(self, x: Product | SplitHeads, angles: Angles) -> Product | SplitHeads:
        return replace(x, angles=angles)

    def attention(
        self,
        q: Product | SplitHeads,
        k: Product | SplitHeads,
        v: Product | SplitHeads,
        batch: Batch,
        pages: Any,
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> TorchValue:
        group, layer = place
        recorder = self._recorder
        products = _one_product(q, k, v)
        if products is not None:
            joined = recorder.product(products)
        else:  # norms, rotations and products by themselves; what is left for the kernels is to keep
            each = [recorder.value(x, half=True) for x in (q, k, v)]
            joined = recorder.call("join", sum(x.width for x in each), *each, half=True)
            q, k = SplitHeads(joined, q.width, q.heads), SplitHeads(joined, k.width, k.heads)
        queries = recorder.call("keep", q.width, joined, half=True, query=q, key=k, group=group, layer=layer)
        return self._attend(q, k, k.heads, [queries, joined], place, scale, window, softcap, sinks)

    def attend(
        self,
        q: Product | SplitHeads,
        kv_heads: int,
        batch: Batch,
        pages: Any,
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> TorchValue:
        queries = self._recorder.half(q)
        split = SplitHeads(queries, queries.width, q.heads)
        return self._attend(split, None, kv_heads, [queries, queries], place, scale, window, softcap, sinks)

    def _attend(
        self,
        q: Product | SplitHeads,
        k: Product | SplitHeads | None,
        kv_heads: int,
        inputs: Sequence[TorchValue],
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> TorchValue:
        """Records the attention of `inputs`, the queries and that of which they are a part. `k` says how the
        kernel may rotate and write keys itself; None: they are in the pages."""
        width = inputs[0].width
        return self._recorder.call(
            "attend",
            width,
            *inputs,
            half=True,
            query=q,
            key=k,
            heads=q.heads,
            kv_heads=kv_heads,
            head_dim=width // q.heads,
            group=place[0],
            layer=place[1],
            scale=scale,
            window=window or 0,
            softcap=softcap or 0.0,
            sinks=sinks,
        )

    def activate(self, x: Lazy, kind: Activation) -> TorchValue:
        return self._elementwise("activate", x, half=True, activation=ACTIVATIONS.index(kind))

    def gate(self, gate: Lazy, up: Lazy, kind: Activation) -> TorchValue:
        activation = ACTIVATIONS.index(kind)
        if isinstance(gate, Product) and isinstance(up, Product) and gate.x is up.x:
            return self._recorder.gated(gate, up, activation)
        value = self._recorder.value
        return self._elementwise("gate", value(gate), value(up), half=True, activation=activation)

    def route(self, x: Lazy, router: Router, routing: Routing) -> Lazy:
        raise ModelError("the torch op set has no experts")

    def experts(
        self, x: Lazy, routes: Lazy, experts: Sequence[Expert], gating: Gating, weigh_input: bool
    ) -> Lazy:
        raise ModelError("the torch op set has no experts")

    def add(self, x: Lazy, y: Lazy) -> TorchValue:
        if isinstance(x, TorchValue) and isinstance(y, Product) and not y.heads:
            return self._recorder.product([y], residual=x)
        return self._elementwise("add", x, self._recorder.value(y))

    def scale(self, x: Lazy, factor: float) -> TorchValue:
        return self._elementwise("scale", x, factor=factor)

    def softcap(self, x: Lazy, cap: float) -> TorchValue:
        return self._elementwise("softcap", x, factor=cap)

    def take(self, x: Lazy, rows: Any) -> TorchValue:
        value = self._recorder.value(x)
        return self._recorder.call("take", value.width, value, wanted=True)

    def _elementwise(
        self, kind: str, x: Lazy, *others: TorchValue, half: bool = False, **settings: Any
    ) -> TorchValue:
        value = self._recorder.value(x)
        return self._recorder.call(kind, value.width, value, *others, half=half, **settings)


def _one_product(*heads: Product | SplitHeads) -> list[Product] | None:
    """Returns queries, keys and values if they can be computed as one product, whose kernel of attention then
    normalizes and rotates them; else None."""
    products = [each for each in heads if isinstance(each, Product)]
    if len(products) < len(heads):
        return None
    q, k, v = products
    same = q.x is k.x is v.x and q.angles is k.angles and (q.norm is None) == (k.norm is None)
    plain = v.norm is None and v.angles is None
    return products if same and plain else None


def _row_ops(device: Device) -> RowOps:
    """Returns functions over rows of logits: on the host, in NumPy, if the native op set was not built."""
    from glassloop.ops.native import library

    if library.available():
        from glassloop.ops.torch.chooser import DeviceRowOps

        return DeviceRowOps(device)
    from glassloop.ops import rows as reference_rows

    return reference_rows
