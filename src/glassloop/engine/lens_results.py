"""What the lenses find: values that can be written as JSON, and that a notebook shows as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any

import numpy as np

from glassloop.errors import GlassloopError
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.util.html_text import LEVELS, Markup, head_row, joined, level, table_html, tag, view
from glassloop.util.plain_text import PlainTable, percent, quoted

_DIGITS = 6  # of a weight in JSON
_SHOWN = 400  # tokens of a text, the last ones
_TOP = 5  # candidates of a layer


Text = Run | str | Sequence[int]


@dataclass(frozen=True)
class Piece:
    id: int
    text: str


@dataclass(frozen=True)
class AttentionWeights:
    """The attention of one token, in each head of each layer, to itself and to each token before it."""

    model: str
    ops: str
    token: int  # its place in the text
    tokens: tuple[Piece, ...]  # of the text, up to it
    weights: Float32  # [layers, heads, tokens]; over the tokens they sum to one

    @property
    def mean(self) -> Float32:
        """The mean weight over all heads of all layers. [tokens]"""
        mean: Float32 = self.weights.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        return mean

    @property
    def elsewhere(self) -> Float32:
        """The mean without the first token, which takes the weight of heads that find nothing: shares of what
        is left for the others. [tokens]"""
        rest = self.mean.copy()
        rest[0] = 0
        total = float(rest.sum())
        if total:
            rest /= np.float32(total)
        return rest

    def strongest(self, place: int) -> tuple[int, int, float]:
        """Returns the layer and head, from 1, that attend most to a token, and how much."""
        here = self.weights[:, :, place]
        layer, head = divmod(int(here.argmax()), here.shape[1])
        return layer + 1, head + 1, float(here[layer, head])

    def layer(self, number: int) -> Float32:
        """Returns the weights of one layer, from 1. [heads, tokens]"""
        if not 1 <= number <= len(self.weights):
            raise GlassloopError.about("layer", f"is {number}; one from 1 to {len(self.weights)} is expected")
        heads: Float32 = self.weights[number - 1]
        return heads

    def to_dict(self, layer: int | None = None) -> dict[str, Any]:
        """Returns one layer, or all of them, as plain values."""
        shown = range(1, len(self.weights) + 1) if layer is None else [layer]
        return {
            "lens": "attention",
            **_head(self),
            "token": self.token,
            "tokens": [asdict(piece) for piece in self.tokens],
            "mean": _rounded(self.mean),
            "elsewhere": _rounded(self.elsewhere),
            "layers": [{"layer": each, "weights": _rounded(self.layer(each))} for each in shown],
        }

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        return view(*_attention_parts(self), label="Attention")


@dataclass(frozen=True)
class Candidate:
    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class LayerPrediction:
    """The prediction of the language head from the hidden state after a layer; layer 0 is the embedding."""

    layer: int
    top: tuple[Candidate, ...]  # the likeliest first
    entropy: float  # in nats, over the whole vocabulary
    rank: int  # of the token that follows, from 1
    logprob: float  # of the token that follows


@dataclass(frozen=True)
class Layers:
    """The prediction of each layer for the token after a given one. The last layer's is the model's own."""

    model: str
    ops: str
    token: int  # its place in the text
    tokens: tuple[Piece, ...]  # of the text, up to it
    follows: Piece  # what comes after it in the text; at its end, the model's favourite
    given: bool  # whether that is in the text
    layers: tuple[LayerPrediction, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "lens": "layers",
            **_head(self),
            "token": self.token,
            "tokens": [asdict(piece) for piece in self.tokens],
            "follows": {**asdict(self.follows), "given": self.given},
            "layers": [asdict(said) | {"top": [asdict(one) for one in said.top]} for said in self.layers],
        }

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        return view(*_layers_parts(self), label="The prediction of each layer")


@dataclass(frozen=True)
class Neighbour:
    id: int
    text: str
    cosine: float


@dataclass(frozen=True)
class Neighbours:
    """The tokens whose embeddings point most nearly the same way as that of a token, or as the mean of a
    text's tokens."""

    model: str
    ops: str
    of: tuple[Piece, ...]
    found: tuple[Neighbour, ...]  # the nearest first; never those that were asked about

    def to_dict(self) -> dict[str, Any]:
        return {
            "lens": "neighbours",
            **_head(self),
            "of": [asdict(piece) for piece in self.of],
            "neighbours": [asdict(one) for one in self.found],
        }

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        return view(*_neighbours_parts(self), label="Neighbours")


def _head(result: AttentionWeights | Layers | Neighbours) -> dict[str, str]:
    return {"model": result.model, "ops": result.ops}


def _rounded(values: Float32) -> Any:
    return np.round(values.astype(np.float64), _DIGITS).tolist()


# ── HTML ───────────────────────────────────────────────────────────────────────────────────────────────────


def _attention_parts(attention: AttentionWeights) -> tuple[Markup, ...]:
    """Returns the text up to the token, shaded by how much attention each token gets."""
    weights, most = attention.elsewhere, float(attention.elsewhere.max()) or 1.0
    first = max(0, len(attention.tokens) - _SHOWN)
    spans = []
    for place, piece in enumerate(attention.tokens[first:], first):
        weight = float(weights[place])
        layer, head, strongest = attention.strongest(place)
        title = (
            f"{quoted(piece.text)}: {100 * float(attention.mean[place]):.2f} % on average,"
            f" most in layer {layer}, head {head} ({100 * strongest:.1f} %)"
        )
        shade = min(LEVELS - 1, round((LEVELS - 1) * weight / most))
        classes = f"t p{shade}" if shade else "t"
        spans.append(tag("span", piece.text, class_=classes, title=title))
    layers, heads, _ = attention.weights.shape
    note = (
        f"What {quoted(attention.tokens[-1].text)} attends to: the mean over {layers} layers and"
        f" {heads} heads, without the first token ({100 * float(attention.mean[0]):.0f} %)"
    )
    return tag("p", note, class_="note"), tag("div", *spans, class_="text")


def _layers_parts(layers: Layers) -> tuple[Markup, ...]:
    """Returns one row for each layer: what it would predict, and where the token that follows is."""
    rows = []
    for said in layers.layers:
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
    follows = quoted(layers.follows.text)
    titles = ("layer", "would say", "entropy", f"rank of {follows}", "its probability")
    head = head_row(titles, [title for title in titles if title != "would say"])
    whose = "which follows in the text" if layers.given else "the model's favourite"
    note = tag("p", f"After {quoted(layers.tokens[-1].text)}: {follows}, {whose}", class_="note")
    return note, tag("table", head, *rows)


def _neighbours_parts(neighbours: Neighbours) -> tuple[Markup, ...]:
    """Returns the nearest tokens with their cosines."""
    rows = [(quoted(one.text), f"{one.cosine:.3f}") for one in neighbours.found]
    of = "".join(piece.text for piece in neighbours.of)
    return (
        tag("p", f"Tokens nearest to {quoted(of)}", class_="note"),
        table_html(PlainTable(("token", "cosine"), rows, right=("cosine",))),
    )


def _shade(logprob: float) -> str:
    """Returns the class for a probability: the more likely, the darker."""
    shade = LEVELS - 1 - level(max(logprob, -10 * log(2)))
    return f"t p{shade}" if shade else "t"
