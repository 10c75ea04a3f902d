"""An explanation as HTML: the sentence, what each stage did, and the race."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassloop.decode.explain_text import race_table, stage_table
from glassloop.util.html_text import Markup, table_html, tag, view
from glassloop.util.plain_text import quoted

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation


_RACE = "The race: logit ÷ temperature + luck = score; the highest score wins"
_GREEDY = "The race: the highest logit wins; greedy has no luck"
_NO_RACE = "The candidates"  # of a beam, or of a prompt


def explanation_parts(told: Explanation, at: int | None = None) -> tuple[Markup | None, ...]:
    """Returns the parts of an explanation, for a view of its own or a place in a page. `at` is the number of
    the token in its answer, where that is known."""
    place = f"at position {told.position} (prompt included)"
    place = place if at is None else f"token {at} of the answer, {place}"
    return (
        tag("div", f"{quoted(told.taken.text)} {place} · seed {told.seed} · {told.source}", class_="note"),
        tag("p", told.sentence),
        table_html(stage_table(told), "What each stage did") if told.stages else None,
        table_html(race_table(told), _caption(told)),
        *(tag("p", note, class_="note") for note in told.notes),
    )


def _caption(told: Explanation) -> str:
    if told.upstream is not None:
        return f"What was told by {told.upstream}"
    if told.source in ("beam", "prompt"):
        return _NO_RACE
    return _GREEDY if told.sampling.greedy else _RACE


def explanation_view(told: Explanation) -> Markup:
    """Returns an explanation as a notebook shows it."""
    return view(*explanation_parts(told), label="Why this token")
