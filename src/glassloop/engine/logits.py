"""What the model computes for known tokens: logits, the mean of the hidden states, or what a lens reads.

All of it is computed by readings, which wait their turn, share steps with everything else that runs, and use
what is cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np

from glassloop.engine.deadline import Deadline
from glassloop.engine.owner import current_realm
from glassloop.engine.tasks.reading import Reading, Taker
from glassloop.engine.tasks.task import RowProgram
from glassloop.engine.thread import EngineThread
from glassloop.errors import GlassloopError
from glassloop.ops.protocol import Forward, Output
from glassloop.ops.quant import Float32

_KEPT = 32  # rows of logits: a slider asks about the same place again and again
_SCORED_BYTES = 32 << 20  # of the logits that are computed at a time, each row as wide as the vocabulary
_LEAST_SCORED = 32  # rows at a time, however wide
_SUMMED = 128  # rows of hidden states that are added up before they are added to the rest


def logits_after(
    engine: EngineThread,
    ids: Sequence[int],
    first: int,
    deadline: Deadline | None = None,
    adapter: int = 0,
) -> Iterator[Float32]:
    """Yields, for each token from the place `first` on, the logits of the token to come after it, computed
    with the adapter of this number.

    They are computed some at a time, when they are asked for; no pages are held meanwhile.
    """
    last: Reading | None = None
    scored = max(_LEAST_SCORED, _SCORED_BYTES // (4 * engine.loop.transformer.config.vocab_size))
    for start in range(first, len(ids), scored):
        pieces: list[Float32] = []
        last = read(engine, ids[: start + scored], start, pieces.append, None, deadline, last, adapter)
        for piece in pieces:
            yield from piece


def computed_after(
    engine: EngineThread,
    ids: Sequence[int],
    first: int,
    compute: Forward[Output],
    deadline: Deadline | None = None,
    adapter: int = 0,
) -> Output:
    """Returns what `compute` gives for the tokens from the place `first` on, in a call of its own. They are
    computed in one step, so they must be few."""
    results: list[Output] = []
    read(engine, ids, first, results.append, RowProgram(compute, together=False), deadline, None, adapter)
    return results[0]


def read(
    engine: EngineThread,
    ids: Sequence[int],
    first: int,
    take: Taker,
    program: RowProgram | None = None,
    deadline: Deadline | None = None,
    after: Reading | None = None,
    adapter: int = 0,
) -> Reading:
    """Computes known tokens and waits until that is done; `Reading` says what `take` is given. Raises `Busy`
    if too many requests wait already; the next piece of a reading is never refused."""
    if deadline is not None:
        deadline.check()
    if not engine.loop.tree.room_for(len(ids)):
        memory = engine.loop.tree.memory
        raise GlassloopError(f"there is no room for {len(ids)} tokens: kv_memory is {memory} bytes")
    reading = Reading(ids, first, take, program, deadline, after, adapter)
    compute_all(engine, [reading], may_refuse=after is None)
    return reading


def compute_all(engine: EngineThread, readings: Sequence[Reading], may_refuse: bool = True) -> None:
    """Computes readings together and returns when all have ended. If one fails or is refused, the others are
    cancelled, and its error is raised when they have ended too."""
    engine.check_may_wait()
    submitted: list[Reading] = []
    try:
        for reading in readings:
            engine.submit(reading, may_refuse)
            submitted.append(reading)
        for reading in readings:
            reading.wait()
    except BaseException:
        for reading in submitted:
            engine.cancel(reading, wait=reading is submitted[-1])  # in order, so this waits for all of them
        raise


def mean_hidden(engine: EngineThread, ids: Sequence[int], deadline: Deadline | None = None) -> Float32:
    """Returns the mean of the last hidden states of all tokens, [dim]. Every token is computed, whatever is
    cached: keys and values are kept, hidden states are not."""
    transformer = engine.loop.transformer
    mean = _Mean(transformer.config.dim)
    read(engine, ids, 0, mean.add, RowProgram(transformer.hidden, together=True), deadline)
    return mean.result()


class _Mean:
    """The mean of rows. They are added up in blocks of the same rows in whatever pieces they come, so every
    bit of the result is the same."""

    def __init__(self, dim: int) -> None:
        self._total = np.zeros(dim, np.float64)
        self._block = np.empty((_SUMMED, dim), np.float32)
        self._filled = 0
        self._rows = 0

    def add(self, rows: Float32) -> None:
        while len(rows):
            taken = rows[: _SUMMED - self._filled]
            self._block[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            if self._filled == _SUMMED:
                self._empty()
            rows = rows[len(taken) :]

    def result(self) -> Float32:
        self._empty()
        return (self._total / self._rows).astype(np.float32)

    def _empty(self) -> None:
        self._total += self._block[: self._filled].astype(np.float64).sum(axis=0)
        self._rows += self._filled
        self._filled = 0


class RowCache:
    """The rows of logits after the texts that were asked about last."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        # By realm, as a row that is known is told sooner, and each with its adapter: another one may have got
        # the same number since.
        self._rows: OrderedDict[tuple[str, tuple[int, ...]], tuple[int, Float32]] = OrderedDict()
        self._lock = Lock()

    def forget(self, text: Sequence[int], realm: str = "") -> None:
        """Drops the rows after the beginnings of a text: those of one realm, if it is given, else of all."""
        with self._lock:
            for whose, key in list(self._rows):
                if (not realm or whose == realm) and list(key[1:]) == list(text[: len(key) - 1]):
                    del self._rows[whose, key]

    def row(self, ids: Sequence[int], deadline: Deadline | None = None, adapter: int = 0) -> Float32:
        """Returns the logits after these tokens. Not for the engine's thread."""
        key = current_realm(), (adapter, *ids)
        with self._lock:
            cached = self._rows.get(key)
            if cached is not None and cached[0] is adapter:
                self._rows.move_to_end(key)
                return cached[1]
        row = next(logits_after(self._engine, ids, len(ids) - 1, deadline, adapter))
        row.flags.writeable = False  # threads share it, and an op set may use a row as its scratch memory
        with self._lock:
            self._rows[key] = adapter, row
            while len(self._rows) > _KEPT:
                self._rows.popitem(last=False)
        return row
