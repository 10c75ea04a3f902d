"""The native op set. Its methods record; the recorded program runs in C, for any batch, on all threads.

Weights are packed for the kernels when they are handed in and stay quantized. The forward pass calls these
methods once, when a model is loaded, with stand-ins for the batch.
"""

from __future__ import annotations

import ctypes
import mmap
from array import array
from collections.abc import Sequence
from contextlib import suppress
from struct import error as StructError
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import ModelError
from glassloop.ops.batch import PAGE, Batch, BatchError, Span, check_page, check_spans, pages_for
from glassloop.ops.native import library as lib
from glassloop.ops.native.recorder import Recorder, Room, Value
from glassloop.ops.protocol import Activation, Forward, Place
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor

_ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")  # enum gl_activation of native.h
_CACHE_LINE = 64
_CHUNK = 1 << 25
_AT_ONCE = 1 << 24  # bytes packed in one call
_TOKENS, _POSITIONS, _WANTED = range(3)
# What a `lib.Fault` says is wrong: enum gl_wrong of native.h.
_WRONG = (
    *("", "row {} has the token id {}", "row {} has the position {}", "span {} has the page {}"),
    *("row {1} is wanted", "span {} has rows or positions that are not its own"),
)


class NativeMatrix:
    def __init__(self, tensor: Tensor, packer: _Packer) -> None:
        self.out, self.into = tensor.shape
        self.layout = lib.Matrix()
        self.is_quantized = tensor.format.take_apart is not None
        self.data = packer.pack(tensor, self.layout)


class NativePages:
    """float16 keys and values; how they lie in a page is in native.h."""

    def __init__(self, count: int, layers: int, kv_heads: int, head_dim: int) -> None:
        padded = -(-head_dim // 16) * 16
        # Zeroed memory that nothing has touched costs nothing.
        self.keys = np.zeros((count, layers * kv_heads * head_dim * PAGE), np.uint16)
        self.values = np.zeros((count, layers * kv_heads * PAGE * padded), np.uint16)
        self.page_bytes = self.keys[:1].nbytes + self.values[:1].nbytes
        self.layout = lib.Cache(
            self.keys.ctypes.data, self.values.ctypes.data, layers, kv_heads, head_dim, padded, count
        )
        self.packed = bytes(self.layout)

    def copy(self, source: int, target: int) -> None:
        check_page(source, len(self.keys))
        check_page(target, len(self.keys))
        self.keys[target], self.values[target] = self.keys[source], self.values[source]

    def read_keys(self, place: Place, span: Span) -> Float32:
        group, layer = place
        pages = span.pages[group, : pages_for(span.length)]
        check_page(int(pages.min()), len(self.keys))
        shape = (-1, self.layout.layers, self.layout.kv_heads, self.layout.head_dim, PAGE)
        keys = self.keys.reshape(shape)[pages, layer]  # [pages, kv heads, head dim, PAGE]
        rows = keys.view(np.float16).transpose(0, 3, 1, 2).reshape(-1, *shape[2:4])
        found: Float32 = rows[: span.length].astype(np.float32)
        return found


class _StandIn:
    """The batch that a forward pass is recorded with."""

    tokens, positions, wanted = _TOKENS, _POSITIONS, _WANTED


class NativeOps:
    name = "native"

    def __init__(self) -> None:
        self.threads: int = lib.library().gl_set_threads(lib.wanted_threads())
        self.instructions: str = lib.library().gl_name().decode()
        self._packer = _Packer()
        self._recorder = Recorder()
        self._one_recording = Lock()
        self._kept: list[Any] = []  # arrays that recorded ops point to

    def program(self, compute: Forward) -> Forward:
        with self._one_recording:
            self._packer.finish()
            self._recorder = Recorder()
            result = compute(_StandIn(), None)  # type: ignore[arg-type]
            several = isinstance(result, list)
            program = _Program(self._recorder, result if several else [result], self.threads, self._kept)
        return program if several else program.only

    def pages(self, count: int, layers: int, kv_heads: int, head_dim: int) -> NativePages:
        return NativePages(count, layers, kv_heads, head_dim)

    def matrix(self, tensor: Tensor) -> NativeMatrix:
        return NativeMatrix(tensor, self._packer)

    def vector(self, tensor: Tensor) -> Float32:
        return np.ascontiguousarray(tensor.float32())

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
        group, layer = place
        self._recorder.effect("keep", k, v, i0=layer, group=group)
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
        return _with_heads(made, k.heads)

    def activate(self, x: Value, kind: Activation) -> Value:
        return self._recorder.call("activate", x.width, x, i0=_ACTIVATIONS.index(kind))

    def gate(self, gate: Value, up: Value, kind: Activation) -> Value:
        return self._recorder.call("activate", gate.width, gate, up, i0=_ACTIVATIONS.index(kind))

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
    """A recorded forward pass with the memory that it runs in. One run at a time."""

    def __init__(self, recorder: Recorder, results: list[Value], threads: int, kept: list[Any]) -> None:
        ops, self._rooms, homes = recorder.finish(results)
        # What is handed out: the buffer, and how wide it is.
        self._results = {home: result.width for home, result in zip(homes, results, strict=True)}
        self._kept = kept
        self._threads = threads
        self._widest = max(room.width for room in self._rooms)
        self._progress = np.empty(lib.library().gl_progress_bytes(len(ops)), np.uint8)
        self._buffers = (lib.Buffer * len(self._rooms))()
        self._program = lib.Program((lib.Op * len(ops))(*ops), len(ops), 0, self._buffers)
        self._arrays: dict[int, Any] = {}
        self._capacity = {True: 0, False: 0}  # rows that the buffers of wanted rows, and of all rows, hold
        self._scratch = np.zeros(0, np.float32)
        self._fault = lib.Fault()
        self._one_run = Lock()

    def __call__(self, batch: Batch, pages: Sequence[NativePages]) -> list[Float32]:
        with self._one_run:
            return self._run(batch, pages)

    def only(self, batch: Batch, pages: Sequence[NativePages]) -> Float32:
        """The one result of a program that has one."""
        return self(batch, pages)[0]

    def _run(self, batch: Batch, pages: Sequence[NativePages]) -> list[Float32]:
        check_spans(batch, len(pages))
        self._make_room(len(batch.tokens), wanted=False)
        self._make_room(len(batch.wanted), wanted=True)
        results = []
        for home, width in self._results.items():
            results.append(np.empty((len(batch.wanted), width), np.float32))
            self._buffers[home].values = lib.address(results[-1])
        longest = max([span.length for span in batch.spans])
        # Up to twelve queries attend together; each is copied, and has a score for every key of every page.
        largest = max([group.layout.head_dim for group in pages])
        scratch = max(12 * (largest + pages_for(longest) * PAGE), self._widest)
        if len(self._scratch) < scratch * self._threads:
            self._scratch = np.empty(2 * scratch * self._threads, np.float32)
        caches = b"".join([group.packed for group in pages])
        memory = _packed(batch, caches)
        self._program.caches = lib.address(memory)
        self._program.batch = self._program.caches + len(caches)
        self._program.groups = len(pages)
        done = lib.library().gl_run(
            ctypes.byref(self._program),
            lib.address(self._progress),
            lib.address(self._scratch),
            scratch,
            ctypes.byref(self._fault),
        )
        if not done:
            fault = self._fault
            what = _WRONG[fault.wrong].format(fault.at, fault.found)
            raise BatchError(f"{what}; a number from 0 to {fault.limit - 1} is expected")
        return results

    def _make_room(self, rows: int, wanted: bool) -> None:
        if rows <= self._capacity[wanted]:
            return
        self._capacity[wanted] = capacity = max(rows, 2 * self._capacity[wanted])
        for index, room in enumerate(self._rooms):
            if room.wanted is not wanted or index in self._results:
                continue
            values = np.empty(capacity * room.width, np.float32)
            quantized = np.empty(capacity * _quantized_bytes(room) if room.quantized else 0, np.uint8)
            self._arrays[index] = values, quantized
            self._buffers[index].values = values.ctypes.data
            self._buffers[index].quantized = quantized.ctypes.data


def _packed(batch: Batch, caches: bytes) -> bytearray:
    """As native.h has them: the caches, the batch, its spans, the numbers of its rows."""
    tokens, positions, spans, wanted = batch
    try:
        rows = array("i", [*tokens, *positions, *wanted])
        about = [
            lib.SPAN.pack(s.start, s.stop - s.start, s.first, s.pages.shape[1], lib.address(s.pages))
            for s in spans
        ]
    except (OverflowError, TypeError, StructError) as error:
        raise BatchError(f"a number of the batch is no 32-bit integer: {error}") from None
    memory = bytearray(b"".join([caches, bytes(lib.BATCH.size), *about, rows]))
    at = lib.address(memory) + len(caches) + lib.BATCH.size
    numbers = at + lib.SPAN.size * len(spans)
    pointers = numbers, numbers + 4 * len(tokens), numbers + 8 * len(tokens), at
    lib.BATCH.pack_into(memory, len(caches), len(tokens), len(wanted), len(spans), *pointers)
    return memory


def _quantized_bytes(room: Room) -> int:
    """gl_quantized_bytes of native.h; a fine row takes two."""
    padded = -(-room.width // lib.BLOCK) * lib.BLOCK
    return (padded + padded // lib.BLOCK * 16) * room.quantized


def _with_heads(value: Value, heads: int) -> Value:
    return Value(value.id, value.width, value.wanted, heads)


class _Packer:
    """Packs matrices, many in one call: in between the caller needs Python's lock, and would wait long for it
    while another thread reads the vocabulary.
    """

    def __init__(self) -> None:
        self._arena = _Arena()
        self._waiting: list[tuple[Tensor, lib.Packing]] = []
        self._bytes = 0

    def pack(self, tensor: Tensor, layout: lib.Matrix) -> NDArray[np.uint8]:
        """Where the matrix will be, as soon as `finish` has been called."""
        tensor = tensor._replace(data=np.ascontiguousarray(tensor.data))
        format = tensor.format.gguf_id
        _check_tensor(tensor)
        size = lib.library().gl_pack_size(format, *tensor.shape, ctypes.byref(layout))
        if not size:
            raise ModelError(f"{tensor.name} is in {tensor.format.name}, which the native op set cannot pack")
        data = self._arena.take(size)
        packing = lib.Packing(tensor.data.ctypes.data, data.ctypes.data, ctypes.pointer(layout), format)
        self._waiting.append((tensor, packing))
        self._bytes += len(tensor.data)
        if self._bytes >= _AT_ONCE:
            self._pack_waiting()
        return data

    def finish(self) -> None:
        """Pack what waits: nothing more is to come."""
        self._pack_waiting()
        self._arena.settle()

    def _pack_waiting(self) -> None:
        packings = [packing for _, packing in self._waiting]
        lib.library().gl_pack((lib.Packing * len(packings))(*packings), len(packings))
        for tensor, _ in self._waiting:
            tensor.release()
        self._waiting, self._bytes = [], 0


def _check_tensor(tensor: Tensor) -> None:
    """Raises unless a matrix has the bytes that its shape takes: C reads so many."""
    out, into = tensor.shape
    format = tensor.format
    blocks, rest = divmod(into, format.block_values)
    if out < 1 or into < 1 or rest or tensor.data.nbytes != out * blocks * format.block_bytes:
        raise ModelError(
            f"{tensor.name} has {tensor.data.nbytes} bytes, no {format.name} matrix of {out} × {into}"
        )


class _Arena:
    """Memory for packed weights, handed out of large chunks, each of which lives as long as any matrix in it.

    A stream of weights goes through huge pages faster, but the system may have to search long for them: up to
    0.3 s for 100 MB were seen. So we start with small ones and ask when all is packed; it moves them in its
    own time.
    """

    def __init__(self) -> None:
        self._chunk = np.empty(0, np.uint8)
        self._maps: list[mmap.mmap] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        if size > len(self._chunk):
            size_mapped = max(size, _CHUNK)
            try:
                chunk = mmap.mmap(-1, size_mapped, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except (OSError, OverflowError) as error:
                raise ModelError(f"there is no memory for {size_mapped} bytes of weights: {error}") from None
            self._maps.append(chunk)
            self._chunk = np.frombuffer(self._maps[-1], np.uint8)
        taken, self._chunk = self._chunk[:size], self._chunk[-(-size // _CACHE_LINE) * _CACHE_LINE :]
        return taken

    def settle(self) -> None:
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        for chunk in self._maps:
            if advice is not None:
                with suppress(OSError):  # a system without huge pages
                    chunk.madvise(advice)
        self._maps = []
