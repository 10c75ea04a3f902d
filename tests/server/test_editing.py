"""`/api/edits` over HTTP, and revision while writing: the answers are those of the Python calls, bodies are
bounded, and a plain client gets each token once."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest

from glassloop import Sampling
from glassloop.model.shipped_holes import shipped_holes

MODEL = "smollm2-135m-instruct"
BEFORE, AFTER = "The capital of France is", ", on the river Seine."
REVISING = {
    "temperature": 1.3,
    "seed": 4,
    "max_tokens": 40,
    "revise": 3,
    "revise_window": 6,
    "revise_bits": 3.0,
}


def test_an_infill_is_that_of_the_python_call(server, llm):
    body = {"before": BEFORE, "after": AFTER, "tokens": 2, "candidates": 4, "sampling": {"seed": 3}}
    answer = server.post("/api/edits/infill", body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    same = llm.infill(BEFORE, AFTER, 2, candidates=4, sampling=Sampling(seed=3, temperature=0.8))
    assert made["text"] == same.text
    assert [each["own_bits"] for each in made["proposals"]] == [each.own_bits for each in same.proposals]
    assert made["text"][slice(*made["span"])] == next(
        each["text"] for each in made["proposals"] if each["accepted"]
    )
    kept = server.get(f"/api/runs/{made['run']}").json()
    assert kept["tree"] == made["tree"]
    assert made["text"].endswith(kept["text"])
    times = [each["seconds"] for each in made["proposals"]]
    assert times == sorted(times)
    _check_frames(made)


def test_masks_propose_if_the_model_has_an_adapter_for_them(server):
    body = {"before": BEFORE, "after": AFTER, "tokens": 2, "candidates": 1, "proposer": "diffusion"}
    answer = server.post("/api/edits/infill", body)
    if shipped_holes(MODEL) is None:
        assert answer.status_code == 400 and "no adapter for masked rows" in answer.text
    else:
        assert answer.status_code == 200 and answer.json()["given"]["proposer"] == "diffusion"
    holes = server.post("/api/edits/infill", {**body, "proposer": "left", "method": "holes"})
    if shipped_holes(MODEL) is None:
        assert holes.status_code == 400 and holes.json()["error"]["param"] == "method"
    else:
        assert holes.json()["given"]["proposer"] == "diffusion"
    wrong = server.post("/api/edits/infill", {**body, "method": "metropolis"})
    assert wrong.status_code == 400 and "proposer" in wrong.text
    assert server.post("/api/edits/repair", {"text": "abc", "proposer": "right"}).status_code == 400


def _check_frames(edit):
    """The frames begin with the text before, end with the text after, and each shows what was accepted."""
    texts = [frame["before"] + frame["span"] + frame["after"] for frame in edit["frames"]]
    assert texts[0] == edit["before"] and texts[-1] == edit["text"]
    shown = [frame["proposal"] for frame in edit["frames"]]
    accepted = [place for place, each in enumerate(edit["proposals"]) if each["accepted"]]
    assert shown == [None, *accepted]
    for frame in edit["frames"][1:]:
        assert frame["span"] == edit["proposals"][frame["proposal"]]["text"]


def test_a_text_that_is_repaired_twice_is_told_step_by_step(server):
    text = "Paris is the capital banana France, and Berlin is the capital umbrella Germany."
    edit = server.post("/api/edits/repair", {"text": text, "sampling": {"seed": 1}}).json()
    assert len(edit["frames"]) > 2
    _check_frames(edit)


def test_the_other_edits(server, llm):
    text = "The sea is green today."
    wrote = server.post("/api/edits/rewrite", {"text": text, "spans": [[10, 16]], "candidates": 3}).json()
    assert wrote["text"].startswith("The sea is")
    assert wrote["text"].endswith(" today.")
    mended = server.post("/api/edits/repair", {"text": text, "budget": 50}).json()
    assert mended["before"] == text
    for edit in (wrote, mended):
        _check_frames(edit)
    body = {
        "text": text,
        "check": "regex:[aeiou]$",
        "budget": 400,
        "sampling": {"seed": 3, "max_tokens": 8},
    }
    ends = server.post("/api/edits/repair", body).json()
    assert [each["score"] for each in ends["proposals"]] != []
    chosen = Sampling(temperature=0.8, seed=3, max_tokens=8)
    assert ends["text"] == llm.repair(text, check=body["check"], budget=400, sampling=chosen).text
    body = {"prompt": BEFORE, "alpha": 2.0, "steps": 2, "sampling": {"max_tokens": 5, "seed": 1}}
    sharp = server.post("/api/edits/sharpen", body).json()
    assert len(sharp["proposals"]) == 2
    _check_frames(sharp)
    drawn = Sampling(temperature=0.5, max_tokens=5, seed=1)
    assert sharp["text"] == llm.sharpen(BEFORE, 2.0, steps=2, sampling=drawn).text


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("infill", {"before": "a", "after": "b", "candidates": 65}, "candidates"),
        ("infill", {"before": "a", "after": "b", "tokens": 0}, "tokens"),
        ("infill", {"before": "a" * 2_000_000, "after": "b"}, "before"),
        ("infill", {"before": "a", "after": "b", "method": "magic"}, "method"),
        ("infill", {"before": "a", "after": "b", "sampling": {"temperature": -1}}, "temperature"),
        ("infill", {"before": "a", "after": "b", "sampling": {"max_tokens": 4}}, "max_tokens"),
        ("rewrite", {"text": "abc", "spans": [[0, 1]], "sampling": {"stop": ["b"]}}, "stop"),
        ("rewrite", {"text": "abc", "spans": [[2, 9]]}, "spans[0]"),
        ("repair", {"text": "abc", "sampling": {"revise": 2}, "check": "contains:d"}, "revise"),
        ("repair", {"text": "abc", "tokens": 6, "check": "contains:d"}, "tokens"),
        ("rewrite", {"text": "abc", "spans": []}, "spans"),
        ("repair", {"text": "abc", "budget": 10**9}, "budget"),
        ("repair", {"text": ""}, "text"),
        ("repair", {"text": "abc", "check": "python:/etc/passwd"}, "check"),
        ("repair", {"text": "abc", "check": "regex:("}, "check"),
        ("sharpen", {"prompt": "a", "token_ids": [1]}, "prompt"),
        ("sharpen", {"prompt": "a", "steps": 10**6}, "steps"),
        ("sharpen", {"prompt": "a", "alpha": 0}, "alpha"),
    ],
)
def test_a_bad_body_is_refused_by_name(server, path, body, field):
    answer = server.post(f"/api/edits/{path}", body)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["param"] or "").split(".")[-1].startswith(field.split("[")[0])


def _events(server, tree: str) -> list[tuple[str, dict]]:
    made, kind = [], ""
    with httpx.stream("GET", f"{server.url}/api/trees/{tree}/events?close=true", timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                made.append((kind, json.loads(line[6:])))
    return made


def test_a_stream_of_events_announces_what_is_taken_back(server, llm):
    whole = llm.generate(BEFORE, Sampling(**REVISING))
    assert whole.revised
    (first,) = server.post("/api/runs", {"prompt": BEFORE, "sampling": REVISING}).json()["runs"]
    tokens: dict[str, list[int]] = {}
    now = first["id"]
    backs = 0
    for kind, data in _events(server, first["tree"]):
        if kind == "token":
            tokens.setdefault(data["run"], []).append(data["id"])
            assert data["index"] == len(tokens[data["run"]]) - 1
        elif kind == "taken_back":
            assert data["run"] == now
            now, backs = data["continued_by"], backs + 1
            tokens[now] = tokens[data["run"]][: data["to"]]
    assert backs == whole.revised
    assert tokens[now] == whole.token_ids
    last = server.get(f"/api/runs/{now}").json()
    assert (last["text"], last["reason"], last["status"]) == (whole.text, "revised", "done")
    old = server.get(f"/api/runs/{first['id']}").json()
    assert old["stop_reason"].startswith("taken back to token")


def test_a_plain_client_gets_settled_text_only(server, client, llm):
    whole = llm.generate(BEFORE, Sampling(**REVISING))
    body = {
        "model": "smollm2-135m-instruct",
        "prompt": BEFORE,
        "max_tokens": 40,
        "seed": 4,
        "temperature": 1.3,
    }
    extra = {name: value for name, value in REVISING.items() if name.startswith("revise")}
    parts = [
        chunk.choices[0].text
        for chunk in client.completions.create(**body, stream=True, extra_body=extra)
        if chunk.choices
    ]
    assert "".join(parts) == whole.text
    assert len([part for part in parts if part]) > 3
    answer = client.completions.create(**body, extra_body=extra)
    assert answer.choices[0].text == whole.text
