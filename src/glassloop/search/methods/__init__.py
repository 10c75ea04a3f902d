"""The methods that are built in, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from inspect import signature
from typing import Any

from glassloop.decode.plugins import plugin_register
from glassloop.errors import GlassloopError
from glassloop.search.methods.beam import BeamSearch
from glassloop.search.methods.best import Best
from glassloop.search.methods.confidence import Confidence
from glassloop.search.methods.forcing import Forcing
from glassloop.search.methods.likeliest import Likelihood
from glassloop.search.methods.options import BuiltInMethod
from glassloop.search.methods.power import Power
from glassloop.search.methods.single import Greedy, Single
from glassloop.search.methods.tree import Tree
from glassloop.search.methods.vote import Vote
from glassloop.search.search import Search
from glassloop.util.shown import shown

METHODS: dict[str, type[BuiltInMethod]] = {
    method.name: method
    for method in (Single, Greedy, Vote, Best, Likelihood, Confidence, BeamSearch, Tree, Forcing, Power)
}
OWN_METHODS: dict[str, type[Search]] = plugin_register("method")  # of plugins
# Names under which others know them.
_ALSO = {
    "majority": "vote",
    "self_consistency": "vote",
    "best_of": "best",
    "best_of_n": "best",
    "confident": "confidence",
    "deepconf": "confidence",
    "budget_forcing": "budget",
}


def make_method(method: str | Search | None, options: Mapping[str, Any]) -> Search:
    """Returns a method by its name, with its options; None is one path with the options as they are. An
    object of the caller's own is copied, so that it can be used again."""
    if isinstance(method, Search):
        if options:
            name = next(iter(options))
            raise GlassloopError.about(name, "is given beside a method object, which has its own options")
        return method.fresh()
    if method is not None and not isinstance(method, str):
        problem = f"is {shown(method)}; a name or an object of a subclass of Search is expected"
        raise GlassloopError.about("method", problem)
    name = Single.name if method is None else _ALSO.get(method, method)
    if name in OWN_METHODS:
        return _make_own(name, options)
    if name not in METHODS:
        method_names = ", ".join([*sorted(set(METHODS) - {Single.name}), *OWN_METHODS])
        raise GlassloopError.about("method", f"is {shown(method)}; one of {method_names} is expected")
    kind = METHODS[name]
    allowed = [field.name for field in fields(kind)]
    for option in options:
        if option not in allowed:
            near = get_close_matches(option, allowed, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(allowed) or 'none'}"
            raise GlassloopError.about(option, f"is not an option of the method {name}{hint}")
    return kind(**options)


def _make_own(name: str, options: Mapping[str, Any]) -> Search:
    """Returns a method that a plugin has registered. The arguments of its class are its options."""
    kind = OWN_METHODS[name]
    try:
        signature(kind).bind(**options)
    except (TypeError, ValueError) as error:
        raise GlassloopError.about("method", f"{name} does not take these options: {error}") from None
    return kind(**options)
