"""The driver's end of the protocol of `bench/peers/serve.py`: an engine in a process of its own, asked one
question at a time. A process that dies or does not answer is closed, and its loss is one line.
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

_PATIENCE = 900.0  # seconds for one answer


class Engine:
    """A peer that is loaded, or the reason why it is not (Absent)."""

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
        """Its answer. Absent where the engine has no such ability, has failed or has died."""
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
            process.stdin.close()  # the end of the questions; an idle adapter leaves
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
    """The engine with its model loaded, in the first variant that works, and what it says of itself.

    `said` is what it said another time: the same variant is taken again.
    """
    reason = ""
    for variant in peer.variants if said is None else [said["variant"]]:
        engine = Engine(peer, threads)
        try:
            answer = engine.ask(do="load", model=model, threads=threads, **variant, **options)
            engine.ask(do="one_user", ids=list(range(100, 140)), steps=2)  # loading alone proves nothing
            return engine, {**answer, "variant": variant}
        except Absent as error:
            reason = str(error)
            engine.close()
        except BaseException:
            engine.close()
            raise
    raise Absent(reason)


def hold_to(isa: str) -> None:
    """Engines started from now on use no more than this instruction set, where their libraries can be told.

    llama.cpp decides when it is compiled (and environments.py has it compiled for this). OpenVINO's linears
    are oneDNN's; a release that does not know OV_CPU_MAX_ISA still attends with all that the processor has.
    """
    onednn = isa.upper()
    os.environ |= {"GLASSLOOP_ISA": isa, "ONEDNN_MAX_CPU_ISA": onednn, "OV_CPU_MAX_ISA": onednn}
    os.environ |= {"ATEN_CPU_CAPABILITY": isa, "MKL_ENABLE_INSTRUCTIONS": onednn}  # PyTorch and its MKL


def environment(threads: int) -> dict[str, str]:
    """As many threads for everybody, whatever library computes; no engine asks the network; and Python may
    keep bytecode, or ours would be compiled at every start, being the only one installed from its sources."""
    counts = ("GLASSLOOP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **quiet, **dict.fromkeys(counts, str(threads))}


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process died: {signal.strsignal(-code)}"
    return f"its process ended with code {code}"
