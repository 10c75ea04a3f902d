"""The loop: plan, forward, choose, commit, again and again.

It has no thread of its own: its owner adds requests and calls `step`. What a request's tokens are depends on
the request alone; what else runs, and in which order, only decides when they come.

If the op set computes on a device, the loop keeps two steps under way: engine/ahead.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from glassloop.decode.chosen import Chosen
from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.stage import OwnTime
from glassloop.decode.stop import Ending
from glassloop.engine.adapters import LoadedAdapters
from glassloop.engine.ahead import Ahead
from glassloop.engine.drafting.drafts import Guesser, Lookup, RunsByOwner, StepCost
from glassloop.engine.request import Request
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.tasks.checks import check_task
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.tasks.sample import Sample
from glassloop.engine.tasks.task import CANCELLED, Asker, Counters, PlannedCall, Task, WantedRow, places_of
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError, contained
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch
from glassloop.record.run import Run
from glassloop.record.run_parts import Past
from glassloop.record.run_record import NO_MEMORY
from glassloop.record.token import Pieces
from glassloop.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from glassloop.engine.drafting.chain_drafts import ChainDrafts
    from glassloop.engine.drafting.draft_model import Drafting, DraftModel
    from glassloop.engine.tasks.masked import Mask

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


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
        self.scheduler = Scheduler(self.tree, transformer.ops, most_running)
        self.counters = Counters()
        self._pieces = pieces
        self._row_ops = transformer.ops.rows
        self._arrivals = count()
        self._tasks: dict[Asker, list[Task]] = {}  # of each request, until they end
        self._step_cost = StepCost()
        self._recent_runs = RunsByOwner()
        self._draft_model: Drafting | None = draft
        self.adapters = LoadedAdapters(transformer, self.tree)
        self._chain_drafts: ChainDrafts | None = None
        if transformer.chain is not None and draft is None:
            from glassloop.engine.drafting.chain_drafts import ChainDrafts

            self._chain_drafts = ChainDrafts(transformer.chain, self.tree, self._step_cost, self._recent_runs)
        # Whether a step is launched before the last one is committed. Drafts of a model wait for the tokens.
        self.runs_ahead = self._row_ops.start is not None and draft is None and self._chain_drafts is None
        self.ahead = Ahead(self.scheduler, self.tree)

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def add(self, request: Request | Reading) -> None:
        """Queues a request. An error in the request ends this request alone, and its listener is told."""
        try:
            tasks = self._tasks_of(request)
            check_task(tasks[0], self.transformer)
        except BaseException as error:
            request.fail(contained(error, "code of the request"))
            return
        self._tasks[request] = tasks
        self.scheduler.add(tasks[0])  # the other samples of the request wait for it

    def cancel(self, request: Asker, run: Run | None = None) -> None:
        """Ends a request where it is, or one run of it; the runs of a beam search end together. All that it
        held is free with this call."""
        for task in list(self._tasks.get(request, ())):  # a beam search has no `run`, but all of them
            if run is None or computes(getattr(task, "run", run), run):
                self._attempt(task, task.finish, CANCELLED)

    def cancel_all(self) -> None:
        for request in list(self._tasks):
            self.cancel(request)

    def fail_all(self, error: Exception) -> None:
        self.ahead.flight = None
        for tasks in list(self._tasks.values()):
            for task in list(tasks):
                self._attempt(task, task.fail, error)

    def forget(self, run: str, texts: Iterable[Sequence[int]], realm: str = "") -> None:
        """Forgets a run with this id, and these texts, the prompt included, that were computed for it: no
        draft is made from it, and of its keys and values those stay that another text goes on from, and if a
        realm is given those of all others."""
        self._recent_runs.forget(run)
        trees = {self.tree} if self._draft_model is None else {self.tree, self._draft_model.tree}
        for tree in trees:
            for text in texts:
                tree.forget_text(text, realm)

    def remove_adapter(self, name: str) -> None:
        """Makes an adapter unknown to new requests; it is unloaded when those that use it have ended."""
        self.adapters.retire(name)
        self.adapters.unload(task for tasks in self._tasks.values() for task in tasks)

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def draft_by_masks(self, mask: Mask) -> None:
        """Makes the model itself, by filling masks, propose the drafts of all requests that come from now."""
        from glassloop.engine.drafting.mask_drafts import MaskDrafts

        self._chain_drafts, self._draft_model = None, MaskDrafts(self.transformer, self.tree, mask)

    # ── a step ─────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        """Plans the next rows of the tasks, computes them, chooses their tokens and moves each task on."""
        began = perf_counter()
        self._end_overdue()
        if self.runs_ahead and self.ahead.possible:
            done = self.ahead.step(self)
        else:
            plan = self.scheduler.plan()
            for call in plan:
                results, seconds = self.forward(call, call.batch())
                if results is not None:
                    chosen = self._choose(call, results)
                    self.measure(call, self.transformer.ops.seconds(results) or seconds)
                    self.commit(call, results, chosen)
            done = bool(plan)
        if self.scheduler.too_large:
            self._end_too_large()
        elif not done:
            self._make_way()
        if not done:
            return
        self._draft()
        self.counters.steps += 1
        seconds = perf_counter() - began
        self.counters.step_seconds += seconds
        self.scheduler.turns.spent(seconds)

    def _end_overdue(self) -> None:
        """Ends the requests whose time is up or whose results are not wanted any more."""
        for request, ending in [(each, each.overdue()) for each in self._tasks]:
            if ending is not None:
                self._finish(request, ending)

    def _draft(self) -> None:
        """Lets the drafter or the draft model, if there is one, propose the next tokens of the runs that were
        committed. An error costs the runs these drafts and nothing else."""
        self._step_cost.rows = max(1, len(self.scheduler.running))
        drafter = self._chain_drafts or self._draft_model
        if drafter is None:
            return
        try:
            drafter.make_drafts()
        except Exception:
            _LOG.exception("the drafts of a step could not be made")

    def forward(self, call: PlannedCall, batch: Batch) -> tuple[Any, float]:
        """Computes a call. Returns its results (of the forward pass, the logits of the wanted rows) and the
        seconds that this took.

        An error in a program ends the readings that asked for it, and the result is None.
        """
        program = call.program
        began = perf_counter()
        for work in call.works:
            if work.task.request.started is None:
                work.task.request.begin(began, work.first)
        try:
            if program is not None:
                results = program.compute(batch, self.tree.pages)
            elif self._chain_drafts is None:
                results = self.transformer.forward(batch, self.tree.pages)
            else:
                results, states = self.transformer.forward_with_states(batch, self.tree.pages)
                self._chain_drafts.states = states
        except Exception as error:
            if program is None:
                raise
            for work in call.works:
                self._attempt(work.task, work.task.fail, error)
            return None, 0.0
        seconds = perf_counter() - began
        for work in call.works:
            if work.ids[0] >= 0:
                self.tree.computed(work.path)
        return results, seconds

    def measure(self, call: PlannedCall, seconds: float) -> None:
        """Counts the rows of a call and the time that they took."""
        rows, wanted = sum([len(work.ids) for work in call.works]), sum([work.wanted for work in call.works])
        # Rows that need no logits, as those of prompts, are cheaper and would blur what decoding costs.
        if call.program is None and wanted == rows:
            self._step_cost.saw(rows, seconds)
        self.counters.rows += rows
        self.counters.forward_seconds += seconds

    def _choose(self, call: PlannedCall, results: Any) -> list[Chosen | Exception | None]:
        """Returns one entry per wanted row: the chosen token if the task needs only a plain choice, or None
        if it handles the row itself."""
        decoders: list[Decoder] = []
        places: list[int] = []
        rows = 0
        for work in call.works:
            decoder = work.task.decoder if work.wanted else None
            if decoder is not None:
                decoders.append(decoder)
                places.append(rows)
            rows += work.wanted
        chosen: list[Chosen | Exception | None] = [None] * rows
        if decoders:
            for place, made in zip(places, choose_rows(decoders, results, places), strict=True):
                chosen[place] = made
        return chosen

    def commit(
        self,
        call: PlannedCall,
        results: Any,
        chosen: Sequence[Chosen | Exception | None],
        dropped: Collection[Task] = (),
    ) -> None:
        """Hands every task its rows, but for those that have ended or are dropped. A task with several
        branches gets the rows of all of them at once."""
        gathered: dict[Task, list[WantedRow]] = {}
        for at, work in places_of(call.works):
            rows = [WantedRow(results, place, chosen[place]) for place in range(at, at + work.wanted)]
            if work.task in gathered:
                gathered[work.task] += rows
            elif rows:
                gathered[work.task] = rows
        for task, rows in gathered.items():
            if task.ended or task in dropped:
                continue
            self._attempt(task, task.advance, rows)
            if len(rows) > 1 and not task.ended:
                for branch in task.branches:
                    branch.drop_rejected(self.tree)
        for work in call.works:
            request = work.task.request
            if stages := request.own_time.take():
                self.scheduler.turns.charge(request.owner, stages)

    def _end_too_large(self) -> None:
        """Ends the tasks that have no room even alone. Rows that were planned for them are dropped."""
        tasks, self.scheduler.too_large = self.scheduler.too_large, []
        for task in tasks:
            if not task.ended:
                self._attempt(task, task.finish, Ending("length", NO_MEMORY))

    def _make_way(self) -> None:
        """Ends the first waiting task, if any: nothing could be planned, so even alone it has no room."""
        if self.scheduler.waiting:
            task = self.scheduler.waiting[0]
            self._attempt(task, task.finish, Ending("length", NO_MEMORY))

    def _finish(self, request: Asker, ending: Ending) -> None:
        for task in list(self._tasks.get(request, ())):
            self._attempt(task, task.finish, ending)

    def _attempt(self, task: Task, action: Callable[[T], None], given: T) -> None:
        """Runs an action of a task. An error ends this task alone, and a task that has ended gives back what
        it held."""
        try:
            action(given)
        except BaseException as error:
            task.fail(contained(error, "code of the request"))
        if not task.ended:
            return
        self.scheduler.remove(task)
        self._tasks[task.request].remove(task)
        if not self._tasks[task.request]:
            del self._tasks[task.request]
            task.request.count(self.counters)
        if self.adapters.retired:
            self.adapters.unload(task for tasks in self._tasks.values() for task in tasks)

    # ── tasks ──────────────────────────────────────────────────────────────────────────────────────────────

    def _tasks_of(self, request: Request | Reading) -> list[Task]:
        order = (-request.priority, next(self._arrivals))
        if isinstance(request, Reading):
            request.order = request.order if request.is_next_piece else order
            request.host = self.transformer.ops.host
            self.adapters.check_number(request.branches[0].adapter)
            return [request]
        request.adapter = self.adapters.number_of(request)
        own = request.own_tasks(self, order)
        if own is not None:
            return own
        if self.transformer.config.mask_token is not None:
            raise GlassloopError(
                "this model fills masks and does not write from left to right; diffuse() is expected"
            )
        if request.sampling.beam_width > 1:
            from glassloop.engine.tasks.beams import Beams

            first = request.runs[0]
            decoder = self.decoder(first, request.prompt_ids, request.compiled, own_time=request.own_time)
            return [Beams(request, order, decoder, self.tokenizer, self._pieces, self.tree)]
        samples = [self._sample(request, run, order) for run in request.runs]
        samples[0].siblings = samples[1:]
        return list(samples)

    def _sample(self, request: Request, run: Run, order: tuple[int, int]) -> Sample:
        decoder = self.decoder(run, run.prompt_ids, request.compiled, own_time=request.own_time)
        guesser: Guesser | None = None
        if run.sampling.revise:
            return self._revising(request, run, order, decoder)
        if request.drafts and self._chain_drafts is not None:
            guesser = self._chain_drafts.guesser(run, decoder, request.owner)
        elif request.drafts and self._draft_model is None:
            guesser = Lookup(self._step_cost, self._recent_runs.of(request.owner))
        elif request.drafts and self._draft_model is not None:
            guesser = self._draft_model.guesser(run, decoder, self._step_cost)
            guesser.realm = request.realm
        tools = (self.tokenizer, self._pieces, guesser, self._recent_runs, self.scheduler.add)
        return Sample(request, run, order, decoder, *tools)

    def _revising(self, request: Request, run: Run, order: tuple[int, int], decoder: Decoder) -> Sample:
        from glassloop.engine.tasks.revise import Revising

        def decoder_of(run: Run) -> Decoder:
            return self.decoder(run, run.prompt_ids, request.compiled, own_time=request.own_time)

        tools = (decoder, self.tokenizer, self._pieces, None, self._recent_runs, self.scheduler.add)
        return Revising(request, run, order, *tools, tree=self.tree, decoder_of=decoder_of)

    def decoder(
        self,
        drawn: Run | Past,
        prompt_ids: Sequence[int],
        compiled: Compiled | None = None,
        never: Sequence[int] = (),
        own_time: OwnTime | None = None,
    ) -> Decoder:
        """Returns a decoder with the options, seed and salt of a run, or of the past of a fork, for a branch
        of this model. Without `compiled` the options are compiled here. `never` are ids that it must not
        choose, and `own_time` is told how long stages take that are not built in."""
        made = Decoder(
            drawn.sampling,
            self.transformer.config.vocab_size,
            drawn.seed,
            prompt_ids,
            drawn.salt,
            self.tokenizer,
            tuple(self.tokenizer.eos_ids),
            self._row_ops,
            compiled,
            never,
        )
        if own_time is not None:
            made.step.own_time = own_time
        return made


def computes(own: Run, run: Run) -> bool:
    """Returns whether a run is this one, or one whose place it has taken since tokens were taken back."""
    return run is own or run in own.drafts_taken_back
