"""A walk over every route of an application with two keys that are kept apart: nothing of one is returned,
changed or removed for the other. For it, that does not exist: the answer is the one for an id that never was.

The routes come from the application itself, so a new one that forgets whose things are whose fails, and one
that the walk does not know how to ask fails too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx2 as httpx
from attacks.routes import Document
from server.in_process import Client, Place
from starlette.routing import BaseRoute

from glassloop import LLM, Sampling, Store
from glassloop.engine.lens import NAMES
from glassloop.record.format.glass_file import to_bytes
from glassloop.server.http.access import AccessControl

SECRET = "Zebra 7741 Quartz"
LETTERS = {"allowed_token_ids": [ord(letter) for letter in "abc"], "seed": 1}
# What goes into the places of a path that are no id.
PLACES: dict[str, Sequence[str]] = {"index": ["0"], "name": NAMES, "model": ["tiny"], "item": ["msg_0"]}

# Other digits and letters, so that an error about a text, such as one that is no JSON, names the same place.
OTHERS = str.maketrans("123456789abcdf", "234567891bcdfa")


class Things:
    """What a client has made, one of each kind: ids of runs and trees by kind, and ids of answers."""

    def __init__(self, client: Client, llm: LLM) -> None:
        short = {"max_tokens": 2, "seed": 1}
        talk = [{"role": "user", "content": SECRET}]
        ask, http = client.ask, client.http
        self.answers = [
            ask("/v1/chat/completions", {"messages": talk, **short})["id"],
            ask("/v1/completions", {"prompt": SECRET, **short})["id"],
            ask("/v1/responses", {"input": SECRET, "max_output_tokens": 2})["id"],
        ]
        # A conversation, whose item and whose response have its text too.
        items = [{"role": "user", "content": SECRET}]
        self.conversation = ask("/v1/conversations", {"items": items})["id"]
        search = {"method": "vote", "n": 2}
        found = ask("/v1/chat/completions", {"messages": talk, "search": search, **short})["search"]
        asked = {"prompt": SECRET, "sampling": {"max_tokens": 60, "seed": 1, "ignore_eos": True}}
        paused = ask("/api/runs", {**asked, "pause_after": 3})["runs"][0]
        client.ended(paused["id"])
        fork = ask(f"/api/runs/{paused['id']}/fork", {"at": 1, "pause_after": 2})["runs"][0]
        client.ended(fork["id"])
        filling = {"before": SECRET, "after": " and", "tokens": 2, "candidates": 2, "sampling": LETTERS}
        edit = ask("/api/edits/infill", filling)
        diffusion = {"prompt": SECRET, "sampling": {"max_tokens": 2}, "diffusion": {"block": 2}}
        passes = http.post("/api/diffusions", json=diffusion)
        data = to_bytes([llm.generate(SECRET + "!", Sampling(max_tokens=2, seed=3))])
        kind = {"content-type": "application/octet-stream"}
        imported = http.post("/api/runs/import", content=data, headers=kind)
        assert imported.status_code == 201, imported.text
        self.runs = {
            "search": found["id"],
            "paused": paused["id"],
            "fork": fork["id"],
            "edit": edit["run"],
            "imported": imported.json()["runs"][0]["id"],
        }
        if passes.status_code == 200:
            self.runs["diffusion"] = passes.json()["runs"][0]["id"]
        self.trees = {"paused": paused["tree"], "edit": edit["tree"]}
        self.all_runs = client.listed()
        assert len(self.all_runs) >= 9 and set(self.runs.values()) <= set(self.all_runs)

    @property
    def ids(self) -> list[str]:
        """What a request may name."""
        return [*self.runs.values(), *self.trees.values(), *self.answers, self.conversation]

    @property
    def secrets(self) -> set[str]:
        """What no answer to another client may have in it."""
        return {SECRET, *self.all_runs, *self.ids}


def seen(client: Client, things: Things) -> list[str]:
    """Returns all that a client sees of its things."""
    paths = ["/api/runs?limit=1000", *(f"/api/runs/{id}" for id in things.all_runs)]
    paths += [f"/api/runs/{id}/search" for id in things.all_runs]
    paths += [f"/api/trees/{id}/events?close=true" for id in things.trees.values()]
    answers = [client.http.get(path) for path in paths]
    assert all(answer.status_code == 200 for answer in answers)
    return [answer.text for answer in answers]


def stored(location: str, things: Things) -> list[Any]:
    """Returns all that is in the store of the things of a client."""
    store = Store(location)
    return [(store.run(id).to_dict(), store.added(id), store.tree_of(id)) for id in things.all_runs]


def flat(routes: Sequence[BaseRoute]) -> Iterator[Any]:
    """Yields the routes of an application, those of its routers too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from flat(inner.routes)


def requests(app: AccessControl, document: Document, ids: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Yields requests for every route: with each id in the path, in each text of the query, and in each field
    of the body that may be a text."""
    described = {(route.method, route.path): route for route in document.routes}
    for route in flat(app._routes):
        for method in sorted(route.methods - {"HEAD", "OPTIONS"}):
            known = described.get((method, route.path))
            names = re.findall(r"{(\w+)", route.path)
            paths = [route.path]
            for name in names:
                values = PLACES.get(name, ids if name == "id" else None)
                assert values is not None, f"{route.path}: what goes into {{{name}}}? Add it to PLACES"
                paths = [path.replace(f"{{{name}}}", value) for path in paths for value in values]
            body = known.good() if known is not None else None
            has_body = known is not None and (known.body is not None)
            assert not has_body or body is not None, (
                f"{route.path}: which body? Add it to attacks.routes.GOOD"
            )
            for path in paths:
                yield method, path, body
            if known is None:
                continue
            for parameter in known.parameters:
                if parameter["in"] == "query" and _may_be_text(parameter.get("schema", {})):
                    for value in [*ids, SECRET]:
                        yield method, f"{paths[0]}?{parameter['name']}={value}", body
            for field in document.fields(known):
                if len(field.path) == 1 and _may_be_text(field.schema):
                    yield method, paths[0], {**(body or {}), field.name: ids[0]}
                    if field.name in ("tree", "id", "run", "previous_response_id"):
                        yield from ((method, paths[0], {**(body or {}), field.name: id}) for id in ids)


def _may_be_text(schema: Mapping[str, Any]) -> bool:
    return any(each.get("type") == "string" for each in (schema, *schema.get("anyOf", ())))


def walk(at: Place, things: Things, snapshot: Callable[[], Any]) -> int:
    """Asks every route, as another client, for the things of one; raises where the answer is not the same as
    for things that never were, or a snapshot of the things is another one then. Returns how many requests
    that took."""
    document = Document(at.mallory.http.get("/openapi.json").json())
    never = {id: re.sub(r"[0-9a-f]{8,}", lambda hit: hit[0].translate(OTHERS), id) for id in things.ids}
    never[SECRET] = SECRET.translate(OTHERS)
    assert not set(never) & set(never.values())

    def renamed(text: str) -> str:
        for id, other in never.items():
            text = text.replace(id, other)
        return text

    before, count = snapshot(), 0
    # Those that make runs come last: such a run may have an id in its text that the client itself has sent.
    ordered = sorted(requests(at.app, document, things.ids), key=lambda request: request[0] == "POST")
    for method, path, body in ordered:
        asked = f"{method} {path} {json.dumps(body)}"
        told = _ask(at.mallory, method, path, body)
        leaked = [secret for secret in things.secrets if secret in told.text and secret not in asked]
        assert not leaked, f"{asked} tells {leaked}: {told.text[:300]}"
        if renamed(asked) != asked:
            expected = _ask(at.mallory, method, renamed(path), json.loads(renamed(json.dumps(body))))
            assert told.status_code == expected.status_code, f"{asked}: {told.text[:300]}"
            if told.status_code >= 400:
                assert _shape(renamed(told.text)) == _shape(expected.text), asked
        count += 1
    assert snapshot() == before
    assert not set(at.mallory.listed()) & set(things.all_runs)
    return count


def _shape(text: str) -> str:
    """Returns an error without parts of ids, which an error about a text that is no grammar may quote."""
    return re.sub(r"[0-9a-f]+", "", text)


def _ask(client: Client, method: str, path: str, body: Any) -> httpx.Response:
    kind = {"content-type": "application/octet-stream"} if path == "/api/runs/import" else {}
    content = None if body is None else json.dumps(body)
    kind = kind or ({"content-type": "application/json"} if content is not None else {})
    answer = client.http.request(method, path, content=content, headers=kind, timeout=30)
    assert answer.status_code < 500, f"{method} {path} {body}: {answer.text}"
    return answer
