"""An index of n-grams over the tokens of a run, and over those of its owner's latest runs.

The lookup (engine/drafting/lookup.py) finds in it what followed the same tokens earlier.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from glassloop.engine.step_cost import LONGEST_GUESS

GRAM = 3  # tokens that must agree before a guess is made
LONGEST_AGREEMENT = 16  # tokens of agreement that count
_PLACES = 4  # how many of an n-gram's places are compared, the latest ones
_KEPT = 1 << 15  # tokens of earlier runs of one owner that are kept, at least
_KEPT_IN_ALL = 1 << 18  # tokens of earlier runs of all owners
_OWNERS = 64  # whose runs are kept, those that came last
_OF_A_RUN = 1024  # tokens of one earlier run that are kept, its last ones
_BORDER = -1  # between two runs


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
        indexed, latest, before = self._tokens, self._latest, self._before
        start = max(first - GRAM, 0)
        erased = indexed[start : first + count]
        indexed[first : first + count] = array("i", [_BORDER]) * count
        for place in range(max(first + 1, GRAM), min(first + count, len(before))):
            gram = ngram_of(erased[: place - start])
            latest_place = latest.get(gram, -1)
            while latest_place >= 0 and indexed[latest_place - 1] == _BORDER:
                latest_place = before[latest_place]
            if latest_place >= 0:
                latest[gram] = latest_place
            else:
                latest.pop(gram, None)

    def _index(self) -> None:
        """Indexes the tokens that were added since the last call."""
        indexed, latest, before = self._tokens, self._latest, self._before
        first = len(before)
        third, second, last = [_BORDER] * (GRAM - min(first, GRAM)) + indexed[
            max(first - GRAM, 0) : first
        ].tolist()
        for place, token in enumerate(indexed[first:], first):
            if place >= GRAM and token != _BORDER:
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
        indexed, best, best_place = self._tokens, 0, -1
        for _ in range(_PLACES):
            if place < 0:
                break
            if indexed[place - 1] == _BORDER:  # it was erased
                place = self._before[place]
                continue
            agreed, most = GRAM, min(LONGEST_AGREEMENT, place, len(tokens))
            while agreed < most and indexed[place - agreed - 1] == tokens[-agreed - 1]:
                agreed += 1
            if agreed > best:
                best, best_place = agreed, place
            place = self._before[place]
        if best_place < 0:
            return 0, []
        following = indexed[best_place : best_place + LONGEST_GUESS].tolist()
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
        recent = self._owners.get(owner)
        if recent is None:
            recent = self._owners[owner] = RecentRuns()
        self._owners.move_to_end(owner)
        return recent

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
