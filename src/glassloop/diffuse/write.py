"""Writing by diffusion: blocks of masks from left to right, each filled in passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Ending, Stopper
from glassloop.diffuse.filling import Filling
from glassloop.diffuse.options import Diffusion
from glassloop.diffuse.rows import Rows
from glassloop.engine.branch import BranchText
from glassloop.engine.deadline import Deadline
from glassloop.engine.masked import Mask, Masked, Pass
from glassloop.engine.request_maker import Prompt
from glassloop.errors import GlassloopError, SamplingError
from glassloop.ops.quant import Float32
from glassloop.text.tokenizer import Tokenizer
from glassloop.trace.passes import PassRecord
from glassloop.trace.run import Run
from glassloop.trace.token import Pieces, Token

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM

OnPass = Callable[[Run, PassRecord], None]


class Writer:
    """Writes a run block by block: the pilot of its passes."""

    def __init__(
        self,
        run: Run,
        options: Diffusion,
        decoder: Decoder,
        compiled: Compiled,
        tokenizer: Tokenizer,
        pieces: Pieces,
        mask: Mask,
        on_pass: OnPass | None = None,
    ) -> None:
        self.run = run
        self._options = options
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._mask = mask
        self._on_pass = on_pass
        self._text = BranchText(compiled)
        self._stopper = Stopper(run.sampling, tokenizer.eos_ids, run.context)
        self._began = perf_counter()
        self._first: float | None = None
        self._revisions = options.revise
        self._is_scoring = False
        width = self._width()
        self.rows = Rows(run.prompt_ids, width, [], mask)
        self._filling = Filling(width, options, decoder, mask.token)

    def _width(self) -> int:
        known, sampling = len(self.run.prompt_ids) + len(self.run.tokens), self.run.sampling
        left = min(sampling.max_tokens - len(self.run.tokens), self.run.context - known)
        return min(self._options.block, left)

    def first(self) -> Pass:
        return self.rows.of_pass(self._filling.tokens)

    def advance(self, logits: Float32) -> Pass | None:
        if self._first is None:
            self._first = perf_counter()
            self.run.timings.prefill = self._first - self._began
        self.run.timings.decode = perf_counter() - self._first
        filling = self._filling
        if self._is_scoring:
            self._is_scoring = False
            filling.take_back(self._scores(logits))
            return self.rows.of_pass(filling.tokens)
        record = filling.advance(self.rows.logits(logits, filling.tokens))
        self.run.passes.append(record)
        if self._on_pass is not None:
            self._on_pass(self.run, record)
        if not filling.is_full:
            return self.rows.of_pass(filling.tokens)
        if self._revisions:
            self._revisions -= 1
            if self._options.revise_by == "likelihood":
                self._is_scoring = True
                return self.rows.scoring(self._ids())
            filling.take_back()
            return self.rows.of_pass(filling.tokens)
        return self._next_block()

    def _ids(self) -> list[int]:
        filling = self._filling
        return [token for token in filling.tokens[: filling.length] if token is not None]

    def _scores(self, logits: Float32) -> list[float]:
        """Returns the log-probability of each token of the block from left to right."""
        ops = self._decoder.step.ops
        return [
            float(row[token]) - ops.summarize(row, 1).log_sum_exp
            for row, token in zip(logits, self._ids(), strict=True)
        ]

    def _next_block(self) -> Pass | None:
        """Adds the block to the text. Returns the first pass over the next one, if the text goes on."""
        ids = self._ids()
        for token, chosen in zip(ids, self._filling.chosen, strict=False):
            assert chosen is not None
            ending = self._take(Token(chosen, "", self._tokenizer.token_bytes(token), self._pieces, "mask"))
            if ending is not None:
                self.finish(ending)
                return None
        if self._decoder.finished:
            self.finish(Ending("stop", "grammar"))
            return None
        self.rows.extend(ids)
        self._revisions = self._options.revise
        self._filling = Filling(
            self._width(),
            self._options,
            self._decoder,
            self._mask.token,
            len(self.run.tokens),
            len(self.run.passes),
        )
        return self.rows.of_pass(self._filling.tokens)

    def _take(self, token: Token) -> Ending | None:
        """Adds a token and its text to the run. Returns the ending if that was the last one."""
        run, seconds = self.run, perf_counter() - self._began
        token.seconds, token.sample = seconds, run.sample
        ending = None
        if self._stopper.before(token.id):
            ending = Ending("stop", self._pieces(token.id))
            if not run.sampling.include_stop:
                run.end = token
                return ending
        self._decoder.commit(token.id)
        token.text = self._text.feed(token.bytes)
        run.tokens.append(token)
        return ending or self._text.ending or self._stopper.after(self._decoder.history, seconds)

    def finish(self, ending: Ending) -> bool:
        run = self.run
        if run.finish_reason is None:
            run.tail = self._text.flush()
            run.finish_reason, run.stop_reason = ending.reason, ending.detail
        return ending.reason not in ("cancelled", "error")


def diffuse(
    llm: LLM,
    prompt: Prompt,
    sampling: Sampling,
    diffusion: Diffusion | Mapping[str, Any] | None = None,
    *,
    on_pass: OnPass | None = None,
    deadline: Deadline | None = None,
) -> Run:
    """Writes the answer to a prompt; with n samples, all of them together. Returns the first run."""
    mask = llm.mask
    options = Diffusion.of(diffusion) if isinstance(diffusion, Mapping) else diffusion or Diffusion()
    request = llm.prepare(prompt, sampling)
    compiled = request.compiled
    check(request.runs[0], options, mask)
    fill(llm, request.runs, compiled, options, mask, on_pass, deadline)
    for run in request.runs:
        if llm.keep is not None:
            llm.keep(run)
    return request.runs[0]


def fill(
    llm: LLM,
    runs: Sequence[Run],
    compiled: Compiled,
    options: Diffusion,
    mask: Mask,
    on_pass: OnPass | None = None,
    deadline: Deadline | None = None,
) -> None:
    """Fills runs, all of them together, and returns when they have ended."""
    tasks = []
    for run in runs:
        decoder = llm.engine.loop.decoder(run, run.prompt_ids, compiled, (mask.token,))
        run.diffusion = options.to_dict() | {"adapter": mask.sha256}
        writer = Writer(run, options, decoder, compiled, llm.tokenizer, llm.piece, mask, on_pass)
        limit = deadline or Deadline(run.sampling.timeout)
        task = Masked(writer.rows.tokens, writer.rows.kept, writer.first(), writer, limit)
        tasks.append((run, writer, task))
        llm.engine.submit(task)
    for run, writer, task in tasks:
        try:
            task.wait()
        except GlassloopError as error:
            run.error = error
            writer.finish(Ending("error", str(error)))
            raise
        finally:
            run.cached_tokens = task.cached_tokens


def check(run: Run, options: Diffusion, mask: Mask) -> None:
    """Raises if the options of a run cannot be combined with diffusion."""
    sampling = run.sampling
    if sampling.beam_width > 1:
        raise SamplingError.about("beam_width", "is above 1; diffusion fills one text at a time")
    if sampling.revise:
        raise SamplingError.about("revise", "is given; diffusion has a revise of its own")
    if sampling.adapter is not None:
        raise SamplingError.about("adapter", "is given; diffusion has an adapter of its own, for masked rows")
    if sampling.prompt_logprobs:
        raise SamplingError.about("prompt_logprobs", "is given; diffusion does not score the prompt")
    if mask.whole and options.revise and options.revise_by == "likelihood":
        raise GlassloopError.about(
            "diffusion.revise_by", "is 'likelihood', which this model, made for masks alone, does not have"
        )
    if not run.prompt_ids:
        raise GlassloopError.about("prompt", "is empty; at least one token is expected")
    if len(run.prompt_ids) >= run.context:
        raise GlassloopError.about(
            "prompt", f"has {len(run.prompt_ids)} tokens; the context is {run.context}"
        )
