"""What one client wrote is not shown to another one, and what was deleted is gone: an attack over HTTP that
asks for the drafts, the records and the cached tokens of a text that was deleted, or is another client's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hostile.tiny import write_tiny

from glassloop import LLM, Sampling
from glassloop.server.app import make_app
from glassloop.server.operation.logs import Log
from glassloop.server.operation.settings import ServerSettings
from glassloop.server.service import Service
from server.in_process import Client, serving

BEGINNING = "bcdefghijklmnop" * 3
SECRET = "Zebra 7741 Quartz"
TEXT = BEGINNING + "q" + SECRET
OWNERS = ("key", "address")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def llm(model) -> Iterator[LLM]:
    with LLM(model, kv_memory="8MB") as made:
        made.default_sampling = Sampling()
        made.engine.loop.drafts.step_cost.cost = lambda rows: 1.0  # drafts seem to pay always
        yield made


@contextmanager
def serving_clients(llm: LLM, owner: str) -> Iterator[tuple[Client, Client]]:
    keys = ("key-1", "key-2") if owner == "key" else ()
    service = Service(llm, ServerSettings("tiny", api_keys=keys), Log())
    with serving(make_app(service)) as url:
        if owner == "key":
            yield Client(url, keys[0]), Client(url, keys[1])
        else:
            yield Client(url, address="127.0.0.1"), Client(url, address="127.0.0.2")
    service.pools.close()


@pytest.fixture(params=OWNERS)
def clients(request, llm) -> Iterator[tuple[Client, Client]]:
    """Two clients of a server that knows nothing yet."""
    with serving_clients(llm, request.param) as made:
        yield made


def probe(client: Client) -> dict[str, Any]:
    """Sends the beginning of the text and says `q` after it, again and again: a guess at what follows the
    first one is wrong. Returns the record of that run."""
    found = client.run(BEGINNING, max_tokens=4, allowed_token_ids=[ord("q")])
    assert [token["piece"] for token in found["tokens"]] == ["q"] * 4
    assert all(token["refused"] is None for token in found["tokens"])  # whoever wrote the text
    return found


def test_a_clients_own_text_is_guessed_from_and_not_recorded(clients):
    client, _ = clients
    client.run(TEXT)
    assert probe(client)["drafts"]["proposed"] > 0


def test_another_clients_text_is_not_guessed_from(clients):
    victim, attacker = clients
    victim.run(TEXT)
    assert probe(attacker)["drafts"]["proposed"] == 0
    assert probe(victim)["drafts"]["proposed"] > 0


@pytest.mark.parametrize("asked", ["chat", "completions", "responses", "search", "fork", "step", "edit"])
def test_every_kind_of_request_has_its_owner(clients, asked):
    """The text of each is guessed from for the client that sent it, and for no other one."""
    victim, attacker = clients
    short = {"max_tokens": 2, "seed": 1}
    if asked == "chat":
        victim.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], **short})
    elif asked == "search":
        search = {"method": "vote", "n": 2}
        body = {"messages": [{"role": "user", "content": TEXT}], "search": search, "seed": 1, "max_tokens": 2}
        victim.ask("/v1/chat/completions", body)
    elif asked == "completions":
        victim.ask("/v1/completions", {"prompt": TEXT, **short})
    elif asked == "responses":
        victim.ask("/v1/responses", {"input": TEXT, "max_output_tokens": 2})
    elif asked == "edit":
        letters = {"allowed_token_ids": [ord(letter) for letter in "abc"]}
        body = {"before": TEXT, "after": " and", "tokens": 2, "candidates": 2, "sampling": letters}
        victim.ask("/api/edits/infill", body)
    else:
        body = {"prompt": BEGINNING + "x", "sampling": {"max_tokens": 60, "seed": 1, "ignore_eos": True}}
        run = victim.ask("/api/runs", {**body, "pause_after": 1})["runs"][0]
        victim.ended(run["id"])
        if asked == "step":
            made = run
            victim.ask(f"/api/runs/{run['id']}/step", {"tokens": 1})
        else:
            body = {"at": 0, "text": "q" + BEGINNING + "q" + SECRET, "pause_after": 1}
            (made,) = victim.ask(f"/api/runs/{run['id']}/edit", body)["runs"]
        victim.ended(made["id"])
    assert probe(attacker)["drafts"]["proposed"] == 0
    if asked != "step":
        assert probe(victim)["drafts"]["proposed"] > 0


def test_a_deleted_text_is_gone(clients, request):
    """Neither its own client nor another one finds anything of it: no draft, no page, no field."""
    victim, attacker = clients
    apart = request.node.callspec.params["clients"] == "key"  # else whole pages are told of
    kept = victim.run(BEGINNING[:36] + "another end")
    run = victim.run(TEXT)
    assert probe(victim)["drafts"]["proposed"] > 0
    for each in victim.http.get("/api/runs").json()["runs"]:
        if each["id"] != kept["id"]:
            victim.delete(each)
    assert victim.http.get(f"/api/runs/{run['id']}").status_code == 404
    for client, left in ((attacker, 0 if apart else 32), (victim, 36 if apart else 32)):
        found = client.run(TEXT)
        assert found["usage"]["cached_tokens"] == left  # of the run that is kept
        client.delete(found)
        found = probe(client)
        assert found["drafts"]["proposed"] == 0
        client.delete(found)
    victim.delete(kept)
    assert attacker.run(TEXT)["usage"]["cached_tokens"] == 0


def test_a_prompt_of_another_client_cannot_be_found_out_by_what_is_cached(clients, request):
    """With several keys nothing of it is told. Without keys, whole pages are, and no single token."""
    victim, attacker = clients
    victim.run(TEXT)
    for known in (33, 34, 40, 63):
        found = attacker.run(TEXT[:known] + "#", max_tokens=1)
        apart = request.node.callspec.params["clients"] == "key"
        assert found["usage"]["cached_tokens"] == (0 if apart else 32)
        attacker.delete(found)


def test_samples_and_beams_are_deleted_with_all_that_was_computed_for_them(clients, llm):
    victim, attacker = clients
    for options in ({"n": 3}, {"beam_width": 4, "max_tokens": 12}, {"revise": 2, "revise_bits": 1.0}):
        started = {"prompt": TEXT, "sampling": {"max_tokens": 40, "seed": 1, "ignore_eos": True, **options}}
        for run in victim.ask("/api/runs", started)["runs"]:
            victim.ended(run["id"])
        for each in victim.http.get("/api/runs").json()["runs"]:
            victim.delete(victim.ended(each["id"]))
        assert llm.engine.loop.tree.node_count == 0, options
        found = attacker.run(TEXT)
        assert found["usage"]["cached_tokens"] == 0
        attacker.delete(found)
