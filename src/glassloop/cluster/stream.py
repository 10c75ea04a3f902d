"""A stream: the runs of a request that one job computes on some replica, with what has been delivered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from glassloop.cluster.messages import Facts, Identity, Job, News, Route, RunSoFar
from glassloop.engine.branch import BranchText
from glassloop.engine.request import Request
from glassloop.trace.run import Run

_NO_FACTS = Facts(0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0)


class Stream:
    """Runs of a request that one job computes. `kept` has how many tokens each run had when its request came:
    those of the parent of a fork."""

    def __init__(
        self, request: Request, runs: list[Run], identity: Identity, kept: Mapping[Run, int]
    ) -> None:
        self.request = request
        self.runs = runs
        self.identity = identity
        self.key = ""
        self.task: asyncio.Task[None] | None = None
        self.replica: str | None = None  # that has the job, if it is known
        self.since = time.monotonic()  # when the job was sent, or a replica was last there for it
        self.moved: tuple[str, str, float] | None = None  # from which replica, why and when, until it goes on
        self.cancelled = False
        self.waiting: list[News] = []  # of a beam search, which is delivered as a whole
        self._kept = kept
        self._before: dict[Run, Facts] = {}  # what earlier attempts have counted
        self._facts: dict[Run, Facts] = {}  # what this attempt has counted

    @property
    def is_beam(self) -> bool:
        return self.request.sampling.beam_width > 1

    @property
    def ended(self) -> bool:
        return all(run.finish_reason is not None for run in self.runs)

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
                RunSoFar(run.seed, run.salt, run.sample, run.sampling, tuple(run.token_ids))
                for run in self.runs
            ),
            forced=tuple(request.forced[delivered:]),
            scored=bool(first.prompt_tokens),
            drafts=request.drafts,
            priority=request.priority,
            elapsed=request.seconds,
            route=Route(ids, identity=self.identity, key=self.key),
        )

    def continued(self) -> list[Stream]:
        """Returns the streams that continue the runs that have not ended."""
        made = []
        for group in self._groups():
            stream = Stream(self.request, group, self.identity, self._kept)
            stream.since = self.since
            for run in group:
                stream._before[run] = _sum(self._before.get(run, _NO_FACTS), self._facts.get(run, _NO_FACTS))
            made.append(stream)
        return made

    def count(self, run: Run, facts: Facts) -> None:
        """Adds the counts of this attempt to those of earlier ones."""
        self._facts[run] = facts
        before = self._before.get(run)
        total = facts if before is None else _sum(before, facts)
        timings, drafts = run.timings, run.drafts
        run.cached_tokens, timings.queue, timings.prefill = total.cached_tokens, total.queue, total.prefill
        timings.decode, timings.preempted = total.decode, total.preempted
        drafts.proposed, drafts.accepted, drafts.seconds = total[5:]

    def held_back(self, run: Run) -> str:
        """Returns the text of a run that no token has shown yet: an unfinished character, a possible stop
        string."""
        text = BranchText(self.request.compiled)
        for token in run.tokens:
            text.feed(token.bytes)
        return text.flush()

    def _groups(self) -> list[list[Run]]:
        """Returns the runs that have not ended, those together that one job can continue: it has one list of
        forced tokens, and computes the records of the prompt for all or for none."""
        if self.is_beam:
            return [self.runs]
        groups: dict[int, list[Run]] = {}
        most = len(self.request.forced)
        for run in self.runs:
            if run.finish_reason is None:
                groups.setdefault(min(most, len(run.tokens) - self._kept[run]), []).append(run)
        return list(groups.values())


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
