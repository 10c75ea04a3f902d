"""The data of editing: a place in a text, and a proposal to replace it, with its costs and the decision."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

from glassloop.record.run import Run

MOST_CANDIDATES = 256
MOST_TOKENS = 1024  # of a replacement
MOST_SPANS = 64


@dataclass(frozen=True)
class Place:
    """A span of a text, by tokens, and how many tokens may replace it."""

    run: Run  # the present text: a prompt, which cannot be edited, and tokens
    start: int  # the first token of the span in the answer of the run
    end: int  # the token after the last
    tokens: int
    step: int  # the number of the step, which the luck depends on
    after: tuple[int, ...] | None = None  # the tokens behind a hole; None: those of the run behind the span

    @property
    def following(self) -> list[int]:
        return self.run.token_ids[self.end :] if self.after is None else list(self.after)

    @property
    def prefix(self) -> list[int]:
        return [*self.run.prompt_ids, *self.run.token_ids[: self.start]]


@dataclass(eq=False)
class Proposal:
    """A replacement for a span, with what it and the text after it cost. Bits are surprise: -log2 of the
    model's own probability, so fewer are better."""

    step: int
    number: int  # among the proposals of the step
    start: int  # the span that it replaces, by tokens of the text at that step
    end: int
    ids: list[int]  # the tokens that it proposes
    text: str
    old_text: str
    drawn: Run | None  # how it was drawn: luck, stages and alternatives of each token
    run: Run | None = None  # the branch: the text with this replacement, as far as it was scored
    own_bits: float = 0.0
    following_bits: float = 0.0
    followed: int = 0  # how many tokens after the span were scored
    old_own_bits: float | None = None  # of what it replaces; None where there was nothing
    old_following_bits: float | None = None
    masked_bits: float | None = None  # to the masked model, given both sides; None if it was not asked
    old_masked_bits: float | None = None
    accepted: bool = False
    coin: float | None = None  # the draw that accepted or refused it; None if a rule did
    threshold: float | None = None  # the probability of acceptance that the draw was compared with
    refusal: str | None = None  # why it was not even scored: it cuts a character, or is incomplete
    score: float | None = None  # what a verifier gave the text with it
    why: str = ""  # the reason of the decision, in a few words
    seconds: float = 0.0  # when it was scored, since the edit began; differs in a replay

    @property
    def gain(self) -> float:
        """How many bits fewer the span and what follows take than before."""
        return self.own_gain + self.following_gain

    @property
    def own_gain(self) -> float:
        return 0.0 if self.old_own_bits is None else self.old_own_bits - self.own_bits

    @property
    def following_gain(self) -> float:
        return 0.0 if self.old_following_bits is None else self.old_following_bits - self.following_bits

    @property
    def bits(self) -> float:
        """The surprise of the span and of what follows, as far as it was scored."""
        return self.own_bits + self.following_bits

    @property
    def line(self) -> str:
        """The decision in one line: "+3.1 bits on what follows, -1.2 on itself, accepted"."""
        decided = "accepted" if self.accepted else "refused"
        if self.why:
            decided += f" ({self.why})"
        if self.refusal is not None:
            return f"not scored, refused ({self.refusal})"
        if self.old_own_bits is None:
            return (
                f"{self.following_bits:.1f} bits for what follows, {self.own_bits:.1f} for itself, {decided}"
            )
        if self.old_following_bits is None or not self.followed:
            return f"{self.own_gain:+.1f} bits on itself, {decided}"
        return f"{self.following_gain:+.1f} bits on what follows, {self.own_gain:+.1f} on itself, {decided}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the proposal as JSON has it; the runs by their ids."""
        plain = {name: getattr(self, name) for name in _IN_JSON}
        runs = {"drawn": self.drawn and self.drawn.id, "run": self.run and self.run.id}
        return plain | runs | {"line": self.line}


# The fields that a replay compares.
DECIDED = (
    *("step", "number", "start", "end", "ids", "text", "old_text", "own_bits", "following_bits"),
    *("followed", "old_own_bits", "old_following_bits", "accepted", "coin", "threshold", "refusal", "score"),
    *("masked_bits", "old_masked_bits", "why"),
)
_IN_JSON = (*DECIDED, "seconds")


def bits(run: Run, start: int, end: int) -> float:
    """Returns the surprise of some tokens of a run under the model's own distribution."""
    return -sum(token.raw_logprob for token in run.tokens[start:end]) / log(2)
