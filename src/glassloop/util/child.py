"""A child process for work that may hang, crash or fill the memory: messages over pipes, in a limited time.

A message is its size in four bytes, and then that many bytes. The child runs `child_main.py`, which reads
messages from its standard input and writes answers to its standard output; it ends when its input does, so no
child outlives its parent. `child_pool.py` shares children between threads.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct

_MAIN = Path(__file__).with_name("child_main.py")
_SIZE = Struct("<I")
_SLICE = 0.1  # seconds for which a pipe is waited for at a time
_ALIVE: weakref.WeakSet[Child] = weakref.WeakSet()


class Patience:
    """The seconds that a child has for one or more messages. A time in which this process did not run is not
    counted: on a machine that stood still, the child could not run either."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def wait(self, pipe: int, event: int) -> None:
        """Waits for an event of a pipe. Raises `TimeoutError` when no time is left."""
        poll = select.poll()  # and not `select`, which knows no descriptors above 1024
        poll.register(pipe, event)
        while self._left > 0:
            began = time.monotonic()
            happened = poll.poll(1000 * min(self._left, _SLICE))
            self._left -= min(time.monotonic() - began, 2 * _SLICE)
            if happened:
                return
        raise TimeoutError


class Child:
    """A child process, for one thread at a time. `script` is a file that defines `serve(parent)`, and `flags`
    are those of the interpreter; by default the script can import the standard library alone. Raises
    `OSError` or `ValueError` if the process cannot be started, and `TimeoutError` if it exceeds the patience
    of its caller."""

    def __init__(self, script: Path, env: Mapping[str, str], flags: Sequence[str] = ("-I", "-S")) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *flags, str(_MAIN), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the parent
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._pipes = self._process.stdin, self._process.stdout
        self._input, self._output = (pipe.fileno() for pipe in self._pipes)
        for pipe in (self._input, self._output):
            os.set_blocking(pipe, False)
        weakref.finalize(self, _end, self._process)
        _ALIVE.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, data: bytes, patience: Patience) -> None:
        """Writes a message. A child that has ended is no error: there will be no answer."""
        rest = memoryview(_SIZE.pack(len(data)) + data)
        while rest:
            try:
                rest = rest[os.write(self._input, rest) :]
            except BlockingIOError:
                patience.wait(self._input, select.POLLOUT)
            except BrokenPipeError:
                return

    def receive(self, patience: Patience, most: int) -> bytes | None:
        """Returns a message, None from a child that has ended. One of more than `most` bytes is refused by a
        `ValueError`."""
        data, size = bytearray(), _SIZE.size
        while len(data) < size:
            try:
                chunk = os.read(self._output, min(size - len(data), 1 << 20))
            except BlockingIOError:
                patience.wait(self._output, select.POLLIN)
                continue
            if not chunk:
                return None
            data += chunk
            if len(data) == _SIZE.size == size:
                size += _SIZE.unpack(data)[0]
                if size > most:
                    raise ValueError(f"an answer of {size} bytes; at most {most} are expected")
        return bytes(data[_SIZE.size :])

    def ask(self, data: bytes, patience: Patience, most: int) -> bytes | None:
        """Sends a message and returns the answer, as `receive` does."""
        self.send(data, patience)
        return self.receive(patience, most)

    def wait(self) -> int:
        """Returns the exit status of a child that has ended or is about to."""
        return self._process.wait()

    def end(self) -> None:
        """Ends the process and waits until it is gone."""
        _end(self._process)

    def forget(self) -> None:
        """Closes the pipes without ending the child, in a fork of the process that started it."""
        for pipe in self._pipes:
            pipe.close()
        self._process.returncode = 0


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def _forget_all() -> None:
    for child in list(_ALIVE):
        child.forget()


os.register_at_fork(after_in_child=_forget_all)
