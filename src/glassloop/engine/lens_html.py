"""Lenses as HTML: the attention of a token, the prediction of each layer, and neighbours."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from glassloop.util.html_text import LEVELS, Markup, head_row, joined, level, table_html, tag
from glassloop.util.plain_text import PlainTable, percent, quoted

if TYPE_CHECKING:
    from glassloop.engine.lens import AttentionWeights, Layers, Neighbours

_SHOWN = 400  # tokens of a text, the last ones
_TOP = 5  # candidates of a layer


def attention_parts(seen: AttentionWeights) -> tuple[Markup, ...]:
    """Returns the text up to the token, shaded by how much attention each token gets."""
    weights, most = seen.elsewhere, float(seen.elsewhere.max()) or 1.0
    first = max(0, len(seen.tokens) - _SHOWN)
    spans = []
    for place, piece in enumerate(seen.tokens[first:], first):
        weight = float(weights[place])
        layer, head, strongest = seen.strongest(place)
        title = (
            f"{quoted(piece.text)}: {100 * float(seen.mean[place]):.2f} % on average,"
            f" most in layer {layer}, head {head} ({100 * strongest:.1f} %)"
        )
        shade = min(LEVELS - 1, round((LEVELS - 1) * weight / most))
        classes = f"t p{shade}" if shade else "t"
        spans.append(tag("span", piece.text, class_=classes, title=title))
    note = (
        f"What {quoted(seen.tokens[-1].text)} attends to: the mean over {len(seen.weights)} layers and"
        f" {seen.weights.shape[1]} heads, without the first token ({100 * float(seen.mean[0]):.0f} %)"
    )
    return tag("p", note, class_="note"), tag("div", *spans, class_="text")


def layers_parts(seen: Layers) -> tuple[Markup, ...]:
    """Returns one row for each layer: what it would predict, and where the token that follows is."""
    rows = []
    for said in seen.layers:
        top = joined(
            [
                joined(
                    [tag("span", quoted(one.text), class_=_shade(one.logprob)), f" {percent(one.logprob)}  "]
                )
                for one in said.top[:_TOP]
            ]
        )
        rows.append(
            tag(
                "tr",
                tag("td", "embedding" if said.layer == 0 else str(said.layer), class_="right"),
                tag("td", top),
                tag("td", f"{said.entropy:.2f}", class_="right"),
                tag("td", f"{said.rank:,}", class_="right"),
                tag("td", percent(said.logprob), class_="right"),
            )
        )
    follows = quoted(seen.follows.text)
    titles = ("layer", "would say", "entropy", f"rank of {follows}", "its probability")
    head = head_row(titles, [title for title in titles if title != "would say"])
    whose = "which follows in the text" if seen.given else "the model's favourite"
    note = tag("p", f"After {quoted(seen.tokens[-1].text)}: {follows}, {whose}", class_="note")
    return note, tag("table", head, *rows)


def neighbours_parts(seen: Neighbours) -> tuple[Markup, ...]:
    """Returns the nearest tokens with their cosines."""
    rows = [(quoted(one.text), f"{one.cosine:.3f}") for one in seen.found]
    of = "".join(piece.text for piece in seen.of)
    return (
        tag("p", f"Tokens nearest to {quoted(of)}", class_="note"),
        table_html(PlainTable(("token", "cosine"), rows, right=("cosine",))),
    )


def _shade(logprob: float) -> str:
    """Returns the class for a probability: the more likely, the darker."""
    shade = LEVELS - 1 - level(max(logprob, -10 * log(2)))
    return f"t p{shade}" if shade else "t"
