"""The record of a search, which is JSON in the header of the first path's run (`run.search`);
docs/thinking.md describes it.

A file is untrusted input: `read_record` checks every part that the rest of the code relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glassloop.errors import TraceError
from glassloop.search.budget import Budget
from glassloop.util.shown import shown

VERSION = 1


def plain(value: Any) -> Any:
    """Returns a value as JSON has it. Values that JSON cannot hold are replaced by their type or function
    name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return getattr(value, "__name__", type(value).__name__)


# ── checks of a file ───────────────────────────────────────────────────────────────────────────────────────

_MOST = (1 << 53) - 1


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _number(value: object) -> bool:
    return type(value) in (int, float)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _or_none(right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or right(value)


def _is(value: object, fields: Mapping[str, Callable[[object], bool]]) -> bool:
    """Returns whether a value is an object with exactly these fields."""
    if not isinstance(value, dict) or value.keys() != fields.keys():
        return False
    return all(right(value[name]) for name, right in fields.items())


def _verdict(value: object) -> bool:
    return _is(value, {"passed": _flag, "score": _number, "reason": _text})


def _table(value: object) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


def _judged(value: object) -> bool:
    if not isinstance(value, list):
        return False
    kinds = (_whole, _whole, _text, _flag, _number, _text)
    return all(
        isinstance(row, list)
        and len(row) == len(kinds)
        and all(right(each) for right, each in zip(kinds, row, strict=True))
        for row in value
    )


_PATH: dict[str, Callable[[object], bool]] = {
    "number": _whole,
    "run": _text,
    "parent": _or_none(_whole),
    "fork_at": _or_none(_whole),
    "seed": lambda it: type(it) is int,
    "salt": lambda it: type(it) is int,
    "tokens": _whole,
    "value": _or_none(_text),
    "verdict": _or_none(_verdict),
    "confidence": _or_none(_number),
    "vote": _or_none(_number),
    "ended_by": _or_none(_text),
    "why": _text,
}
_DECISION: dict[str, Callable[[object], bool]] = {
    "round": _whole,
    "action": _text,
    "path": _or_none(_whole),
    "tokens": _or_none(_whole),
    "why": _text,
}
_USAGE: dict[str, Callable[[object], bool]] = {
    "tokens": _whole,
    "seconds": _number,
    "branches": _whole,
    "prompt_tokens": _whole,
}
_CUT: dict[str, Callable[[object], bool]] = {
    "round": _whole,
    "during": _flag,
    "by": _text,
    "why": _text,
    "tokens": lambda it: isinstance(it, dict) and all(map(_whole, it.values())),
}
_RECORD: dict[str, Callable[[Any], bool]] = {
    "method": _text,
    "options": lambda it: isinstance(it, dict),
    "seed": lambda it: type(it) is int,
    "budget": lambda it: isinstance(it, dict),
    "extract": _or_none(_text),
    "verify": _or_none(_text),
    "judge": _or_none(_text),
    "rounds": _whole,
    "answer": _or_none(_whole),
    "value": _or_none(_text),
    "votes": _table,
    "usage": lambda it: _is(it, _USAGE),
    "paths": lambda it: isinstance(it, list) and all(_is(each, _PATH) for each in it),
    "decisions": lambda it: isinstance(it, list) and all(_is(each, _DECISION) for each in it),
    "verdicts": _judged,
    "cut": _or_none(lambda it: _is(it, _CUT)),
}


def read_record(record: Mapping[str, Any]) -> None:
    """Raises unless a record from a file has the form that this version writes."""
    if record.get("version") != VERSION:
        raise TraceError(f"search.version is {shown(record.get('version'))}; {VERSION} is expected")
    for name, right in _RECORD.items():
        if name not in record:
            raise TraceError(f"search.{name} is missing")
        if not right(record[name]):
            raise TraceError(f"search.{name} is {shown(record[name])}, which is not the form of a search")
    for number, path in enumerate(record["paths"]):
        parent = path["parent"]
        if path["number"] != number or (parent is not None and parent >= number):
            raise TraceError(f"search.paths[{number}] does not have its number, and a parent before it")
    if record["answer"] is not None and record["answer"] >= len(record["paths"]):
        raise TraceError(f"search.answer is {record['answer']}; the number of a path is expected")
    Budget.of(record["budget"])
