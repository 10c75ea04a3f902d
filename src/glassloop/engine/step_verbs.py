"""The verbs of a step: plan, launch, choose, commit.

- plan (engine/scheduler.py): which rows the tasks get.
- launch: the rows are computed; a device may still be at it when the call returns.
- choose: a token is chosen for each row whose task waits for one.
- commit: every task is handed the results of its rows and moves on.

`Loop.step` runs them one after another. `Ahead.step` (engine/ahead.py) does the same for a device, with the
first two of the next step before the last two of this one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.engine.call_plan import CallPlan
from glassloop.engine.drafting.guesser import DraftSource
from glassloop.engine.open_tasks import OpenTasks
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.tasks.task import Counters, PlannedCall, Task, WantedRow, places_of
from glassloop.engine.tree import KVTree
from glassloop.model.transformer import Transformer

# By wanted row: the token, or why there is none. None: its task needs the row itself, or not at all.
ChosenRows = Sequence[Chosen | Exception | None]


@dataclass
class LaunchedCall:
    """A call whose rows are computed, or are being computed by a device."""

    call: PlannedCall
    results: Any  # of the forward pass: the logits of the wanted rows
    seconds: float  # that the call took


class StepVerbs:
    """Launches calls, chooses their tokens and commits them."""

    def __init__(
        self,
        transformer: Transformer,
        tree: KVTree,
        scheduler: Scheduler,
        drafts: DraftSource,
        tasks: OpenTasks,
        counters: Counters,
    ) -> None:
        self._transformer = transformer
        self._tree = tree
        self._turns = scheduler.turns
        self._drafts = drafts
        self._tasks = tasks
        self._counters = counters

    def launch(self, call: PlannedCall, plan: CallPlan) -> LaunchedCall | None:
        """Computes the rows of a call. An error in a program ends the readings that need it, and the result
        is None."""
        began, pages = perf_counter(), self._tree.pages
        for work in call.works:
            if work.task.request.started is None:
                work.task.request.begin(began, work.first)
        try:
            if call.program is not None:
                results = plan.compute(call.program.compute, pages)
            elif self._drafts.reads_states:
                results, states = plan.compute(self._transformer.forward_with_states, pages)
                self._drafts.states = None if states is None else self._transformer.ops.host(states)
            else:
                results = plan.compute(self._transformer.forward, pages)
        except Exception as error:
            if call.program is None:
                raise
            for work in call.works:
                self._tasks.attempt(work.task, work.task.fail, error)
            return None
        seconds = perf_counter() - began
        for work in call.works:
            if work.ids[0] >= 0:
                self._tree.computed(work.path)
        return LaunchedCall(call, results, seconds)

    def choose(self, launched: LaunchedCall) -> ChosenRows:
        """Chooses a token for each row whose task needs no more than that."""
        decoders: list[Decoder] = []
        places: list[int] = []
        rows = 0
        for work in launched.call.works:
            decoder = work.task.decoder if work.wanted else None
            if decoder is not None:
                decoders.append(decoder)
                places.append(rows)
            rows += work.wanted
        chosen: list[Chosen | Exception | None] = [None] * rows
        if decoders:
            choices = choose_rows(decoders, launched.results, places)
            for place, choice in zip(places, choices, strict=True):
                chosen[place] = choice
        return chosen

    def commit(self, launched: LaunchedCall, chosen: ChosenRows, dropped: Collection[Task] = ()) -> None:
        """Hands every task its rows, but for those that have ended or are dropped. A task with several
        branches gets the rows of all of them at once."""
        call, results = launched.call, launched.results
        self._measure(call, self._transformer.ops.seconds(results) or launched.seconds)
        rows_of: dict[Task, list[WantedRow]] = {}
        for at, work in places_of(call.works):
            rows = [WantedRow(results, place, chosen[place]) for place in range(at, at + work.wanted)]
            if work.task in rows_of:
                rows_of[work.task] += rows
            elif rows:
                rows_of[work.task] = rows
        for task, rows in rows_of.items():
            if task.ended or task in dropped:
                continue
            self._tasks.attempt(task, task.advance, rows)
            if len(rows) > 1 and not task.ended:
                for branch in task.branches:
                    branch.drop_rejected(self._tree)
        for work in call.works:
            request = work.task.request
            if stages := request.own_time.take():
                self._turns.charge(request.owner, stages)

    def _measure(self, call: PlannedCall, seconds: float) -> None:
        """Counts the rows of a call and the time that they took."""
        rows = wanted = 0
        for work in call.works:
            rows += len(work.ids)
            wanted += work.wanted
        # Rows that need no logits, as those of prompts, are cheaper and would blur what decoding costs.
        if call.program is None and wanted == rows:
            self._drafts.step_cost.saw(rows, seconds)
        self._counters.rows += rows
        self._counters.forward_seconds += seconds
