"""A sampled run while it is being made: from logits to tokens, to text, to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.stop import Ending, Stopper
from glassloop.engine.branch import Branch, BranchText
from glassloop.engine.drafts import Guesser
from glassloop.engine.request import Request
from glassloop.engine.scheduler import Row
from glassloop.ops.quant import Float32
from glassloop.text.tokenizer import Tokenizer
from glassloop.trace.run import Run
from glassloop.trace.token import Pieces, Refusal, Source, Token


class Sample:
    program = None  # its rows are those of the forward pass

    def __init__(
        self,
        request: Request,
        run: Run,
        order: tuple[int, int],
        decoder: Decoder,
        tokenizer: Tokenizer,
        pieces: Pieces,
        guesser: Guesser | None = None,
    ) -> None:
        self.request = request
        self.run = run
        self.order = order
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._guesser = guesser
        self._guess: list[int] = []
        self._text = BranchText(request.compiled)
        self._stopper = Stopper(run.sampling, tokenizer.eos_ids, run.context)
        for token in run.tokens:  # of a fork: what it kept of its parent
            decoder.commit(token.id)
            self._text.feed(token.bytes)
            self._stopper.after(decoder.history, 0.0)
        known = run.prompt_ids + run.token_ids
        self._kept = len(known)  # a fork has the records of these already
        scored = 1 if run.sampling.prompt_logprobs and not run.prompt_tokens else len(known)
        self.branches = [Branch(known + request.forced, scored)]
        self._first: float | None = None
        # The request has more samples: called once, when all that they share is computed.
        self.split: Callable[[Sample, Row], None] | None = None

    @property
    def branch(self) -> Branch:
        return self.branches[0]

    @property
    def ready(self) -> Decoder | None:
        branch = self.branches[0]
        known = branch.recorded < len(branch.tokens)
        return None if known or self.split is not None else self._decoder

    @property
    def ended(self) -> bool:
        return self.run.finish_reason is not None

    # ── before a step ──────────────────────────────────────────────────────────────────────────────────────

    def guess(self, rows: int) -> list[int]:
        if self._guesser is None or self.split is not None:
            return []
        room = min(rows, self.run.context - len(self.branch.tokens) - 1, self._left - 1)
        began = perf_counter()
        self._guess = self._guesser.guess(self.branch.tokens, room, self._decoder) if room > 0 else []
        self.run.drafts.seconds += perf_counter() - began
        return self._guess

    @property
    def _left(self) -> int:
        return self.run.sampling.max_tokens - len(self.run.tokens)

    def preempted(self) -> None:
        self._guess = []
        self.run.timings.preempted += 1

    # ── after a step ───────────────────────────────────────────────────────────────────────────────────────

    def advance(self, rows: Sequence[Row]) -> None:
        """Each row has the logits of one more token: one that is known already, or one to choose."""
        branch, drafts, guess = self.branch, self.run.drafts, self._guess
        self._guess = []
        drafts.proposed += len(guess)
        accepted = 0
        for row in rows:
            if branch.recorded < len(branch.tokens):
                self._score(row.logits)
                if self.run.finish_reason:
                    break
                continue
            if self.split is not None:
                split, self.split = self.split, None
                split(self, row)
            chosen = row.chosen or self._decoder.choose(row.logits)
            if isinstance(chosen, Exception):
                raise chosen
            guessed = accepted < len(guess) and guess[accepted] == chosen.id
            drafts.accepted += guessed  # before anybody hears of the token
            if guessed or accepted == len(guess):
                self._take(chosen, "draft" if guessed else "sampled")
            else:
                self._take(chosen, "sampled", self._refusal(guess[accepted:]))
            if not guessed or self.run.finish_reason:
                break
            accepted += 1
        if self._guesser is not None:
            self._guesser.learn(branch.tokens)

    def _refusal(self, guess: Sequence[int]) -> Refusal:
        """The first of these was wrong, so the others are nobody's."""
        assert self._guesser is not None
        return Refusal(guess[0], self._pieces(guess[0]), self._guesser.name, len(guess) - 1)

    def _score(self, logits: Float32) -> None:
        """The record of a token that was known: it is part of the prompt, or the caller forced it."""
        branch, run = self.branch, self.run
        token = branch.tokens[branch.recorded]
        if branch.recorded < len(run.prompt_ids):
            chosen = self._decoder.record_prompt(logits, token, run.sampling.prompt_logprobs)
            data = self._tokenizer.token_bytes(token)
            run.prompt_tokens.append(Token(chosen, "", data, self._pieces, "forced", self.request.seconds))
            branch.recorded += 1
        elif branch.recorded < self._kept:
            branch.recorded += 1
        else:
            self._take(self._decoder.record_forced(logits, token), "forced")

    def _take(self, chosen: Chosen, source: Source, refused: Refusal | None = None) -> None:
        """A token is in, with its text, and perhaps the run is at its end."""
        run, branch = self.run, self.branch
        now = perf_counter()
        if self._first is None:
            self._first = now
            run.timings.prefill = now - (self.request.started or now)
        run.timings.decode = now - self._first
        seconds = now - self.request.arrived
        data = self._tokenizer.token_bytes(chosen.id)
        ending = None
        if self._stopper.before(chosen.id):
            ending = Ending("stop", self._pieces(chosen.id))
            if not run.sampling.include_stop:
                run.end = Token(chosen, "", data, self._pieces, source, seconds, run.sample, refused)
                self.finish(ending)
                return
        self._decoder.commit(chosen.id)
        if branch.recorded == len(branch.tokens):
            branch.tokens.append(chosen.id)
        branch.recorded += 1
        token = Token(chosen, self._text.feed(data), data, self._pieces, source, seconds, run.sample, refused)
        run.tokens.append(token)
        ending = ending or self._text.ending or self._stopper.after(self._decoder.history, seconds)
        if ending is None:
            self.request.tell(run, token)
        else:
            self.finish(ending, token)

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, ending: Ending, last: Token | None = None) -> None:
        run = self.run
        run.tail = self._text.flush()
        run.finish_reason, run.stop_reason = ending.reason, ending.detail
        if last is not None:
            self.request.tell(run, last)
        self.request.tell(run, None)

    def fail(self, error: Exception) -> None:
        self.run.error = error
        self.finish(Ending("error", str(error)))
