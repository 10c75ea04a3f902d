"""Diffusion over HTTP: the text and its passes are those of the Python call, a stream tells each pass, the
run is kept like any other, and a client that disconnects frees all that its request held."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest
from waiting import wait_until

from glassloop import Run, Sampling

from .conftest import MODEL
from .test_operation import idle, metric

PROMPT = "The old man sat down and"
SAMPLING = {"max_tokens": 12, "seed": 7, "temperature": 0.7}
OPTIONS = {"block": 6, "passes": 3, "revise": 1}
BODY = {"prompt": PROMPT, "sampling": SAMPLING, "diffusion": OPTIONS}


@pytest.fixture(scope="module")
def expected(llm) -> Run:
    return llm.diffuse(PROMPT, Sampling(**SAMPLING), diffusion=OPTIONS)


def events(answer: httpx.Response) -> list[tuple[str, dict]]:
    made, kind = [], ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            made.append((kind, json.loads(line[6:])))
    return made


def test_a_text_and_its_passes_are_those_of_the_python_call(server, expected):
    answer = server.post("/api/diffusions", BODY)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    (run,) = made["runs"]
    assert (run["text"], run["status"], run["finish_reason"]) == (expected.text, "done", "length")
    assert run["diffusion"] == expected.diffusion and run["passes"] == len(expected.passes)
    told = made["passes"][run["id"]]
    assert [each["pass"] for each in told] == list(range(len(expected.passes)))
    for each, record in zip(told, expected.passes, strict=True):
        assert (each["first"], each["width"]) == (record.first, record.width)
        filled = [(cell["place"], cell["id"], cell["confidence"], cell["logprob"]) for cell in each["filled"]]
        assert filled == [(cell.at, cell.id, cell.confidence, cell.logprob) for cell in record.filled]
        taken = [(cell["place"], cell["id"], cell["reason"]) for cell in each["taken_back"]]
        assert taken == [(cell.at, cell.id, cell.why) for cell in record.unfilled]
    assert any(each["taken_back"] for each in told)


def test_a_stream_has_an_event_for_each_pass_and_tokens_when_a_block_is_final(server, expected):
    with httpx.stream(
        "POST", f"{server.url}/api/diffusions", json={**BODY, "stream": True}, timeout=120
    ) as answer:
        told = events(answer)
    kinds = [kind for kind, _ in told]
    assert kinds[0] == "run" and kinds[-1] == "end"
    frames = [data["frame"] for kind, data in told if kind == "pass"]
    assert [frame["pass"] for frame in frames] == list(range(len(expected.passes)))
    for frame, record in zip(frames, expected.passes, strict=True):
        assert frame["first"] == record.first and len(frame["cells"]) == record.width
        changed = {record.first + at for at, cell in enumerate(frame["cells"]) if cell["changed"]}
        assert changed == {each.at for each in (*record.filled, *record.unfilled)}
        for each in record.filled:
            cell = frame["cells"][each.at - record.first]
            assert (cell["id"], cell["confidence"], cell["pass"]) == (each.id, each.confidence, record.number)
        for each in record.unfilled:
            assert frame["cells"][each.at - record.first]["reason"] == each.why
    # The tokens of a block come after its last pass and before the first one of the next block.
    blocks, seen = [], list[int]()
    for kind, data in told:
        if kind == "token":
            seen.append(data["id"])
        elif kind == "pass" and data["frame"]["first"] == len(seen):
            blocks.append(len(seen))
    assert seen == expected.token_ids and set(blocks) == {0, 6}
    id = told[0][1]["run"]
    again = events(httpx.get(f"{server.url}/api/runs/{id}/events", timeout=120))
    assert [data.get("frame") for kind, data in again if kind == "pass"] == frames
    kept = server.get(f"/api/runs/{id}/passes", params={"limit": 4}).json()
    assert kept["frames"] == frames[:4] and kept["more"] and kept["diffusion"] == expected.diffusion
    rest = server.get(f"/api/runs/{id}/passes", params={"after": 3}).json()
    assert rest["frames"] == frames[4:] and not rest["more"] and rest["passes"] == len(frames)


def test_the_run_is_kept_explained_exported_and_replayed(server, llm, expected, tmp_path):
    (run,) = server.post("/api/runs", {**BODY, "sampling": {**SAMPLING, "n": 2}}).json()["runs"][:1]
    path = f"/api/runs/{run['id']}"
    events(httpx.get(f"{server.url}{path}/events", timeout=120))
    whole = server.get(path).json()
    assert whole["text"] == expected.text and {token["source"] for token in whole["tokens"]} == {"mask"}
    told = server.get(f"{path}/explain/2").json()
    assert told["same"] and told["sentence"] == expected.explain(2).sentence
    first = server.get(f"{path}/explain/2?pass=0").json()
    assert first["sentence"] == expected.explain(2, number=0).sentence and "In pass 0" in first["sentence"]
    other = server.get(f"{path}/explain/2?temperature=0&luck=new").json()
    assert other["sentence"] == expected.explain(2, temperature=0, luck="new").sentence
    assert server.get(f"{path}/explain/1?of=prompt").json()["source"] == "prompt"
    for query, field in (("2?pass=99", "pass"), ("2?pass=1000000000000", "pass"), ("99", "index")):
        wrong = server.get(f"{path}/explain/{query}")
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == field, wrong.text
    file = tmp_path / "a.glass"
    file.write_bytes(server.get(f"{path}/export").content)
    loaded = Run.load(file, llm=llm)
    assert loaded.passes == expected.passes and loaded.replay().identical
    loaded.id, loaded.seed = "0" * 16, 8  # another record
    loaded.save(file)
    headers = {"content-type": "application/octet-stream"}
    taken = httpx.post(
        f"{server.url}/api/runs/import", content=file.read_bytes(), headers=headers, timeout=120
    )
    assert taken.status_code == 201 and taken.json()["runs"][0]["passes"] == len(expected.passes)
    assert server.post(f"{path}/fork", {"at": 1}).status_code == 400
    stepped = server.post(f"{path}/step", {"tokens": 1})
    assert stepped.status_code == 409 and "as a prompt" in stepped.text


def test_one_tree_has_the_same_prompt_from_left_to_right_and_by_diffusion(server, expected, llm):
    ways = [{"name": "left"}, {"name": "diffused", "diffusion": OPTIONS}]
    started = server.post("/api/runs", {"prompt": PROMPT, "sampling": SAMPLING, "strategies": ways}).json()
    tree = started["runs"][0]["tree"]
    events(httpx.get(f"{server.url}/api/trees/{tree}/events?close=true", timeout=120))
    texts = {run["name"]: run["text"] for run in server.get(f"/api/runs?tree={tree}").json()["runs"]}
    plain = llm.generate(PROMPT, Sampling(**SAMPLING))
    assert texts == {"left": plain.text, "diffused": expected.text}
    plain_id = next(run["id"] for run in started["runs"] if run["name"] == "left")
    none = server.get(f"/api/runs/{plain_id}/passes").json()
    assert none["diffusion"] is None and none["frames"] == [] and none["passes"] == 0
    wrong = server.get(f"/api/runs/{plain_id}/explain/0?pass=0")
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "pass"


def test_a_plain_client_gets_the_text_from_left_to_right(client, expected, llm):
    asked = {"model": MODEL, "seed": 7, "temperature": 0.7, "max_tokens": 12}
    extra = {"diffusion": OPTIONS}
    stream = client.completions.create(prompt=PROMPT, stream=True, extra_body=extra, **asked)
    parts = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(parts) == expected.text and len(list(filter(None, parts))) > 4
    whole = client.completions.create(prompt=PROMPT, extra_body=extra, logprobs=1, **asked).choices[0]
    assert whole.text == expected.text and whole.logprobs.token_logprobs[0] == expected.tokens[0].raw_logprob
    messages = [{"role": "user", "content": "Say hi."}]
    said = client.chat.completions.create(messages=messages, extra_body=extra, **asked).choices[0].message
    prompt = llm.tokenizer.encode_chat(messages)
    assert said.content == llm.diffuse(prompt, Sampling(**SAMPLING), diffusion=OPTIONS).text


def test_a_client_that_disconnects_frees_all_that_its_request_held(server):
    body = {**BODY, "sampling": {**SAMPLING, "max_tokens": 2000, "n": 2}, "stream": True}
    passes = 0
    with httpx.stream("POST", f"{server.url}/api/diffusions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            passes += line == "event: pass"
            if passes == 3:
                break
    id = answer.headers["x-glassloop-run"].split(", ")[0]
    wait_until(lambda: idle(server))
    assert metric(server, "glassloop_kv_pages_held") == 0
    run = server.get(f"/api/runs/{id}").json()
    assert run["finish_reason"] == "cancelled" and run["status"] == "done"
    kept = server.get(f"/api/runs/{id}/passes").json()
    assert kept["passes"] == run["passes"] >= 1
    assert server.post("/api/diffusions", BODY).status_code == 200


def test_a_repair_by_masks(server):
    body = {"text": "Paris is the capital banana France.", "proposer": "diffusion", "budget": 300}
    made = server.post("/api/edits/repair", {**body, "sampling": {"seed": 1}})
    assert made.status_code == 200 and made.json()["given"]["proposer"] == "diffusion", made.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"diffusion": {"block": 0}}, "diffusion.block"),
        ({"diffusion": {"block": 10**9}}, "diffusion.block"),
        ({"diffusion": {"block": "8"}}, "diffusion.block"),
        ({"diffusion": {"passes": 10**6}}, "diffusion.passes"),
        ({"diffusion": {"threshold": 2}}, "diffusion.threshold"),
        ({"diffusion": {"entropy": -1}}, "diffusion.entropy"),
        ({"diffusion": {"most": 0}}, "diffusion.most"),
        ({"diffusion": {"order": "up"}}, "diffusion.order"),
        ({"diffusion": {"revise": 257}}, "diffusion.revise"),
        ({"diffusion": {"retake": 1.5}}, "diffusion.retake"),
        ({"diffusion": {"colour": 1}}, "diffusion.colour"),
        ({"diffusion": []}, "diffusion"),
        ({"sampling": {"beam_width": 2}}, "beam_width"),
        ({"sampling": {"prompt_logprobs": 1}}, "prompt_logprobs"),
        ({"sampling": {"temperature": -1}}, "temperature"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a" * 2_000_000}, "prompt"),
        ({"pause_after": 3}, "pause_after"),
    ],
)
def test_a_bad_body_is_refused_by_name(server, body, field):
    for path in ("/api/diffusions", "/api/runs"):
        if path == "/api/runs" and "diffusion" not in body:
            body = {**body, "diffusion": {}}
        answer = server.post(path, {"prompt": "Hi", **body})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == field, error


def test_echo_of_log_probabilities_is_refused_by_the_name_that_was_sent(server):
    body = {"prompt": "Hi", "diffusion": {}, "echo": True, "logprobs": 1}
    error = server.post("/v1/completions", body).json()["error"]
    assert error["param"] == "echo" and "diffusion does not take it" in error["message"]
    error = server.post("/v1/completions", {**body, "prompt_logprobs": 1}).json()["error"]
    assert error["param"] == "prompt_logprobs"


def test_masks_refuse_options_that_they_have_no_use_for(server):
    body = {"text": "Paris is the capital banana France.", "proposer": "diffusion"}
    for name, value in (("timeout", 5), ("regex", "a+"), ("temperature", 0.5)):
        error = server.post("/api/edits/repair", {**body, "sampling": {name: value}}).json()["error"]
        assert error["param"] == name and "repair by masks does not take it" in error["message"]
    body = {"before": "a", "after": "b", "method": "holes", "sampling": {"timeout": 5}}
    assert server.post("/api/edits/infill", body).json()["error"]["param"] == "timeout"


def test_search_and_diffusion_exclude_each_other(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "search": {"n": 2}, "diffusion": {}}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "diffusion"
    wrong = server.post("/v1/completions", {"prompt": "Hi", "diffusion": {"block": 0}})
    assert wrong.json()["error"]["param"] == "diffusion.block"


def test_info_says_whether_the_model_can(server, llm):
    told = server.get("/api/info").json()["diffusion"]
    assert told["available"] and told["defaults"]["block"] == 16
