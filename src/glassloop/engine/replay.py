"""Once more: why a token of a recorded run was chosen, and whether all of it comes out the same.

The recorded tokens are given to the model and at each place the decoder is asked, as it was then. Since luck
is a function of the place, any token can be asked about alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.decoder import Decoder
from glassloop.decode.explain import Explanation, explain
from glassloop.decode.sampling import Sampling
from glassloop.engine.logits import logits_after
from glassloop.errors import GlassloopError, TraceError
from glassloop.ops.chosen import Chosen
from glassloop.ops.vocabulary import row_ops
from glassloop.trace.run import Run
from glassloop.trace.token import Token
from glassloop.trace.verdict import Difference, Verdict

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM


def explain_token(llm: LLM, run: Run, at: int, *, shown: int = 10, **overrides: Any) -> Explanation:
    """Why the token at this place is what it is, or, with other options, what would have come."""
    check_model(llm, run)
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
        next(logits_after(llm.engine, ids, len(ids) - 1)),
        ids,
        sampling,
        past.seed if seed is None else seed,
        prompt_length=len(run.prompt_ids),
        salt=past.salt,
        tokenizer=llm.tokenizer,
        eos_ids=tuple(llm.tokenizer.eos_ids),
        ops=row_ops(llm.ops),
        shown=shown,
        taken=token.id if given else None,
        source="sampled" if overrides else token.source,
        refused=None if overrides or token.refused is None else token.refused.id,
    )


def replay_run(llm: LLM, run: Run, first: int = 0, strict: bool = True) -> Verdict:
    """Compare every number of every token, from the place `first` on."""
    notes = _notes(llm, run)
    if strict:
        check_model(llm, run)
    records = _records(run)
    if not 0 <= first <= len(records):
        raise TraceError(f"first is {first}; a token from 0 to {len(records)} is expected")
    if run.sampling.beam_width > 1:
        made: Iterator[Chosen] = iter(_searched(llm, run)[first:])
    else:
        made = _chosen(llm, run, records, first)
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


def check_model(llm: LLM, run: Run) -> None:
    """A record can be held against the model that made it, and no other."""
    if _is_of_another(llm, run):
        raise TraceError(
            f"run {run.id} was made by another model: {run.model} ({run.identity[:12]}…), and this is"
            f" {llm.name} ({llm.model_hash[:12]}…)"
        )


def _is_of_another(llm: LLM, run: Run) -> bool:
    # Whoever made it need not be asked; a hash may take a while.
    return run.llm is not llm and run.identity not in ("", llm.model_hash)


def _notes(llm: LLM, run: Run) -> tuple[str, ...]:
    notes = []
    if _is_of_another(llm, run):
        notes.append(f"made by another model, {run.model} ({run.identity[:12]}…)")
    if run.ops and run.ops != llm.op_set:
        notes.append(f"made with {run.ops}, replayed with {llm.op_set}")
    return tuple(notes)


def _records(run: Run) -> list[Token]:
    return run.tokens if run.end is None else [*run.tokens, run.end]


def _chosen(llm: LLM, run: Run, records: list[Token], first: int) -> Iterator[Chosen]:
    """What the decoder says at each place, given the tokens before it."""
    if first == len(records):
        return
    prompt, made = run.prompt_ids, [token.id for token in records]
    ids = [*prompt, *made[:-1]]
    limit = llm.config.vocab_size
    if max(ids + made) >= limit:
        raise TraceError(f"run {run.id} has token ids that {llm.name} does not know, which has {limit}")
    decoder, past = None, None
    for at, logits in enumerate(logits_after(llm.engine, ids, len(prompt) - 1 + first), first):
        if decoder is None or past != run.drawn_with(at):
            past = run.drawn_with(at)
            decoder = _decoder(llm, run, past, made[:at])
        try:
            if records[at].source == "forced":
                yield decoder.judge(logits, made[at])
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
        row_ops(llm.ops),
    )
    for token in made:
        decoder.commit(token)
    return decoder


def _searched(llm: LLM, run: Run) -> list[Chosen]:
    """A beam search is no sequence of choices: it is made anew, and this is the same one of its results."""
    sampling = replace(run.sampling, seed=run.seed, timeout=None)
    found = llm.generate([run.prompt_ids], sampling)[0].samples
    if run.sample >= len(found):
        return []
    return [token.chosen for token in _records(found[run.sample])]


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
        chosen.told,
    )


def _distance(recorded: Chosen, chosen: Chosen) -> float:
    """Of log-probabilities; of one that was removed there is none."""
    pairs = ((recorded.logprob, chosen.logprob), (recorded.raw_logprob, chosen.raw_logprob))
    return max((abs(one - other) for one, other in pairs if one != other and abs(one) < 1e300), default=0.0)
