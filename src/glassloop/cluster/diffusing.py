"""Requests that are written by diffusion, on replicas: one computes each run as a whole, and another one does
so again if that dies. Passes and tokens are told as they come, each once.
"""

from __future__ import annotations

import asyncio
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from glassloop.cluster.calls import Calls
from glassloop.cluster.messages import End, Facts, Needs, Question, Route, RunSoFar, TokenData
from glassloop.cluster.pickling import dumps, loads
from glassloop.cluster.session import end_of, facts_of
from glassloop.cluster.stream import Delivery, held_back, set_facts
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Ending
from glassloop.diffuse.write import DiffusionRequest, by_diffusion
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import raise_error
from glassloop.engine.request import Request
from glassloop.engine.tasks.task import CANCELLED
from glassloop.errors import GlassloopError, described
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run
from glassloop.record.token import Token

if TYPE_CHECKING:
    from collections.abc import Callable

    from glassloop.api.llm import LLM


class Written(NamedTuple):
    """The end of a run that a replica has written."""

    last: list[TokenData]  # tokens that are told when the run has ended
    facts: Facts
    end: End


class Diffusing:
    """The requests of an ingress that are written by diffusion. Runs on the event loop of the fleet."""

    def __init__(self, calls: Calls, delivery: Delivery) -> None:
        self._calls = calls
        self._delivery = delivery
        self._open: dict[Request, dict[Run, asyncio.Task[None]]] = {}

    @property
    def requests(self) -> list[Request]:
        """The requests that have not ended."""
        return list(self._open)

    def add(self, request: DiffusionRequest, needs: Needs) -> None:
        self._open[request] = {
            run: asyncio.create_task(self._write(request, run, needs)) for run in request.runs
        }

    def cancel(self, request: Request, run: Run | None = None) -> None:
        """Ends a request, or one run of it."""
        for written, task in self._open.get(request, {}).items():
            if run is None or run is written:
                task.cancel()

    async def _write(self, request: DiffusionRequest, run: Run, needs: Needs) -> None:
        def on_event(data: bytes) -> None:
            event = loads(data)
            if request.started is None:
                request.started = perf_counter()
            if isinstance(event, PassRecord):
                run.add_pass(event)
                if request.on_pass is not None:
                    request.on_pass(run, event)
            else:
                request.tell(run, self._add(run, event))

        last: list[Token | None] = [None]
        try:
            timeout = request.sampling.timeout
            async with asyncio.timeout(None if timeout is None else max(0.0, timeout - request.seconds)):
                written: Written = loads(await self._calls.ask(_question(request, run, needs), on_event))
            last = [*(self._add(run, each) for each in written.last), None]
            set_facts(run, written.facts)
            self._delivery.finish(run, written.end)
        except asyncio.CancelledError:
            _end(request, run, CANCELLED)
        except TimeoutError:
            _end(request, run, request.overdue() or CANCELLED)
        except Exception as error:
            run.error = error
            _end(request, run, Ending("error", described(error)))
        if request.ended:
            self._open.pop(request, None)
        for token in last:
            request.tell(run, token)

    def _add(self, run: Run, data: TokenData) -> Token:
        token = self._delivery.token(data, run)
        run.tokens.append(token)
        return token


def _end(request: DiffusionRequest, run: Run, ending: Ending) -> None:
    """Ends a run with the blocks that have been told."""
    run.tail = held_back(request, run)
    run.finish_reason, run.stop_reason = ending.reason, ending.detail


def _question(request: DiffusionRequest, run: Run, needs: Needs) -> Question:
    beginning = RunSoFar(run.seed, run.salt, run.sample, run.sampling, ())
    args = (list(run.prompt_ids), request.sampling, beginning, request.options, request.mask.sha256)
    route = Route(tuple(run.prompt_ids), needs=needs, realm=request.realm)
    call = dumps((write_run, args, {}))
    whose = {"owner": request.owner, "realm": request.realm}
    return Question(call, None, is_long=True, has_events=True, **whose, route=route)


def write_run(
    llm: LLM,
    prompt_ids: list[int],
    sampling: Sampling,
    beginning: RunSoFar,
    options: Diffusion,
    sha256: str,
    *,
    deadline: Deadline,
    on_event: Callable[[PassRecord | TokenData], None],
) -> Written:
    """Writes one run with the engine of a replica. The ingress counts the time: `deadline` only tells that it
    has given up."""
    run = llm.requests.new_run(
        prompt_ids,
        beginning.sampling,
        beginning.seed,
        salt=beginning.salt,
        prompt=None,
        sample=beginning.sample,
    )
    run.samples = [run]
    plain = Request(prompt_ids, sampling, [run], built=llm.requests.build(sampling))
    request = by_diffusion(llm, plain, options)
    if request.mask.sha256 != sha256:
        raise GlassloopError("the replica has another adapter for masked rows than the request began with")
    last: list[TokenData] = []

    ended = Event()

    def listen(run: Run, token: Token | None) -> None:
        if token is None:
            ended.set()
        elif run.finish_reason is None:
            on_event(TokenData.of(token))
        else:
            last.append(TokenData.of(token))

    request.listener, request.on_pass = listen, lambda run, record: on_event(record)
    request.deadline = deadline
    llm.submit(request, may_refuse=False)
    ended.wait()
    raise_error(run)
    return Written(last, facts_of(run), end_of(run))
