"""Drafts by lookup: what followed the same three tokens earlier, in this run or in another one of its owner,
is expected to follow again."""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.decode.decoder import Decoder
from glassloop.engine.branch import Branch
from glassloop.engine.drafting.guesser import AcceptanceRates, DraftSource
from glassloop.engine.drafting.ngram_index import GRAM, LONGEST_AGREEMENT, NgramIndex, RecentRuns, ngram_of
from glassloop.engine.step_cost import StepCost
from glassloop.record.run import Run
from glassloop.record.token import Drafter

_AT_ONCE = 512  # tokens of a long text that are indexed in one step: all streams wait meanwhile
_LEAST_GAIN = 1.15  # times as many tokens per second must be expected of a guess: estimates are rough


class LookupDrafts(DraftSource):
    """Gives every run a lookup. Nothing is computed between steps."""

    def guesser(self, run: Run, decoder: Decoder, owner: str, realm: str) -> Lookup:
        return Lookup(self.step_cost, self.recent_runs.of(owner))


class Lookup:
    """Guesses that what followed the same tokens earlier, here or in another run of the owner, follows
    again."""

    name: Drafter = "lookup"
    is_own = True

    def __init__(self, step_cost: StepCost, recent_runs: RecentRuns) -> None:
        self._step_cost = step_cost
        self._recent_runs = recent_runs
        self._own = NgramIndex()
        self._rates = AcceptanceRates()
        self._expected: tuple[int, list[int], int] = (0, [], 0)  # agreement, guess, length when it was made

    def guess(self, tokens: Sequence[int], room: int) -> list[int]:
        return self.propose(tokens, room)[1]

    def propose(self, tokens: Sequence[int], room: int) -> tuple[float, list[int]]:
        """Returns a guess and the tokens per second that it is expected to give."""
        self._own.extend(tokens[len(self._own) : len(self._own) + _AT_ONCE])
        if len(tokens) < GRAM:
            return 0.0, []
        gram = ngram_of(tokens)
        own_match, other = self._own.longest(tokens, gram), self._recent_runs.longest(tokens, gram)
        self.is_own = own_match[0] >= other[0]
        agreed, following = own_match if self.is_own else other
        self._expected = agreed, following, len(tokens)
        if not following:
            return 0.0, []
        costs = self._step_cost
        rate, count = costs.best(self._rates.of(agreed), min(room, len(following)))
        if rate < _LEAST_GAIN * costs.rows / costs.cost(costs.rows):
            return 0.0, []
        return rate, following[:count]

    def learn(self, branch: Branch, place: int) -> None:
        tokens = branch.tokens
        agreed, following, length = self._expected
        for guessed, came in zip(following, tokens[length:], strict=False):
            self._rates.saw(min(agreed, LONGEST_AGREEMENT), guessed == came)
            if guessed != came:
                break
            agreed += 1
        self._expected = 0, [], 0
