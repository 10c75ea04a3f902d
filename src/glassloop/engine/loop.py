"""The loop: plan, forward, choose, commit, again and again.

It has no thread of its own: its owner adds requests and calls `step`. What a request's tokens are depends on
the request alone; what else runs, and in which order, only decides when they come.

If the op set computes on a device (`RowOps.start`), a step is launched before the one before it is committed,
so that the device need not wait for the host (`_step_ahead`). The device predicts the tokens of that step; a
row whose prediction was wrong, or whose run has ended meanwhile, is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from glassloop.decode.chosen import Chosen
from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder, StartedChoices, choose_rows
from glassloop.decode.stop import Ending
from glassloop.engine.drafts import Guesser, Lookup, RecentRuns, StepCost
from glassloop.engine.masked import MaskedBranch
from glassloop.engine.reading import Reading
from glassloop.engine.request import Request
from glassloop.engine.sample import Sample
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.task import CANCELLED, Asker, Call, Counters, Row, Task, Work
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError, SamplingError
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch
from glassloop.shown import shown
from glassloop.text.tokenizer import Tokenizer
from glassloop.trace.run import Past, Run
from glassloop.trace.token import Pieces

if TYPE_CHECKING:
    from glassloop.engine.chain_drafts import ChainDrafts
    from glassloop.engine.draft_model import Drafting, DraftModel
    from glassloop.engine.masked import Mask

T = TypeVar("T")

_MOST_KEPT = 512  # rows of logits that are kept while the next step runs


@dataclass
class Flight:
    """A step that a device computes while the host does something else."""

    call: Call
    results: Any
    choices: StartedChoices
    tasks: Sequence[Task]  # for which a token is chosen
    places: Sequence[int]  # the row of each of them
    lines: dict[Task, int]  # the line of the choices of each of them
    promised: dict[int, int]  # by promise: the line of the step before that predicts its token
    dropped: set[Task]  # whose rows were computed with another token than the one that was chosen
    seconds: float

    def lands(self, task: Task) -> bool:
        """Returns whether a task waits for its rows."""
        return not task.ended and task not in self.dropped


class Predicted:
    """How often the device's predictions of tokens have been right of late."""

    def __init__(self) -> None:
        self.share = 1.0
        self._missed = 0  # steps without predictions

    def saw(self, predictions: int, wrong: int) -> None:
        if predictions:
            self.share += 0.1 * (1.0 - wrong / predictions - self.share)

    def retry(self) -> bool:
        """Returns whether to try again although they were wrong too often; now and then."""
        self._missed += 1
        return self._missed % 32 == 0


class LoadedAdapter(NamedTuple):
    number: int  # of the rows on which it acts
    sha256: str  # of its files


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
        self._recent_runs = RecentRuns()
        self._draft_model: Drafting | None = draft
        self.adapters: Mapping[str, LoadedAdapter] = {}  # by name; replaced as a whole
        self._retired: set[int] = set()  # the numbers of adapters that requests may still use
        self._chain_drafts: ChainDrafts | None = None
        if transformer.chain is not None and draft is None:
            from glassloop.engine.chain_drafts import ChainDrafts

            self._chain_drafts = ChainDrafts(transformer.chain, self.tree, self._step_cost, self._recent_runs)
        # Whether a step is launched before the last one is committed. Drafts of a model wait for the tokens.
        self.runs_ahead = self._row_ops.start is not None and draft is None and self._chain_drafts is None
        self._flight: Flight | None = None  # the step that is under way between two calls of `step`
        self._predicted = Predicted()

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def add(self, request: Request | Reading) -> None:
        """Queues a request. If something is wrong with it, that is its own error and told as such."""
        try:
            tasks = self._tasks_of(request)
            self._check(tasks[0])
            self._check_pass(tasks[0])
        except Exception as error:
            request.fail(error)
            return
        self._tasks[request] = tasks
        self.scheduler.add(tasks[0])  # the other samples of the request wait for it

    def cancel(self, request: Asker) -> None:
        """Ends a request where it is. All that it held is free with this call."""
        self._finish(request, CANCELLED)

    def cancel_all(self) -> None:
        for request in list(self._tasks):
            self.cancel(request)

    def fail_all(self, error: Exception) -> None:
        self._flight = None
        for tasks in list(self._tasks.values()):
            for task in list(tasks):
                self._attempt(task, task.fail, error)

    def add_adapter(self, name: str, adapter: LoadedAdapter) -> None:
        self.adapters = {**self.adapters, name: adapter}

    def remove_adapter(self, name: str) -> None:
        """Makes an adapter unknown to new requests; it is unloaded when those that use it have ended."""
        self._retired.add(self.adapters[name].number)
        self.adapters = {other: adapter for other, adapter in self.adapters.items() if other != name}
        self._unload_retired()

    def _unload_retired(self) -> None:
        tasks = [task for each in self._tasks.values() for task in each]
        used = {branch.adapter for task in tasks for branch in task.branches}
        for number in self._retired - used:
            self.transformer.unload_adapter(number)
            self.tree.forget(number)
        self._retired &= used

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def draft_by_masks(self, mask: Mask) -> None:
        """Makes the model itself, by filling masks, propose the drafts of all requests that come from now."""
        from glassloop.engine.mask_drafts import MaskDrafts

        self._chain_drafts, self._draft_model = None, MaskDrafts(self.transformer, self.tree, mask)

    # ── a step ─────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        """Computes the next rows of the tasks and moves each task on by their results."""
        began = perf_counter()
        self._end_overdue()
        if not (self._step_ahead() if self.runs_ahead else self._step_alone()):
            self._make_way()
            return
        self._draft()
        self.counters.steps += 1
        self.counters.step_seconds += perf_counter() - began

    def _step_alone(self) -> bool:
        """Computes and commits a step. Returns False if nothing could be planned."""
        plan = self.scheduler.plan()
        for call in plan:
            results, seconds = self._forward(call, call.batch())
            if results is not None:
                chosen = self._choose(call, results)
                self._measure(call, self.transformer.ops.seconds(results) or seconds)
                self._commit(call, results, chosen)
        return bool(plan)

    def _step_ahead(self) -> bool:
        """Commits the step that is under way, or else one that is planned here, while the device computes the
        next one. Returns False if nothing could be planned."""
        flight, self._flight = self._flight, None
        if flight is None:
            if not self.scheduler.plans_ahead:
                return self._step_alone()
            plan = self.scheduler.plan()
            if not plan:
                return False
            flight = self._launch(plan[0].works)
        following = self._launch_after(flight)
        predicted = self._land(flight)
        if following is not None:
            self._settle(following, predicted)
            self._flight = following
        return True

    def _launch(self, works: list[Work], before: Flight | None = None) -> Flight:
        """Begins to compute a step, after another one that is under way."""
        call = Call(None, works)
        batch, lines = call.batch(), dict[int, int]()
        if before is not None:
            lines = {work.ids[0]: before.lines[work.task] for work in works if work.ids[0] < 0}
            tokens = [token if token >= 0 else -1 - lines[token] for token in batch.tokens]
            batch = batch._replace(tokens=tokens, after=before.choices.started)
        results, seconds = self._forward(call, batch)
        choosing = [
            (work.task, work.task.decoder, place, work.first + len(work.ids) - work.wanted + 1)
            for place, work in _places(works)
            if work.wanted
        ]
        chosen = [each for each in choosing if each[1] is not None]
        tasks, decoders, places, positions = zip(*chosen, strict=True) if chosen else ((), (), (), ())
        choices = StartedChoices(decoders, results, places, positions)
        by_task = {} if choices.started is None else {task: line for line, task in enumerate(tasks)}
        return Flight(call, results, choices, tasks, places, by_task, lines, set(), seconds)

    def _launch_after(self, flight: Flight) -> Flight | None:
        """Begins to compute the step after one that is under way, if enough of its rows can be followed."""
        works = flight.call.works
        if len(flight.results) > _MOST_KEPT or not self.scheduler.plans_ahead:
            return None
        rows = [work for work in works if work.wanted and flight.lands(work.task)]
        going = [
            work.task
            for work in rows
            if work.wanted == 1 and work.task in flight.lines and work.task.runs_ahead(len(rows))
        ]
        # The other tasks skip this step: their tokens come in every second one only. So do those of tasks
        # whose tokens are predicted wrongly, as by rules that the device does not know.
        if 2 * len(going) * self._predicted.share < len(rows) and not self._predicted.retry():
            return None
        planned = self.scheduler.plan_ahead(going, {work.task for work in rows})
        return self._launch(planned, flight) if planned else None

    def _land(self, flight: Flight) -> Sequence[int]:
        """Waits for a step and commits it. Returns the tokens that the device had predicted, by line."""
        call, wanted = flight.call, [flight.lands(task) for task in flight.tasks]
        found, predicted = flight.choices.finish(wanted)
        chosen: list[Chosen | Exception | None] = [None] * sum([work.wanted for work in call.works])
        for place, made in zip(flight.places, found, strict=True):
            chosen[place] = made
        self._measure(call, self.transformer.ops.seconds(flight.results) or flight.seconds)
        self._commit(call, flight.results, chosen, flight.dropped)
        return predicted

    def _settle(self, following: Flight, predicted: Sequence[int]) -> None:
        """Names the tokens of rows that were launched before these were known, and drops the rows that were
        computed with another token than the one that was chosen."""
        for work in following.call.works:
            promise = work.ids[0]
            if promise >= 0 or work.task.ended:
                continue
            token = work.task.branches[0].tokens[-1]
            if predicted and predicted[following.promised[promise]] == token:
                self.tree.fulfil(work.path, token)
            else:
                self.tree.cut(work.path, work.first)
                following.dropped.add(work.task)
        self._predicted.saw(len(following.promised), len(following.dropped))

    def _end_overdue(self) -> None:
        """Ends the requests whose time is up or whose results are not wanted any more."""
        for request, ending in [(each, each.overdue()) for each in self._tasks]:
            if ending is not None:
                self._finish(request, ending)

    def _draft(self) -> None:
        """Lets the drafter or the draft model, if there is one, propose the next tokens of the runs that were
        committed."""
        self._step_cost.rows = max(1, len(self.scheduler.running))
        if self._chain_drafts is not None:
            self._chain_drafts.make_drafts()
        elif self._draft_model is not None:
            self._draft_model.make_drafts()

    def _forward(self, call: Call, batch: Batch) -> tuple[Any, float]:
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

    def _measure(self, call: Call, seconds: float) -> None:
        """Counts the rows of a call and the time that they took."""
        rows, wanted = sum([len(work.ids) for work in call.works]), sum([work.wanted for work in call.works])
        # Rows that need no logits, as those of prompts, are cheaper and would blur what decoding costs.
        if call.program is None and wanted == rows:
            self._step_cost.saw(rows, seconds)
        self.counters.rows += rows
        self.counters.forward_seconds += seconds

    def _choose(self, call: Call, results: Any) -> list[Chosen | Exception | None]:
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

    def _commit(
        self,
        call: Call,
        results: Any,
        chosen: Sequence[Chosen | Exception | None],
        dropped: Collection[Task] = (),
    ) -> None:
        """Hands every task its rows, but for those that have ended or are dropped. A task with several
        branches gets the rows of all of them at once."""
        gathered: dict[Task, list[Row]] = {}
        for at, work in _places(call.works):
            rows = gathered.setdefault(work.task, [])
            for place in range(at, at + work.wanted):
                rows.append(Row(results, place, chosen[place]))
        for task, rows in gathered.items():
            if rows and not task.ended and task not in dropped:
                self._attempt(task, task.advance, rows)
            if len(rows) > 1 and not task.ended and task not in dropped:
                for branch in task.branches:
                    branch.drop_rejected(self.tree)

    def _make_way(self) -> None:
        """Ends the first waiting task, if any: nothing could be planned, so even alone it has no room."""
        if self.scheduler.waiting:
            task = self.scheduler.waiting[0]
            self._attempt(task, task.finish, Ending("length", "kv memory"))

    def _finish(self, request: Asker, ending: Ending) -> None:
        for task in list(self._tasks.get(request, ())):
            self._attempt(task, task.finish, ending)

    def _attempt(self, task: Task, action: Callable[[T], None], given: T) -> None:
        """Runs an action of a task. An error ends this task alone, and a task that has ended gives back what
        it held."""
        try:
            action(given)
        except Exception as error:
            task.fail(error)
        if not task.ended:
            return
        self.scheduler.remove(task)
        self._tasks[task.request].remove(task)
        if not self._tasks[task.request]:
            del self._tasks[task.request]
            task.request.count(self.counters)
        if self._retired:
            self._unload_retired()

    # ── tasks ──────────────────────────────────────────────────────────────────────────────────────────────

    def _tasks_of(self, request: Request | Reading) -> list[Task]:
        order = (-request.priority, next(self._arrivals))
        if isinstance(request, Reading):
            request.order = request.order if request.is_next_piece else order
            request.host = self.transformer.ops.host
            self._check_number(request.branches[0].adapter)
            return [request]
        request.adapter = self._adapter_of(request)
        own = request.own_tasks(self, order)
        if own is not None:
            return own
        if self.transformer.config.mask_token is not None:
            raise GlassloopError(
                "this model fills masks and does not write from left to right; diffuse() is expected"
            )
        if request.sampling.beam_width > 1:
            from glassloop.engine.beams import Beams

            decoder = self.decoder(request.runs[0], request.prompt_ids, request.compiled)
            return [Beams(request, order, decoder, self.tokenizer, self._pieces, self.tree)]
        samples = [self._sample(request, run, order) for run in request.runs]
        samples[0].siblings = samples[1:]
        return list(samples)

    def _adapter_of(self, request: Request) -> int:
        """Returns the number of the adapter that a request names. Raises if it is not loaded any more."""
        name = request.sampling.adapter
        if name is None:
            return 0
        loaded = self.adapters.get(name)
        if loaded is None or loaded.sha256 != request.runs[0].adapters.get(name):
            raise SamplingError.about("adapter", f"is {shown(name)}, which was unloaded meanwhile")
        return loaded.number

    def _check_number(self, number: int) -> None:
        if number and number not in [adapter.number for adapter in self.adapters.values()]:
            raise GlassloopError("the adapter was unloaded meanwhile")

    def _sample(self, request: Request, run: Run, order: tuple[int, int]) -> Sample:
        decoder = self.decoder(run, run.prompt_ids, request.compiled)
        guesser: Guesser | None = None
        if run.sampling.revise:
            return self._revising(request, run, order, decoder)
        if request.drafts and self._chain_drafts is not None:
            guesser = self._chain_drafts.guesser(run, decoder)
        elif request.drafts and self._draft_model is None:
            guesser = Lookup(self._step_cost, self._recent_runs)
        elif request.drafts and self._draft_model is not None:
            guesser = self._draft_model.guesser(run, decoder, self._step_cost)
        tools = (self.tokenizer, self._pieces, guesser, self._recent_runs, self.scheduler.add)
        return Sample(request, run, order, decoder, *tools)

    def _revising(self, request: Request, run: Run, order: tuple[int, int], decoder: Decoder) -> Sample:
        from glassloop.engine.revise import Revising

        def decoder_of(run: Run) -> Decoder:
            return self.decoder(run, run.prompt_ids, request.compiled)

        tools = (decoder, self.tokenizer, self._pieces, None, self._recent_runs, self.scheduler.add)
        return Revising(request, run, order, *tools, tree=self.tree, decoder_of=decoder_of)

    def decoder(
        self,
        drawn: Run | Past,
        prompt_ids: Sequence[int],
        compiled: Compiled | None = None,
        never: Sequence[int] = (),
    ) -> Decoder:
        """Returns a decoder with the options, seed and salt of a run, or of the past of a fork, for a branch
        of this model. Without `compiled` the options are compiled here. `never` are ids that it must not
        choose."""
        return Decoder(
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

    def _check(self, task: Task) -> None:
        """Raises unless all tokens of a new task are the model's and fit into its context. Its maker has
        checked them; but what a batch cannot compute would be an error of all tasks in it."""
        size, context = self.transformer.config.vocab_size, self.transformer.config.context
        for branch in task.branches:
            tokens = branch.tokens
            if task.masked and not tokens:
                continue
            if not tokens or len(tokens) > context:
                raise GlassloopError(f"there are {len(tokens)} tokens; 1 to {context} are expected")
            if min(tokens) < 0 or max(tokens) >= size:
                wrong = next(token for token in tokens if not 0 <= token < size)
                raise GlassloopError(f"there is a token id {wrong}; ids from 0 to {size - 1} are expected")

    def _check_pass(self, task: Task) -> None:
        """Raises unless a pass of a masked task fits into a step beside others, and its rows are the
        model's."""
        if not task.masked:
            return
        (branch,) = task.branches
        assert isinstance(branch, MaskedBranch)
        config = self.transformer.config
        # Beside other tasks half of a step is always free. A model for whole masked texts has no such tasks.
        most = self.transformer.ops.step_rows // 2 if config.mask_token is None else config.context
        rows = [*branch.kept, *branch.next.rows]
        if not 0 < len(branch.next.rows) <= most:
            raise GlassloopError(
                f"a pass has {len(branch.next.rows)} rows; 1 to {most} are expected, since they are computed"
                " in one step"
            )
        for row in rows:
            if not 0 <= row.id < config.vocab_size or not 0 <= row.position < config.context:
                raise GlassloopError(
                    f"a row has the token {row.id} at the position {row.position}; a token below"
                    f" {config.vocab_size} at a position below {config.context} is expected"
                )


def _places(works: Sequence[Work]) -> Iterator[tuple[int, Work]]:
    """Yields the works with the place of their first wanted row among the results."""
    at = 0
    for work in works:
        yield at, work
        at += work.wanted
