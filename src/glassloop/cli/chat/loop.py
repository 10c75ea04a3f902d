"""The loop of a chat: reads a message and prints the answer, until the end of the input."""

from __future__ import annotations

import sys
from pathlib import Path

from glassloop.cli.chat.commands import run_command
from glassloop.cli.chat.lines import Lines
from glassloop.cli.chat.session import ChatSession
from glassloop.cli.terminal import visible
from glassloop.errors import GlassloopError


def run_chat(session: ChatSession, history: Path | None) -> None:
    """Answers messages and runs commands until the chat is over. `history` is the file of earlier lines."""
    lines = Lines("› ", history)
    if session.interactive:
        session.note(f"{session.talk.llm.name} · /help lists the commands, Ctrl-D ends")
    try:
        while not session.over:
            _turn(session, lines)
    finally:
        lines.close()


def _turn(session: ChatSession, lines: Lines) -> None:
    try:
        message = lines.message()
        if message is None:
            session.over = True
            if session.interactive:
                print(file=sys.stderr)
        elif message.startswith("/") and not message.startswith("//"):
            run_command(session, message)
        elif message.strip():
            question = message.removeprefix("/")
            session.answer(question, session.talk.ask(question))
        if not session.over:
            _print_gap(session)
    except GlassloopError as error:
        print(f"glassloop: {visible(str(error))}", file=sys.stderr)
        session.failed = True
        _print_gap(session)
    except KeyboardInterrupt:
        if not session.interactive:
            raise
        print("\r", file=sys.stderr)
        session.note("Ctrl-D or /quit ends the chat")


def _print_gap(session: ChatSession) -> None:
    if session.interactive and sys.stdout.isatty():
        print()
