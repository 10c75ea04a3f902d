"""The value of a JSON text that is still being generated, or that was cut off."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from glassloop.errors import TextError

_NUMBER_AT_END = re.compile(r"-?\d[\d.eE+-]*$")
_ESCAPE = re.compile(r"\\.", re.DOTALL)


def partial_json(text: str) -> Any:
    """Returns the value of a JSON text, or of as much of it as is there.

    A string or list that was cut off keeps what it has. A key without a value, and a number or word that may
    have been shortened, are left out. Returns None if no value has begun. Raises `TextError` if the text is
    not the beginning of any JSON text.
    """
    from pydantic_core import from_json

    try:
        return from_json(text, allow_inf_nan=False)
    except (TypeError, ValueError) as error:  # TypeError: the text contains a lone surrogate
        if "EOF while parsing" not in str(error):
            raise TextError(f"this is not the beginning of a JSON text: {error}") from None
    in_string = _ESCAPE.sub("", text).count('"') % 2 == 1
    try:
        whole = text if in_string else _NUMBER_AT_END.sub("", text)
        return from_json(whole, allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:  # not even the first value can be read
        return None


def stream_json(pieces: Iterable[str]) -> Iterator[Any]:
    """Yields the value of a JSON text that arrives in pieces, whenever there is more of it:
    `for value in stream_json(token.text for token in llm.stream(prompt, sampling))`."""
    text, last = "", None
    for piece in pieces:
        text += piece
        value = partial_json(text)
        if value != last:
            yield value
        last = value
