"""What the terminal shows of prompts: titles in lists, and conversations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from glassloop.cli.run_model import prompt_text, tokenizer_of
from glassloop.cli.terminal import visible
from glassloop.errors import TraceError
from glassloop.record.messages import NO_TEXT, text_of, title_of_ids, title_of_text

if TYPE_CHECKING:
    from glassloop.record.run import Run
    from glassloop.record.store.entry import RunEntry
    from glassloop.record.store.store import Store
    from glassloop.text.tokenizer import Tokenizer


def title_of(name: str, run: Run) -> str:
    """Returns the title of a run, which was found by this name."""
    return run.known_title or title_of_text(prompt_text(name, run)) or NO_TEXT


class Titles:
    """The titles of stored runs. Prompts that an older version stored as token ids are decoded if the
    tokenizer of their model is on this machine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokenizers: dict[str, Tokenizer | None] = {}

    def of(self, entry: RunEntry) -> str:
        if entry.title is not None:
            return entry.title
        if entry.prompt is not None:
            return title_of_text(entry.prompt) or NO_TEXT
        try:
            run = self._store.run(entry.id)
        except TraceError:  # a damaged row must not hide the others
            run = None
        if run is None or run.known_title is not None:
            return NO_TEXT if run is None else run.title
        if run.model not in self._tokenizers:
            self._tokenizers[run.model] = tokenizer_of(run.id, run)
        tokenizer = self._tokenizers[run.model]
        if tokenizer is None or max(run.prompt_ids) >= tokenizer.vocab_size:
            return run.title
        return title_of_ids(tokenizer, run.prompt_ids) or run.title


def print_conversation(run: Run) -> None:
    """Prints the messages of a chat and the answer, each after its role."""
    for message in run.messages or ():
        _print_message(message)
    _print_message({"role": "assistant", "content": run.text})
    print()


def _print_message(message: dict[str, Any]) -> None:
    parts = [text_of(message)] if text_of(message) else []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        parts.append(f"(calls {json.dumps(function, ensure_ascii=False)})")
    role = visible(message["role"], newlines=False)
    print(f"{role}: " + visible("\n".join(parts)))
