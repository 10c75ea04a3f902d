"""What clients share is shared: threads, queues, streams. None of them can hold all of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from glassloop.engine.thread import Busy
from glassloop.server.errors import APIError
from glassloop.server.operation.clients import Places
from glassloop.server.operation.workers import Workers
from glassloop.server.runs import routes
from glassloop.server.runs.index import RunIndex
from glassloop.server.runs.state import Event, TreeState
from glassloop.trace.database import Stop
from glassloop.trace.listing import Listing


async def _until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_no_client_holds_all_threads_or_the_whole_queue():
    async def main() -> None:
        pool, goes_on, running = Workers("tests", threads=4, waiting=4), threading.Event(), []

        def work(name: str) -> str:
            running.append(name)
            assert goes_on.wait(60)
            return name

        mine = [asyncio.create_task(pool.run_for("a", work, "a")) for _ in range(4)]
        await _until(lambda: len(running) == 2)
        with pytest.raises(Busy):
            await pool.run_for("a", work, "a")
        others = [asyncio.create_task(pool.run_for("b", work, "b")) for _ in range(2)]
        await _until(lambda: len(running) == 4)
        assert sorted(running) == ["a", "a", "b", "b"]
        mine[3].cancel()  # it waits, and is never begun
        goes_on.set()
        assert await asyncio.gather(*mine[:3], *others) == ["a", "a", "a", "b", "b"]
        await _until(lambda: not pool._calls and not pool._gates)
        assert await pool.run_for("a", work, "again") == "again"
        pool.close()

    asyncio.run(main())


class Slow:
    """A storage whose searches take until they are told to stop."""

    def __init__(self) -> None:
        self.begun, self.ended = 0, 0

    def search(self, listing: Listing, brief: bool, stop: Stop) -> Sequence[object]:
        self.begun += 1
        while not stop():
            threading.Event().wait(0.001)
        self.ended += 1
        stop.check()
        return []


def test_a_search_ends_with_its_client_and_takes_its_share(monkeypatch):
    async def main() -> None:
        pool, storage = Workers("tests", threads=2, waiting=6), Slow()
        index = RunIndex(10, storage, pool)  # type: ignore[arg-type]
        listing = Listing(10, search="x")
        searches = [asyncio.create_task(index.newest(listing, "a")) for _ in range(4)]
        await _until(lambda: storage.begun == 1)
        with pytest.raises(Busy):
            await index.newest(listing, "a")
        other = asyncio.create_task(index.newest(listing, "b"))
        await _until(lambda: storage.begun == 2)
        for search in [*searches, other]:
            search.cancel()
        await asyncio.gather(*searches, other, return_exceptions=True)
        await _until(lambda: storage.ended == storage.begun and not pool._calls)
        assert storage.begun == 2, "those that waited were never begun"
        monkeypatch.setattr("glassloop.server.runs.index._SEARCH", 0.01)
        with pytest.raises(APIError) as raised:
            await index.newest(listing, "a")
        assert raised.value.status == 408 and "took longer than 0.01 s" in str(raised.value)
        pool.close()

    asyncio.run(main())


def test_a_new_client_always_finds_a_place_beside_others():
    places = Places(256)
    assert sum(places.take("a") for _ in range(300)) == 128
    assert sum(places.take("b") for _ in range(300)) == 64
    assert sum(places.take("c") for _ in range(300)) == 32
    for _ in range(128):
        places.give_back("a")
    assert sum(places.take("d") for _ in range(300)) == 80
    alone = Places(1)
    assert alone.take("a") and not alone.take("a") and not alone.take("b")
    alone.give_back("a")
    assert alone.take("b")


class Tree(TreeState):
    """A tree that is computed as long as it is told to be."""

    is_busy = True

    @property
    def busy(self) -> bool:
        return self.is_busy


def test_a_stream_of_a_tree_that_is_not_computed_ends(monkeypatch):
    monkeypatch.setattr(routes, "KEEP_ALIVE", 0.001)

    async def main() -> None:
        tree = Tree()
        chunks = routes.event_chunks(None, tree, 0, lambda: False, quiet=0.005)
        for _ in range(20):
            assert await anext(chunks) == routes.STILL_HERE
        tree.is_busy = False
        assert [chunk async for chunk in chunks] == [routes.STILL_HERE] * 4

    asyncio.run(main())


def test_a_long_log_of_events_lets_others_run_in_between(monkeypatch):
    monkeypatch.setattr(routes.shapes, "event_shape", lambda *_: {})
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        tree = TreeState()
        tree.log = [Event("pass", None, number, None) for number in range(160)]  # type: ignore[arg-type]
        task = asyncio.create_task(other())
        async for _ in routes.event_chunks(None, tree, 0, lambda: True):  # type: ignore[arg-type]
            pass
        task.cancel()

    asyncio.run(main())
    assert turns >= 10
