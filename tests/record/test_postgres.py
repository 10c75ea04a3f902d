"""The store in PostgreSQL: a restart of the server loses nothing, texts that it cannot hold are kept, errors
are in words and never show the password, and servers know of each other."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from engine.random_runs import PROMPT, small_llm
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres import PASSWORD, PostgresServer
from waiting import awake, wait_until

from glassloop import Run, Sampling, Store, TraceError
from glassloop.record.store import server_name
from glassloop.record.store import writer as writing
from glassloop.record.store.listing import contains
from glassloop.record.store.postgres import _STEPS
from glassloop.record.store.server_name import PostgresName


def make(seed: int = 1, tokens: int = 5, **options) -> Run:
    return small_llm().generate(PROMPT, Sampling(seed=seed, max_tokens=tokens, ignore_eos=True, **options))


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


def test_a_restart_in_the_middle_loses_nothing_that_was_put_or_added(postgres, url):
    store, runs = Store(url), [make(seed) for seed in range(60)]
    store.check()

    def write() -> None:
        for place, run in enumerate(runs):
            (store.put if place % 2 else store.add)(run)
            time.sleep(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(3):
        postgres.stop()
        time.sleep(0.05)
        postgres.start()
        assert len(store) >= 0  # reading goes on
        time.sleep(0.1)
    thread.join(60)
    store.flush()
    assert {entry.id for entry in store.list()} == {run.id for run in runs} and store.unwritten == 0
    store.close()


def test_runs_wait_for_a_server_that_stays_away_and_readers_are_told(postgres, url, monkeypatch):
    monkeypatch.setattr(writing, "_RETRY", 0.1)
    store, told = Store(url, patience=0.2), []
    store.on_failure(lambda run, error, lost: told.append((run.id, lost)))
    first, second = make(1), make(2)
    store.add(first)
    postgres.stop()
    try:
        store.put(second)
        wait_until(lambda: store.unwritten == 1)
        with pytest.raises(TraceError, match="cannot use the store postgresql://tester@/") as caught:
            store.list()
        assert PASSWORD not in str(caught.value) and "\n" not in str(caught.value)
        assert caught.value.reason == "the database cannot be reached"  # what clients of a server see
    finally:
        postgres.start()
    wait_until(lambda: not store.unwritten)
    assert {entry.id for entry in store.list()} == {first.id, second.id} and told == [(second.id, False)]
    store.flush()


def test_a_statement_that_loses_its_connection_is_executed_again(postgres, url):
    store = Store(url)
    store.add(make(1))
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'glassloop'"
    for seed in range(2, 5):
        assert len(store) == seed - 1
        assert postgres.run_sql(end)
        store.add(make(seed))
    assert len(store) == 4 and store.prune(1) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("s3cret", "wrong"), "password authentication failed"),
        (lambda url: url.replace("?", "x?"), "does not exist"),
        (lambda url: url.replace("host=/", "host=/nowhere/"), "No such file or directory"),
        (lambda url: url + "&colour=blue", "not a valid PostgreSQL URL"),
        (lambda url: url.replace("%25", "%"), "not a valid PostgreSQL URL"),
        (lambda url: "postgresql://tester:s3cret%25word@localhost:port/x", "not a valid PostgreSQL URL|port"),
        (lambda url: Path(url), "not a valid PostgreSQL URL"),  # it has only one slash then
        (lambda url: url.replace("postgresql", "mysql"), "'mysql'://; a file or postgresql://"),
    ],
)
def test_errors_are_one_line_and_never_show_the_password(url, change, said):
    began = awake()
    with pytest.raises(TraceError, match=said) as caught:
        Store(change(url)).check()
    message = str(caught.value)
    assert "\n" not in message and "s3cret" not in message and "%word" not in message
    assert awake() - began < 10  # there was no connection that could come back


def test_without_the_driver_the_error_says_what_to_install(url, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "psycopg"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(TraceError, match=r"pip install 'glassloop\[postgres\]'"):
        Store(url)


def test_a_newer_store_is_refused(postgres, url):
    Store(url).check()
    database = url.split("/")[3].split("?")[0]
    postgres.run_sql("UPDATE glassloop.settings SET value = '9' WHERE name = 'version'", database=database)
    with pytest.raises(TraceError, match="is of version 9; this glassloop uses up to 2"):
        Store(url).list()


def test_an_older_store_is_upgraded_only_when_asked(url, monkeypatch):
    Store(url).check()
    added = ("ALTER TABLE runs ADD COLUMN later TEXT",)
    monkeypatch.setattr("glassloop.record.store.postgres._STEPS", (*_STEPS, added))
    monkeypatch.setattr("glassloop.record.store.postgres.VERSION", len(_STEPS) + 1)
    for use in (lambda: Store(url).check(), lambda: Store(url).list()):
        with pytest.raises(TraceError, match="'glassloop runs upgrade' upgrades it; make a copy before"):
            use()
    assert Store(url).upgrade() == (len(_STEPS), len(_STEPS) + 1, None)
    Store(url).check()
    assert Store(url).upgrade().before == len(_STEPS) + 1


def held(text: str) -> str:
    """Returns a text as PostgreSQL can hold it."""
    return re.sub("[\x00\ud800-\udfff]", "\ufffd", text)


def test_any_text_is_kept_and_found_again(url):
    store, made = Store(url), make()
    hostile = st.sampled_from(["\x00", "a\x00b", "\ud800x", "%s ? %", "'; DROP TABLE runs; --", "\u202e"])

    @settings(max_examples=40, deadline=None)
    @given(st.text(min_size=1, max_size=30) | hostile)
    def check(text: str) -> None:
        made.prompt = text
        store.add(made)
        (entry,) = store.list()
        assert entry.prompt == held(text)
        for search in (text, text.upper(), text[1:], "\x00", "no such text"):
            assert bool(store.list(search=search)) == (
                not search
                or made.id.startswith(search.casefold())
                or contains(held(search).casefold(), *map(held, (made.title, text, made.text)))
            )
        assert store.run(text) is None and store.messages([text]) == {}

    check()


HOLD = """
import sys, time
from glassloop.record.store.server_name import PostgresName
held = PostgresName(sys.argv[1], sys.argv[2])
print(held.name, flush=True)
time.sleep(600)
"""


def test_a_name_is_held_until_its_process_ends_and_again_after_a_restart(postgres, url, monkeypatch):
    monkeypatch.setattr(server_name, "_GRACE", 0.0)
    monkeypatch.setattr(server_name, "_EVERY", 0.1)
    address = "127.0.0.1:8000"
    command = [sys.executable, "-c", HOLD, url, address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().strip() == address
    other = PostgresName(url, address)
    assert other.name.startswith(f"{address}#") and other.is_running(address)
    assert not other.is_running(other.name) and not other.is_running("never there")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not other.is_running(address))
    again = PostgresName(url, address)
    assert again.name == address and other.is_running(address) and again.is_running(other.name)
    assert len(other.shared_key()) == 32 and other.shared_key() == again.shared_key()
    postgres.stop()
    postgres.start()
    wait_until(lambda: other.is_running(address) and again.is_running(other.name))
    monkeypatch.setattr(server_name, "_GRACE", 600.0)
    assert other.is_running("any server that has not taken its lock yet")
    monkeypatch.setattr(server_name, "_GRACE", 0.0)
    other.release()
    wait_until(lambda: not again.is_running(other.name))
    again.release()
