"""A stage: one small, named, pure step from candidates to candidates, and the register of all stages.

    from glassloop import DEFAULT_ORDER, Sampling, stage

    @stage("no_commas", kind="mask")
    def no_commas(candidates, step):
        return candidates.without([28])

A request that lists it (`Sampling(stages=[*DEFAULT_ORDER, "no_commas"])`) runs it. docs/decoding.md has a
reference and a whole example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from glassloop.decode.candidates import Candidates, NoneLeft
from glassloop.decode.history import History
from glassloop.decode.rules import Rule
from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError
from glassloop.ops.rows import Int32, RowOps
from glassloop.shown import shown

if TYPE_CHECKING:
    from glassloop.decode.bad_words import Watch
    from glassloop.decode.grammar import Grammar
    from glassloop.text.tokenizer import Tokenizer

StageKind = Literal["bias", "scale", "mask"]  # changes some logits, multiplies them all, removes tokens


@dataclass
class Step:
    """All that a stage may depend on besides the candidates: the request, and the branch so far."""

    sampling: Sampling
    history: History
    seed: int
    position: int  # of the token to choose, counted from the start of the prompt
    vocab_size: int
    ops: RowOps
    salt: int = 0
    ending_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # end of sequence, stop tokens
    missing_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # logits without a token
    grammar: Grammar | None = None  # its state on this branch
    bad_words: Watch | None = None
    tokenizer: Tokenizer | None = None  # the model's own; None where there are only logits


Run = Callable[[Candidates, Step], Candidates]
Ruling = Callable[[Step], Rule]


class Stage(NamedTuple):
    name: str
    kind: StageKind
    run: Run
    active: Callable[[Sampling], bool]  # whether a request that lists the stage runs it
    built_in: bool = False
    rule: Ruling | None = None  # returns its rule, if that does not depend on the candidates
    fixed: bool = False  # whether the rule is the same at every step of a request

    @classmethod
    def of(
        cls, name: str, kind: StageKind, rule: Ruling, active: Callable[[Sampling], Any], fixed: bool = False
    ) -> Stage:
        """Returns a built-in stage that is defined by its rule."""

        def run(candidates: Candidates, step: Step) -> Candidates:
            return candidates.following(rule(step))

        return cls(name, kind, run, lambda sampling: bool(active(sampling)), True, rule, fixed)


REGISTER: dict[str, Stage] = {}


def stage(
    name: str, *, kind: StageKind, active: Callable[[Sampling], bool] | None = None, built_in: bool = False
) -> Callable[[Run], Run]:
    """Registers a function as the stage of this name. `active` says when a request that lists it runs it."""
    if kind not in ("bias", "scale", "mask"):
        raise SamplingError(f"the kind of stage {name!r} is {kind!r}; bias, scale or mask is expected")

    def register(run: Run) -> Run:
        if not built_in:
            import_module("glassloop.decode.stages")  # registers the built-in ones, whose names are taken
        known = REGISTER.get(name)
        if known is not None and known.built_in:
            raise SamplingError(f"stage {name!r} is built in; another name is expected")
        REGISTER[name] = Stage(
            name, kind, run if built_in else _named(name, run), active or _always, built_in
        )
        return run

    return register


def _named(name: str, run: Run) -> Run:
    """Returns the function of a stage such that its mistakes are reported with the name of the stage."""

    @wraps(run)
    def checked(candidates: Candidates, step: Step) -> Candidates:
        try:
            left = run(candidates, step)
        except NoneLeft:  # of the stages before; the chain says which
            raise
        except Exception as error:
            error.add_note(f"raised by stage {name!r} at position {step.position}")
            raise
        if not isinstance(left, Candidates):
            raise SamplingError(f"stage {name!r} returned {shown(left)}; Candidates are expected")
        return left

    return checked


def built_in(name: str, kind: StageKind, active: Callable[[Sampling], Any]) -> Callable[[Run], Run]:
    return stage(name, kind=kind, active=lambda sampling: bool(active(sampling)), built_in=True)


def by_rule(
    name: str, kind: StageKind, active: Callable[[Sampling], Any], *, fixed: bool = False
) -> Callable[[Ruling], Ruling]:
    """Registers a built-in stage by a function that returns its rule. A fixed one is called once."""

    def register(rule: Ruling) -> Ruling:
        REGISTER[name] = Stage.of(name, kind, rule, active, fixed)
        return rule

    return register


def _always(sampling: Sampling) -> bool:
    return True
