"""An explanation as text: a table of the stages, a table of the race, and the sentence."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from glassloop.util.plain_text import PlainTable, percent, quoted, visible

if TYPE_CHECKING:
    from glassloop.decode.explain import Change, Explanation, Racer, StageReport

_NAMED = 3  # tokens that a stage changed and that are shown by name


def explanation_text(told: Explanation) -> str:
    """Returns all of an explanation as plain text."""
    place = f"{quoted(told.taken.text)} at position {told.position} (prompt included)"
    first = f"{place} · seed {told.seed} · {told.source}"
    stages = [str(stage_table(told))] if told.stages else []
    parts = [*stages, str(race_table(told))]
    # What the record has comes before all that is computed now.
    parts.insert(len(parts) if told.difference is None else 0, visible(told.sentence))
    return "\n\n".join([first, *parts])


def stage_table(told: Explanation) -> PlainTable:
    """Returns what each stage did, one stage in a row."""
    header = ("stage", "left", "mass kept", "removed", "moved")
    return PlainTable(header, [_stage(report) for report in told.stages], right=("left", "mass kept"))


def race_table(told: Explanation) -> PlainTable:
    """Returns the candidates, one in a row, in the order of the explanation. Where there is luck, logit ÷
    temperature + luck = score."""
    if told.upstream is not None:
        known = [(quoted(racer.text), percent(racer.raw_logprob)) for racer in told.candidates]
        return PlainTable(("token", "told"), known, right=("told",))
    logit = "logit" if told.sampling.greedy else "logit ÷ temperature"
    luck = (logit, "luck", "score") if told.source not in ("beam", "prompt") else ()
    rows = [
        (
            quoted(racer.text),
            str(racer.rank),
            percent(racer.raw_logprob),
            f"removed by {racer.removed_by}" if racer.removed_by else percent(racer.logprob),
            *(_sum(racer) if luck else ()),
        )
        for racer in told.candidates
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
