"""The loop of a chat: reads a message and prints the answer, until the end of the input."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.cli.chat.commands import run_command
from glassloop.cli.chat.drawing import ending
from glassloop.cli.chat.lines import Lines
from glassloop.cli.options import sampling_words
from glassloop.cli.show import Painter
from glassloop.cli.terminal import dim, no_echo, visible, wrapped
from glassloop.errors import GlassloopError
from glassloop.util.plain_text import known

if TYPE_CHECKING:
    from glassloop.cli.chat.conversation import Conversation, Turn
    from glassloop.decode.sampling import Sampling
    from glassloop.engine.request import Request
    from glassloop.record.run import Run


class ChatSession:
    """A chat on stdin and stdout."""

    def __init__(self, talk: Conversation, painter: Painter, store: bool, history: Path | None) -> None:
        self.talk = talk
        self.over = False
        self.failed = False
        self._painter = painter
        self._store = store
        self._lines = Lines("› ", history)
        self._terminal = sys.stdout.isatty()

    @property
    def interactive(self) -> bool:
        return self._lines.interactive

    def run(self) -> None:
        if self.interactive:
            self.note(f"{self.talk.llm.name} · /help lists the commands, Ctrl-D ends")
        try:
            while not self.over:
                self._turn()
        finally:
            self._lines.close()

    def _turn(self) -> None:
        try:
            message = self._lines.message()
            if message is None:
                self.over = True
                if self.interactive:
                    print(file=sys.stderr)
            elif message.startswith("/") and not message.startswith("//"):
                run_command(self, message)
            elif message.strip():
                question = message.removeprefix("/")
                self.answer(question, self.talk.ask(question))
            if not self.over:
                self._gap()
        except GlassloopError as error:
            print(f"glassloop: {visible(str(error))}", file=sys.stderr)
            self.failed = True
            self._gap()
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            print("\r", file=sys.stderr)
            self.note("Ctrl-D or /quit ends the chat")

    def answer(self, question: str, request: Request, beside: Turn | None = None) -> None:
        """Prints an answer while it is generated, and adds it. Ctrl-C stops it; the text so far is kept."""
        run, stopped = request.runs[0], False
        if run.tokens:
            self._painter.begin("".join([token.text for token in run.tokens]))
        try:
            answer = self.talk.llm.follow(request, settled=True)
            with no_echo(), closing(answer) as tokens:  # type: ignore[type-var]
                for token in tokens:
                    self._painter.write(token)
        except KeyboardInterrupt:
            stopped = True
        finally:
            run = request.runs[0]  # another one, if tokens were taken back
            if run.tokens or stopped:
                self._painter.end(run)
        if not run.tokens:
            return self.note("stopped before the first token; the question is not kept")
        self.talk.add(question, run, beside)
        kept = self.keep(run)
        self.note(_statistics(run, self.talk.llm.default_sampling, kept))
        if stopped and not self.interactive:
            raise KeyboardInterrupt
        return None

    def keep(self, run: Run) -> bool:
        from glassloop.cli.kept import keep

        return self._store and keep([run])

    def note(self, text: str) -> None:
        print(dim(wrapped(visible(text), sys.stderr), sys.stderr), file=sys.stderr)

    def _gap(self) -> None:
        if self.interactive and self._terminal:
            print()


def _statistics(run: Run, defaults: Sampling, kept: bool) -> str:
    usage, speed = run.usage, run.timings.tokens_per_second(len(run.tokens) - (run.fork_at or 0))
    parts = [
        ending(run),
        f"{known(usage.prompt_tokens)} + {known(usage.completion_tokens)} tokens",
        f"{known(usage.cached_tokens)} cached",
        f"{speed:.1f} tokens/s" if speed else "",
        sampling_words(run.sampling, defaults),
        f"run {run.id[:8]}" if kept else f"seed {run.seed}",  # a run that is kept has its seed
    ]
    return " · ".join(part for part in parts if part)
