"""`glassloop chat`: a conversation in the terminal; every token can be explained, forked and rewound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.generate import Shown
from glassloop.cli.help import INPUT
from glassloop.cli.options import (
    DEFAULT_MODEL,
    UPSTREAM_KEY,
    Colors,
    Keep,
    Model,
    ModelDefaults,
    Ops,
    Plugins,
    Upstream,
    UpstreamKey,
    given,
    load_plugins,
    takes_sampling,
)
from glassloop.cli.show import Painter
from glassloop.cli.terminal import Color, set_color

if TYPE_CHECKING:
    from glassloop.engine.language_model import LanguageModel

_MOST_TOKENS = 1024  # of an answer, by default


def chat(
    model: Model = DEFAULT_MODEL,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="The system message.", rich_help_panel=INPUT),
    ] = None,
    show: Shown = None,
    model_defaults: ModelDefaults = True,
    color: Colors = Color.AUTO,
    store: Keep = True,
    ops: Ops = None,
    plugin: Plugins = None,
    upstream: Upstream = None,
    upstream_key_env: UpstreamKey = UPSTREAM_KEY,
    **options: Any,
) -> None:
    """Chat with a model; /help lists the commands.

    Answers stop at 1024 tokens unless --max-tokens is given. In a pipe, each line of stdin is a message and
    the answers go to stdout.
    """
    from glassloop.cli.chat.conversation import Conversation
    from glassloop.cli.chat.loop import ChatSession
    from glassloop.cli.kept import load, load_upstream
    from glassloop.decode.defaults import with_defaults
    from glassloop.decode.sampling import Sampling
    from glassloop.record.store.store import default_path

    set_color(color)
    load_plugins(plugin)
    asked = {"max_tokens": _MOST_TOKENS, **given(options)}
    Conversation.check(Sampling.from_dict(asked))  # errors in the options come before the model is loaded
    history = default_path().parent / "chat_history" if store else None
    engine: LanguageModel
    if upstream is None:
        engine = load(model, ops, model_defaults=model_defaults)
    else:
        engine = load_upstream(upstream, model, upstream_key_env, ops=ops, plugin=plugin)
    with engine as llm:
        sampling = with_defaults(asked, llm.default_sampling)
        talking = ChatSession(Conversation(llm, sampling, system), Painter(show), store, history)
        talking.run()
    # On a terminal errors have been seen; in a pipe the exit code reports them.
    if talking.failed and not talking.interactive:
        raise typer.Exit(2)


takes_sampling(chat, unset=True)
