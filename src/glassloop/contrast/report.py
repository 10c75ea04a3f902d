"""What a contrast found, as data: where answers part, how often, and which weights did it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import exp, inf
from typing import Any, NamedTuple

from glassloop.record.run import Run
from glassloop.util.statistics import Interval, wilson

_SHOWN = 3  # tensors that the sentence names


class Side(NamedTuple):
    """A token that one of the models chose where the answers part, with its numbers."""

    id: int | None  # None: this answer had ended there
    text: str
    logprob: float  # after the stages
    margin: float  # by how much it won

    @property
    def probability(self) -> float:
        return exp(self.logprob) if self.id is not None else 0.0


@dataclass(frozen=True)
class Parting:
    """One prompt under both models: where the answers part, and what became of the answer."""

    prompt: int  # its number in the list
    at: int | None  # the first token that differs; None if the answers are the same
    first: Side | None
    second: Side | None
    changed: bool  # whether the answer is another one: its value if there is an extractor, else its text
    values: tuple[str | None, str | None]  # of both answers, by the extractor
    tensor: str | None = None  # the weights that turn the token, with those before them; None: not looked for
    alone: bool | None = None  # whether these weights alone turn it
    runs: tuple[Run, Run] | None = field(default=None, repr=False, compare=False)


class Measured(NamedTuple):
    """A mean over tokens with its standard error, where the texts count as independent."""

    mean: float
    error: float


@dataclass(frozen=True)
class Remedy:
    """What it brings to give the second model some weights of the first one."""

    names: tuple[str, ...]
    bytes: int  # more than the second model's own
    back: int  # answers that then go on as the first model's, where they had parted
    tried: int


@dataclass(frozen=True)
class ContrastReport:
    """The same prompts with the same luck under two models."""

    models: tuple[str, str]
    partings: tuple[Parting, ...]  # one for each prompt
    kl: Measured  # of the second model from the first, in nats per token, over the first model's answers
    token_flips: Interval  # the share of those tokens that the second model would not have chosen
    measured_tokens: int
    measured_texts: int
    remedies: tuple[Remedy, ...]
    note: str | None  # why no tensors were looked for

    @property
    def flips(self) -> tuple[Parting, ...]:
        """The prompts whose answers part."""
        return tuple(parting for parting in self.partings if parting.at is not None)

    @property
    def changed(self) -> Interval:
        """The share of prompts with another answer, with Wilson's interval."""
        return wilson(sum(parting.changed for parting in self.partings), len(self.partings))

    @property
    def first(self) -> Parting | None:
        """The parting that comes first in its answer."""
        return min(self.flips, key=lambda parting: parting.at or 0, default=None)

    @property
    def tensors(self) -> tuple[tuple[str, int], ...]:
        """The weights that turned a token, and how many each turned, the most frequent first."""
        return tuple(Counter(each.tensor for each in self.flips if each.tensor is not None).most_common())

    @property
    def sentence(self) -> str:
        """The result in a few sentences."""
        one, other = self.models
        changed, share = sum(parting.changed for parting in self.partings), self.changed
        count = len(self.partings)
        sentences = [
            f"{changed} of {count} answers changed from {one} to {other} ({_range(share)}),"
            f" and {len(self.flips)} of {count} texts part."
        ]
        if self.measured_tokens:
            flips = self.token_flips
            sentences.append(
                f"Over {self.measured_tokens} tokens of {self.measured_texts} texts, KL is {self.kl.mean:.2g}"
                f" ± {1.96 * self.kl.error:.1g} nats a token, and {_percent(flips.share)} % ({_range(flips)})"
                " of the tokens would not have been chosen."
            )
        looked = sum(each.tensor is not None for each in self.flips)
        if looked:
            named = ", ".join(f"{name} ({count})" for name, count in self.tensors[:_SHOWN])
            sentences.append(f"Of {looked} partings that were looked into, these weights turned: {named}.")
        for remedy in self.remedies:
            sentences.append(
                f"{' and '.join(remedy.names)} as in {one} would cost {remedy.bytes / 1e6:.1f} MB and bring"
                f" back {remedy.back} of {remedy.tried}."
            )
        if self.note is not None:
            sentences.append(f"No weights were looked for: {self.note}.")
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON has it."""
        return {
            "models": list(self.models),
            "sentence": self.sentence,
            "prompts": len(self.partings),
            "changed": self.changed._asdict(),
            "kl": self.kl._asdict(),
            "token_flips": self.token_flips._asdict(),
            "measured_tokens": self.measured_tokens,
            "measured_texts": self.measured_texts,
            "flips": [_plain(parting) for parting in self.flips],
            "first": None if self.first is None else self.first.prompt,
            "tensors": [{"name": name, "turned": turned} for name, turned in self.tensors],
            "remedies": [asdict(remedy) for remedy in self.remedies],
            "note": self.note,
        }


def _percent(share: float) -> str:
    return f"{100 * share:.3g}"


def _range(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)} %"


def _plain(parting: Parting) -> dict[str, Any]:
    sides = {name: None if side is None else _side(side) for name, side in _sides(parting)}
    names = ("prompt", "at", "changed", "tensor", "alone")
    plain = {name: getattr(parting, name) for name in names} | sides | {"values": list(parting.values)}
    return plain | {"runs": [] if parting.runs is None else [run.id for run in parting.runs]}


def _sides(parting: Parting) -> Sequence[tuple[str, Side | None]]:
    return ("first", parting.first), ("second", parting.second)


def _side(side: Side) -> dict[str, Any]:
    plain = {name: None if value in (inf, -inf) else value for name, value in side._asdict().items()}
    return plain | {"probability": side.probability}
