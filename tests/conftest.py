"""Hypothesis looks for new examples every time on a developer's machine. In CI it takes the same ones, so
that a change is judged by itself and not by the luck of the draw.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from postgres import PostgresServer, installed

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

# Tests of twenty seconds and more come first: one that starts last would leave the other core idle.
LONG = ("tests/test_exercises.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests that need one; each test has a database of its own."""
    programs = installed()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'glassloop[postgres]')")
    server = PostgresServer(programs)
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store is: a file that does not exist, or the URL of an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "new" / "runs.db")
    return request.getfixturevalue("postgres").new_database()
