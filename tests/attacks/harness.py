"""A `glassloop serve` process under attack, and what is observed of it meanwhile and afterwards: whether it
lives, how long `/health` takes, how long another client's stream stands still, its memory, and what is left
behind (pages, requests, threads, open files, temporary files).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attacks.limits import LIMITS, PROMISED
from waiting import awake

DEFAULT_MODEL = "smollm2-135m-instruct"
_PROBE = Path(__file__).with_name("probe.py")
_ADDRESS = re.compile(r"http://([\d.]+):(\d+)")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def protocol(self) -> str:
        """Whose shape the error has."""
        told = self.json()
        if isinstance(told, dict) and isinstance(told.get("error"), str):
            return "Ollama"
        return "Anthropic" if isinstance(told, dict) and told.get("type") == "error" else "OpenAI"

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's shape, to which others are brought; an assertion where it has none."""
        told = self.json()
        if self.protocol == "Anthropic":
            assert set(told) == {"type", "error", "request_id"}, self.body[:300]
            assert set(told["error"]) == {"type", "message"}, self.body[:300]
            told = {"error": {**told["error"], "param": None, "code": None}}
        assert isinstance(told, dict) and set(told) == {"error"}, self.body[:300]
        if self.protocol == "Ollama":
            told = {"error": {"message": told["error"], "type": "", "param": None, "code": None}}
        error: dict[str, Any] = told["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"], error
        assert error["param"] is None or isinstance(error["param"], str), error
        return error


class Server:
    """A server in a process of its own, with a TMPDIR of its own and its log in a file."""

    def __init__(
        self,
        *flags: str,
        model: str | Path = DEFAULT_MODEL,
        env: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,  # of every request that has none of its own
        program: str = "glassloop",
    ) -> None:
        self.headers = headers or {}
        self.folder = Path(tempfile.mkdtemp(prefix="glassloop-attack-"))
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.log = self.folder / "log"
        if "--store" not in flags:  # tests must not see each other's runs
            flags = (*flags, "--no-store")
        command = [sys.executable, "-m", program, "serve", "--port", "0", "--model", str(model), *flags]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=os.environ | {"TMPDIR": str(self.temporary)} | (env or {}),
                cwd=self.folder,
            )
        self.host, self.port = self._address()

    def _address(self) -> tuple[str, int]:
        until = awake() + 60
        while awake() < until:
            if found := _ADDRESS.search(self.log_text()):
                return found[1], int(found[2])
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.end(signal.SIGKILL)
        raise AssertionError(f"the server did not start: {self.log_text()}")

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def held_up(self) -> list[str]:
        """What has held up the event loop, as the log tells."""
        return [line for line in self.log_text().splitlines() if '"event": "held_up"' in line]

    def end(self, how: signal.Signals = signal.SIGTERM, seconds: float = 60) -> int:
        """The exit status once it has ended; it is killed when it does not end in time."""
        if self.alive:
            self.process.send_signal(how)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    # ── asking it ──────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> Answer:
        """One request on a connection of its own. Bytes go as they are; anything else goes as JSON."""
        connection = self.connect(timeout)
        try:
            return send(connection, method, path, body, self.headers if headers is None else headers)
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: object, **options: Any) -> Answer:
        return self.ask("POST", path, body, **options)

    def raw(self, data: bytes, timeout: float = 20) -> bytes:
        """What it answers to these bytes until it closes the connection or nothing comes any more."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            parts = []
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while part := connection.recv(1 << 16):
                    parts.append(part)
            return b"".join(parts)

    # ── looking at it ──────────────────────────────────────────────────────────────────────────────────────

    def metric(self, name: str) -> float:
        text = self.get("/metrics").body.decode()
        lines = [line for line in text.splitlines() if re.split(r"[{ ]", line)[0] == f"glassloop_{name}"]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    @property
    def memory(self) -> int:
        """Resident bytes now."""
        return self._status("VmRSS") << 10

    @property
    def peak(self) -> int:
        """The most resident bytes since the last `forget_peak`."""
        return self._status("VmHWM") << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    @property
    def threads(self) -> int:
        return self._status("Threads")

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def left_in_temporary(self) -> list[str]:
        return sorted(str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*"))

    def settle(self, seconds: float = 30) -> dict[str, float]:
        """What is under way or held once it has come to rest; all zero, or what it was when time was up."""
        until = awake() + seconds
        while True:
            told = self.get("/health").json()
            left = {name: float(told[name]) for name in ("running", "waiting")}
            left["pages"] = self.metric("kv_pages_held")
            if not any(left.values()) or awake() > until:
                return left
            time.sleep(0.05)


def send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request on an open connection."""
    given = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        given.setdefault("content-type", "application/json")
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    names = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, names, answer.read())


@contextlib.contextmanager
def serving(*flags: str, **options: Any) -> Iterator[Server]:
    server = Server(*flags, **options)
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)
        shutil.rmtree(server.folder, ignore_errors=True)


# ── observing it ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Report:
    """What was seen during an attack; times in seconds, memory in bytes."""

    seconds: float = 0.0
    still: float = 0.0  # in which the machine stood still, besides
    health: float = 0.0  # the longest wait for /health
    gap: float = 0.0  # the longest wait for a token of the canary
    tokens: int = 0  # that the canary got
    grown: int = 0  # peak memory above what it was before
    code: int | None = None  # exit status of the server, if it has ended
    probes: int = 0  # answered calls of /health
    trouble: str = ""  # what went wrong with a probe or the canary

    def check(self, *, canary: bool = False, memory: bool = True) -> Report:
        """Assert what must hold during every attack, within the limits in force."""
        assert self.code is None, f"the server ended with {self.code}"
        assert not self.trouble, self.trouble
        assert self.health <= LIMITS.health + self.still, f"/health waited {self.health:.2f} s"
        if canary:
            assert self.tokens, "the canary got no token"
            assert self.gap <= LIMITS.gap, f"the canary waited {self.gap:.2f} s for a token"
        if memory:
            assert self.grown <= LIMITS.memory, f"memory grew by {self.grown >> 20} MB"
        return self

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class Watch:
    """Observes a server while the body of a `with` statement attacks it."""

    def __init__(
        self,
        server: Server,
        canary: bool = False,
        headers: dict[str, str] | None = None,
        slow: Callable[[float], None] | None = None,  # called with each wait for /health that is too long
    ) -> None:
        self.server = server
        self._slow = slow
        self.report = Report()
        self._headers = headers or {}
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._canary: socket.socket | None = None
        jobs = [self._probe, self._stream] if canary else [self._probe]
        self._threads = [threading.Thread(target=job, daemon=True) for job in jobs]
        if not canary:
            self._ready.set()

    def __enter__(self) -> Watch:
        self.server.forget_peak()
        self._memory = self.server.memory
        self._began, self._awake = time.monotonic(), awake()
        for thread in self._threads:
            thread.start()
        assert self._ready.wait(120), "the canary does not start"
        return self

    def __exit__(self, *_: object) -> None:
        report = self.report
        report.seconds = awake() - self._awake
        report.still = time.monotonic() - self._began - report.seconds
        self._ended.set()
        if self._canary is not None:
            with contextlib.suppress(OSError):
                self._canary.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(120)
        time.sleep(0.05)
        report.code = self.server.process.poll()
        if report.code is None:
            report.grown = max(0, self.server.peak - self._memory)

    def _probe(self) -> None:
        """Note how long `/health` takes, as a process of its own tells."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROBE), self.server.host, str(self.server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        for line in process.stdout:
            seconds, told = line.rstrip("\n").split(" ", 1)
            if told in ("200", "503"):
                self.report.probes += 1
            elif self.server.alive and not self.report.trouble:
                self.report.trouble = f"/health: {told}"
            self.report.health = max(self.report.health, float(seconds))
            if float(seconds) > PROMISED.health and self._slow is not None:
                self._slow(float(seconds))
            if self._ended.is_set() or not self.server.alive:
                break
        process.stdin.close()
        process.stdout.close()
        process.wait()

    def _stream(self) -> None:
        """A client that streams one completion after the other until the attack is over."""
        last: float | None = None
        while not self._ended.is_set() and not self.report.trouble and self.server.alive:
            try:
                for now in self._tokens():
                    self.report.gap = max(self.report.gap, now - (last or now))
                    last = now
                    self.report.tokens += 1
                    self._ready.set()
            except (OSError, http.client.HTTPException) as error:
                if not self._ended.is_set() and self.server.alive:
                    self.report.trouble = f"the canary: {error!r}"
        if last is not None:  # a token that had not come when the attack was over was waited for as well
            self.report.gap = max(self.report.gap, awake() - last)

    def _tokens(self) -> Iterator[float]:
        """When each token of one stream arrives."""
        body = {
            "prompt": "Once upon a time",
            "max_tokens": 300,
            "ignore_eos": True,
            "stream": True,
            "seed": 7,
        }
        connection = self.server.connect(120)
        try:
            headers = {"content-type": "application/json"} | self._headers
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            self._canary = connection.sock
            answer = connection.getresponse()
            if answer.status != 200:
                self.report.trouble = f"the canary was answered {answer.status}: {answer.read()!r}"
                return
            while not self._ended.is_set() and (line := answer.readline()):
                if line.startswith(b"data: {"):
                    yield awake()
        finally:
            connection.close()


def left_behind(server: Server, before: tuple[int, int]) -> None:
    """Assert that nothing of an attack is left; `before` has the server's threads and open files then."""
    left = server.settle()
    assert not any(left.values()), left
    assert server.left_in_temporary() == []
    until = awake() + 10
    while server.files > before[1] + 4 and awake() < until:
        time.sleep(0.1)
    assert server.files <= before[1] + 4, f"{server.files} open files, {before[1]} before"
    assert server.threads <= before[0] + LIMITS.pool, f"{server.threads} threads, {before[0]} before"


def standing(server: Server) -> tuple[int, int]:
    """Threads and open files of a server at rest, to be compared by `left_behind`. It has answered a request
    before, so that what is made once is there."""
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status == 200
    server.settle()
    return server.threads, server.files
