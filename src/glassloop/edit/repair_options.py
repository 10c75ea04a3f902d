"""The options of a repair, and the three ways to repair a text with what each takes by default."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glassloop.decode.task_kinds import REPAIR, REPAIR_CHECK, REPAIR_MASKS, TaskKind
from glassloop.edit.proposal import MOST_CANDIDATES, MOST_SPANS, MOST_TOKENS
from glassloop.errors import GlassloopError
from glassloop.util.check import check_count, check_number
from glassloop.util.shown import shown

MOST_BUDGET = 1 << 30
_LENGTH = 6  # tokens of a replacement by default


@dataclass(frozen=True)
class RepairWay:
    """A way to repair a text. The numbers are defaults."""

    kind: TaskKind
    window: int  # tokens after a span that count as what follows
    spans: int | None  # replacements in one round; None: all that pay
    least_gain: float  # bits
    per_token: int  # the budget for each token of the text
    refused: tuple[str, ...] = ()  # arguments that have nothing to do


BY_SURPRISE = RepairWay(REPAIR, window=16, spans=4, least_gain=3.0, per_token=40)
BY_MASKS = RepairWay(REPAIR_MASKS, window=4, spans=None, least_gain=4.0, per_token=80, refused=("tokens",))
BY_CHECK = RepairWay(
    REPAIR_CHECK,
    window=16,
    spans=4,
    least_gain=3.0,
    per_token=4,
    refused=("tokens", "window", "least_gain", "spans"),
)


def repair_way(proposer: str, checked: bool) -> RepairWay:
    """Returns the way to repair with a proposer, or with a verifier if `checked`."""
    return BY_CHECK if checked else BY_MASKS if proposer == "diffusion" else BY_SURPRISE


@dataclass(frozen=True)
class RepairOptions:
    """The options of one repair, as its record has them."""

    budget: int | None  # computed tokens; None: as many for each token of the text as the way has
    candidates: int
    tokens: int
    window: int
    least_gain: float
    spans: int | None
    proposer: str = "left"

    @classmethod
    def checked(
        cls,
        way: RepairWay,
        *,
        budget: int | None,
        candidates: int,
        tokens: int | None,
        window: int | None,
        least_gain: float | None,
        spans: int | None,
        proposer: str,
    ) -> RepairOptions:
        """Returns checked options; None is the default of the way. Raises for one that the way does not
        take."""
        settings = {"tokens": tokens, "window": window, "least_gain": least_gain, "spans": spans}
        for name in way.refused:
            if settings[name] is not None:
                raise GlassloopError.about(
                    name, f"is {shown(settings[name])}; {way.kind.name} does not take it"
                )
        check_count("candidates", candidates, 1, MOST_CANDIDATES)
        tokens = check_count("tokens", _LENGTH if tokens is None else tokens, 1, MOST_TOKENS)
        window = check_count("window", way.window if window is None else window, 0, 1 << 20)
        spans = way.spans if spans is None else check_count("spans", spans, 1, MOST_SPANS)
        if least_gain is None:
            least_gain = way.least_gain
        least_gain = check_number("least_gain", least_gain, 0, 1e9)
        if budget is not None:
            check_count("budget", budget, 0, MOST_BUDGET)
        return cls(budget, candidates, tokens, window, least_gain, spans, proposer)

    def budget_for(self, way: RepairWay, tokens: int) -> int:
        """Returns how many tokens may be computed for a text of so many."""
        return way.per_token * tokens if self.budget is None else self.budget

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        if self.proposer == "left":
            del plain["proposer"]
        return plain
