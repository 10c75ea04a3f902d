"""What clients share is shared: threads, queues, streams. None of them can hold all of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import httpx2 as httpx
import pytest
from hostile.tiny import write_tiny
from starlette.requests import Request

from glassloop import LLM
from glassloop.engine.thread import Busy
from glassloop.record.store.database import Stop
from glassloop.record.store.listing import Listing
from glassloop.server.app import make_app
from glassloop.server.http.clients import SharedPlaces
from glassloop.server.http.errors import APIError
from glassloop.server.openai.completions import CompletionBody
from glassloop.server.openai.responses import ResponsesBody
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.operation.workers import Workers
from glassloop.server.runs.index import RunIndex
from glassloop.server.runs.state import Event, Hub, TreeState
from glassloop.server.service import Service
from glassloop.server.studio import run_events as routes
from glassloop.server.studio.edits import InfillBody, RepairBody
from glassloop.server.studio.runs import StartBody, TextForkBody
from glassloop.server.thread_work import is_constrained


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
    places = SharedPlaces(256)
    assert sum(places.take("a") for _ in range(300)) == 128
    assert sum(places.take("b") for _ in range(300)) == 64
    assert sum(places.take("c") for _ in range(300)) == 32
    for _ in range(128):
        places.give_back("a")
    assert sum(places.take("d") for _ in range(300)) == 80
    alone = SharedPlaces(1)
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
    monkeypatch.setattr(routes, "event_shape", lambda *_: {})
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


def test_many_ends_at_once_let_the_event_loop_do_other_things():
    async def main() -> None:
        delivered: list[int] = []

        def deliver(state: object, token: int) -> None:
            until = time.perf_counter() + 0.004
            while time.perf_counter() < until:
                pass
            delivered.append(token)

        hub = Hub(asyncio.get_running_loop(), deliver)
        for number in range(50):
            hub.put(None, number)
        seen = []
        while len(delivered) < 50:
            await asyncio.sleep(0)
            seen.append(len(delivered))
        hub.put(None, 50)
        await _until(lambda: len(delivered) == 51)
        assert delivered == list(range(51))
        assert len(set(seen)) > 5, seen

    asyncio.run(main())


def test_no_client_holds_all_threads_that_read_the_model(tmp_path):
    goes_on, begun = threading.Event(), []

    def asked(host: str) -> Request:
        async def receive():
            await asyncio.sleep(60)

        return Request({"type": "http", "client": (host, 1), "headers": []}, receive)

    def read(deadline: object) -> bool:
        begun.append(deadline)
        return goes_on.wait(60)

    async def main(service: Service) -> None:
        greedy = [asyncio.create_task(service.threads.read_model(asked("10.0.0.1"), read)) for _ in range(20)]
        await _until(lambda: len(begun) == 8)
        assert await service.threads.read_model(asked("10.0.0.2"), lambda deadline: "read") == "read"
        assert len(begun) == 8
        goes_on.set()
        assert all(await asyncio.gather(*greedy))

    with LLM(write_tiny(tmp_path / "tiny.gguf"), kv_memory="8MB") as llm:
        service = Service(llm, ServerSettings("tiny"), Log())
        try:
            asyncio.run(main(service))
        finally:
            goes_on.set()
            service.pools.close()


# ── preparations ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (RepairBody, {"text": "abc"}, False),  # a text, and no format of one
        (TextForkBody, {"at": 0, "text": "abc"}, False),
        (InfillBody, {"before": "a", "after": "b", "sampling": {"seed": 1}}, False),
        (InfillBody, {"before": "a", "after": "b", "sampling": {"regex": "a+"}}, True),
        (StartBody, {"prompt": "a", "sampling": {"choice": ["a"]}}, True),
        (StartBody, {"prompt": "a", "strategies": [{"name": "x", "sampling": {"regex": "a"}}]}, True),
        (StartBody, {"prompt": "a", "strategies": [{"name": "x"}]}, False),
        (ResponsesBody, {"input": "a", "text": {"format": {"type": "json_object"}}}, True),
        (CompletionBody, {"prompt": "a", "grammar": 'start: "a"'}, True),
    ],
)
def test_grammars_are_found_wherever_a_body_has_them(kind, fields, expected):
    assert is_constrained(kind(**fields)) is expected


def test_slow_grammars_hold_up_nobody_else_and_no_preparation_waits_for_ever(tmp_path):
    """All threads for long preparations are taken: requests without a grammar pass, one with a grammar, deep
    in its body, ends when its time is over."""
    goes_on = threading.Event()

    async def main(service: Service) -> None:
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            taken = [service.pools.long.run_for(name, goes_on.wait, 60) for name in ("a", "a", "b", "b")]
            taken = [asyncio.create_task(each) for each in taken]
            await asyncio.sleep(0)
            plain = {"text": "abc", "budget": 20, "candidates": 1}
            assert (await client.post("/api/edits/repair", json=plain)).status_code == 200
            for path, body in (
                ("/api/edits/infill", {"before": "a", "after": "b", "tokens": 1, "candidates": 1}),
                ("/api/runs", {"prompt": "a"}),
            ):
                answer = await client.post(path, json={**body, "sampling": {"regex": "a"}})
                assert answer.status_code == 408, answer.text
            goes_on.set()
            await asyncio.gather(*taken)

    with LLM(write_tiny(tmp_path / "tiny.gguf"), kv_memory="8MB") as llm:
        service = Service(llm, ServerSettings("tiny", timeout=2.0), Log())
        try:
            asyncio.run(main(service))
        finally:
            goes_on.set()
            service.pools.close()
