"""The chain: the stages that a request asks for, in order, from a row of logits to the survivors.

There is one definition of every stage and two implementations, held equal by tests: NumPy (`candidates.py`)
and the chooser of an op set, which follows the rules of the stages. `explain` runs the chain with an observer
that sees the candidates between stages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

import numpy as np

from glassloop.decode import stages as _built_in  # noqa: F401  (registers them)
from glassloop.decode.candidates import Candidates, NoneLeft
from glassloop.decode.chosen import check_chooser
from glassloop.decode.option import hint
from glassloop.decode.rules import Action, RowRequest, Rule
from glassloop.decode.sampling import CONSTRAINTS, DEFAULT, Sampling
from glassloop.decode.stage import REGISTER, Ruling, Stage, Step
from glassloop.errors import ModelError, SamplingError
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Chooser, RowOps, RowSummary
from glassloop.util.shown import shown

# First the stages about single tokens, over the whole vocabulary; then those about the shape of what is left.
DEFAULT_ORDER = (
    "logit_bias",
    "allowed_tokens",
    "bad_words",
    "min_tokens",
    "grammar",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram",
    "dry",
    "temperature",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc",
    "epsilon_cutoff",
    "eta_cutoff",
    "mirostat",
)

_BY_MASS = ("top_p", "xtc", "epsilon_cutoff", "eta_cutoff", "mirostat")  # stages that look at probabilities

Observer = Callable[[Stage, Candidates, Candidates], None]  # (stage, before, after)


def build_chain(sampling: Sampling, vocab_size: int) -> tuple[Stage, ...]:
    """Returns the stages that this request runs, with its options. What depends on the vocabulary and on the
    stages that are registered is checked here."""
    _check_ids(sampling, vocab_size)
    order = expand_stages(sampling.stages)
    for name in order:
        if name not in REGISTER:
            advice = "Register a stage of your own with @stage before use, or load its file with --plugin"
            near = _nearest(name)
            problem = (
                f"has {shown(name)}, which is not a stage; {near}{'' if near.endswith('?') else '.'} {advice}"
            )
            raise SamplingError.about("stages", problem)
        if order.count(name) > 1:
            raise SamplingError.about("stages", f"has {name!r} {order.count(name)} times; once is expected")
    for name in DEFAULT_ORDER:
        if name not in order and REGISTER[name].active(sampling):
            problem = f"leaves {name} out, which this request asks for; add it or unset it"
            raise SamplingError.about("stages", problem)
    for name, options in sampling.stage_options.items():
        _check_takes_options(name, order)
        REGISTER[name].with_options(options)  # raises what is wrong, also if the stage is not active
    stages = [REGISTER[name] for name in order if REGISTER[name].active(sampling)]
    return tuple(
        stage.with_options(sampling.stage_options.get(stage.name, {})) if stage.parameters else stage
        for stage in stages
    )


def expand_stages(stages: tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the names of all stages that a request lists, active or not."""
    if stages is None:
        return DEFAULT_ORDER
    parts = [DEFAULT_ORDER if name == DEFAULT else (name,) for name in stages]
    return tuple(name for part in parts for name in part)


def needs_record(sampling: Sampling) -> bool:
    """Returns whether a stage that a request runs needs the records of the tokens so far; True if a stage is
    not registered here, of which that is not known."""
    stages = [REGISTER.get(name) for name in expand_stages(sampling.stages)]
    return any(stage is None or (stage.needs_record and stage.active(sampling)) for stage in stages)


def check_needs_no_record(sampling: Sampling, why: str) -> None:
    """Raises if a stage that a request runs needs the records of the tokens so far. `why` says why there are
    none."""
    for name in expand_stages(sampling.stages):
        stage = REGISTER.get(name)
        if stage is not None and stage.needs_record and stage.active(sampling):
            problem = f"is given; the stage {name} needs the record of every token before, and {why}"
            raise SamplingError.about(_option_of(name, sampling), problem)


def known_stages() -> list[str]:
    """Returns the names of all registered stages: the built-in ones in their order, then the others."""
    return [*DEFAULT_ORDER, *(name for name in REGISTER if name not in DEFAULT_ORDER)]


def _nearest(name: str) -> str:
    return hint(name, known_stages(), "stages")


def _check_takes_options(name: str, order: tuple[str, ...]) -> None:
    if name not in REGISTER:
        problem = f"has {shown(name)}, which is not a stage; {_nearest(name)}"
    elif REGISTER[name].built_in:
        problem = f"has {name!r}, which is built in; its options are fields of Sampling"
    elif name not in order:
        problem = f"has {name!r}, which is not among the stages of this request; add it to stages or unset it"
    else:
        return
    raise SamplingError.about("stage_options", problem)


# A model may have more logits than its tokenizer has tokens; if so, this stage comes before all others.
MISSING = Stage.of(
    "missing", "mask", lambda step: Rule(Action.REMOVE, which=step.missing_ids), bool, fixed=True
)


def first_scale(chain: tuple[Stage, ...], sampling: Sampling) -> float:
    """Returns the scale at which the chain needs the log-sum-exp of the untouched row, or 1."""
    names = [stage.name for stage in chain[:2]]
    if names[:1] == ["temperature"] and (len(names) == 1 or names[1] in _BY_MASS):
        return 1 / sampling.temperature
    return 1.0


def rules_of(chain: tuple[Stage, ...], ops: RowOps) -> tuple[Ruling, ...] | None:
    """Returns the rules of the stages, or None if the op set has no chooser or a stage has no rule that the
    chooser follows."""
    if ops.chooser is None:
        return None
    check_chooser(ops.chooser)  # type: ignore[arg-type]  # mypy does not know that modules are hashable
    follows_all = ops.chooser.follows_whole_rows
    rules = tuple(
        stage.rule for stage in chain if stage.rule is not None and (follows_all or not stage.whole)
    )
    return rules if len(rules) == len(chain) else None


def run_chain(
    chain: tuple[Stage, ...],
    logits: Float32,
    summary: RowSummary,
    step: Step,
    observer: Observer | None = None,
) -> Candidates:
    """Returns the survivors of one row of logits, whose summary the caller has. There is at least one."""
    if not summary.finite:
        bad_value = "NaN" if np.isnan(logits).any() else "infinity"
        raise ModelError(f"the model gave a logit that is {bad_value} at position {step.position}")
    rules, chooser = rules_of(chain, step.ops), step.ops.chooser
    try:
        if rules is None or chooser is None:
            candidates = _run_stages(chain, Candidates.of(logits, summary, step.ops), step, observer)
        else:
            candidates = _run_rules(chain, rules, chooser, logits, summary, step, observer)
        candidates.ids  # noqa: B018  (raises if there are none)
    except NoneLeft:
        raise _none_left(chain, logits, summary, step) from None
    return candidates


def _run_stages(
    chain: tuple[Stage, ...], candidates: Candidates, step: Step, observer: Observer | None
) -> Candidates:
    for stage in chain:
        began = perf_counter()
        before, candidates = candidates, stage.run(candidates, step)
        if not stage.built_in:
            step.own_time.add(stage.name, perf_counter() - began)
        if observer is not None:
            observer(stage, before, candidates)
    return candidates


def _run_rules(
    chain: tuple[Stage, ...],
    rules: tuple[Ruling, ...],
    chooser: Chooser,
    logits: Float32,
    summary: RowSummary,
    step: Step,
    observer: Observer | None,
) -> Candidates:
    """Lets the op set follow the rules: in one call or, for an observer, in one call per stage."""
    request = RowRequest(len(summary.ids), 1.0, [rule(step) for rule in rules])

    def after(count: int) -> Candidates:
        left = chooser.survivors(logits, summary, request, count)
        return Candidates.from_survivors(left, len(logits), step.ops)

    if observer is None:
        return after(len(chain))
    candidates = after(0)
    for count, stage in enumerate(chain, 1):
        before, candidates = candidates, after(count)
        observer(stage, before, candidates)
    return candidates


def _none_left(
    chain: tuple[Stage, ...], logits: Float32, summary: RowSummary, step: Step
) -> SamplingError | ModelError:
    """Runs the chain again to find which stages have removed all tokens. Returns the error to raise."""
    removed: list[tuple[str, int]] = []

    def watch(stage: Stage, before: Candidates, after: Candidates) -> None:
        left = after.count
        if left < before.count:
            removed.append((stage.name, left))
        if not left:
            raise NoneLeft

    with suppress(NoneLeft):
        _run_stages(chain, Candidates.of(logits, summary, step.ops), step, watch)
    if not removed:
        return ModelError(f"the model gave minus infinity for every token at position {step.position}")
    stage_counts = ", ".join(f"{name} leaves {left}" for name, left in removed)
    names = " and ".join(name for name, _ in removed)
    odds = f"{names} are at odds" if len(removed) > 1 else f"{names} allows none"
    message = f"no token is left at position {step.position}: {odds} ({stage_counts})"
    return SamplingError(message, field=_option_of(removed[-1][0], step.sampling))


def _option_of(stage: str, sampling: Sampling) -> str:
    """Returns the name of the option that made a request run a stage."""
    if stage == "grammar":
        return next(name for name in CONSTRAINTS if getattr(sampling, name) is not None)
    named = {
        "allowed_tokens": "allowed_token_ids",
        "no_repeat_ngram": "no_repeat_ngram_size",
        "mirostat": "mirostat_tau",
    }.get(stage, stage)
    return named if hasattr(sampling, named) else "stages"


def _check_ids(sampling: Sampling, vocab_size: int) -> None:
    ids = {
        "logit_bias": sampling.logit_bias,
        "allowed_token_ids": sampling.allowed_token_ids or (),
        "stop_token_ids": sampling.stop_token_ids,
        "bad_words": [token for word in sampling.bad_words if not isinstance(word, str) for token in word],
    }
    for name, tokens in ids.items():
        for token in tokens:
            if token >= vocab_size:
                problem = f"has token id {token}; the vocabulary has the ids 0 to {vocab_size - 1}"
                raise SamplingError.about(name, problem)
