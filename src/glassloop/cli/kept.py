"""What commands share: finding runs by name (a `.glass` file or an id in the store), keeping and loading."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.cli.remote import RemoteServer
    from glassloop.decode.sampling import Sampling
    from glassloop.engine.language_model import LanguageModel
    from glassloop.record.run import Run
    from glassloop.text.tokenizer import Tokenizer
    from glassloop.upstream import UpstreamEngine


NAME_HELP = (
    "A .glass file, or a run in the store: its id, the beginning of it, the id of a server's answer"
    " (chatcmpl-…), or 'last'."
)


def complete_run(start: str) -> list[str]:
    from glassloop.record.store.store import Store

    return [name for name in ["last", *(entry.id for entry in Store().list(50))] if name.startswith(start)]


Name = Annotated[
    str, typer.Argument(metavar="FILE|RUN", help=NAME_HELP, autocompletion=complete_run, show_default=False)
]

Which = Annotated[
    str,
    typer.Option(
        "--run", metavar="ID", help="If the file has several runs: the id of one, or its first characters."
    ),
]


def find_runs(name: str, server: RemoteServer | None = None) -> list[Run]:
    """Returns all runs of a file, or the one in the store or on a server."""
    from glassloop.record.format.glass_file import read
    from glassloop.record.store.store import Store

    if is_path(name):
        return read(name)
    return [Store().get(name) if server is None else server.run(name)]


def found_as(name: str, run: Run, server: RemoteServer | None) -> str:
    """Returns the name that `model_of` and `prompt_text` take for a run: a run of a server is trusted as
    little as that of a file."""
    return name if server is None else f"{run.id}.glass"


def names_run(text: str) -> bool:
    """Returns whether an argument that may be a prompt names a run: a .glass file, an id of at least 8
    digits, the id of an answer, or "last"."""
    from glassloop.cli.options import is_file
    from glassloop.record.run_name import is_run_name

    is_glass = text.endswith(".glass") and (is_file(Path(text)) or not any(map(str.isspace, text)))
    return is_glass or is_run_name(text)


def note_name(text: str) -> None:
    """Tells on stderr that a text which is about to be continued is the name of a file or of a run, since its
    contents may be meant."""
    from glassloop.cli.options import is_file
    from glassloop.cli.terminal import visible
    from glassloop.errors import GlassloopError
    from glassloop.record.store.store import Store

    if is_file(Path(text)):
        what = "a file"
    elif names_run(text):
        try:
            Store().get(text)
        except GlassloopError:
            return
        what = "a run"
    else:
        return
    shown = visible(text[:80], newlines=False)
    instead = "compare, explain and fork take a run" if names_run(text) else "'-' reads a prompt from stdin"
    print(
        f"glassloop: the prompt {shown!r} is the name of {what}, and is continued as a text; {instead}",
        file=sys.stderr,
    )


def is_path(name: str) -> bool:
    """Returns whether the name of a run is that of a file."""
    from glassloop.cli.options import is_file

    return is_file(Path(name)) or name.endswith(".glass") or os.sep in name


def model_of(name: str, run: Run) -> str:
    """Returns the model that a run names, if it may be loaded without asking. `name` is how it was found.

    A file, or a run that a server imported, may name anything. For these only the default model, or one that
    was already pulled by its name, is loaded: a file never decides what is downloaded or opened.
    """
    from glassloop.errors import RegistryError, TraceError
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


def find_run(name: str, which: str, server: RemoteServer | None = None) -> Run:
    """Returns the first run of a file, the store or a server whose id begins with `which`."""
    from glassloop.errors import TraceError
    from glassloop.record.run_name import run_id

    runs = find_runs(name, server)
    for run in runs:
        if run.id.startswith(run_id(which)):
            return run
    known = ", ".join([run.id[:8] for run in runs[:5]]) + (", …" if len(runs) > 5 else "")
    raise TraceError(f"--run is {which}; {name} has {known}")


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
    from glassloop.errors import GlassloopError
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
    from glassloop.errors import GlassloopError
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
    known = {other.id: other.text for token in tokens for other in token.alternatives}
    known |= {token.id: token.piece for token in tokens}
    return lambda token: known.get(token, f"<{token}>")


def keep(runs: list[Run]) -> bool:
    """Writes runs to the user's store and returns whether that worked. A failure is a notice, not an error:
    the text has been printed already."""
    from glassloop.errors import GlassloopError
    from glassloop.record.store.store import Store

    try:
        Store().add(*runs)
    except GlassloopError as error:
        from glassloop.cli.terminal import visible

        print(f"glassloop: the run was not kept: {visible(str(error), newlines=False)}", file=sys.stderr)
        return False
    return True


def drafter(given: str | None) -> bool | str:
    """Returns the `draft` argument of `LLM` for `--draft`: a model or the file of a drafter, or "off"; by
    default True."""
    return True if given is None else False if given == "off" else given


def load(
    model: str,
    ops: str | None = None,
    kv_memory: str | None = None,
    draft: bool | str = True,
    model_defaults: bool = True,
    holes: Path | None = None,
) -> LLM:
    """Loads a model, with the adapters of the command line. Without `model_defaults`, its own sampling
    settings are not used. `holes` is the file of an adapter for masked rows."""
    from glassloop.cli.adapters import load_given
    from glassloop.cli.terminal import print_notes, progress_bar

    with progress_bar(f"Loading {model}") as advance:
        from glassloop.api.llm import LLM
        from glassloop.model.loader import watch_loading

        with watch_loading(advance):
            llm = LLM(model, ops, kv_memory=kv_memory, draft=draft)
        load_given(llm)
        if holes is not None:
            llm.load_holes(holes)
    print_notes(llm.notes)
    if not model_defaults:
        from glassloop.decode.sampling import Sampling

        llm.default_sampling = Sampling()
    return llm


def load_upstream(url: str, model: str | None, key_variable: str, **given: object) -> UpstreamEngine:
    """Connects to another engine. `given` are options of the command that only an engine here takes."""
    from glassloop.cli.options import DEFAULT_MODEL, UPSTREAM_KEY
    from glassloop.cli.terminal import working
    from glassloop.errors import GlassloopError

    for name, value in given.items():
        if value is not None:
            raise GlassloopError(f"--{name} is given with --upstream; another engine has its own")
    key = os.environ.get(key_variable)
    if key is None and key_variable != UPSTREAM_KEY:
        raise GlassloopError(f"--upstream-key-env is {key_variable}; there is no such environment variable")
    with working(f"Connecting to {url}"):
        from glassloop.upstream import UpstreamEngine

        return UpstreamEngine(url, None if model == DEFAULT_MODEL else model, key=key)


def chat_messages(llm: LanguageModel, text: str, system: str | None) -> list[dict[str, str]]:
    """Returns a conversation of one message, with a system message before it if there is one."""
    check_chat(llm)
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def check_chat(llm: LanguageModel) -> None:
    """Raises if a model has no chat template."""
    from glassloop.errors import TextError

    if not llm.tokenizer.can_chat:
        raise TextError(f"{llm.name} has no chat template, which --chat needs; without it, text is continued")
