"""The owner of a stored run: with an owner a store knows that one's runs alone, each owner keeps a share of
what is pruned or given up, and stores of before are read."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

import pytest
from engine.random_runs import PROMPT, small_llm
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres import PostgresServer

from glassloop import Run, Sampling, Store, TraceError
from glassloop.record.store import writer as writing
from glassloop.record.store.database import Stop
from glassloop.record.store.listing import Listing
from glassloop.record.store.tables import _FIRST, _SECOND, _THIRD, OWNERS

OWNERS_OF_RUNS = ("key a", "key b", None)
owned = st.lists(st.sampled_from(OWNERS_OF_RUNS), max_size=24)


def make(seed: int = 1, tokens: int = 3) -> Run:
    return small_llm().generate(PROMPT, Sampling(seed=seed, max_tokens=tokens, ignore_eos=True))


@pytest.fixture
def store(location) -> Store:
    return Store(location, patience=0.2, origin="server", writer="one", prunes=True)


RUNS = [make(seed) for seed in range(24)]


def fill(store: Store, owners: list[str | None]) -> dict[str, str | None]:
    """Stores a run for each of these owners, and returns whose each id is."""
    store.prune(0)
    for place, owner in enumerate(owners):
        store.put(RUNS[place], owner=owner, added=1000.0 + place)
    store.flush()
    return {RUNS[place].id: owner for place, owner in enumerate(owners)}


def listed(store: Store, **options: Any) -> set[str]:
    return {kept.entry.id for kept in store.kept(Listing(**options))}


def test_with_an_owner_the_runs_of_others_do_not_exist(store):
    @settings(max_examples=25, deadline=None)
    @given(owners=owned, viewer=st.sampled_from(("key a", "key b", "key c")), removed=st.integers(0, 23))
    def holds(owners, viewer, removed):
        whose = fill(store, owners)
        own = {id for id, owner in whose.items() if owner == viewer}
        assert listed(store, owner=viewer) == own
        assert listed(store) == set(whose)
        found = store.kept(Listing(50, search=RUNS[0].id[:4], owner=viewer), stop=Stop(60))
        assert {kept.entry.id for kept in found} <= own
        for id in whose:
            assert (store.run(id, viewer) is not None) == (store.added(id, viewer) is not None) == (id in own)
        id = RUNS[removed].id
        assert store.remove_soon(id, viewer).result() == (id in own)
        assert listed(store) == set(whose) - ({id} & own)

    holds()


def reference(owners: list[str | None], keep: int) -> set[int]:
    """Returns the places of the runs that stay: one by one, the oldest of the owner with the most goes."""
    left = list(range(len(owners)))
    while len(left) > keep:
        held = {owner: [place for place in left if owners[place] == owner] for owner in OWNERS_OF_RUNS}
        most = max(map(len, held.values()))
        left.remove(min(places[0] for places in held.values() if len(places) == most))
    return set(left)


def test_pruning_removes_the_oldest_of_the_owner_that_has_the_most(store):
    @settings(max_examples=25, deadline=None)
    @given(owners=owned, keep=st.integers(0, 24))
    def holds(owners, keep):
        fill(store, owners)
        stays = reference(owners, keep)
        assert store.prune(keep, "one") == len(owners) - len(stays)
        assert listed(store) == {RUNS[place].id for place in stays}

    holds()


def test_the_terminal_prunes_by_age_alone(store):
    fill(store, ["key a", *["key b"] * 5])
    assert store.prune(3) == 3
    assert listed(store) == {run.id for run in RUNS[3:6]}


def test_a_run_keeps_its_owner_whoever_writes_it_again(store):
    fill(store, ["key a", None])
    for run in RUNS[:2]:
        store.put(run, owner="key b")
    store.flush()
    assert listed(store, owner="key b") == set() and listed(store, owner="key a") == {RUNS[0].id}
    assert [store.tree_of(run.id)[2] for run in RUNS[:2]] == ["key a", None]


def test_forks_of_others_do_not_change_the_luck_of_the_next_one(store):
    """A file may name any run as its parent."""
    run = make()
    forks = [small_llm().fork(run, 1), small_llm().fork(run, 1)]
    for fork, owner in zip(forks, ("key a", "key b"), strict=True):
        store.put(fork, owner=owner)
    store.flush()
    counts = {}
    for owner in ("key a", "key b", None):
        run.forks.clear()
        store.count_forks(run, owner)
        counts[owner] = dict(run.forks)
    run.forks.clear()
    run.count_fork(1, forks[0].salt)
    assert counts["key a"] == run.forks != counts[None]


def test_nobody_pushes_out_the_runs_of_others_that_wait_for_the_disk(store, location, monkeypatch):
    monkeypatch.setattr(writing, "MOST_UNWRITTEN", 4)
    told: list[str] = []
    store.on_failure(lambda run, error, lost: told.append(run.id) if lost else None)
    store.check()
    other = _locked(store, location)
    for run, owner in zip(RUNS[:8], ["key a", "key a", *["key b"] * 6], strict=True):
        store.put(run, owner=owner)
    store.written().result()
    with pytest.raises(TraceError):
        store.remove_soon(RUNS[0].id, "key b").result()  # which is not a run of theirs
    assert told == [run.id for run in RUNS[2:6]]
    other.execute("COMMIT")
    with pytest.raises(TraceError, match="4 runs were not kept"):
        store.flush()
    assert listed(store, owner="key a") == {RUNS[0].id, RUNS[1].id}
    assert listed(store, owner="key b") == {RUNS[6].id, RUNS[7].id}


def _locked(store: Store, location: str) -> Any:
    """Returns a connection that holds the write lock, as one of another process would."""
    if store.path is None:
        import psycopg

        other: Any = psycopg.connect(location, autocommit=True)
        other.execute("BEGIN")
        other.execute("LOCK TABLE glassloop.runs IN EXCLUSIVE MODE")
        return other
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_no_statement_with_an_owner_reads_the_whole_table(tmp_path):
    store = Store(tmp_path / "runs.db", writer="one", prunes=True)
    owners = random.Random(1).choices(OWNERS_OF_RUNS, k=24)
    fill(store, owners)
    asked: list[str] = []
    with store._database._reader.used() as connection, store._database._writer.used() as writer:
        for each in (connection, writer):
            each.set_trace_callback(asked.append)
        id = RUNS[0].id
        store.run(id, "key a"), store.added(id, "key a"), store.writer_of(id, "key a")
        store.kept(Listing(9, owner="key a"), brief=True)
        store.kept(Listing(9, owner="key a", before=(1010.0, id)))
        store.prune(20, "one")
        for each in (connection, writer):
            each.set_trace_callback(None)
        plans = {query: _plan(writer, query) for query in asked if query.startswith(("SELECT", "DELETE"))}
    assert len(plans) > 6
    for query, plan in plans.items():
        assert not any(step.startswith("SCAN runs") or "TEMP B-TREE" in step for step in plan), (query, plan)


def _plan(connection: sqlite3.Connection, query: str) -> list[str]:
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]


def test_a_store_of_version_3_opens_and_its_runs_are_nobodys(tmp_path):
    path = tmp_path / "runs.db"
    store = Store(path)
    store.add(*RUNS[:3])
    store.close()
    with sqlite3.connect(path) as old:
        names = [row[1] for row in old.execute("PRAGMA table_info(runs)") if row[1] != "owner"]
        rows = old.execute(f"SELECT {', '.join(names)} FROM runs").fetchall()
        old.execute("DROP TABLE runs")
        for statement in (*_FIRST, *_SECOND, *_THIRD):
            old.execute(statement)
        marks = ", ".join("?" * len(names))
        old.executemany(f"INSERT INTO runs ({', '.join(names)}) VALUES ({marks})", rows)
        old.execute("PRAGMA user_version = 3")
    store = Store(path)
    assert listed(store) == {run.id for run in RUNS[:3]} and listed(store, owner="key a") == set()
    store.upgrade()
    assert listed(store) == {run.id for run in RUNS[:3]} and listed(store, owner="key a") == set()
    store.put(RUNS[3], owner="key a")
    store.flush()
    assert listed(store, owner="key a") == {RUNS[3].id}


def test_a_postgresql_store_of_version_1_opens_and_its_runs_are_nobodys(postgres: PostgresServer):
    url = postgres.new_database()
    store = Store(url)
    store.add(*RUNS[:3])
    store.close()
    database = url.split("/")[3].split("?")[0]
    assert len(OWNERS) == 4
    for statement in (
        "DROP INDEX glassloop.runs_owner",
        "DROP INDEX glassloop.runs_pruned_by",
        "ALTER TABLE glassloop.runs DROP COLUMN owner",
        "CREATE INDEX runs_pruned_by ON glassloop.runs (pruned_by) WHERE pruned_by IS NOT NULL",
        "UPDATE glassloop.settings SET value = '1' WHERE name = 'version'",
    ):
        postgres.run_sql(statement, database=database)
    store = Store(url)
    store.upgrade()
    assert listed(store) == {run.id for run in RUNS[:3]} and listed(store, owner="key a") == set()
    store.put(RUNS[3], owner="key a")
    store.flush()
    assert listed(store, owner="key a") == {RUNS[3].id}
    assert Store(url).list()
