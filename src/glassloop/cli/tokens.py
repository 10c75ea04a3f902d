"""The numbers of tokens as tables of the terminal show them: surprise in bits, entropy in nats, as it is
recorded."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from glassloop.cli.terminal import percent, print_table, quoted
from glassloop.util.plain_text import number

if TYPE_CHECKING:
    from glassloop.record.run import Run
    from glassloop.record.token import Token


def surprise_text(token: Token) -> str:
    from glassloop.record.worst import surprise_bits  # it imports NumPy, which `--help` does without

    bits = surprise_bits(token)
    return "–" if bits is None else f"{max(bits, 0.0):.1f} bits"


def entropy_text(token: Token) -> str:
    return f"{token.entropy:.2f} nats" if token.entropy == token.entropy else "?"


def print_tokens(run: Run) -> None:
    """Prints a row for each token of a run. A beam search has no luck: the score of the beam up to each token
    is shown instead."""
    from glassloop.cli.beams import beam_logprobs

    scores = beam_logprobs(run)
    rows = []
    for at, token in enumerate([*run.tokens, *([run.end] if run.end else [])]):
        if scores:
            reason = [f"{scores[at]:.2f}" if at < len(scores) else ""]
        else:
            reason = [luck_text(token), "–" if token.margin == inf else number(token.margin, ".2f")]
        probabilities = percent(token.raw_logprob), percent(token.logprob), str(token.rank or "?")
        rows.append(
            (str(at), quoted(token.piece), *probabilities, entropy_text(token), *reason, token.source)
        )
    last = ("beam logprob",) if scores else ("luck", "margin")
    numbers = ("model", "after stages", "rank", "entropy", *last)
    print_table(("step", "token", *numbers, "source"), rows, right=("step", *numbers), cut=("token",))


def luck_text(token: Token) -> str:
    """Returns the luck of a token; a token of a beam search has none."""
    return "–" if token.source == "beam" else number(token.luck, "+.2f")
