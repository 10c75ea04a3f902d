"""Child processes that threads share: each child serves one thread at a time and is kept for the next.

All work that may hang is done through a pool: chat templates, regular expressions and trials of grammars. A
caller has its child alone, so it alone decides how long to wait for an answer, and a child that fails a
caller is ended and replaced.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any, Generic, TypeVar

from glassloop.util.child import Child

Job = TypeVar("Job", bound=Hashable)
_POOLS: weakref.WeakSet[ChildPool[Any]] = weakref.WeakSet()


class ChildPool(Generic[Job]):
    """At most `most` children. Each is started by `start(job)` and serves this job alone, such as one chat
    template; at most `most_per_job` callers of one job are served at a time, so that a slow job leaves
    children to others. Callers that have to wait are served in the order in which they came."""

    def __init__(self, start: Callable[[Job], Child], most: int, most_per_job: int | None = None) -> None:
        self._start = start
        self._most = most
        self._most_per_job = most_per_job or most
        self._forget()
        _POOLS.add(self)

    def _forget(self) -> None:
        """Begins with nothing. In a fork of the process, the children are the parent's and the lock may be
        held by a thread that does not exist here."""
        self._changed = Condition()
        self._queue: list[_Place[Job]] = []  # callers that wait
        self._busy: Counter[Job] = Counter()  # callers that have a child, by job
        self._idle: list[Child] = []  # idle longest first
        self.children: dict[Child, Job] = {}  # that have been started and not ended

    @contextmanager
    def lend(self, job: Job, seconds: float | None = None) -> Iterator[Child]:
        """Lends a child that serves this job. It is ended if its user raises an exception. Raises what
        `start` raises, and `TimeoutError` if there is no place within this many seconds."""
        child = self._take(job, seconds)
        try:
            if child is None:
                child = self._start(job)
                self.children[child] = job
            yield child
        except BaseException:
            if child is not None:
                self._end(child)
            self._give_back(job, None)
            raise
        self._give_back(job, child)

    def _take(self, job: Job, seconds: float | None) -> Child | None:
        """Takes a place and returns an idle child of this job, or None if the caller is to start one."""
        surplus = None
        place = _Place(job)
        with self._changed:
            self._queue.append(place)
            try:
                if not self._changed.wait_for(lambda: place is self._next(), seconds):
                    raise TimeoutError
                self._busy[job] += 1
            finally:
                self._queue.remove(place)
                self._changed.notify_all()
            child = next((each for each in reversed(self._idle) if self.children[each] == job), None)
            if child is not None:
                self._idle.remove(child)
            elif self._idle and len(self._idle) + self._busy.total() > self._most:
                surplus = self._idle.pop(0)
        if surplus is not None:
            self._end(surplus)
        if child is not None and not child.alive():  # it was killed
            self._end(child)
            return None
        return child

    def _next(self) -> _Place[Job] | None:
        """Returns the caller that may go on now: the first whose job has not its most callers already."""
        if self._busy.total() >= self._most:
            return None
        return next((place for place in self._queue if self._busy[place.job] < self._most_per_job), None)

    def _give_back(self, job: Job, child: Child | None) -> None:
        with self._changed:
            self._busy -= Counter([job])  # which drops a count of zero
            if child is not None:
                self._idle.append(child)
            self._changed.notify_all()

    def _end(self, child: Child) -> None:
        self.children.pop(child, None)
        child.end()

    def close(self) -> None:
        """Ends all children. Those in use fail their callers."""
        self._idle.clear()
        for child in list(self.children):
            self._end(child)


class _Place(Generic[Job]):
    """A caller that waits for a child."""

    def __init__(self, job: Job) -> None:
        self.job = job


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool._forget()


os.register_at_fork(after_in_child=_forget_all)
