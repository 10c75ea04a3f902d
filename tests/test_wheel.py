"""The wheel and the sdist of `make wheel`: complete, and usable in an empty environment without a compiler.

Skipped unless GLASSLOOP_DIST names the folder with both: installing takes longer than all other tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassloop.ops.native.library import library

DIST = os.environ.get("GLASSLOOP_DIST")
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not DIST, reason="GLASSLOOP_DIST names no folder with a wheel and an sdist")


def _only(pattern: str) -> Path:
    (found,) = Path(DIST or "").resolve().glob(pattern)
    return found


@pytest.fixture(scope="module")
def bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=True)
    run(
        folder / "bin", "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", _only("*.whl")
    )
    return folder / "bin"


def environment(bin: Path) -> dict[str, str]:
    """The variables of a process that finds no compiler, and nothing of this repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": str(bin), "CC": "/nonexistent"}


def run(bin: Path, command: str, *arguments: object) -> str:
    done = subprocess.run(
        [bin / command, *map(str, arguments)],
        env=environment(bin),
        cwd=bin,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_wheel_serves_every_python_of_its_platform():
    wheel = _only("*.whl")
    platform = "macosx_" if sys.platform == "darwin" else "manylinux_"
    assert re.fullmatch(rf"glassloop-[\d.]+-py3-none-{platform}\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert "glassloop/ops/native/libglassloop.so" in names and "glassloop/server/static/index.html" in names
    assert any(name.startswith("glassloop/server/static/assets/") for name in names)
    assert not [name for name in names if name.endswith((".c", ".h")) or name.startswith("tests")]


def test_the_sdist_has_the_sources_and_the_studio():
    with tarfile.open(_only("*.tar.gz")) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "src/glassloop/ops/native").glob("*.[ch]")}
    assert sources and sources <= names
    assert {"setup.py", "pyproject.toml", "LICENSE", "src/glassloop/server/static/index.html"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_it_runs_with_the_best_instructions_of_this_machine(bin: Path):
    code = "from glassloop.ops.native.library import FILE, library; print(library().gl_name().decode(), FILE)"
    best, _, file = run(bin, "python", "-c", code).strip().partition(" ")
    assert best == library().gl_name().decode() and Path(file).is_relative_to(bin.parent)
    told = run(
        bin, "glassloop", "generate", "The capital of France is", "--temperature", "0", "-n", "4", "--json"
    )
    assert json.loads(told)["text"].startswith(" Paris")


@pytest.fixture
def url(bin: Path) -> Iterator[str]:
    command = [bin / "glassloop", "serve", "--port", "0", "--no-store", "--kv-memory", "100MB"]
    with subprocess.Popen(
        command, env=environment(bin), cwd=bin, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield re.search(r"http://[\d.:]+", process.stderr.readline())[0]
        finally:
            process.kill()


def test_it_serves_the_studio(url: str):
    def get(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            return answer.read().decode()

    assets = re.findall(r'(?:src|href)="\.?(/assets/[^"]+)"', get("/"))
    assert len(assets) >= 2 and all(get(path) for path in assets)
