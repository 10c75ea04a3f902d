"""Keeps what people write in a conversation from spelling special tokens.

Only the template's own text may be a special token. Before a template runs, every text of a message that
spells one is broken by a mark inside it, one that nobody else uses; afterwards the rendered text is cut at
the marks, so that the two halves are never encoded together. Texts that spell none are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from glassloop.errors import TextError

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # Unicode keeps these free for uses like this one
_NOT_TEXT = ("role", "type")  # keys whose values are names that the server or the template knows


class Guard:
    def __init__(self, specials: Collection[str], find: Callable[[str], list[int]]) -> None:
        """`find` tells where in a text the tokenizer sees special tokens begin."""
        self._find = find
        self._starts = {text[:2] for text in specials}
        self._beginnings = {text[:size] for text in specials for size in range(1, len(text))}
        self._longest = max(map(len, specials), default=0)

    def protect(self, value: Any) -> tuple[Any, str]:
        """Messages, or tools, with marks where they are needed; and the mark."""
        used: set[str] = set()
        _collect(value, used)
        free = [mark for mark in _MARKS if mark not in used]
        if not free:
            raise TextError("messages hold all 32 noncharacters from U+FDD0 on; fewer are expected")
        return self._walk(value, free[0]), free[0]

    def _walk(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self._break(value, mark)
        if isinstance(value, Mapping):
            return {
                self._walk(key, mark): item if key in _NOT_TEXT else self._walk(item, mark)
                for key, item in value.items()
            }
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._walk(item, mark) for item in value]
        return value

    def _break(self, text: str, mark: str) -> str:
        if any(start in text for start in self._starts):
            # Breaking one may leave another that overlapped with it.
            while places := self._find(text):
                for place in reversed(places):
                    text = text[: place + 1] + mark + text[place + 1 :]
        # What begins a special token at the end of a text must not be completed by what comes after it.
        tail = range(1, min(self._longest, len(text) + 1))
        return text + mark if any(text[-size:] in self._beginnings for size in tail) else text


def _collect(value: Any, used: set[str]) -> None:
    if isinstance(value, str):
        used.update(mark for mark in _MARKS if mark in value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(key, used)
            _collect(item, used)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            _collect(item, used)
