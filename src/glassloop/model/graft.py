"""Grafting: a model with some of the weights of another one of the same shape, such as another quantization
of it. No weight is copied or packed again: both models go on as they are."""

from __future__ import annotations

from collections.abc import Iterator, Set
from copy import copy
from typing import Any

from glassloop.errors import ModelError
from glassloop.model.adapted import AdaptedForward
from glassloop.model.layers.parts import Linear
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
    by their own ("layers.3.down"); all else that a sublayer has, together ("layers.3.sublayers.0")."""
    names = [name for name in _BEFORE if getattr(model, name) is not None]
    for index, layer in enumerate(model.layers):
        for place, sublayer in enumerate(layer):
            names += [_rest(index, place), *[linear.name for linear in _linears(sublayer)]]
    after = [name for name in _AFTER if getattr(model, name) is not None]
    return [*names, *[name for name in after if name != "head" or not model.config.tied]]


def graft(model: Transformer, donor: Transformer, names: Set[str]) -> Transformer:
    """Returns a model with the weights of `donor` under these names and those of `model` under all others."""
    if (reason := why_not(model, donor)) is not None:
        raise ModelError(f"weights cannot be exchanged: {reason}")
    grafted = copy(model)
    grafted.layers = [
        tuple(
            _mixed(one, other, names, _rest(index, place) in names)
            for place, (one, other) in enumerate(zip(layer, from_donor, strict=True))
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


def _rest(index: int, place: int) -> str:
    """Returns the name of what a sublayer has beside its linear layers: norms, experts, sinks."""
    return f"layers.{index}.sublayers.{place}"


def _linears(part: Any) -> Iterator[Linear]:
    """Yields the linear layers of a part of a model, which is a named tuple of parts."""
    if isinstance(part, Linear):
        yield part
    elif hasattr(part, "_fields"):
        for each in part:
            yield from _linears(each)


def _mixed(one: Any, other: Any, names: Set[str], rest: bool) -> Any:
    """Returns a part of a model: of `other` the linear layers under these names and, if `rest`, all else."""
    if isinstance(one, Linear):
        return other if one.name in names else one
    if not any(True for _ in _linears(one)):
        return other if rest else one
    return one._replace(
        **{
            field: _mixed(mine, theirs, names, rest)
            for field, mine, theirs in zip(one._fields, one, other, strict=True)
        }
    )
