"""Whether a model can compute with a recorded run: explain, replay, continue or fork it."""

from __future__ import annotations

from glassloop.decode.plugins import plugin_notes
from glassloop.engine.request_maker import ComputedModel
from glassloop.errors import TraceError
from glassloop.record.run import Run, check_is_run
from glassloop.util.shown import printable


def check_run(llm: ComputedModel, run: Run) -> None:
    """Raises unless this model can compute with the run: the same files made the run, and all of its tokens
    are in the vocabulary and fit into the context. Any other run can only be looked at."""
    run.check_computable()
    if _is_of_another(llm, run):
        maker = f"another model: {run.model}" if run.identity else f"a model that is not known: {run.model}"
        problem = f"{run.id} was made by {maker} ({_short(run.identity)}), and this is {llm.name}"
        raise TraceError.about("run", f"{problem} ({_short(llm.model_hash)})")
    for name, hash in run.adapters.items():
        loaded = llm.adapters.get(name)
        if loaded != hash:
            has = "has no adapter of this name" if loaded is None else f"has {name} ({_short(loaded)})"
            adapter = f"made with the adapter {printable(name)} ({_short(hash)})"
            load = f"pass --adapter {printable(name)}=PATH (in Python: llm.load_adapter)"
            raise TraceError.about("run", f"{run.id} was {adapter}, and {llm.name} {has}: {load}")
    check_ids(llm, run)


def check_continuable(llm: ComputedModel, run: Run) -> None:
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


def _is_of_another(llm: ComputedModel, run: Run) -> bool:
    # The hash is computed only where it is needed: it may take a while.
    return run.llm is not llm and run.identity != llm.model_hash


def _short(hash: str) -> str:
    return f"{hash[:12]}…" if hash else "no hash"


def check_ids(llm: ComputedModel, run: Run) -> None:
    """Raises unless every token of the run is one of the model's and all of them fit into its context."""
    context, size = llm.config.context, llm.config.vocab_size
    records = run.tokens if run.end is None else [*run.tokens, run.end]
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


def replay_notes(llm: ComputedModel, run: Run) -> tuple[str, ...]:
    """Returns what differs between this model and the one that made the run, one sentence for each."""
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
