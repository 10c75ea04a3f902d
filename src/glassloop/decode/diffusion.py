"""The options of writing by diffusion: how many masks there are at once, and which of them a pass fills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Literal, get_args

from glassloop.errors import SamplingError
from glassloop.util.shown import shown

Order = Literal["confidence", "entropy", "left", "random"]
ReviseBy = Literal["confidence", "likelihood"]

MOST_BLOCK = 256
MOST_PASSES = 4096
MOST_REVISIONS = 256


@dataclass(frozen=True)
class Diffusion:
    """How masks are filled. All numbers that decide it (the highest probability of a place, its entropy) are
    those of the model's own distribution, before the stages and whatever was drawn."""

    block: int = 16  # masks at once; blocks are written from left to right
    passes: int | None = None  # most passes for a block; None: as many as it has masks
    threshold: float | None = 0.9  # a pass fills every place where some token is at least this probable
    # Or: a pass fills the most certain places while (sum of entropies - the largest) stays within this bound.
    entropy: float | None = None
    most: int | None = None  # most places that one pass fills
    order: Order = "confidence"  # which places come first: the most certain, from left to right, by luck
    revise: int = 0  # how often tokens of a full block are remasked and filled again
    retake: float = 0.25  # the share of the block's tokens that are remasked
    # The score that selects them: the confidence when filled, or the log-probability from left to right.
    revise_by: ReviseBy = "confidence"

    def __post_init__(self) -> None:
        _whole("block", self.block, 1, MOST_BLOCK)
        if self.passes is not None:
            _whole("passes", self.passes, 1, MOST_PASSES)
        if self.most is not None:
            _whole("most", self.most, 1, MOST_BLOCK)
        if self.threshold is not None:
            _number("threshold", self.threshold, 0.0, 1.0)
        if self.entropy is not None:
            _number("entropy", self.entropy, 0.0, 1e6)
        _whole("revise", self.revise, 0, MOST_REVISIONS)
        _number("retake", self.retake, 0.0, 1.0)
        _one_of("order", self.order, get_args(Order))
        _one_of("revise_by", self.revise_by, get_args(ReviseBy))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(values: Diffusion | Mapping[str, Any] | int | None) -> Diffusion:
        """Returns checked options: from a mapping, from the length of a block alone, or the defaults for
        None. An unknown name is an error."""
        if values is None or isinstance(values, Diffusion):
            return values or Diffusion()
        if isinstance(values, int) and not isinstance(values, bool):
            return Diffusion(block=values)
        if not isinstance(values, Mapping):
            expected = f"the length of a block, from 1 to {MOST_BLOCK}, or options by name"
            raise SamplingError(
                f"diffusion is {shown(values)}; {expected} is expected", field="diffusion", expected=expected
            )
        known = [field.name for field in fields(Diffusion)]
        for name in values:
            if name not in known:
                raise SamplingError.about(f"diffusion.{name}", f"is unknown; {', '.join(known)} are known")
        return Diffusion(**values)


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, value, f"a whole number from {least} to {most}")


def _number(name: str, value: object, least: float, most: float) -> None:
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not right or not least <= value <= most:  # type: ignore[operator]
        raise _wrong(name, value, f"a number from {least:g} to {most:g}")


def _one_of(name: str, value: object, names: tuple[str, ...]) -> None:
    if value not in names:
        raise _wrong(name, value, f"one of {', '.join(names)}")


def _wrong(name: str, value: object, expected: str) -> SamplingError:
    return SamplingError.about(f"diffusion.{name}", f"is {shown(value)}; {expected} is expected")
