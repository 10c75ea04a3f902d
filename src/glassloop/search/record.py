"""The record of a search: written to and read from `.glass` files, and made again to compare.

The record is JSON in the header of the first path's run (`run.search`); docs/thinking.md describes it. A file
is untrusted input: `read_record` checks every part that the rest of the code relies on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassloop.errors import TraceError
from glassloop.record.format.glass_file import read, write
from glassloop.record.run import Run
from glassloop.search.budget import Budget
from glassloop.search.running import RecordedSearch
from glassloop.search.search import Search
from glassloop.search.solution import Decision, Path, Solution, Spent
from glassloop.search.verdict import Verdict
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

VERSION = 1


@dataclass(frozen=True)
class Replayed:
    """The result of making a search again: identical if every decision and every token is the same."""

    identical: bool
    decisions: int  # that were compared
    tokens: int
    difference: str | None  # the first one, in words
    solution: Solution

    def __str__(self) -> str:
        if self.identical:
            return f"identical: {self.decisions} decisions, {self.tokens} tokens"
        return f"differs: {self.difference}"


def replay(
    solution: Solution, llm: LocalModel | None = None, *, method: Search | None = None, **given: Any
) -> Replayed:
    """Makes a search again and compares. Verdicts and the cut of a time limit are taken from the record."""
    from glassloop.search.solve import prepare_again

    if not solution.paths:
        raise TraceError("the search has no paths; at least one is expected for a replay")
    first = solution.paths[0].run
    model = llm or first.llm
    if model is None:
        raise TraceError(f"the search was read from a file; llm= is expected, an LLM with {first.model}")
    record = solution.record
    verdicts = {(path, tokens, by): Verdict(*rest) for path, tokens, by, *rest in record["verdicts"]}
    again = prepare_again(model, solution, RecordedSearch(record["cut"], verdicts), method, **given)  # type: ignore[arg-type]
    made = again()
    difference = _first_difference(solution, made)
    return Replayed(difference is None, len(made.decisions), made.usage.tokens, difference, made)


def _first_difference(one: Solution, other: Solution) -> str | None:
    for place, (old, new) in enumerate(zip(one.decisions, other.decisions, strict=False)):
        if old != new:
            return f"decision {place} was {_words(old)} and is {_words(new)}"
    for name, pair in (("decisions", (one.decisions, other.decisions)), ("paths", (one.paths, other.paths))):
        if len(pair[0]) != len(pair[1]):
            return f"there were {len(pair[0])} {name} and there are {len(pair[1])}"
    for mine, theirs in zip(one.paths, other.paths, strict=True):
        if mine.run.tokens != theirs.run.tokens:
            pairs = enumerate(zip(mine.run.tokens, theirs.run.tokens, strict=False))
            at = next((at for at, (left, right) in pairs if left != right), None)
            where = "its length" if at is None else f"token {at}"
            return f"path {mine.number} differs at {where}"
        for name in ("value", "vote", "ended_by"):
            if getattr(mine, name) != getattr(theirs, name):
                found = f"{shown(getattr(mine, name))} and is {shown(getattr(theirs, name))}"
                return f"{name} of path {mine.number} was {found}"
    if one.votes != other.votes:
        return f"the votes were {one.votes} and are {other.votes}"
    return None


def _words(decision: Decision) -> str:
    return f"{decision.action} of path {decision.path} at {decision.tokens} tokens ({shown(decision.why)})"


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────


def save(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Writes the runs of a search as a `.glass` file, the first path first."""
    if not solution.paths:
        raise TraceError("the search has no paths; at least one is expected for a file")
    write(path, [each.run for each in solution.paths])


def load(path: str | os.PathLike[str], llm: LocalModel | None = None) -> Solution:
    runs = read(path)
    for run in runs:
        run.attach(llm)
    return from_runs(runs, os.fspath(path))


def from_runs(runs: Sequence[Run], where: str) -> Solution:
    """Returns the search whose record is in one of these runs."""
    record = next((run.search for run in runs if run.search is not None), None)
    if record is None:
        raise TraceError(f"{where} has no search; a file of Solution.save is expected")
    read_record(record)
    by_id = {run.id: run for run in runs}
    paths: list[Path] = []
    for plain in record["paths"]:
        run = by_id.get(plain["run"])
        if run is None:
            raise TraceError(f"{where}: the run {shown(plain['run'])} of path {plain['number']} is missing")
        verdict = None if plain["verdict"] is None else Verdict(**plain["verdict"])
        parent = None if plain["parent"] is None else paths[plain["parent"]]
        told = {name: plain[name] for name in ("value", "confidence", "vote", "ended_by", "why")}
        paths.append(Path(plain["number"], run, parent, verdict=verdict, **told))
    decisions = [Decision(**each) for each in record["decisions"]]
    answer = None if record["answer"] is None else paths[record["answer"]]
    return Solution(answer, paths, record["votes"], decisions, Spent(**record["usage"]), record)


# ── checks ─────────────────────────────────────────────────────────────────────────────────────────────────

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
        found = shown(record.get("version"))
        raise TraceError(f"search.version is {found}; {VERSION} is expected")
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
