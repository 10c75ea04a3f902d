"""How a choice that is computed again differs from the recorded one: both sides in numbers, and a sentence.

`explain` compares what it computes with the record before it says anything, and puts this sentence first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, inf
from typing import Any

from glassloop.decode.chosen import RECORD, Chosen

_UNKNOWN = (
    "Why is not known: the stages or the weights may not be the same, as with a stage that keeps state."
)
_MOST_DIGITS = 17  # with which two float64 differ in print if they differ at all


@dataclass(frozen=True)
class ChoiceNumbers:
    """The numbers of a choice as the record has them, or as they are computed now."""

    id: int
    text: str
    logprob: float  # after the stages; minus infinity if a stage removed the token
    raw_logprob: float  # the model's own
    rank: int | None = None  # this and the others are None if the record does not have them
    margin: float | None = None
    luck: float | None = None

    @classmethod
    def of(cls, numbers: Mapping[str, Any], text: str) -> ChoiceNumbers:
        optional = {name: numbers.get(name) for name in ("rank", "margin", "luck")}
        return cls(numbers["id"], text, numbers["logprob"], numbers["raw_logprob"], **optional)


@dataclass(frozen=True)
class RecordDifference:
    """What the record of a token has and what the same choice gives now, where these are not the same."""

    recorded: ChoiceNumbers
    now: ChoiceNumbers
    fields: tuple[str, ...]  # the names of all numbers that differ
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON has it: None for infinity."""
        plain = asdict(self) | {"fields": list(self.fields)}
        for side in ("recorded", "now"):
            plain[side] = {
                name: None if value in (inf, -inf) else value for name, value in plain[side].items()
            }
        return plain


def in_quotes(text: str) -> str:
    """Returns the text of a token as a sentence has it."""
    shown = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"“{shown}”"


def numbers_of(chosen: Chosen) -> dict[str, Any]:
    """Returns all numbers of a choice by their names."""
    return {name: getattr(chosen, name) for name in (*(RECORD.names or ()), "packed_alternatives")}


def difference_of(
    recorded: Mapping[str, Any], now: Chosen, text: Callable[[int], str], reasons: Sequence[str]
) -> RecordDifference | None:
    """Compares the numbers that a record has, by name, with a choice that was computed now; None if all are
    equal to the last bit. `reasons` are what is known to have changed since, in the words of
    `replay_notes`."""
    fresh = numbers_of(now)
    differing = [name for name, value in recorded.items() if value != fresh[name]]
    if not differing:
        return None
    before, after = (ChoiceNumbers.of(each, text(each["id"])) for each in (recorded, fresh))
    then, here = _told(recorded, fresh, differing)
    quoted = in_quotes(before.text)
    if before.id != after.id:
        here = here.replace("won by", "by")
        said = f"The record has {quoted} ({then}); computed now, {in_quotes(after.text)} wins ({here})."
    else:
        said = f"The record has other numbers for {quoted} ({then}) than are computed now ({here})."
    why = f"The run was {'; '.join(reasons)}." if reasons else _UNKNOWN
    names = tuple(name.removeprefix("packed_") for name in differing)
    return RecordDifference(before, after, names, f"{said} {why}")


def _told(recorded: Mapping[str, Any], fresh: Mapping[str, Any], differing: Sequence[str]) -> tuple[str, str]:
    """Returns the numbers of both sides that the sentence has: the probability, the margin if there was a
    race, and another one if these do not differ. They have as many digits as it takes to differ."""
    shown = ["logprob"]
    if recorded.get("runner_up") is not None or recorded.get("margin") == inf:
        shown.append("margin")
    if not any(name in differing for name in ("id", *shown)):
        shown.append(differing[0])
    parts = [_pair(name, recorded[name], fresh[name]) for name in shown]
    return ", ".join(one for one, _ in parts), ", ".join(other for _, other in parts)


def _pair(name: str, one: Any, other: Any) -> tuple[str, str]:
    digits, pair = 3, ("", "")
    while pair[0] == pair[1] and digits <= _MOST_DIGITS:
        pair = _number(name, one, digits), _number(name, other, digits)
        digits = digits + 1 if one != other else _MOST_DIGITS + 1
    return pair


def _number(name: str, value: Any, digits: int) -> str:
    if name == "logprob":
        return _share(value, digits)
    if name == "margin":
        return _lead(value, digits)
    if name == "packed_alternatives":
        return _alternatives(value, digits)
    return f"{name} {_plain(value, digits)}"


def _share(logprob: float, digits: int) -> str:
    return "removed by a stage" if logprob == -inf else f"{100 * exp(logprob):.{digits}g} %"


def _lead(margin: float, digits: int) -> str:
    if margin == inf:
        return "no other token left"
    return f"{'won' if margin >= 0 else 'lost'} by {_plain(abs(margin), digits)}"


def _plain(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}g}"


def _alternatives(packed: bytes, digits: int) -> str:
    best = Chosen(bytes(RECORD.itemsize) + packed).alternatives[:1].tolist()
    return (
        "no alternatives" if not best else f"first alternative {best[0][0]} with {_share(best[0][2], digits)}"
    )
