"""The tables of `glassloop runs worst` and of `/worst` in a chat."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassloop.cli.terminal import percent, print_table, quoted, visible, wrapped
from glassloop.cli.tokens import luck_text, surprise_text

if TYPE_CHECKING:
    from glassloop.record.token import Token

MOST_SHOWN = 5  # tokens in each table, by default
_SAME = ("id", "logprob", "raw_logprob", "rank", "rank_after", "luck", "source")


def worst_to_dict(tokens: Sequence[Token], count: int) -> dict[str, Any]:
    """Returns the tokens that surprised the model most, those that won by the most luck, and the first
    unlikely one, for JSON."""
    from glassloop.record.worst import first_unlikely, luckiest, most_surprising

    first = first_unlikely(tokens)
    return {
        "surprising": [_plain(tokens, place) for place in most_surprising(tokens, count)],
        "lucky": [_plain(tokens, place) for place in luckiest(tokens, count)],
        "first_unlikely": None if first is None else _plain(tokens, first),
    }


def print_worst(tokens: Sequence[Token], count: int) -> None:
    """Prints both tables, and where the text first left what is likely."""
    from glassloop.record.worst import around, first_unlikely, luckiest, most_surprising

    print("The most surprising tokens: the model itself found them least likely.\n")
    _print(tokens, most_surprising(tokens, count))
    lucky = luckiest(tokens, count)
    if lucky:
        print("\nThe luckiest tokens: others were more likely after the stages, and luck decided.\n")
        _print(tokens, lucky)
    else:
        print("\nNo token won by luck.")
    first = first_unlikely(tokens)
    if first is None:
        print("\nNo token has a probability below 1 %.")
        return
    token = tokens[first]
    where = f"token {first}, the first one below 1 %, with {percent(token.raw_logprob)}"
    rank = f" (rank {token.rank})" if token.rank else ""
    print("\n" + wrapped(visible(f"The text first left the rails at {where}{rank}:", newlines=False)))
    print("  " + visible(_in_text(around(tokens, first), token), newlines=False))


def _in_text(near: tuple[str, str], token: Token) -> str:
    """Returns a token with the words around it."""
    before, after = near
    piece = quoted(token.piece)
    if sys.stdout.isatty():  # where a table wraps it
        piece = piece.replace(" ", "\u00a0")
    return f"{before.rstrip()} {piece}{after}".strip()


def _print(tokens: Sequence[Token], places: Sequence[int]) -> None:
    from glassloop.record.worst import around

    rows = [
        (
            str(place),
            visible(_in_text(around(tokens, place), tokens[place]), newlines=False),
            percent(tokens[place].raw_logprob),
            percent(tokens[place].logprob),
            surprise_text(tokens[place]),
            str(tokens[place].rank or "?"),
            luck_text(tokens[place]),
        )
        for place in places
    ]
    header = ("step", "in the text", "model", "after stages", "surprise", "rank", "luck")
    right = ("step", "model", "after stages", "surprise", "rank", "luck")
    print_table(header, rows, right=right, fold=("in the text",))


def _plain(tokens: Sequence[Token], place: int) -> dict[str, Any]:
    from glassloop.record.worst import around, surprise_bits

    token, (before, after) = tokens[place], around(tokens, place)
    plain = token.to_dict()
    same = {name: plain[name] for name in _SAME}
    place_in_text = {"step": place, "piece": token.piece, "before": before, "after": after}
    return place_in_text | {"surprise_bits": surprise_bits(token)} | same
