"""Writing by diffusion: blocks of masks from left to right, each filled in passes.

A `DiffusionRequest` is a request like any other: it is submitted, followed, cancelled and kept in the same
ways. Its tasks are `DiffusionWriter`s, one for each run. The listener gets the tokens of a block once the
block is final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Ending
from glassloop.decode.task_kinds import DIFFUSION
from glassloop.diffuse.filling import Filling, check_stages_can_fill
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import complete, raise_error
from glassloop.engine.request import Request
from glassloop.engine.request_maker import Prompt
from glassloop.engine.tasks.context import TaskContext
from glassloop.engine.tasks.make import tasks_of
from glassloop.engine.tasks.masked import Mask, MaskedBranch, Pass, PassTask
from glassloop.engine.tasks.run_writer import BranchWriter, RunWriter
from glassloop.engine.tasks.task import CANCELLED, Task, WantedRow
from glassloop.errors import GlassloopError
from glassloop.ops.protocol import Array
from glassloop.ops.quant import Float32
from glassloop.record.origin import ByMasks
from glassloop.record.passes import MOST_CHANGES, PassRecord
from glassloop.record.run import Run

if TYPE_CHECKING:
    from glassloop.engine.language_model import LanguageModel
    from glassloop.engine.local import LocalModel
    from glassloop.engine.protocol import Engine

# Called after each pass of each run, on the engine's thread: it must be quick.
OnPass = Callable[[Run, PassRecord], None]


@dataclass(eq=False)
class DiffusionRequest(Request):
    """A request whose runs are written by filling masks."""

    options: Diffusion = field(default_factory=Diffusion)
    mask: Mask = field(default_factory=lambda: Mask(0))
    on_pass: OnPass | None = None
    deadline: Deadline | None = None  # in place of the timeout of the options

    def overdue(self) -> Ending | None:
        if self.deadline is None:
            return super().overdue()
        late = self.deadline.cancelled or self.deadline.expired
        return self.abandoned or (CANCELLED if late else None)


@tasks_of.register(DiffusionRequest)
def _writers(request: DiffusionRequest, context: TaskContext, order: tuple[int, int]) -> list[Task]:
    """Returns a writer for each run. Raises if a pass of the first one does not fit into a step."""
    request.adapter = context.adapters.number_of(request.sampling.adapter, request.runs[0].adapters)
    writers = [DiffusionWriter(request, run, order, context) for run in request.runs]
    writers[0].branch.check_pass(context.transformer, "diffusion.block")
    writers[0].siblings = [*writers[1:]]
    return [*writers]


class DiffusionWriter(PassTask, RunWriter):
    """Writes a run block by block: the task of a run of a `DiffusionRequest`."""

    request: DiffusionRequest

    def __init__(
        self, request: DiffusionRequest, run: Run, order: tuple[int, int], context: TaskContext
    ) -> None:
        super().__init__(request, run, order, context)
        self._options, self._mask = request.options, request.mask
        self._writer = BranchWriter.of(request, run, context, never=(self._mask.token,))
        self._host: Callable[[Array], Float32] = context.transformer.ops.host
        self._revisions = self._options.revise
        self._is_scoring = False
        self._changes = 0  # in the record of the passes
        width = self._width()
        self._rows = MaskedRows(run.prompt_ids, width, [], self._mask)
        self._filling = Filling(width, self._options, self._writer.decoder, self._mask.token)
        first = self._rows.of_pass(self._filling.places)
        self.branch = MaskedBranch(self._rows.tokens, self._rows.kept, first, request.realm)
        self.branches = [self.branch]

    def _width(self) -> int:
        length, sampling = len(self.run.prompt_ids) + len(self.run.tokens), self.run.sampling
        left = min(sampling.max_tokens - len(self.run.tokens), self.run.context - length)
        return min(self._options.block, left)

    def advance(self, rows: Sequence[WantedRow]) -> None:
        now, place = perf_counter(), rows[0].place
        if self._first is None:
            self._begin_writing(now)
        self.run.timings.decode = now - (self._first or now)
        following = self._pass(self._host(rows[0].results[place : place + len(rows)]))
        if following is None:
            return
        self.branch.next = following
        if self._changes >= MOST_CHANGES:
            self.finish(Ending("length", f"{MOST_CHANGES} changes"))

    def _pass(self, logits: Float32) -> Pass | None:
        """Takes the logits of a pass. Returns the next pass, or None if the text has ended."""
        filling, rows = self._filling, self._rows
        if self._is_scoring:
            self._is_scoring = False
            filling.take_back(self._scores(logits))
            return rows.of_pass(filling.places)
        record = filling.advance(rows.logits(logits, filling.places))
        self.run.add_pass(record)
        self._changes += len(record.filled) + len(record.unfilled)
        if self.request.on_pass is not None:
            self.request.on_pass(self.run, record)
        if not filling.is_full:
            return rows.of_pass(filling.places)
        if self._revisions:
            self._revisions -= 1
            if self._options.revise_by == "likelihood":
                self._is_scoring = True
                return rows.scoring(self._ids())
            filling.take_back()
            return rows.of_pass(filling.places)
        return self._next_block()

    def _ids(self) -> list[int]:
        return [token for token in self._filling.places if token is not None]

    def _scores(self, logits: Float32) -> list[float]:
        """Returns the log-probability of each token of the block from left to right."""
        ops = self._writer.decoder.step.ops
        return [
            float(row[token]) - ops.summarize(row, 1).log_sum_exp
            for row, token in zip(logits, self._ids(), strict=True)
        ]

    def _next_block(self) -> Pass | None:
        """Adds the block to the text. Returns the first pass over the next one, if the text goes on."""
        ids, run, writer = self._ids(), self.run, self._writer
        for chosen in self._filling.chosen[: len(ids)]:
            assert chosen is not None
            self._add(writer.take(chosen, "mask", self.request.seconds, run.sample))
            if self.ended:
                return None
        if writer.decoder.finished:
            self.finish(Ending("stop", "grammar"))
            return None
        self._rows.extend(ids)
        self._revisions = self._options.revise
        written = len(run.tokens), len(run.passes)
        self._filling = Filling(self._width(), self._options, writer.decoder, self._mask.token, *written)
        return self._rows.of_pass(self._filling.places)


# ── requests ───────────────────────────────────────────────────────────────────────────────────────────────


def by_diffusion(
    llm: LanguageModel, request: Request, diffusion: Diffusion | Mapping[str, Any] | int | None = None
) -> DiffusionRequest:
    """Returns a prepared request as one whose runs are written by diffusion. Raises if the model has no masks
    or the options cannot be combined."""
    mask = llm.mask
    options = Diffusion.of(diffusion)
    DIFFUSION.check(request.sampling)
    check_revision(options, mask)
    check_stages_can_fill(request.sampling)
    check_prompt(request.runs[0])
    for run in request.runs:
        run.origin = ByMasks(options.to_dict() | {"adapter": mask.sha256})
    plain = {field.name: getattr(request, field.name) for field in fields(Request)}
    return DiffusionRequest(**plain, options=options, mask=mask)


def prepare_diffusion(
    llm: LanguageModel,
    prompt: Prompt,
    sampling: Sampling,
    diffusion: Diffusion | Mapping[str, Any] | int | None = None,
    **request_options: Any,
) -> DiffusionRequest:
    """Returns a request, as `LanguageModel.prepare` does, whose runs are written by diffusion. Without
    `diffusion` its options are those of `sampling`, or the defaults."""
    options = Diffusion.of(sampling.diffusion if diffusion is None else diffusion)
    plain = llm.prepare(prompt, replace(sampling, diffusion=None), **request_options)
    return by_diffusion(llm, plain, options)


def diffuse(
    llm: LocalModel,
    prompt: Prompt,
    sampling: Sampling,
    diffusion: Diffusion | Mapping[str, Any] | int | None = None,
    *,
    on_pass: OnPass | None = None,
    deadline: Deadline | None = None,
) -> Run:
    """Writes the answer to a prompt; with n samples, all of them together. Returns the first run.
    `prepare_diffusion` has the options."""
    request = prepare_diffusion(llm, prompt, sampling, diffusion)
    request.on_pass, request.deadline = on_pass, deadline
    return finish(llm, request)


def finish(llm: LocalModel, request: DiffusionRequest) -> Run:
    """Computes a request to its end. Returns its first run; raises its error, and when the deadline has
    ended it."""
    complete(llm.engine, [request], progress=False)
    if request.deadline is not None and any(run.finish_reason == "cancelled" for run in request.runs):
        request.deadline.check()
    for run in request.runs:
        raise_error(run)
    return request.runs[0]


def follow_passes(engine: Engine, request: DiffusionRequest) -> Iterator[tuple[Run, PassRecord]]:
    """Yields the passes of a request as they happen. Leaving the iteration early cancels the request."""
    engine.check_may_wait()
    queue: SimpleQueue[tuple[Run, PassRecord | None]] = SimpleQueue()
    request.on_pass = lambda run, record: queue.put((run, record))
    request.listener = lambda run, token: queue.put((run, None)) if token is None else None
    open_runs = len(request.runs)
    engine.submit(request)
    try:
        while open_runs:
            run, record = queue.get()
            if record is not None:
                yield run, record
            else:
                open_runs -= 1
                raise_error(run)
    finally:
        if not request.ended:
            engine.cancel(request, wait=True)


def check_revision(options: Diffusion, mask: Mask) -> None:
    """Raises if a model cannot take tokens back in the way that the options ask for."""
    if mask.whole and options.revise and options.revise_by == "likelihood":
        raise GlassloopError.about(
            "diffusion.revise_by", "is 'likelihood', which this model, made for masks alone, does not have"
        )


def check_prompt(run: Run) -> None:
    if not run.prompt_ids:
        raise GlassloopError.about("prompt", "is empty; at least one token is expected")
    if len(run.prompt_ids) >= run.context:
        raise GlassloopError.about(
            "prompt", f"has {len(run.prompt_ids)} tokens; the context is {run.context}"
        )
