"""Where two runs differ, and why: which options differ, and which of these made the difference."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from glassloop.decode.chain import expand_stages
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import WHAT_IF
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.util.shown import cut

# Options that do not influence which token comes next; `seed` is compared by itself.
_IGNORED = {"seed", "n", "logprobs", "prompt_logprobs", "timeout"}
_DECISIVE = {True: "yes", False: "no", None: "not tried"}
# Causes that cannot be tried by explaining one token: how runs end, beam search, the op set, the salt.
_UNTRIED = {"ops", "salt", "plugin", *WHAT_IF.refused}


@dataclass(frozen=True)
class Cause:
    """Something that differs. It is `decisive` if the first run, with this alone changed, would have
    continued as the second; None if that was not tried."""

    what: str  # model, ops, prompt, diffusion, seed, salt, forced, plugin, or a field of Sampling
    first: Any
    second: Any
    decisive: bool | None = None


@dataclass(frozen=True)
class Diff:
    """The first difference of two runs, with its causes."""

    at: int | None  # the first token that differs; None if all are the same
    first: str | None  # that token of the first run; None if the run had ended
    second: str | None
    causes: tuple[Cause, ...]
    sentence: str
    runs: tuple[Run, ...] = field(default=(), repr=False, compare=False)  # the two, to be shown

    @property
    def same(self) -> bool:
        return self.at is None

    def to_dict(self) -> dict[str, Any]:
        """Returns the difference as JSON has it."""
        names = ("at", "first", "second", "causes", "sentence", "same")
        plain = {name: getattr(self, name) for name in names}
        return plain | {"causes": tuple(asdict(cause) for cause in self.causes)}

    def _repr_html_(self) -> str:
        """Returns the comparison as a notebook shows it."""
        from glassloop.record.views.notebook import comparison_view

        causes = [(cause.what, cause.first, cause.second, _DECISIVE[cause.decisive]) for cause in self.causes]
        return comparison_view(self.sentence, causes, self.runs, self.at)

    def __str__(self) -> str:
        return self.sentence


def diff(first: Run, second: Run) -> Diff:
    """Returns where `second` departs from `first`. Causes are tried one by one if the model is loaded."""
    at = _first_difference(first.token_ids, second.token_ids)
    causes = _causes(first, second, len(first.tokens) if at is None else at)
    if at is not None:
        causes = [replace(cause, decisive=_is_decisive(cause, first, second, at)) for cause in causes]
    mine, theirs = (None if at is None else _piece(run, at) for run in (first, second))
    return Diff(at, mine, theirs, tuple(causes), _sentence(first, second, at, causes), (first, second))


def _first_difference(mine: list[int], theirs: list[int]) -> int | None:
    for at, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            return at
    return None if len(mine) == len(theirs) else min(len(mine), len(theirs))


def _causes(first: Run, second: Run, at: int) -> list[Cause]:
    causes = []
    other_files = first.identity and second.identity and first.identity != second.identity
    if first.model != second.model or other_files:
        causes.append(Cause("model", first.model, second.model))
    if first.ops != second.ops:
        causes.append(Cause("ops", first.ops, second.ops))
    if first.prompt_ids != second.prompt_ids:
        causes.append(Cause("prompt", _prompt(first), _prompt(second)))
    if first.diffusion != second.diffusion:
        causes.append(Cause("diffusion", first.diffusion, second.diffusion))
    tokens = (_token(first, at), _token(second, at))
    if any(token is not None and token.source == "forced" for token in tokens):
        causes.append(Cause("forced", _piece(first, at), _piece(second, at)))
    mine, theirs = first.drawn_with(at), second.drawn_with(at)
    drawn: list[tuple[str, Any, Any]] = [(name, mine, theirs) for name in ("seed", "salt")]
    names = [each.name for each in fields(Sampling) if each.name not in _IGNORED]
    for name, one, other in drawn + [(name, mine.sampling, theirs.sampling) for name in names]:
        if getattr(one, name) != getattr(other, name):
            causes.append(Cause(name, getattr(one, name), getattr(other, name)))
    both = sorted(mine.plugins.keys() & theirs.plugins.keys())
    files = [(mine.plugins[stage], theirs.plugins[stage]) for stage in both]
    changed = {str(one): str(other) for one, other in files if one.sha256 != other.sha256}
    return causes + [Cause("plugin", *each) for each in changed.items()]


def _prompt(run: Run) -> str | list[int]:
    return run.prompt_ids if run.prompt is None else run.prompt


def _is_decisive(cause: Cause, first: Run, second: Run, at: int) -> bool | None:
    """Returns whether this cause alone makes the first run continue as the second, if it can be tried."""
    mine, theirs = _token(first, at), _token(second, at)
    if cause.what in ("forced", "model"):
        return True
    if mine is None or theirs is None or first.llm is None or first.prompt_ids != second.prompt_ids:
        return None
    if "beam" in (mine.source, theirs.source):  # the whole search chose it, not this step
        return True if cause.what == "beam_width" else None
    if cause.what in _UNTRIED:
        return None
    changes = {cause.what: cause.second}
    if cause.what in ("stages", "stage_options"):  # neither is valid without the other
        asked_sampling = second.drawn_with(at).sampling
        changes = {"stages": asked_sampling.stages, "stage_options": asked_sampling.stage_options}
    try:
        return bool(first.explain(at, **changes).winner.id == theirs.id)
    except SamplingError:  # it is at odds with the other options, or a stage is not registered here
        return None


def _token(run: Run, at: int) -> Token | None:
    """Returns the token at a place; the token that ended the run counts."""
    if at < len(run.tokens):
        return run.tokens[at]
    return run.end if at == len(run.tokens) else None


def _piece(run: Run, at: int) -> str | None:
    token = _token(run, at)
    return None if token is None else token.piece


def _sentence(first: Run, second: Run, at: int | None, causes: list[Cause]) -> str:
    if at is None:
        unlike = f", although these differ: {_listed(causes)}" if causes else ""
        return f"the same {len(first.tokens)} tokens{unlike}"
    mine, theirs = (_piece_or_end(run, at) for run in (first, second))
    where = f"they differ from token {at} on: {mine} against {theirs}"
    decisive = [cause for cause in causes if cause.decisive]
    if not causes:
        return f"{where}; both have the same options, so one of them was stopped or computed differently"
    if decisive:
        only_stages = [cause.what for cause in decisive] == ["stages"]
        reason = _stages(decisive[0]) if only_stages else f"of {_listed(decisive)}"
        return f"{where}, because {reason}"
    all_tried = all(cause.decisive is not None for cause in causes)
    alone = "; no single one of these does it alone" if all_tried and len(causes) > 1 else ""
    return f"{where}; what differs is {_listed(causes)}{alone}"


def _piece_or_end(run: Run, at: int) -> str:
    piece = _piece(run, at)
    return f"the end ({run.finish_reason})" if piece is None else repr(piece)


def _listed(causes: list[Cause]) -> str:
    special = {"forced": "a token that was given by the caller", "salt": "another branch of luck (salt)"}
    return " and ".join(
        special.get(cause.what)
        or (cause.what == "stages" and f"the stages ({_stages(cause)})")
        or f"{cause.what} ({cut(repr(cause.first), 40)} against {cut(repr(cause.second), 40)})"
        for cause in causes
    )


def _stages(cause: Cause) -> str:
    """Returns how the stages of the second run differ from those of the first, as a clause."""
    first, second = (expand_stages(stages) for stages in (cause.first, cause.second))
    changes = []
    for these, others, done in ((second, first, "added"), (first, second, "removed")):
        names = [name for name in these if name not in others]
        if names:
            noun = "stage" if len(names) == 1 else "stages"
            changes.append(
                f"{noun} {cut(', '.join(names), 80)} {'was' if len(names) == 1 else 'were'} {done}"
            )
    return " and ".join(changes) or "the stages are in another order"
