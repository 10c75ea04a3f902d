"""Where two runs part, and why: what was asked differently, and which of that made the difference."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from glassloop.decode.sampling import Sampling
from glassloop.trace.run import Past, Run
from glassloop.trace.token import Token

# What has no part in which token comes next.
_NO_MATTER = {"seed", "n", "logprobs", "prompt_logprobs", "timeout"}
# What only says when it ends.
_ENDINGS = {"max_tokens", "stop", "include_stop", "stop_on_repetition", "ignore_eos"}
_SEARCH = {"beam_width", "length_penalty", "early_stopping"}


@dataclass(frozen=True)
class Cause:
    """Something that is not the same. `decisive`: with this alone changed, the first run would have gone on
    as the second; None where it was not tried."""

    what: str  # model, ops, prompt, seed, salt, forced, or a field of Sampling
    first: Any
    second: Any
    decisive: bool | None = None


@dataclass(frozen=True)
class Diff:
    at: int | None  # the first token that differs; None: they are the same
    first: str | None  # that token of either run; None: it had ended
    second: str | None
    causes: tuple[Cause, ...]
    sentence: str

    @property
    def same(self) -> bool:
        return self.at is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"same": self.same}

    def __str__(self) -> str:
        return self.sentence


def diff(first: Run, second: Run) -> Diff:
    """Where `second` parts from `first`. Causes are tried one by one if the model is at hand."""
    at = _parting(first, second)
    causes = _causes(first, second, len(first.tokens) if at is None else at)
    if at is not None:
        causes = [_tried(cause, first, second, at) for cause in causes]
    mine, theirs = (_shown(run, at) for run in (first, second))
    return Diff(at, mine, theirs, tuple(causes), _sentence(first, second, at, causes))


def _parting(first: Run, second: Run) -> int | None:
    mine, theirs = first.token_ids, second.token_ids
    for at, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            return at
    return None if len(mine) == len(theirs) else min(len(mine), len(theirs))


def _causes(first: Run, second: Run, at: int) -> list[Cause]:
    causes = []
    if first.model != second.model or (
        first.identity and second.identity and first.identity != second.identity
    ):
        causes.append(Cause("model", first.model, second.model))
    if first.ops != second.ops:
        causes.append(Cause("ops", first.ops, second.ops))
    if first.prompt_ids != second.prompt_ids:
        causes.append(Cause("prompt", _prompt(first), _prompt(second)))
    for one, other in ((first, second), (second, first)):
        token = _token(one, at)
        if token is not None and token.source == "forced":
            pieces = (token.piece, _shown(other, at))
            causes.append(Cause("forced", *(pieces if one is first else reversed(pieces))))
            break
    mine, theirs = first.drawn_with(at), second.drawn_with(at)
    for name in ("seed", "salt"):
        if getattr(mine, name) != getattr(theirs, name):
            causes.append(Cause(name, getattr(mine, name), getattr(theirs, name)))
    return causes + _options(mine, theirs)


def _options(mine: Past, theirs: Past) -> list[Cause]:
    return [
        Cause(field.name, getattr(mine.sampling, field.name), getattr(theirs.sampling, field.name))
        for field in fields(Sampling)
        if field.name not in _NO_MATTER
        and getattr(mine.sampling, field.name) != getattr(theirs.sampling, field.name)
    ]


def _tried(cause: Cause, first: Run, second: Run, at: int) -> Cause:
    """Whether this cause alone has the first run go on as the second did."""
    mine, theirs = _token(first, at), _token(second, at)
    decisive: bool | None = None
    if cause.what in ("forced", "model"):
        decisive = True
    elif mine is None or theirs is None or first.llm is None or first.prompt_ids != second.prompt_ids:
        pass
    elif "beam" in (mine.source, theirs.source):  # no step by itself chose it: the search did
        decisive = True if cause.what == "beam_width" else None
    elif cause.what not in {"ops", "salt"} | _ENDINGS | _SEARCH:
        told = first.explain(at, **{cause.what: cause.second})
        decisive = told.winner.id == theirs.id
    return replace(cause, decisive=decisive)


def _token(run: Run, at: int) -> Token | None:
    """The token at a place; what ended the run counts."""
    if at < len(run.tokens):
        return run.tokens[at]
    return run.end if at == len(run.tokens) else None


def _shown(run: Run, at: int | None) -> str | None:
    token = None if at is None else _token(run, at)
    return None if token is None else token.piece


def _prompt(run: Run) -> str | list[int]:
    return run.prompt_ids if run.prompt is None else run.prompt


def _sentence(first: Run, second: Run, at: int | None, causes: list[Cause]) -> str:
    if at is None:
        unlike = f", although not the same: {_listed(causes)}" if causes else ""
        return f"the same {len(first.tokens)} tokens{unlike}"
    mine, theirs = (_or_end(run, at) for run in (first, second))
    where = f"they part at token {at}: {mine} against {theirs}"
    decisive = [cause for cause in causes if cause.decisive]
    tried = [cause for cause in causes if cause.decisive is not None]
    if not causes:
        return f"{where}; both asked for the same, so one of them was stopped or computed differently"
    if decisive:
        return f"{where}, because of {_listed(decisive)}"
    alone = "; no single one of these does it alone" if len(tried) == len(causes) > 1 else ""
    return f"{where}; what differs is {_listed(causes)}{alone}"


def _or_end(run: Run, at: int) -> str:
    shown = _shown(run, at)
    return f"the end ({run.finish_reason})" if shown is None else repr(shown)


def _listed(causes: list[Cause]) -> str:
    told = []
    for cause in causes:
        if cause.what == "forced":
            told.append("a token that was given by the caller")
        elif cause.what == "salt":
            told.append("another branch of luck (salt)")
        else:
            told.append(f"{cause.what} ({_cut(cause.first)} against {_cut(cause.second)})")
    return " and ".join(told)


def _cut(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:39] + "…"
