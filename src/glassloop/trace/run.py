"""A run: one generation with all that is known of it."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

from glassloop.decode.sampling import Sampling
from glassloop.trace.token import Token


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt: their keys and values were there already
    context_left: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass
class Timings:
    """Seconds. Each token has its own time too."""

    queue: float = 0.0  # until the first of its tokens was computed
    prefill: float = 0.0  # until its first token was chosen
    decode: float = 0.0  # until its last
    preempted: int = 0  # how often it had to make room for others, and was resumed

    def tokens_per_second(self, completion_tokens: int) -> float | None:
        """Decoding alone: the first token belongs to the prefill."""
        return (completion_tokens - 1) / self.decode if completion_tokens > 1 and self.decode > 0 else None


@dataclass
class Drafts:
    """What guessing ahead brought."""

    proposed: int = 0
    accepted: int = 0
    seconds: float = 0.0  # spent on making the guesses


@dataclass
class Beam:
    """A node of the tree that a beam search went through."""

    number: int
    parent: int | None  # the number of the node before it
    id: int  # the token
    logprob: float  # of all tokens up to here, after the stages
    fate: str  # live (others came of it), pruned, finished, chosen


@dataclass(eq=False)
class Run:
    """Filled while tokens come; `finish_reason` is None until the last one has come."""

    model: str
    prompt_ids: list[int]
    seed: int
    context: int
    sampling: Sampling = field(default_factory=Sampling)
    salt: int = 0  # which branch of the seed's luck this is
    ops: str = ""  # the op set; where it is native, with its instruction set
    prompt: str | None = None  # as it was given, if it was text
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    sample: int = 0  # which of the request's samples
    samples: list[Run] = field(default_factory=list, repr=False)  # all of them, this one included
    parent: str | None = None  # the run that this one was forked from
    fork_at: int | None = None  # and how many of its tokens were kept
    reason: str | None = None  # why: sampled (other luck or options), forced (a token), edited (a text)
    prompt_tokens: list[Token] = field(default_factory=list, repr=False)  # from the second, if asked for
    tokens: list[Token] = field(default_factory=list, repr=False)
    tail: str = ""  # what the end of the run made certain: an unfinished character, what was no stop string
    finish_reason: str | None = None  # stop, length, timeout, repetition, cancelled, error
    stop_reason: str | None = None  # which token or string, which limit, which loop, which error
    error: BaseException | None = field(default=None, repr=False)
    end: Token | None = field(default=None, repr=False)  # what ended it, where that is no part of the text
    cached_tokens: int = 0
    timings: Timings = field(default_factory=Timings)
    drafts: Drafts = field(default_factory=Drafts)
    beams: list[Beam] = field(default_factory=list, repr=False)
    forks: dict[int, int] = field(default_factory=dict, repr=False)  # how many were made at which position

    @property
    def text(self) -> str:
        return "".join([token.text for token in self.tokens]) + self.tail

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def logprob(self) -> float:
        """Of the whole answer, as the model itself has it."""
        return sum(token.raw_logprob for token in self.tokens)

    @property
    def usage(self) -> Usage:
        prompt, made = len(self.prompt_ids), len(self.tokens)
        return Usage(prompt, made, self.cached_tokens, self.context - prompt - made)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "id": self.id,
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
            "drafts": asdict(self.drafts),
            "seed": self.seed,
            "salt": self.salt,
            "ops": self.ops,
            "parent": self.parent,
            "fork_at": self.fork_at,
            "reason": self.reason,
            "sampling": self.sampling.to_dict(),
        }

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Run({self.id}, {len(self.tokens)} tokens, {self.finish_reason or 'running'}: {shown!r})"
