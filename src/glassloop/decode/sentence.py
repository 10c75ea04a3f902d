"""The one sentence of an explanation: who won, from where, with how much luck, against whom."""

from __future__ import annotations

from math import exp, inf
from typing import Protocol


class Told(Protocol):
    """What the sentence tells of a token."""

    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def raw_logprob(self) -> float: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def luck(self) -> float: ...
    @property
    def removed_by(self) -> str | None: ...


def given(source: str, taken: Told, winner: Told) -> str:
    """What comes before the sentence where the token was not for the race to say."""
    if source == "forced":
        rest = "which would have won anyway" if taken.id == winner.id else "which was not what would have won"
        return f"{_quoted(taken)} was given by the caller, {rest}: "
    if source == "beam":
        own = "removed by a stage" if taken.logprob is None else f"at {_percent(taken.logprob)}"
        return f"{_quoted(taken)} ({own}) is on the beam that was best as a whole; by this step alone, "
    return ""


def drafted(source: str, refused: Told | None, taken: Told) -> str:
    """What comes after the sentence where a drafter had guessed."""
    if refused is not None:
        return f" The drafter had guessed {_quoted(refused)}; the model chose {_quoted(taken)}."
    return " The drafter had guessed it." if source == "draft" else ""


def sentence(
    lucky: bool,
    winner: Told,
    runner_up: Told | None,
    favourite: Told,
    margin: float,
    rank_after: int,
    temperatures: tuple[float, float] | None,
) -> str:
    """In plain English. `favourite` is the model's own; ranks count from 1. Between the `temperatures` the
    winner would be the same, if they are known."""
    parts = [_beginning(lucky, winner, runner_up, margin, rank_after)]
    if temperatures is not None:
        parts.append(f"with this luck it would win at any temperature{_between(*temperatures)}")
    if favourite.id != winner.id and favourite.removed_by is not None:
        whom = f"{_quoted(favourite)} ({_percent(favourite.raw_logprob)})"
        parts.append(f"the model's own favourite {whom} had been removed by {favourite.removed_by}")
    elif winner.rank != rank_after:
        before = f"{_ordinal(winner.rank)} with {_percent(winner.raw_logprob)}"
        parts.append(f"to the model itself the winner was {before}")
    return "; ".join(parts) + "."


def _between(lowest: float, highest: float) -> str:
    if lowest == 0:
        return "" if highest == inf else f" up to {highest:.2f}"
    return f" from {lowest:.2f} " + ("up" if highest == inf else f"to {highest:.2f}")


def _beginning(lucky: bool, winner: Told, runner_up: Told | None, margin: float, rank_after: int) -> str:
    name = _quoted(winner)
    if runner_up is None:
        return f"{name} won because the stages left no other token"
    share = _percent(winner.logprob or 0.0)
    if not lucky:
        led = f"it led {_quoted(runner_up)} by {margin:.2f}, and greedy has no luck"
        return f"{name} won because it was the likeliest ({share}): {led}"
    place = "the likeliest" if rank_after == 1 else _ordinal(rank_after)
    drew = f"{name} was {place} with {share}, drew {winner.luck:+.2f} of luck"
    other = f"{_quoted(runner_up)}, which had {_percent(runner_up.logprob or 0.0)} and {runner_up.luck:+.2f}"
    return f"{drew} and won by {margin:.2f} over {other}"


def _quoted(token: Told) -> str:
    shown = token.text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"“{shown}”"


def _percent(logprob: float) -> str:
    share = 100 * exp(logprob)
    if share > 99.95 and logprob < 0:
        return "over 99.9 %"
    if share >= 0.1:
        return f"{share:.1f} %"
    return f"{share:.1g} %" if share >= 1e-6 else "almost nothing"


def _ordinal(rank: int) -> str:
    suffix = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{suffix}"
