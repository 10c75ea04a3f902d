"""Makes a failing scenario small: takes away whatever it can lose and still break the same law."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from time import monotonic
from typing import Any

from crossings.draw import Scenario

_KEPT = {"op", "step", "of", "sample", "at", "prompt", "options", "wrong", "given", "requests", "prompts"}
_KEPT |= {"with_options", "same_luck", "luck", "changes"}
_PLAIN = {
    "draft": "off",
    "ops": "native",
    "window": None,
    "experts": False,
    "recurrent": False,
    "parts": list[str](),
}


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], seconds: float = 60.0) -> Scenario:
    """Returns the smallest scenario found within some seconds for which `fails` holds."""
    end, best = monotonic() + seconds, scenario
    shorter = True
    while shorter and monotonic() < end:
        shorter = False
        for smaller in _smaller(best):
            if monotonic() > end:
                break
            if fails(smaller):
                best, shorter = smaller, True
                break
    return best


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yields scenarios that are a little smaller, those that lose most first."""

    def without(path: tuple[Any, ...]) -> Scenario:
        made = deepcopy(scenario)
        *parents, last = path
        place: Any = made
        for key in parents:
            place = place[key]
        del place[last]
        return made

    def changed(path: tuple[Any, ...], value: Any) -> Scenario:
        made = deepcopy(scenario)
        *parents, last = path
        place: Any = made
        for key in parents:
            place = place[key]
        place[last] = value
        return made

    for part in ("questions", "requests"):
        if len(scenario[part]) > 3:
            yield changed((part,), scenario[part][: len(scenario[part]) // 2])
            yield changed((part,), scenario[part][len(scenario[part]) // 2 :])
        for number in range(len(scenario[part])):
            yield without((part, number))
    for name, plain in _PLAIN.items():
        if scenario["model"].get(name, plain) != plain:
            yield changed(("model", name), plain)
    for name in scenario["settings"]:
        yield without(("settings", name))
    for part in ("requests", "questions"):
        for number, op in enumerate(scenario[part]):
            for name, value in op.items():
                if name not in _KEPT:
                    yield without((part, number, name))
                    if isinstance(value, list) and len(value) > 1:
                        yield changed((part, number, name), value[:1])
                if name in ("options", "changes", "given") and isinstance(value, dict):
                    for option in value:
                        if option not in ("seed", "max_tokens") and name != "given":
                            yield without((part, number, name, option))
                    if value.get("max_tokens", 1) > 1:
                        yield changed((part, number, name, "max_tokens"), value["max_tokens"] // 2)
                if name == "prompt" and len(value.get("ids", ())) > 1:
                    ids = value["ids"]
                    yield changed((part, number, name, "ids"), ids[: len(ids) // 2])
                if name == "step" and value:
                    yield changed((part, number, name), 0)
