"""The options of writing by diffusion: how many masks there are at once, and which of them a pass fills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from glassloop.errors import SamplingError
from glassloop.util.check import number_between, one_of, or_none, require, whole_between
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
        for name, rule in _RULES.items():
            require(f"diffusion.{name}", getattr(self, name), rule, SamplingError)

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
        names = [field.name for field in fields(Diffusion)]
        for name in values:
            if name not in names:
                raise SamplingError.about(f"diffusion.{name}", f"is unknown; {', '.join(names)} are known")
        return Diffusion(**values)


_RULES = {  # in the order in which errors are looked for
    "block": whole_between(1, MOST_BLOCK),
    "passes": or_none(whole_between(1, MOST_PASSES)),
    "most": or_none(whole_between(1, MOST_BLOCK)),
    "threshold": or_none(number_between(0.0, 1.0)),
    "entropy": or_none(number_between(0.0, 1e6)),
    "revise": whole_between(0, MOST_REVISIONS),
    "retake": number_between(0.0, 1.0),
    "order": one_of(*get_args(Order)),
    "revise_by": one_of(*get_args(ReviseBy)),
}
