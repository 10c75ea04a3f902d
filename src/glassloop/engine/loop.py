"""The loop: schedule, compute, choose, commit, again and again.

It has no thread of its own: whoever owns it adds requests and calls `step`. What a request's tokens are
depends on the request alone; what else runs, and in which order, only decides when they come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.stop import Ending
from glassloop.engine.drafts import Guesser, Lookup, Memory, Pace
from glassloop.engine.reading import Reading
from glassloop.engine.request import Request
from glassloop.engine.sample import Sample
from glassloop.engine.scheduler import Asker, Row, Scheduler, Task, Work
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32
from glassloop.text.tokenizer import Tokenizer
from glassloop.trace.run import Run
from glassloop.trace.token import Pieces

if TYPE_CHECKING:
    from glassloop.engine.draft_model import DraftModel

T = TypeVar("T")


@dataclass
class Counters:
    """Since the start."""

    steps: int = 0
    rows: int = 0
    finished: int = 0  # requests
    readings: int = 0
    forward_seconds: float = 0.0
    step_seconds: float = 0.0


class Loop:
    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer,
        pieces: Pieces,
        kv_memory: int,
        most_running: int = 64,
        draft: DraftModel | None = None,
    ) -> None:
        self.transformer = transformer
        self.tokenizer = tokenizer
        self.tree = KVTree(transformer, kv_memory)
        self.scheduler = Scheduler(self.tree, most_running)
        self.counters = Counters()
        self._pieces = pieces
        self._row_ops = transformer.ops.rows
        self._arrivals = count()
        self._tasks: dict[Asker, list[Task]] = {}
        self._pace = Pace()
        self._memory = Memory()
        self._draft = draft

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def add(self, request: Request | Reading) -> None:
        """Queue it. What is wrong with it is its own error, and told as such."""
        order = (-request.priority, next(self._arrivals))
        if isinstance(request, Reading):
            task: Task = request
            request.order = request.order if request.is_next_piece else order
        else:
            try:
                task = self._task(request, order)
            except Exception as error:
                for run in request.runs:
                    _fail(request, run, error)
                return
        self._tasks[request] = [task]
        self.scheduler.add(task)
        self._do(task, self._check, task)

    def cancel(self, request: Asker) -> None:
        """End it where it is. All that it held is free with this call."""
        self._finish(request, Ending("cancelled", "by the caller"))

    def cancel_all(self) -> None:
        for request in list(self._tasks):
            self.cancel(request)

    def fail_all(self, error: Exception) -> None:
        for tasks in list(self._tasks.values()):
            for task in list(tasks):
                self._do(task, task.fail, error)

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    # ── a step ─────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        began = perf_counter()
        for request in [each for each in self._tasks if each.is_late or each.abandoned]:
            if request.is_late:
                self._finish(request, Ending("timeout", f"after {request.timeout:g} s"))
            else:
                self.cancel(request)
        self._pace.rows = max(1, len(self.scheduler.running))
        works = self.scheduler.plan()
        if not works:
            self._make_way()
            return
        ready = perf_counter()
        for work in works:
            if work.task.request.started is None:
                work.task.request.begin(ready, work.first)
        read = [work for work in works if work.program is not None]
        if read:
            works = [work for work in works if work.program is None]
            self._read(read)
        if works:
            self._compute(works)
        self.counters.steps += 1
        self.counters.step_seconds += perf_counter() - began

    def _compute(self, works: list[Work]) -> None:
        """The forward pass, and what the tasks do with their logits."""
        batch = _batch(works)
        began = perf_counter()
        logits = self.transformer.forward(batch, self.tree.pages)
        seconds = perf_counter() - began
        for work in works:
            self.tree.computed(work.path)
        if len(logits):
            self._hand_out(works, logits)
        if len(logits) == len(batch.tokens):  # no prompts: what a step of so many rows costs
            self._pace.saw(len(logits), seconds)
        self.counters.rows += len(batch.tokens)
        self.counters.forward_seconds += seconds

    def _read(self, works: list[Work]) -> None:
        """Another program than the forward pass, for readings; what goes wrong in it is theirs alone."""
        program, batch = works[0].program, _batch(works)
        assert program is not None
        began = perf_counter()
        try:
            found = program.compute(batch, self.tree.pages)
        except Exception as error:
            for work in works:
                self._do(work.task, work.task.fail, error)
            return
        self.counters.rows += len(batch.tokens)
        self.counters.forward_seconds += perf_counter() - began
        at = 0
        for work in works:
            assert isinstance(work.task, Reading)
            self.tree.computed(work.path)
            own = np.array(found[at : at + work.wanted]) if program.together else found
            self._do(work.task, partial(work.task.give, own), work.wanted)
            at += work.wanted

    def _hand_out(self, works: list[Work], logits: Float32) -> None:
        """Each task gets its rows and moves on by them."""
        chosen = _choose_together(works, logits)
        gathered: dict[Task, list[Row]] = {}
        at = 0
        for work in works:
            rows = gathered.setdefault(work.task, [])
            for place in range(at, at + work.wanted):
                rows.append(Row(logits, place, chosen[place]))
            at += work.wanted
        for task, rows in gathered.items():
            if rows:
                self._do(task, task.advance, rows)
            if len(rows) > 1 and isinstance(task, Sample) and not task.ended:
                self._take_back(task)

    def _take_back(self, sample: Sample) -> None:
        """What was guessed wrongly has been computed and is of no use."""
        path, known = sample.branch.path, len(sample.branch.tokens) - 1
        if path is not None and path.length > known:
            self.tree.cut(path, known)

    def _split(self, first: Sample, row: Row) -> None:
        """The prompt is computed: the other samples of the request go on from it, each with its own luck."""
        request = first.request
        for run in request.runs[1:]:
            run.prompt_tokens, run.tokens = first.run.prompt_tokens, list(first.run.tokens)
            try:
                sample = self._sample(request, run, (first.order[0], next(self._arrivals)))
            except Exception as error:
                _fail(request, run, error)
                continue
            sample.branches = [first.branch.fork(self.tree)]
            self._tasks[request].append(sample)
            self.scheduler.add(sample, running=True)
            self._do(sample, sample.advance, [row])

    def _make_way(self) -> None:
        """Nothing can be computed. If somebody is waiting all the same, then even alone he has no room."""
        if self.scheduler.waiting:
            task = self.scheduler.waiting[0]
            self._do(task, task.finish, Ending("length", "kv memory"))

    def _finish(self, request: Asker, ending: Ending) -> None:
        for task in list(self._tasks.get(request, ())):
            self._do(task, task.finish, ending)

    def _do(self, task: Task, action: Callable[[T], None], given: T) -> None:
        """What goes wrong in a task is its own affair; one that has ended gives back what it held."""
        try:
            action(given)
        except Exception as error:
            task.fail(error)
        if not task.ended:
            return
        if isinstance(task, Sample) and task.split is not None:  # it ended before its samples had begun
            for run in task.request.runs[1:]:
                run.error = task.run.error
                run.finish_reason, run.stop_reason = task.run.finish_reason, task.run.stop_reason
                task.request.tell(run, None)
        self.scheduler.remove(task)
        self._tasks[task.request].remove(task)
        if isinstance(task, Sample) and task.run.finish_reason != "error":
            self._memory.add(task.branch.tokens)
        if not self._tasks[task.request]:
            del self._tasks[task.request]
            if isinstance(task, Reading):
                self.counters.readings += 1
            else:
                self.counters.finished += 1

    def _check(self, task: Task) -> None:
        """Whether all tokens of a new task are the model's. Those who made it have checked them; but what a
        batch cannot compute would be an error of all tasks in it."""
        size, context = self.transformer.config.vocab_size, self.transformer.config.context
        for branch in task.branches:
            tokens = branch.tokens
            if not tokens or len(tokens) > context:
                raise GlassloopError(f"there are {len(tokens)} tokens; 1 to {context} are expected")
            if min(tokens) < 0 or max(tokens) >= size:
                wrong = next(token for token in tokens if not 0 <= token < size)
                raise GlassloopError(f"there is a token id {wrong}; ids from 0 to {size - 1} are expected")

    # ── tasks ──────────────────────────────────────────────────────────────────────────────────────────────

    def _task(self, request: Request, order: tuple[int, int]) -> Task:
        run = request.runs[0]
        if request.sampling.beam_width > 1:
            from glassloop.engine.beams import Beams

            decoder = self._decoder(request, run)
            return Beams(request, order, decoder, self.tokenizer, self._pieces, self.tree)
        sample = self._sample(request, run, order)
        if len(request.runs) > 1:
            sample.split = self._split
        return sample

    def _sample(self, request: Request, run: Run, order: tuple[int, int]) -> Sample:
        guesser: Guesser | None = None
        if request.drafts and self._draft is None:
            guesser = Lookup(self._pace, self._memory)
        elif request.drafts and self._draft is not None:
            guesser = self._draft.guesser(self._pace)
        decoder = self._decoder(request, run)
        return Sample(request, run, order, decoder, self.tokenizer, self._pieces, guesser)

    def _decoder(self, request: Request, run: Run) -> Decoder:
        return Decoder(
            run.sampling,
            self.transformer.config.vocab_size,
            run.seed,
            run.prompt_ids,
            run.salt,
            self.tokenizer,
            tuple(self.tokenizer.eos_ids),
            self._row_ops,
            request.compiled,
        )


def _choose_together(works: list[Work], logits: Float32) -> list[Chosen | Exception | None]:
    """By row: the choice of who has only to choose from the next one. None: he has more to do with it."""
    chosen: list[Chosen | Exception | None] = [None] * len(logits)
    decoders, rows, at = [], [], 0
    for work in works:
        decoder = work.task.ready if work.wanted else None
        if decoder is not None:
            decoders.append(decoder)
            rows.append(at)
        at += work.wanted
    for row, made in zip(rows, choose_rows(decoders, logits, rows), strict=True):
        chosen[row] = made
    return chosen


def _batch(works: list[Work]) -> Batch:
    return Batch.of(
        [(work.path.table, work.first, work.ids) for work in works], [work.wanted for work in works]
    )


def _fail(request: Request, run: Run, error: Exception) -> None:
    run.error, run.finish_reason, run.stop_reason = error, "error", str(error)
    request.tell(run, None)
