"""A sampled run while it is being made: from logits to tokens, to text, to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.stop import Ending, PausingStopper, Stopper
from glassloop.engine.branch import Branch, BranchText
from glassloop.engine.drafting.drafts import Guesser, RunsByOwner, guess_room
from glassloop.engine.request import Request
from glassloop.engine.tasks.task import WantedRow
from glassloop.errors import described
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Pieces, Refusal, Source, Token
from glassloop.text.tokenizer import Tokenizer

_TOO_MANY_TO_GUESS = 32  # rows of a step, from which on another row costs a device more than a guess gains


class Sample:
    """One of the n samples of a request. The first one computes the prefix that they share; the others are
    queued once it is in the KV tree, and find it there."""

    program = None  # its rows are those of the forward pass
    masked = False

    def __init__(
        self,
        request: Request,
        run: Run,
        order: tuple[int, int],
        decoder: Decoder,
        tokenizer: Tokenizer,
        pieces: Pieces,
        guesser: Guesser | None,
        recent_runs: RunsByOwner,
        queue: Callable[[Sample], None],
    ) -> None:
        """`queue` hands a sibling to the scheduler."""
        self.request = request
        self.order = order
        self.siblings: list[Sample] = []  # the samples that wait for this one to compute their prefix
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._guesser = guesser
        self._guess: list[int] = []
        self._guess_is_own = True
        self._recent_runs = recent_runs
        self._queue = queue
        self._restore(run, decoder)
        known = run.prompt_ids + run.token_ids
        self._kept = len(known)  # a fork has the records of these already
        # The prompt has records from its second token on; an interrupted run may have some of them.
        scored = 1 + len(run.prompt_tokens) if run.sampling.prompt_logprobs else len(known)
        if scored >= len(run.prompt_ids):
            scored = len(known)
        self.branches = [Branch(known + request.forced, scored, request.adapter, request.realm)]
        self._first: float | None = None  # when the first token was taken
        # Not `run.finish_reason`: the caller that is told of the end may continue the run at once.
        self.ended = False

    def _restore(self, run: Run, decoder: Decoder) -> None:
        """Takes up a run with the tokens that it has: a fork has kept these of its parent."""
        self.run = run
        self._decoder = decoder
        self._text = BranchText(self.request.compiled)
        conditions = (run.sampling, self._tokenizer.eos_ids, run.context)
        pause = self.request.pause
        self._stopper = Stopper(*conditions) if pause is None else PausingStopper(*conditions, pause)
        for token in run.tokens:
            decoder.commit(token.id, token.chosen)
            self._text.feed(token.bytes, may_stop=False)
            self._stopper.after(decoder.history, 0.0)

    @property
    def branch(self) -> Branch:
        return self.branches[0]

    @property
    def decoder(self) -> Decoder | None:
        branch = self.branches[0]
        return None if branch.recorded < len(branch.tokens) else self._decoder

    # ── before a step ──────────────────────────────────────────────────────────────────────────────────────

    def guess(self, rows: int) -> list[int]:
        if self._guesser is None:
            return []
        room = min(rows, guess_room(self.run, len(self.branch.tokens)))
        began = perf_counter()
        self._guess = self._guesser.guess(self.branch.tokens, room) if room > 0 else []
        self._guess_is_own = self._guesser.is_own
        self.run.drafts.seconds += perf_counter() - began
        return self._guess

    def runs_ahead(self, beside: int) -> bool:
        """Returns whether the row of the next token can be computed, in the same step as `beside` others,
        before the token that is being chosen now is known: that does not surely end the run, and there is no
        draft in sight, which is worth more."""
        branch = self.branch
        return (
            branch.recorded == len(branch.tokens)
            and (self._guesser is None or beside >= _TOO_MANY_TO_GUESS or not self._has_guess(self._guesser))
            and not self._stopper.ends_next(self._decoder.history)
        )

    def _has_guess(self, guesser: Guesser) -> bool:
        """Returns whether there is a guess at the token that is being chosen now, and so perhaps one at those
        after it."""
        room = guess_room(self.run, len(self.branch.tokens))
        return room > 0 and bool(guesser.guess(self.branch.tokens, room))

    def preempted(self) -> None:
        self._guess = []
        self.run.timings.preempted += 1

    # ── after a step ───────────────────────────────────────────────────────────────────────────────────────

    def advance(self, rows: Sequence[WantedRow]) -> None:
        """Each row has the logits of one more token: one that is known already, or one to choose."""
        branch, drafts, guess = self.branch, self.run.drafts, self._guess
        self._guess = []
        drafts.proposed += len(guess)
        accepted = 0
        for row in rows:
            if branch.recorded < len(branch.tokens):
                self._score(row.logits)
                if self.ended:
                    break
                continue
            chosen = row.chosen or self._decoder.choose(row.logits)
            if isinstance(chosen, Exception):
                raise chosen
            guessed = accepted < len(guess) and guess[accepted] == chosen.id
            drafts.accepted += guessed  # before any listener is told of the token
            if guessed or accepted == len(guess):
                self._take(chosen, "draft" if guessed else "sampled")
            else:
                self._take(chosen, "sampled", self._refusal(guess[accepted:]))
            if not guessed or self.ended:
                break
            accepted += 1
        if self._guesser is not None:
            self._guesser.learn(branch, row.place)

    def _refusal(self, guess: Sequence[int]) -> Refusal | None:
        """Returns the record of the first of these guesses, which was wrong; the others were not compared. A
        guess from another run is not recorded: it is a part of that run's text."""
        assert self._guesser is not None
        if not self._guess_is_own:
            return None
        return Refusal(guess[0], self._pieces(guess[0]), self._guesser.name, len(guess) - 1)

    def _score(self, logits: Float32) -> None:
        """Records a token that is known: it is part of the prompt, or the caller has forced it."""
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
        """Adds a token and its text to the run, and ends the run if that was the last one. A text that the
        caller has forced is taken as a whole: within it, only the clock or the caller ends the run."""
        run, branch = self.run, self.branch
        is_last_known = branch.recorded + 1 >= len(branch.tokens)
        now = perf_counter()
        if self._first is None:
            self._first = now
            run.timings.prefill = now - (self.request.started or now)
            self._queue_siblings()
        run.timings.decode = now - self._first
        seconds = now - self.request.arrived
        data = self._tokenizer.token_bytes(chosen.id)
        ending = None
        if is_last_known and self._stopper.before(chosen.id):
            ending = Ending("stop", self._pieces(chosen.id))
            if not run.sampling.include_stop:
                run.end = Token(chosen, "", data, self._pieces, source, seconds, run.sample, refused)
                self.finish(ending)
                return
        self._decoder.commit(chosen.id, chosen)
        if branch.recorded == len(branch.tokens):
            branch.tokens.append(chosen.id)
        branch.recorded += 1
        text = self._text.feed(data, is_last_known and ending is None)
        token = Token(chosen, text, data, self._pieces, source, seconds, run.sample, refused)
        run.tokens.append(token)
        ending = ending or self._text.ending or self._stopper.after(self._decoder.history, seconds)
        if not is_last_known and ending is not None and ending.reason in ("length", "repetition"):
            ending = None
        if ending is None:
            self.request.tell(run, token)
        else:
            self.finish(ending, token)

    def _queue_siblings(self) -> None:
        """Queues the samples that wait for the prefix, which is in the tree now. They share its records."""
        for sample in self.siblings:
            if sample.ended:  # it was stopped meanwhile
                continue
            sample.run.prompt_tokens = self.run.prompt_tokens
            sample.branch.recorded = sample._kept
            self._queue(sample)
        self.siblings = []

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, ending: Ending, last: Token | None = None) -> None:
        """Ends the run. `last` is its last token if the listener has not been told of it yet."""
        run = self.run
        self.ended = True
        run.tail = self._text.flush()
        run.finish_reason, run.stop_reason = ending.reason, ending.detail
        if ending.reason != "error":
            self._recent_runs.add(self.request.owner, self.branch.tokens, run.id)
        waiting = [sample for sample in self.siblings if not sample.ended]
        if waiting:  # it has not computed the prefix, so the next sample does
            waiting[0].siblings, self.siblings = waiting[1:], []
            self._queue(waiting[0])
        if last is not None:
            self.request.tell(run, last)
        self.request.tell(run, None)

    def fail(self, error: Exception) -> None:
        self.run.error = error
        self.finish(Ending("error", described(error)))
