"""Passes that are computed once more: to compare a recorded text with, or to say why a place was filled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.explain import Explanation, explain
from glassloop.decode.luck import fork_salt, pass_salt
from glassloop.decode.stop import Ending, stop_ids
from glassloop.diffuse.filling import text_length
from glassloop.diffuse.rows import Rows
from glassloop.diffuse.write import DiffusionRequest, check, check_prompt, finish
from glassloop.engine.deadline import Deadline
from glassloop.engine.logits import compute_all
from glassloop.engine.masked import Masked, Pass
from glassloop.engine.replay import Luck, NoSuchToken, check_ids, replay_notes
from glassloop.engine.task import CANCELLED
from glassloop.errors import GlassloopError, TraceError
from glassloop.ops.quant import Float32
from glassloop.trace.passes import PassRecord
from glassloop.trace.run import Run
from glassloop.trace.verdict import Difference, Verdict

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM


def options_of(llm: LLM, run: Run) -> Diffusion:
    """Returns the options of a recorded run. Raises if this model cannot fill its masks again."""
    values = dict(run.diffusion or {})
    adapter = values.pop("adapter", "")
    if run.llm is not llm and run.identity != llm.model_hash:
        raise TraceError(f"run {run.id} was made by another model: {run.model}, and this is {llm.name}")
    if adapter != llm.mask.sha256:
        raise TraceError(f"run {run.id} was made with another adapter for masked rows than {llm.name} has")
    check_ids(llm, run)
    try:
        options = Diffusion.of(values)
        check(run.sampling, options, llm.mask)
        check_prompt(run)
    except GlassloopError as error:
        raise TraceError(f"run {run.id}: {error}") from None
    return options


def replay_passes(llm: LLM, run: Run, deadline: Deadline | None = None) -> Verdict:
    """Fills a text once more, and compares every number of every token and of every pass."""
    options = options_of(llm, run)
    again = llm.new_run(
        list(run.prompt_ids), run.sampling, run.seed, salt=run.salt, prompt=None, sample=run.sample
    )
    request = DiffusionRequest(
        again.prompt_ids,
        run.sampling,
        [again],
        built=llm.compile(run.sampling),
        pieces=llm.piece,
        options=options,
        mask=llm.mask,
        deadline=deadline or Deadline(),
    )
    # A run that was cut short has the beginning of the passes, and no more are computed.
    cut_short = run.finish_reason in ("cancelled", "timeout", "error", None)
    if cut_short:

        def stop(_: Run, record: PassRecord) -> None:
            request.abandoned = CANCELLED if record.number + 1 >= len(run.passes) else None

        request.on_pass = stop
        request.abandoned = None if run.passes else CANCELLED
    finish(llm, request)
    earliest: Difference | None = None
    same = 0
    for at, recorded in enumerate(run.tokens):
        made = again.tokens[at] if at < len(again.tokens) else None
        same += made is not None and made.id == recorded.id
        if earliest is None and (made is None or made.chosen != recorded.chosen):
            found = None if made is None else made.id
            told = "nothing" if made is None else made.piece
            earliest = Difference(at, recorded.id, recorded.piece, found, told, recorded.margin)
    notes = list(replay_notes(llm, run))
    passes = again.passes[: len(run.passes)] if cut_short else again.passes
    if passes != run.passes:
        notes.append("the passes are not the same")
    identical = earliest is None and passes == run.passes
    return Verdict(len(run.tokens), identical, same, earliest, 0.0, tuple(notes))


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
    llm: LLM,
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
    options = options_of(llm, run)
    sampling, seed, salt = run.sampling, run.seed, run.salt
    if overrides:
        sampling = sampling.changed({"n": 1, **overrides})
        check(sampling, options, llm.mask)
        seed = seed if overrides.get("seed") is None or sampling.seed is None else sampling.seed
    if luck not in ("same", "new"):
        raise TraceError(f"luck is {luck!r}; 'same' or 'new' is expected")
    if luck == "new":
        position = len(run.prompt_ids) + at
        salt = fork_salt(salt, position, run.forks.get(position, 0) + 1)
    if number is None:
        number = last_filled(run, at)
    if not 0 <= number < len(run.passes):
        raise TraceError.about("pass", f"is {number}; one from 0 to {len(run.passes) - 1} is expected")
    record = run.passes[number]
    tokens = known_before(run, record)
    tokens = tokens[: text_length(tokens, stop_ids(run.sampling, llm.tokenizer.eos_ids).__contains__)]
    place = at - record.first
    if not 0 <= place < len(tokens) or tokens[place] is not None:
        raise TraceError.about("pass", f"is {number}, in which the place {at} is not masked")
    mask, before = llm.mask, [*run.prompt_ids, *run.token_ids[: record.first]]
    rows, pilot = Rows(before, record.width, [], mask), _Once()
    task = Masked(rows.tokens, rows.kept, rows.of_pass(tokens), pilot, deadline)
    compute_all(llm.engine, [task])
    assert pilot.logits is not None
    masks = [each for each, token in enumerate(tokens) if token is None]
    row = rows.logits(pilot.logits, tokens)[masks.index(place)]
    if sampling.constraint is not None or sampling.bad_words:
        for each in record.filled:  # with these a place follows what the same pass has filled before it
            if each.at < at:
                tokens[each.at - record.first] = each.id
    seen = [mask.token if token is None else token for token in tokens[:place]]
    told = explain(
        row,
        [*before, *seen],
        sampling,
        seed,
        prompt_length=len(run.prompt_ids),
        salt=pass_salt(salt, number),
        tokenizer=llm.tokenizer,
        eos_ids=tuple(llm.tokenizer.eos_ids),
        ops=llm.transformer.ops.rows,
        shown=shown,
        never=(mask.token,),
    )
    known = f"{len(tokens) - len(masks)} of {len(tokens)} places known"
    return replace(told, sentence=f"In pass {number}, with {known}, {told.sentence}")


def last_filled(run: Run, at: int) -> int:
    """Returns the number of the pass that filled a place of the answer last."""
    for record in reversed(run.passes):
        if any(each.at == at for each in record.filled):
            return record.number
    raise NoSuchToken(f"step is {at}; a place that was filled is expected")


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
