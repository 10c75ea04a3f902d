"""A stream: the runs of a request that one job computes on some replica, with what has been delivered."""

from __future__ import annotations

import asyncio
import time

from glassloop.cluster.delivery import held_back, set_facts
from glassloop.cluster.messages import Facts, Job, Needs, News, Revision, Route, RunSoFar, TokenData
from glassloop.decode.chain import needs_record
from glassloop.engine.branching import revised
from glassloop.engine.request import Request
from glassloop.engine.tasks.revise import place_to_take_back, salt_after, settled
from glassloop.record.run import Run
from glassloop.record.token import TakenBack

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
                    tuple(run.token_ids),
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
            route=Route(ids, needs=self.needs, key=self.key, realm=request.realm),
        )

    def continued(self) -> list[Stream]:
        """Returns the streams that continue the runs that have not ended."""
        made = []
        for group in self._groups():
            stream = Stream(self.request, group, self.needs, self._kept)
            stream.since, stream.deaths = self.since, self.deaths
            for run in group:
                stream._before[run] = _sum(self._before.get(run, _NO_FACTS), self._facts.get(run, _NO_FACTS))
            made.append(stream)
        return made

    def count(self, run: Run, facts: Facts) -> None:
        """Adds the counts of this attempt to those of earlier ones."""
        self._facts[run] = facts
        before = self._before.get(run)
        total = facts if before is None else _sum(before, facts)
        set_facts(run, total)

    def take_back_due(self) -> list[tuple[Run, TakenBack]]:
        """Takes back what the replica would have taken back after the tokens that it has told, if it died
        before it could tell that. Returns the runs that have ended by it, with their events."""
        made = []
        for run in self.open_runs:
            at = place_to_take_back(run, settled(run))
            if at is not None:
                made.append((run, self.take_back(run, at, salt_after(run, at))))
        return made

    def take_back(self, run: Run, to: int, salt: int, id: str | None = None) -> TakenBack:
        """Ends a run whose last tokens are taken back. Another one with the first `to` of them, which has
        this id on the replica, continues in its place; the event that tells of it is returned."""
        made = revised(run, to, salt)
        made.id = id or made.id
        run.tail = held_back(self.request, run)
        run.finish_reason, run.stop_reason = "cancelled", f"taken back to token {to}"
        runs = self.request.runs
        runs[runs.index(run)] = made
        made.samples = runs
        self.runs[self.runs.index(run)] = made
        self._kept[made] = self._kept[run]
        if run in self._before:
            self._before[made] = self._before[run]
        return TakenBack(run.tokens[to], made, to, len(run.tokens) - to)

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
