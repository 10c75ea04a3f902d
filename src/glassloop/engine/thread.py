"""The engine's thread: it owns the loop, and all other threads hand their requests to it."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from glassloop.engine.garbage import Garbage
from glassloop.engine.loop import Loop
from glassloop.engine.protocol import Statistics
from glassloop.engine.request import Request
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.tasks.task import Asker
from glassloop.errors import GlassloopError, contained
from glassloop.ops.batch import PAGE
from glassloop.record.run import Run

_LOG = logging.getLogger(__name__)
_IDLE = 1.0  # seconds without work, after which the KV tree is checked


class Busy(GlassloopError):
    """A request was refused because too many wait already."""


class Load(NamedTuple):
    waiting: int
    running: int


class EngineThread:
    """The engine of a model in this process: an `Engine` that also computes readings."""

    def __init__(self, loop: Loop, most_waiting: int) -> None:
        self.loop = loop
        self.most_waiting = most_waiting
        self._door = threading.Condition()
        self._jobs: deque[Callable[[], object]] = deque()
        self._open = 0  # requests that were accepted and have not come to the loop yet
        self._closing = False
        self._thread: threading.Thread | None = None
        self._garbage = Garbage()

    @property
    def most_running(self) -> int:
        return self.loop.scheduler.most_running

    def submit(self, request: Request | Reading, may_refuse: bool = True) -> None:
        """Queues a request. Its listener, or the thread that waits for the reading, is told of the rest."""
        with self._door:
            self._check_open()
            waiting = self.load.waiting
            if may_refuse and waiting >= self.most_waiting:
                raise Busy(f"{waiting} requests are waiting already; at most {self.most_waiting} are allowed")
            self._open += 1
            self._post(lambda: self._admit(request))

    def cancel(self, request: Asker, wait: bool = False, run: Run | None = None) -> None:
        """Ends a request, or one run of it, after the step that is under way. A closed engine has ended it
        already. The engine's own thread cannot wait for that, and does not."""
        with self._door:
            if self._closing:
                return
            self._post(lambda: self.loop.cancel(request, run))
        if wait and not self._is_current:
            self.call(lambda: None)

    @property
    def _is_current(self) -> bool:
        return self._thread is threading.current_thread()

    @property
    def closed(self) -> bool:
        return self._closing

    def check_may_wait(self) -> None:
        """Raises on the engine's own thread, on which a call that waits for the engine would wait for
        ever."""
        if self._is_current:
            raise GlassloopError(
                "a call that waits for the engine was made on the engine's thread, by a listener, on_pass or"
                " a stage; it is expected on another thread"
            )

    def call(self, job: Callable[[], None]) -> None:
        """Runs a job between two steps, on the engine's thread, and waits for it."""
        self.check_may_wait()
        done = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                job()
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        with self._door:
            self._check_open()
            self._post(run)
        done.wait()
        if failed:
            raise failed[0]

    def after_step(self, job: Callable[[], object]) -> None:
        """Runs a job on the engine's thread after the step that is under way, and does not wait for it. For
        listeners: the engine has let go of a run that has ended only then, so that it can be continued."""
        with self._door:
            self._post(job)

    @property
    def load(self) -> Load:
        """The number of requests that wait, with no task that runs, and the number of tasks that run."""
        waiting, running = self.loop.scheduler.waiting, self.loop.scheduler.running
        requests = {task.request for task in waiting} - {task.request for task in running}
        return Load(len(requests) + self._open, len(running))

    def statistics(self, model: str) -> list[Statistics]:
        """Returns the load and the counters, as they are now."""
        from platform import node

        counters, tree, load = self.loop.counters, self.loop.tree, self.load
        now = Statistics(
            replica="",
            pid=os.getpid(),
            node=node(),
            model=model,
            waiting=load.waiting,
            running=load.running,
            kv_memory=tree.memory,
            kv_bytes=tree.used_bytes,
            page_bytes=tree.page_bytes,
            pages=tree.node_count,
            pages_held=tree.held,
            pages_capacity=tree.capacity,
            pages_evicted=tree.evicted,
            cached_tokens=tree.node_count * PAGE,
            steps=counters.steps,
            rows=counters.rows,
            finished=counters.finished,
            forward_seconds=counters.forward_seconds,
            step_seconds=counters.step_seconds,
            prompt_tokens=counters.prompt_tokens,
            prompt_tokens_cached=counters.prompt_tokens_cached,
        )
        return [now]

    def close(self) -> None:
        """Ends what runs, as cancelled, and the thread."""
        with self._door:
            if self._closing:
                return
            self._closing = True
            self._door.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _admit(self, request: Request | Reading) -> None:
        self._open -= 1
        self.loop.add(request)

    def _post(self, job: Callable[[], object]) -> None:
        self._jobs.append(job)
        # The thread is started by the first request, and again after a fork of the process, which has none.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._serve, name="glassloop", daemon=True)
            self._thread.start()
        self._door.notify()

    def _check_open(self) -> None:
        if self._closing:
            raise GlassloopError("this LLM is closed")

    def _serve(self) -> None:
        while True:
            with self._door:
                while not self._jobs and not self.loop.busy and not self._closing:
                    if not self._door.wait(_IDLE):
                        self._garbage.idle()
                        self.loop.tree.check_integrity()
                        self._door.wait_for(lambda: self._jobs or self._closing)
                jobs, self._jobs = self._jobs, deque()
                if self._closing:
                    break
            _run(jobs)
            if self.loop.busy:
                if self.loop.runs_ahead:
                    self._garbage.busy()
                try:
                    self.loop.step()
                except BaseException as error:  # not of one request: it ends all; the next ones are served
                    self.loop.fail_all(contained(error, "a step of the engine"))
        self._garbage.idle()
        _run(jobs)
        self.loop.cancel_all()
        _run(self._jobs)  # of listeners that were told of the end


def _run(jobs: deque[Callable[[], object]]) -> None:
    """Runs jobs and forgets each: one has a reference to its request, and so to the whole `LLM`. A job that
    fails is logged; those behind it run all the same."""
    while jobs:
        try:
            jobs.popleft()()
        except BaseException:
            _LOG.exception("a job on the engine's thread failed")
