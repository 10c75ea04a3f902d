"""Starts runs, delivers what the engine reports of them, and ends them.

A request is submitted with a listener, which the engine calls on its own thread. `Hub` hands what it reports
to the event loop, where it becomes events of the run's tree; clients follow these.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from glassloop.decode.stop import Pause
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.language_model import LanguageModel
from glassloop.engine.request import Request
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run, TakenBack
from glassloop.record.token import Token
from glassloop.search.running import Running
from glassloop.search.solution import Solution
from glassloop.search.solve import withdraw
from glassloop.server.http.errors import APIError, as_api_error, shutting_down
from glassloop.server.operation.logs import Log
from glassloop.server.operation.metrics import Metrics
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.operation.workers import Pools
from glassloop.server.runs.index import RunIndex
from glassloop.server.runs.notes import Notes, note_of
from glassloop.server.runs.state import Event, Hub, RunState, TreeState
from glassloop.server.sampling_options import make_sampling


class RunControl:
    """What happens to the runs of one model. All of it is for the event loop's thread, but for
    `prepare_rest`."""

    def __init__(
        self,
        engine: Callable[[], LanguageModel],  # another one once a model was loaded again
        settings: ServerSettings,
        runs: RunIndex,
        notes: Notes,
        pools: Pools,
        metrics: Metrics,
        log: Log,
        is_draining: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._runs = runs
        self._notes = notes
        self._pools = pools
        self._metrics = metrics
        self._log = log
        self._is_draining = is_draining
        self.searches: set[Running] = set()  # those that run
        self._hub: Hub | None = None
        self._ending: set[asyncio.Task[None]] = set()  # runs whose end is reported once they are stored

    def start(
        self,
        requests: Sequence[Request],
        tree: TreeState | None = None,
        *,
        names: Sequence[str | None] = (),
        limit: int | None = None,
    ) -> list[RunState]:
        """Starts all requests, or none, as runs of one tree. With `limit` each run pauses after this many new
        tokens."""
        tree = tree or TreeState()
        states: list[RunState] = []
        try:
            for place, request in enumerate(requests):
                started = [RunState(run, tree, names[place] if names else None) for run in request.runs]
                if limit is not None:
                    request.pause = Pause(started[0].sent + len(request.forced) + limit)
                states += started
                self._submit(request, started)
        except Exception as error:
            for state in states:
                if state.request is not None:
                    self._engine().cancel(state.request)
                    self._runs.forget(state, for_good=True)
            raise as_api_error(error) from error
        return states

    def resume(self, state: RunState, request: Request, tokens: int | None) -> None:
        """Continues a stopped run with the request that `prepare_rest` has made for it."""
        run = state.run
        check_paused(state)  # another request may have continued it meanwhile
        before = run.finish_reason, run.stop_reason, run.tail
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        request.pause = None if tokens is None else Pause(len(run.tokens) + len(request.forced) + tokens)
        state.sent = len(run.tokens)
        try:
            self._submit(request, [state])
        except Exception as error:
            run.finish_reason, run.stop_reason, run.tail = before
            raise as_api_error(error) from error

    def prepare_rest(self, run: Run) -> Request:
        """Returns a request that continues a run with its own options and luck, as if it had never
        stopped."""
        # A run that was read from a file may have options beyond the server's limits.
        make_sampling({**run.sampling.to_dict(), "n": 1}, self._settings)
        return self._engine().prepare_rest(run, timeout=self._settings.timeout)

    def _submit(self, request: Request, states: list[RunState]) -> None:
        if self._hub is None:
            self._hub = Hub(asyncio.get_running_loop(), self._deliver)
        hub, by_run = self._hub, {id(state.run): state for state in states}

        def listen(run: Run, token: Token | None) -> None:
            hub.put(by_run[id(run)], token)

        def listen_back(run: Run, token: Token | None) -> None:
            """Listens to runs that may take tokens back: another run then continues."""
            if isinstance(token, TakenBack):
                old = by_run[id(run)]
                old.heir = by_run[id(token.run)] = RunState(token.run, old.tree, old.name, old.owner)
                hub.put(old, token)
            else:
                listen(run, token)

        request.listener = listen_back if request.sampling.revise else listen
        if isinstance(request, DiffusionRequest):
            request.on_pass = lambda run, record: hub.put(by_run[id(run)], record)
        self._engine().submit(request)
        for state in states:
            state.request = request
            self._runs.add(state)
            state.tree.add(Event("run", state, state.sent, None))

    def _deliver(self, state: RunState, token: Token | PassRecord | None) -> None:
        """Adds a token or a pass, or with None the end of a run, to the events of its tree."""
        if isinstance(token, (TakenBack, PassRecord)):
            if isinstance(token, PassRecord):
                state.tree.add(Event("pass", state, token.number, None))
            else:
                self._hand_over(state, token)
            return
        if token is not None:
            state.tree.add(Event("token", state, state.sent, token))
            state.sent += 1
            self._runs.note_progress()
            return
        if self._runs.keep_ended(state):
            ending = asyncio.get_running_loop().create_task(self._end_when_written(state))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        else:
            self._end(state)

    async def _end_when_written(self, state: RunState) -> None:
        await self._runs.written()
        self._end(state)

    def _end(self, state: RunState) -> None:
        """Reports the end of a run: to its followers, the metrics and the log."""
        run, state.request = state.run, None
        state.tree.add(Event("end", state, state.sent, None))
        self._metrics.ended(run, run.fork_at or 0)
        self._log.run(run)
        self._runs.trim()

    def _hand_over(self, state: RunState, token: TakenBack) -> None:
        """Ends a run whose last tokens were taken back; the run that continues is one more of its tree."""
        heir = state.successor = state.heir
        assert heir is not None
        heir.request, heir.users = state.request, state.users
        state.tree.add(Event("taken_back", state, token.to, token))
        self._runs.add(heir)
        heir.tree.add(Event("run", heir, heir.sent, None))
        self._runs.keep_ended(state)
        self._end(state)

    def cancel(self, states: Sequence[RunState]) -> None:
        """Ends runs; others of their requests go on."""
        unwanted: dict[Request, list[Run]] = {}
        for state in [state.latest for state in states]:
            if state.request is not None:
                unwanted.setdefault(state.request, []).append(state.run)
        for request, runs in unwanted.items():
            if all(run in runs for run in request.runs if run.finish_reason is None):
                self._engine().cancel(request)
            else:
                for run in runs:
                    self._engine().cancel(request, run=run)

    async def remove(self, id: str) -> None:
        """Removes a run everywhere, from what the engine keeps of its text too."""
        run = await self._runs.remove(id)
        await self._notes.remove(note_of(id))
        if run is not None:
            await self._pools.removing.run(self._engine().forget, run)

    def end_all(self) -> None:
        """Cancels all runs and searches, since the server ends."""
        self.cancel(self._runs.running())
        for search in self.searches:
            search.cancel("the server has ended", unwanted=True)
            withdraw(search, search.requests, wait=False)

    async def keep_search(self, solution: Solution) -> None:
        """Adds the runs of a search that is over to the list of runs, as one tree."""
        tree = TreeState()
        states = [RunState(path.run, tree, f"path {path.number}") for path in solution.paths]
        for path, state in zip(solution.paths, states, strict=True):
            for kind in ("run", "end"):
                tree.add(Event(kind, state, state.sent, None))
            self._metrics.ended(path.run, path.kept)
            self._log.run(path.run)
        await self._runs.add_ended(states)

    # ── following ──────────────────────────────────────────────────────────────────────────────────────────

    def start_for_client(self, requests: Sequence[Request], **options: Any) -> list[RunState]:
        """Starts runs for a connected client; call `release` when the client disconnects."""
        states = self.start(requests, **options)
        for state in states:
            state.users += 1
        return states

    def release(self, states: Sequence[RunState]) -> None:
        self.cancel(states)
        for each in states:
            state: RunState | None = each
            while state is not None:
                state.users -= 1
                state = state.successor
        self._runs.trim()

    async def finish(self, requests: Sequence[Request], **options: Any) -> None:
        """Computes requests to their end, and raises if one of them failed."""
        states = self.start_for_client(requests, **options)
        try:
            async for _ in self.events(states):
                pass
            runs = {run for request in requests for run in request.runs}
            for state in [each.latest for each in states]:
                if state.run in runs:  # a beam search may have found fewer texts
                    self.raise_if_failed(state)
        finally:
            self.release(states)

    async def events(
        self, states: Sequence[RunState], keep_alive: float | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """Yields tokens and ends of runs that were started together, and None when nothing has come for
        `keep_alive` seconds. If tokens of a run are taken back, this event comes instead of its end, and what
        comes next is from its successor."""

        def over() -> bool:
            return all(state.latest.request is None for state in states)

        followed = set(states)
        async for _, event in states[0].tree.follow(0, over, keep_alive):
            if event is None:
                yield event
            elif event.kind not in ("run", "pass") and event.state in followed:
                if event.kind == "taken_back" and event.state.successor is not None:
                    followed.discard(event.state)
                    followed.add(event.state.successor)
                yield event

    def raise_if_failed(self, state: RunState) -> None:
        """Raises where a run has ended without an answer that a client could use."""
        run = state.run
        if run.finish_reason == "error":
            raise as_api_error(run.error or RuntimeError(run.stop_reason))
        if run.finish_reason == "cancelled" and self._is_draining():
            raise shutting_down()


def check_paused(state: RunState) -> None:
    """Raises unless a run can be continued."""
    if state.is_elsewhere:
        message = f"run {state.run.id} is computed by another server; it can be continued when that has ended"
        raise APIError(409, message, code="not_paused")
    if state.status != "paused":
        reason = state.run.finish_reason
        ended = f" (it ended by {reason})" if reason else ""
        instead = "Fork it at its end instead"
        if not state.run.origin.in_order:
            instead = "This one was written by diffusion: send its text as a prompt instead"
        message = (
            f"run {state.run.id} is {state.status}{ended}; only a run that was stopped or paused can be"
            f" continued. {instead}"
        )
        raise APIError(409, message, code="not_paused")
