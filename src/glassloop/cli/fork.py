"""`glassloop fork`: continues a recorded run from one of its tokens, with another token, other options or new
luck. The old run stays as it is.
"""

from __future__ import annotations

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
from glassloop.cli.terminal import Color, print_notes, set_color
from glassloop.errors import GlassloopError, TextError

if TYPE_CHECKING:
    from glassloop.cli.kept import AnyEngine

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
    **options: Any,
) -> None:
    """Continue a recorded run from one of its tokens, and keep both runs.

    The fork has the options and the luck of the run, except for what is given. If nothing is given, it has
    new luck.
    """
    from glassloop.cli.kept import drafter, find_run, load, load_upstream, model_of
    from glassloop.cli.naming import find_place, forms, token_named
    from glassloop.decode.plugins import plugin_notes

    set_color(color)
    if token is not None and text is not None:
        raise GlassloopError("--token and --text are both given; at most one of them is expected")
    load_plugins(plugin)
    overrides = {"n": 1, "beam_width": 1, **given(options)}
    run = find_run(name, which)
    pieces = [each.piece for each in run.tokens]
    place = find_place(at, pieces, "the run", "--at")
    if not 0 <= place <= len(pieces):
        raise GlassloopError(f"--at is {at}; a token from 0 to {len(pieces)} is expected")
    llm: AnyEngine
    if upstream is None:
        llm = load(model or model_of(name, run), ops, kv_memory=kv_memory, draft=drafter(draft))
    else:
        here = {"ops": ops, "kv-memory": kv_memory, "draft": draft, "plugin": plugin}
        llm = load_upstream(upstream, model or run.model, upstream_key_env, **here)
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
