"""`glassloop generate --from`: many prompts, one on each line of a file, generated in one batch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from glassloop.cli.arguments import read_text
from glassloop.cli.loading import check_chat
from glassloop.cli.options import OutputFlags
from glassloop.cli.run_output import with_samples
from glassloop.cli.show import Painter, Show
from glassloop.cli.stored_runs import keep
from glassloop.cli.terminal import json_text, visible, wrapped
from glassloop.decode.defaults import with_defaults
from glassloop.decode.luck import list_seed
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError, TextError
from glassloop.text.chat import check_messages
from glassloop.util.files import read_at_most
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.record.run import Run

_LONGEST = 256 << 20  # bytes of a file with prompts


class BatchEntry(NamedTuple):
    """A prompt of a file, or the messages of a chat, with the options that are given for it."""

    where: str  # the file and the line, for messages
    prompt: str | list[int]
    messages: list[Any] | None
    options: dict[str, Any]


def read_prompts(
    name: str, options: Mapping[str, Any], chat: bool = False, system: str | None = None
) -> list[BatchEntry]:
    """Returns the prompts of a file ('-' is stdin). A line that begins with `{` is JSON: a `prompt` or the
    `messages` of a chat, and options that replace those given here. Any other line is a prompt itself; empty
    lines are skipped. As in Python, a seed given for all of them gives each prompt a seed of its own.

    With `chat` a prompt that is a text is the user's message. `system` is the system message of chats that
    have none."""
    entries: list[BatchEntry] = []
    seed = options.get("seed")
    for number, line in enumerate(_text(name).split("\n"), start=1):
        text = line.removesuffix("\r")
        if not text.strip():
            continue
        where = f"{name}, line {number}"
        with _errors_at(where):
            plain = _object(text) if text.lstrip().startswith("{") else {"prompt": text}
            messages = plain.pop("messages", None)
            prompt = plain.pop("prompt", None if messages is None else "")
            if prompt and messages is not None:
                raise TextError("prompt and messages are both given; one of them is expected")
            if not isinstance(prompt, str | list):
                raise TextError(f"prompt is {shown(prompt)}; a text or a list of token ids is expected")
            if chat and messages is None and isinstance(prompt, str):
                messages = [{"role": "user", "content": prompt}]
            own_seed = {} if seed is None else {"seed": list_seed(seed, len(entries))}
            overrides = {**options, **own_seed, **plain}
            Sampling.from_dict(overrides)  # errors in the options come before the model is loaded
            entries.append(BatchEntry(where, prompt, _with_system(messages, system), overrides))
    if not entries:
        raise TextError(f"{name} has no prompts; one on each line is expected")
    return entries


def _with_system(messages: Any, system: str | None) -> list[Any] | None:
    """Returns messages with a system message before them, unless they begin with one."""
    if messages is None:
        return None
    checked: list[Any] = check_messages(messages)
    if system is None or checked[0]["role"] == "system":
        return checked
    return [{"role": "system", "content": system}, *checked]


def print_batch(llm: LLM, entries: list[BatchEntry], output: OutputFlags) -> None:
    """Generates all answers, prints them in the order of the prompts (as JSON, one object on each line), and
    keeps the runs. The exit code is 2 if one of them failed."""
    from glassloop.engine.generation import Interrupted, complete
    from glassloop.record.format.glass_file import write

    requests = []
    for entry in entries:
        with _errors_at(entry.where):
            sampling = with_defaults(entry.options, llm.default_sampling)
            if entry.messages is None:
                requests.append(llm.prepare(entry.prompt, sampling))
            else:
                check_chat(llm)
                requests.append(llm.prepare_chat(entry.messages, sampling))
    start, interrupted = time.monotonic(), False
    try:
        complete(llm.engine, requests, progress=None)
    except Interrupted:  # what was generated until then is printed and kept
        interrupted = True
    seconds = time.monotonic() - start
    ended = [request for request in requests if all(run.finish_reason for run in request.runs)]
    runs = [run for request in ended for run in request.runs]
    if output.json_output:
        for request in ended:
            print(json_text(with_samples(request.runs)))
    else:
        _print_texts(runs, output.show)
    if output.trace is not None:
        write(output.trace, runs)
    kept = output.store and keep(runs)
    for entry, request in zip(entries, requests, strict=True):
        for error in {str(run.error): None for run in request.runs if run.error is not None}:
            print(f"glassloop: {visible(f'{entry.where}: {error}', newlines=False)}", file=sys.stderr)
    if not output.json_output:
        print(wrapped(_statistics(llm, len(ended), runs, seconds, kept), sys.stderr), file=sys.stderr)
    if interrupted:
        raise typer.Exit(130)
    if any(run.error is not None for run in runs):
        raise typer.Exit(2)


def _print_texts(runs: list[Run], show: Show | None) -> None:
    with closing(Painter(show)) as painter:
        for number, run in enumerate(runs, start=1):
            print(f"── {number} of {len(runs)} ──")
            for token in run.tokens:
                painter.write(token)
            painter.end(run)


def _statistics(llm: LLM, prompts: int, runs: list[Run], seconds: float, kept: bool) -> str:
    tokens = sum(len(run.tokens) for run in runs)
    parts = [
        llm.name,
        f"{llm.ops} ops",
        f"{prompts} prompt{'' if prompts == 1 else 's'}",
        f"{tokens} tokens in {seconds:.1f} s",
        f"{tokens / seconds:.1f} tokens/s" if seconds else "",
        f"{len(runs)} run{'' if len(runs) == 1 else 's'} kept" if kept else "",
    ]
    return visible(" · ".join(part for part in parts if part), newlines=False)


def _text(name: str) -> str:
    if name == "-":
        return read_text("-")
    data = read_at_most(name, _LONGEST, TextError)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{name}: is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02X}"
        ) from None


def _object(text: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TextError(f"begins with '{{' and is not JSON: {error}") from None
    return values


@contextmanager
def _errors_at(where: str) -> Iterator[None]:
    """Puts the file and the line before the message of an error."""
    try:
        yield
    except GlassloopError as error:
        raise GlassloopError(f"{where}: {error}", field=error.field) from error
