"""One server for all tests that can share it: a real process with the real default model."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

import httpcore2
import httpx2 as httpx
import pytest

from glassloop import LLM

MODEL = "smollm2-135m-instruct"
# Each client, that of a single `httpx.get` too, would read all root certificates for itself: 25 ms.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)


class Server:
    """A `glassloop serve` at a port of its own; its log is kept. Options that a request does not give are
    those of `Sampling()`, as in the Python calls that answers are compared with. It has no store unless that
    is asked for: tests must not see each other's runs."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None) -> None:
        if "--store" not in flags and "GLASSLOOP_STORE" not in (env or {}):
            flags = (*flags, "--no-store")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glassloop", "serve", "--port", "0", "--no-model-defaults", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
            cwd=tempfile.gettempdir(),
        )
        self.log: list[str] = []
        # Ray may print before: that it is started again, on a machine that was too busy the first time.
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"http://[\d.]+:\d+", line)
            if found:
                break
        assert self.log and found, "".join(self.log)
        self.first_line = self.log.pop()
        self.url = found[0]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.log += self.process.stderr

    def get(self, path: str, **options) -> httpx.Response:
        return httpx.get(self.url + path, timeout=120, **options)

    def post(self, path: str, body: object = None, **options) -> httpx.Response:
        return httpx.post(self.url + path, json={} if body is None else body, timeout=120, **options)

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(self.url + path, timeout=120)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(120)
        self._reader.join(60)
        return code


@contextlib.contextmanager
def serving(*flags: str, **options) -> Iterator[Server]:
    server = Server(*flags, **options)
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving("--kv-memory", "1GB") as started:
        yield started


@pytest.fixture(scope="session")
def llm() -> LLM:
    """What the server's answers are compared with."""
    return LLM(kv_memory="500MB")


@pytest.fixture
def client(server):
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made
