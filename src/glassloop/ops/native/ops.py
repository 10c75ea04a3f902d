"""The native op set. Its methods record the forward pass; the recorded program runs in C, for any batch, on
all threads.

Weights are packed for the kernels when a model is loaded, and stay quantized. The forward pass calls these
methods once, at that time, with a placeholder for the batch.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from struct import error as StructError
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.batch import PAGE, Batch, BatchError, Int32, Span, check_page, check_spans, pages_for
from glassloop.ops.drafting import ChainRequest, Drawn
from glassloop.ops.kv_cache import CacheSpec, Pages, Place, make_pools
from glassloop.ops.memory import free_host_memory
from glassloop.ops.native import library as lib
from glassloop.ops.native import rows as native_rows
from glassloop.ops.native.packer import CACHE_LINE, NativeMatrix, Packer
from glassloop.ops.native.recorder import Recorder, Room, Value
from glassloop.ops.protocol import Activation, Forward, LowRank
from glassloop.ops.quant import F32, Float32
from glassloop.ops.rows import RowOps
from glassloop.ops.tensor import Tensor


class NativePages:
    """Keys and values in float16; native.h says how a page is laid out."""

    def __init__(self, spec: CacheSpec, count: int) -> None:
        self.count = count
        padded, heads = _padded(spec.head_dim), spec.layers * spec.kv_heads
        # `zeros` takes memory from the system only when a page is first written.
        self.keys = _aligned(np.zeros, count * heads * spec.head_dim * PAGE, np.uint16).reshape(count, -1)
        self.values = _aligned(np.zeros, count * heads * PAGE * padded, np.uint16).reshape(count, -1)
        self.page_bytes = NativeOps.page_bytes(spec)
        self.layout = lib.Cache(
            self.keys.ctypes.data,
            self.values.ctypes.data,
            spec.layers,
            spec.kv_heads,
            spec.head_dim,
            padded,
            count,
        )
        self.packed = bytes(self.layout)

    def copy(self, source: int, target: int) -> None:
        check_page(source, self.count)
        check_page(target, self.count)
        self.keys[target], self.values[target] = self.keys[source], self.values[source]

    def read_keys(self, place: Place, span: Span) -> Float32:
        group, layer = place
        pages = span.pages[group, : pages_for(span.length)]
        check_page(int(pages.min()), self.count)
        shape = (-1, self.layout.layers, self.layout.kv_heads, self.layout.head_dim, PAGE)
        keys = self.keys.reshape(shape)[pages, layer]  # [pages, kv heads, head dim, PAGE]
        rows = keys.view(np.float16).transpose(0, 3, 1, 2).reshape(-1, *shape[2:4])
        found: Float32 = rows[: span.length].astype(np.float32)
        return found


def _aligned(make: Callable[..., NDArray[Any]], count: int, kind: type) -> NDArray[Any]:
    """Returns an array that begins at a cache line, so that no vector lies across two of them."""
    size = count * np.dtype(kind).itemsize
    memory = make(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(kind)


def _padded(head_dim: int) -> int:
    return -(-head_dim // 16) * 16


class _Placeholder:
    """The batch that a forward pass is recorded with: of its fields only the numbers in `enum gl_ids`."""

    tokens, positions = (lib.IDS.index(name) for name in ("tokens", "positions"))
    wanted = None
    adapters: int | None = None  # without adapters


class _AdaptedPlaceholder(_Placeholder):
    adapters = lib.IDS.index("adapters")


class OpTime(NamedTuple):
    """What the threads have spent on one op of a program, added up over its runs and over the threads."""

    kind: str
    rows: str  # "all", or "wanted": the op works on the wanted rows only
    matrix: lib.Matrix | None  # type: ignore[valid-type]  # of a linear or an embedding
    is_fine: bool  # a linear whose input is finely quantized
    working: float  # seconds
    waiting: float  # seconds before the op, for the ops that it depends on
    units: int


class NativeOps:
    name = "native"
    step_rows, rows_beside, most_running = 512, 128, 64
    # The arithmetic that docs/ops.md defines; the same bits on every instruction set. A change of any bit of
    # a result is a new version.
    description = "native arithmetic 1"
    rows: RowOps = native_rows

    def __init__(self) -> None:
        self.threads: int = lib.library().gl_set_threads(lib.wanted_threads())
        self.instructions: str = lib.library().gl_name().decode()
        self._packer = Packer()
        self._recorder = Recorder()
        self._one_recording = Lock()
        self._kept: list[Any] = []  # the arrays that recorded ops point to
        self._programs: WeakSet[_Program] = WeakSet()

    def host(self, array: Float32) -> Float32:
        return array

    def seconds(self, results: object) -> None:
        return None

    def program(self, compute: Forward, sizes: Sequence[int] = (), adapted: bool = False) -> Forward:
        with self._one_recording:
            self._packer.finish()
            self._recorder, self._kept = Recorder(), []
            result = compute(_AdaptedPlaceholder() if adapted else _Placeholder(), ())  # type: ignore[arg-type]
            several = isinstance(result, list)
            program = _Program(self._recorder, result if several else [result], self.threads, self._kept)
            self._programs.add(program)
        return program if several else program.only

    def chain(self, compute: Forward, ids: Int32) -> Chain:
        """Returns a chain of drafts: `compute` returns the logits of the tokens `ids` and the next state,
        from the state before, which it takes from `given`."""
        program = self.program(compute)
        assert isinstance(program, _Program)
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

    @staticmethod
    def page_bytes(spec: CacheSpec) -> int:
        return 2 * PAGE * spec.layers * spec.kv_heads * (spec.head_dim + _padded(spec.head_dim))

    def cache(self, specs: Sequence[CacheSpec], memory: int) -> list[Pages]:
        return make_pools(specs, memory, self.page_bytes, NativePages)

    def matrix(self, tensor: Tensor) -> NativeMatrix:
        with self._one_recording:
            return NativeMatrix(tensor, self._packer)

    def vector(self, tensor: Tensor) -> Float32:
        return np.ascontiguousarray(tensor.float32())

    def low_rank(self, down: Tensor, up: Tensor, scale: float) -> LowRank:
        """Returns the part of an adapter for one matrix. Quantized values become float32, which is exact."""
        floats = [each.stored_as(F32) if each.format.take_apart else each for each in (down, up)]
        return LowRank(self.matrix(floats[0]), self.matrix(floats[1]), scale)

    def embed(self, table: NativeMatrix, ids: Any) -> Value:
        self._kept.append(table)
        return self._recorder.call("embed", table.into, i0=ids, f0=1.0, matrix=table.layout)

    def linear(self, x: Value, weight: NativeMatrix, bias: Float32 | None) -> Value:
        return self._linear(x, weight, bias, fine=False)

    def head(self, x: Value, weight: NativeMatrix) -> Value:
        return self._linear(x, weight, None, fine=True)

    def _linear(self, x: Value, weight: NativeMatrix, bias: Float32 | None, fine: bool) -> Value:
        self._kept.append(weight)
        if weight.is_quantized:
            self._recorder.want_quantized(x, x.width // x.heads, fine)
        return self._recorder.call(
            "linear", weight.out, x, i0=fine, matrix=weight.layout, bias=self._pointer(bias)
        )

    def adapt(self, y: Value, x: Value, adapters: Any, parts: Sequence[LowRank | None]) -> Value:
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

    def rms_norm(self, x: Value, weight: Float32, eps: float) -> Value:
        return self._norm(x, weight, None, eps)

    def layer_norm(self, x: Value, weight: Float32, bias: Float32, eps: float) -> Value:
        return self._norm(x, weight, bias, eps)

    def _norm(self, x: Value, weight: Float32, bias: Float32 | None, eps: float) -> Value:
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

    def split_heads(self, x: Value, heads: int) -> Value:
        return _with_heads(x, heads)

    def angles(self, positions: Any, frequencies: Float32, factor: float) -> Value:
        half = len(frequencies)
        return self._recorder.call(
            "angles", 2 * half, i0=half, f0=factor, weight=self._pointer(np.ascontiguousarray(frequencies))
        )

    def rotate(self, x: Value, angles: Value) -> Value:
        made = self._recorder.call("rotate", x.width, x, angles, i0=x.heads, i1=angles.width // 2)
        return _with_heads(made, x.heads)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        batch: Batch,
        pages: Any,
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Value:
        self.keep(k, v, place)
        return self.attend(q, k.heads, place, scale, window, softcap)

    def given(self, width: int) -> Value:
        """Returns the input of a program, one row for each of the batch: [rows, width]."""
        return self._recorder.given(width)

    def keep(self, k: Value, v: Value, place: Place) -> None:
        """Writes keys and values to their pages: the first half of `attention`."""
        group, layer = place
        self._recorder.effect("keep", k, v, i0=layer, group=group)

    def attend(
        self, q: Value, kv_heads: int, place: Place, scale: float, window: int | None, softcap: float | None
    ) -> Value:
        """Lets each row attend to what its branch has in the pages: the second half of `attention`."""
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
        )
        return _with_heads(made, kv_heads)

    def activate(self, x: Value, kind: Activation) -> Value:
        return self._recorder.call("activate", x.width, x, i0=lib.ACTIVATIONS.index(kind))

    def gate(self, gate: Value, up: Value, kind: Activation) -> Value:
        return self._recorder.call("activate", gate.width, gate, up, i0=lib.ACTIVATIONS.index(kind))

    def add(self, x: Value, y: Value) -> Value:
        return self._recorder.call("add", x.width, x, y)

    def scale(self, x: Value, factor: float) -> Value:
        return self._recorder.call("scale", x.width, x, f0=factor)

    def softcap(self, x: Value, cap: float) -> Value:
        return self._recorder.call("softcap", x.width, x, f0=cap)

    def take(self, x: Value, rows: Any) -> Value:
        return self._recorder.call("take", x.width, x, wanted=True)

    def _pointer(self, array: Float32 | None) -> int | None:
        if array is None:
            return None
        self._kept.append(array)
        return array.ctypes.data


class _Program:
    """A recorded forward pass with the memory that it runs in. It runs one batch at a time."""

    def __init__(self, recorder: Recorder, results: list[Value], threads: int, kept: list[Any]) -> None:
        ops, self._rooms, homes, self._inputs = recorder.finish(results)
        # The buffer of each result, and its width.
        self._results = {home: result.width for home, result in zip(homes, results, strict=True)}
        self._kept = kept
        self._threads = threads
        self._widest = max(room.width for room in self._rooms)
        self._progress = np.empty(lib.library().gl_progress_bytes(len(ops)), np.uint8)
        self._buffers = (lib.Buffer * len(self._rooms))()
        self._program = lib.Program((lib.Op * len(ops))(*ops), len(ops), 0, self._buffers)
        self._arrays: dict[int, Any] = {}
        self._memory = bytearray()
        self._capacity = {True: 0, False: 0}  # rows that the buffers of wanted rows, and of all rows, hold
        self._scratch = np.zeros(0, np.float32)
        self._fault = lib.Fault()
        self._one_run = Lock()

    def __call__(self, batch: Batch, pages: Sequence[Any]) -> list[Float32]:
        with self._one_run:
            return self._run(batch, pages)

    def only(self, batch: Batch, pages: Sequence[Any]) -> Float32:
        """Runs a program that has one result, and returns that."""
        return self(batch, pages)[0]

    def _run(self, batch: Batch, pages: Sequence[NativePages]) -> list[Float32]:
        assert not self._inputs, "a program with inputs is run by `Chain`"
        results, call, _ = self._prepare(batch, pages)
        self._check(lib.library().gl_run(*call))
        return results

    def draw(
        self, batch: Batch, pages: Sequence[Any], states: Float32, ids: Int32, chains: bytearray
    ) -> None:
        """Runs a program that has the input `states` and the results logits and states, as a chain of drafts
        (drafting.c)."""
        with self._one_run:
            results, call, tokens = self._prepare(batch, pages)
            _, state_home = self._results
            # A step reads the state before it writes the next one to the same place.
            self._buffers[self._inputs[0]].values = lib.address(states)
            self._buffers[state_home].values = lib.address(states)
            drafted = tokens, lib.address(ids), len(ids), lib.address(results[0]), lib.address(chains)
            self._check(lib.library().gl_draft(*call, *drafted))

    def _prepare(
        self, batch: Batch, pages: Sequence[NativePages]
    ) -> tuple[list[Float32], tuple[Any, ...], int]:
        """Makes room for a batch. Returns the arrays of the results, the arguments of `gl_run`, and the
        address of the batch's tokens."""
        check_spans(batch, len(pages))
        self._make_room(len(batch.tokens), wanted=False)
        self._make_room(len(batch.wanted), wanted=True)
        results = []
        for home, width in self._results.items():
            results.append(np.empty((len(batch.wanted), width), np.float32))
            self._buffers[home].values = lib.address(results[-1])
        longest = max([span.length for span in batch.spans])
        # Up to twelve queries attend together; each is copied and has a score for every key of every page.
        largest = max([group.layout.head_dim for group in pages])
        scratch = max(12 * (largest + pages_for(longest) * PAGE), self._widest)
        if len(self._scratch) < scratch * self._threads:
            self._scratch = np.empty(2 * scratch * self._threads, np.float32)
        caches = b"".join([group.packed for group in pages])
        memory = _packed(batch, caches)
        self._program.caches = lib.address(memory)
        self._program.batch = self._program.caches + len(caches)
        self._program.groups = len(pages)
        self._memory = memory  # until the call that is prepared here is done
        call = (
            ctypes.byref(self._program),
            lib.address(self._progress),
            lib.address(self._scratch),
            scratch,
            ctypes.byref(self._fault),
        )
        tokens = self._program.batch + lib.BATCH.size + lib.SPAN.size * len(batch.spans)
        return results, call, tokens

    def _check(self, done: int) -> None:
        if not done:
            fault = self._fault
            what = [*lib.FAULTS.values()][fault.wrong - 1].format(fault.at, fault.found)
            raise BatchError(f"{what}; a number from 0 to {fault.limit - 1} is expected")

    def start_profile(self) -> None:
        """Makes C measure each op of every run from now on."""
        with self._one_run:
            self._times = np.zeros((self._threads, self._program.count + 1, 3), np.int64)
            self._program.times = self._times.ctypes.data

    def end_profile(self) -> list[OpTime]:
        """Stops measuring and returns what was found, in the order of the ops; the last entry has only the
        time that threads waited for the end of the program. Empty if the program did not run."""
        with self._one_run:
            self._program.times = None
            working, waiting, units = self._times.sum(axis=0).T.tolist()
        if not any(units):
            return []
        ops = [self._program.ops[index] for index in range(self._program.count)]
        return [
            OpTime(
                lib.OP_KINDS[op.kind],
                "wanted" if op.wanted else "all",
                op.matrix.contents if op.matrix else None,
                op.kind == lib.OP_KINDS.index("linear") and bool(op.i0),
                working[index] / 1e9,
                waiting[index] / 1e9,
                units[index],
            )
            for index, op in enumerate(ops)
        ] + [OpTime("end", "all", None, False, 0.0, waiting[-1] / 1e9, 0)]

    def _make_room(self, rows: int, wanted: bool) -> None:
        if rows <= self._capacity[wanted]:
            return
        self._capacity[wanted] = capacity = max(rows, 2 * self._capacity[wanted])
        for index, room in enumerate(self._rooms):
            if room.wanted is not wanted or index in self._results:
                continue
            values = _aligned(np.empty, capacity * room.width, np.float32)
            quantized = _aligned(np.empty, capacity * _quantized_bytes(room), np.uint8)
            self._arrays[index] = values, quantized
            self._buffers[index].values = values.ctypes.data
            self._buffers[index].quantized = quantized.ctypes.data


class Chain:
    """Drafts of several branches at a time: implements `DraftChain`."""

    most = lib.MOST_DRAFTS
    margins = lib.MARGINS

    def __init__(self, program: _Program, ids: Int32) -> None:
        self._program = program
        self._ids = np.ascontiguousarray(ids, np.int32)

    def draw(
        self, batch: Batch, pages: Sequence[Any], states: Float32, requests: Sequence[ChainRequest]
    ) -> list[Drawn]:
        rows = len(batch.tokens)
        if len(batch.wanted) != rows or len(requests) != rows or states.shape[0] != rows:
            raise BatchError(f"there are {len(requests)} chains and {states.shape} states for {rows} rows")
        chains = bytearray(b"".join([_packed_chain(request) for request in requests]))
        self._program.draw(batch, pages, np.array(states, np.float32, order="C"), self._ids, chains)
        return [_drawn(fields) for fields in lib.CHAIN.iter_unpack(chains)]


def _packed_chain(request: ChainRequest) -> bytes:
    key, position, scale, most, chances, keep, following = request
    if len(chances) != lib.MARGINS or not len(keep) == len(following) == most <= lib.MOST_DRAFTS:
        raise BatchError(f"a chain of {most} drafts has {len(chances)} chances and {len(keep)} limits")
    unused = _UNUSED[most:]
    limits = *keep, *unused, *following, *unused
    return lib.CHAIN.pack(key or 0, position, scale, key is not None, most, *chances, *limits, *_NO_RESULTS)


_UNUSED = (0.0,) * lib.MOST_DRAFTS  # limits of a shorter chain
_NO_RESULTS = (0,) * (2 + 2 * lib.MOST_DRAFTS)


def _drawn(fields: tuple[Any, ...]) -> Drawn:
    drawn, kept = fields[-2 - 2 * lib.MOST_DRAFTS : -2 * lib.MOST_DRAFTS]
    tokens, margins = fields[-2 * lib.MOST_DRAFTS : -lib.MOST_DRAFTS], fields[-lib.MOST_DRAFTS :]
    return Drawn(list(tokens[:drawn]), list(margins[:drawn]), kept)


def _packed(batch: Batch, caches: bytes) -> bytearray:
    """Packs as C reads them: the caches, the batch, its spans, then tokens, positions, wanted rows, adapters
    and reach."""
    tokens, positions, spans, wanted, adapters, reach, _ = batch
    try:
        rows = array("i", [*tokens, *positions, *wanted, *adapters, *reach])
        about = [
            lib.SPAN.pack(s.start, s.stop - s.start, s.first, s.pages.shape[1], lib.address(s.pages))
            for s in spans
        ]
    except (OverflowError, TypeError, StructError) as error:
        raise BatchError(f"a number of the batch is no 32-bit integer: {error}") from None
    memory = bytearray(b"".join([caches, bytes(lib.BATCH.size), *about, rows]))
    at = lib.address(memory) + len(caches) + lib.BATCH.size
    numbers = at + lib.SPAN.size * len(spans)
    adapters_at = numbers + 4 * (2 * len(tokens) + len(wanted))
    reach_at = adapters_at + 4 * len(adapters)
    last = adapters_at if adapters else 0, reach_at if reach else 0
    pointers = numbers, numbers + 4 * len(tokens), numbers + 8 * len(tokens), at, *last
    lib.BATCH.pack_into(memory, len(caches), len(tokens), len(wanted), len(spans), *pointers)
    return memory


def _quantized_bytes(room: Room) -> int:
    """Returns the bytes of a row's blocks (gl_block of native.h); a finely quantized row takes two rows."""
    return -(-room.width // lib.BLOCK) * lib.BLOCK_BYTES * room.quantized


def _with_heads(value: Value, heads: int) -> Value:
    return Value(value.id, value.width, value.wanted, heads)
