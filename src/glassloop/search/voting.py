"""Voting: which paths have a vote, the sum of the votes for each answer, and the path that wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

from glassloop.search.solution import BY_CALLER, BY_METHOD, Path


def voters(paths: Iterable[Path]) -> list[Path]:
    """Returns the paths that can be the answer: those that the model ended itself; if there are none, those
    that were cut off; if there are none, any that have begun."""
    ended = [path for path in paths if path.ended_by not in (None, "error")]
    begun = [path for path in ended if path.run.tokens or path.complete]
    cut = [path for path in begun if path.ended_by not in (BY_METHOD, BY_CALLER)]
    return [path for path in begun if path.complete] or cut or begun


def elect(
    paths: Iterable[Path],
    weight: Callable[[Path], float] = lambda path: 1.0,
    sure: Callable[[Path], float] = lambda path: 0.0,
) -> Path | None:
    """Returns the first path of the answer with the largest sum of weights. Ties go to the answer whose paths
    have the largest mean of `sure`, then to the answer whose first path has the lowest number. Paths without
    an answer have no vote; if none has one, the first wins."""
    able = voters(paths)
    for path in able:
        path.vote = weight(path) if path.value is not None else None
    votes = votes_of(able)
    if not votes:
        return able[0] if able else None
    most = max(votes.values())
    tied = [[path for path in able if path.value == value] for value in votes if votes[value] == most]
    # Only a tie needs it: to read all tokens of all paths takes time.
    best = tied[0] if len(tied) == 1 else max(tied, key=lambda group: fmean(map(sure, group)))
    return best[0]


def best_judged(paths: Iterable[Path]) -> Path | None:
    """Returns the path with the best verdict, the first if several are equal; without verdicts, the first
    that can be the answer."""
    everyone = list(paths)
    judged = [(path.verdict, path) for path in everyone if path.verdict is not None]
    if not judged:
        return next(iter(voters(everyone)), None)
    return max(judged, key=lambda pair: (pair[0].passed, pair[0].score, -pair[1].number))[1]


def votes_of(paths: Iterable[Path]) -> dict[str, float]:
    """Returns the sum of the votes for each answer, the largest first; equal ones in the order of paths."""
    sums: dict[str, float] = {}
    for path in paths:
        if path.vote is not None and path.value is not None:
            sums[path.value] = sums.get(path.value, 0.0) + path.vote
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def consensus(votes: dict[str, float]) -> float:
    """Returns the share of the leading answer, 0 if there is none."""
    total = sum(votes.values())
    return max(votes.values()) / total if total > 0 else 0.0
