"""A run: one generation with all that is known of it. `Token` is one step of it, with its reasons."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from math import inf
from typing import Any

from glassloop.decode.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that the model thought likely at this place, the chosen one included."""

    id: int
    text: str
    logprob: float  # after the stages; minus infinity where one of them removed it
    raw_logprob: float  # the model's own

    def to_dict(self) -> dict[str, Any]:
        return _plain(self)


@dataclass(frozen=True, slots=True)
class Token:
    """Every number here is over the whole vocabulary. Ranks count from 1."""

    id: int
    text: str  # what became certain with this token: a character, or what is no stop string, may need several
    bytes: bytes
    logprob: float  # after the stages: of the distribution that was drawn from
    raw_logprob: float  # the model's own
    rank: int  # in the model's own order
    rank_after: int  # among those that the stages left
    entropy: float  # of the model's own distribution, in nats
    log_sum_exp: float  # of the model's own logits
    luck: float
    margin: float  # by how much logit + luck exceeded the runner-up's; infinite where there was none
    alternatives: tuple[Alternative, ...] = ()  # the model's own favourites, most likely first

    def to_dict(self) -> dict[str, Any]:
        alternatives = [alternative.to_dict() for alternative in self.alternatives]
        return _plain(self) | {"bytes": self.bytes.hex(), "alternatives": alternatives}


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    context_left: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Seconds."""

    prefill: float = 0.0
    decode: float = 0.0

    def tokens_per_second(self, completion_tokens: int) -> float | None:
        """Decoding alone: the first token belongs to the prefill."""
        return (completion_tokens - 1) / self.decode if completion_tokens > 1 and self.decode > 0 else None


@dataclass
class Run:
    """Filled while tokens come; `finish_reason` is None until the last one has come."""

    model: str
    prompt_ids: list[int]
    seed: int
    context: int
    sampling: Sampling = field(default_factory=Sampling)
    salt: int = 0  # which branch of the seed's luck this is
    tokens: list[Token] = field(default_factory=list)
    tail: str = ""  # what the end of the run made certain: an unfinished character, what was no stop string
    finish_reason: str | None = None  # stop, length, timeout, repetition, cancelled, error
    stop_reason: str | None = None  # which token or string, which limit, which loop
    end: Token | None = None  # the token that ended it, where that is no part of the text
    timings: Timings = Timings()

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens) + self.tail

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def usage(self) -> Usage:
        prompt, made = len(self.prompt_ids), len(self.tokens)
        return Usage(prompt, made, self.context - prompt - made)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "text": self.text,
            "token_ids": self.token_ids,
            "tokens": [token.to_dict() for token in self.tokens],
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "timings": {
                **asdict(self.timings),
                "tokens_per_second": self.timings.tokens_per_second(len(self.tokens)),
            },
            "seed": self.seed,
            "sampling": self.sampling.to_dict(),
        }


def _plain(record: Alternative | Token) -> dict[str, Any]:
    """As JSON has it: infinity is no number there, and becomes null."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    return {name: None if value in (inf, -inf) else value for name, value in values.items()}
