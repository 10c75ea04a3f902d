"""Delivery: messages of a replica become the record of a run: tokens, the records of the prompt, the end."""

from __future__ import annotations

from glassloop.cluster.messages import End, Facts, TokenData
from glassloop.decode.chosen import Chosen
from glassloop.engine.branch import BranchText
from glassloop.engine.request import Request
from glassloop.record.run import Run
from glassloop.record.token import Pieces, Token


class Delivery:
    """Makes the tokens of runs. `pieces` returns the text of a token by itself."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def token(self, data: TokenData, run: Run) -> Token:
        return made_token(data, self._pieces, run.sample)

    def prompt(self, records: list[TokenData], runs: list[Run], first: Run) -> None:
        """Gives the records of the prompt to all runs that have none, or not all of them."""
        made = [self.token(each, first) for each in records]
        for run in runs:
            run.prompt_tokens = max(run.prompt_tokens, made, key=len)

    def finish(self, run: Run, end: End) -> None:
        run.tail, run.error, run.beams = end.tail, end.error, end.beams
        run.end = None if end.token is None else self.token(end.token, run)
        run.finish_reason, run.stop_reason = end.reason, end.detail


def made_token(data: TokenData, pieces: Pieces, sample: int) -> Token:
    """Returns a token from the form in which it is sent."""
    chosen = Chosen(data.record)
    return Token(chosen, data.text, data.bytes, pieces, data.source, data.seconds, sample, data.refused)


def set_facts(run: Run, facts: Facts) -> None:
    """Writes what has been counted for a run into its record."""
    timings, drafts = run.timings, run.drafts
    run.cached_tokens, timings.queue, timings.prefill = facts.cached_tokens, facts.queue, facts.prefill
    timings.decode, timings.preempted = facts.decode, facts.preempted
    drafts.proposed, drafts.accepted, drafts.seconds = facts[5:]


def held_back(request: Request, run: Run) -> str:
    """Returns the text of a run that no token has shown yet: an unfinished character, a possible stop
    string."""
    text = BranchText(request.compiled)
    for token in run.tokens:
        text.feed(token.bytes, may_stop=False)
    return text.flush()
