"""The tables of `glassloop runs worst` and of `/worst` in a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassloop.cli.terminal import percent, print_table, quoted
from glassloop.cli.tokens import luck_text, surprise_text

if TYPE_CHECKING:
    from glassloop.trace.token import Token

MOST_SHOWN = 5  # tokens in each table, by default
_SAME = ("id", "logprob", "raw_logprob", "rank", "rank_after", "luck", "source")


def worst_to_dict(tokens: Sequence[Token], count: int) -> dict[str, list[dict[str, Any]]]:
    """Returns the tokens that surprised the model most and those that won by the most luck, for JSON."""
    from glassloop.trace.worst import luckiest, most_surprising

    return {
        "surprising": [_plain(place, tokens[place]) for place in most_surprising(tokens, count)],
        "lucky": [_plain(place, tokens[place]) for place in luckiest(tokens, count)],
    }


def print_worst(tokens: Sequence[Token], count: int) -> None:
    """Prints both tables."""
    from glassloop.trace.worst import luckiest, most_surprising

    print("The most surprising tokens: the model itself found them least likely.\n")
    _print(tokens, most_surprising(tokens, count))
    lucky = luckiest(tokens, count)
    if lucky:
        print("\nThe luckiest tokens: others were more likely after the stages, and luck decided.\n")
        _print(tokens, lucky)
    else:
        print("\nNo token won by luck.")


def _print(tokens: Sequence[Token], places: Sequence[int]) -> None:
    rows = [
        (
            str(place),
            quoted(tokens[place].piece),
            percent(tokens[place].raw_logprob),
            percent(tokens[place].logprob),
            surprise_text(tokens[place]),
            str(tokens[place].rank or "?"),
            luck_text(tokens[place]),
        )
        for place in places
    ]
    header = ("step", "token", "model", "after stages", "surprise", "rank", "luck")
    right = ("step", "model", "after stages", "surprise", "rank", "luck")
    print_table(header, rows, right=right, cut=("token",))


def _plain(place: int, token: Token) -> dict[str, Any]:
    from glassloop.trace.worst import surprise_bits

    plain = token.to_dict()
    same = {name: plain[name] for name in _SAME}
    return {"step": place, "piece": token.piece, "surprise_bits": surprise_bits(token)} | same
