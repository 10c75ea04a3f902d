"""An explanation as HTML: the sentence, what each stage did, and the race."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassloop.decode.explain_text import race_table, stage_table
from glassloop.html_text import Markup, table_html, tag, view
from glassloop.plain_text import quoted

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation


_RACE = "The race: log-probability after the stages, plus luck"


def explanation_parts(told: Explanation) -> tuple[Markup | None, ...]:
    """Returns the parts of an explanation, for a view of its own or a place in a page."""
    place = f"{quoted(told.taken.text)} at position {told.position} (prompt included)"
    return (
        tag("div", f"{place} · seed {told.seed} · {told.source}", class_="note"),
        tag("p", told.sentence),
        table_html(stage_table(told), "What each stage did") if told.stages else None,
        table_html(race_table(told), _RACE if told.upstream is None else f"What was told by {told.upstream}"),
        *(tag("p", note, class_="note") for note in told.notes),
    )


def explanation_view(told: Explanation) -> Markup:
    """Returns an explanation as a notebook shows it."""
    return view(*explanation_parts(told), label="Why this token")
