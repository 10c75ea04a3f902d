"""Runs a recorded forward pass in C: for a batch, or as a chain of drafts."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from struct import error as StructError
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from glassloop.ops.batch import PAGE, Batch, BatchError, Int32, check_spans, pages_for, parts_of
from glassloop.ops.drafting import ChainRequest, Drawn
from glassloop.ops.native import library as lib
from glassloop.ops.native.pages import NativePages, aligned
from glassloop.ops.native.recorder import NativeRecorder, NativeValue, Room
from glassloop.ops.quant import Float32
from glassloop.ops.state_cache import HostStates, lines_of

# Rows that a thread computes together at most, or a half more: their intermediate values fit its L2 cache.
ROWS_PER_THREAD = 64


class OpTime(NamedTuple):
    """What the threads have spent on one op of a program, added up over its runs and over the threads."""

    kind: str
    rows: str  # "all", or "wanted": the op works on the wanted rows only
    matrix: lib.Matrix | None  # type: ignore[valid-type]  # of a linear or an embedding
    is_fine: bool  # a linear whose input is finely quantized
    working: float  # seconds
    waiting: float  # seconds before the op, for the ops that it depends on
    units: int


class NativeProgram:
    """A recorded forward pass with the memory that it runs in. It runs one batch at a time."""

    def __init__(
        self, recorder: NativeRecorder, results: list[NativeValue], threads: int, kept: list[Any]
    ) -> None:
        ops, self._rooms, homes, self._inputs = recorder.finish(results)
        # The buffer of each result, and its width.
        self._results = {home: result.width for home, result in zip(homes, results, strict=True)}
        self._kept = kept
        self._is_recurrent = recorder.is_recurrent
        self._states: Any = None
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
        parts = parts_of(
            batch, ROWS_PER_THREAD * self._threads, len(pages) - 1 if self._is_recurrent else None
        )
        if len(parts) > 1:  # all of it is checked before anything is computed
            self._load(batch, pages)
            self._check(lib.library().gl_check(ctypes.byref(self._program), ctypes.byref(self._fault)))
        results = self._make_results(len(batch.wanted))
        done = 0
        for part in parts:
            end = done + len(part.wanted)
            call = self._prepare(part, pages, [result[done:end] for result in results])
            self._check(lib.library().gl_run(*call))
            done = end
        return results

    def draw(
        self, batch: Batch, pages: Sequence[Any], states: Float32, ids: Int32, chains: bytearray
    ) -> None:
        """Runs a program that has the input `states` and the results logits and states, as a chain of drafts
        (drafting.c)."""
        with self._one_run:
            results = self._make_results(len(batch.wanted))
            call = self._prepare(batch, pages, results)
            tokens = self._program.batch + lib.BATCH.size + lib.SPAN.size * len(batch.spans)
            _, state_home = self._results
            # A step reads the state before it writes the next one to the same place.
            self._buffers[self._inputs[0]].values = lib.address(states)
            self._buffers[state_home].values = lib.address(states)
            drafted = tokens, lib.address(ids), len(ids), lib.address(results[0]), lib.address(chains)
            self._check(lib.library().gl_draft(*call, *drafted))

    def _make_results(self, rows: int) -> list[Float32]:
        return [np.empty((rows, width), np.float32) for width in self._results.values()]

    def _prepare(self, batch: Batch, pages: Sequence[NativePages], results: list[Float32]) -> tuple[Any, ...]:
        """Makes room for a batch, whose results are written to the given arrays. Returns the arguments of
        `gl_run`."""
        self._load(batch, pages)
        self._make_room(len(batch.tokens), wanted=False)
        self._make_room(len(batch.wanted), wanted=True)
        for home, result in zip(self._results, results, strict=True):
            self._buffers[home].values = lib.address(result)
        longest = max([span.length for span in batch.spans])
        # Up to twelve queries attend together; each is copied, and has an output and a score for every key of
        # every page.
        largest = max([group.layout.padded_head_dim for group in pages if isinstance(group, NativePages)])
        scratch = max(12 * (2 * largest + pages_for(longest) * PAGE), 2 * self._widest)
        if len(self._scratch) < scratch * self._threads:
            self._scratch = np.empty(2 * scratch * self._threads, np.float32)
        return (
            ctypes.byref(self._program),
            lib.address(self._progress),
            lib.address(self._scratch),
            scratch,
            ctypes.byref(self._fault),
        )

    def _load(self, batch: Batch, pages: Sequence[NativePages]) -> None:
        """Makes a batch that of the program."""
        check_spans(batch, lines_of(pages))
        if self._is_recurrent or (pages and isinstance(pages[-1], HostStates)):
            pages = self._with_states(batch, pages)
        caches = b"".join([group.packed for group in pages])
        self._memory = _packed(batch, caches)  # which the program points to
        self._program.caches = lib.address(self._memory)
        self._program.batch = self._program.caches + len(caches)
        self._program.groups = len(pages)

    def _with_states(self, batch: Batch, pages: Sequence[Any]) -> Sequence[NativePages]:
        """Makes the slots of recurrent layers known to the program. Returns the other pools."""
        pool = pages[-1] if pages else None
        if not isinstance(pool, HostStates):
            raise BatchError("the model has recurrent layers; a cache with slots for them is expected")
        if batch.reach:
            raise BatchError("a batch has reach, which recurrent layers cannot have")
        self._states = lib.States(
            pool.states.ctypes.data,
            pool.rows.ctypes.data,
            pool.spec.state,
            pool.spec.row,
            pool.spec.layers,
            pool.count,
            pool.row_count,
        )
        self._program.states = ctypes.addressof(self._states)
        return pages[:-1]

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
            values = aligned(np.empty, capacity * room.width, np.float32)
            quantized = aligned(np.empty, capacity * _quantized_bytes(room), np.uint8)
            self._arrays[index] = values, quantized
            self._buffers[index].values = values.ctypes.data
            self._buffers[index].quantized = quantized.ctypes.data


class Chain:
    """Drafts of several branches at a time: implements `DraftChain`."""

    most = lib.MOST_DRAFTS
    margins = lib.MARGINS

    def __init__(self, program: NativeProgram, ids: Int32) -> None:
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
