"""`glassloop chat`: a conversation in the terminal; every token can be explained, forked and rewound."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from glassloop.cli.flags import Only, takes_flags
from glassloop.cli.help import INPUT
from glassloop.cli.options import DEFAULT_MODEL, EngineFlags, Model, OutputFlags
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.show import Painter
from glassloop.cli.terminal import set_color

_MOST_TOKENS = 1024  # of an answer, by default


@takes_flags(unset=True)
def chat(
    *,
    model: Model = DEFAULT_MODEL,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="The system message.", rich_help_panel=INPUT),
    ] = None,
    engine: Annotated[EngineFlags, Only("model_defaults", "ops", "plugin", "upstream", "upstream_key_env")],
    output: Annotated[OutputFlags, Only("show", "color", "store")],
    **options: Any,
) -> None:
    """Chat with a model; /help lists the commands.

    Answers stop at 1024 tokens unless --max-tokens is given. In a pipe, each line of stdin is a message and
    the answers go to stdout.
    """
    from glassloop.cli.chat.conversation import Conversation
    from glassloop.cli.chat.loop import run_chat
    from glassloop.cli.chat.session import ChatSession
    from glassloop.decode.defaults import with_defaults
    from glassloop.decode.sampling import Sampling
    from glassloop.record.store.store import default_path

    set_color(output.color)
    engine.load_plugins()
    overrides = {"max_tokens": _MOST_TOKENS, **sampling_options(options)}
    Conversation.check(Sampling.from_dict(overrides))  # errors in the options come before the model is loaded
    history = default_path().parent / "chat_history" if output.store else None
    with engine.open(model) as llm:
        sampling = with_defaults(overrides, llm.default_sampling)
        conversation = Conversation(llm, sampling, system)
        session = ChatSession(conversation, Painter(output.show), output.store)
        run_chat(session, history)
    # On a terminal errors have been seen; in a pipe the exit code reports them.
    if session.failed and not session.interactive:
        raise typer.Exit(2)
