"""A command that is forked does what one that is started anew does (forking.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import forking
import pytest

GLASSLOOP = [sys.executable, "-m", "glassloop"]
ANEW = {"GLASSLOOP_FORK": "0"}

pytestmark = pytest.mark.skipif(not forking.CAN_FORK, reason="commands are forked on Linux only")

PLUGIN = """
import os, sys, threading
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.encoding, stream.errors, stream.line_buffering, stream.isatty(), stream.mode)
print(sys.argv, sys.path[0], os.getcwd(), os.getpgid(0) == os.getpid(), threading.active_count())
print(sorted(name for name in os.environ if name not in ("GLASSLOOP_FORK", "PYTEST_CURRENT_TEST")))
print(sorted(os.listdir("/proc/self/fd")), __import__("signal").getsignal(2), __name__)
"""


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["nonsense"],
        ["generate", "x", "--plugin", "own.py", "--temperature", "-1"],
        ["runs", "show", "nothing"],
    ],
)
def test_output_status_and_surroundings_are_the_same(arguments, session, tmp_path):
    (tmp_path / "own.py").write_text(PLUGIN)
    both = []
    for more in ({}, ANEW):
        command = [*GLASSLOOP, *arguments]
        environment = os.environ | {"GLASSLOOP_STORE": str(tmp_path / "runs.db")} | more
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
            start_new_session=session,
        ) as process:
            assert (process._ended is None) == bool(more), forking._Parent.differences(environment)
            out, error = process.communicate(timeout=60)
        both.append([process.returncode, *out.splitlines(), *error.splitlines()])
    for forked, anew in zip(*both, strict=True):
        assert forked == anew
    assert any(both[0][1:])


def test_a_signal_is_seen_in_the_status():
    waiting = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*GLASSLOOP, "generate", "-"], **waiting) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
        process.kill()
        assert process.wait(120) == process.returncode == -signal.SIGKILL


def test_another_environment_of_the_interpreter_starts_it_anew():
    done = subprocess.Popen([*GLASSLOOP, "--version"], env=os.environ | {"PYTHONOPTIMIZE": "1"}, stdout=-3)
    assert done._ended is None and done.wait(60) == 0
