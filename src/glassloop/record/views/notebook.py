"""What a run and a comparison show of themselves in a notebook: HTML that needs no script and no kernel."""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.record.run_record import RunRecord
from glassloop.record.run_tree import RunTree
from glassloop.record.views.token_html import columns, facts_line, prompt_text, text_view, token_table
from glassloop.util.html_text import Markup, table_html, tag, view
from glassloop.util.plain_text import PlainTable
from glassloop.util.shown import cut

_PROMPT = 600  # characters


def run_view(run: RunRecord) -> Markup:
    """Returns a run: its text in shades of surprise, and the numbers of each token to unfold."""
    tree = RunTree.of(run)
    return view(
        tag("div", facts_line(run), class_="note"),
        _text(run),
        tag("details", tag("summary", "Every token, and what else was likely"), token_table(run))
        if run.tokens
        else None,
        tag("details", tag("summary", f"{len(tree)} runs"), tag("pre", str(tree))) if len(tree) > 1 else None,
        label="A run",
    )


def comparison_view(
    sentence: str,
    causes: Sequence[tuple[str, object, object, str]],
    runs: Sequence[RunRecord],
    at: int | None,
) -> Markup:
    """Returns a comparison: the sentence, what differs (its name, both values, whether it alone makes the
    difference), and the texts of the runs from token `at` on, where they differ."""
    rows = [(what, cut(repr(one), 60), cut(repr(other), 60), alone) for what, one, other, alone in causes]
    table = PlainTable(("differs", "first", "second", "alone makes the difference"), rows)
    return view(
        tag("p", sentence),
        table_html(table) if rows else None,
        columns([_text(run, at) for run in runs]) if runs else None,
        label="A comparison of two runs",
    )


def _text(run: RunRecord, at: int | None = None) -> Markup:
    """Returns the end of the prompt and the text; from token `at` on in bold."""
    prompt = prompt_text(run)
    if prompt is not None and len(prompt) > _PROMPT:
        prompt = "…" + prompt[-_PROMPT:]
    start = None if prompt is None else tag("span", prompt, class_="prompt", title="the prompt")
    if at is None or at >= len(run.tokens):
        return tag("div", start, text_view(run.tokens, run.tail), class_="text")
    return tag(
        "div",
        start,
        text_view(run.tokens[:at]),
        tag("strong", text_view(run.tokens[at:], run.tail)),
        class_="text",
    )
