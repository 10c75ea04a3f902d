"""Keys that are kept apart: no route of the server returns, changes or removes anything of another key, and a
route that does is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from attacks.two_keys import Things, seen, stored, walk
from hostile.tiny import write_tiny
from server.in_process import place

from glassloop import LLM, Sampling, Store
from glassloop.server.service import Service


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> Iterator[LLM]:
    with LLM(str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")), kv_memory="32MB") as made:
        made.default_sampling = Sampling()
        yield made


def test_no_route_returns_changes_or_removes_anything_of_another_key(llm):
    with place(llm) as made:
        things = Things(made.alice, llm)
        assert walk(made, things, lambda: seen(made.alice, things)) > 300


def test_the_same_of_runs_that_have_to_be_read_from_the_store(llm, location):
    with place(llm, location) as first:
        things = Things(first.alice, llm)
    with place(llm, location) as second:
        assert walk(second, things, lambda: stored(location, things)) > 300
        assert len(set(seen(second.alice, things))) > len(things.all_runs)
    assert set(things.all_runs) <= {entry.id for entry in Store(location).list()}  # as the terminal sees it


def test_a_route_that_forgets_it_is_noticed(llm):
    def forgetful(app: Any, service: Service) -> None:
        @app.get("/api/runs/{id}/again")
        async def again(id: str) -> dict[str, Any]:
            return {"texts": [state.run.prompt for state in service.runs.states if state.run.id == id]}

    with place(llm, change=forgetful) as made:
        things = Things(made.alice, llm)
        with pytest.raises(AssertionError, match=r"GET /api/runs/\w+/again null tells .*Zebra"):
            walk(made, things, int)

    def unknown(app: Any, service: Service) -> None:
        @app.get("/api/things/{thing}")
        async def thing(thing: str) -> dict[str, Any]:
            return {}

    with place(llm, change=unknown) as made, pytest.raises(AssertionError, match="Add it to PLACES"):
        walk(made, Things(made.alice, llm), int)
