"""`glassloop chat`: a conversation in the terminal; every token can be explained, forked and rewound."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from glassloop.cli.options import DEFAULT_MODEL, Colors, Keep, Model, Ops, given, takes_sampling
from glassloop.cli.show import Painter, Show
from glassloop.cli.terminal import Color, set_color

_MOST_TOKENS = 1024  # of an answer, by default


def chat(
    model: Model = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    show: Annotated[
        Show | None,
        typer.Option(
            "--show", help="What to show of the answers' tokens, on a terminal or with --color always."
        ),
    ] = None,
    color: Colors = Color.AUTO,
    store: Keep = True,
    ops: Ops = None,
    **options: Any,
) -> None:
    """Chat with a model; /help lists the commands.

    An answer has up to 1024 tokens by default. In a pipe each line of stdin is a message, and the answers are
    on stdout.
    """
    from glassloop.cli.chat.conversation import Conversation
    from glassloop.cli.chat.loop import Chat
    from glassloop.cli.kept import load
    from glassloop.decode.sampling import Sampling
    from glassloop.trace.store import default_path

    set_color(color)
    sampling = Sampling.from_dict({"max_tokens": _MOST_TOKENS, **given(options)})
    Conversation.check(sampling)
    history = default_path().parent / "chat_history" if store else None
    with load(model, ops) as llm:
        talking = Chat(Conversation(llm, sampling, system), Painter(show), store, history)
        talking.run()
    # On a terminal errors have been seen; in a pipe the exit code reports them.
    if talking.failed and not talking.interactive:
        raise typer.Exit(2)


takes_sampling(chat, unset=True)
