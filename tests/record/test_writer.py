"""The store's writing thread: removed runs stay removed, a bad run does not affect others, and runs that
could not be written are reported, tried again, and counted."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from engine.random_runs import PROMPT, small_llm
from waiting import wait_until

from glassloop import Run, Sampling, Store, TraceError
from glassloop.record.store import writer as writing
from glassloop.record.store.listing import Listing
from glassloop.record.store.tables import _FIRST


def make(seed: int = 1, tokens: int = 5, **options) -> Run:
    return small_llm().generate(PROMPT, Sampling(seed=seed, max_tokens=tokens, ignore_eos=True, **options))


@pytest.fixture
def store(location) -> Store:
    return Store(location, patience=0.2, origin="server", writer="one", prunes=True)


@pytest.fixture
def failures(store) -> list[tuple[str, bool]]:
    told: list[tuple[str, bool]] = []
    store.on_failure(lambda run, error, lost: told.append((run.id, lost)))
    return told


def ids(store: Store) -> set[str]:
    return {entry.id for entry in store.list()}


def test_a_removed_run_stays_removed_however_far_the_writer_is_behind(store):
    run = make()
    for _ in range(30):
        store.put(run)
        assert store.remove_soon(run.id).result() in (0, 1)
        assert run.id not in ids(store)
    store.flush()
    assert ids(store) == set()
    store.put(run)  # put after it was removed: it is there again
    store.flush()
    assert ids(store) == {run.id}


def test_a_run_that_cannot_be_packed_takes_no_other_along(store, failures):
    runs = [make(seed) for seed in range(6)]
    runs[2].prompt = "x" * (9 << 20)
    for run in runs:
        store.put(run)
    with pytest.raises(TraceError, match="at most 8388608"):
        store.flush()
    assert ids(store) == {run.id for run in runs} - {runs[2].id}
    assert failures == [(runs[2].id, True)] and store.unwritten == 0


def locked(store: Store, location: str) -> Any:
    """Returns a connection that holds the write lock, as one of another process would."""
    store.check()
    if store.path is None:
        import psycopg

        other: Any = psycopg.connect(location, autocommit=True)
        other.execute("BEGIN")
        other.execute("LOCK TABLE glassloop.runs IN EXCLUSIVE MODE")
    else:
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
    return other


def test_a_lock_of_another_process_loses_nothing_and_lets_others_read(store, location, failures, monkeypatch):
    monkeypatch.setattr(writing, "_RETRY", 0.1)
    first, second = make(1), make(2)
    store.add(first)
    other = locked(store, location)
    store.put(second)
    with pytest.raises(TraceError, match=r"database is locked|lock timeout"):
        store.remove_soon(first.id).result()
    assert ids(store) == {first.id} and store.run(first.id) is not None
    assert failures == [(second.id, False)] and store.unwritten == 1
    other.execute("COMMIT")
    wait_until(lambda: not store.unwritten)
    assert ids(store) == {first.id, second.id} and failures == [(second.id, False)]
    store.flush()  # nothing went wrong in the end


def test_a_full_disk_loses_only_what_does_not_fit_and_says_so(tmp_path):
    store, failures = Store(tmp_path / "runs.db"), []
    store.on_failure(lambda run, error, lost: failures.append((run.id, lost)))
    store.check()
    with store._database._writer.used() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 8}")
    runs = [make(seed, tokens=30) for seed in range(12)]
    for run in runs:
        store.put(run)
    with pytest.raises(TraceError, match="full"):
        store.flush()
    kept, lost = ids(store), {id for id, given_up in failures if given_up}
    assert kept and lost and kept | lost == {run.id for run in runs} and not kept & lost
    assert {id for id, given_up in failures if not given_up} == lost
    for id in kept:
        assert store.run(id) is not None


def test_only_so_many_runs_wait_to_be_tried_again(store, location, failures, monkeypatch):
    monkeypatch.setattr(writing, "MOST_UNWRITTEN", 3)
    other = locked(store, location)
    runs = [make(seed) for seed in range(5)]
    for run in runs:
        store.put(run)
        store.written().result()
    assert store.unwritten == 3
    assert [id for id, lost in failures if lost] == [run.id for run in runs[:2]]
    other.execute("COMMIT")
    with pytest.raises(TraceError, match="2 runs were not kept"):
        store.flush()
    assert ids(store) == {run.id for run in runs[2:]}


def test_only_so_many_tokens_wait_to_be_tried_again(store, location, failures, monkeypatch):
    monkeypatch.setattr(writing, "MOST_TOKENS", 25)
    other = locked(store, location)
    runs = [make(seed, tokens) for seed, tokens in ((1, 10), (2, 10), (3, 10), (4, 40))]
    for left, run in zip((1, 2, 2, 1), runs, strict=True):
        store.put(run)
        store.written().result()
        assert store.unwritten == left
    assert [id for id, lost in failures if lost] == [run.id for run in runs[:3]]
    other.execute("COMMIT")
    with pytest.raises(TraceError, match="3 runs were not kept"):
        store.flush()
    assert ids(store) == {runs[3].id}


def test_what_failed_before_it_was_removed_is_not_tried_again(store, location):
    other, run = locked(store, location), make()
    store.put(run)
    removed = store.remove_soon(run.id)
    with pytest.raises(TraceError):
        removed.result()
    other.execute("COMMIT")
    store.flush()
    assert ids(store) == set()


def test_a_run_is_written_as_it_was_when_it_was_put(store):
    run = make(tokens=5)
    extra = make(seed=2, tokens=50).tokens
    store.put(run)
    run.tokens.extend(extra)  # as when it is continued before the thread gets to it
    store.flush()
    assert len(store.run(run.id).tokens) == 5


def test_a_server_prunes_only_runs_that_it_made_and_was_told_to_prune(store, location):
    def filled(**options) -> list[Run]:
        made = [make(seed) for seed in range(3)]
        Store(location, **options).add(*made)
        return made

    others = [*filled(), *filled(origin="file"), *filled(origin="server", writer="two", prunes=True)]
    others += filled(origin="server", writer="one")  # by the same server, before it was told to prune
    own = [make(seed) for seed in range(5)]
    store.add(*own)
    store.add(others[0])  # continued here, but made by another program
    assert store.prune_soon(2, "one").result() == 3
    assert ids(store) == {run.id for run in [*others, *own[3:]]}


def test_a_run_that_is_written_again_keeps_its_place_and_stays_untrusted(store, location):
    old, new = make(1), make(2)
    store.put(old, tree="a" * 16, name="greedy", added=5.0)
    store.put(new)
    store.flush()
    Store(location).add(old)
    assert [entry.id for entry in store.list()] == [new.id, old.id]
    assert store.is_from_server(old.id) and store.tree_of(old.id) == ("a" * 16, "greedy", None)


def test_a_store_of_version_1_is_brought_up(tmp_path):
    store = Store(tmp_path / "runs.db")
    run = make(n=2)
    fork = run.fork(2, n=1)
    again = fork.fork(3)
    store.add(*run.samples, fork, again, make(9))
    store.close()
    with sqlite3.connect(store.path) as old:
        names = "id, request, parent, created, model, prompt, text, tokens, finish_reason, seed, data"
        rows = old.execute(f"SELECT {names} FROM runs").fetchall()
        old.execute("DROP TABLE runs")
        for statement in _FIRST:
            old.execute(statement)
        old.executemany(f"INSERT INTO runs ({names}) VALUES ({', '.join('?' * 11)})", rows)
        old.execute("PRAGMA user_version = 1")
    store = Store(store.path)
    assert len(store) == 5 and store.get(again.id).to_dict() == again.to_dict()
    assert len(store.kept(Listing(10))) == 5
    assert store.upgrade().copy == tmp_path / "runs.db.v1"
    kept = store.kept(Listing(10))
    trees = {each.entry.id: each.tree for each in kept}
    family = [*run.samples, fork, again]
    assert (
        len(kept) == 5 and {trees[each.id] for each in family} == {run.id} and len(set(trees.values())) == 2
    )
    assert [each.entry.id for each in store.kept(Listing(10, run.id))] == [
        each.id for each in reversed(family)
    ]
    store.flush()
    with sqlite3.connect(store.path) as now:  # what was made for the list is kept
        assert now.execute("SELECT count(*) FROM runs WHERE facts IS NULL").fetchone() == (0,)
    assert store.kept(Listing(10)) == kept


def test_a_bad_row_hides_no_other(tmp_path):
    store = Store(tmp_path / "runs.db")
    run = make(n=3)
    store.add(*run.samples)
    bad = run.samples[1].id
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE runs SET data = x'00', facts = NULL WHERE id = ?", (bad,))
    rest = {run.samples[0].id, run.samples[2].id}
    assert {each.entry.id for each in store.kept(Listing(10))} == rest
    assert {each.id for each in store.get(run.id).tree()} == rest
    with pytest.raises(TraceError, match=f"run {bad} .*is not a glassloop trace"):
        store.get(bad)
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE runs SET created = 'soon', facts = '[' WHERE id = ?", (bad,))
    assert {entry.id for entry in store.list()} == {each.entry.id for each in store.kept(Listing(10))} == rest
    store.remove(bad)
    assert len(store) == 2


def test_rows_that_descend_from_each_other_stand_alone(location):
    store = Store(location)
    one, other = make(1), make(2)
    one.parent, other.parent = other.id, one.id
    store.add(one, other)
    assert len(store.get(one.id).tree()) == 1
