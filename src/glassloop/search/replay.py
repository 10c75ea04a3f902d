"""Replays a recorded search and compares every decision and every token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.task_kinds import SOLVE
from glassloop.errors import GlassloopError
from glassloop.search.budget import Budget
from glassloop.search.methods import METHODS, OWN_METHODS, make_method
from glassloop.search.running import RecordedSearch, Running
from glassloop.search.search import Search
from glassloop.search.solution import Decision, Replayed, Solution
from glassloop.search.solve import drive, named_extractor, named_verifier
from glassloop.search.verdict import Verdict
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel


def replay(llm: LocalModel, solution: Solution, *, method: Search | None = None, **options: Any) -> Replayed:
    """Replays a search and compares. Verdicts and the cut of a time limit are taken from the record."""
    record = solution.record
    verdicts = {(path, tokens, by): Verdict(*rest) for path, tokens, by, *rest in record["verdicts"]}
    recorded = RecordedSearch(record["cut"], verdicts)
    repeated = drive(_prepared(llm, solution, recorded, method, **options), None)
    difference = _first_difference(solution, repeated)
    return Replayed(difference is None, len(repeated.decisions), repeated.usage.tokens, difference, repeated)


def _prepared(
    llm: LocalModel, solution: Solution, past: RecordedSearch, method: Search | None, **options: Any
) -> Running:
    """Returns a recorded search, ready to run. `extract` and `verify` may be given again where they were
    functions."""
    record, first = solution.record, solution.paths[0].run
    if method is None and record["method"] not in (*METHODS, *OWN_METHODS):
        problem = f"is missing; the search was made by {record['method']}, which is not built in"
        raise GlassloopError.about("method", problem)
    searcher = method.fresh() if method is not None else _recorded_method(record)
    sampling = SOLVE.acting(replace(first.sampling, seed=first.seed))
    request = llm.prepare(first.prompt_ids, sampling, messages=first.messages)
    request.runs[0].prompt = first.prompt
    extract = options.get("extract", record["extract"])
    if extract is None or (isinstance(extract, str) and extract.startswith("<")):
        # It was a function, which is not in the record; what it found is.
        extract = {path.run.text: path.value for path in solution.paths}.get
    return Running(
        llm,
        request,
        searcher,
        Budget.of(record["budget"]),
        extractor=named_extractor(extract),
        verifier=named_verifier(options.get("verify", _unknown)),
        judge=None if record["judge"] is None else named_verifier(options.get("judge", _unknown)),
        named={name: record[name] for name in ("extract", "verify", "judge")},
        past=past,
    )


def _recorded_method(record: Mapping[str, Any]) -> Search:
    """Returns the method of a record, whose options may be those of an earlier version."""
    name = record["method"]
    earlier = METHODS[name].earlier if name in METHODS else {}
    return make_method(name, {**earlier, **record["options"]})


def _unknown(text: str) -> bool:
    raise GlassloopError("the record has no verdict on a text that the replay came to; verify= is expected")


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
                difference = f"{shown(getattr(mine, name))} and is {shown(getattr(theirs, name))}"
                return f"{name} of path {mine.number} was {difference}"
    if one.votes != other.votes:
        return f"the votes were {one.votes} and are {other.votes}"
    return None


def _words(decision: Decision) -> str:
    return f"{decision.action} of path {decision.path} at {decision.tokens} tokens ({shown(decision.why)})"
