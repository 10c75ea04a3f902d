"""The torch op set. Its methods record the forward pass; the recorded program runs on the device for any batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import torch
import triton

from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import CacheSpec, Pages, Place, make_pools
from glassloop.ops.protocol import Activation, Forward
from glassloop.ops.quant import BF16, F16, Float32
from glassloop.ops.rows import RowOps
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.kernels.pointwise import ACTIVATIONS
from glassloop.ops.torch.pages import TorchPages, page_bytes
from glassloop.ops.torch.program import Program
from glassloop.ops.torch.recorder import Angles, Lazy, Normed, Product, Recorder, Value

# Triton's interpreter cannot multiply in bfloat16; in float32, tests can compare closely.
HALF = torch.float32 if os.environ.get("TRITON_INTERPRET") == "1" else torch.bfloat16


class TorchMatrix:
    """A weight matrix. It is copied to the device when a program that uses it is made; matrices that one product
    reads lie beside each other there."""

    def __init__(self, tensor: Tensor, device: torch.device) -> None:
        self.out, self.into = tensor.shape
        self._tensor: Tensor | None = tensor
        self._device = device
        self._values: torch.Tensor | None = None

    @classmethod
    def of(cls, values: torch.Tensor) -> TorchMatrix:
        """Returns a matrix whose values are on the device already."""
        matrix = cls.__new__(cls)
        matrix.out, matrix.into = values.shape
        matrix._tensor, matrix._device, matrix._values = None, values.device, values
        return matrix

    @property
    def values(self) -> torch.Tensor:
        if self._values is None:
            assert self._tensor is not None
            self._values = _stored(self._tensor).to(self._device).to(HALF)
            self._tensor.release()
            self._tensor = None
        return self._values

    @staticmethod
    def beside(matrices: Sequence[TorchMatrix]) -> torch.Tensor:
        """Returns the matrices below each other, as one. Each becomes a part of it."""
        if len(matrices) == 1:
            return matrices[0].values
        first = matrices[0].values
        whole_rows = sum(each.out for each in matrices)
        at = first.storage_offset() // first.shape[1]
        storage = first.untyped_storage().data_ptr()
        for each in matrices:
            values = each.values
            if (
                values.untyped_storage().data_ptr() != storage
                or values.storage_offset() != at * values.shape[1]
            ):
                break
            at += each.out
        else:
            return first.as_strided((whole_rows, first.shape[1]), first.stride(), first.storage_offset())
        whole = torch.cat([each.values for each in matrices])
        at = 0
        for each in matrices:
            each._values = whole[at : at + each.out]
            at += each.out
        return whole


def _stored(tensor: Tensor) -> torch.Tensor:
    """Returns the values of a tensor on the host, in the precision in which they are stored."""
    if tensor.format is BF16 or tensor.format is F16:
        kind = torch.bfloat16 if tensor.format is BF16 else torch.float16
        return torch.from_numpy(np.array(tensor.data)).view(kind).reshape(tensor.shape)
    return torch.from_numpy(np.require(tensor.float32(), requirements="W"))


class _Placeholder:
    """The batch that a forward pass is recorded with: of its fields only the names."""

    tokens, positions, wanted = "tokens", "positions", "wanted"


class TorchOps:
    name = "torch"

    def __init__(self) -> None:
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self.device = torch.device("cpu" if interpreted else "cuda")
        architecture = "interpreter" if interpreted else "sm_{}{}".format(*torch.cuda.get_device_capability())
        self.description = f"torch/{architecture}/triton-{triton.__version__}"
        self.rows = _row_ops()
        self._recorder = Recorder()
        self._one_recording = Lock()

    def host(self, array: Float32) -> Float32:
        return array

    def program(self, compute: Forward, sizes: Sequence[int] = ()) -> Forward:
        with self._one_recording:
            self._recorder = recorder = Recorder()
            made = compute(_Placeholder(), ())  # type: ignore[arg-type]
            several = isinstance(made, list)
            results = [recorder.value(each) for each in (made if several else [made])]
            program = Program(recorder, results, self.device, HALF)
        return program if several else program.only

    def page_bytes(self, spec: CacheSpec) -> int:
        return page_bytes(spec)

    def cache(self, specs: Sequence[CacheSpec], memory: int) -> list[Pages]:
        return make_pools(
            specs, memory, page_bytes, lambda spec, count: TorchPages(spec, count, self.device, HALF)
        )

    def matrix(self, tensor: Tensor) -> TorchMatrix:
        return TorchMatrix(tensor, self.device)

    def vector(self, tensor: Tensor) -> torch.Tensor:
        return torch.from_numpy(np.array(tensor.float32())).to(self.device)

    def embed(self, table: TorchMatrix, ids: Any) -> Value:
        return self._recorder.call("embed", table.into, wanted=False, table=table, ids=ids)

    def linear(self, x: Lazy, weight: TorchMatrix, bias: torch.Tensor | None) -> Product:
        assert not isinstance(x, Product)
        return Product(x, weight, bias)

    def head(self, x: Lazy, weight: TorchMatrix) -> Value:
        return self._recorder.value(self.linear(x, weight, None))

    def rms_norm(self, x: Lazy, weight: torch.Tensor, eps: float) -> Lazy:
        return self._norm(x, weight, None, eps)

    def layer_norm(self, x: Lazy, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Lazy:
        return self._norm(x, weight, bias, eps)

    def _norm(self, x: Lazy, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> Lazy:
        if isinstance(x, Product) and x.heads:
            return replace(x, norm=Normed(Value(-1, 0, False, False), weight, bias, eps))
        return Normed(self._recorder.value(x), weight, bias, eps)

    def split_heads(self, x: Product, heads: int) -> Product:
        return replace(x, heads=heads)

    def angles(self, positions: Any, frequencies: Float32, factor: float) -> Angles:
        return Angles(np.asarray(frequencies, np.float32), factor)

    def rotate(self, x: Product, angles: Angles) -> Product:
        return replace(x, angles=angles)

    def attention(
        self,
        q: Product,
        k: Product,
        v: Product,
        batch: Batch,
        pages: Any,
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Value:
        record = self._recorder
        made = record.product([q, k, v])
        width = q.matrix.out
        about = {"group": place[0], "layer": place[1]}
        queries = record.call("keep", width, made, half=True, query=q, key=k, **about)
        limits = {"scale": scale, "window": window or 0, "softcap": softcap or 0.0}
        return record.call(
            "attend", width, queries, half=True, heads=q.heads, kv_heads=k.heads, **about, **limits
        )

    def activate(self, x: Lazy, kind: Activation) -> Value:
        return self._elementwise("activate", x, half=True, activation=ACTIVATIONS.index(kind))

    def gate(self, gate: Lazy, up: Lazy, kind: Activation) -> Value:
        activation = ACTIVATIONS.index(kind)
        if isinstance(gate, Product) and isinstance(up, Product) and gate.x is up.x:
            return self._recorder.gated(gate, up, activation)
        value = self._recorder.value
        return self._elementwise("gate", value(gate), value(up), half=True, activation=activation)

    def add(self, x: Lazy, y: Lazy) -> Value:
        if isinstance(x, Value) and isinstance(y, Product) and not y.heads:
            return self._recorder.product([y], residual=x)
        return self._elementwise("add", x, self._recorder.value(y))

    def scale(self, x: Lazy, factor: float) -> Value:
        return self._elementwise("scale", x, factor=factor)

    def softcap(self, x: Lazy, cap: float) -> Value:
        return self._elementwise("softcap", x, factor=cap)

    def take(self, x: Lazy, rows: Any) -> Value:
        value = self._recorder.value(x)
        return self._recorder.call("take", value.width, value, wanted=True)

    def _elementwise(self, kind: str, x: Lazy, *others: Value, half: bool = False, **settings: Any) -> Value:
        value = self._recorder.value(x)
        return self._recorder.call(kind, value.width, value, *others, half=half, **settings)


def _row_ops() -> RowOps:
    """Returns functions over rows of logits on the host: the native ones if they were built."""
    from glassloop.ops.native import library

    if library.available():
        from glassloop.ops.native import rows

        return rows
    from glassloop.ops import rows as reference_rows

    return reference_rows
