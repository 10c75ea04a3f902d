"""A stage: one small, named, pure step from candidates to candidates, and the register of all stages.

    from glassloop import Sampling, stage

    @stage("no_commas", kind="mask")
    def no_commas(candidates, step):
        return candidates.without([28])

A request that lists it (`Sampling(stages=["default", "no_commas"])`) runs it. docs/decoding.md has a
reference and a whole example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from hashlib import sha256
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from glassloop.decode.candidates import Candidates, NoneLeft
from glassloop.decode.history import History
from glassloop.decode.option import OptionValue
from glassloop.decode.parameters import Parameter, bind, parameters_of
from glassloop.decode.past_choices import PastChoices
from glassloop.decode.rules import Rule
from glassloop.decode.sampling import DEFAULT, Sampling
from glassloop.errors import GlassloopError, SamplingError, contained
from glassloop.ops.rows import Int32, RowOps
from glassloop.util.files import read_at_most
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.decode.bad_words import BadWordWatch
    from glassloop.decode.grammar import Grammar
    from glassloop.text.tokenizer import Tokenizer

StageKind = Literal["bias", "scale", "mask"]  # changes some logits, multiplies them all, removes tokens


class OwnTime:
    """How long the stages that are not built in took since this was last read, by their names."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Returns the seconds, and begins anew."""
        taken = self._seconds
        if taken:
            self._seconds = {}
        return taken


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
    bad_words: BadWordWatch | None = None
    tokenizer: Tokenizer | None = None  # the model's own; None where there are only logits
    past_choices: PastChoices | None = None  # None if no stage of the request needs them
    own_time: OwnTime = field(default_factory=OwnTime)  # that of all branches of a client, in an engine

    @property
    def record(self) -> PastChoices:
        """The records of the generated tokens so far, for a stage that was registered to need them."""
        if self.past_choices is None:
            raise SamplingError(
                "a stage reads step.record, which is kept for stages registered with needs_record=True only"
            )
        return self.past_choices


Run = Callable[..., Candidates]  # of the candidates, the step and, by keyword, the options of the stage
Ruling = Callable[[Step], Rule]

MOST_SOURCE = 16 << 20  # bytes of a Python file with stages


class Plugin(NamedTuple):
    """The Python file that registered a stage."""

    file: str  # its name without the folders
    sha256: str

    @classmethod
    def of(cls, path: Path, source: bytes) -> Plugin:
        name = "".join(each if each.isprintable() else "?" for each in path.name)
        return cls(name[:255] or "?", sha256(source).hexdigest())

    def __str__(self) -> str:
        return f"{self.file} (sha256 {self.sha256[:12]}…)"


class Stage(NamedTuple):
    name: str
    kind: StageKind
    run: Run
    active: Callable[[Sampling], bool]  # whether a request that lists the stage runs it
    built_in: bool = False
    rule: Ruling | None = None  # returns its rule, if that does not depend on the candidates
    fixed: bool = False  # whether the rule is the same at every step of a request
    whole: bool = False  # whether the rule is about the whole row, which not every op set follows
    parameters: Mapping[str, Parameter] = {}  # the options that a request can give
    plugin: Plugin | None = None  # where it is defined; None if it is built in or that is not known
    needs_record: bool = False  # whether it reads `step.record`

    def with_options(self, options: Mapping[str, OptionValue]) -> Stage:
        """Returns the stage with the options of one request, which are checked."""
        values = bind(self.name, self.parameters, options)
        return self._replace(run=partial(self.run, **values)) if values else self

    @classmethod
    def of(
        cls,
        name: str,
        kind: StageKind,
        rule: Ruling,
        active: Callable[[Sampling], Any],
        fixed: bool = False,
        whole: bool = False,
        needs_record: bool = False,
    ) -> Stage:
        """Returns a built-in stage that is defined by its rule."""

        def run(candidates: Candidates, step: Step) -> Candidates:
            return candidates.following(rule(step))

        stage = cls(name, kind, run, lambda sampling: bool(active(sampling)), True, rule, fixed, whole)
        return stage._replace(needs_record=needs_record)


REGISTER: dict[str, Stage] = {}


def stage(
    name: str,
    *,
    kind: StageKind,
    active: Callable[[Sampling], bool] | None = None,
    needs_record: bool = False,
    built_in: bool = False,
) -> Callable[[Run], Run]:
    """Registers a function as the stage of this name. `active` says when a request that lists it runs it. The
    parameters of the function after the candidates and the step are the stage's options. A stage that reads
    `step.record` has to say so by `needs_record`."""
    if not isinstance(name, str) or not name or name == DEFAULT:
        expected = f"a text other than {DEFAULT!r}, the word for the default order, is expected"
        raise SamplingError(f"the name of a stage is {shown(name)}; {expected}")
    if kind not in ("bias", "scale", "mask"):
        raise SamplingError(f"the kind of stage {name!r} is {kind!r}; bias, scale or mask is expected")

    def register(run: Run) -> Run:
        if not built_in:
            import_module("glassloop.decode.stages")  # registers the built-in ones, whose names are taken
        registered = REGISTER.get(name)
        if registered is not None and registered.built_in:
            raise SamplingError(f"stage {name!r} is built in; another name is expected")
        stage = Stage(name, kind, run, active or _always, built_in, needs_record=needs_record)
        if not built_in:
            stage = stage._replace(
                run=_named(name, run), parameters=parameters_of(name, run), plugin=_source_of(run)
            )
        REGISTER[name] = stage
        return run

    return register


def _source_of(function: Callable[..., Any]) -> Plugin | None:
    """Returns the file that defines a function; None if it is not from a file, as in a notebook."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return None
    path = Path(code.co_filename)
    try:
        return Plugin.of(path, read_at_most(path, MOST_SOURCE, SamplingError))
    except GlassloopError:
        return None


_RAISED = "raised by stage "


def authors_traceback(error: Exception) -> str | None:
    """Returns the traceback of an exception that a stage raised, from the function of the stage on; None if
    the exception is not from a stage."""
    if not any(note.startswith(_RAISED) for note in getattr(error, "__notes__", ())):
        return None
    at = first_frame = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == __file__:
            first_frame = at.tb_next
        at = at.tb_next
    return "".join(format_exception(type(error), error, first_frame))


def _named(name: str, run: Run) -> Run:
    """Returns the function of a stage such that its mistakes are reported with the name of the stage."""

    @wraps(run)
    def checked(candidates: Candidates, step: Step, **options: Any) -> Candidates:
        try:
            left = run(candidates, step, **options)
        except NoneLeft:  # of the stages before; the chain says which
            raise
        except Exception as error:
            error.add_note(f"{_RAISED}{name!r} at position {step.position}")
            raise
        except BaseException as error:
            raise contained(error, f"stage {name!r}") from error
        if not isinstance(left, Candidates):
            raise SamplingError(f"stage {name!r} returned {shown(left)}; Candidates are expected")
        return left

    return checked


def by_rule(
    name: str,
    kind: StageKind,
    active: Callable[[Sampling], Any],
    *,
    fixed: bool = False,
    whole: bool = False,
    needs_record: bool = False,
) -> Callable[[Ruling], Ruling]:
    """Registers a built-in stage by a function that returns its rule. A fixed one is called once."""

    def register(rule: Ruling) -> Ruling:
        REGISTER[name] = Stage.of(name, kind, rule, active, fixed, whole, needs_record)
        return rule

    return register


def _always(sampling: Sampling) -> bool:
    return True
