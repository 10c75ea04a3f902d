"""Drafts: guesses at the next tokens, computed along with the last one and kept while they are right.

A guess is right if it is what the run itself would have chosen, which its position and luck decide alone, so
guessing changes how fast tokens come and never which. How many are worth a guess follows from what a row
costs and how often guesses have been right. Where that is none they are still made and compared, only not
computed, so a run notices when it begins to repeat.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from glassloop.engine.branch import Branch
from glassloop.record.run import Run
from glassloop.record.token import Drafter

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # of a guess
_GRAM = 3  # tokens that must agree before a guess is made
_PLACES = 4  # how many of an n-gram's places are compared, the latest ones
_LONGEST = 16  # tokens of agreement that count
_KEPT = 1 << 15  # tokens of earlier runs of one owner that are kept, at least
_KEPT_IN_ALL = 1 << 18  # tokens of earlier runs of all owners
_OWNERS = 64  # whose runs are kept, those that came last
_OF_A_RUN = 1024  # tokens of one earlier run that are kept, its last ones
_AT_ONCE = 512  # tokens of a long text that are indexed in one step: all streams wait meanwhile
_BORDER = -1  # between two runs
_LEAST_GAIN = 1.15  # times as many tokens per second must be expected of a guess: estimates are rough


class Guesser(Protocol):
    """Makes the guesses for one run."""

    name: Drafter

    @property
    def is_own(self) -> bool:
        """Whether the last guess follows from the run alone: its text, or a model that was given it. Only
        such a guess may be recorded; one from another run would tell what was written there."""

    def guess(self, tokens: Sequence[int], room: int) -> list[int]:
        """Returns at most `room` tokens that may come after these."""

    def learn(self, branch: Branch, place: int) -> None:
        """Compares the last guess with the tokens that came, the last of them from row `place` of the
        results."""


def guess_room(run: Run, length: int) -> int:
    """Returns how many guesses a run of this length could accept, with one more token after them."""
    return min(run.context - length, run.sampling.max_tokens - len(run.tokens)) - 1


class StepCost:
    """The cost of a step by its number of rows: a moving average of what was measured, or an estimate."""

    def __init__(self) -> None:
        self.rows = 1  # of the next step, without guesses
        self._seen: dict[int, float] = {}
        self._sizes: list[int] = []  # the numbers of rows that were measured, in order
        self._costs: dict[int, float] = {}  # results of `cost` since the last measurement

    @property
    def measured(self) -> bool:
        """Whether costs are in seconds: a step was measured. Before, they are relative to that of one row."""
        return bool(self._seen)

    def saw(self, rows: int, seconds: float) -> None:
        if rows > 64:
            return
        if rows not in self._seen:
            insort(self._sizes, rows)
        self._seen[rows] = tracked(self._seen.get(rows, 0.0), seconds)
        self._costs.clear()

    def cost(self, rows: int) -> float:
        known = self._costs.get(rows)
        if known is None:
            known = self._costs[rows] = self._between(rows)
        return known

    def _between(self, rows: int) -> float:
        seen, sizes = self._seen, self._sizes
        at = bisect_left(sizes, rows)
        if not sizes:
            return _estimate(rows)
        if at in (0, len(sizes)):
            near = sizes[min(at, len(sizes) - 1)]
            return seen[near] * _estimate(rows) / _estimate(near)
        below, above = sizes[at - 1], sizes[at]
        return seen[below] + (rows - below) / (above - below) * (seen[above] - seen[below])

    def worth(self, chance: float, most: int, each: float = 0.0) -> int:
        """Returns how many guesses give the most tokens per second, if each is right with this chance after
        those before it were, and making one takes `each` seconds."""
        return self.best(chance, most, each)[1]

    def row_costs(self, most: int) -> list[float]:
        """Returns the cost of each of `most` rows that are added to the next step. Costs do not fall from one
        row to the next: where rows after it are cheaper, as a kernel may compute four as fast as three, a row
        has the mean cost of its group."""
        costs = [self.cost(self.rows + number) for number in range(most + 1)]
        added: list[float] = []
        while len(added) < most:
            at = len(added)
            slope, end = min(((costs[to] - costs[at]) / (to - at), -to) for to in range(at + 1, most + 1))
            added += [slope] * (-end - at)
        return added

    def best(self, chance: float, most: int, each: float = 0.0) -> tuple[float, int]:
        """Returns the most tokens per second that guesses can give, and how many guesses do so (`worth`)."""
        best, length = self.rows / self.cost(self.rows), 0
        for count in _LENGTHS:
            if count > most:
                break
            right = chance * (1 - chance**count) / (1 - chance)
            rate = (self.rows + right) / (self.cost(self.rows + count) + count * each)
            if rate > best:
                best, length = rate, count
        return best, length


def tracked(known: float, seconds: float) -> float:
    """Returns an estimate of a duration (0: there is none yet) after one more measurement. It follows short
    ones quickly and long ones slowly: a process that loses its core for a while must not seem to be slow."""
    if not known:
        return seconds
    longer = seconds - known
    return known + (0.5 * longer if longer < 0 else min(0.1 * longer, 0.05 * known))


def _estimate(rows: int) -> float:
    """Returns the cost of a step, relative to that of one row: the weights are read once for all rows, and
    each row adds its arithmetic."""
    return 1.0 + 0.2 * (rows - 1)


class AcceptanceRates:
    """The share of guesses that were right, by how many tokens agreed before them."""

    def __init__(self) -> None:
        self._rates = [0.5 + 0.4 * length / _LONGEST for length in range(_LONGEST + 1)]

    def of(self, agreed: int) -> float:
        return min(max(self._rates[agreed], 0.01), 0.98)

    def saw(self, agreed: int, right: bool) -> None:
        self._rates[agreed] += 0.15 * (right - self._rates[agreed])


class NgramIndex:
    """A sequence of tokens in which every place is found by the three tokens before it.

    Tokens are indexed when something is looked for: that takes longer than all else at the end of a run, and
    with many streams, or without drafts, nothing is looked for.
    """

    def __init__(self) -> None:
        self._tokens = array("i")
        self._latest: dict[int, int] = {}  # by n-gram: the latest place that follows it
        # [place] the place before that with the same n-gram, or -1; as long as the index goes
        self._before = array("i")

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        self._tokens.extend(array("i", tokens))

    def erase(self, first: int, count: int) -> None:
        """Removes tokens; borders stand in their places. Takes time in proportion to their number."""
        known, latest, before = self._tokens, self._latest, self._before
        start = max(first - _GRAM, 0)
        erased = known[start : first + count]
        known[first : first + count] = array("i", [_BORDER]) * count
        for place in range(max(first + 1, _GRAM), min(first + count, len(before))):
            gram = ngram_of(erased[: place - start])
            latest_place = latest.get(gram, -1)
            while latest_place >= 0 and known[latest_place - 1] == _BORDER:
                latest_place = before[latest_place]
            if latest_place >= 0:
                latest[gram] = latest_place
            else:
                latest.pop(gram, None)

    def _index(self) -> None:
        """Indexes the tokens that were added since the last call."""
        known, latest, before = self._tokens, self._latest, self._before
        first = len(before)
        third, second, last = [_BORDER] * (_GRAM - min(first, _GRAM)) + known[
            max(first - _GRAM, 0) : first
        ].tolist()
        for place, token in enumerate(known[first:], first):
            if place >= _GRAM and token != _BORDER:
                gram = third << 42 | second << 21 | last  # as `ngram_of`
                before.append(latest.get(gram, -1))
                latest[gram] = place
            else:
                before.append(-1)
            third, second, last = second, last, token

    def longest(self, tokens: Sequence[int], gram: int) -> tuple[int, list[int]]:
        """Finds the place whose past agrees longest with the end of `tokens`; returns how many tokens agree
        and which ones follow."""
        if len(self._before) < len(self._tokens):
            self._index()
        place = self._latest.get(gram, -1)
        if place < 0:
            return 0, []
        known, best, found = self._tokens, 0, -1
        for _ in range(_PLACES):
            if place < 0:
                break
            if known[place - 1] == _BORDER:  # it was erased
                place = self._before[place]
                continue
            agreed, most = _GRAM, min(_LONGEST, place, len(tokens))
            while agreed < most and known[place - agreed - 1] == tokens[-agreed - 1]:
                agreed += 1
            if agreed > best:
                best, found = agreed, place
            place = self._before[place]
        if found < 0:
            return 0, []
        following = known[found : found + _LENGTHS[-1]].tolist()
        return best, following[: following.index(_BORDER)] if _BORDER in following else following


def ngram_of(tokens: Sequence[int]) -> int:
    """Packs the last three tokens into one number."""
    return tokens[-3] << 42 | tokens[-2] << 21 | tokens[-1]


class _Piece(NamedTuple):
    """Where the tokens of a run are."""

    among: NgramIndex
    first: int
    length: int


class RecentRuns:
    """The tokens of the latest runs of one owner, indexed."""

    def __init__(self) -> None:
        self._older, self._newer = NgramIndex(), NgramIndex()
        self._pieces: dict[str, list[_Piece]] = {}  # by the id of the run; one for each time it was added

    def __len__(self) -> int:
        return len(self._older) + len(self._newer)

    def add(self, tokens: Sequence[int], run: str = "") -> None:
        """Adds the last tokens of a run, which has this id."""
        if len(self._newer) > _KEPT:
            self._older, self._newer = self._newer, NgramIndex()
            kept = {
                id: [piece for piece in pieces if piece.among is self._older]
                for id, pieces in self._pieces.items()
            }
            self._pieces = {id: pieces for id, pieces in kept.items() if pieces}
        added = tokens[-_OF_A_RUN:]
        self._pieces.setdefault(run, []).append(_Piece(self._newer, len(self._newer), len(added)))
        self._newer.extend([*added, _BORDER])

    def forget(self, run: str) -> None:
        """Removes the tokens of a run, in time in proportion to their number."""
        for piece in self._pieces.pop(run, ()):
            piece.among.erase(piece.first, piece.length)

    def longest(self, tokens: Sequence[int], gram: int) -> tuple[int, list[int]]:
        newer, older = self._newer.longest(tokens, gram), self._older.longest(tokens, gram)
        return newer if newer[0] >= older[0] else older


class RunsByOwner:
    """The latest runs of each owner, of those owners that came last."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, RecentRuns] = OrderedDict()

    def of(self, owner: str) -> RecentRuns:
        found = self._owners.get(owner)
        if found is None:
            found = self._owners[owner] = RecentRuns()
        self._owners.move_to_end(owner)
        return found

    def add(self, owner: str, tokens: Sequence[int], run: str) -> None:
        """Adds the last tokens of a run. The runs of the owners that came first go where there are too
        many."""
        self.of(owner).add(tokens, run)
        total = sum(map(len, self._owners.values()))
        while len(self._owners) > _OWNERS or (total > _KEPT_IN_ALL and len(self._owners) > 1):
            total -= len(self._owners.popitem(last=False)[1])

    def forget(self, run: str) -> None:
        for recent in self._owners.values():
            recent.forget(run)


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
        if len(tokens) < _GRAM:
            return 0.0, []
        gram = ngram_of(tokens)
        own, other = self._own.longest(tokens, gram), self._recent_runs.longest(tokens, gram)
        self.is_own = own[0] >= other[0]
        agreed, following = own if self.is_own else other
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
            self._rates.saw(min(agreed, _LONGEST), guessed == came)
            if guessed != came:
                break
            agreed += 1
        self._expected = 0, [], 0
