"""Passes that are computed once more: to compare a recorded text with, or to say why a place was filled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.chosen import Chosen
from glassloop.decode.difference import numbers_of
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.explain import Explanation, explain
from glassloop.decode.luck import pass_salt
from glassloop.decode.stop import Ending, stop_ids
from glassloop.decode.task_kinds import DIFFUSION, WHAT_IF
from glassloop.diffuse.filling import text_length
from glassloop.diffuse.hole import AFTER, fill_holes, never_in_hole
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.diffuse.write import DiffusionRequest, check_prompt, check_revision, finish
from glassloop.engine.branching import peek_luck
from glassloop.engine.deadline import Deadline
from glassloop.engine.logits import compute_all
from glassloop.engine.replay import (
    Luck,
    NoSuchToken,
    check_ids,
    compare,
    records_of,
    replay_notes,
    token_at,
)
from glassloop.engine.tasks.masked import Masked, Pass
from glassloop.engine.tasks.task import CANCELLED
from glassloop.errors import GlassloopError, ModelError, SamplingError, TraceError
from glassloop.ops.quant import Float32
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run
from glassloop.record.verdict import ReplayVerdict
from glassloop.util.check import check_count, check_one_of

if TYPE_CHECKING:
    from glassloop.engine.local import LocalEngine


def recorded_filling(llm: LocalEngine, run: Run, strict: bool = True) -> tuple[Diffusion, list[int] | None]:
    """Returns the options with which the masks of a run were filled, and the tokens after them if it fills a
    hole. Raises if this model cannot fill them again; unless `strict`, one that knows its tokens can."""
    values = dict(run.diffusion or {})
    if "adapter" not in values:
        raise TraceError(
            f"run {run.id} fills a hole, and its record, which is old, does not have the text after it"
        )
    adapter, after = values.pop("adapter"), values.pop(AFTER, None)
    if strict and run.llm is not llm and run.identity != llm.model_hash:
        raise TraceError(f"run {run.id} was made by another model: {run.model}, and this is {llm.name}")
    if strict and adapter != llm.mask.sha256:
        raise TraceError(f"run {run.id} was made with another adapter for masked rows than {llm.name} has")
    check_ids(llm, run)
    try:
        options = Diffusion.of(values)
        DIFFUSION.check_recorded(run.sampling)
        check_revision(options, llm.mask)
        check_prompt(run)
        after = None if after is None else llm.checked(after, "diffusion.after")
    except GlassloopError as error:
        raise TraceError(f"run {run.id}: {error}") from None
    return options, after


def replay_passes(
    llm: LocalEngine, run: Run, first: int = 0, strict: bool = True, deadline: Deadline | None = None
) -> ReplayVerdict:
    """Fills the masks of a run once more, and compares every number of every pass and of every token from the
    place `first` on. Unless `strict`, a run of another model or adapter is compared too, and the verdict
    says so."""
    options, after = recorded_filling(llm, run, strict)
    records, notes = records_of(run, first), list(replay_notes(llm, run))
    if run.diffusion is not None and run.diffusion["adapter"] != llm.mask.sha256:
        notes.append("made with another adapter for masked rows")
    limit = deadline or Deadline()
    try:
        chosen, passes = (
            _write(llm, run, options, limit) if after is None else _fill(llm, run, options, after, limit)
        )
    except (SamplingError, ModelError):  # with the logits of another model the stages may leave no token
        if strict:
            raise
        chosen, passes = [], []
    if run.cut_short:
        passes = passes[: len(run.passes)]
    verdict = compare(llm, records, iter(chosen[first:]), first, tuple(notes))
    if passes == run.passes:
        return verdict
    return replace(verdict, identical=False, notes=(*verdict.notes, "the passes are not the same"))


def _write(
    llm: LocalEngine, run: Run, options: Diffusion, limit: Deadline
) -> tuple[list[Chosen], list[PassRecord]]:
    """Writes the text of a run once more. Returns its choices and passes."""
    again = llm.new_run(
        list(run.prompt_ids), run.sampling, run.seed, salt=run.salt, prompt=None, sample=run.sample
    )
    again.context = run.context
    request = DiffusionRequest(
        again.prompt_ids,
        run.sampling,
        [again],
        built=llm.compile(run.sampling),
        options=options,
        mask=llm.mask,
        deadline=limit,
    )
    if run.cut_short:  # it has the beginning of the passes, and no more are computed

        def stop(_: Run, record: PassRecord) -> None:
            request.abandoned = CANCELLED if record.number + 1 >= len(run.passes) else None

        request.on_pass = stop
        request.abandoned = None if run.passes else CANCELLED
    finish(llm, request)
    return [token.chosen for token in records_of(again)], again.passes


def _fill(
    llm: LocalEngine, run: Run, options: Diffusion, after: list[int], limit: Deadline
) -> tuple[list[Chosen], list[PassRecord]]:
    """Fills the hole of a run once more. Returns its choices and passes."""
    width = run.passes[0].width if run.passes else len(run.tokens)
    sampling = replace(run.sampling, seed=run.seed)
    (hole,) = fill_holes(llm, run.prompt_ids, after, width, [sampling], [run.salt], options, llm.mask, limit)
    return hole.chosen, hole.passes


class _Once:
    """A pilot with one pass, whose logits it keeps."""

    def __init__(self) -> None:
        self.logits: Float32 | None = None

    def advance(self, logits: Float32) -> Pass | None:
        self.logits = logits.copy()
        return None

    def finish(self, ending: Ending) -> bool:
        return False


def explain_fill(
    llm: LocalEngine,
    run: Run,
    at: int,
    *,
    number: int | None = None,
    luck: Luck = "same",
    shown: int = 10,
    deadline: Deadline | None = None,
    **overrides: Any,
) -> Explanation:
    """Returns why the token at this place of the answer is there: the pass that filled it is computed again.
    `number` asks about another pass: what the place would have got in it. Options, or new luck, make it a
    what-if."""
    at = check_count("at", at, 0, run.context, "a place", NoSuchToken)
    check_one_of("luck", luck, ("same", "new"), TraceError)
    check_count("shown", shown, 0, llm.config.vocab_size)
    _, after = recorded_filling(llm, run)
    sampling, seed, salt = run.sampling, run.seed, run.salt
    if overrides:
        sampling = sampling.changed({"n": 1, **overrides})
        for kind in (WHAT_IF, DIFFUSION):
            kind.check(sampling, run.sampling)
        seed = seed if overrides.get("seed") is None or sampling.seed is None else sampling.seed
    if luck == "new":
        salt = peek_luck(run, at)
    what_if = bool(overrides) or luck == "new"
    if number is None:
        number = last_filled(run, at)
    check_count("pass", number, 0, len(run.passes) - 1, "one", TraceError)
    record = run.passes[number]
    tokens = known_before(run, record)
    tokens = tokens[: text_length(tokens, stop_ids(run.sampling, llm.tokenizer.eos_ids).__contains__)]
    place = at - record.first
    if not 0 <= place < len(tokens) or tokens[place] is not None:
        raise TraceError.about("pass", f"is {number}, in which the place {at} is not masked")
    mask, before = llm.mask, [*run.prompt_ids, *run.token_ids[: record.first]]
    rows, pilot = MaskedRows(before, record.width, after or [], mask), _Once()
    task = Masked(rows.tokens, rows.kept, rows.of_pass(tokens), pilot, deadline)
    compute_all(llm.engine, [task])
    assert pilot.logits is not None
    masks = [each for each, token in enumerate(tokens) if token is None]
    row = rows.logits(pilot.logits, tokens)[masks.index(place)]
    if sampling.constraint is not None or sampling.bad_words:
        for each in record.filled:  # with these a place follows what the same pass has filled before it
            if each.at < at:
                tokens[each.at - record.first] = each.id
    left = [mask.token if token is None else token for token in tokens[:place]]
    context = f"{len(tokens) - len(masks)} of {len(tokens)} places known"
    return explain(
        row,
        [*before, *left],
        sampling,
        seed,
        prompt_length=len(run.prompt_ids),
        salt=pass_salt(salt, number),
        tokenizer=llm.tokenizer,
        eos_ids=tuple(llm.tokenizer.eos_ids),
        ops=llm.transformer.ops.rows,
        shown=shown,
        never=(mask.token,) if after is None else never_in_hole(llm, sampling, mask),
        introduction=f"In pass {number}, with {context}, ",
        recorded=None if what_if else recorded_fill(run, record, at),
        reasons=replay_notes(llm, run),
    )


def recorded_fill(run: Run, record: PassRecord, at: int) -> dict[str, Any] | None:
    """Returns the numbers that the record of a run has of a place which a pass filled, by name: all of them
    if its token is that of the text, else those of the pass; None if the pass did not fill it."""
    fill = next((each for each in record.filled if each.at == at), None)
    if fill is None:
        return None
    token = token_at(run, at) if at <= len(run.tokens) else None
    if token is not None and record.number == last_filled(run, at):
        return numbers_of(token.chosen)
    return {name: getattr(fill, name) for name in ("id", "logprob", "raw_logprob", "entropy")}


def last_filled(run: Run, at: int) -> int:
    """Returns the number of the pass that filled a place of the answer last."""
    for record in reversed(run.passes):
        if any(each.at == at for each in record.filled):
            return record.number
    raise NoSuchToken.about("at", f"is {at}; a place that was filled is expected")


def known_before(run: Run, record: PassRecord) -> list[int | None]:
    """Returns the tokens of a block before a pass; None is a mask."""
    tokens: list[int | None] = [None] * record.width
    for each in run.passes[: record.number + 1]:
        if each.first != record.first:
            continue
        for taken in each.unfilled:
            tokens[taken.at - record.first] = None
        if each.number < record.number:
            for fill in each.filled:
                tokens[fill.at - record.first] = fill.id
    return tokens
