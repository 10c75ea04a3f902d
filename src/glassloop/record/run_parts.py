"""The parts of a run's record: counts, times, drafts, beams, moves, and how inherited tokens were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import Plugin


@dataclass(frozen=True)
class Usage:
    """How many tokens a run took. Counts that another engine did not report are None."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None  # of the prompt: their keys and values were in the cache already
    context_left: int | None

    @property
    def total_tokens(self) -> int | None:
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> dict[str, int | None]:
        return asdict(self) | {"total_tokens": self.total_tokens}


@dataclass
class Timings:
    """How long a run took, in seconds. Each token has its own time too."""

    queue: float = 0.0  # until the first token of the prompt was computed
    prefill: float = 0.0  # from there until the first token was chosen
    decode: float = 0.0  # from there until the last one
    preempted: int = 0  # how often the run was preempted and resumed

    def tokens_per_second(self, completion_tokens: int) -> float | None:
        """Returns the speed of decoding alone; the first token belongs to the prefill."""
        return (completion_tokens - 1) / self.decode if completion_tokens > 1 and self.decode > 0 else None


@dataclass
class Drafts:
    """What speculative decoding brought: drafts proposed and accepted."""

    proposed: int = 0
    accepted: int = 0
    seconds: float = 0.0  # spent on proposing

    @property
    def rejected(self) -> int:
        return self.proposed - self.accepted

    @property
    def acceptance(self) -> float | None:
        """The share of the proposals that was accepted."""
        return self.accepted / self.proposed if self.proposed else None


@dataclass
class Beam:
    """A node of the tree that a beam search built."""

    number: int
    parent: int | None  # the number of the node before it
    id: int  # the token
    logprob: float  # of all tokens up to here, after the stages
    fate: str  # live (others continue it), pruned, finished, chosen


@dataclass(frozen=True)
class Move:
    """A change of the machine that computes a run. It changes no token."""

    at: int  # how many tokens the run had
    source: str  # the replica that had computed it
    target: str
    reason: str  # died, stalled or drained


@dataclass(frozen=True)
class Past:
    """How the tokens that a fork took over from its parent were drawn."""

    until: int  # the position after the last of these tokens
    run: str  # the id of the run that drew them
    sampling: Sampling
    seed: int
    salt: int
    plugins: Mapping[str, Plugin] = field(default_factory=dict)  # as in `RunRecord.plugins`
