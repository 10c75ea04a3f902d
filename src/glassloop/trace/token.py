"""A token of a run with its reasons: what was likely, what the stages made of that, and why this one won."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Literal, NamedTuple

from glassloop.decode.chosen import Chosen

# Where a token came from: drawn or argmax, given by the caller, guessed by a drafter and confirmed, a beam.
Source = Literal["sampled", "forced", "draft", "beam"]
Drafter = Literal["lookup", "model"]  # who guesses: what followed the same tokens before, or a draft model
Pieces = Callable[[int], str]


class Alternative(NamedTuple):
    """A token that the model thought likely at this place, the chosen one included."""

    id: int
    text: str
    logprob: float  # after the stages; minus infinity where one of them removed it
    raw_logprob: float  # the model's own

    def to_dict(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in self._asdict().items()}


class Refusal(NamedTuple):
    """What a drafter had guessed where the run itself chose another token."""

    id: int
    text: str
    by: Drafter
    dropped: int  # guesses after it, which went with it and were never judged


class Token:
    """Every number here is over the whole vocabulary. Ranks count from 1."""

    __slots__ = ("_pieces", "bytes", "chosen", "refused", "sample", "seconds", "source", "text")

    def __init__(
        self,
        chosen: Chosen,
        text: str,
        data: bytes,
        pieces: Pieces,
        source: Source = "sampled",
        seconds: float = 0.0,
        sample: int = 0,
        refused: Refusal | None = None,
    ) -> None:
        self.chosen = chosen
        # What became certain with this token: a character, or what is no stop string, may need several.
        self.text = text
        self.bytes = data
        self.source: Source = source
        self.seconds = seconds  # since the request came
        self.sample = sample  # of which of a request's samples
        self.refused = refused  # a guess at this place that was wrong
        self._pieces = pieces

    @property
    def id(self) -> int:
        return self.chosen.id

    @property
    def piece(self) -> str:
        """The token by itself, as people read it."""
        return self._pieces(self.chosen.id)

    @property
    def logprob(self) -> float:
        """After the stages: of the distribution that was drawn from. Minus infinity if a stage had removed it
        and it was forced."""
        return self.chosen.logprob

    @property
    def raw_logprob(self) -> float:
        """The model's own."""
        return self.chosen.raw_logprob

    @property
    def rank(self) -> int:
        """In the model's own order."""
        return self.chosen.rank

    @property
    def rank_after(self) -> int:
        """Among those that the stages left."""
        return self.chosen.rank_after

    @property
    def entropy(self) -> float:
        """Of the model's own distribution, in nats."""
        return self.chosen.entropy

    @property
    def log_sum_exp(self) -> float:
        """Of the model's own logits."""
        return self.chosen.log_sum_exp

    @property
    def luck(self) -> float:
        return self.chosen.luck

    @property
    def margin(self) -> float:
        """By how much logit + luck exceeded the runner-up's; infinite where there was none."""
        return self.chosen.margin

    @property
    def runner_up(self) -> int | None:
        return self.chosen.runner_up

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The model's own favourites, most likely first."""
        piece = self._pieces
        return tuple(
            Alternative(token, piece(token), after, raw)
            for token, after, raw in self.chosen.alternatives.tolist()
        )

    @property
    def record(self) -> tuple[object, ...]:
        """All that the promises speak of: the same request has the same record, to the last bit."""
        chosen = self.chosen
        numbers = (chosen.logprob, chosen.raw_logprob, chosen.entropy, chosen.log_sum_exp, chosen.luck)
        return (
            chosen.id,
            self.text,
            self.bytes,
            chosen.rank,
            chosen.rank_after,
            chosen.runner_up,
            chosen.margin,
            *numbers,
            chosen.packed_alternatives,
        )

    def __eq__(self, other: object) -> bool:
        """The same record. When a token came, and what somebody had guessed, is no part of that."""
        return isinstance(other, Token) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.record)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        plain = {name: _plain(getattr(self, name)) for name in _SHOWN}
        plain["bytes"] = self.bytes.hex()
        plain["refused"] = None if self.refused is None else self.refused._asdict()
        plain["alternatives"] = [alternative.to_dict() for alternative in self.alternatives]
        return plain

    def __repr__(self) -> str:
        return f"Token({self.id}, {self.piece!r}, logprob={self.logprob:.4f}, rank={self.rank})"


_SHOWN = (
    "id",
    "text",
    "bytes",
    "logprob",
    "raw_logprob",
    "rank",
    "rank_after",
    "entropy",
    "log_sum_exp",
    "luck",
    "margin",
    "runner_up",
    "source",
    "seconds",
)


def _plain(value: Any) -> Any:
    """Infinity is no number in JSON, and becomes null."""
    return None if value in (inf, -inf) else value
