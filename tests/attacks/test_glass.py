"""Runs imported over HTTP: whatever the file says, the server lives, the list of runs works, nothing computes
with ids that are not the model's, and what was refused is nowhere.
"""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from urllib.parse import quote

import pytest
from attacks.harness import Answer, Server, Watch, left_behind, standing
from attacks.limits import FACTOR, SEED, cases
from hostile.glass import IDS, SPECIAL, bomb, mutated, read, write

FILE = {"content-type": "application/octet-stream"}
_BOMB = (400 if FACTOR else 120) << 20


def finished_run(server: Server, **sampling: object) -> str:
    options = {"max_tokens": 4, "seed": 1, "timeout": 60, **sampling}
    run: str = server.post("/api/runs", {"prompt": "the sea", "sampling": options}).json()["runs"][0]["id"]
    server.settle()
    return run


@pytest.fixture
def good(tiny: Server) -> bytes:
    return tiny.get(f"/api/runs/{finished_run(tiny)}/export").body


def take(server: Server, data: bytes) -> Answer:
    return server.post("/api/runs/import", data, headers=FILE)


def use(server: Server, run: str) -> list[Answer]:
    """Everything that can be done with a run, and then it is deleted."""
    at = f"/api/runs/{quote(run, safe='')}"
    short = {"max_tokens": 2, "timeout": 5}
    answers = [
        server.get("/api/runs?limit=1000"),
        server.get(at),
        server.get(f"{at}/explain/0"),
        server.get(f"{at}/explain/1?temperature=0.5"),
        server.get(f"{at}/lens/attention"),
        server.get(f"{at}/lens/layers?token=0"),
        server.get(f"{at}/lens/neighbours?token=0"),
        server.get(f"{at}/export"),
        server.post(f"{at}/step", {"tokens": 1}),
        server.post(f"{at}/fork", {"at": 0, "sampling": short}),
        server.post(f"{at}/edit", {"at": 0, "text": "x", "sampling": short}),
    ]
    server.settle()
    server.post(f"{at}/stop", {})
    return [*answers, server.ask("DELETE", at)]


def check_imported(server: Server, data: bytes, what: str) -> None:
    """Refused in one line, or a run that every route can deal with."""
    answer = take(server, data)
    assert server.alive, what
    if answer.status in (200, 201):  # 200: its content is that of a run that is here
        run = answer.json()["runs"][0]["id"]
        for used in use(server, run):
            assert used.status < 500, f"{what}: {used.status} {used.body[:300]!r}"
    else:
        assert answer.status in (400, 413), f"{what}: {answer.status} {answer.body[:300]!r}"
        assert answer.error, what
    assert server.get("/api/runs?limit=1000").status == 200, what


@pytest.mark.parametrize("name", SPECIAL)
def test_no_value_of_a_header_does_harm(tiny: Server, good: bytes, name: str) -> None:
    section = read(good)[0]
    for value in SPECIAL[name]:
        changed = {**section.header, name: value}
        if name != "id":
            changed["id"] = "0123456789abcdef"
        what = f"{name} = {str(value)[:60]!r}"
        check_imported(tiny, write([replace(section, header=changed)]), what)
    assert tiny.left_in_temporary() == []


def test_mutated_files_over_http(tiny: Server, good: bytes) -> None:
    rng, before = Random(SEED + 1), standing(tiny)
    with Watch(tiny) as watch:
        for number in range(cases(60)):
            check_imported(tiny, mutated(good, rng), f"file {number}")
    watch.report.check()
    left_behind(tiny, before)


@pytest.mark.parametrize("kind", ["spaces", "text", "lists", "columns"])
def test_a_small_file_cannot_become_large(tiny: Server, good: bytes, kind: str) -> None:
    data = bomb(good, kind, _BOMB)
    assert len(data) < 2 << 20
    with Watch(tiny) as watch:
        answer = take(tiny, data)
    assert answer.status in (400, 413) and answer.error
    report = watch.report.check()
    assert report.grown < 64 << 20, f"memory grew by {report.grown >> 20} MB"


def test_a_client_cannot_choose_an_id(tiny: Server, good: bytes) -> None:
    section = read(good)[0]
    for value in IDS:
        data = write([replace(section, header={**section.header, "id": value})])
        answer = take(tiny, data)
        if answer.status == 201:
            made = answer.json()["runs"][0]["id"]
            assert len(made) == 16 and set(made) <= set("0123456789abcdef"), value
            assert tiny.ask("DELETE", f"/api/runs/{made}").status == 204
        else:
            assert answer.status in (400, 409), value
        listed = {run["id"] for run in tiny.get("/api/runs?limit=1000").json()["runs"]}
        assert all(len(each) == 16 and set(each) <= set("0123456789abcdef") for each in listed), value


@pytest.mark.parametrize("name", ["", "0" * 64])
def test_a_run_of_another_model_is_read_only(tiny: Server, good: bytes, name: str) -> None:
    section = read(good)[0]
    header = {**section.header, "id": "00000000000000aa", "model_hash": name}
    answer = take(tiny, write([replace(section, header=header)]))
    if answer.status != 201:
        assert answer.status == 400
        return
    at = f"/api/runs/{answer.json()['runs'][0]['id']}"
    assert tiny.get(at).status == 200 and tiny.get(f"{at}/export").status == 200
    computing = [
        tiny.get(f"{at}/explain/0"),
        tiny.get(f"{at}/lens/attention"),
        tiny.post(f"{at}/step", {"tokens": 1}),
        tiny.post(f"{at}/fork", {"at": 0}),
        tiny.post(f"{at}/edit", {"at": 0, "text": "x"}),
    ]
    assert all(400 <= each.status < 500 and each.error for each in computing), [e.status for e in computing]
    assert tiny.ask("DELETE", at).status == 204


def test_the_limits_of_the_server_hold_for_imported_runs(tiny: Server, good: bytes) -> None:
    section = read(good)[0]
    for name, value in {
        "timeout": 1e9,
        "stop": ["x" * 5] * 20_000,
        "bad_words": ["y" * 100_000],
    }.items():
        sampling = {**section.header["sampling"], name: value}
        header = {
            **section.header,
            "id": "00000000000000bb",
            "sampling": sampling,
            "finish_reason": "cancelled",
        }
        answer = take(tiny, write([replace(section, header=header)]))
        if answer.status != 201:
            assert answer.status == 400 and name in answer.error["message"], name
            continue
        at = f"/api/runs/{answer.json()['runs'][0]['id']}"
        fork = tiny.post(f"{at}/fork", {"at": 0, "pause_after": 1})
        if name == "timeout":  # cut to what the server allows
            assert fork.status == 201 and fork.json()["runs"][0]["sampling"]["timeout"] <= 60
            tiny.settle()
        else:
            assert fork.status == 400, name
        tiny.ask("DELETE", at)


def test_export_of_a_good_run_is_imported_again(tiny: Server, good: bytes) -> None:
    """The validator does not refuse what the server itself wrote."""
    original = json.loads(json.dumps(read(good)[0].header))
    tiny.ask("DELETE", f"/api/runs/{original['id']}")
    answer = take(tiny, good)
    assert answer.status == 201, answer.body
    again = answer.json()["runs"][0]["id"]
    assert tiny.get(f"/api/runs/{again}/explain/0").json()["same"] is True
    assert tiny.ask("DELETE", f"/api/runs/{again}").status == 204
