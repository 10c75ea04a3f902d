"""Keeps the contents of messages from becoming special tokens.

Only the template's own text may be a special token. Before a template runs, each text of a message that
spells a special token, or could be part of one together with the text around it, gets marks: characters that
no message contains. Afterwards the rendered text is cut at the marks, so that the two sides are never encoded
together. Texts that need no mark are left as they are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from glassloop.errors import TextError

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # Unicode keeps these free for uses like this one
_MARK = re.compile(f"[{_MARKS[0]}-{_MARKS[-1]}]")
# Keys, roles and types that templates compare with. They are never marked.
_NAMES = frozenset(
    (
        *("role", "content", "name", "type", "text", "tool_calls", "tool_call_id", "id", "arguments"),
        *("function", "description", "parameters", "properties", "required", "items", "enum", "strict"),
        *("system", "developer", "user", "assistant", "tool", "model"),
        *("object", "array", "string", "number", "integer", "boolean", "null"),
    )
)
_MOST_JOINED = 1 << 20


class Marks(NamedTuple):
    cut: str  # the texts before and after it are not encoded together
    quote: str  # the next character is text, and encoded alone


class Guard:
    """Marks special tokens in messages. `fold` is the tokenizer's normalizer, if it looks for special tokens
    in normalized text."""

    def __init__(self, specials: Collection[str], fold: Callable[[str], str] | None = None) -> None:
        folded = {fold(text) for text in specials} if fold else set()
        self._fold = fold
        self._specials = sorted({*specials, *folded} - {""})
        self._backwards = sorted(text[::-1] for text in self._specials)
        self._longest = max(map(len, self._specials), default=0)
        self._joined = "\0".join(self._specials)
        # Those that do not begin with another one. At most one of them begins at any place of a text: the
        # last in sorted order that is not greater than the rest of the text.
        self._shortest: list[str] = []
        for text in self._specials:
            if not self._shortest or not text.startswith(self._shortest[-1]):
                self._shortest.append(text)
        self._first, self._last = (_any_of({text[i] for text in self._specials}) for i in (0, -1))

    def protect(self, value: Any) -> tuple[Any, Marks]:
        """Returns messages or tools with marks where needed, and the marks."""
        used: set[str] = set()
        try:
            _collect(value, used)
            free = [mark for mark in _MARKS if mark not in used]
            if len(free) < 2:
                raise TextError.about("messages", "hold more than 30 of the noncharacters U+FDD0 to U+FDEF")
            marks = Marks(*free[:2])
            return self._walk(value, marks), marks
        except RecursionError:
            raise TextError("messages or tools are nested too deeply", field="messages") from None

    def first_place(self, text: str) -> int:
        """Returns where the first special token of a text begins; the text's length if there is none."""
        return next((place for place, _ in self._places(text)), len(text))

    def _walk(self, value: Any, marks: Marks) -> Any:
        if isinstance(value, str):
            return self._mark(value, marks)
        if isinstance(value, Mapping):
            return {
                key if key in _NAMES else self._walk(key, marks): self._item(key, item, marks)
                for key, item in value.items()
            }
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._walk(item, marks) for item in value]
        return value

    def _item(self, key: Any, item: Any, marks: Marks) -> Any:
        if key in ("role", "type") and isinstance(item, str):
            # Templates write special tokens around a role, as in "<|user|>".
            return item if item in _NAMES else self._mark(item, marks, part_of_one=True)
        return self._walk(item, marks)

    def _mark(self, text: str, marks: Marks, part_of_one: bool = False) -> str:
        """Returns the text with a cut in each special token that it spells, overlapping ones included, and
        at its ends where they could be part of one. With `part_of_one` all of it may be inside one."""
        if not text:
            return text
        if self._fold and self.first_place(text) == len(text):
            folded = self._fold(text)
            if self.first_place(folded) < len(folded):
                text = folded
        parts: list[str] = []
        done = 0
        for place, size in self._places(text):
            if size == 1:  # cannot be cut
                parts += (text[done:place], marks.quote)
                done = place
            else:
                parts += (text[done : place + 1], marks.cut)
                done = place + 1
        marked = "".join([*parts, text[done:]])
        if self._ends_one(text):
            marked = marks.cut + marked
        if self._begins_one(text) or (not part_of_one and self._is_inside_one(text)):
            marked += marks.cut
        return marked

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields each place where a special token begins, with the size of the shortest one."""
        for match in self._first.finditer(text):
            rest = text[match.start() : match.start() + self._longest]
            index = bisect_right(self._shortest, rest) - 1
            if index >= 0 and rest.startswith(self._shortest[index]):
                yield match.start(), len(self._shortest[index])

    def _begins_one(self, text: str) -> bool:
        """Returns whether a suffix of the text begins a special token."""
        candidates = self._first.finditer(text, max(0, len(text) - self._longest + 1))
        return any(_continues(text[match.start() :], self._specials) for match in candidates)

    def _ends_one(self, text: str) -> bool:
        """Returns whether a prefix of the text ends a special token."""
        candidates = self._last.finditer(text, 0, max(0, self._longest - 1))
        return any(_continues(text[: match.end()][::-1], self._backwards) for match in candidates)

    def _is_inside_one(self, text: str) -> bool:
        # With very many special tokens every short text is assumed to be inside one: a cut does no harm.
        short = len(text) < self._longest
        return short and (len(self._joined) > _MOST_JOINED or text in self._joined)


def _continues(beginning: str, ordered: list[str]) -> bool:
    """Returns whether one of the sorted texts begins with `beginning` and is longer."""
    index = bisect_right(ordered, beginning)
    return index < len(ordered) and ordered[index].startswith(beginning)


def _any_of(characters: set[str]) -> re.Pattern[str]:
    return re.compile(f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else "(?!)")


def _collect(value: Any, used: set[str]) -> None:
    if isinstance(value, str):
        if not value.isascii():
            used.update(_MARK.findall(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(key, used)
            _collect(item, used)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            _collect(item, used)
