"""`glassloop chat`: a conversation in the terminal whose every token can be asked about, and taken back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from glassloop.cli.options import DEFAULT_MODEL, Model, given, takes_sampling
from glassloop.cli.show import Painter, Show

_MOST_TOKENS = 1024  # of an answer, if nothing is said


def chat(
    model: Model = DEFAULT_MODEL,
    system: Annotated[
        str | None, typer.Option("--system", help="What the model is told before all else.")
    ] = None,
    show: Annotated[
        Show | None, typer.Option("--show", help="On a terminal, colour the answers by this.")
    ] = None,
    store: Annotated[
        bool,
        typer.Option("--store/--no-store", help="Keep the answers for explain, replay and runs."),
    ] = True,
    **options: Any,
) -> None:
    """Talk with a model; /help in it shows what can be asked. Answers have up to 1024 tokens if not told.

    In a pipe each line of stdin is a message, and the answers are on stdout.
    """
    from glassloop.cli.chat.conversation import Conversation
    from glassloop.cli.chat.loop import Chat
    from glassloop.cli.kept import load
    from glassloop.decode.sampling import Sampling
    from glassloop.trace.store import default_path

    sampling = Sampling.from_dict({"max_tokens": _MOST_TOKENS, **given(options)})
    Conversation.check(sampling)
    history = default_path().parent / "chat_history" if store else None
    with load(model) as llm:
        talking = Chat(Conversation(llm, sampling, system), Painter(show), store, history)
        talking.run()
    # A person has seen what went wrong; whoever reads a pipe is told at the end.
    if talking.failed and not talking.interactive:
        raise typer.Exit(2)


takes_sampling(chat, unset=True)
