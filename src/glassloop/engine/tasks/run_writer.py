"""How a run is written: take a token, turn it into text, see whether it ends the text, tell the listener.

Samples and texts by diffusion are `RunWriter`s. Beams write the same way, each into a `BranchWriter`, and
become runs when the search has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.stop import Ending, Pause, PausingStopper, Stopper
from glassloop.engine.branch import BranchText
from glassloop.engine.request import Request
from glassloop.engine.tasks.context import TaskContext
from glassloop.engine.tasks.task import Task
from glassloop.errors import described
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Pieces, Refusal, Source, Token
from glassloop.text.tokenizer import Tokenizer

# A token, how the text ends with it (None: it goes on), and whether it is a part of the text: a token that
# ended the text may be none.
TakenToken = tuple[Token, Ending | None, bool]


class BranchWriter:
    """The state of one branch between tokens: its decoder, its text and its stop conditions."""

    __slots__ = ("_pieces", "_tokenizer", "decoder", "stopper", "text")

    def __init__(
        self, decoder: Decoder, text: BranchText, stopper: Stopper, tokenizer: Tokenizer, pieces: Pieces
    ) -> None:
        self.decoder = decoder
        self.text = text
        self.stopper = stopper
        self._tokenizer = tokenizer
        self._pieces = pieces

    @staticmethod
    def of(
        request: Request,
        run: Run,
        context: TaskContext,
        *,
        pause: Pause | None = None,
        never: Sequence[int] = (),
    ) -> BranchWriter:
        """Restores the state from the tokens that a run already has. `never` are ids that it must not
        choose."""
        decoder = context.decoder(run, run.prompt_ids, request.compiled, never, request.own_time)
        text = BranchText(request.compiled)
        conditions = (run.sampling, context.tokenizer.eos_ids, run.context)
        stopper = Stopper(*conditions) if pause is None else PausingStopper(*conditions, pause)
        for token in run.tokens:
            decoder.commit(token.id, token.chosen)
            text.feed(token.bytes, may_stop=False)
            stopper.after(decoder.history, 0.0)
        return BranchWriter(decoder, text, stopper, context.tokenizer, context.pieces)

    def fork(self) -> BranchWriter:
        """Returns the state of another branch with the same tokens so far."""
        return BranchWriter(
            self.decoder.fork(), self.text.fork(), self.stopper.fork(), self._tokenizer, self._pieces
        )

    def take(
        self,
        chosen: Chosen,
        source: Source,
        seconds: float,
        sample: int = 0,
        refused: Refusal | None = None,
        more_known: bool = False,
    ) -> TakenToken:
        """Adds a token. If more tokens are known after it, a text that the caller has forced is taken as a
        whole: within it, only the clock or the caller ends the run."""
        token_id, decoder = chosen.id, self.decoder
        data = self._tokenizer.token_bytes(token_id)
        ending = None
        if not more_known and self.stopper.before(token_id):
            ending = Ending("stop", self._pieces(token_id))
            if not decoder.sampling.include_stop:
                end = Token(chosen, "", data, self._pieces, source, seconds, sample, refused)
                return end, ending, False
        decoder.commit(token_id, chosen)
        text = self.text.feed(data, not more_known and ending is None)
        token = Token(chosen, text, data, self._pieces, source, seconds, sample, refused)
        ending = ending or self.text.ending or self.stopper.after(decoder.history, seconds)
        if more_known and ending is not None and ending.reason in ("length", "repetition"):
            ending = None
        return token, ending, True

    def score_prompt(self, logits: Float32, token: int, seconds: float) -> Token:
        """Returns the record of a token of the prompt."""
        chosen = self.decoder.record_prompt(logits, token, self.decoder.sampling.prompt_logprobs)
        return Token(chosen, "", self._tokenizer.token_bytes(token), self._pieces, "forced", seconds)


class RunWriter(Task):
    """The task of one of the n runs of a request. The first one computes the prefix that they share; the
    others are queued once it is in the KV tree, and find it there."""

    request: Request

    def __init__(self, request: Request, run: Run, order: tuple[int, int], context: TaskContext) -> None:
        self.request = request
        self.order = order
        self.run = run
        self.siblings: list[RunWriter] = []  # the runs that wait for this one to compute their prefix
        self._context = context
        self._writer: BranchWriter
        self._first: float | None = None  # when the first token was taken

    def preempted(self) -> None:
        self.run.timings.preempted += 1

    def _begin_writing(self, now: float) -> None:
        """Notes when the first results came. The prefix is in the tree now, so the runs that wait for it are
        queued."""
        self._first = now
        self.run.timings.prefill = now - (self.request.started or now)
        siblings, self.siblings = self.siblings, []
        for sibling in siblings:
            if not sibling.ended:  # else it was stopped meanwhile
                sibling._share_prefix(self.run)
                self._context.queue(sibling)

    def _share_prefix(self, first: Run) -> None:
        """Called when the first run of the request has computed the prefix, before this one is queued."""

    def _add(self, taken: TakenToken) -> None:
        """Adds a token to the run and tells the listener; ends the run if that was the last one."""
        token, ending, is_text = taken
        run = self.run
        if not is_text:
            assert ending is not None
            run.end = token
            self.finish(ending)
            return
        run.tokens.append(token)
        if ending is None:
            self.request.tell(run, token)
        else:
            self.finish(ending, token)

    def finish(self, ending: Ending, last: Token | None = None) -> None:
        """Ends the run. `last` is its last token if the listener has not been told of it yet."""
        run = self.run
        self.ended = True  # not `run.finish_reason`: a caller that is told of the end may continue the run
        run.tail = self._writer.text.flush()
        run.finish_reason, run.stop_reason = ending
        waiting = [sibling for sibling in self.siblings if not sibling.ended]
        if waiting:  # it has not computed the prefix, so the next run does
            waiting[0].siblings, self.siblings = waiting[1:], []
            self._context.queue(waiting[0])
        if last is not None:
            self.request.tell(run, last)
        self.request.tell(run, None)

    def fail(self, error: Exception) -> None:
        self.run.error = error
        self.finish(Ending("error", described(error)))
