"""Tokens of a run as HTML: the text in shades of surprise, and a table with the alternatives of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glassloop.decode.sampling import Sampling
from glassloop.record.run_record import RunRecord
from glassloop.record.token import Token
from glassloop.util.html_text import Markup, bar, head_row, joined, level, shade, tag, text_html
from glassloop.util.plain_text import number, percent, quoted
from glassloop.util.shown import cut

SHOWN = 5  # alternatives in a table
_ELSEWHERE = ("seed", "n", "max_tokens", "timeout", "logprobs")  # shown otherwise, or without effect
MOST_ROWS = 400  # tokens in a table; the text has all of them


def reason(token: Token) -> str:
    """Returns in one line how a token was chosen, from its record."""
    if token.entropy != token.entropy:  # another engine chose it
        return f"{percent(token.raw_logprob)} as told; all else is not known"
    parts = [f"{percent(token.raw_logprob)} by the model (rank {token.rank})"]
    if token.logprob != token.raw_logprob:
        parts.append(f"{percent(token.logprob)} after the stages")
    if token.source == "forced":
        parts.append("given by the caller")
    elif token.source == "beam":
        parts.append("on the best beam")
    else:
        if token.luck:
            parts.append(f"luck {token.luck:+.2f}")
        if token.margin < float("inf"):
            parts.append(f"won by {token.margin:.2f}")
        if token.source == "draft":
            parts.append("a draft that was confirmed")
    return ", ".join(parts)


def text_view(tokens: Sequence[Token], tail: str = "") -> Markup:
    """Returns the text of tokens, each shaded by how surprising the model found it, with its reason as a
    tooltip. Characters that take several tokens are at the last of these. The shade is given twice: a
    notebook that is not trusted yet is shown without its style sheets."""
    return joined([*(token_span(token, style=_shade(token)) for token in tokens), text_html(tail)])


def _shade(token: Token) -> str | None:
    number = level(token.raw_logprob)
    return f"background-color:{shade(number)}" if number else None


def token_span(token: Token, **attributes: object) -> Markup:
    """Returns the text of one token."""
    number = level(token.raw_logprob)
    classes = ["t", *([f"p{number}"] if number else []), *(["forced"] if token.source == "forced" else [])]
    title = f"{quoted(token.piece)}: {reason(token)}"
    return tag("span", token.text, class_=" ".join(classes), title=title, **attributes)


def token_table(run: RunRecord) -> Markup:
    """Returns one row for each token, with the alternatives that the model found likeliest."""
    titles = ("place", "token", "model", "rank", "entropy", "luck", "alternatives")
    right = ("place", "model", "rank", "entropy", "luck")
    rows = [
        tag(
            "tr",
            tag("td", str(place), class_="right"),
            tag("td", quoted(token.piece)),
            tag("td", bar(token.raw_logprob), " ", percent(token.raw_logprob), class_="right"),
            tag("td", str(token.rank or "?"), class_="right"),
            tag("td", number(token.entropy, ".2f"), class_="right"),
            tag("td", number(token.luck, "+.2f") if token.luck else "", class_="right"),
            tag("td", _alternatives(token)),
        )
        for place, token in enumerate(run.tokens[:MOST_ROWS])
    ]
    left = len(run.tokens) - MOST_ROWS
    return joined(
        [
            tag("table", head_row(titles, right), *rows),
            tag("p", f"{left} more tokens", class_="note") if left > 0 else None,
        ]
    )


def _alternatives(token: Token) -> str:
    others = [other for other in token.alternatives if other.id != token.id][:SHOWN]
    return ", ".join(f"{quoted(other.text)} {percent(other.raw_logprob)}" for other in others)


def facts_line(run: RunRecord) -> str:
    """Returns in one line what made a run and how it ended."""
    usual, run_options = Sampling().to_dict(), run.sampling.to_dict()
    changed = [name for name in run_options if run_options[name] != usual[name] and name not in _ELSEWHERE]
    options = ", ".join(f"{name} {cut(str(run_options[name]), 40)}" for name in changed)
    parts = [
        run.model,
        "" if run.origin.is_local else f"computed by {run.origin.described}",
        options,
        f"seed {run.seed}",
        f"{len(run.tokens)} tokens",
        run.finish_reason or "running",
    ]
    return " · ".join(part for part in parts if part)


def prompt_text(run: RunRecord) -> str | None:
    """Returns the prompt as it was given, or decoded if the model is attached, or None."""
    if run.messages is not None:
        return run.title
    if run.prompt is not None:
        return run.prompt
    return None if run.llm is None else run.llm.decode(run.prompt_ids)


def columns(views: Iterable[Markup]) -> Markup:
    """Returns views side by side where there is room."""
    return tag("div", *(tag("div", view) for view in views), class_="two")
