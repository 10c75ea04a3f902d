"""The verdict of a replay: whether a recorded run, computed again, is the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any


@dataclass(frozen=True)
class Difference:
    """The first token that was not chosen again; if all were, the first one whose numbers differ."""

    at: int
    recorded: int
    recorded_text: str
    chosen: int | None  # by the replay: the same if only numbers differ, None if no token could be chosen
    chosen_text: str
    margin: float  # by how much the recorded token had won


@dataclass(frozen=True)
class ReplayVerdict:
    """The result of a replay. It is identical if every number of every token is the same to the last bit."""

    tokens: int  # compared
    identical: bool
    same_tokens: int  # how many were chosen again
    first: Difference | None
    largest: float  # the largest difference of a log-probability
    notes: tuple[str, ...]  # what has changed since the run was made: the model, the op set

    @property
    def sentence(self) -> str:
        return self._result() + (f" ({'; '.join(self.notes)})" if self.notes else "")

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as JSON has it."""
        plain = asdict(self) | {"sentence": self.sentence}
        if self.first is not None and abs(self.first.margin) == inf:
            plain["first"]["margin"] = None
        return plain

    def __bool__(self) -> bool:
        return self.identical

    def __str__(self) -> str:
        return self.sentence

    def _result(self) -> str:
        if self.identical:
            return f"identical, {self.tokens} of {self.tokens} tokens"
        if self.first is None:
            return f"not identical, but {self.same_tokens} of {self.tokens} tokens are the same"
        first = self.first
        if self.same_tokens == self.tokens:
            return (
                f"the same {self.tokens} tokens, but not the same numbers: the first that differ are those"
                f" of token {first.at}; log-probabilities differ by up to {self.largest:.2g}"
            )
        won = "won with no other token left" if first.margin == inf else f"won by {first.margin:.3g}"
        return (
            f"first differs at token {first.at}: {first.chosen_text!r}, not {first.recorded_text!r},"
            f" which had {won}; {self.same_tokens} of {self.tokens} tokens are the same"
        )
