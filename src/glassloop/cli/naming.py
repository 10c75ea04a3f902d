"""Names of tokens, as `explain --step`, `fork` and the commands of a chat take them: the number of a token in
its run, or its text. In quotes a text is used exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.text.tokenizer import Tokenizer


def number_in(name: str) -> int | None:
    """Returns the number that a name is, or None if the name is a text."""
    return int(name) if re.fullmatch(r"-?[0-9]{1,9}", name) else None


def place_of(name: str, pieces: Sequence[str]) -> int | None:
    """Returns the place of the first token with this text, or None. A token with exactly this text is
    preferred to one that has other spaces around it."""
    bare, _ = unquoted(name)
    for same in (bare.__eq__, lambda piece: piece.strip() == bare.strip()):
        for number, piece in enumerate(pieces):
            if same(piece):
                return number
    return None


def find_place(name: str, pieces: Sequence[str], of: str, option: str) -> int:
    """Returns the place that a name stands for: a number, where negative ones count from the end, or the
    place of the first token with this text. Numbers may be out of range. `of` and `option` are for the
    message of the error."""
    number = number_in(name)
    if number is not None:
        return number + len(pieces) if number < 0 else number
    place = place_of(name, pieces)
    if place is None:
        raise GlassloopError(
            f"{option} is {name!r}, but no token of {of} has this text; the number or the text of a token is"
            " expected"
        )
    return place


def token_named(tokenizer: Tokenizer, name: str, old: str) -> int | None:
    """Returns the token that a text names as the replacement of another token, or None if it is not a single
    token. Special tokens cannot be named."""
    for form in forms(name, old):
        token_id = tokenizer.id_of(form)
        if token_id is not None and token_id not in tokenizer.special_ids:
            return token_id
    return None


def forms(name: str, old: str) -> list[str]:
    """Returns the texts that a name may stand for, the preferred one first. Without quotes, it gets a space
    in front if the token that it replaces has one."""
    bare, quoted = unquoted(name)
    return [f" {bare}", bare] if not quoted and old.startswith(" ") else [bare]


def unquoted(name: str) -> tuple[str, bool]:
    """Returns a text without its quotes, and whether it had any."""
    quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "\"'"
    return name[1:-1] if quoted else name, quoted
