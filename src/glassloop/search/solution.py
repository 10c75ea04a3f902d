"""The result of a search: its answer, every path with how it ended, the votes, and what was spent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from glassloop.record.run import Run
from glassloop.search.verdict import Verdict

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel
    from glassloop.search.record import Replayed

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
        made = {"value": self.value, "text": self.text, **self.record}
        if texts:
            told = zip(self.record["paths"], self.paths, strict=True)
            made["paths"] = [{**plain, "text": path.run.text} for plain, path in told]
        return made

    def replay(self, llm: LocalModel | None = None, **given: Any) -> Replayed:
        """Makes the search again, with the same decisions about time, and compares every decision and every
        token. A method of one's own is given again as `method=`."""
        from glassloop.search.record import replay

        return replay(self, llm, **given)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the runs of all paths, with the record of the search, as one `.glass` file."""
        from glassloop.search.record import save

        save(self, path)

    @staticmethod
    def load(path: str | PathLike[str], *, llm: LocalModel | None = None) -> Solution:
        """Returns the search in a `.glass` file. With `llm` it can be replayed."""
        from glassloop.search.record import load

        return load(path, llm)

    def __repr__(self) -> str:
        return f"Solution({self.value!r}, {len(self.paths)} paths, {self.usage.tokens} tokens)"
