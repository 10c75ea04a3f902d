"""What is computed again from a recorded run: why a token was chosen, and whether all comes out the same.

The recorded tokens are given to the model, and at each place the decoder is asked as it was then. Since luck
is a function of the place, any token can be asked about alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Integral
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from glassloop.decode.choose import race_of_found
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.difference import numbers_of
from glassloop.decode.explain import ChoiceContext, ModelParts, RecordedToken, explain_choice
from glassloop.decode.explanation import BeamRank, Explanation
from glassloop.decode.luck import fork_salt
from glassloop.decode.plugins import check_stages, plugin_notes
from glassloop.decode.stop import Pause
from glassloop.decode.task_kinds import WHAT_IF
from glassloop.engine.branching import peek_luck
from glassloop.engine.deadline import Deadline
from glassloop.engine.logits import logits_after
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError, TraceError
from glassloop.ops.quant import Float32
from glassloop.record.run import Run, check_is_run
from glassloop.record.run_parts import Past
from glassloop.record.run_record import NoSuchToken as NoSuchToken
from glassloop.record.token import Token
from glassloop.record.verdict import Difference, ReplayVerdict
from glassloop.util.check import check_count, check_one_of
from glassloop.util.shown import printable

if TYPE_CHECKING:
    from glassloop.engine.local import LocalEngine
    from glassloop.engine.request_maker import RequestMaker

Part = Literal["answer", "prompt"]  # which tokens of a run
Luck = Literal["same", "new"]  # the run's own, or that of the next fork

_LOOK_UP = 0.1  # seconds between two looks at the deadline while a search is awaited


def explain_token(
    llm: LocalEngine,
    run: Run,
    at: int,
    *,
    of: Part = "answer",
    luck: Luck = "same",
    shown: int = 10,
    deadline: Deadline | None = None,
    logits: Callable[[list[int], int], Float32] | None = None,
    **overrides: Any,
) -> Explanation:
    """Returns why the token at this place of a run is there. Any field of `Sampling` among the overrides, or
    new luck, makes it a what-if: which token a draw with these options would have chosen there.

    Places count from 0 in the answer or, with `of="prompt"`, in the prompt. The place behind the last token
    of an answer is that of the token which ended the run or would come next. Before the first token of a
    prompt there are no logits, so nothing can be said about it. If it is no what-if, the record of the token
    is compared with what is computed, and the explanation has the difference. `logits` returns the row of
    logits after the given tokens with the adapter of this number; without it the engine computes it.
    """
    check_run(llm, run)
    check_one_of("luck", luck, ("same", "new"), TraceError)
    check_count("shown", shown, 0, llm.config.vocab_size)
    # Wrong options are told before a wrong place, in Python as over HTTP.
    past = run.drawn_with(at if of == "answer" and isinstance(at, Integral) else len(run.tokens))
    sampling, seed, salt = past.sampling, past.seed, past.salt
    searched = sampling.beam_width > 1
    what_if = bool(overrides) or luck == "new"
    if what_if:
        sampling = sampling.changed({"n": 1, "beam_width": 1, **overrides})
        WHAT_IF.check(sampling, past.sampling)
        if overrides.get("seed") is not None and sampling.seed is not None:
            seed = sampling.seed
    at = _check_place(run, at, of)
    if of == "answer" or what_if:
        check_stages(sampling, past.plugins)
    ids = [*run.prompt_ids, *run.token_ids[:at]] if of == "answer" else run.prompt_ids[:at]
    if luck == "new":
        salt = peek_luck(run, at) if of == "answer" else fork_salt(salt, at, 1)
    source = "beam" if sampling.beam_width > 1 else "sampled"
    taken: int | None = None
    refused: int | None = None
    beam: BeamRank | None = None
    token: Token | None = None  # the record to compare with
    if what_if:
        pass
    elif of == "prompt":
        source, taken = "prompt", run.prompt_ids[at]
        token = run.prompt_tokens[at - 1] if at <= len(run.prompt_tokens) else None
    elif (token := token_at(run, at)) is not None:
        source = token.source
        taken = token.id if source in ("forced", "beam") else None
        refused = None if token.refused is None else token.refused.id
        beam = _beam_rank(run, at) if source == "beam" else None
    alone = what_if and searched and source == "sampled" and of == "answer"
    adapter = llm.adapter_number(sampling.adapter)
    row = (
        logits(ids, adapter)
        if logits
        else next(logits_after(llm.engine, ids, len(ids) - 1, deadline, adapter))
    )
    context = ChoiceContext(
        row,
        ids,
        sampling,
        seed,
        salt,
        prompt_length=min(len(ids), len(run.prompt_ids)),
        choices=[each.chosen for each in run.tokens[:at]] if of == "answer" else (),
        model=parts_of(llm),
    )
    numbers = None if token is None else numbers_of(token.chosen)
    recorded = RecordedToken(source, taken, beam, refused, numbers, replay_notes(llm, run))
    introduction = "In one draw instead of the beam search, " if alone else ""
    told = explain_choice(context, recorded, shown, introduction)
    if told.stages and (notes := plugin_notes(past.plugins)):
        told = replace(told, notes=notes)
    return told


def parts_of(llm: LocalEngine) -> ModelParts:
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
    llm: LocalEngine, run: Run, first: int = 0, strict: bool = True, deadline: Deadline | None = None
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
        made: Iterator[Chosen] = iter(_searched(llm, run, deadline)[first:])
    else:
        made = _chosen(llm, run, records, first, deadline)
    return compare(llm, records, made, first, notes)


def records_of(run: Run, first: int = 0) -> list[Token]:
    """Returns the tokens of a run with the one that ended it. Raises unless `first` is a place among them."""
    records = run.tokens if run.end is None else [*run.tokens, run.end]
    check_count("first", first, 0, len(records), "a token", TraceError)
    return records


def compare(
    llm: RequestMaker, records: list[Token], made: Iterator[Chosen], first: int, notes: tuple[str, ...]
) -> ReplayVerdict:
    """Compares records from the place `first` on with what was chosen there once more."""
    changed: Difference | None = None  # the first token that was not chosen again
    moved: Difference | None = None  # the first whose numbers are not the same
    same, largest, compared = 0, 0.0, 0
    for at, recorded in enumerate(records[first:], first):
        compared += 1
        chosen = next(made, None)
        if chosen is not None and chosen.id == recorded.id:
            same += 1
            largest = max(largest, _distance(recorded.chosen, chosen))
            if moved is None and chosen != recorded.chosen:
                moved = Difference(at, chosen.id, recorded.piece, chosen.id, recorded.piece, recorded.margin)
        elif changed is None:
            found = None if chosen is None else chosen.id
            told = "nothing" if found is None else llm.piece(found)
            changed = Difference(at, recorded.id, recorded.piece, found, told, recorded.margin)
    earliest = changed or moved
    return ReplayVerdict(compared, earliest is None, same, earliest, largest, notes)


def check_run(llm: RequestMaker, run: Run) -> None:
    """Raises unless this model can compute with the run: the same files made the run, and all of its tokens
    are in the vocabulary and fit into the context. Any other run can only be looked at."""
    run.check_computable()
    if _is_of_another(llm, run):
        made = f"another model: {run.model}" if run.identity else f"a model that is not known: {run.model}"
        problem = f"{run.id} was made by {made} ({_short(run.identity)}), and this is {llm.name}"
        raise TraceError.about("run", f"{problem} ({_short(llm.model_hash)})")
    for name, hash in run.adapters.items():
        loaded = llm.adapters.get(name)
        if loaded != hash:
            has = "has no adapter of this name" if loaded is None else f"has {name} ({_short(loaded)})"
            made = f"made with the adapter {printable(name)} ({_short(hash)})"
            load = f"pass --adapter {printable(name)}=PATH (in Python: llm.load_adapter)"
            raise TraceError.about("run", f"{run.id} was {made}, and {llm.name} {has}: {load}")
    check_ids(llm, run)


def check_continuable(llm: RequestMaker, run: Run) -> None:
    """Raises unless this model can continue or fork the run: `check_run`, and the op set that made the run,
    so that all numbers of a record come from one op set. Records that name none, which are old, pass."""
    check_is_run(run)
    if not run.origin.in_order:
        raise TraceError.about(
            "run",
            f"{run.id} was written by filling masks; it can be explained and replayed, but not continued or"
            " forked: its text as a prompt can",
        )
    check_run(llm, run)
    if run.ops and run.ops != llm.op_set:
        raise TraceError.about(
            "run",
            f"{run.id} was made with the op set {printable(run.ops)}, and this is {llm.op_set};"
            " it can be explained and replayed here, but not continued or forked",
        )


def _is_of_another(llm: RequestMaker, run: Run) -> bool:
    # The hash is computed only where it is needed: it may take a while.
    return run.llm is not llm and run.identity != llm.model_hash


def _short(hash: str) -> str:
    return f"{hash[:12]}…" if hash else "no hash"


def check_ids(llm: RequestMaker, run: Run) -> None:
    """Raises unless every token of the run is one of the model's and all of them fit into its context."""
    context, size = llm.config.context, llm.config.vocab_size
    records = records_of(run)
    if not run.prompt_ids:
        raise TraceError.about("run", f"{run.id} has no prompt; at least one token is expected")
    if len(run.prompt_ids) + len(run.tokens) > context:
        length = len(run.prompt_ids) + len(run.tokens)
        raise TraceError.about("run", f"{run.id} has {length} tokens; {llm.name} has room for {context}")
    if run.context > context:
        raise TraceError.about(
            "run", f"{run.id} has a context of {run.context} tokens; {llm.name} has {context}"
        )
    refused = [token.refused.id for token in records if token.refused is not None]
    passed = [each.id for record in run.passes for each in record.unfilled]
    passed += [each.id for record in run.passes for each in record.filled]
    for id in (*run.prompt_ids, *[token.id for token in records], *run.pending, *refused, *passed):
        if not 0 <= id < size:
            raise TraceError.about(
                "run", f"{run.id} has the token id {id}; {llm.name} has ids from 0 to {size - 1}"
            )


def replay_notes(llm: RequestMaker, run: Run) -> tuple[str, ...]:
    notes = []
    if _is_of_another(llm, run):
        notes.append(f"made by another model, {run.model} ({_short(run.identity)})")
    if run.ops and run.ops != llm.op_set:
        notes.append(f"made with {run.ops}, computed again with {llm.op_set}")
    for name, hash in run.adapters.items():
        if llm.adapters.get(name) != hash:
            notes.append(
                f"made with the adapter {printable(name)} ({_short(hash)}), computed again without it"
            )
    for past in (*run.past, run.drawn_with(len(run.tokens))):
        notes += [note for note in plugin_notes(past.plugins) if note not in notes]
    return tuple(notes)


def _chosen(
    llm: LocalEngine, run: Run, records: list[Token], first: int, deadline: Deadline | None
) -> Iterator[Chosen]:
    """Yields what the decoder chooses at each place, given the tokens before it."""
    if first == len(records):
        return
    prompt, made = run.prompt_ids, [token.id for token in records]
    ids = [*prompt, *made[:-1]]
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
                yield decoder.record_forced(logits, made[at])
            elif records[at].source == "beam":  # a fork has it from a search
                yield _found(decoder, logits, made[at])
            else:
                yield decoder.choose(logits)
        except GlassloopError:  # with the logits of another model the stages may leave no token
            return
        if at + 1 < len(made):
            decoder.commit(made[at], records[at].chosen)


def _adapter_of(llm: LocalEngine, run: Run, past: Past) -> int:
    """Returns the number of the adapter that tokens were drawn with; 0 if it is not loaded here, which only a
    replay that is not strict allows."""
    name = past.sampling.adapter
    same = name is not None and llm.adapters.get(name) == run.adapters.get(name)
    return llm.adapter_number(name) if same else 0


def _found(decoder: Decoder, logits: Float32, token: int) -> Chosen:
    """Returns the record of a token that a beam search found."""
    summary, left = decoder.run_stages(logits)
    return decoder.record_choice(logits, summary, left, race_of_found(left, token))


def _decoder(llm: LocalEngine, run: Run, past: Past, made: list[Token]) -> Decoder:
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
    for token in made:
        decoder.commit(token.id, token.chosen)
    return decoder


def _searched(llm: LocalEngine, run: Run, deadline: Deadline | None) -> list[Chosen]:
    """Returns the tokens of the same result of a new beam search, which is no sequence of single choices.

    It makes as many steps as the record has: a search that was cut short has the beginning of all steps.
    """
    check_stages(run.sampling, run.plugins)
    sampling = replace(run.sampling, seed=run.seed, timeout=None, prompt_logprobs=0)
    request = llm.prepare(run.prompt_ids, sampling)
    request.pause = Pause(max(_lengths(run).values()))
    found = _generated(llm, request, deadline)
    if run.sample >= len(found):
        return []
    return [token.chosen for token in records_of(found[run.sample])]


def _generated(llm: LocalEngine, request: Request, deadline: Deadline | None) -> list[Run]:
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
