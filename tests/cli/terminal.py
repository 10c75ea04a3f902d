"""A command in a pseudo-terminal, as a person sees it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

GLASSLOOP = [sys.executable, "-m", "glassloop"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a pipe."""
    return subprocess.run(
        [*GLASSLOOP, *arguments], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


def on_terminal(*arguments: str, columns: int = 80, **environment: str) -> tuple[int, str]:
    """On a terminal of 80 columns: the exit code, and all that was written to it."""
    ours, theirs = pty.openpty()
    settings = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "50", **environment}
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        [*GLASSLOOP, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=inherited | settings,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return child.wait(timeout=120), seen.decode().replace("\r\n", "\n")
