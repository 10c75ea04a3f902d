"""What the lens of experts finds: which experts a token took in each layer, and with which weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glassloop.engine.lens_results import Piece
from glassloop.util.html_text import Markup, table_html, tag, view
from glassloop.util.plain_text import PlainTable, quoted


@dataclass(frozen=True)
class ChosenExpert:
    number: int  # from 0, as in the files of the model
    weight: float  # with which its output counts


@dataclass(frozen=True)
class LayerRoute:
    layer: int  # from 1
    experts: tuple[ChosenExpert, ...]  # by number
    among: int  # experts of the layer

    @property
    def in_words(self) -> str:
        """The experts by weight, the highest first."""
        ranked = sorted(self.experts, key=lambda one: (-one.weight, one.number))
        return ", ".join(f"{one.number} ({one.weight:.2f})" for one in ranked)


@dataclass(frozen=True)
class ExpertRoutes:
    """The experts of one token, in each layer that has experts."""

    model: str
    ops: str
    token: int  # its place in the text
    tokens: tuple[Piece, ...]  # of the text, up to it
    layers: tuple[LayerRoute, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "lens": "experts",
            "model": self.model,
            "ops": self.ops,
            "token": self.token,
            "tokens": [asdict(piece) for piece in self.tokens],
            "layers": [asdict(route) for route in self.layers],
        }

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        return view(*_parts(self), label="Experts")


def _parts(routes: ExpertRoutes) -> tuple[Markup, ...]:
    rows = [(str(route.layer), route.in_words, str(route.among)) for route in routes.layers]
    note = f"The experts that {quoted(routes.tokens[-1].text)} took, with their weights"
    table = PlainTable(("layer", "experts", "among"), rows, right=("layer", "among"))
    return tag("p", note, class_="note"), table_html(table)
