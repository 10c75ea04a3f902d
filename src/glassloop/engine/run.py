"""A run: one generation with all that is known of it. `Token` is one step of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Token:
    id: int
    text: str  # what became certain with this token: a character may need several
    bytes: bytes
    logprob: float  # of the distribution that was drawn from
    raw_logprob: float  # the model's own

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.bytes.hex()}


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
    tokens: list[Token] = field(default_factory=list)
    tail: str = ""  # what the end of the run made certain: the rest of an unfinished character
    finish_reason: str | None = None  # stop, length, cancelled
    stop_reason: str | None = None  # the token that ended it
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
        }
