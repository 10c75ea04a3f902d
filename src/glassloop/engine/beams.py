"""Beam search: several branches of one request compete by the log-probability of all of their tokens.

Each step every beam proposes its likeliest tokens, after all stages, and the best of all proposals are the
next beams. One that ends (by a token, a stop string or its length) is kept aside and compared by its score:
log-probability divided by its length to the power of the length penalty. The branches share their pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from time import perf_counter
from typing import NamedTuple

from glassloop.decode.candidates import Candidates
from glassloop.decode.decoder import Decoder
from glassloop.decode.luck import Race
from glassloop.decode.stop import Ending, Stopper
from glassloop.engine.branch import Branch, BranchText
from glassloop.engine.request import Request
from glassloop.engine.task import Row
from glassloop.engine.tree import KVTree
from glassloop.errors import described
from glassloop.ops.quant import Float32
from glassloop.ops.rows import RowSummary
from glassloop.text.tokenizer import Tokenizer
from glassloop.trace.run import Beam
from glassloop.trace.token import Pieces, Token


class _Trail(NamedTuple):
    """The last token of a beam and what it came after: beams with a common past share it."""

    token: Token
    before: _Trail | None
    length: int
    number: int  # of its node in the record

    def tokens(self) -> list[Token]:
        made: list[Token] = []
        trail: _Trail | None = self
        while trail is not None:
            made.append(trail.token)
            trail = trail.before
        return made[::-1]


class _Live(NamedTuple):
    branch: Branch
    decoder: Decoder
    text: BranchText
    stopper: Stopper
    trail: _Trail | None
    logprob: float


class _Ended(NamedTuple):
    score: float
    tokens: list[Token]
    tail: str
    ending: Ending
    end: Token | None  # a token that ended it and is no part of the text
    number: int


class _Proposal(NamedTuple):
    logprob: float  # of the whole beam with this token
    beam: int
    id: int
    place: int  # among the beam's own
    logit: float


class Beams:
    """The task of a beam search. The scheduler computes all of its branches together."""

    program = None  # its rows are those of the forward pass
    masked = False
    decoder = None  # the beams are compared with each other

    def __init__(
        self,
        request: Request,
        order: tuple[int, int],
        decoder: Decoder,
        tokenizer: Tokenizer,
        pieces: Pieces,
        tree: KVTree,
    ) -> None:
        self.request = request
        self.order = order
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._tree = tree
        self._record: list[Beam] = []
        run = request.runs[0]
        self._sampling = run.sampling
        self._width = run.sampling.beam_width
        stopper = Stopper(run.sampling, tokenizer.eos_ids, run.context)
        branch = Branch(list(run.prompt_ids), len(run.prompt_ids), request.adapter)
        self._beams = [_Live(branch, decoder, BranchText(request.compiled), stopper, None, 0.0)]
        self._ended: list[_Ended] = []  # best first, at most as many as the search is wide
        self._first: float | None = None

    @property
    def branches(self) -> Sequence[Branch]:
        return [beam.branch for beam in self._beams]

    def guess(self, rows: int) -> list[int]:
        return []

    def runs_ahead(self, beside: int) -> bool:
        return False

    def preempted(self) -> None:
        for run in self.request.runs:
            run.timings.preempted += 1

    # ── a step ─────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, rows: Sequence[Row]) -> None:
        """Replaces the beams by the best continuations of all of them. There is a row for each beam."""
        self._first = self._first or perf_counter()
        seen = [beam.decoder.run_stages(row.logits) for beam, row in zip(self._beams, rows, strict=True)]
        proposals = [each for index, (_, left) in enumerate(seen) for each in self._proposals(index, left)]
        proposals.sort(key=lambda each: -each.logprob)  # equal ones stay in the order of beams and ids
        live: list[_Live] = []
        for place, proposal in enumerate(proposals[: 2 * self._width]):
            if len(live) == self._width:
                break
            beam, ending = self._grow(proposal, rows[proposal.beam].logits, *seen[proposal.beam])
            if ending is None:
                live.append(beam)
                continue
            if place < self._width:  # a beam that a full set of others beats does not count
                self._keep(beam, ending)
            beam.branch.leave(self._tree)
        self._replace(live)
        if not live or self._is_over():
            self.finish(None)

    def _proposals(self, index: int, left: Candidates) -> Iterator[_Proposal]:
        """Yields the likeliest tokens of one beam."""
        best = left.first(2 * self._width)
        so_far = self._beams[index].logprob - left.log_sum_exp
        pairs = zip(best.ids.tolist(), best.values.tolist(), strict=True)
        for place, (token, logit) in enumerate(pairs):
            yield _Proposal(so_far + logit, index, token, place, logit)

    def _grow(
        self, proposal: _Proposal, logits: Float32, summary: RowSummary, left: Candidates
    ) -> tuple[_Live, Ending | None]:
        """Returns a beam with one more token, and its ending if that was the last one."""
        parent = self._beams[proposal.beam]
        choice = Race(proposal.id, proposal.place, proposal.logit, 0.0, None, 0.0)
        chosen = parent.decoder.record_choice(logits, summary, left, choice)
        data = self._tokenizer.token_bytes(proposal.id)
        ending = Ending("stop", self._pieces(proposal.id)) if parent.stopper.before(proposal.id) else None
        branch, decoder = parent.branch.fork(self._tree), parent.decoder.fork()
        text, stopper = parent.text.fork(), copy(parent.stopper)
        seen = ""
        if ending is None or self._sampling.include_stop:
            decoder.commit(proposal.id, chosen)
            branch.tokens.append(proposal.id)
            branch.recorded += 1
            seen = text.feed(data)
            ending = ending or text.ending or stopper.after(decoder.history, self.request.seconds)
        token = Token(chosen, seen, data, self._pieces, "beam", self.request.seconds)
        before = parent.trail
        number = len(self._record)
        above = None if before is None else before.number
        self._record.append(Beam(number, above, proposal.id, proposal.logprob, "live"))
        trail = _Trail(token, before, 1 + (before.length if before else 0), number)
        return _Live(branch, decoder, text, stopper, trail, proposal.logprob), ending

    def _keep(self, beam: _Live, ending: Ending) -> None:
        """Adds a beam that has ended to the best of those."""
        assert beam.trail is not None
        tokens, number = beam.trail.tokens(), beam.trail.number
        end = tokens.pop() if beam.decoder.history.generated_length < len(tokens) else None
        self._ended.append(_Ended(self._score(beam), tokens, beam.text.flush(), ending, end, number))
        self._ended.sort(key=lambda each: -each.score)
        del self._ended[self._width :]
        self._record[number].fate = "finished"

    def _score(self, beam: _Live) -> float:
        assert beam.trail is not None
        return float(beam.logprob / beam.trail.length**self._sampling.length_penalty)

    def _replace(self, live: list[_Live]) -> None:
        """Makes these the beams. The previous ones that none of them continues are recorded as pruned."""
        parents = {beam.trail.before.number for beam in live if beam.trail and beam.trail.before}
        for beam in self._beams:
            beam.branch.leave(self._tree)
            if beam.trail is not None and beam.trail.number not in parents:
                self._record[beam.trail.number].fate = "pruned"
        self._beams = live

    def _is_over(self) -> bool:
        if len(self._ended) < self._width:
            return False
        if self._sampling.early_stopping:
            return True
        return max(self._score(beam) for beam in self._beams) <= self._ended[-1].score

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ended(self) -> bool:
        return self.request.ended

    def finish(self, ending: Ending | None) -> None:
        """Makes the best beams the request's runs: those that ended, then, if `ending` cuts the search short,
        those that were still live."""
        request, now = self.request, perf_counter()
        if ending is not None:
            for beam in self._beams:
                if beam.trail is not None:
                    self._keep(beam, ending)
        found = self._ended[: len(request.runs)]
        if found:  # a grammar may allow fewer texts than were asked for
            request.drop_runs(len(found))
        for run, best in zip(request.runs, found, strict=False):
            run.tokens, run.tail, run.end = best.tokens, best.tail, best.end
            run.finish_reason, run.stop_reason = best.ending.reason, best.ending.detail
            self._record[best.number].fate = "chosen"
        for run in request.runs:
            run.beams = self._record
            if run.finish_reason is None:
                assert ending is not None
                run.finish_reason, run.stop_reason = ending.reason, ending.detail
            first = self._first or now
            run.timings.prefill = first - (request.started or first)
            run.timings.decode = now - first
            for token in run.tokens:
                token.sample = run.sample
                request.tell(run, token)
            request.tell(run, None)

    def fail(self, error: Exception) -> None:
        for run in self.request.runs:
            run.error = error
        self.finish(Ending("error", described(error)))
