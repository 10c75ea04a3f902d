"""A search in a store finds what `casefold` finds, ends when it is told to, and holds up no other reader."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from engine.random_runs import PROMPT, small_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Run, Sampling, Store
from glassloop.record.store.database import SearchStopped, Stop
from glassloop.record.store.listing import Listing, contains
from glassloop.record.store.store import open_database

# Characters whose lower case is ASCII, has several characters, or ends a text in C; and those of patterns.
_ODD = st.sampled_from(["\u212a", "ß", "ﬁ", "ſ", "İ", "\x00", "%", "_", "\\", "k", "K", "ss", "é", "É", "Ω"])
_TEXT = st.lists(_ODD | st.text("aAbB %", max_size=2), max_size=6).map("".join)


def _run() -> Run:
    return small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=4))


def test_a_search_finds_what_casefold_finds(tmp_path: Path) -> None:
    store, run = Store(tmp_path / "runs.db"), _run()

    @settings(max_examples=300, deadline=None)
    @given(_TEXT, _TEXT.filter(bool))
    def check(text: str, search: str) -> None:
        run.prompt = text
        store.add(run)
        found = bool(store.list(search=search))
        assert found == (
            run.id.startswith(search.casefold())
            or contains(search.casefold(), run.known_title, run.prompt, run.text)
        )
        assert found == bool(store.kept(Listing(1, search=search), stop=Stop(60)))

    check()


class After(Stop):
    """Stops a search when it has looked so many times whether to go on."""

    def __init__(self, looks: int) -> None:
        super().__init__(60)
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def _filled(path: Path, count: int = 200) -> tuple[Store, str]:
    store, run = Store(path), _run()
    first = run.id
    for number in range(count):
        run.id = f"{number:016x}"
        run.prompt = "Wörter " * 20
        store.put(run)
    run.id = first
    store.add(run)
    store.flush()
    return store, first


def test_a_search_ends_when_it_is_told_to(tmp_path: Path) -> None:
    store, _ = _filled(tmp_path / "runs.db")
    listing = Listing(10, search="nothing like it")
    for looks in (0, 1, 3):
        with pytest.raises(SearchStopped):
            store.kept(listing, stop=After(looks))
    with pytest.raises(SearchStopped):
        store.kept(listing, stop=Stop(0))
    cancelled = Stop(60)
    cancelled.cancel()
    with pytest.raises(SearchStopped):
        store.kept(listing, stop=cancelled)
    assert store.kept(listing, stop=Stop(60)) == []


def test_no_other_reader_waits_for_a_search(tmp_path: Path) -> None:
    store, id = _filled(tmp_path / "runs.db")
    began, goes_on = threading.Event(), threading.Event()

    class Long(After):
        def __call__(self) -> bool:
            if super().__call__():  # in the middle of the rows
                began.set()
                assert goes_on.wait(60)
            return False

    search = threading.Thread(target=lambda: store.kept(Listing(10, search="nothing"), stop=Long(2)))
    search.start()
    assert began.wait(60)
    assert store.run(id) is not None and len(store.kept(Listing(5))) == 5
    assert search.is_alive()
    goes_on.set()
    search.join()


def test_a_search_in_postgresql_is_cancelled(postgres) -> None:
    database = open_database(postgres.new_database(), 5)
    stop = Stop(60)
    threading.Timer(0.2, stop.cancel).start()
    with pytest.raises(SearchStopped):
        database.search("SELECT pg_sleep(?)", [50], stop)
    with pytest.raises(SearchStopped, match=r"took longer than 0\.2 s"):
        database.search("SELECT pg_sleep(?)", [50], Stop(0.2))
    assert database.search("SELECT ?::int + 1", [1], Stop(60)) == [(2,)]
    database.close()
