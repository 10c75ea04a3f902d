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
from glassloop.decode.luck import Race
from glassloop.decode.stop import PAUSED, Ending
from glassloop.engine.branch import Branch
from glassloop.engine.request import Request
from glassloop.engine.tasks.context import TaskContext
from glassloop.engine.tasks.run_writer import BranchWriter
from glassloop.engine.tasks.task import Task, WantedRow
from glassloop.errors import described
from glassloop.ops.quant import Float32
from glassloop.ops.rows import RowSummary
from glassloop.record.run import Beam, text_held_back
from glassloop.record.token import Token


class _Trail(NamedTuple):
    """The last token of a beam and what it came after: beams with a common past share it."""

    token: Token
    before: _Trail | None
    length: int
    number: int  # of its node in the record

    def tokens(self) -> list[Token]:
        backwards: list[Token] = []
        trail: _Trail | None = self
        while trail is not None:
            backwards.append(trail.token)
            trail = trail.before
        return backwards[::-1]


class _Live(NamedTuple):
    branch: Branch
    writer: BranchWriter
    trail: _Trail | None
    logprob: float


class _Grown(NamedTuple):
    """A beam with one more token, before it has a branch and a node in the record."""

    parent: _Live
    writer: BranchWriter
    token: Token
    logprob: float
    ending: Ending | None  # None: it goes on
    counts: bool  # whether it is kept if it has ended: a beam that a full set of others beats is not


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


class Beams(Task):
    """The task of a beam search. The scheduler computes all of its branches together."""

    request: Request

    def __init__(self, request: Request, order: tuple[int, int], context: TaskContext) -> None:
        self.request = request
        self.order = order
        self._tree = context.tree
        self._record: list[Beam] = []
        run = request.runs[0]
        self._sampling = run.sampling
        self._width = run.sampling.beam_width
        writer = BranchWriter.of(request, run, context)
        scored = 1 if run.sampling.prompt_logprobs and not run.prompt_tokens else len(run.prompt_ids)
        for other in request.runs[1:]:
            other.prompt_tokens = run.prompt_tokens  # they share the records of the prompt
        branch = Branch(list(run.prompt_ids), scored, request.adapter, request.realm)
        self._beams = [_Live(branch, writer, None, 0.0)]
        self._ended: list[_Ended] = []  # best first, at most as many as the search is wide
        self._first: float | None = None  # when the first tokens were taken

    @property
    def branches(self) -> Sequence[Branch]:  # type: ignore[override]
        return [beam.branch for beam in self._beams]

    def preempted(self) -> None:
        for run in self.request.runs:
            run.timings.preempted += 1

    # ── a step ─────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, rows: Sequence[WantedRow]) -> None:
        """Takes a row for each beam; before the search, the rows of the prompt whose tokens are scored."""
        branch = self._beams[0].branch
        unscored = len(branch.tokens) - branch.recorded  # above 0 only before the search
        for row in rows[:unscored]:
            self._score_prompt(branch, row.logits)
        if len(rows) > unscored:
            self._step(rows[unscored:])

    def _score_prompt(self, branch: Branch, logits: Float32) -> None:
        """Records a token of the prompt."""
        token, (beam,) = branch.tokens[branch.recorded], self._beams
        scored = beam.writer.score_prompt(logits, token, self.request.seconds)
        self.request.runs[0].prompt_tokens.append(scored)
        branch.recorded += 1

    def _step(self, rows: Sequence[WantedRow]) -> None:
        """Replaces the beams by the best continuations of all of them. There is a row for each beam."""
        self._first = self._first or perf_counter()
        seconds = self.request.seconds  # one time for all beams: a time limit ends all or none
        by_beam = [
            beam.writer.decoder.run_stages(row.logits) for beam, row in zip(self._beams, rows, strict=True)
        ]
        proposals = [each for index, (_, left) in enumerate(by_beam) for each in self._proposals(index, left)]
        proposals.sort(key=lambda each: -each.logprob)  # equal ones stay in the order of beams and ids
        grown: list[_Grown] = []
        live = 0
        for place, proposal in enumerate(proposals[: 2 * self._width]):
            if live == self._width:
                break
            counts, logits = place < self._width, rows[proposal.beam].logits
            grown.append(self._grow(proposal, counts, seconds, logits, *by_beam[proposal.beam]))
            live += grown[-1].ending is None
        self._replace(grown)  # nothing was changed so far: a stage or a grammar may have raised
        if not self._beams or self._is_over():
            self.finish(None)
        elif self.request.pause is not None and self._length >= self.request.pause.tokens:
            self.finish(PAUSED)

    @property
    def _length(self) -> int:
        """The number of steps so far, which is the number of tokens of each live beam."""
        trail = self._beams[0].trail
        return 0 if trail is None else trail.length

    def _proposals(self, index: int, left: Candidates) -> Iterator[_Proposal]:
        """Yields the likeliest tokens of one beam."""
        best = left.first(2 * self._width)
        so_far = self._beams[index].logprob - left.log_sum_exp
        pairs = zip(best.ids.tolist(), best.values.tolist(), strict=True)
        for place, (token, logit) in enumerate(pairs):
            yield _Proposal(so_far + logit, index, token, place, logit)

    def _grow(
        self,
        proposal: _Proposal,
        counts: bool,
        seconds: float,
        logits: Float32,
        summary: RowSummary,
        left: Candidates,
    ) -> _Grown:
        """Returns a beam with one more token. It holds no pages yet, so that an error loses none."""
        parent = self._beams[proposal.beam]
        choice = Race(proposal.id, proposal.place, proposal.logit, 0.0, None, 0.0)
        chosen = parent.writer.decoder.record_choice(logits, summary, left, choice)
        writer = parent.writer.fork()
        token, ending, _ = writer.take(chosen, "beam", seconds)
        return _Grown(parent, writer, token, proposal.logprob, ending, counts)

    def _replace(self, grown: Sequence[_Grown]) -> None:
        """Records beams with one more token and makes those that go on the beams. The previous ones that none
        of them continues are recorded as pruned."""
        live: list[_Live] = []
        parents = set[int]()
        for each in grown:
            before, number = each.parent.trail, len(self._record)
            above = None if before is None else before.number
            self._record.append(Beam(number, above, each.token.id, each.logprob, "live"))
            trail = _Trail(each.token, before, 1 + (before.length if before else 0), number)
            if each.ending is None:
                branch = each.parent.branch.fork(self._tree)
                branch.tokens.append(each.token.id)
                branch.recorded += 1
                live.append(_Live(branch, each.writer, trail, each.logprob))
                parents.update(() if above is None else (above,))
            elif each.counts:
                self._keep(trail, each.writer, each.logprob, each.ending)
        for beam in self._beams:
            beam.branch.leave(self._tree)
            if beam.trail is not None and beam.trail.number not in parents:
                self._record[beam.trail.number].fate = "pruned"
        self._beams = live

    def _keep(self, trail: _Trail, writer: BranchWriter, logprob: float, ending: Ending) -> None:
        """Adds a finished beam to the finished ones and keeps the best `beam_width`."""
        tokens, number = trail.tokens(), trail.number
        end = tokens.pop() if writer.decoder.history.generated_length < len(tokens) else None
        score = self._score(logprob, trail)
        self._ended.append(_Ended(score, tokens, writer.text.flush(), ending, end, number))
        self._ended.sort(key=lambda each: -each.score)
        del self._ended[self._width :]
        self._record[number].fate = "finished"

    def _score(self, logprob: float, trail: _Trail | None) -> float:
        assert trail is not None
        return float(logprob / trail.length**self._sampling.length_penalty)

    def _is_over(self) -> bool:
        if len(self._ended) < self._width:
            return False
        if self._sampling.early_stopping:
            return True
        return max(self._score(beam.logprob, beam.trail) for beam in self._beams) <= self._ended[-1].score

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, ending: Ending | None) -> None:
        """Makes the best beams the request's runs: those that ended and, if `ending` cuts the search short,
        those that were still live. Then all of them end by that: a longer search may have found others. All
        runs are complete before the listener is told of any."""
        if self.ended:
            return
        request = self.request
        if ending is not None:
            for beam in self._beams:
                if beam.trail is not None:
                    self._keep(beam.trail, beam.writer, beam.logprob, ending)
        for run, best in zip(request.runs, self._ended, strict=False):
            run.tokens = [_of_sample(token, run.sample) for token in best.tokens]
            run.end = None if best.end is None else _of_sample(best.end, run.sample)
            run.tail = best.tail if ending is None else text_held_back(best.tokens)
            self._record[best.number].fate = "chosen"
        first, now = self._first or perf_counter(), perf_counter()
        for place, run in enumerate(request.runs):
            run.beams = self._record
            run.timings.prefill = first - (request.started or first)
            run.timings.decode = now - first
            if ending is not None or place < len(self._ended):
                run.finish_reason, run.stop_reason = ending or self._ended[place].ending
        self.ended = True
        if ending is None:  # the search is complete, and a grammar may allow fewer texts than were asked for
            request.drop_runs(len(self._ended))
        for run in request.runs:
            for token in run.tokens:
                request.tell(run, token)
            request.tell(run, None)

    def fail(self, error: Exception) -> None:
        if not self.ended:
            for run in self.request.runs:
                run.error = error
        self.finish(Ending("error", described(error)))


def _of_sample(token: Token, sample: int) -> Token:
    """Returns a copy of a token, which beams share, for one of the results."""
    twin = copy(token)
    twin.sample = sample
    return twin
