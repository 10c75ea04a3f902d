"""Runs commands in a pipe or on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

from forking import own_terminal
from waiting import awake

GLASSLOOP = [sys.executable, "-m", "glassloop"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a pipe."""
    return subprocess.run(
        [*GLASSLOOP, *arguments], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


def on_terminal(*arguments: str, columns: int = 80, **environment: str) -> tuple[int, str]:
    """Runs a command on a terminal, and returns its exit code and all that it wrote."""
    ours, child = _start(arguments, columns, environment)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux reports that the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return child.wait(timeout=120), seen.decode().replace("\r\n", "\n")


class Session:
    """A command on a terminal, to type to and to read from."""

    def __init__(self, *arguments: str, columns: int = 80, **environment: str) -> None:
        self._ours, self.child = _start(arguments, columns, environment)
        self.raw = b""
        self._read = 0  # how much of the text was read by `wait_for`
        self._over = False  # nothing more will come

    @property
    def text(self) -> str:
        """All that was written, without escape sequences."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw.decode("utf-8", "replace"))
        return plain.replace("\r\n", "\n").replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self, pattern: str) -> str:
        """Presses Ctrl-C at a prompt until the pattern appears. Python's line editor checks for signals and
        then waits for keys: a signal in between is seen only at the next key, so it is pressed again."""
        for _ in range(10):
            self.type("\x03")
            try:
                return self.wait_for(pattern, seconds=5)
            except AssertionError as error:
                unseen = error
        raise unseen

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Reads until the pattern appears, and returns the text up to its end."""
        end = awake() + seconds
        while True:
            found = re.search(pattern, self.text[self._read :])
            if found:
                start, self._read = self._read, self._read + found.end()
                return self.text[start : self._read]
            if not self.more(0.2) and (self._over or awake() > end):
                raise AssertionError(f"{pattern!r} did not come; what came is {self.text[self._read :]!r}")

    def more(self, seconds: float) -> bool:
        """Waits for more output, and returns whether there was any."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            part = os.read(self._ours, 65536)
        except OSError:
            part = b""
        self._over = not part
        self.raw += part
        return bool(part)

    def end(self) -> int:
        """Waits for the end of the command, and returns its exit code."""
        while self.more(120):
            pass
        os.close(self._ours)
        return self.child.wait(timeout=120)


def _start(
    arguments: tuple[str, ...], columns: int, environment: dict[str, str]
) -> tuple[int, subprocess.Popen[bytes]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    settings = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "50", **environment}
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}

    child = subprocess.Popen(
        [*GLASSLOOP, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=inherited | settings,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    return ours, child
