"""An explanation from its JSON form, as a server sends it. Everything in it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any, TypeVar

from glassloop.decode.difference import ChoiceNumbers, RecordDifference
from glassloop.decode.explanation import BeamRank, Change, Explanation, Racer, StageReport
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError

T = TypeVar("T")
_MOST = 4096  # entries of a list


def explanation_of(plain: Mapping[str, Any]) -> Explanation:
    """Returns the explanation that `Explanation.to_dict` has made this of."""
    try:
        return _explanation(plain)
    except (KeyError, TypeError, ValueError) as error:
        raise GlassloopError(f"this is no explanation that can be read: {error}") from None


def _explanation(plain: Mapping[str, Any]) -> Explanation:
    is_told = plain.get("upstream") is not None
    difference, beam = plain.get("difference"), plain["beam"]
    candidates = tuple(_racer(each, is_told) for each in _list(plain["candidates"]))
    taken = _racer(plain["taken"], is_told)
    if taken.id not in {racer.id for racer in candidates}:
        raise ValueError("taken is not among the candidates")
    return Explanation(
        position=_whole(plain["position"]),
        seed=_whole(plain["seed"]),
        salt=_whole(plain["salt"]),
        sampling=Sampling.from_dict(_object(plain["sampling"])),
        stages=tuple(_stage(each) for each in _list(plain["stages"])),
        candidates=candidates,
        winner=_racer(plain["winner"], is_told),
        runner_up=_optional(plain["runner_up"], lambda each: _racer(each, is_told)),
        margin=_number(plain["margin"], nan if is_told else inf),
        taken=taken,
        source=_text(plain["source"]),
        beam=_optional(beam, lambda each: BeamRank(*(_whole(each[name]) for name in BeamRank._fields))),
        sentence=_text(plain["sentence"]),
        notes=tuple(_text(each) for each in _list(plain["notes"])),
        upstream=_optional(plain.get("upstream"), _text),
        difference=_optional(difference, _difference),
    )


def _racer(plain: Any, is_told: bool) -> Racer:
    """Returns a racer. Of a token that another engine chose, unknown numbers are missing."""
    plain = _object(plain)
    return Racer(
        id=_whole(plain["id"]),
        text=_text(plain["text"]),
        rank=_whole(plain["rank"] or 0),
        raw_logprob=_number(plain["raw_logprob"], nan if is_told else -inf),
        logprob=_optional(plain["logprob"], _number),
        rank_after=_optional(plain["rank_after"], _whole),
        logit=_optional(plain["logit"], _number),
        luck=_number(plain["luck"], nan),
        score=_optional(plain["score"], _number),
        removed_by=_optional(plain["removed_by"], _text),
        raw_logit=_optional(plain.get("raw_logit"), _number),
    )


def _stage(plain: Any) -> StageReport:
    plain = _object(plain)
    return StageReport(
        name=_text(plain["name"]),
        kind=_text(plain["kind"]),
        mass_kept=_number(plain["mass_kept"], nan),
        removed=tuple(map(_change, _list(plain["removed"]))),
        moved=tuple(map(_change, _list(plain["moved"]))),
        **{
            name: _whole(plain[name])
            for name in ("survivors_before", "survivors", "removed_count", "moved_count")
        },
    )


def _change(plain: Any) -> Change:
    plain = _object(plain)
    after = _optional(plain["after"], _number)
    return Change(_whole(plain["id"]), _text(plain["text"]), _number(plain["before"], -inf), after)


def _difference(plain: Any) -> RecordDifference:
    then, now = (
        ChoiceNumbers(
            id=_whole(side["id"]),
            text=_text(side["text"]),
            logprob=_number(side["logprob"], -inf),
            raw_logprob=_number(side["raw_logprob"], -inf),
            rank=_optional(side["rank"], _whole),
            margin=_optional(side["margin"], _number),
            luck=_optional(side["luck"], _number),
        )
        for side in (_object(plain["recorded"]), _object(plain["now"]))
    )
    return RecordDifference(then, now, tuple(map(_text, _list(plain["fields"]))), _text(plain["sentence"]))


# ── values ─────────────────────────────────────────────────────────────────────────────────────────────────


def _optional(value: Any, read: Callable[[Any], T]) -> T | None:
    return None if value is None else read(value)


def _number(value: Any, missing: float | None = None) -> float:
    """Returns a number; `missing` in the place of null, if that is allowed."""
    if value is None and missing is not None:
        return missing
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("a number is expected")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a whole number is expected")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is expected")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST:
        raise TypeError(f"a list of at most {_MOST} entries is expected")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return value
