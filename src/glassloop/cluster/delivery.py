"""What a replica tells becomes the record of a run: tokens, the records of the prompt, the end."""

from __future__ import annotations

from glassloop.cluster.messages import End, TokenData
from glassloop.decode.chosen import Chosen
from glassloop.trace.run import Run
from glassloop.trace.token import Pieces, Token


class Delivery:
    """Makes the tokens of runs. `pieces` returns the text of a token by itself."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def token(self, data: TokenData, run: Run) -> Token:
        return made_token(data, self._pieces, run.sample)

    def prompt(self, records: list[TokenData], runs: list[Run], first: Run) -> None:
        """Gives the records of the prompt to all runs that have none."""
        made = [self.token(each, first) for each in records]
        for run in runs:
            run.prompt_tokens = run.prompt_tokens or made

    def finish(self, run: Run, end: End) -> None:
        run.tail, run.error, run.beams = end.tail, end.error, end.beams
        run.end = None if end.token is None else self.token(end.token, run)
        run.finish_reason, run.stop_reason = end.reason, end.detail


def made_token(data: TokenData, pieces: Pieces, sample: int) -> Token:
    """Returns a token from the form in which it is sent."""
    chosen = Chosen(data.record)
    return Token(chosen, data.text, data.bytes, pieces, data.source, data.seconds, sample, data.refused)
