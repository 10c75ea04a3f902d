"""A token of a run with its reasons: what was likely, what the stages changed, and why this token won. Of a
token that another engine chose, only what it told is known; all other numbers are NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import inf, isnan, nan
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from glassloop.decode.chosen import ALTERNATIVE, RECORD, Chosen

# Where a token came from: drawn or argmax, given by the caller, a draft that was accepted, a beam search, a
# mask that was filled.
Source = Literal["sampled", "forced", "draft", "beam", "mask"]
# What proposes drafts: earlier text with the same tokens, or a model. Masks did so in records of before.
Drafter = Literal["lookup", "model", "masks"]
Pieces = Callable[[int], str]
Number = TypeVar("Number")


class Alternative(NamedTuple):
    """A token that the model found likely at this place; the chosen one may be among them."""

    id: int
    text: str
    logprob: float  # after the stages; minus infinity if a stage removed the token
    raw_logprob: float  # the model's own

    def to_dict(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in self._asdict().items()}


class Refusal(NamedTuple):
    """A draft that was not accepted, because the run chose another token there."""

    id: int
    text: str
    by: Drafter
    dropped: int  # drafts after it, which were dropped without being judged


def _number(read: Callable[[Token], Number], doc: str) -> Number:
    """Returns a property with a docstring; declared as the type that it reads."""
    return property(read, doc=doc)  # type: ignore[return-value]


class Token:
    """A token and how it was chosen. Every number is over the whole vocabulary; ranks count from 1."""

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
        # The text that became certain with this token. A character, or a text that might have been the
        # beginning of a stop string, may take several tokens.
        self.text = text
        self.bytes = data
        self.source: Source = source
        self.seconds = seconds  # since the request came
        self.sample = sample  # the number of the sample within its request
        self.refused = refused  # a draft for this place that was not accepted
        self._pieces = pieces

    id = _number(lambda token: token.chosen.id, "The token's number in the vocabulary.")
    logprob = _number(
        lambda token: token.chosen.logprob,
        "The log-probability after the stages, in the distribution that was drawn from. Minus infinity if a"
        " stage had removed the token and it was forced.",
    )
    raw_logprob = _number(lambda token: token.chosen.raw_logprob, "The model's own log-probability.")
    rank = _number(lambda token: token.chosen.rank, "The rank in the model's own order.")
    rank_after = _number(
        lambda token: token.chosen.rank_after, "The rank among the tokens that the stages left."
    )
    entropy = _number(
        lambda token: token.chosen.entropy, "The entropy of the model's own distribution, in nats."
    )
    log_sum_exp = _number(
        lambda token: token.chosen.log_sum_exp, "The log-sum-exp of the model's own logits."
    )
    luck = _number(lambda token: token.chosen.luck, "The Gumbel noise that was added to the token's logit.")
    margin = _number(
        lambda token: token.chosen.margin,
        "By how much logit + luck exceeded the runner-up's; infinite if there was no runner-up.",
    )
    runner_up = _number(lambda token: token.chosen.runner_up, "The token that came second, if any.")

    @property
    def piece(self) -> str:
        """The token by itself, as people read it."""
        return self._pieces(self.chosen.id)

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The tokens that the model itself found most likely, the likeliest first."""
        piece = self._pieces
        return tuple(
            Alternative(token, piece(token), after, raw)
            for token, after, raw in self.chosen.alternatives.tolist()
        )

    def with_text(self, text: str) -> Token:
        """Returns the token as it is in a branch in which this text became certain with it."""
        if text == self.text:
            return self
        twin = copy(self)
        twin.text = text
        return twin

    @property
    def record(self) -> tuple[object, ...]:
        """All that must be the same, to the last bit, when the same request is computed again."""
        return self.text, self.bytes, self.chosen

    def __eq__(self, other: object) -> bool:
        """Compares records. The time of a token and its refused draft are not part of them."""
        return isinstance(other, Token) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.record)

    def to_dict(self) -> dict[str, Any]:
        """Returns the token as JSON has it."""
        return {
            "id": self.id,
            "text": self.text,
            "bytes": self.bytes.hex(),
            **{name: _plain(getattr(self.chosen, name)) for name in _NUMBERS if name != "id"},
            **self._unknown_ranks(),
            "source": self.source,
            "seconds": self.seconds,
            "refused": None if self.refused is None else self.refused._asdict(),
            "alternatives": [alternative.to_dict() for alternative in self.alternatives],
        }

    def to_row(self) -> dict[str, Any]:
        """Returns the token as a row of a table: plain values only, None for infinity."""
        return {name: _plain(getattr(self, name)) for name in ROW} | self._unknown_ranks()

    def _unknown_ranks(self) -> dict[str, None]:
        """Returns None for each rank that is not known."""
        missing = (("rank", not self.rank), ("rank_after", isnan(self.logprob)))
        return {name: None for name, unknown in missing if unknown}

    @classmethod
    def told(
        cls,
        id: int,
        text: str,
        data: bytes,
        pieces: Pieces,
        logprob: float | None,
        alternatives: Sequence[tuple[int, float]] = (),
        *,
        rank: int = 0,
        source: Source = "sampled",
        seconds: float = 0.0,
        sample: int = 0,
    ) -> Token:
        """Returns a token that another engine told, with the log-probabilities that it gave, by id: all other
        numbers are unknown."""
        packed = np.array([(other, nan, value) for other, value in alternatives], ALTERNATIVE)
        chosen = Chosen.of(
            packed.tobytes(),
            id=id,
            logprob=nan,
            raw_logprob=nan if logprob is None else logprob,
            rank=rank,
            rank_after=0,
            entropy=nan,
            log_sum_exp=nan,
            log_sum_exp_after=nan,
            scale=nan,
            luck=nan,
            margin=nan,
            runner_up=None,
            survivors=None,
        )
        return cls(chosen, text, data, pieces, source, seconds, sample)

    def __repr__(self) -> str:
        return f"Token({self.id}, {self.piece!r}, logprob={self.logprob:.4f}, rank={self.rank})"


# The numbers of a choice that a token shows, in the order above.
_NUMBERS = tuple(name for name in vars(Token) if name in (RECORD.names or ()))
# The columns of a table of tokens.
ROW = ("id", "piece", "text", *_NUMBERS[1:], "source", "seconds")


def _plain(value: Any) -> Any:
    """Returns the value, with None for infinity and NaN (unknown), which JSON does not have."""
    return None if value in (inf, -inf) or value != value else value
