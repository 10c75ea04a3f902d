"""`partial_json`: what can be read of a JSON text that was cut off, wherever that was."""

from __future__ import annotations

import json
import re
from typing import Any

from glassloop.errors import TextError

_DEEPEST = 200
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][+-]?\d*)?)?")
_WORDS = {"true": True, "false": False, "null": None}


_NOTHING = object()  # not even the beginning of a value can be read


def partial_json(text: str) -> Any:
    """The value of a JSON text, or of its beginning.

    A cut-off text or list keeps what it has; an object loses a key whose value has not begun; a number or
    word that the cut may have shortened is left out. Nothing at all is None. What is not the beginning of a
    JSON text is an error.
    """
    value, _ = _Reader(text).document()
    return None if value is _NOTHING else value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.depth = 0

    def document(self) -> tuple[Any, bool]:
        """The value, and whether the text is whole."""
        value, whole = self.value()
        if whole:
            self.skip()
            if self.place < len(self.text):
                raise self.wrong()
        return value, whole

    def value(self) -> tuple[Any, bool]:
        self.skip()
        if self.at_end:
            return _NOTHING, False
        first = self.text[self.place]
        if first in "{[":
            self.depth += 1
            if self.depth > _DEEPEST:
                raise TextError(f"the JSON text is more than {_DEEPEST} levels deep")
            result = self.object() if first == "{" else self.list()
            self.depth -= 1
            return result
        if first == '"':
            return self.string()
        if first == "-" or first.isdigit():
            return self.number()
        return self.word()

    def object(self) -> tuple[dict[str, Any], bool]:
        made: dict[str, Any] = {}
        self.place += 1
        self.skip()
        if self.take("}"):
            return made, True
        while True:
            self.skip()
            if self.at_end:
                return made, False
            if self.text[self.place] != '"':
                raise self.wrong()
            key, whole = self.string()
            self.skip()
            if not whole or self.at_end:
                return made, False
            self.need(":")
            value, whole = self.value()
            if value is not _NOTHING:
                made[key] = value
            self.skip()
            if not whole or self.at_end:
                return made, False
            if self.take("}"):
                return made, True
            self.need(",")

    def list(self) -> tuple[list[Any], bool]:
        made: list[Any] = []
        self.place += 1
        self.skip()
        if self.take("]"):
            return made, True
        while True:
            value, whole = self.value()
            if value is not _NOTHING:
                made.append(value)
            self.skip()
            if not whole or self.at_end:
                return made, False
            if self.take("]"):
                return made, True
            self.need(",")

    def string(self) -> tuple[str, bool]:
        match = _STRING.match(self.text, self.place)
        assert match is not None
        self.place = match.end()
        body = match.group()[1:]
        if self.take('"'):
            return json.loads(f'"{body}"'), True
        rest = self.text[self.place :]
        # The text may end in the middle of an escape, and of no other thing.
        if rest and not re.fullmatch(r"\\(?:u[0-9a-fA-F]{0,3})?", rest):
            raise self.wrong()
        self.place = len(self.text)
        half = re.search(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$", body)  # half of a pair
        return json.loads(f'"{body[: half.start(1)] if half else body}"'), False

    def number(self) -> tuple[Any, bool]:
        begun = _NUMBER_BEGUN.match(self.text, self.place)
        if begun is not None and begun.end() == len(self.text):
            self.place = len(self.text)
            return _NOTHING if self.depth or not _NUMBER.fullmatch(begun.group()) else json.loads(
                begun.group()
            ), False
        match = _NUMBER.match(self.text, self.place)
        if match is None:
            raise self.wrong()
        self.place = match.end()
        return json.loads(match.group()), True

    def word(self) -> tuple[Any, bool]:
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.place):
                self.place += len(word)
                return value, True
            if word.startswith(self.text[self.place :]):
                self.place = len(self.text)
                return _NOTHING, False
        raise self.wrong()

    @property
    def at_end(self) -> bool:
        return self.place == len(self.text)

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.place)
        self.place = match.end() if match else self.place

    def take(self, character: str) -> bool:
        found = self.text.startswith(character, self.place)
        self.place += found
        return found

    def need(self, character: str) -> None:
        if not self.take(character):
            raise self.wrong()

    def wrong(self) -> TextError:
        found = ascii(self.text[self.place])
        return TextError(f"character {self.place} of the JSON text is {found}, which no JSON has there")
