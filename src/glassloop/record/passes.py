"""The record of a text that was filled in passes: what each pass filled, and what was taken back and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

MOST_BLOCK = 1024  # masked places at once
MOST_PASSES = 1 << 16  # of a run, in a file
MOST_CHANGES = 1 << 15  # places that the passes of a run fill or take back, so that a file can have them


@dataclass(frozen=True)
class Filled:
    """A masked place that got a token in a pass."""

    at: int  # its place in the answer
    id: int
    confidence: float  # the highest probability that the model gave any token there
    entropy: float  # of the model's own distribution there, in nats
    raw_logprob: float  # of the token, the model's own
    logprob: float  # after the stages


@dataclass(frozen=True)
class Unfilled:
    """A place whose token was taken back before a pass."""

    at: int
    id: int
    why: str


@dataclass(frozen=True)
class PassRecord:
    """One pass over a block of masked places."""

    number: int  # of all passes of the run, from 0
    first: int  # the place in the answer where the block begins
    width: int  # of the block
    unfilled: tuple[Unfilled, ...]
    filled: tuple[Filled, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_row(self) -> list[Any]:
        """Returns the record as a file has it."""
        unfilled = [list(astuple(each)) for each in self.unfilled]
        return [self.number, self.first, self.width, unfilled, [list(astuple(each)) for each in self.filled]]

    @staticmethod
    def of_row(row: Sequence[Any]) -> PassRecord:
        """Returns the record of a checked row of a file."""
        number, first, width, unfilled, filled = row
        return PassRecord(
            *(number, first, width),
            tuple(Unfilled(*each) for each in unfilled),
            tuple(Filled(at, token, *map(float, numbers)) for at, token, *numbers in filled),
        )
