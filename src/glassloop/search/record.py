"""The record of a search, which is JSON in the header of the first path's run (`run.search`);
docs/thinking.md describes it.

A file is untrusted input: `read_record` checks every part that the rest of the code relies on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassloop.errors import TraceError
from glassloop.search.budget import Budget
from glassloop.util.check import FLAG, OBJECT, TEXT, ValueRule, has_fields, or_none, whole_between
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


def _object(fields: Mapping[str, ValueRule]) -> ValueRule:
    return ValueRule("an object", lambda it: has_fields(it, fields))


def _list(item: ValueRule) -> ValueRule:
    return ValueRule("a list", lambda it: isinstance(it, list) and all(map(item.fits, it)))


def _table(item: ValueRule) -> ValueRule:
    return ValueRule("an object", lambda it: isinstance(it, dict) and all(map(item.fits, it.values())))


def _row(*items: ValueRule) -> ValueRule:
    def fits(value: object) -> bool:
        if not isinstance(value, list) or len(value) != len(items):
            return False
        return all(item.fits(entry) for item, entry in zip(items, value, strict=True))

    return ValueRule("a list", fits)


# What each part of a record has to be. Only the tests of the rules are used: an error names the whole part.
_WHOLE = whole_between(0, (1 << 53) - 1)
_NUMBER = ValueRule("a number", lambda it: type(it) in (int, float))
_INTEGER = ValueRule("a whole number", lambda it: type(it) is int)
_VERDICT_FIELDS = {"passed": FLAG, "score": _NUMBER, "reason": TEXT}
_PATH_FIELDS = {
    "number": _WHOLE,
    "run": TEXT,
    "parent": or_none(_WHOLE),
    "fork_at": or_none(_WHOLE),
    "seed": _INTEGER,
    "salt": _INTEGER,
    "tokens": _WHOLE,
    "value": or_none(TEXT),
    "verdict": or_none(_object(_VERDICT_FIELDS)),
    "confidence": or_none(_NUMBER),
    "vote": or_none(_NUMBER),
    "ended_by": or_none(TEXT),
    "why": TEXT,
}
_DECISION_FIELDS = {
    "round": _WHOLE,
    "action": TEXT,
    "path": or_none(_WHOLE),
    "tokens": or_none(_WHOLE),
    "why": TEXT,
}
_USAGE_FIELDS = {"tokens": _WHOLE, "seconds": _NUMBER, "branches": _WHOLE, "prompt_tokens": _WHOLE}
_CUT_FIELDS = {"round": _WHOLE, "during": FLAG, "by": TEXT, "why": TEXT, "tokens": _table(_WHOLE)}
_RECORD_FIELDS = {
    "method": TEXT,
    "options": OBJECT,
    "seed": _INTEGER,
    "budget": OBJECT,
    "extract": or_none(TEXT),
    "verify": or_none(TEXT),
    "judge": or_none(TEXT),
    "rounds": _WHOLE,
    "answer": or_none(_WHOLE),
    "value": or_none(TEXT),
    "votes": _table(_NUMBER),
    "usage": _object(_USAGE_FIELDS),
    "paths": _list(_object(_PATH_FIELDS)),
    "decisions": _list(_object(_DECISION_FIELDS)),
    "verdicts": _list(_row(_WHOLE, _WHOLE, TEXT, FLAG, _NUMBER, TEXT)),
    "cut": or_none(_object(_CUT_FIELDS)),
}


def read_record(record: Mapping[str, Any]) -> None:
    """Raises unless a record from a file has the form that this version writes."""
    if record.get("version") != VERSION:
        raise TraceError(f"search.version is {shown(record.get('version'))}; {VERSION} is expected")
    for name, rule in _RECORD_FIELDS.items():
        if name not in record:
            raise TraceError(f"search.{name} is missing")
        if not rule.fits(record[name]):
            raise TraceError(f"search.{name} is {shown(record[name])}, which is not the form of a search")
    for number, path in enumerate(record["paths"]):
        parent = path["parent"]
        if path["number"] != number or (parent is not None and parent >= number):
            raise TraceError(f"search.paths[{number}] does not have its number, and a parent before it")
    if record["answer"] is not None and record["answer"] >= len(record["paths"]):
        raise TraceError(f"search.answer is {record['answer']}; the number of a path is expected")
    Budget.of(record["budget"])
