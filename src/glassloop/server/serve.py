"""Runs the server until a signal ends it, and then lets running requests finish for a while."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from glassloop.engine.language_model import LanguageModel
from glassloop.errors import GlassloopError
from glassloop.ops.memory import format_bytes
from glassloop.server.app import make_app
from glassloop.server.http.alarm import Alarm
from glassloop.server.http.connection import ClientConnection, ConnectionLimits
from glassloop.server.on_demand import Asleep
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.operation.watchdog import Watchdog
from glassloop.server.runs.storage import RunStorage
from glassloop.server.service import Service
from glassloop.util.shown import printable

_OTHER_FILES = 96  # descriptors that connections leave for the store, templates, logs and libraries
# Seconds in which requests that are ended get their error, and clients read it; a step that is computed has
# to end before. After a second Ctrl-C, and after the grace period.
_AT_ONCE, _AFTER_GRACE = 5.0, 20.0


def serve(
    llm: LanguageModel,
    settings: ServerSettings,
    note: str = "",
    *,
    others: Sequence[tuple[LanguageModel, ServerSettings]] = (),
    join: Callable[[Sequence[Service]], ASGIApp] | None = None,
) -> None:
    """Serves a model until a signal ends the server. `note` is added to the line that it prints at the start:
    all other lines are the log's. With `others`, `join` makes one application for all models."""
    log = Log(settings.log_prompts, level=settings.log_level, access=settings.access_log)
    listening = _listen(settings)
    storage = None
    if settings.store is not None and settings.in_memory:
        storage = RunStorage(settings.store, settings.address, settings.keep, log)
    service = Service(llm, settings, log, storage)
    services = [service, *(Service(engine, each, log, storage) for engine, each in others)]
    for each in services:
        if not isinstance(each.llm, Asleep) and each.llm.tokenizer.chat_template is not None:
            each.llm.tokenizer.chat_template.warm()
    # The files of a large model take seconds to hash: they should be done before the first request needs it.
    threading.Thread(target=lambda: service.fingerprint, name="glassloop fingerprint", daemon=True).start()
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        make_app(service) if join is None else join(services),
        http=partial(ClientConnection, limits=_connection_limits(settings)),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    upstream = service.llm.upstream
    about = f"{format_bytes(service.llm.kv_memory)} for keys and values" if upstream is None else upstream
    names = ", ".join(each.name for each in services)
    has_studio = (settings.static / "index.html").is_file()
    notes = [about, *([] if has_studio else ["without the studio (make web)"]), *([note] if note else [])]
    print(
        f"Glassloop serves {names} at http://{host}:{port} (API: /docs), {printable('; '.join(notes), 600)}",
        file=sys.stderr,
        flush=True,
    )
    for name in ("uvicorn.error", "glassloop"):
        log.take_over(name)
    log("start", model=service.name, host=settings.host, port=port)
    for warning in settings.warnings:
        log("warning", message=warning)
    try:
        _Server(config, services).run(sockets=[listening])
    finally:
        for each in services:
            each.pools.close()
            each.llm.close()
        if storage is not None:
            storage.close()
        log("end")
        log.close()


def _connection_limits(settings: ServerSettings) -> ConnectionLimits:
    """Returns the limits of connections. There are at most as many as the system has file descriptors to
    spare."""
    limits = ConnectionLimits(
        request_bytes=2 * settings.most_body + (1 << 20),
        stalled_seconds=min(ConnectionLimits.stalled_seconds, settings.timeout),
    )
    try:
        import resource
    except ImportError:
        return limits
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=max(8, min(limits.connections, files - _OTHER_FILES)))


def _listen(settings: ServerSettings) -> socket.socket:
    """Returns the socket, bound before anything else, so that a port in use is one line and not a
    traceback."""
    kind = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(kind, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(1024)
    except (OSError, OverflowError) as error:
        listening.close()
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        problem = "the port is in use; --port 0 takes any free one" if taken else str(error)
        raise GlassloopError(f"cannot listen at {settings.host}:{settings.port}: {problem}") from None
    return listening


class _Server(uvicorn.Server):
    """A server that shuts down in steps. After the first signal new requests get status 503 while the others
    may finish within the grace period; then they are ended, with an error for their clients. A second Ctrl-C
    ends them at once, and a third one closes the connections without an error."""

    def __init__(self, config: uvicorn.Config, services: Sequence[Service]) -> None:
        super().__init__(config)
        self._services = services
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: Watchdog | None = None
        self._ending = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(self._services[0].log.held_up)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._watchdog is not None:
            self._watchdog.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals as uvicorn does, but leaves SIGTERM ignored until the process ends, which it does
        next: what is open is closed in order, however often a signal comes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGTERM, self.handle_exit)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None:
            self.should_exit = True
            return
        if not self._services[0].draining:
            for service in self._services:
                service.draining = True
            self._loop.call_soon_threadsafe(self._drain)
        elif sig == signal.SIGINT and not self._ending:
            self._ending = True
            self._loop.call_soon_threadsafe(self._end_all, _AT_ONCE)
        elif sig == signal.SIGINT:
            self._stop()

    def _end_all(self, seconds: float) -> None:
        for service in self._services:
            service.end_all()
        Alarm(asyncio.get_running_loop(), seconds, self._stop)

    def _stop(self) -> None:
        """Closes all connections."""
        self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Returns whether the server has to close: it is to end, and no request is answered now."""
        if self._services[0].draining and not self.server_state.tasks:
            self.should_exit = True
        return await super().on_tick(counter)

    def _drain(self) -> None:
        first = self._services[0]
        first.log("shutdown", running=sum(len(each.runs.running()) for each in self._services))
        for service in self._services:
            for state in service.runs.states:
                state.tree.wake()  # ends the streams of trees that are not computed any more
        Alarm(asyncio.get_running_loop(), first.settings.grace, lambda: self._end_all(_AFTER_GRACE))
