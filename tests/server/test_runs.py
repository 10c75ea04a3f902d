"""Runs over HTTP: what the studio is made of. Every shape here is one of docs/server.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from random import Random

import httpx2 as httpx
import pytest
from hostile import glass
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Sampling
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.token import Refusal

FRANCE = "The capital of France is"


def start(server, **body):
    answer = server.post("/api/runs", {"prompt": FRANCE, **body})
    assert answer.status_code == 201, answer.text
    return answer.json()["runs"]


def events(server, path: str, after: int | None = None, most: int | None = None) -> Iterator[dict]:
    """Yields the events of a stream, each with its name; an event that is sent twice must be the same."""
    headers = {} if after is None else {"last-event-id": str(after)}
    with httpx.stream("GET", server.url + path, headers=headers, timeout=120) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        name, number, seen = "", "", 0
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                number = line[4:]
            elif line.startswith("data: "):
                told = json.loads(line[6:])
                assert str(told["seq"]) == number
                yield {"event": name, **told}
                seen += 1
                if seen == most:
                    return


def finished(server, id: str) -> dict:
    for _ in events(server, f"/api/runs/{id}/events"):
        pass
    return server.get(f"/api/runs/{id}").json()


def test_a_run_has_all_that_the_engine_recorded(server, llm):
    (begun,) = start(server, sampling={"seed": 7, "max_tokens": 5, "temperature": 0.8, "logprobs": 8})
    run = finished(server, begun["id"])
    assert run["text"].startswith(begun["text"])  # it may be under way already, or done
    direct = llm.generate(FRANCE, Sampling(seed=7, max_tokens=5, temperature=0.8, logprobs=8))
    assert run["status"] == "done" and run["finish_reason"] == "length" and run["text"] == direct.text
    assert run["prompt"] == FRANCE and [t["id"] for t in run["prompt_tokens"]] == direct.prompt_ids
    assert run["seed"] == 7 and run["sampling"]["temperature"] == 0.8 and run["logprob"] == direct.logprob
    for shown, token in zip(run["tokens"], direct.tokens, strict=True):
        mine = token.to_dict()
        for name in ("id", "text", "bytes", "logprob", "raw_logprob", "rank", "entropy", "luck", "margin"):
            assert shown[name] == mine[name]
        assert shown["alternatives"] == mine["alternatives"] and shown["piece"] == token.piece
    assert [t["index"] for t in run["tokens"]] == list(range(5))
    assert run["tokens"][0]["parent"] == run["root"]
    assert [t["parent"] for t in run["tokens"][1:]] == [t["node"] for t in run["tokens"][:-1]]
    assert len(server.get(f"/api/runs/{run['id']}?alternatives=2").json()["tokens"][0]["alternatives"]) == 2
    rest = server.get(f"/api/runs/{run['id']}?from=3").json()
    assert rest == {**run, "tokens": run["tokens"][3:]}
    assert server.get(f"/api/runs/{run['id']}?from=1000").json()["tokens"] == []
    assert run["id"] in [each["id"] for each in server.get("/api/runs").json()["runs"]]


def test_what_the_studio_shows_of_a_run_is_computed_by_the_server(server):
    words = "one two three four five. "
    (begun,) = start(server, prompt=words * 3, sampling={"temperature": 0, "max_tokens": 30})
    run = finished(server, begun["id"])
    drafts, ids = run["drafts"], [token["id"] for token in run["tokens"]]
    assert drafts["proposed"] > 0 and drafts["rejected"] == drafts["proposed"] - drafts["accepted"]
    assert drafts["acceptance"] == drafts["accepted"] / drafts["proposed"]
    assert run["distinct_pairs"] == len(set(pairwise(ids))) / (len(ids) - 1)
    assert sum(token["took"] for token in run["tokens"]) == pytest.approx(run["tokens"][-1]["seconds"])
    (made,) = server.post(f"/api/runs/{run['id']}/fork", {"at": 20}).json()["runs"]
    fork = finished(server, made["id"])
    assert fork["tokens"][:20] == run["tokens"][:20]
    assert sum(t["took"] for t in fork["tokens"][20:]) == pytest.approx(fork["tokens"][-1]["seconds"])
    kv = server.get("/api/info").json()["kv"]
    assert 0 < kv["bytes"] <= kv["memory"]


def test_strategies_are_runs_of_one_tree(server, llm):
    strategies = [
        {"name": "greedy", "sampling": {"temperature": 0}},
        {"name": "wild", "sampling": {"temperature": 1.8}},
        {"name": "two", "sampling": {"n": 2}},
    ]
    begun = start(server, sampling={"seed": 3, "max_tokens": 6}, strategies=strategies)
    assert [run["name"] for run in begun] == ["greedy", "wild", "two", "two"]
    assert len({run["tree"] for run in begun}) == len({run["root"] for run in begun}) == 1
    tree = begun[0]["tree"]
    told = list(events(server, f"/api/trees/{tree}/events?close=true"))
    assert [each["seq"] for each in told] == list(range(1, len(told) + 1))
    for name, run in zip(("greedy", "wild"), begun, strict=False):
        mine = [each for each in told if each["run"] == run["id"]]
        assert [each["event"] for each in mine] == ["run", *["token"] * 6, "end"]
        options = {"temperature": 0 if name == "greedy" else 1.8, "seed": 3, "max_tokens": 6}
        assert "".join(each["text"] for each in mine[1:-1]) == llm.generate(FRANCE, Sampling(**options)).text
        assert mine[-1]["summary"]["status"] == "done"
    assert {run["id"] for run in server.get(f"/api/runs?tree={tree}").json()["runs"]} == {
        run["id"] for run in begun
    }


def test_runs_that_begin_alike_share_their_nodes(server):
    first, second = (
        finished(server, start(server, sampling={"temperature": 0, "max_tokens": n})[0]["id"]) for n in (3, 5)
    )
    assert [t["node"] for t in first["tokens"]] == [t["node"] for t in second["tokens"][:3]]


def test_a_broken_stream_goes_on_where_it_was(server):
    (begun,) = start(server, sampling={"seed": 1, "max_tokens": 12})
    path = f"/api/runs/{begun['id']}/events"
    first = list(events(server, path, most=5))
    rest = list(events(server, path, after=first[-1]["seq"]))
    whole = list(events(server, path))
    # A summary tells how the run is now; all else is told as it was the first time.
    assert [each["seq"] for each in first + rest] == [each["seq"] for each in whole]
    assert [e for e in first + rest if e["event"] == "token"] == [e for e in whole if e["event"] == "token"]
    assert list(events(server, path, after=whole[-1]["seq"])) == []
    assert list(events(server, path, after=10**12)) == []


def test_a_fork_by_token_text_and_luck(server, llm):
    run = finished(server, start(server, sampling={"seed": 7, "max_tokens": 6})[0]["id"])
    direct = llm.generate(FRANCE, Sampling(seed=7, max_tokens=6))

    def fork(how="fork", **body):
        answer = server.post(f"/api/runs/{run['id']}/{how}", body)
        assert answer.status_code == 201, answer.text
        return finished(server, answer.json()["runs"][0]["id"])

    lyon = fork(at=2, token=" Lyon")
    assert lyon["text"] == llm.fork(direct, 2, token=" Lyon").text and lyon["reason"] == "forced"
    assert (lyon["parent"], lyon["fork_at"], lyon["tree"]) == (run["id"], 2, run["tree"])
    assert [t["node"] for t in lyon["tokens"][:2]] == [t["node"] for t in run["tokens"][:2]]
    by_id = fork(at=2, token=lyon["tokens"][2]["id"])
    assert by_id["text"] == lyon["text"]
    edited = fork("edit", at=3, text=" not at all, my")
    assert edited["text"] == llm.fork(direct, 3, text=" not at all, my").text
    assert edited["reason"] == "edited" and edited["tokens"][3]["source"] == "forced"
    cold = fork(at=1, sampling={"temperature": 0.2})
    assert cold["text"] == llm.fork(direct, 1, temperature=0.2).text
    luck = fork(at=1)
    assert luck["salt"] != run["salt"] and luck["text"] == llm.fork(direct, 1).text
    longer = fork(at=6, sampling={"max_tokens": 9})
    assert longer["text"] == llm.generate(FRANCE, Sampling(seed=7, max_tokens=9)).text
    assert server.get(f"/api/runs/{run['id']}").json()["tokens"] == run["tokens"]  # the old one stays


def test_a_fork_of_one_of_several_samples_is_one_run_with_new_luck(server):
    begun = start(server, sampling={"seed": 7, "max_tokens": 6, "n": 2})
    second = finished(server, begun[1]["id"])
    made = server.post(f"/api/runs/{second['id']}/fork", {"at": 2}).json()["runs"]
    assert len(made) == 1
    fork = finished(server, made[0]["id"])
    assert fork["tokens"][:2] == second["tokens"][:2] and fork["salt"] != second["salt"]
    assert [token["id"] for token in fork["tokens"]] != [token["id"] for token in second["tokens"]]


def test_forks_show_up_in_the_open_stream_of_their_tree(server):
    run = finished(server, start(server, sampling={"seed": 7, "max_tokens": 2})[0]["id"])
    stream = events(server, f"/api/trees/{run['tree']}/events")
    seen = [next(stream) for _ in range(4)]  # begun, two tokens, end: and it stays open
    fork = server.post(f"/api/runs/{run['id']}/fork", {"at": 1}).json()["runs"][0]
    seen = [next(stream) for _ in range(3)]
    assert [each["event"] for each in seen] == ["run", "token", "end"]
    assert {each["run"] for each in seen} == {fork["id"]} and seen[0]["seq"] == 5
    stream.close()


def test_steps_are_the_tokens_that_would_have_come(server, llm):
    options = {"seed": 5, "max_tokens": 8, "stop": ["zzz"]}
    whole = llm.generate(FRANCE, Sampling(**options))
    (begun,) = start(server, sampling=options, pause_after=1)
    id = begun["id"]
    for count in (1, 2, 4):
        run = finished(server, id)
        assert run["status"] == "paused" and [t["id"] for t in run["tokens"]] == whole.token_ids[:count]
        step = server.post(f"/api/runs/{id}/step", {"tokens": {1: 1, 2: 2, 4: None}[count]})
        assert step.status_code == 200 and step.json()["status"] in ("waiting", "running")
    run = finished(server, id)
    assert run["status"] == "done" and run["text"] == whole.text
    assert [t["id"] for t in run["tokens"]] == whole.token_ids
    kinds = [each["event"] for each in events(server, f"/api/runs/{id}/events")]
    token = ["token"]
    assert kinds == [
        "run",
        *token,
        "end",
        "run",
        *token,
        "end",
        "run",
        *token * 2,
        "end",
        "run",
        *token * 4,
        "end",
    ]
    again = server.post(f"/api/runs/{id}/step", {"tokens": 1})
    assert again.status_code == 409 and "length" in again.json()["error"]["message"]


def test_stop_ends_it_at_once_and_it_can_go_on(server):
    (begun,) = start(server, sampling={"seed": 5, "max_tokens": 3000, "ignore_eos": True})
    list(events(server, f"/api/runs/{begun['id']}/events", most=4))
    stopped = server.post(f"/api/runs/{begun['id']}/stop").json()
    assert stopped["status"] == "paused" and stopped["finish_reason"] == "cancelled"
    made = stopped["usage"]["completion_tokens"]
    assert 3 <= made < 1000
    server.post(f"/api/runs/{begun['id']}/step", {"tokens": 3})
    run = finished(server, begun["id"])
    assert len(run["tokens"]) == made + 3
    assert server.post(f"/api/runs/{begun['id']}/stop").status_code == 200  # nothing to stop is no error


def test_each_sample_pauses_after_as_many_tokens_and_goes_on_by_itself(server, llm):
    options = {"seed": 5, "n": 3, "max_tokens": 9, "ignore_eos": True}
    begun = start(server, sampling=options, pause_after=5)
    runs = [finished(server, each["id"]) for each in begun]
    assert [len(run["tokens"]) for run in runs] == [5, 5, 5]
    assert {run["status"] for run in runs} == {"paused"}
    server.post(f"/api/runs/{runs[1]['id']}/step", {"tokens": None})
    whole = llm.generate(FRANCE, Sampling(**options)).samples
    assert [t["id"] for t in finished(server, runs[1]["id"])["tokens"]] == whole[1].token_ids
    assert len(server.get(f"/api/runs/{runs[0]['id']}").json()["tokens"]) == 5


def test_stopping_one_sample_stops_no_other(server, llm):
    options = {"seed": 5, "n": 3, "max_tokens": 150, "ignore_eos": True}
    begun = start(server, sampling=options)
    list(events(server, f"/api/runs/{begun[1]['id']}/events", most=4))
    stopped = server.post(f"/api/runs/{begun[1]['id']}/stop").json()
    assert stopped["status"] == "paused" and stopped["usage"]["completion_tokens"] < 150
    server.post(f"/api/runs/{begun[1]['id']}/step", {"tokens": None})  # while the others may still run
    whole = llm.generate(FRANCE, Sampling(**options)).samples
    for each, expected in zip(begun, whole, strict=True):
        run = finished(server, each["id"])
        assert run["status"] == "done" and [t["id"] for t in run["tokens"]] == expected.token_ids


def test_explanations_are_of_what_happened_and_of_what_then_happens(server, llm):
    options = {"seed": 11, "max_tokens": 6, "temperature": 1.3, "top_k": 40, "repetition_penalty": 1.2}
    run = finished(server, start(server, sampling=options)[0]["id"])

    def why(index, id=run["id"], **query):
        answer = server.get(f"/api/runs/{id}/explain/{index}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    for index, token in enumerate(run["tokens"]):
        told = why(index)
        assert told["same"] and told["winner"]["id"] == told["actual"]["id"] == token["id"]
        assert told["winner"]["luck"] == token["luck"] and told["margin"] == token["margin"]
        assert told["winner"]["logprob"] == pytest.approx(token["logprob"], abs=1e-12)
        assert [stage["name"] for stage in told["stages"]] == ["repetition_penalty", "temperature", "top_k"]
        assert token["piece"] in told["sentence"]
        assert 0 <= told["others"]["raw"] <= 1
    # A what-if is what a fork with the same change then does.
    for query in ({"temperature": 0.2}, {"top_k": 2}, {"temperature": 0}, {"bad_words": '["the"]'}):
        if query.get("bad_words"):
            sampling = {"bad_words": ["the"]}
        else:
            sampling = query
        expected = why(3, **query)["winner"]["id"]
        fork = server.post(f"/api/runs/{run['id']}/fork", {"at": 3, "sampling": sampling}).json()["runs"][0]
        assert finished(server, fork["id"])["tokens"][3]["id"] == expected
    expected = why(3, luck="new")["winner"]["id"]
    fork = finished(server, server.post(f"/api/runs/{run['id']}/fork", {"at": 3}).json()["runs"][0]["id"])
    assert fork["tokens"][3]["id"] == expected
    # What a fork kept was chosen by its parent, with its parent's luck.
    assert all(why(index, fork["id"])["same"] for index in range(6))
    # After the last token: what would have come next.
    assert why(6)["actual"] is None
    wrong = server.get(f"/api/runs/{run['id']}/explain/7")
    assert wrong.status_code == 400
    wrong = server.get(f"/api/runs/{run['id']}/explain/1", params={"temperature": "hot"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "temperature"
    assert server.get(f"/api/runs/{run['id']}/explain/1", params={"temprature": 1}).status_code == 400


def test_beams_show_their_whole_search(server, llm):
    begun = start(server, sampling={"beam_width": 3, "n": 2, "max_tokens": 5})
    runs = [finished(server, each["id"]) for each in begun]
    direct = llm.generate(FRANCE, Sampling(beam_width=3, n=2, max_tokens=5))
    assert [run["text"] for run in runs] == [run.text for run in direct.samples]
    nodes = {beam["node"] for beam in runs[0]["beams"]}
    assert {token["node"] for token in runs[0]["tokens"]} <= nodes
    assert {beam["fate"] for beam in runs[0]["beams"]} >= {"chosen", "live"}


def test_a_search_that_finds_fewer_texts_ends_all_the_same(server):
    body = {"prompt": "Well", "beam_width": 4, "n": 4, "allowed_token_ids": [28], "max_tokens": 2}
    answer = server.post("/v1/completions", body).json()
    assert [choice["text"] for choice in answer["choices"]] == [",,"]


def test_messages_and_token_ids_start_runs(server, llm):
    messages = [{"role": "user", "content": "Hi"}]
    run = finished(server, start(server, prompt=None, messages=messages, sampling={"max_tokens": 2})[0]["id"])
    assert [t["id"] for t in run["prompt_tokens"]] == llm.tokenizer.encode_chat(messages)
    (by_ids,) = start(server, prompt=None, token_ids=[504, 2025], sampling={"max_tokens": 2})
    assert finished(server, by_ids["id"])["usage"]["prompt_tokens"] == 2
    for wrong in ({}, {"messages": messages}):
        answer = server.post("/api/runs", {"prompt": FRANCE if wrong else None, **wrong})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


def test_a_run_can_be_forgotten_and_is_then_gone(server):
    run = finished(server, start(server, sampling={"max_tokens": 1})[0]["id"])
    assert server.get("/api/runs/" + run["id"]).status_code == 200
    assert httpx.delete(f"{server.url}/api/runs/{run['id']}").status_code == 204
    for path in ("", "/events", "/explain/0"):
        gone = server.get(f"/api/runs/{run['id']}{path}")
        assert gone.status_code == 404 and gone.json()["error"]["code"] == "no_such_run"
    assert server.get(f"/api/trees/{run['tree']}/events").status_code == 404


def import_(server, data: bytes, kind: str | None = "application/octet-stream") -> httpx.Response:
    headers = {} if kind is None else {"content-type": kind}
    return httpx.post(server.url + "/api/runs/import", content=data, headers=headers, timeout=120)


def test_a_run_leaves_as_a_file_and_comes_back_the_same(server):
    run = finished(server, start(server, sampling={"max_tokens": 4, "seed": 3})[0]["id"])
    path = f"/api/runs/{run['id']}"
    before = server.get(path + "/explain/2").json()
    file = server.get(path + "/export")
    assert file.status_code == 200 and file.content[1:6] == b"GLASS"
    here = import_(server, file.content)  # it is here already, and stays the one it is
    assert here.status_code == 200 and here.json()["runs"][0]["id"] == run["id"]
    assert httpx.delete(server.url + path).status_code == 204
    back = import_(server, file.content)
    new = back.json()["runs"][0]["id"]
    assert back.status_code == 201 and back.json()["imported_from"] == run["id"] != new
    again = server.get(f"/api/runs/{new}").json()
    assert again["tokens"] == run["tokens"] and server.get(f"/api/runs/{new}/explain/2").json() == before
    assert server.get(path).status_code == 404
    twice = import_(server, file.content)
    assert twice.status_code == 200 and twice.json()["runs"][0]["id"] == new
    damaged = bytearray(file.content)
    damaged[len(damaged) // 2] ^= 1
    refused = import_(server, bytes(damaged))
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "bad_file"


def test_a_run_leaves_as_the_page_that_the_terminal_writes(server, llm):
    from glassloop.record.views.page import page

    run = finished(server, start(server, sampling={"max_tokens": 4, "seed": 3})[0]["id"])
    path = f"/api/runs/{run['id']}"
    record = from_bytes(server.get(path + "/export").content)[0]
    record.attach(llm)
    answer = server.get(path + "/page.html", params={"explain": "1,3"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{run["id"]}.html"'
    assert answer.text == page(record, {at: record.explain(at) for at in (1, 3)})
    assert server.get(path + "/page.html?explain=all").text.count('id="why-') == 4
    fork = finished(server, server.post(path + "/fork", {"at": 2}).json()["runs"][0]["id"])
    assert fork["id"][:8] in server.get(path + "/page.html").text
    assert fork["id"][:8] not in server.get(path + "/page.html?tree=false").text
    assert httpx.delete(f"{server.url}/api/runs/{fork['id']}").status_code == 204
    assert fork["id"][:8] not in server.get(path + "/page.html").text, "a run that was removed is in no page"
    for wrong in ("some", "-1", "1,", "9", ",".join(map(str, range(257)))):
        refused = server.get(path + "/page.html", params={"explain": wrong})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "explain", wrong
    assert server.get("/api/runs/nothing/page.html").status_code == 404


def test_a_file_is_only_taken_as_what_no_form_can_send(server):
    for kind in (None, "text/plain", "multipart/form-data; boundary=x", "application/json", "x"):
        answer = import_(server, b"x", kind)
        assert answer.status_code == 415 and answer.json()["error"]["code"] == "unsupported_media_type"
    for kind in (
        "application/octet-stream",
        "Application/Octet-Stream; x=y",
        "application/vnd.glassloop.run",
    ):
        assert import_(server, b"x", kind).status_code == 400


def test_a_run_that_does_not_fit_this_model_is_refused_and_one_of_another_is_shown(server):
    run = finished(server, start(server, sampling={"max_tokens": 4, "seed": 3})[0]["id"])
    file = server.get(f"/api/runs/{run['id']}/export").content
    header = glass.read(file)[0].header
    before = {each["id"] for each in server.get("/api/runs?limit=1000").json()["runs"]}
    for ids in ([49159], [2**31 - 1], [5] * 9000):
        refused = import_(server, glass.with_headers(file, {**header, "prompt_ids": ids}))
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "bad_file"
    for hash in ("", "0" * 64):
        other = {**header, "model_hash": hash, "prompt_ids": [2**31 - 1, 5], "prompt": None, "model": "/x"}
        taken = import_(server, glass.with_headers(file, other))
        assert taken.status_code == 201 and "<2147483647>" in taken.json()["runs"][0]["prompt"]
        path = f"/api/runs/{taken.json()['runs'][0]['id']}"
        assert [each["id"] for each in server.get(path).json()["prompt_tokens"]] == [2**31 - 1, 5]
        assert server.get(path + "/export").status_code == 200
        before.add(taken.json()["runs"][0]["id"])
    assert {each["id"] for each in server.get("/api/runs?limit=1000").json()["runs"]} == before


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**64))
def test_no_file_breaks_the_list(server, seed):
    run = imported_seed(server)
    answer = import_(server, glass.mutated(run, Random(seed)))
    assert answer.status_code in (200, 201, 400), answer.text
    if answer.status_code == 201:
        id = answer.json()["runs"][0]["id"]
        assert server.get(f"/api/runs/{id}").status_code == 200
        assert server.get(f"/api/runs/{id}/export").status_code == 200
        listed = server.get("/api/runs?limit=1000")
        assert listed.status_code == 200 and id in {each["id"] for each in listed.json()["runs"]}
        assert httpx.delete(f"{server.url}/api/runs/{id}").status_code == 204


@cache
def imported_seed(server) -> bytes:
    run = finished(server, start(server, sampling={"max_tokens": 4, "seed": 3, "beam_width": 2})[0]["id"])
    return server.get(f"/api/runs/{run['id']}/export").content


def test_a_token_says_what_a_drafter_had_guessed_instead(server):
    run = finished(server, start(server, sampling={"max_tokens": 4, "seed": 3})[0]["id"])
    path = f"/api/runs/{run['id']}"
    (record,) = from_bytes(server.get(path + "/export").content)
    record.tokens[2].refused = Refusal(record.tokens[2].runner_up, " Lyon", "model", 3)
    assert httpx.delete(server.url + path).status_code == 204
    taken = import_(server, to_bytes([record]))
    assert taken.status_code == 201
    path = f"/api/runs/{taken.json()['runs'][0]['id']}"
    token = server.get(path).json()["tokens"][2]
    assert token["refused"] == {"id": token["runner_up"], "text": " Lyon", "by": "model", "dropped": 3}
    assert "The drafter had guessed" in server.get(path + "/explain/2").json()["sentence"]
    for what_if in ({"temperature": 0.2}, {"luck": "new"}):
        assert "drafter" not in server.get(path + "/explain/2", params=what_if).json()["sentence"]


def test_lenses_show_what_the_engine_computes(server, llm):
    run = finished(server, start(server, sampling={"seed": 7, "max_tokens": 5})[0]["id"])
    direct = llm.generate(FRANCE, Sampling(seed=7, max_tokens=5))

    def look(name, **query):
        answer = server.get(f"/api/runs/{run['id']}/lens/{name}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json() | {"model": llm.name}

    info = server.get("/api/info").json()
    assert info["lenses"] == ["attention", "layers", "neighbours"] and info["drafter"] == llm.drafter
    assert look("attention") == llm.lens.attention(direct).to_dict()
    assert look("attention", token=4, layer=14) == llm.lens.attention(direct, 4).to_dict(14)
    assert look("layers", token=4, count=3) == llm.lens.layers(direct, 4, 3).to_dict()
    assert look("neighbours", token=3) == llm.lens.neighbours(" France").to_dict()
    typed = server.get("/api/lens/neighbours", params={"of": " lighthouse", "count": 3}).json()
    assert typed | {"model": llm.name} == llm.lens.neighbours(" lighthouse", 3).to_dict()
    for wrong in ("", "?of=", "?of=" + 201 * "a", "?of=king&count=0"):
        assert server.get(f"/api/lens/neighbours{wrong}").status_code == 400
    last = look("layers", token=4)["layers"][-1]
    assert last["logprob"] == run["tokens"][0]["raw_logprob"] and last["rank"] == run["tokens"][0]["rank"]
    path = f"/api/runs/{run['id']}/lens"
    unknown = server.get(f"{path}/telescope")
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "no_such_lens"
    for wrong in ("experts", "attention?token=10", "attention?layer=31", "layers?count=0", "layers?token=it"):
        assert server.get(f"{path}/{wrong}").status_code == 400
    assert server.get("/api/runs/nothing/lens/attention").status_code == 404


def test_info_has_every_option_with_its_help(server):
    from dataclasses import fields

    info = server.get("/api/info").json()
    names = [field.name for field in fields(Sampling) if field.name != "diffusion"]
    assert [each["name"] for each in info["options"]] == names and info["diffusion"]["defaults"]
    assert all(each["help"] for each in info["options"]) and info["chat"] and info["context"] == 8192


def test_imported_runs_take_a_bounded_room(server):
    """A file of a few bytes may hold a run of many tokens: those that came first make room."""
    run = finished(server, start(server, sampling={"max_tokens": 2, "seed": 3})[0]["id"])
    file = server.get(f"/api/runs/{run['id']}/export").content
    (record,) = from_bytes(file)
    record.model_hash, record.tokens = "", record.tokens * 15_000
    ids = []
    for record.seed in range(100, 113):
        answer = import_(server, to_bytes([record]))
        assert answer.status_code == 201
        ids.append(answer.json()["runs"][0]["id"])
    listed = {each["id"] for each in server.get("/api/runs?limit=1000").json()["runs"]}
    assert ids[0] not in listed and ids[-1] in listed
    assert run["id"] in listed  # what was made here is not touched
    record.tokens *= 3
    refused = import_(server, to_bytes([record]))
    assert refused.status_code == 400 and "at most 65536 are expected" in refused.json()["error"]["message"]
    for id in ids:
        httpx.delete(f"{server.url}/api/runs/{id}", timeout=120)
