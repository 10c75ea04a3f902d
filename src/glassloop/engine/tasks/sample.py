"""A sampled run while it is being made: from logits to tokens. run_writer.py turns these into a text."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.stop import Ending
from glassloop.engine.branch import Branch
from glassloop.engine.drafting.guesser import Guesser, guess_room
from glassloop.engine.request import Request
from glassloop.engine.tasks.context import TaskContext
from glassloop.engine.tasks.run_writer import BranchWriter, RunWriter
from glassloop.engine.tasks.task import WantedRow
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Refusal, Source, Token

_TOO_MANY_TO_GUESS = 32  # rows of a step, from which on another row costs a device more than a guess gains


class Sample(RunWriter):
    """One of the n samples of a request, written token by token from left to right."""

    _makes_guesses = True

    def __init__(self, request: Request, run: Run, order: tuple[int, int], context: TaskContext) -> None:
        super().__init__(request, run, order, context)
        self._restore(run)
        self._guesser: Guesser | None = None
        if request.drafts and self._makes_guesses:
            decoder = self._writer.decoder
            self._guesser = context.drafts.guesser(run, decoder, request.owner, request.realm)
        self._guess: list[int] = []
        self._guess_is_own = True
        token_ids = run.prompt_ids + run.token_ids
        self._kept = len(token_ids)  # a fork has the records of these already
        # The prompt has records from its second token on; an interrupted run may have some of them.
        scored = 1 + len(run.prompt_tokens) if run.sampling.prompt_logprobs else len(token_ids)
        if scored >= len(run.prompt_ids):
            scored = len(token_ids)
        self.branch = Branch(token_ids + request.forced, scored, request.adapter, request.realm)
        self.branches = [self.branch]

    def _restore(self, run: Run) -> None:
        """Writes on from the tokens that a run already has: a fork has kept those of its parent."""
        self.run = run
        self._writer = BranchWriter.of(self.request, run, self._context, pause=self.request.pause)

    @property
    def decoder(self) -> Decoder | None:
        branch = self.branch
        return None if branch.recorded < len(branch.tokens) else self._writer.decoder

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
        branch, writer = self.branch, self._writer
        return (
            branch.recorded == len(branch.tokens)
            and (self._guesser is None or beside >= _TOO_MANY_TO_GUESS or not self._has_guess(self._guesser))
            and not writer.stopper.ends_next(writer.decoder.history)
        )

    def _has_guess(self, guesser: Guesser) -> bool:
        """Returns whether there is a guess at the token that is being chosen now, and so perhaps one at those
        after it."""
        room = guess_room(self.run, len(self.branch.tokens))
        return room > 0 and bool(guesser.guess(self.branch.tokens, room))

    def preempted(self) -> None:
        super().preempted()
        self._guess = []

    def _share_prefix(self, first: Run) -> None:
        self.run.prompt_tokens = first.prompt_tokens
        self.branch.recorded = self._kept

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
            chosen = row.chosen or self._writer.decoder.choose(row.logits)
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
        return Refusal(guess[0], self._context.pieces(guess[0]), self._guesser.name, len(guess) - 1)

    def _score(self, logits: Float32) -> None:
        """Records a token that is known: it is part of the prompt, or the caller has forced it."""
        branch, run = self.branch, self.run
        token = branch.tokens[branch.recorded]
        if branch.recorded < len(run.prompt_ids):
            run.prompt_tokens.append(self._writer.score_prompt(logits, token, self.request.seconds))
            branch.recorded += 1
        elif branch.recorded < self._kept:
            branch.recorded += 1
        else:
            self._take(self._writer.decoder.record_forced(logits, token), "forced")

    def _take(self, chosen: Chosen, source: Source, refused: Refusal | None = None) -> None:
        """Adds a token to the branch and to the run."""
        run, branch = self.run, self.branch
        more_known = branch.recorded + 1 < len(branch.tokens)
        now = perf_counter()
        if self._first is None:
            self._begin_writing(now)
        run.timings.decode = now - (self._first or now)
        seconds = now - self.request.arrived
        taken = self._writer.take(chosen, source, seconds, run.sample, refused, more_known)
        if taken[2]:
            if branch.recorded == len(branch.tokens):
                branch.tokens.append(chosen.id)
            branch.recorded += 1
        self._add(taken)

    def finish(self, ending: Ending, last: Token | None = None) -> None:
        if ending.reason != "error":
            recent_runs = self._context.drafts.recent_runs
            recent_runs.add(self.request.owner, self.branch.tokens, self.run.id)
        super().finish(ending, last)
