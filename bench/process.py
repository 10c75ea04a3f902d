"""The driver's side of the protocol of `bench/peers/serve.py`: an engine in its own process, with one
request at a time. A process that dies or does not reply is closed, and reported in one line.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from time import monotonic
from typing import Any

from bench.catalog import ROOT, Peer
from bench.environments import Absent, log_file, python_for

_PATIENCE = 900.0  # seconds to wait for one reply


class Engine:
    """The process of a peer, with its model loaded."""

    def __init__(self, peer: Peer, threads: int) -> None:
        self.peer = peer
        python = str(python_for(peer))
        with log_file(peer).open("a") as log:
            self._process = subprocess.Popen(
                [python, *peer.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment(threads),
            )
        self._read = b""

    def ask(self, **question: Any) -> dict[str, Any]:
        """Sends a request and returns the reply. Raises Absent if the engine cannot answer it."""
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line())
        except (BrokenPipeError, EOFError, TimeoutError) as error:
            self.close()
            raise Absent(
                _death(process.returncode) if not isinstance(error, TimeoutError) else str(error)
            ) from None
        if answer.get("absent"):
            raise Absent("has no such ability")
        if "error" in answer:
            raise Absent(answer["error"])
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()  # end of the requests: an idle adapter exits
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        until = monotonic() + _PATIENCE
        while b"\n" not in self._read:
            if not select.select([self._process.stdout], [], [], max(until - monotonic(), 0))[0]:
                raise TimeoutError(f"gave no answer in {_PATIENCE:.0f} seconds")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise EOFError
            self._read += piece
        line, self._read = self._read.split(b"\n", 1)
        return line


def start(
    peer: Peer, model: str, threads: int, said: dict[str, Any] | None = None, **options: Any
) -> tuple[Engine, dict[str, Any]]:
    """Starts an engine with its model, in the first variant that works. Returns it with its description.

    `said` is the description from an earlier start: the same variant is used again.
    """
    reason = ""
    for variant in peer.variants if said is None else [said["variant"]]:
        engine = Engine(peer, threads)
        try:
            answer = engine.ask(do="load", model=model, threads=threads, **variant, **options)
            engine.ask(do="one_user", ids=list(range(100, 140)), steps=2)  # it may load and fail here
            return engine, {**answer, "variant": variant}
        except Absent as error:
            reason = str(error)
            engine.close()
        except BaseException:
            engine.close()
            raise
    raise Absent(reason)


def hold_to(isa: str) -> None:
    """Limits engines that are started from now on to an instruction set, where they have a setting.

    llama.cpp is compiled for it (see environments.py). The linear layers of OpenVINO use oneDNN; attention
    in a release that does not know OV_CPU_MAX_ISA still uses all instructions of the processor.
    """
    onednn = isa.upper()
    os.environ |= {"GLASSLOOP_ISA": isa, "ONEDNN_MAX_CPU_ISA": onednn, "OV_CPU_MAX_ISA": onednn}
    os.environ |= {"ATEN_CPU_CAPABILITY": isa, "MKL_ENABLE_INSTRUCTIONS": onednn}  # PyTorch and its MKL


def environment(threads: int) -> dict[str, str]:
    """Returns the environment variables of an engine: the same number of threads for every library, no
    network access, and permission to cache bytecode, without which Glassloop, the only engine installed
    from a source tree, would be compiled at every start.
    """
    counts = ("GLASSLOOP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **quiet, **dict.fromkeys(counts, str(threads))}


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process died: {signal.strsignal(-code)}"
    return f"its process ended with code {code}"
