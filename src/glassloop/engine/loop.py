"""The loop: plan, forward, choose, commit, again and again.

It has no thread of its own: its owner adds requests and calls `step`. What a request's tokens are depends on
the request alone; what else runs, and in which order, only decides when they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from glassloop.decode.chosen import Chosen
from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.stop import Ending
from glassloop.engine.drafts import Guesser, Lookup, RecentRuns, StepCost
from glassloop.engine.masked import MaskedBranch
from glassloop.engine.reading import Reading
from glassloop.engine.request import Request
from glassloop.engine.sample import Sample
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.task import CANCELLED, Asker, Call, Counters, Row, Task
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError, SamplingError
from glassloop.model.transformer import Transformer
from glassloop.shown import shown
from glassloop.text.tokenizer import Tokenizer
from glassloop.trace.run import Past, Run
from glassloop.trace.token import Pieces

if TYPE_CHECKING:
    from glassloop.engine.chain_drafts import ChainDrafts
    from glassloop.engine.draft_model import Drafting, DraftModel
    from glassloop.engine.masked import Mask

T = TypeVar("T")


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
        plan = self.scheduler.plan()
        if not plan:
            self._make_way()
            return
        for call in plan:
            results, seconds = self._forward(call)
            if results is not None:
                chosen = self._choose(call, results)
                self._measure(call, self.transformer.ops.seconds(results) or seconds)
                self._commit(call, results, chosen)
        self._draft()
        self.counters.steps += 1
        self.counters.step_seconds += perf_counter() - began

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

    def _forward(self, call: Call) -> tuple[Any, float]:
        """Computes a call. Returns its results (of the forward pass, the logits of the wanted rows) and the
        seconds that this took.

        An error in a program ends the readings that asked for it, and the result is None.
        """
        batch, program = call.batch(), call.program
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

    def _commit(self, call: Call, results: Any, chosen: Sequence[Chosen | Exception | None]) -> None:
        """Hands every task its rows. A task with several branches gets those of all of them at once."""
        gathered: dict[Task, list[Row]] = {}
        at = 0
        for work in call.works:
            rows = gathered.setdefault(work.task, [])
            for place in range(at, at + work.wanted):
                rows.append(Row(results, place, chosen[place]))
            at += work.wanted
        for task, rows in gathered.items():
            if rows:
                self._attempt(task, task.advance, rows)
            if len(rows) > 1 and not task.ended:
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
