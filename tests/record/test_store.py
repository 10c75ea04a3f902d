"""The store: runs that were added stay, whatever other processes write and however a process ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from engine.random_runs import PROMPT, SmallLLM, small_llm
from hostile.tiny import write_tiny

from glassloop import LLM, Run, Sampling, Store, TraceError
from glassloop.decode.candidates import Candidates
from glassloop.decode.chain import DEFAULT_ORDER
from glassloop.decode.stage import REGISTER, Step, stage
from glassloop.record.store.store import default_path


def make(seed: int = 1, tokens: int = 5, **options) -> Run:
    return small_llm().generate(PROMPT, Sampling(seed=seed, max_tokens=tokens, ignore_eos=True, **options))


def test_what_was_added_comes_back(location):
    store = Store(location)
    runs = [make(seed) for seed in range(3)]
    store.add(*runs)
    assert [entry.id for entry in store.list()] == [run.id for run in reversed(runs)]
    assert [entry.id for entry in store.list(limit=1)] == [runs[2].id]
    entry = store.list()[-1]
    assert (entry.text, entry.tokens, entry.seed) == (runs[0].text, 5, 0)
    assert (entry.finish_reason, entry.model, entry.parent) == ("length", "small", None) and entry.size > 0
    for run in runs:
        assert store.get(run.id).to_dict() == run.to_dict() and store.get(run.id).tokens == run.tokens
    assert store.get("last").id == runs[2].id and store.get(runs[0].id[:12]).id == runs[0].id
    store.add(runs[0])
    assert len(store) == 3


def test_names_that_mean_nothing_or_too_much(location):
    store = Store(location)
    assert len(store) == 0 and list(store.list()) == [] and not (store.path and store.path.exists())
    with pytest.raises(TraceError, match=r"there is no run in .* yet"):
        store.get("last")
    one, other = make(1), make(2)
    one.id, other.id = "ab12" * 4, "ab34" * 4
    store.add(one, other)
    with pytest.raises(TraceError, match="several runs begin with 'ab'"):
        store.get("ab")
    for name in ("", "%", "zz", "ab1%"):
        with pytest.raises(TraceError, match="there is no run"):
            store.get(name)
    assert store.get("ab3").id == other.id


def test_a_run_comes_with_its_family(location, tmp_path):
    store = Store(location)
    run = make(n=2, tokens=10)
    fork = run.fork(3, token=101, n=1)
    again = fork.fork(6)
    store.add(*run.samples, fork, again, make(9))
    for each in (run, fork, again):
        found = store.get(each.id)
        assert [one.id for one in found.tree()] == [one.id for one in run.tree()]
        assert str(found.tree()) == str(run.tree())
    store.export(again.id, tmp_path / "a.glass", tree=True)
    assert len(Run.load(tmp_path / "a.glass").tree()) == 4
    store.remove(fork.id)
    assert store.get(again.id).replay(small_llm()).identical  # it needs no other run


def test_what_is_forgotten(location):
    store = Store(location)
    runs = [make(seed) for seed in range(5)]
    store.add(*runs)
    assert store.remove(runs[4].id, runs[0].id[:10]) == 2
    assert store.prune(keep=2) == 1 and [entry.id for entry in store.list()] == [runs[3].id, runs[2].id]
    assert store.prune(keep=0) == 2 and len(store) == 0
    with pytest.raises(TraceError, match="keep is -1"):
        store.prune(-1)


def test_an_llm_with_a_store_keeps_every_run(location):
    llm = SmallLLM()
    llm.store = Store(location)
    run = llm.generate(PROMPT, Sampling(max_tokens=4, n=3))
    fork = run.fork(2, n=1)

    @stage("slow", kind="mask")
    def slow(candidates: Candidates, step: Step) -> Candidates:
        time.sleep(0.01)  # or it might be done before we leave
        return candidates

    try:
        stream = llm.stream(
            PROMPT, Sampling(max_tokens=150, ignore_eos=True, stages=[*DEFAULT_ORDER, "slow"])
        )
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    finally:
        REGISTER.pop("slow")
    llm.close()
    kept = {entry.id: entry for entry in llm.store.list()}
    assert {each.id for each in [*run.samples, fork]} < set(kept) and len(kept) == 5
    assert sum(entry.finish_reason == "cancelled" for entry in kept.values()) == 1


def test_an_llm_forgets_a_run_that_is_removed_from_its_store(tmp_path):
    path = write_tiny(tmp_path / "tiny.gguf")
    with LLM(path, store=tmp_path / "runs.db", kv_memory="2MB") as llm:
        text = "a text that nobody else has written, of more than one page of the cache"
        run = llm.generate(text, Sampling(max_tokens=3))
        assert llm.generate(text, Sampling(max_tokens=3)).cached_tokens > 60
        llm.explain(run, 1)
        llm.store.flush()
        for entry in llm.store.list():
            llm.store.remove(entry.id)
        assert llm.engine.loop.tree.node_count == 0 and not llm._rows._rows
        assert not any(recent._pieces for recent in llm.engine.loop.drafts.recent_runs._owners.values())
        assert llm.generate(text, Sampling(max_tokens=3)).cached_tokens == 0
        store = llm.store
        store.flush()
    store.remove(store.list()[0].id)  # a closed engine has forgotten it


def test_a_run_that_is_put_is_written_as_it_was_then(tmp_path):
    """A run may be forked or continued before the store's thread comes to it."""
    store, waits, goes = Store(tmp_path / "a.db"), threading.Event(), threading.Event()
    run = SmallLLM().generate(PROMPT, Sampling(max_tokens=4))
    run.forks[45] = 1
    store._writer.call(lambda: (waits.set(), goes.wait(60)))
    assert waits.wait(60)
    store.put(run)
    run.forks[46] = 3
    run.prompt_tokens.append(run.tokens[0])
    run.drafts.proposed += 7
    goes.set()
    store.flush()
    kept = store.get(run.id)
    assert (
        kept.forks == {45: 1} and not kept.prompt_tokens and kept.drafts.proposed == run.drafts.proposed - 7
    )
    store.close()


def test_a_store_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    llm = SmallLLM()
    llm.store = Store(tmp_path / "file" / "runs.db")
    assert len(llm.generate(PROMPT, Sampling(max_tokens=4, ignore_eos=True)).tokens) == 4
    with pytest.raises(TraceError, match="cannot use the store"):
        llm.close()


def test_a_file_that_is_no_store(tmp_path):
    path = tmp_path / "runs.db"
    path.write_text("hello " * 100)
    with pytest.raises(TraceError, match=r"cannot use the store .*runs.db: file is not a database"):
        Store(path).list()
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(TraceError, match="is of version 9; this glassloop uses up to 4"):
        Store(newer).list()


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("GLASSLOOP_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "glassloop" / "runs.db"
    monkeypatch.setenv("XDG_DATA_HOME", "not absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "share" / "glassloop" / "runs.db"
    monkeypatch.setenv("GLASSLOOP_STORE", str(tmp_path / "x.db"))
    assert default_path() == tmp_path / "x.db"
    assert Store.of(True).path == tmp_path / "x.db" and Store.of(None) is None and Store.of(False) is None


# Adds copies of one run under new ids until it is killed; says each id once it is on disk.
_WRITE = """
import secrets, sys
from glassloop import Run, Store
run, store = Run.load(sys.argv[1]), Store(sys.argv[2])
for _ in range(int(sys.argv[3])):
    run.id = secrets.token_hex(8)
    store.add(run)
    print(run.id, flush=True)
"""


def _writers(tmp_path, location: str, count: int, runs: int) -> list[subprocess.Popen[str]]:
    make(tokens=40, logprobs=20).save(tmp_path / "a.glass")
    command = [sys.executable, "-c", _WRITE, str(tmp_path / "a.glass"), location, str(runs)]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]


def test_several_processes_write_at_once(location, tmp_path):
    said = [writer.communicate(timeout=300)[0].split() for writer in _writers(tmp_path, location, 3, 20)]
    store = Store(location)
    assert [len(ids) for ids in said] == [20, 20, 20]
    assert {entry.id for entry in store.list()} == {each for ids in said for each in ids}


def test_a_killed_process_leaves_every_run_that_it_had_written(location, tmp_path):
    writers = _writers(tmp_path, location, 2, 100_000)
    said: set[str] = set()
    for number, writer in enumerate(writers):
        assert writer.stdout is not None
        said |= {writer.stdout.readline().strip() for _ in range(5)}
        time.sleep(0.05 + 0.1 * number)
        os.kill(writer.pid, signal.SIGKILL)
        said |= {line.strip() for line in writer.stdout.read().splitlines(True) if line.endswith("\n")}
        writer.wait()
    store = Store(location)
    kept = [entry.id for entry in store.list()]
    assert said <= set(kept) and len(kept) <= len(said) + 2  # one each may be written and not yet said
    for each in kept:
        assert len(store.get(each).tokens) == 40
    if store.path is not None:
        with sqlite3.connect(store.path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.add(make(77))
    assert store.get("last").seed == 77
