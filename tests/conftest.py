"""Hypothesis looks for new examples every time on a developer's machine. In CI it takes the same ones, so
that a change is judged by itself and not by the luck of the draw.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import forking
import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

# The workers of pytest share the cores. Threads of OpenMP and BLAS wait for each other in a loop: with more
# of them than cores, a test of tiny models takes several times as long. Set before NumPy and PyTorch are
# imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A job in the background has Ctrl-C ignored, and so would have all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test writes to the store of the person who runs it.
os.environ["GLASSLOOP_STORE"] = str(Path(tempfile.mkdtemp(prefix="glassloop-")) / "runs.db")

# Commands are forks of a process that has imported everything: tests start hundreds of them.
subprocess.Popen = forking.Popen

# Tests of twenty seconds and more come first: one that starts last would leave the other core idle.
LONG = ("tests/test_exercises.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
