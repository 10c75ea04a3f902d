"""Hypothesis looks for new examples every time on a developer's machine. In CI it takes the same ones, so
that a change is judged by itself and not by the luck of the draw.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import forking
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from postgres import PostgresServer, installed

if TYPE_CHECKING:
    from glassloop import LLM

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
if os.environ.get("CI"):
    settings.load_profile("ci")

# The workers of pytest share the cores. Threads of OpenMP, of BLAS and of the native op set wait for each
# other in a loop: with more of them than cores, a test of tiny models takes several times as long. Set before
# NumPy and PyTorch are imported. Tests that are about several threads of the native op set, and all that runs
# under the sanitizers, set their own number (ops/test_native.py, ops/sanitized.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("GLASSLOOP_THREADS", "1")

# While the modules of the tests are imported: looking among them for garbage takes long and finds little.
gc.disable()

# A job in the background has Ctrl-C ignored, and so would have all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test writes to the store of the person who runs it.
os.environ["GLASSLOOP_STORE"] = str(Path(tempfile.mkdtemp(prefix="glassloop-")) / "runs.db")
forking.surroundings.update(os.environ)

# Commands are forks of a process that has imported everything: tests start hundreds of them.
subprocess.Popen = forking.Popen

# Tests of twenty seconds and more come first: one that starts last would leave the other core idle.
LONG = (
    "tests/ops/test_native.py::test_no_byte_out_of_bounds",
    "tests/model/test_real_models.py",
    "tests/test_exercises.py",
    "tests/ops/test_other_machines.py::test_real_models_on_arm",
    "tests/attacks/test_files.py::test_no_byte_out_of_bounds",
    "tests/ops/test_arithmetic.py",
)

# The share of the examples that each property test asks for; more than 1 for a long run (CONTRIBUTING.md).
EXAMPLES = float(os.environ.get("GLASSLOOP_EXAMPLES", "0.35"))

_decorate = settings.__call__


def _share(self: settings, test: Callable[..., None]) -> object:
    """Gives a property that is a function inside a test its share of the examples."""
    written = test.hypothesis.inner_test if is_hypothesis_test(test) else test  # below @given
    if "<locals>" in written.__qualname__:
        self = settings(self, max_examples=max(1, round(self.max_examples * EXAMPLES)))
    return _decorate(self, test)


settings.__call__ = _share  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    tests = {item.function for item in items if isinstance(item, pytest.Function)}
    for test in filter(is_hypothesis_test, tests):
        asked = test._hypothesis_internal_use_settings or settings.default
        count = max(1, round(asked.max_examples * EXAMPLES))
        test._hypothesis_internal_use_settings = settings(asked, max_examples=count)


def pytest_collection_finish() -> None:
    gc.enable()


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
        return str(tmp_path / "runs.db")
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that is small enough for searches and evaluations of many answers."""
    from hostile.tiny import write_tiny

    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[LLM]:
    from glassloop import LLM

    with LLM(tiny_path, kv_memory="16MB") as made:
        yield made
