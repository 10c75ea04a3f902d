"""An explanation: why a token came, as data, as plain text and as HTML. `explain` computes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from math import inf
from typing import Any, NamedTuple

from glassloop.decode.difference import RecordDifference
from glassloop.decode.sampling import Sampling
from glassloop.util.html_text import Markup, table_html, tag, view
from glassloop.util.plain_text import PlainTable, percent, quoted, visible

_NAMED = 3  # tokens that a stage changed and that are shown by name
_RACE = "The race: logit ÷ temperature + luck = score; the highest score wins"
_GREEDY = "The race: the highest logit wins; greedy has no luck"
_NO_RACE = "The candidates"  # of a beam, or of a prompt


@dataclass(frozen=True)
class Change:
    """A token that a stage removed or moved. Log-probabilities are among the tokens left at that point."""

    id: int
    text: str
    before: float
    after: float | None  # None: removed


@dataclass(frozen=True)
class StageReport:
    """What one stage did."""

    name: str
    kind: str  # bias, scale, mask
    survivors_before: int
    survivors: int
    mass_kept: float  # how much of the probability the survivors had before the stage
    removed: tuple[Change, ...]  # the likeliest of them
    moved: tuple[Change, ...]  # the likeliest of those whose logit the stage changed
    removed_count: int
    moved_count: int


@dataclass(frozen=True)
class Racer:
    """A token in the race, or one that would have been without the stages."""

    id: int
    text: str
    rank: int  # in the model's own order, from 1
    raw_logprob: float
    logprob: float | None  # after the stages; None: removed
    rank_after: int | None  # among the tokens that the stages left, from 1; None: removed
    logit: float | None  # after the stages; None: removed
    luck: float
    score: float | None  # that logit + luck
    removed_by: str | None
    raw_logit: float | None = None  # the model's own; None: not known, or minus infinity


class BeamRank(NamedTuple):
    """How a beam did in its search, by log-probability. Ranks count from 1."""

    rank: int  # after this token, among the beams of the same length
    beams: int  # how many beams of that length the search looked at
    result: int  # among the finished texts


@dataclass(frozen=True)
class Explanation:
    """Why a token came: what each stage did, the race, and one sentence."""

    position: int
    seed: int
    salt: int
    sampling: Sampling
    stages: tuple[StageReport, ...]
    candidates: tuple[Racer, ...]  # by score; then the removed ones, in the model's own order
    winner: Racer
    runner_up: Racer | None
    margin: float
    taken: (
        Racer  # the token that came: the winner, unless it was forced, found by a search, given or recorded
    )
    source: str  # sampled, draft (guessed, and confirmed), forced, beam, prompt
    beam: BeamRank | None  # how the beam did that the token is on, where the record has its search
    sentence: str
    notes: tuple[str, ...] = ()  # what has changed since the run was made: a plugin
    # The other engine that chose the token. Only the log-probabilities that it gave are known then; luck,
    # margin and the log-probabilities after the stages are NaN, and ranks are 0.
    upstream: str | None = None
    # How the record differs from what is computed now, which all other fields but `taken` and `source` tell.
    # None if it does not differ, if there is no record, and in a what-if.
    difference: RecordDifference | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["sampling"] = self.sampling.to_dict()
        plain["stages"] = [asdict(report) for report in self.stages]
        plain["candidates"] = [asdict(racer) for racer in self.candidates]
        plain["winner"] = asdict(self.winner)
        plain["runner_up"] = self.runner_up and asdict(self.runner_up)
        plain["taken"] = asdict(self.taken)
        plain["beam"] = self.beam and self.beam._asdict()
        plain["margin"] = None if self.margin == inf else self.margin
        plain["notes"] = list(self.notes)
        plain["difference"] = self.difference and self.difference.to_dict()
        if self.upstream is not None:
            plain = _without_unknown(plain)
        return plain

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        return view(*explanation_parts(self), label="Why this token")

    def __str__(self) -> str:
        """Returns it as plain text: the tables of the stages and of the race, and the sentence."""
        place = f"{quoted(self.taken.text)} at position {self.position} (prompt included)"
        first = f"{place} · seed {self.seed} · {self.source}"
        stages = [str(stage_table(self))] if self.stages else []
        parts = [*stages, str(race_table(self))]
        # What the record has comes before all that is computed now.
        parts.insert(len(parts) if self.difference is None else 0, visible(self.sentence))
        return "\n\n".join([first, *parts])


def _without_unknown(value: Any) -> Any:
    """Returns JSON with None in place of NaN, and of ranks that are 0."""
    if isinstance(value, dict):
        plain = {name: _without_unknown(each) for name, each in value.items()}
        return plain | ({"rank": plain["rank"] or None} if "rank" in plain else {})
    if isinstance(value, list | tuple):
        return [_without_unknown(each) for each in value]
    return None if isinstance(value, float) and value != value else value


# ── how it is shown ────────────────────────────────────────────────────────────────────────────────────────


def stage_table(explanation: Explanation) -> PlainTable:
    """Returns what each stage did, one stage in a row."""
    header = ("stage", "left", "mass kept", "removed", "moved")
    return PlainTable(header, [_stage(report) for report in explanation.stages], right=("left", "mass kept"))


def race_table(explanation: Explanation) -> PlainTable:
    """Returns the candidates, one in a row, in the order of the explanation. Where there is luck, logit ÷
    temperature + luck = score."""
    if explanation.upstream is not None:
        candidates = [(quoted(racer.text), percent(racer.raw_logprob)) for racer in explanation.candidates]
        return PlainTable(("token", "told"), candidates, right=("told",))
    logit = "logit" if explanation.sampling.greedy else "logit ÷ temperature"
    luck = (logit, "luck", "score") if explanation.source not in ("beam", "prompt") else ()
    rows = [
        (
            quoted(racer.text),
            str(racer.rank),
            percent(racer.raw_logprob),
            f"removed by {racer.removed_by}" if racer.removed_by else percent(racer.logprob),
            *(_sum(racer) if luck else ()),
        )
        for racer in explanation.candidates
    ]
    return PlainTable(("token", "rank", "model", "after stages", *luck), rows, right=("rank", "model", *luck))


def _sum(racer: Racer) -> tuple[str, str, str]:
    """Returns logit, luck and score of a token with two digits each. The first is the difference of the other
    two as they are shown, so that the row adds up: it may be a hundredth off the logit's own digits."""
    luck = f"{racer.luck:+.2f}"
    if racer.score is None:
        return "", luck, ""
    score = f"{racer.score:.2f}"
    return str(Decimal(score) - Decimal(luck)), luck, score


def _stage(report: StageReport) -> tuple[str, ...]:
    return (
        report.name,
        f"{report.survivors:,}",
        f"{100 * report.mass_kept:.1f} %",
        _some(report.removed, report.removed_count),
        _some(report.moved, report.moved_count) if report.kind == "bias" else "",
    )


def _some(changes: tuple[Change, ...], count: int) -> str:
    """Returns how many tokens changed, and the likeliest few by name."""
    if not count:
        return ""
    named = ", ".join(quoted(change.text) for change in changes[:_NAMED])
    return f"{count:,}: {named}" + (" …" if count > _NAMED else "")


def explanation_parts(explanation: Explanation, at: int | None = None) -> tuple[Markup | None, ...]:
    """Returns the parts of an explanation, for a view of its own or a place in a page. `at` is the number of
    the token in its answer, where that is known."""
    place = f"at position {explanation.position} (prompt included)"
    place = place if at is None else f"token {at} of the answer, {place}"
    return (
        tag(
            "div",
            f"{quoted(explanation.taken.text)} {place} · seed {explanation.seed} · {explanation.source}",
            class_="note",
        ),
        tag("p", explanation.sentence),
        table_html(stage_table(explanation), "What each stage did") if explanation.stages else None,
        table_html(race_table(explanation), _caption(explanation)),
        *(tag("p", note, class_="note") for note in explanation.notes),
    )


def _caption(explanation: Explanation) -> str:
    if explanation.upstream is not None:
        return f"What was told by {explanation.upstream}"
    if explanation.source in ("beam", "prompt"):
        return _NO_RACE
    return _GREEDY if explanation.sampling.greedy else _RACE
