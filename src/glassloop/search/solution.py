"""The result of a search: its answer, every path with how it ended, the votes, and what was spent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, cast

from glassloop.errors import TraceError
from glassloop.record.format.glass_file import read, write
from glassloop.record.run import Run
from glassloop.search.record import read_record
from glassloop.search.verdict import Verdict
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

# How a path ended: as its run did (stop, length, repetition, timeout, error), or because the method stopped
# it (search), the budget was spent (budget), or the caller cancelled the search (cancelled).
BY_METHOD, BY_BUDGET, BY_CALLER = "search", "budget", "cancelled"


@dataclass(eq=False)
class Path:
    """One branch of a search: a run, and what the search knows of it. The attributes of the run (`text`,
    `tokens`, `finish_reason`, …) are those of the path."""

    number: int
    run: Run
    parent: Path | None = field(default=None, repr=False)  # the path that it was forked from
    value: str | None = None  # the extracted answer
    verdict: Verdict | None = None
    confidence: float | None = None  # the lowest confidence of a group of tokens
    vote: float | None = None  # the weight of its vote; None if it had none
    ended_by: str | None = None  # None while it runs
    why: str = ""  # in words
    held: bool = field(default=False, repr=False)  # it waits until the method releases it
    steps: list[int] = field(default_factory=list, repr=False)  # numbers of tokens at which a step ended

    def __getattr__(self, name: str) -> Any:
        if name == "run":  # not set yet: a copy that is being made
            raise AttributeError(name)
        return getattr(self.run, name)

    @property
    def kept(self) -> int:
        """How many tokens of its parent it begins with."""
        return self.run.fork_at or 0

    @property
    def spent(self) -> int:
        """How many tokens it has of its own. One that ended at once has cost a token too: so a budget of
        tokens ends every search."""
        return max(len(self.run.tokens) - self.kept, int(self.run.end is not None))

    @property
    def running(self) -> bool:
        return self.ended_by is None

    @property
    def complete(self) -> bool:
        """Whether the model itself ended the text, so that nothing is missing."""
        return self.ended_by == "stop"

    @property
    def at_step(self) -> bool:
        """Whether its last token ends a step of a method that works in steps."""
        return bool(self.steps) and self.steps[-1] == len(self.run.tokens)

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "run": self.run.id,
            "parent": None if self.parent is None else self.parent.number,
            "fork_at": self.run.fork_at,
            "seed": self.run.seed,
            "salt": self.run.salt,
            "tokens": self.spent,
            "value": self.value,
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "confidence": self.confidence,
            "vote": self.vote,
            "ended_by": self.ended_by,
            "why": self.why,
        }


@dataclass(frozen=True)
class Spent:
    """What a search has taken, of all paths together."""

    tokens: int
    seconds: float
    branches: int
    prompt_tokens: int  # of the question, which all paths share


@dataclass(frozen=True)
class Decision:
    """One decision of a search. `round` counts the times that the paths have grown."""

    round: int
    action: str  # start, fork, end, verdict, stop, cut, answer, note
    path: int | None
    tokens: int | None  # of the path by then
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(eq=False)
class Solution:
    """The answer of a search and how it was found."""

    path: Path | None  # the path that won; None if there was none to choose
    paths: list[Path]
    votes: dict[str, float]  # answer: sum of the weights, the largest first; empty without a vote
    decisions: list[Decision]
    usage: Spent
    record: dict[str, Any] = field(repr=False)  # all that is needed to make the search again
    index: int = 0  # the place of the question in a list

    @property
    def value(self) -> str | None:
        """The extracted answer of the path that won."""
        return None if self.path is None else self.path.value

    @property
    def text(self) -> str:
        return "" if self.path is None else self.path.run.text

    @property
    def run(self) -> Run | None:
        return None if self.path is None else self.path.run

    def to_dict(self, texts: bool = True) -> dict[str, Any]:
        """Returns the solution as JSON has it; `texts` adds the text of every path."""
        solution = {"value": self.value, "text": self.text, **self.record}
        if texts:
            pairs = zip(self.record["paths"], self.paths, strict=True)
            solution["paths"] = [{**plain, "text": path.run.text} for plain, path in pairs]
        return solution

    def replay(self, llm: SearchReplayer | None = None, **options: Any) -> Replayed:
        """Makes the search again, with the same decisions about time, and compares every decision and every
        token. A method of one's own is given again as `method=`."""
        if not self.paths:
            raise TraceError("the search has no paths; at least one is expected for a replay")
        first = self.paths[0].run
        replayer = cast("SearchReplayer | None", llm or first.llm)  # the LLM that made the run
        if replayer is None:
            raise TraceError(f"the search was read from a file; llm= is expected, an LLM with {first.model}")
        return replayer.replay_search(self, **options)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the runs of all paths, with the record of the search, as one `.glass` file."""
        if not self.paths:
            raise TraceError("the search has no paths; at least one is expected for a file")
        write(path, [each.run for each in self.paths])

    @staticmethod
    def load(path: str | PathLike[str], *, llm: LocalModel | None = None) -> Solution:
        """Returns the search in a `.glass` file. With `llm` it can be replayed."""
        runs = read(path)
        for run in runs:
            run.attach(llm)
        return from_runs(runs, os.fspath(path))

    def __repr__(self) -> str:
        return f"Solution({self.value!r}, {len(self.paths)} paths, {self.usage.tokens} tokens)"


def from_runs(runs: Sequence[Run], where: str) -> Solution:
    """Returns the search whose record is in one of these runs; `where` is named in errors."""
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
        ending = {name: plain[name] for name in ("value", "confidence", "vote", "ended_by", "why")}
        paths.append(Path(plain["number"], run, parent, verdict=verdict, **ending))
    decisions = [Decision(**each) for each in record["decisions"]]
    answer = None if record["answer"] is None else paths[record["answer"]]
    return Solution(answer, paths, record["votes"], decisions, Spent(**record["usage"]), record)


class SearchReplayer(Protocol):
    """What can make a search again: an `LLM`."""

    def replay_search(self, solution: Solution, **options: Any) -> Replayed: ...


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
