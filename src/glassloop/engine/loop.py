"""The loop: plan, launch, choose, commit, again and again.

It has no thread of its own: its owner adds requests and calls `step`. What a request's tokens are depends on
the request alone; what else runs, and in which order, only decides when they come.

If the op set computes on a device, the loop keeps two steps under way: engine/ahead.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import count
from time import perf_counter

from glassloop.decode.stop import Ending
from glassloop.engine.adapters import LoadedAdapters
from glassloop.engine.ahead import Ahead
from glassloop.engine.drafting.guesser import DraftSource
from glassloop.engine.drafting.lookup import LookupDrafts
from glassloop.engine.open_tasks import OpenTasks
from glassloop.engine.request import Request
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.step_verbs import StepVerbs
from glassloop.engine.tasks.context import TaskContext
from glassloop.engine.tasks.make import tasks_of
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.tasks.task import CANCELLED, Asker, Counters, Task
from glassloop.engine.tree import KVTree
from glassloop.errors import contained
from glassloop.model.transformer import Transformer
from glassloop.record.run import Run
from glassloop.record.run_record import NO_MEMORY
from glassloop.record.token import Pieces
from glassloop.text.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)
_NO_ROOM = Ending("length", NO_MEMORY)


class Loop:
    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer,
        pieces: Pieces,
        kv_memory: int,
        most_running: int = 64,
        draft: DraftSource | None = None,
    ) -> None:
        """`draft` makes the drafts; by default the model's own drafter, or else a lookup in earlier text."""
        self.transformer = transformer
        self.tree = KVTree(transformer, kv_memory)
        self.scheduler = Scheduler(self.tree, transformer.ops, most_running)
        self.counters = Counters()
        self.adapters = LoadedAdapters(transformer, self.tree)
        self.drafts = draft or _own_drafts(transformer, self.tree)
        self.tasks = OpenTasks(self.scheduler, self.adapters, self.counters)
        self.context = TaskContext(
            transformer, tokenizer, pieces, self.tree, self.adapters, self.drafts, self.scheduler.add
        )
        self._arrivals = count()
        self._verbs = StepVerbs(
            transformer, self.tree, self.scheduler, self.drafts, self.tasks, self.counters
        )
        # Whether a step is launched before the last one is committed.
        self.runs_ahead = transformer.ops.rows.start is not None and not self.drafts.waits_for_tokens
        self.ahead = Ahead(self._verbs, self.scheduler, self.tree)

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def add(self, request: Request | Reading) -> None:
        """Queues a request. An error in the request ends this request alone, and its listener is told."""
        try:
            tasks: list[Task] = tasks_of(request, self.context, (-request.priority, next(self._arrivals)))
            for branch in tasks[0].branches:
                branch.check(self.transformer)
        except BaseException as error:
            request.fail(contained(error, "code of the request"))
            return
        self.tasks.by_request[request] = tasks
        self.scheduler.add(tasks[0])  # the other samples of the request wait for it

    def cancel(self, request: Asker, run: Run | None = None) -> None:
        """Ends a request where it is, or one run of it; the runs of a beam search end together. All that it
        held is free with this call."""
        for task in self.tasks.of(request):  # a beam search has no `run`, but all of them
            if run is None or computes(getattr(task, "run", run), run):
                self._finish(task, CANCELLED)

    def cancel_all(self) -> None:
        for task in self.tasks:
            self._finish(task, CANCELLED)

    def fail_all(self, error: Exception) -> None:
        self.ahead.flight = None
        for task in self.tasks:
            self.tasks.attempt(task, task.fail, error)

    def forget(self, run: str, texts: Iterable[Sequence[int]], realm: str = "") -> None:
        """Forgets the run with this id: no draft is made from it any more. Of the keys and values of `texts`,
        which were computed for it and include the prompt, those stay that another text shares; if a realm is
        given, so do those of all other realms."""
        texts = list(texts)
        self.drafts.forget(run, texts, realm)
        for text in texts:
            self.tree.forget_text(text, realm)

    def remove_adapter(self, name: str) -> None:
        """Makes an adapter unknown to new requests; it is unloaded when those that use it have ended."""
        self.adapters.retire(name)
        self.adapters.unload(self.tasks)

    @property
    def busy(self) -> bool:
        return bool(self.tasks.by_request)

    # ── a step ─────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        """Plans the next rows of the tasks, computes them, chooses their tokens and moves each task on."""
        began = perf_counter()
        self._end_overdue()
        has_rows = self.ahead.step() if self.runs_ahead and self.ahead.possible else self._step()
        if self.scheduler.too_large:
            self._end_too_large()
        elif not has_rows and self.scheduler.waiting:
            task = self.scheduler.waiting[0]
            if not self.scheduler.tries_again(task):
                self._finish(task, _NO_ROOM)  # even alone it has no room
        if not has_rows:
            return
        self._draft()
        self.counters.steps += 1
        seconds = perf_counter() - began
        self.counters.step_seconds += seconds
        self.scheduler.turns.spent(seconds)

    def _step(self) -> bool:
        """Takes one step, of up to two calls. Returns False if nothing could be planned."""
        calls = self.scheduler.plan()
        for call in calls:
            launched = self._verbs.launch(call, call.plan())
            if launched is not None:
                chosen = self._verbs.choose(launched)
                self._verbs.commit(launched, chosen)
        return bool(calls)

    def _end_overdue(self) -> None:
        """Ends the requests whose time is up or whose results are not wanted any more."""
        for request, ending in [(request, request.overdue()) for request in self.tasks.by_request]:
            if ending is not None:
                for task in self.tasks.of(request):
                    self._finish(task, ending)

    def _end_too_large(self) -> None:
        """Ends the tasks that have no room even alone. Rows that were planned for them are dropped."""
        tasks, self.scheduler.too_large = self.scheduler.too_large, []
        for task in tasks:
            if not task.ended:
                self._finish(task, _NO_ROOM)

    def _finish(self, task: Task, ending: Ending) -> None:
        self.tasks.attempt(task, task.finish, ending)

    def _draft(self) -> None:
        """Makes the drafts for the next step. An error costs the runs these drafts and nothing else."""
        self.drafts.step_cost.rows = max(1, len(self.scheduler.running))
        try:
            self.drafts.after_step()
        except Exception:
            _LOG.exception("the drafts of a step could not be made")


def _own_drafts(transformer: Transformer, tree: KVTree) -> DraftSource:
    """Returns the model's own drafter, if it has one, or else the lookup in earlier text."""
    if transformer.chain is None:
        return LookupDrafts()
    from glassloop.engine.drafting.chain_drafts import ChainDrafts

    return ChainDrafts(transformer.chain, tree)


def computes(current: Run, run: Run) -> bool:
    """Returns whether a run is the current one of a task, or one that it replaced by taking tokens back."""
    return run is current or run in current.drafts_taken_back
