"""The native op set. Its methods record the forward pass; the recorded program runs in C, for any batch, on
all threads.

Weights are packed for the kernels when a model is loaded, and stay quantized. The forward pass calls these
methods once, at that time, with a placeholder for the batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, get_args
from weakref import WeakSet

import numpy as np

from glassloop.errors import ModelError
from glassloop.ops.batch import Batch, Int32
from glassloop.ops.kv_cache import CacheSpec, Pages, Place, make_pools
from glassloop.ops.memory import FreeMemory, free_host_memory, host_memory
from glassloop.ops.native import library as lib
from glassloop.ops.native import rows as native_rows
from glassloop.ops.native.packer import NativeMatrix, Packer, packed_bytes
from glassloop.ops.native.pages import NativePages, page_bytes
from glassloop.ops.native.program import Chain, NativeProgram, OpTime
from glassloop.ops.native.recorder import NativeRecorder, NativeValue
from glassloop.ops.protocol import Activation, Forward, LowRank, QueryGrowth
from glassloop.ops.quant import F32, Float32, Format
from glassloop.ops.routing import Expert, Gating, Router, Routing, Scores
from glassloop.ops.rows import RowOps
from glassloop.ops.state_cache import HostStates, StateSpec
from glassloop.ops.tensor import Tensor

MOST_KERNEL = 16  # tokens of a convolution (states.h)


class _Placeholder:
    """The batch that a forward pass is recorded with: of its fields only the numbers in `enum gl_ids`."""

    tokens, positions = (lib.IDS.index(name) for name in ("tokens", "positions"))
    wanted = None
    adapters: int | None = None  # without adapters


class _AdaptedPlaceholder(_Placeholder):
    adapters = lib.IDS.index("adapters")


class NativeOps:
    name = "native"
    step_rows, rows_beside, most_running = 512, 128, 64
    lacks: frozenset[str] = frozenset()
    # The arithmetic that docs/ops.md defines; the same bits on every instruction set. A change of any bit of
    # a result is a new version.
    description = "native arithmetic 2"
    rows: RowOps = native_rows

    def __init__(self) -> None:
        self.threads: int = lib.library().gl_set_threads(lib.wanted_threads())
        self.instructions: str = lib.library().gl_name().decode()
        self._packer = Packer()
        self._recorder = NativeRecorder()
        self._one_recording = Lock()
        self._kept: list[Any] = []  # the arrays that recorded ops point to
        self._programs: WeakSet[NativeProgram] = WeakSet()

    def host(self, array: Float32) -> Float32:
        return array

    def seconds(self, results: object) -> None:
        return None

    def program(
        self, compute: Forward[Any], sizes: Sequence[int] = (), adapted: bool = False
    ) -> Forward[Any]:
        with self._one_recording:
            self._packer.finish()
            self._recorder, self._kept = NativeRecorder(), []
            result = compute(_AdaptedPlaceholder() if adapted else _Placeholder(), ())  # type: ignore[arg-type]
            several = isinstance(result, list)
            program = NativeProgram(self._recorder, result if several else [result], self.threads, self._kept)
            self._programs.add(program)
        return program if several else program.only

    def chain(self, compute: Forward[Any], ids: Int32) -> Chain:
        """Returns a chain of drafts: `compute` returns the logits of the tokens `ids` and the next state,
        from the state before, which it takes from `given`."""
        program = self.program(compute)
        assert isinstance(program, NativeProgram)
        return Chain(program, ids)

    @contextmanager
    def profile(self) -> Iterator[list[OpTime]]:
        """Measures all runs of all programs while the context is open, and fills the list when it closes: an
        entry for each op of each program that ran. Outside of it nothing is measured."""
        programs, found = list(self._programs), list[OpTime]()
        for program in programs:
            program.start_profile()
        try:
            yield found
        finally:
            for program in programs:
                found += program.end_profile()

    def cache_memory(self) -> int:
        return free_host_memory() // 4

    def free_memory(self) -> FreeMemory:
        return host_memory()

    def matrix_bytes(self, shape: tuple[int, ...], format: Format) -> int:
        return packed_bytes(shape, format)

    def page_bytes(self, spec: CacheSpec) -> int:
        return page_bytes(spec)

    def cache(self, specs: Sequence[CacheSpec], memory: int) -> list[Pages]:
        return make_pools(specs, memory, page_bytes, NativePages)

    def states(self, spec: StateSpec, states: int, rows: int) -> HostStates:
        return HostStates(spec, states, rows)

    def matrix(self, tensor: Tensor) -> NativeMatrix:
        with self._one_recording:
            return NativeMatrix(tensor, self._packer)

    def vector(self, tensor: Tensor) -> Float32:
        return np.ascontiguousarray(tensor.float32())

    def low_rank(self, down: Tensor, up: Tensor, scale: float) -> LowRank[NativeMatrix]:
        """Returns the part of an adapter for one matrix. Quantized values become float32, which is exact."""
        floats = [each.stored_as(F32) if each.format.take_apart else each for each in (down, up)]
        return LowRank(self.matrix(floats[0]), self.matrix(floats[1]), scale)

    def embed(self, table: NativeMatrix, ids: Any) -> NativeValue:
        self._kept.append(table)
        return self._recorder.call("embed", table.into, i0=ids, f0=1.0, matrix=table.layout)

    def linear(self, x: NativeValue, weight: NativeMatrix, bias: Float32 | None) -> NativeValue:
        return self._linear(x, weight, bias, fine=False)

    def head(self, x: NativeValue, weight: NativeMatrix) -> NativeValue:
        return self._linear(x, weight, None, fine=True)

    def _linear(self, x: NativeValue, weight: NativeMatrix, bias: Float32 | None, fine: bool) -> NativeValue:
        self._kept.append(weight)
        if weight.is_quantized:
            self._recorder.want_quantized(x, x.width // x.heads, fine)
        return self._recorder.call(
            "linear",
            weight.out,
            x,
            reads_quantized=weight.is_quantized,
            i0=fine,
            matrix=weight.layout,
            bias=self._pointer(bias),
        )

    def adapt(
        self, y: NativeValue, x: NativeValue, adapters: Any, parts: Sequence[LowRank[NativeMatrix] | None]
    ) -> NativeValue:
        rank = max([part.down.out for part in parts if part is not None], default=0)
        if not rank:
            return y
        table = (lib.Adapter * len(parts))(
            *[
                lib.Adapter()
                if part is None
                else lib.Adapter(
                    ctypes.addressof(part.down.layout), ctypes.addressof(part.up.layout), part.scale
                )
                for part in parts
            ]
        )
        self._kept += [table, parts]
        at = ctypes.addressof(table)
        # A vector of any instruction set has at most 16 lanes.
        width = -(-rank // 16) * 16
        narrow = self._recorder.call("down", width, x, adapters=at)
        made = self._recorder.call("up", y.width, narrow, y, i0=width, adapters=at)
        return _with_heads(made, y.heads)

    def rms_norm(self, x: NativeValue, weight: Float32, eps: float) -> NativeValue:
        return self._norm(x, weight, None, eps)

    def layer_norm(self, x: NativeValue, weight: Float32, bias: Float32, eps: float) -> NativeValue:
        return self._norm(x, weight, bias, eps)

    def _norm(self, x: NativeValue, weight: Float32, bias: Float32 | None, eps: float) -> NativeValue:
        made = self._recorder.call(
            "norm",
            x.width,
            x,
            i0=x.heads,
            i1=bias is not None,
            f0=eps,
            weight=self._pointer(weight),
            bias=self._pointer(bias),
        )
        return _with_heads(made, x.heads)

    def split_heads(self, x: NativeValue, heads: int) -> NativeValue:
        return _with_heads(x, heads)

    def angles(
        self, positions: Any, frequencies: Float32, factor: float, growth: QueryGrowth | None = None
    ) -> NativeValue:
        half = len(frequencies)
        rate, step = growth or (0.0, 0)
        speeds = self._pointer(np.ascontiguousarray(frequencies))
        return self._recorder.call("angles", 2 * half, i0=half, i1=step, f0=factor, f1=rate, weight=speeds)

    def rotate(self, x: NativeValue, angles: NativeValue) -> NativeValue:
        made = self._recorder.call("rotate", x.width, x, angles, i0=x.heads, i1=angles.width // 2)
        return _with_heads(made, x.heads)

    def attention(
        self,
        q: NativeValue,
        k: NativeValue,
        v: NativeValue,
        batch: Batch,
        pages: Any,
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Float32 | None = None,
    ) -> NativeValue:
        self.keep(k, v, place)
        return self.attend(q, k.heads, batch, pages, place, scale, window, softcap, sinks)

    def given(self, width: int) -> NativeValue:
        """Returns the input of a program, one row for each of the batch: [rows, width]."""
        return self._recorder.given(width)

    def keep(self, k: NativeValue, v: NativeValue, place: Place) -> None:
        """Writes keys and values to their pages: the first half of `attention`."""
        group, layer = place
        self._recorder.effect("keep", k, v, i0=layer, group=group)

    def attend(
        self,
        q: NativeValue,
        kv_heads: int,
        batch: Batch,
        pages: Any,
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Float32 | None = None,
    ) -> NativeValue:
        group, layer = place
        made = self._recorder.call(
            "attend",
            q.width,
            q,
            i0=layer,
            i1=q.heads,
            i2=window or 0,
            f0=scale,
            f1=softcap or 0.0,
            group=group,
            weight=self._pointer(sinks),
        )
        return _with_heads(made, kv_heads)

    def conv(
        self,
        x: NativeValue,
        kernel: Float32,
        bias: Float32 | None,
        kind: Activation,
        batch: Batch,
        pages: Any,
        place: Place,
    ) -> NativeValue:
        if kind not in ("none", "silu") or len(kernel) > MOST_KERNEL:
            raise ModelError(
                f"a convolution over {len(kernel)} tokens with the activation {kind}; at most {MOST_KERNEL}"
                " tokens and silu or none are expected"
            )
        self._recorder.is_recurrent = True
        group, layer = place
        return self._recorder.call(
            "conv",
            x.width,
            x,
            i0=layer,
            i1=len(kernel),
            i2=lib.ACTIVATIONS.index(kind),
            group=group,
            weight=self._pointer(kernel),
            bias=self._pointer(bias),
        )

    def activate(self, x: NativeValue, kind: Activation) -> NativeValue:
        return self._recorder.call("activate", x.width, x, i0=lib.ACTIVATIONS.index(kind))

    def gate(self, gate: NativeValue, up: NativeValue, kind: Activation) -> NativeValue:
        return self._recorder.call("activate", gate.width, gate, up, i0=lib.ACTIVATIONS.index(kind))

    def route(self, x: NativeValue, router: Router, routing: Routing) -> NativeValue:
        logits = self.linear(x, router.weight, router.bias)
        how = lib.Routing(
            routing.experts,
            routing.chosen,
            get_args(Scores).index(routing.scores),
            routing.normalized,
            routing.groups,
            routing.chosen_groups,
            routing.epsilon,
            routing.factor,
            2 * routing.closeness,
            self._pointer(router.choice_bias),
            self._pointer(router.factors),
        )
        self._kept.append(how)
        return self._recorder.call("route", 2 * routing.chosen, logits, routing=ctypes.addressof(how))

    def experts(
        self,
        x: NativeValue,
        routes: NativeValue,
        experts: Sequence[Expert],
        gating: Gating,
        weigh_input: bool,
    ) -> NativeValue:
        recorder, chosen, width = self._recorder, routes.width // 2, x.width
        inner = [each for expert in experts for each in (expert.gate, expert.up)]
        outer = [expert.down for expert in experts]
        ffn = outer[0].into
        about = lib.Experts(
            *(self._matrices(experts, name) for name in ("gate", "up", "down")),
            *(self._biases(experts, name) for name in ("gate_bias", "up_bias", "down_bias")),
            count=len(experts),
            chosen=chosen,
            ffn=ffn,
            weigh_input=weigh_input,
            activation=lib.ACTIVATIONS.index(gating.activation),
            limit=gating.limit or 0.0,
            slope=gating.slope,
            shift=gating.shift,
        )
        self._kept.append(about)
        at = ctypes.addressof(about)
        # Five words for each pair, and two: see `pair_plan` of experts.h.
        plan = recorder.call("group", 5 * chosen + 2, routes, i0=chosen, i1=len(experts))
        if weigh_input:
            x = recorder.call("weigh", chosen * width, x, routes, i0=chosen)
        quantized = self._quantized_for(x, inner, width)
        h = recorder.call("experts_inner", chosen * ffn, x, plan, reads_quantized=quantized, experts=at)
        quantized = self._quantized_for(h, outer, ffn)
        return recorder.call("experts_outer", width, h, plan, reads_quantized=quantized, experts=at)

    def _quantized_for(self, x: NativeValue, matrices: Sequence[NativeMatrix], columns: int) -> bool:
        """Notes that x is read quantized if any of the matrices is. Returns whether all are."""
        if any(matrix.is_quantized for matrix in matrices):
            self._recorder.want_quantized(x, columns, fine=False)
        return all(matrix.is_quantized for matrix in matrices)

    def _matrices(self, experts: Sequence[Expert], name: str) -> int:
        """Returns the address of the descriptions of one matrix of each expert, one after another."""
        matrices = [getattr(expert, name) for expert in experts]
        table = (lib.Matrix * len(matrices))(*(matrix.layout for matrix in matrices))
        self._kept += [table, matrices]
        return ctypes.addressof(table)

    def _biases(self, experts: Sequence[Expert], name: str) -> int | None:
        if getattr(experts[0], name) is None:
            return None
        return self._pointer(np.concatenate([getattr(expert, name) for expert in experts]))

    def add(self, x: NativeValue, y: NativeValue) -> NativeValue:
        return self._recorder.call("add", x.width, x, y)

    def scale(self, x: NativeValue, factor: float) -> NativeValue:
        return self._recorder.call("scale", x.width, x, f0=factor)

    def softcap(self, x: NativeValue, cap: float) -> NativeValue:
        return self._recorder.call("softcap", x.width, x, f0=cap)

    def take(self, x: NativeValue, rows: Any) -> NativeValue:
        return self._recorder.call("take", x.width, x, wanted=True)

    def _pointer(self, array: Float32 | None) -> int | None:
        if array is None:
            return None
        self._kept.append(array)
        return array.ctypes.data


def _with_heads(value: NativeValue, heads: int) -> NativeValue:
    return NativeValue(value.id, value.width, value.wanted, heads)
