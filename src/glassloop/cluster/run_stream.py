"""A stream: the runs of a request that one job computes on some replica, with what has been delivered; and
`Delivery`, which turns messages of a replica into the record of a run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from glassloop.cluster.messages import (
    End,
    Facts,
    Job,
    MaskFilling,
    Needs,
    News,
    Revision,
    Route,
    RunSoFar,
    TokenData,
)
from glassloop.decode.chain import needs_record
from glassloop.decode.chosen import Chosen
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.branch import BranchText
from glassloop.engine.branching import revised
from glassloop.engine.request import Request
from glassloop.engine.tasks.revise import place_to_take_back, salt_after, settled
from glassloop.record.run import Run, TakenBack
from glassloop.record.token import Pieces, Token

_NO_FACTS = Facts(0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0)


class Stream:
    """Runs of a request that one job computes. `kept` has how many tokens each run had when its request came:
    those of the parent of a fork."""

    def __init__(self, request: Request, runs: list[Run], needs: Needs, kept: dict[Run, int]) -> None:
        self.request = request
        self.runs = runs
        self.needs = needs
        self.key = ""
        self.task: asyncio.Task[None] | None = None
        self.replica: str | None = None  # that has the job, if it is known
        self.since = time.monotonic()  # when the job was sent, or a replica was last there for it
        self.moved: tuple[str, str, float] | None = None  # from which replica, why and when, until it goes on
        self.cancelled = False
        self.ending: asyncio.Task[None] | None = None  # waits for the texts of a cancelled beam search
        self.deaths = 0  # replicas that have died with it since it was last told of
        self.over: set[Run] = set()  # runs whose end this stream has told
        self.waiting: list[News] = []  # of a beam search, which is delivered as a whole
        self._heard: Counter[Run] = Counter()  # tokens that this attempt has told, if it began anew
        self._kept = kept
        self._before: dict[Run, Facts] = {}  # what earlier attempts have counted
        self._facts: dict[Run, Facts] = {}  # what this attempt has counted

    @property
    def space(self) -> str:
        """What keys and values depend on beside the tokens, as in `Route.space`."""
        return Route(needs=self.needs, realm=self.request.realm).space

    @property
    def is_beam(self) -> bool:
        return self.request.sampling.beam_width > 1

    @property
    def by_masks(self) -> bool:
        """Whether the texts are written by diffusion. Every attempt begins them anew: how a block was filled
        so far is not sent."""
        return isinstance(self.request, DiffusionRequest)

    def without_told(self, news: News) -> News:
        """Returns news without the tokens and passes that an earlier attempt has told, if this one began
        anew."""
        if not self.by_masks:
            return news
        run, record = self.runs[news.run], news.pass_record
        told_tokens = len(run.tokens) - self._heard[run]
        self._heard[run] += len(news.tokens)
        if record is not None and record.number < len(run.passes):
            record = None
        return news._replace(tokens=news.tokens[max(0, told_tokens) :], pass_record=record)

    @property
    def open_runs(self) -> list[Run]:
        """The runs that have not ended. One that has may be continued by another stream already."""
        return [run for run in self.runs if run.finish_reason is None and run not in self.over]

    @property
    def ended(self) -> bool:
        return not self.open_runs

    def job(self, session: str) -> Job:
        """Returns the job that continues the runs from the tokens that have been delivered."""
        request, first = self.request, self.runs[0]
        delivered = len(first.tokens) - self._kept[first]
        ids = (*first.prompt_ids, *first.token_ids, *request.forced[delivered:])
        return Job(
            key=self.key,
            session=session,
            prompt_ids=tuple(request.prompt_ids),
            sampling=request.sampling,
            runs=tuple(
                RunSoFar(
                    run.seed,
                    run.salt,
                    run.sample,
                    run.sampling,
                    () if self.by_masks else tuple(run.token_ids),
                    _revision(run),
                    run.id,
                    _records(run),
                )
                for run in self.runs
            ),
            forced=tuple(request.forced[delivered:]),
            scored=len(first.prompt_tokens) >= len(first.prompt_ids) - 1,
            pause=request.pause,
            drafts=request.drafts,
            priority=request.priority,
            elapsed=request.seconds,
            owner=request.owner,
            realm=request.realm,
            masks=_mask_filling(request),
            route=Route(ids, needs=self.needs, key=self.key, realm=request.realm),
        )

    def continued(self) -> list[Stream]:
        """Returns the streams that continue the runs that have not ended."""
        streams = []
        for group in self._groups():
            stream = Stream(self.request, group, self.needs, self._kept)
            stream.since, stream.deaths = self.since, self.deaths
            for run in group:
                stream._before[run] = _sum(self._before.get(run, _NO_FACTS), self._facts.get(run, _NO_FACTS))
            streams.append(stream)
        return streams

    def count(self, run: Run, facts: Facts) -> None:
        """Adds the counts of this attempt to those of earlier ones."""
        self._facts[run] = facts
        before = self._before.get(run)
        total = facts if before is None else _sum(before, facts)
        set_facts(run, total)

    def take_back_due(self) -> list[tuple[Run, TakenBack]]:
        """Applies the revisions that the dead replica had decided on but not reported. Returns the runs that
        they have ended, with their events."""
        revised = []
        for run in self.open_runs:
            at = place_to_take_back(run, settled(run))
            if at is not None:
                revised.append((run, self.take_back(run, at, salt_after(run, at))))
        return revised

    def take_back(self, run: Run, to: int, salt: int, id: str | None = None) -> TakenBack:
        """Ends a run whose last tokens are taken back. Another one with the first `to` of them, which has
        this id on the replica, continues in its place; the event that tells of it is returned."""
        following = revised(run, to, salt)
        following.id = id or following.id
        run.tail = held_back(self.request, run)
        run.finish_reason, run.stop_reason = "cancelled", f"taken back to token {to}"
        runs = self.request.runs
        runs[runs.index(run)] = following
        following.samples = runs
        self.runs[self.runs.index(run)] = following
        self._kept[following] = self._kept[run]
        if run in self._before:
            self._before[following] = self._before[run]
        return TakenBack(run.tokens[to], following, to, len(run.tokens) - to)

    def _groups(self) -> list[list[Run]]:
        """Returns the runs that have not ended, those together that one job can continue: it has one list of
        forced tokens, and computes the records of the prompt for all or for none."""
        if self.is_beam:
            return [self.runs]
        groups: dict[int, list[Run]] = {}
        most = len(self.request.forced)
        for run in self.open_runs:
            groups.setdefault(min(most, len(run.tokens) - self._kept[run]), []).append(run)
        return list(groups.values())


def _mask_filling(request: Request) -> MaskFilling | None:
    if not isinstance(request, DiffusionRequest):
        return None
    return MaskFilling(request.options, request.mask.sha256)


def _revision(run: Run) -> Revision | None:
    if not run.sampling.revise:
        return None
    tokens = [TokenData.of(token) for token in run.tokens]
    return Revision(tokens, run.fork_at, run.revised, dict(run.forks))


def _records(run: Run) -> tuple[bytes, ...]:
    return tuple(token.chosen.data for token in run.tokens) if needs_record(run.sampling) else ()


def _sum(before: Facts, after: Facts) -> Facts:
    """Returns the counts of two attempts. The times until the first token are those of the first one."""
    return Facts(
        before.cached_tokens,
        before.queue or after.queue,
        before.prefill or after.prefill,
        before.decode + after.decode,
        before.preempted + after.preempted,
        before.proposed + after.proposed,
        before.accepted + after.accepted,
        before.draft_seconds + after.draft_seconds,
    )


# ── messages of a replica ──────────────────────────────────────────────────────────────────────────────────


class Delivery:
    """Makes the tokens of runs. `pieces` returns the text of a token by itself."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def token(self, data: TokenData, run: Run) -> Token:
        return made_token(data, self._pieces, run.sample)

    def prompt(self, records: list[TokenData], runs: list[Run], first: Run) -> None:
        """Gives the records of the prompt to all runs that have none, or not all of them."""
        tokens = [self.token(data, first) for data in records]
        for run in runs:
            run.prompt_tokens = max(run.prompt_tokens, tokens, key=len)

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
