"""`glassloop fork`: continues a recorded run from one of its tokens, with another token, other options or new
luck. The old run stays as it is.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.generate import OneJson, Shown, Trace, print_runs
from glassloop.cli.kept import Name, Which
from glassloop.cli.options import (
    UPSTREAM_KEY,
    Colors,
    Draft,
    Keep,
    KVMemory,
    Ops,
    Plugins,
    RunModel,
    Upstream,
    UpstreamKey,
    given,
    load_plugins,
    takes_sampling,
)
from glassloop.cli.remote import ServerKey, ServerKeyFile, ServerURL, connect
from glassloop.cli.show import Painter, Show
from glassloop.cli.terminal import Color, print_json, print_notes, set_color, visible, working, wrapped
from glassloop.errors import GlassloopError, TextError

if TYPE_CHECKING:
    from glassloop.engine.language_model import LanguageModel
    from glassloop.record.run import Run

_WHERE = "Where to fork"


def fork(
    name: Name,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="N|TEXT",
            help="The token to replace: its number, from 0 (-1 is the last), or its text. The number after"
            " the last token continues the whole run.",
            show_default=False,
            rich_help_panel=_WHERE,
        ),
    ],
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TEXT",
            help="The token to use instead. It gets a space in front if the old token has one; in quotes"
            " (--token '\"text\"') it is used exactly.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="TEXT",
            help="The text to use instead, of any number of tokens.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    which: Which = "",
    model: RunModel = None,
    json_output: OneJson = False,
    trace: Trace = None,
    show: Shown = None,
    color: Colors = Color.AUTO,
    store: Keep = True,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    draft: Draft = None,
    plugin: Plugins = None,
    upstream: Upstream = None,
    upstream_key_env: UpstreamKey = UPSTREAM_KEY,
    server: ServerURL = None,
    api_key: ServerKey = None,
    api_key_file: ServerKeyFile = None,
    **options: Any,
) -> None:
    """Continue a recorded run from one of its tokens, and keep both runs.

    The fork has the options and the luck of the run, except for what is given. If nothing is given, it has
    new luck.
    """
    from glassloop.cli.kept import drafter, find_run, is_path, load, load_upstream, model_of
    from glassloop.cli.naming import find_place, forms, token_named
    from glassloop.decode.plugins import plugin_notes

    set_color(color)
    if token is not None and text is not None:
        raise GlassloopError("--token and --text are both given; at most one of them is expected")
    here: dict[str, object] = {
        "model": model,
        "ops": ops,
        "kv_memory": kv_memory,
        "draft": draft,
        "plugin": plugin,
    }
    unfit = {"upstream": upstream, "no_store": not store, "samples": options.get("n")}
    unfit |= {each: options.get(each) for each in ("adapter", "revise", "beam_width")}
    there = connect(server, api_key, api_key_file, **here, **unfit)
    load_plugins(plugin)
    overrides = {"n": 1, "beam_width": 1, **given(options)}
    run = find_run(name, which, there)
    pieces = [each.piece for each in run.tokens]
    place = find_place(at, pieces, "the run", "--at")
    if not 0 <= place <= len(pieces):
        raise GlassloopError(f"--at is {at}; a token from 0 to {len(pieces)} is expected")
    if there is not None:
        if is_path(name):
            raise GlassloopError(f"{name} is a file; a run of {there.url} is expected with --server")
        old_piece = pieces[place] if place < len(pieces) else ""
        with working(f"Forking on {there.url}"):
            names = [] if token is None else forms(token, old_piece)
            made = there.fork(run, place, names, text, given(options))
        _print_remote(made, there.url, json_output, trace, show)
        return
    llm: LanguageModel
    if upstream is None:
        llm = load(model or model_of(name, run), ops, kv_memory=kv_memory, draft=drafter(draft))
    else:
        unfit = {"ops": ops, "kv-memory": kv_memory, "draft": draft, "plugin": plugin}
        llm = load_upstream(upstream, model or run.model, upstream_key_env, **unfit)
    chosen: int | None = None
    old = pieces[place] if place < len(pieces) else ""
    if token is not None and upstream is not None:
        named = {each.text: each.id for each in run.tokens[place].alternatives} if old else {}
        chosen = next((named[form] for form in forms(token, old) if form in named), None)
        if chosen is None:
            raise TextError(f"--token is {token!r}, which was not named at this place; --text takes any text")
    elif token is not None:
        chosen = token_named(llm.tokenizer, token, old)
        if chosen is None:
            problem = f"--token is {token!r}; a single token of {llm.name} is expected"
            raise TextError(f"{problem}; --text takes any text")
    request = llm.prepare_fork(run, place, token=chosen, text=text, **overrides)
    print_notes(plugin_notes(run.plugins))
    print_runs(llm, request, json_output, trace, show, store)


takes_sampling(fork, prefix="Options of the fork", unset=True)


def _print_remote(run: Run, url: str, json_output: bool, trace: Path | None, show: Show | None) -> None:
    """Prints a fork that a server has made and keeps."""
    if trace is not None:
        run.save(trace)
    if json_output:
        print_json(run.to_dict())
        return
    with closing(Painter(show)) as painter:
        painter.begin("".join([token.text for token in run.tokens[: run.fork_at or 0]]))
        for token in run.tokens[run.fork_at or 0 :]:
            painter.write(token)
        painter.end(run)
    ended = f"ended by {run.finish_reason}" + (f" ({run.stop_reason!r})" if run.stop_reason else "")
    parts = (
        run.model,
        url,
        f"{len(run.tokens)} tokens",
        f"seed {run.seed}",
        f"run {run.id[:8]} there",
        ended,
    )
    print(wrapped(visible(" · ".join(parts), newlines=False), sys.stderr), file=sys.stderr)
