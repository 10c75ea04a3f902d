"""The memory that a process may take: control groups of both versions, limits of the process, and refusals of
one line where something does not fit."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop import LLM, NoMemoryError
from glassloop.errors import GlassloopError
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops import choose_ops
from glassloop.ops.memory import FreeMemory, check_room, host_memory

MB = 1 << 20
_LIMITED = """
import resource, sys
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]), resource.RLIM_INFINITY))
sys.argv[1:3] = []
from glassloop.cli.main import main
main()
"""


def _system(root: Path, version: int, mounted: str, limits: list[tuple[int | None, int, int]]) -> Path:
    """Writes the files of a system whose process is in nested control groups: for each, from the outermost,
    its limit in MB (None: none), what is used, and how much of that are unused pages of files."""
    own = "/" + "/".join(f"g{depth}" for depth in range(1, len(limits)))
    proc, mount = root / "proc/self", root / "sys/fs/cgroup"
    proc.mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemFree: 1 kB\nMemAvailable:   1048576 kB\n")
    (proc / "cgroup").write_text(f"5:cpu:/\n4:memory:{own}\n0::/\n" if version == 1 else f"0::{own}\n")
    kind = "cgroup cgroup rw,memory" if version == 1 else "cgroup2 cgroup2 rw"
    (proc / "mountinfo").write_text(
        f"20 1 0:1 / / rw - ext4 /dev/x rw\n31 23 0:28 {mounted} /sys/fs/cgroup rw,relatime - {kind}\n"
    )
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    for depth, (limit, used, files) in enumerate(limits):
        group = Path(*(f"g{number}" for number in range(1, depth + 1)))
        if not (Path("/") / group).is_relative_to(mounted):
            continue
        folder = mount / (Path("/") / group).relative_to(mounted)
        folder.mkdir(parents=True, exist_ok=True)
        unlimited = "max" if version == 2 else str((1 << 63) - 4096)
        (folder / names[0]).write_text(f"{unlimited if limit is None else limit * MB}\n")
        (folder / names[1]).write_text(f"{used * MB}\n")
        (folder / "memory.stat").write_text(f"cache 1\nactive_file 9\n{names[2]} {files * MB}\n")
    return root


@given(
    st.sampled_from([1, 2]),
    st.lists(
        st.tuples(st.none() | st.integers(1, 2000), st.integers(0, 1500), st.integers(0, 300)),
        min_size=1,
        max_size=4,
    ),
)
def test_the_narrowest_of_all_groups_decides(tmp_path_factory, version, limits):
    root = _system(tmp_path_factory.mktemp("system"), version, "/", limits)
    left = [max(0, limit - max(0, used - files)) for limit, used, files in limits if limit is not None]
    assert host_memory(root).size == min([1024, *left]) * MB


def test_in_a_container_the_top_of_what_is_mounted_is_its_group(tmp_path):
    root = _system(tmp_path, 2, "/g1", [(10, 5, 0), (400, 100, 0), (300, 50, 0)])
    assert host_memory(root) == FreeMemory(250 * MB, "in its control group")
    other = _system(tmp_path / "other", 2, "/g1", [(None, 0, 0), (400, 100, 0)])
    (other / "proc/self/cgroup").write_text("0::/elsewhere\n")
    assert host_memory(other).size == 300 * MB


def test_a_system_that_says_nothing_has_some_memory(tmp_path):
    assert host_memory(tmp_path).size > 0


def test_a_refusal_has_figures():
    check_room("kv_memory is", 5, FreeMemory(5, ""), "give less")
    with pytest.raises(NoMemoryError, match=r"^kv_memory is 6 B; 5 B are free under ulimit -v: give less$"):
        check_room("kv_memory is", 6, FreeMemory(5, "under ulimit -v"), "give less")


@pytest.mark.parametrize("ops", ["native", "reference"])
def test_python_gets_an_error_of_its_own(ops):
    with pytest.raises(NoMemoryError, match=r"^kv_memory is 512000.0 GB; .* are free"):
        LLM(ops=ops, kv_memory="500TB")
    assert issubclass(NoMemoryError, MemoryError) and issubclass(NoMemoryError, GlassloopError)


def test_the_memory_of_a_model_is_known_before_it_is_loaded():
    files = ModelFiles(fetch(DEFAULT_MODEL))
    for name in ("native", "reference"):
        ops = choose_ops(name)
        known = files.memory(ops)
        model = files.transformer(ops)
        assert known.page == model.page_bytes
        assert known.cache(1) == known.page
        if name == "native":
            kinds = [part.kind for layer in model.layers for part in layer]
            linears = [getattr(kind, field) for kind in kinds for field in kind._fields]
            matrices = {id(each.weight): each.weight for each in linears if hasattr(each, "weight")}
            matrices = {key: each for key, each in matrices.items() if hasattr(each, "layout")}
            taken = sum(each.data.nbytes for each in [*matrices.values(), model.token_embedding])
            assert taken <= known.weights < taken * 1.01


def _limited(kind: str, limit: int, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _LIMITED, kind, str(limit), *command], capture_output=True, text=True
    )


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
class TestLimitedProcess:
    @pytest.fixture(autouse=True)
    def _store(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GLASSLOOP_STORE", str(tmp_path / "runs.db"))

    @pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
    def test_a_smaller_cache_is_taken_by_default(self, kind):
        done = _limited(kind, 900_000 << 10, "generate", "hi", "-n", "2")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr

    @pytest.mark.parametrize("size", ["500GB", "60GB", "800MB"])
    def test_a_cache_that_does_not_fit_is_one_line(self, size):
        done = _limited("RLIMIT_AS", 900_000 << 10, "generate", "hi", "-n", "2", "--kv-memory", size)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "kv_memory is " in done.stderr and " are free under ulimit -v: " in done.stderr

    def test_serve_refuses_in_one_line_too(self):
        done = _limited("RLIMIT_AS", 1 << 40, "serve", "--port", "0", "--kv-memory", "900GB")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("glassloop: kv_memory is 900.0 GB; ")

    @pytest.mark.parametrize("limit", [300_000, 350_000, 420_000])
    def test_weights_that_do_not_fit_are_one_line(self, limit):
        done = _limited("RLIMIT_AS", limit << 10, "generate", "hi", "-n", "2")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "weights" in done.stderr and "are free under ulimit -v" in done.stderr


def test_the_limits_of_this_process_are_respected():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    code = "from glassloop.ops.memory import host_memory; print(host_memory())"
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({400 << 20}, {hard})); {code}"
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, env=os.environ)
    assert "under ulimit -v" in done.stdout, done.stderr
    assert resource.getrlimit(resource.RLIMIT_AS) == (soft, hard)
