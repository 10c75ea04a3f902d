"""Once more: why a token of a recorded run was chosen, and whether all of it comes out the same.

The recorded tokens are given to the model and at each place the decoder is asked, as it was then. Since luck
is a function of the place, any token can be asked about alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.explain import Explanation, explain
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.logits import logits_after
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError, TraceError
from glassloop.trace.run import Run
from glassloop.trace.token import Token
from glassloop.trace.verdict import Difference, Verdict

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM

_LOOK_UP = 0.1  # seconds, after which a search that is awaited is held against its deadline


def explain_token(
    llm: LLM, run: Run, at: int, *, shown: int = 10, deadline: Deadline | None = None, **overrides: Any
) -> Explanation:
    """Why the token at this place is what it is, or, with other options, what would have come."""
    check_run(llm, run)
    records = _records(run)
    if not 0 <= at < len(records):
        raise TraceError(f"step is {at}; a token from 0 to {len(records) - 1} is expected")
    past, token = run.drawn_with(at), records[at]
    sampling = Sampling.from_dict({**past.sampling.to_dict(), **overrides}) if overrides else past.sampling
    seed = overrides.get("seed")
    ids = [*run.prompt_ids, *run.token_ids[:at]]
    # With other options nobody forces anything: it is what the race would have said.
    given = not overrides and token.source in ("forced", "beam")
    return explain(
        next(logits_after(llm.engine, ids, len(ids) - 1, deadline)),
        ids,
        sampling,
        past.seed if seed is None else seed,
        prompt_length=len(run.prompt_ids),
        salt=past.salt,
        tokenizer=llm.tokenizer,
        eos_ids=tuple(llm.tokenizer.eos_ids),
        ops=llm.transformer.ops.rows,
        shown=shown,
        taken=token.id if given else None,
        source="sampled" if overrides else token.source,
        refused=None if overrides or token.refused is None else token.refused.id,
    )


def replay_run(
    llm: LLM, run: Run, first: int = 0, strict: bool = True, deadline: Deadline | None = None
) -> Verdict:
    """Compare every number of every token, from the place `first` on. Unless `strict`, a run of another model
    is compared too, as far as that model knows its tokens."""
    notes = _notes(llm, run)
    if strict:
        check_run(llm, run)
    else:
        _check_ids(llm, run)
    records = _records(run)
    if not 0 <= first <= len(records):
        raise TraceError(f"first is {first}; a token from 0 to {len(records)} is expected")
    if run.sampling.beam_width > 1:
        made: Iterator[Chosen] = iter(_searched(llm, run, deadline)[first:])
    else:
        made = _chosen(llm, run, records, first, deadline)
    changed: Difference | None = None  # the first token that was not chosen again
    moved: Difference | None = None  # the first whose numbers are not the same
    same, largest, compared = 0, 0.0, 0
    for at, recorded in enumerate(records[first:], first):
        compared += 1
        chosen = next(made, None)
        if chosen is not None and chosen.id == recorded.id:
            same += 1
            largest = max(largest, _distance(recorded.chosen, chosen))
            if moved is None and _numbers(chosen) != _numbers(recorded.chosen):
                moved = Difference(at, chosen.id, recorded.piece, chosen.id, recorded.piece, recorded.margin)
        elif changed is None:
            found = None if chosen is None else chosen.id
            told = "nothing" if found is None else llm.piece(found)
            changed = Difference(at, recorded.id, recorded.piece, found, told, recorded.margin)
    first_of_all = changed or moved
    return Verdict(compared, first_of_all is None, same, first_of_all, largest, notes)


def check_run(llm: LLM, run: Run) -> None:
    """Raises unless this model can compute with the run: it made the run, or one with the same files did, and
    it has all of the run's tokens and room for them. Any other run can only be looked at."""
    if _is_of_another(llm, run):
        made = f"another model: {run.model}" if run.identity else f"a model that is not known: {run.model}"
        raise TraceError(
            f"run {run.id} was made by {made} ({_short(run.identity)}), and this is {llm.name}"
            f" ({_short(llm.model_hash)})"
        )
    _check_ids(llm, run)


def _is_of_another(llm: LLM, run: Run) -> bool:
    # Whoever made it need not be asked; a hash may take a while.
    return run.llm is not llm and run.identity != llm.model_hash


def _short(hash: str) -> str:
    return f"{hash[:12]}…" if hash else "no hash"


def _check_ids(llm: LLM, run: Run) -> None:
    """Raises unless every token of the run is one of the model's and all of them fit into its context."""
    context, size = llm.config.context, llm.config.vocab_size
    records = _records(run)
    if not run.prompt_ids:
        raise TraceError(f"run {run.id} has no prompt; at least one token is expected")
    if len(run.prompt_ids) + len(run.tokens) > context:
        length = len(run.prompt_ids) + len(run.tokens)
        raise TraceError(f"run {run.id} has {length} tokens; {llm.name} has room for {context}")
    if run.context > context:
        raise TraceError(f"run {run.id} has a context of {run.context} tokens; {llm.name} has {context}")
    refused = [token.refused.id for token in records if token.refused is not None]
    for id in (*run.prompt_ids, *[token.id for token in records], *refused):
        if not 0 <= id < size:
            raise TraceError(f"run {run.id} has the token id {id}; {llm.name} has ids from 0 to {size - 1}")


def _notes(llm: LLM, run: Run) -> tuple[str, ...]:
    notes = []
    if _is_of_another(llm, run):
        notes.append(f"made by another model, {run.model} ({_short(run.identity)})")
    if run.ops and run.ops != llm.op_set:
        notes.append(f"made with {run.ops}, replayed with {llm.op_set}")
    return tuple(notes)


def _records(run: Run) -> list[Token]:
    return run.tokens if run.end is None else [*run.tokens, run.end]


def _chosen(
    llm: LLM, run: Run, records: list[Token], first: int, deadline: Deadline | None
) -> Iterator[Chosen]:
    """What the decoder says at each place, given the tokens before it."""
    if first == len(records):
        return
    prompt, made = run.prompt_ids, [token.id for token in records]
    ids = [*prompt, *made[:-1]]
    decoder, past = None, None
    for at, logits in enumerate(logits_after(llm.engine, ids, len(prompt) - 1 + first, deadline), first):
        if decoder is None or past != run.drawn_with(at):
            past = run.drawn_with(at)
            decoder = _decoder(llm, run, past, made[:at])
        try:
            if records[at].source == "forced":
                yield decoder.record_forced(logits, made[at])
            else:
                yield decoder.choose(logits)
        except GlassloopError:  # with another model's logits the stages may be at odds
            return
        if at + 1 < len(made):
            decoder.commit(made[at])


def _decoder(llm: LLM, run: Run, past: Any, made: list[int]) -> Decoder:
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
    for token in made:
        decoder.commit(token)
    return decoder


def _searched(llm: LLM, run: Run, deadline: Deadline | None) -> list[Chosen]:
    """A beam search is no sequence of choices: it is made anew, and this is the same one of its results."""
    sampling = replace(run.sampling, seed=run.seed, timeout=None)
    found = _generated(llm, llm.prepare(run.prompt_ids, sampling), deadline)
    if run.sample >= len(found):
        return []
    return [token.chosen for token in _records(found[run.sample])]


def _generated(llm: LLM, request: Request, deadline: Deadline | None) -> list[Run]:
    """The runs of a request, within the deadline."""
    if deadline is not None:
        deadline.check()
    ended = Event()
    request.listener = lambda run, token: ended.set() if token is None and request.ended else None
    llm.submit(request)
    while not ended.wait(_LOOK_UP):
        if deadline is not None and (deadline.cancelled or deadline.expired):
            llm.cancel(request)
            raise deadline.error()
    return request.runs


def _numbers(chosen: Chosen) -> tuple[object, ...]:
    return (
        chosen.logprob,
        chosen.raw_logprob,
        chosen.rank,
        chosen.rank_after,
        chosen.entropy,
        chosen.log_sum_exp,
        chosen.log_sum_exp_after,
        chosen.luck,
        chosen.margin,
        chosen.runner_up,
        chosen.packed_alternatives,
    )


def _distance(recorded: Chosen, chosen: Chosen) -> float:
    """Of log-probabilities; of one that was removed there is none."""
    pairs = ((recorded.logprob, chosen.logprob), (recorded.raw_logprob, chosen.raw_logprob))
    return max((abs(one - other) for one, other in pairs if one != other and abs(one) < 1e300), default=0.0)
