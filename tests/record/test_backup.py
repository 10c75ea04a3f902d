"""Copies of a store that is written to, upgrades that a person asks for, and who can read the files."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from engine.random_runs import PROMPT, small_llm
from waiting import wait_until

from glassloop import Run, Sampling, Store, TraceError
from glassloop.record.store import tables
from glassloop.record.store import writer as writing

_NAMES = "id, request, parent, created, model, prompt, text, tokens, finish_reason, seed, data"


def make(seed: int = 1, **options) -> Run:
    return small_llm().generate(PROMPT, Sampling(seed=seed, max_tokens=4, ignore_eos=True, **options))


def ids(store: Store) -> list[str]:
    return [entry.id for entry in store.list()]


def older(path: Path, version: int, *runs: Run) -> Store:
    """Returns a store of an older version with these runs."""
    with closing(Store(path.with_suffix(".new"))) as new:
        new.add(*runs)
    with closing(sqlite3.connect(path.with_suffix(".new"))) as source, closing(sqlite3.connect(path)) as made:
        for statements in tables._STEPS[:version]:
            for statement in statements:
                made.execute(statement)
        rows = source.execute(f"SELECT {_NAMES} FROM runs ORDER BY number").fetchall()
        made.executemany(f"INSERT INTO runs ({_NAMES}) VALUES ({', '.join('?' * 11)})", rows)
        made.execute(f"PRAGMA user_version = {version}")
        made.commit()
        made.execute("PRAGMA journal_mode = WAL")
    return Store(path, patience=0.2)


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def run(*command: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "glassloop", *command],
        env=os.environ | {"GLASSLOOP_STORE": str(store)},
        capture_output=True,
        text=True,
    )


def test_a_copy_of_a_store_that_is_written_to_is_whole(tmp_path):
    store = Store(tmp_path / "runs.db")
    store.add(make())
    stop = threading.Event()
    added: list[str] = []

    def write() -> None:
        writer = Store(tmp_path / "runs.db")
        for seed in range(10_000):
            if stop.is_set():
                break
            pair = make(2 * seed), make(2 * seed + 1)
            writer.add(*pair)  # in one transaction: a copy has both or none
            added.extend(each.id for each in pair)
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            wait_until(lambda known=len(added): len(added) > known)
            known = set(added)
            copy = tmp_path / f"copy-{number}.db"
            count = store.backup(copy)
            assert not list(tmp_path.glob("copy*-wal")) and not list(tmp_path.glob(".copy*"))
            copied = Store(copy)
            assert known <= set(ids(copied)) and len(copied) == count and count % 2 == 1
            for id in ids(copied)[:3]:
                assert copied.get(id).id == id
            copied.close()
    finally:
        stop.set()
        thread.join()


def test_a_copy_replaces_nothing_and_only_its_owner_reads_it(tmp_path):
    store = Store(tmp_path / "runs.db")
    with pytest.raises(TraceError, match="there is no store"):
        store.backup(tmp_path / "copy.db")
    store.add(make())
    store.backup(tmp_path / "copy.db")
    before = (tmp_path / "copy.db").read_bytes()
    with pytest.raises(TraceError, match=r"copy.db: exists already; a new file is expected"):
        store.backup(tmp_path / "copy.db")
    with pytest.raises(TraceError, match=r"cannot write .*no/copy.db: No such file or directory"):
        store.backup(tmp_path / "no" / "copy.db")
    assert (tmp_path / "copy.db").read_bytes() == before
    for file in tmp_path.iterdir():  # the store, its log, and the copy
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_folder_that_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(TraceError, match=r"cannot use the store .*no/runs.db: there is no folder .*/no$"):
        Store(tmp_path / "no" / "runs.db").add(make())
    assert not (tmp_path / "no").exists()
    monkeypatch.delenv("GLASSLOOP_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Store().add(make())  # the user's own store needs no preparation
    assert stat.S_IMODE((tmp_path / "data" / "glassloop" / "runs.db").stat().st_mode) == 0o600


def test_an_idle_store_is_whole_in_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_IDLE", 0.1)
    store = Store(tmp_path / "runs.db")
    made = make()
    store.put(made)
    store.written().result()
    alone = tmp_path / "alone.db"

    def copied() -> bool:
        alone.write_bytes((tmp_path / "runs.db").read_bytes())  # as `cp` does, without the log
        with closing(sqlite3.connect(alone)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master").fetchall()
            return bool(names) and connection.execute("SELECT id FROM runs").fetchall() == [(made.id,)]

    wait_until(copied)
    assert ids(store) == [made.id]


@pytest.mark.parametrize("number", range(1, tables.VERSION))
def test_an_older_store_is_read_and_upgraded_only_when_asked(tmp_path, number):
    runs = [make(1, n=2), make(2), make(3)]
    store = older(tmp_path / "runs.db", number, *runs)
    before = (tmp_path / "runs.db").read_bytes()
    assert ids(store) == [each.id for each in reversed(runs)] and len(store) == 3
    assert store.get("last").to_dict() == runs[2].to_dict()
    assert store.list(search=runs[0].id[:10])[0].id == runs[0].id
    wrong = f"it is of version {number}, and this glassloop writes version {tables.VERSION}; 'glassloop runs"
    for write in (lambda: store.add(make(4)), store.check, lambda: store.remove(runs[0].id)):
        with pytest.raises(TraceError, match=wrong):
            write()
    store.backup(tmp_path / "copy.db")  # an older store is copied as it is
    assert version(tmp_path / "copy.db") == number
    waiting = make(5)
    store.put(waiting)
    store.written().result()
    assert store.unwritten == 1 and (tmp_path / "runs.db").read_bytes() == before
    # Another program upgrades it; this one writes what it has kept for it.
    kept = tmp_path / f"runs.db.v{number}"
    assert Store(tmp_path / "runs.db").upgrade() == (number, tables.VERSION, kept)
    store.flush()
    assert ids(store) == [waiting.id, *(each.id for each in reversed(runs))]
    # The way back: the copy is the store as it was.
    assert version(kept) == number and stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert ids(Store(kept)) == [each.id for each in reversed(runs)]
    assert Store(tmp_path / "runs.db").upgrade() == (tables.VERSION, tables.VERSION, None)


def test_an_upgrade_that_cannot_keep_a_copy_changes_nothing(tmp_path):
    store = older(tmp_path / "runs.db", 1, make())
    (tmp_path / "runs.db.v1").write_text("mine")
    with pytest.raises(TraceError, match=r"runs\.db\.v1: exists already"):
        store.upgrade()
    assert version(tmp_path / "runs.db") == 1 and (tmp_path / "runs.db.v1").read_text() == "mine"


def test_a_program_that_has_an_older_store_open_can_go_on_writing(tmp_path):
    """A server of the version before, which is still running when the store is upgraded."""
    older(tmp_path / "runs.db", tables.VERSION - 1, make(1)).close()
    insert = f"INSERT INTO runs ({_NAMES}) VALUES ({', '.join('?' * 11)})"
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as running:
        (row,) = running.execute(f"SELECT {_NAMES} FROM runs").fetchall()
        Store(tmp_path / "runs.db").upgrade()
        running.execute(insert, ("f" * 16, *row[1:]))
    assert set(ids(Store(tmp_path / "runs.db"))) == {"f" * 16, row[0]}


def test_the_commands_say_what_they_did(tmp_path):
    path = tmp_path / "runs.db"
    older(path, 2, make(1), make(2)).close()
    assert run("runs", "list", store=path).returncode == 0 and version(path) == 2
    refused = run("runs", "rm", "--keep", "1", store=path)
    assert refused.returncode == 2 and "'glassloop runs upgrade' upgrades it" in refused.stderr
    assert refused.stderr.count("\n") == 1
    served = run("serve", "--store", str(path), "--port", "0", store=path)
    assert served.returncode == 2 and "'glassloop runs upgrade' upgrades it" in served.stderr
    done = run("runs", "upgrade", "--store", str(path), store=tmp_path / "other.db")
    assert (
        f"upgraded from version 2 to {tables.VERSION}; the store as it was is kept as {path}.v2"
        in done.stdout
    ), done.stderr
    done = run("runs", "backup", str(tmp_path / "copy.db"), store=path)
    assert f"copy.db: 2 runs of {path}, " in done.stdout
    assert f"is of version {tables.VERSION} already" in run("runs", "upgrade", store=path).stdout
    copied = run("runs", "backup", "copy.dump", store="postgresql://user:word@nowhere/db")  # type: ignore[arg-type]
    assert copied.returncode == 2 and "pg_dump --schema=glassloop" in copied.stderr
    assert "word" not in copied.stderr.replace("own program", "")
