"""The state of a chat: the conversation, how answers are printed and kept, and whether it is over."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from glassloop.cli.chat.drawing import ending
from glassloop.cli.sampling_text import sampling_words
from glassloop.cli.show import Painter
from glassloop.cli.stored_runs import keep
from glassloop.cli.terminal import dim, no_echo, visible, wrapped
from glassloop.util.plain_text import known

if TYPE_CHECKING:
    from glassloop.cli.chat.conversation import Conversation, Turn
    from glassloop.decode.sampling import Sampling
    from glassloop.engine.request import Request
    from glassloop.record.run import Run


class ChatSession:
    """A chat on stdin and stdout."""

    def __init__(self, talk: Conversation, painter: Painter, store: bool) -> None:
        self.talk = talk
        self.over = False
        self.failed = False
        self.interactive = sys.stdin.isatty()
        self._painter = painter
        self._store = store

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
        return self._store and keep([run])

    def note(self, text: str) -> None:
        print(dim(wrapped(visible(text), sys.stderr), sys.stderr), file=sys.stderr)


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
