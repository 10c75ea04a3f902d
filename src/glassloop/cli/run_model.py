"""The model that a recorded run names: whether it may be loaded, its tokenizer and its defaults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.cli.stored_runs import is_path
from glassloop.errors import GlassloopError, RegistryError, TraceError

if TYPE_CHECKING:
    from glassloop.decode.sampling import Sampling
    from glassloop.record.run import Run
    from glassloop.text.tokenizer import Tokenizer


def model_of(name: str, run: Run) -> str:
    """Returns the model that a run names, if it may be loaded without asking. `name` is how it was found.

    A file, or a run that a server imported, may name anything. For these only the default model, or one that
    was already pulled by its name, is loaded: a file never decides what is downloaded or opened.
    """
    from glassloop.model.registry import DEFAULT_MODEL, find
    from glassloop.model.registry.names import resolve
    from glassloop.record.store.store import Store

    run.check_computable()
    if run.model == DEFAULT_MODEL or not (is_path(name) or Store().is_from_server(run.id)):
        return run.model
    try:
        if not isinstance(resolve(run.model), Path) and find(run.model) is not None:
            return run.model
    except RegistryError:
        pass
    raise TraceError(
        f"run {run.id[:8]} names the model {run.model[:200]!r}, which was never pulled under this name;"
        " say which model to use: --model NAME"
    )


def prompt_text(name: str, run: Run) -> str:
    """Returns the prompt of a run. Token ids, which is how a chat gives its prompts, are decoded if the
    tokenizer of the run's model is on this machine; else the text says how many there are."""
    if run.prompt is not None:
        return run.prompt
    tokenizer = tokenizer_of(name, run)
    if tokenizer is None or max(run.prompt_ids) >= tokenizer.vocab_size:
        return f"({len(run.prompt_ids)} token ids)"
    return tokenizer.decode(run.prompt_ids)


def tokenizer_of(name: str, run: Run) -> Tokenizer | None:
    """Returns the tokenizer of the model that a run names, if that is on this machine and may be loaded."""
    from glassloop.model.loader import load_tokenizer
    from glassloop.model.registry import find

    try:
        model = model_of(name, run)
        return None if find(model) is None else load_tokenizer(model)
    except GlassloopError:
        return None


def defaults_of(name: str, run: Run) -> Sampling | None:
    """Returns the sampling settings of the model that a run names, if that is on this machine and may be
    loaded."""
    from glassloop.decode.defaults import sampling_of_model
    from glassloop.model.loader import ModelFiles
    from glassloop.model.registry import find

    try:
        model = model_of(name, run)
        path = find(model)
        return None if path is None else sampling_of_model(model, ModelFiles(path))
    except GlassloopError:
        return None


def beam_pieces(name: str, run: Run) -> Callable[[int], str]:
    """Returns the texts of the tokens of a run's beam search. Without the tokenizer of its model, only tokens
    that are in the record are known; others are shown by their ids."""
    from glassloop.text.pieces import Pieces

    tokenizer = tokenizer_of(name, run)
    if tokenizer is not None:
        return Pieces(tokenizer).__getitem__
    tokens = (*run.tokens, *([run.end] if run.end else []))
    pieces = {other.id: other.text for token in tokens for other in token.alternatives}
    pieces |= {token.id: token.piece for token in tokens}
    return lambda token: pieces.get(token, f"<{token}>")
