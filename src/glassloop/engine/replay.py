"""What is computed again from a recorded run: why a token was chosen, and whether all comes out the same.

The recorded tokens are given to the model, and at each place the decoder is asked as it was then. Since luck
is a function of the place, any token can be asked about alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from threading import Event
from typing import Any, Literal, NamedTuple

from glassloop.decode.choose import race_of_found
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.difference import numbers_of
from glassloop.decode.explain import ChoiceContext, ModelParts, RecordedToken, explain_choice
from glassloop.decode.explanation import BeamRank, Explanation
from glassloop.decode.luck import fork_salt
from glassloop.decode.plugins import check_stages, plugin_notes
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Pause
from glassloop.decode.task_kinds import WHAT_IF
from glassloop.engine.branching import peek_luck
from glassloop.engine.compatibility import check_ids, check_run, replay_notes
from glassloop.engine.deadline import Deadline
from glassloop.engine.local import LocalModel
from glassloop.engine.logits import logits_after
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError, TraceError
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.run_parts import Past
from glassloop.record.run_record import NoSuchToken as NoSuchToken
from glassloop.record.token import Token
from glassloop.record.verdict import Difference, ReplayVerdict
from glassloop.util.check import check_count, check_one_of

Part = Literal["answer", "prompt"]  # which tokens of a run
Luck = Literal["same", "new"]  # the run's own, or that of the next fork

_LOOK_UP = 0.1  # seconds between two looks at the deadline while a search is awaited


def explain_token(
    llm: LocalModel,
    run: Run,
    at: int,
    *,
    of: Part = "answer",
    luck: Luck = "same",
    shown: int = 10,
    deadline: Deadline | None = None,
    **overrides: Any,
) -> Explanation:
    """Returns why the token at this place of a run is there. Any field of `Sampling` among the overrides, or
    new luck, makes it a what-if: which token a draw with these options would have chosen there.

    Places count from 0 in the answer or, with `of="prompt"`, in the prompt. The place behind the last token
    of an answer is that of the token which ended the run or would come next. Before the first token of a
    prompt there are no logits, so nothing can be said about it. If it is no what-if, the record of the token
    is compared with what is computed, and the explanation has the difference.
    """
    check_run(llm, run)
    check_one_of("luck", luck, ("same", "new"), TraceError)
    check_count("shown", shown, 0, llm.config.vocab_size)
    # Wrong options are reported before a wrong place, in Python as over HTTP.
    past = run.drawn_with(at if of == "answer" and isinstance(at, Integral) else len(run.tokens))
    what_if = bool(overrides) or luck == "new"
    drawn = _changed(past, overrides) if what_if else past
    at = _check_place(run, at, of)
    in_answer = of == "answer"
    if in_answer or what_if:
        check_stages(drawn.sampling, past.plugins)
    choice = _Choice(_kind(drawn.sampling)) if what_if else _recorded_choice(run, at, of, past.sampling)
    ids = [*run.prompt_ids, *run.token_ids[:at]] if in_answer else run.prompt_ids[:at]
    one_draw = what_if and in_answer and past.sampling.beam_width > 1 and choice.source == "sampled"
    context = ChoiceContext(
        llm.logits_row(ids, drawn.sampling.adapter, deadline),
        ids,
        drawn.sampling,
        drawn.seed,
        drawn.salt if luck == "same" else _new_salt(run, at, of, drawn.salt),
        prompt_length=min(len(ids), len(run.prompt_ids)),
        choices=[token.chosen for token in run.tokens[:at]] if in_answer else (),
        model=parts_of(llm),
    )
    numbers = None if choice.record is None else numbers_of(choice.record.chosen)
    recorded = RecordedToken(
        choice.source, choice.taken, choice.beam, choice.refused, numbers, replay_notes(llm, run)
    )
    introduction = "In one draw instead of the beam search, " if one_draw else ""
    explanation = explain_choice(context, recorded, shown, introduction)
    if explanation.stages and (notes := plugin_notes(past.plugins)):
        explanation = replace(explanation, notes=notes)
    return explanation


def _changed(past: Past, overrides: Mapping[str, Any]) -> Past:
    """Returns what a what-if draws with: one draw with the options of the place and these in place of
    some."""
    sampling = past.sampling.changed({"n": 1, "beam_width": 1, **overrides})
    WHAT_IF.check(sampling, past.sampling)
    seed = past.seed
    if overrides.get("seed") is not None and sampling.seed is not None:
        seed = sampling.seed
    return replace(past, sampling=sampling, seed=seed)


def _new_salt(run: Run, at: int, of: Part, salt: int) -> int:
    """Returns the luck of the next fork at this place."""
    return peek_luck(run, at) if of == "answer" else fork_salt(salt, at, 1)


class _Choice(NamedTuple):
    """How a token was chosen, as far as the record has it."""

    source: str
    taken: int | None = None  # its id, where it was not drawn
    refused: int | None = None  # the id of the draft that was refused for it
    beam: BeamRank | None = None
    record: Token | None = None  # to compare with


def _kind(sampling: Sampling) -> str:
    return "beam" if sampling.beam_width > 1 else "sampled"


def _recorded_choice(run: Run, at: int, of: Part, sampling: Sampling) -> _Choice:
    """Returns how the token at this place was chosen, or, behind the last one, would be."""
    if of == "prompt":
        record = run.prompt_tokens[at - 1] if at <= len(run.prompt_tokens) else None
        return _Choice("prompt", taken=run.prompt_ids[at], record=record)
    token = token_at(run, at)
    if token is None:
        return _Choice(_kind(sampling))
    return _Choice(
        token.source,
        taken=token.id if token.source in ("forced", "beam") else None,
        refused=None if token.refused is None else token.refused.id,
        beam=_beam_rank(run, at) if token.source == "beam" else None,
        record=token,
    )


def parts_of(llm: LocalModel) -> ModelParts:
    """Returns what decoding needs of a model."""
    return ModelParts(llm.tokenizer, tuple(llm.tokenizer.eos_ids), llm.transformer.ops.rows)


def token_at(run: Run, at: int) -> Token | None:
    """Returns the token at a place of the answer; the one that ended the run is behind the last."""
    return run.tokens[at] if at < len(run.tokens) else run.end


def _check_place(run: Run, at: int, of: Part) -> int:
    check_one_of("of", of, ("answer", "prompt"), TraceError)
    first, last = (0, len(run.tokens)) if of == "answer" else (1, len(run.prompt_ids) - 1)
    note = "" if of == "answer" else "; before the first token of the prompt there are no logits"
    return check_count("at", at, first, last, "a token", NoSuchToken, note)


def _beam_rank(run: Run, at: int) -> BeamRank | None:
    """Returns how the beam with this token did, or None where the record of the run has no such search."""
    nodes = {(beam.parent, beam.id): beam for beam in run.beams}
    node = None
    for token in records_of(run)[: at + 1]:
        node = nodes.get((None if node is None else node.number, token.id))
        if node is None:
            return None
    lengths = _lengths(run)
    rivals = [beam.logprob for beam in run.beams if lengths[beam.number] == at + 1]
    assert node is not None
    return BeamRank(1 + sum(each > node.logprob for each in rivals), len(rivals), 1 + run.sample)


def _lengths(run: Run) -> dict[int | None, int]:
    """Returns how many tokens there are up to each node of a search."""
    lengths: dict[int | None, int] = {None: 0}
    for beam in run.beams:
        lengths[beam.number] = lengths.get(beam.parent, 0) + 1
    return lengths


def replay_run(
    llm: LocalModel, run: Run, first: int = 0, strict: bool = True, deadline: Deadline | None = None
) -> ReplayVerdict:
    """Compares every number of every token, from the place `first` on. A run of another op set is compared
    too, and the verdict says so; unless `strict`, so is a run of another model that knows its token ids."""
    run.check_computable()
    notes = replay_notes(llm, run)
    if strict:
        check_run(llm, run)
    else:
        check_ids(llm, run)
    records = records_of(run, first)
    if run.sampling.beam_width > 1 and run.beams:
        again: Iterator[Chosen] = iter(_searched(llm, run, deadline)[first:])
    else:
        again = _chosen(llm, run, records, first, deadline)
    return compare(llm, records, again, first, notes)


def records_of(run: Run, first: int = 0) -> list[Token]:
    """Returns the tokens of a run with the one that ended it. Raises unless `first` is a place among them."""
    records = run.tokens if run.end is None else [*run.tokens, run.end]
    check_count("first", first, 0, len(records), "a token", TraceError)
    return records


def compare(
    llm: LocalModel, records: list[Token], again: Iterator[Chosen], first: int, notes: tuple[str, ...]
) -> ReplayVerdict:
    """Compares records from the place `first` on with what was chosen there once more."""
    changed: Difference | None = None  # the first token that was not chosen again
    moved: Difference | None = None  # the first whose numbers are not the same
    same, largest, compared = 0, 0.0, 0
    for at, recorded in enumerate(records[first:], first):
        compared += 1
        chosen = next(again, None)
        if chosen is not None and chosen.id == recorded.id:
            same += 1
            largest = max(largest, _distance(recorded.chosen, chosen))
            if moved is None and chosen != recorded.chosen:
                moved = Difference(at, chosen.id, recorded.piece, chosen.id, recorded.piece, recorded.margin)
        elif changed is None:
            id = None if chosen is None else chosen.id
            piece = "nothing" if id is None else llm.piece(id)
            changed = Difference(at, recorded.id, recorded.piece, id, piece, recorded.margin)
    earliest = changed or moved
    return ReplayVerdict(compared, earliest is None, same, earliest, largest, notes)


def _chosen(
    llm: LocalModel, run: Run, records: list[Token], first: int, deadline: Deadline | None
) -> Iterator[Chosen]:
    """Yields what the decoder chooses at each place, given the tokens before it."""
    if first == len(records):
        return
    prompt, answer = run.prompt_ids, [token.id for token in records]
    ids = [*prompt, *answer[:-1]]
    decoder, past = None, None
    rows: Iterator[Float32] = iter(())
    adapter: int | None = None
    for at in range(first, len(records)):
        if decoder is None or past != run.drawn_with(at):
            past = run.drawn_with(at)
            decoder = _decoder(llm, run, past, records[:at])
            drawn = _adapter_of(llm, run, past)
            if drawn != adapter:  # a fork may have another adapter than its past
                adapter = drawn
                rows = logits_after(llm.engine, ids, len(prompt) - 1 + at, deadline, adapter)
        logits = next(rows)
        try:
            if records[at].source == "forced":
                yield decoder.record_forced(logits, answer[at])
            elif records[at].source == "beam":  # a fork has it from a search
                yield _record_of_beam(decoder, logits, answer[at])
            else:
                yield decoder.choose(logits)
        except GlassloopError:  # with the logits of another model the stages may leave no token
            return
        if at + 1 < len(answer):
            decoder.commit(answer[at], records[at].chosen)


def _adapter_of(llm: LocalModel, run: Run, past: Past) -> int:
    """Returns the number of the adapter that tokens were drawn with; 0 if it is not loaded here, which only a
    replay that is not strict allows."""
    name = past.sampling.adapter
    same = name is not None and llm.adapters.get(name) == run.adapters.get(name)
    return llm.adapter_number(name) if same else 0


def _record_of_beam(decoder: Decoder, logits: Float32, token: int) -> Chosen:
    """Returns the record of a token that a beam search found."""
    summary, left = decoder.run_stages(logits)
    return decoder.record_choice(logits, summary, left, race_of_found(left, token))


def decoder_at(llm: LocalModel, run: Run, at: int) -> Decoder:
    """Returns what chooses the token at a place of a run, with the options and the luck of that place and the
    tokens before it."""
    return _decoder(llm, run, run.drawn_with(at), run.tokens[:at])


def _decoder(llm: LocalModel, run: Run, past: Past, tokens: list[Token]) -> Decoder:
    check_stages(past.sampling, past.plugins)
    decoder = Decoder(
        past.sampling,
        llm.config.vocab_size,
        past.seed,
        run.prompt_ids,
        past.salt,
        llm.tokenizer,
        tuple(llm.tokenizer.eos_ids),
        llm.transformer.ops.rows,
    )
    for token in tokens:
        decoder.commit(token.id, token.chosen)
    return decoder


def _searched(llm: LocalModel, run: Run, deadline: Deadline | None) -> list[Chosen]:
    """Returns the tokens of the same result of a new beam search, which is no sequence of single choices.

    It makes as many steps as the record has: a search that was cut short has the beginning of all steps.
    """
    check_stages(run.sampling, run.plugins)
    sampling = replace(run.sampling, seed=run.seed, timeout=None, prompt_logprobs=0)
    request = llm.prepare(run.prompt_ids, sampling)
    request.pause = Pause(max(_lengths(run).values()))
    results = _completed(llm, request, deadline)
    if run.sample >= len(results):
        return []
    return [token.chosen for token in records_of(results[run.sample])]


def _completed(llm: LocalModel, request: Request, deadline: Deadline | None) -> list[Run]:
    """Returns the runs of a request once all have ended; raises if the deadline comes first."""
    if deadline is not None:
        deadline.check()
    llm.check_may_wait()
    ended = Event()
    request.listener = lambda run, token: ended.set() if token is None and request.ended else None
    llm.submit(request)
    while not ended.wait(_LOOK_UP):
        if deadline is not None and (deadline.cancelled or deadline.expired):
            llm.cancel(request)
            raise deadline.error()
    return request.runs


def _distance(recorded: Chosen, chosen: Chosen) -> float:
    """Returns the largest difference of log-probabilities; infinite ones, of removed tokens, are left out."""
    pairs = ((recorded.logprob, chosen.logprob), (recorded.raw_logprob, chosen.raw_logprob))
    return max((abs(one - other) for one, other in pairs if one != other and abs(one) < 1e300), default=0.0)
