"""Grafting: a model with some of the weights of another one of the same shape, such as another quantization
of it. No weight is copied or packed again: both models go on as they are."""

from __future__ import annotations

from collections.abc import Iterator, Set
from copy import copy
from typing import Any

from glassloop.errors import ModelError
from glassloop.model.adapted import AdaptedForward
from glassloop.model.layers.parts import Linear
from glassloop.model.layers.sublayer import Sublayer
from glassloop.model.transformer import Transformer

_BEFORE, _AFTER = ("token_embedding", "position_embedding"), ("final_norm", "head")


def why_not(model: Transformer, donor: Transformer) -> str | None:
    """Returns why weights of one model cannot be put into another; None if they can."""
    if model is donor:
        return "both are the same model"
    if model.config != donor.config:
        return "the models differ in shape or family"
    if model.ops.description != donor.ops.description:
        return f"the models are on different op sets, {model.ops.description} and {donor.ops.description}"
    return None


def weight_names(model: Transformer) -> list[str]:
    """Returns the names of all weights that can be grafted, from the first layer to the last: linear layers
    by their own ("layers.3.down"), what else a sublayer has together ("layers.3.attn")."""
    names = [name for name in _BEFORE if getattr(model, name) is not None]
    for index, layer in enumerate(model.layers):
        for place, sublayer in zip(("attn", "ffn"), layer, strict=True):
            names.append(f"layers.{index}.{place}")
            names += [part.name for part in _linears(sublayer.kind)]
    after = [name for name in _AFTER if getattr(model, name) is not None]
    return [*names, *[name for name in after if name != "head" or not model.config.tied]]


def graft(model: Transformer, donor: Transformer, names: Set[str]) -> Transformer:
    """Returns a model with the weights of `donor` under these names and those of `model` under all others."""
    if (reason := why_not(model, donor)) is not None:
        raise ModelError(f"weights cannot be exchanged: {reason}")
    grafted = copy(model)
    grafted.layers = [
        tuple(
            _sublayer(one, other, f"layers.{index}.{place}", names)
            for place, one, other in zip(("attn", "ffn"), layer, from_donor, strict=True)
        )
        for index, (layer, from_donor) in enumerate(zip(model.layers, donor.layers, strict=True))
    ]
    for name in (*_BEFORE, *_AFTER):
        if name in names:
            setattr(grafted, name, getattr(donor, name))
    if model.config.tied:
        grafted.head = grafted.token_embedding
    grafted.__dict__.pop("_hidden_program", None)  # it was recorded with the other weights
    grafted._program = AdaptedForward(grafted, grafted._outputs)
    return grafted


def _linears(kind: Any) -> Iterator[Linear]:
    return (part for part in kind if isinstance(part, Linear))


def _sublayer(one: Sublayer, other: Sublayer, name: str, names: Set[str]) -> Sublayer:
    base = other if name in names else one
    linears = {
        field: (theirs if mine.name in names else mine)
        for field, mine, theirs in zip(one.kind._fields, one.kind, other.kind, strict=True)
        if isinstance(mine, Linear)
    }
    return base._replace(kind=base.kind._replace(**linears))
