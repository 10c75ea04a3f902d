"""Explanations over HTTP: of every kind of token, and the same as Python and the terminal give."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
from click.testing import CliRunner
from engine.random_runs import random_run
from hostile import glass
from hostile.tiny import write_tiny
from typer.main import get_command

from glassloop import LLM, GlassloopError, Run, Sampling
from glassloop.cli.main import app
from glassloop.cli.terminal import visible
from glassloop.cli.worst import worst_to_dict
from glassloop.record.format.glass_file import to_bytes
from server.conftest import Server, serving

FRANCE = "The capital of France is"
# What HTTP and the terminal add to an explanation of their own.
HTTP_OWN = {"index", "actual", "same", "others"}
CLI_OWN = {"run", "step", "recorded"}
COMMANDS = get_command(app)


def take(server: Server, data: bytes) -> str:
    """Imports a file and returns the path of its run."""
    headers = {"content-type": "application/octet-stream"}
    answer = httpx.post(f"{server.url}/api/runs/import", content=data, headers=headers, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    return f"/api/runs/{answer.json()['runs'][0]['id']}"


def why(server: Server, path: str, index: int, **query: Any) -> dict[str, Any]:
    answer = server.get(f"{path}/explain/{index}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ── each kind of token, with the default model ─────────────────────────────────────────────────────────────


def completed(server: Server, **options: Any) -> str:
    body = {"prompt": FRANCE, "max_tokens": 5, "seed": 1, **options}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    listed = server.get("/api/runs?limit=1").json()["runs"]
    assert listed[0]["text"] == answer.json()["choices"][0]["text"]
    return f"/api/runs/{listed[0]['id']}"


def test_a_beam_token_is_explained_by_its_search_and_not_by_luck(server, llm):
    path = completed(server, beam_width=3)
    run = server.get(path).json()
    direct = llm.generate(FRANCE, Sampling(max_tokens=5, seed=1, beam_width=3))
    assert [token["id"] for token in run["tokens"]] == direct.token_ids
    for index, token in enumerate(run["tokens"]):
        told = why(server, path, index)
        assert told["source"] == told["actual"]["source"] == "beam"
        assert told["taken"]["id"] == told["actual"]["id"] == token["id"]
        assert told["taken"]["logprob"] == token["logprob"]
        assert all(racer["luck"] == 0 for racer in told["candidates"])
        piece = token["piece"].replace("\n", "\\n")
        assert told["sentence"].startswith(f"“{piece}” (")
        assert "best as a whole" in told["sentence"] and "whole text and has no luck" in told["sentence"]
        assert "drew" not in told["sentence"] and told["same"] == (told["winner"]["id"] == token["id"])
        # Its rank is that among the beams of the same length.
        rivals, numbers = run["beams"], [None]
        for _ in range(index + 1):
            rivals = [beam for beam in run["beams"] if beam["parent"] in numbers]
            numbers = [beam["number"] for beam in rivals]
        mine = next(beam for beam in rivals if beam["node"] == token["node"])
        better = [beam for beam in rivals if beam["logprob"] > mine["logprob"]]
        assert told["beam"] == {"rank": 1 + len(better), "beams": len(rivals), "result": 1}
    assert why(server, path, 5)["actual"] is None or run["end"] is not None
    # Another seed, as any other option, asks what a draw would have brought: what a fork then does.
    for query in ({"seed": 99}, {"seed": 100}, {"seed": 99, "temperature": 1.5}):
        told = why(server, path, 1, **query)
        assert told["source"] == "sampled" and told["seed"] == query["seed"]
        assert told["sampling"]["beam_width"] == 1 and "instead of the beam search" in told["sentence"]
        fork = direct.fork(1, beam_width=1, **query)
        assert told["winner"]["id"] == fork.tokens[1].id and told["winner"]["luck"] == fork.tokens[1].luck


def test_a_beam_that_is_not_the_first_choice_says_which_would_have_been(server):
    """The search is wide enough to find a text whose tokens are not each the likeliest."""
    body = {"prompt": FRANCE, "sampling": {"beam_width": 4, "n": 4, "max_tokens": 6, "seed": 1}}
    for place, begun in enumerate(server.post("/api/runs", body).json()["runs"], 1):
        path = f"/api/runs/{begun['id']}"
        httpx.get(f"{server.url}{path}/events", timeout=120)
        run = server.get(path).json()
        told = [why(server, path, index) for index in range(len(run["tokens"]))]
        best = "best" if place == 1 else {2: "2nd best", 3: "3rd best", 4: "4th best"}[place]
        assert all(f"is on the beam that was {best} as a whole" in each["sentence"] for each in told)
        if place > 1:
            assert not all(each["same"] for each in told)
        for each in told:
            if not each["same"]:
                name = each["winner"]["text"].replace("\n", "\\n")
                assert f"Looking at this step alone, “{name}” (" in each["sentence"]
                assert ") would have won, " in each["sentence"]


def test_a_forced_token_says_that_it_was_forced_and_how_it_would_have_fared(server):
    path = completed(server)
    first = server.get(path).json()["tokens"][0]
    other = first["runner_up"]
    fork = server.post(f"{path}/fork", {"at": 0, "token": other}).json()["runs"][0]["id"]
    httpx.get(f"{server.url}/api/runs/{fork}/events", timeout=120)
    token = server.get(f"/api/runs/{fork}").json()["tokens"][0]
    told = why(server, f"/api/runs/{fork}", 0)
    assert told["actual"] == {"id": other, "text": token["piece"], "source": "forced"}
    assert told["taken"]["id"] == other and told["winner"]["id"] == first["id"] and told["same"] is False
    assert told["sentence"].startswith(f"You forced “{token['piece']}”. It was ")
    lost = f"drew {token['luck']:+.2f} of luck and would have lost by {-token['margin']:.2f}"
    assert lost in told["sentence"]
    assert f"Without that, “{first['piece']}” would have been chosen: it was " in told["sentence"]
    same = server.post(f"{path}/fork", {"at": 0, "token": first["id"]}).json()["runs"][0]["id"]
    httpx.get(f"{server.url}/api/runs/{same}/events", timeout=120)
    assert "It would have been chosen anyway" in why(server, f"/api/runs/{same}", 0)["sentence"]
    assert "forced" not in why(server, f"/api/runs/{fork}", 0, temperature=0.5)["sentence"]


def test_a_token_of_the_prompt_says_how_likely_the_model_found_it(server, llm):
    path = completed(server, temperature=0.3, top_k=2, repetition_penalty=1.5)
    ids = llm.tokenizer.encode(FRANCE)
    scored = llm.generate(FRANCE, Sampling(max_tokens=1, prompt_logprobs=2)).prompt_tokens
    for index in range(1, len(ids)):
        told, token = why(server, path, index, of="prompt"), scored[index - 1]
        assert told["of"] == told["source"] == "prompt" and told["stages"] == []
        assert told["actual"] == {"id": ids[index], "text": token.piece, "source": "prompt"}
        assert told["taken"]["raw_logprob"] == told["taken"]["logprob"] == token.raw_logprob
        assert told["taken"]["rank"] == token.rank and told["position"] == index
        assert told["winner"]["id"] == token.alternatives[0].id
        assert told["sentence"].startswith(f"“{token.piece}” is part of the prompt")
        assert ("the likeliest" if token.rank == 1 else f"ranked it {token.rank}") in told["sentence"]
    first = server.get(f"{path}/explain/0?of=prompt")
    assert first.status_code == 400 and first.json()["error"]["param"] == "index"
    assert "before the first token of the prompt there are no logits" in first.json()["error"]["message"]
    assert server.get(f"{path}/explain/{len(ids)}?of=prompt").status_code == 400
    assert server.get(f"{path}/explain/1?of=neither").status_code == 400
    # A what-if there is what a run of the tokens before it draws.
    for query in ({"seed": 4}, {"temperature": 1.2, "top_k": 0}):
        told = why(server, path, 2, of="prompt", **query)
        options = {"temperature": 0.3, "top_k": 2, "repetition_penalty": 1.5, "seed": 1, "max_tokens": 1}
        drawn = llm.generate(ids[:2], Sampling(**{**options, **query})).tokens[0]
        assert told["winner"]["id"] == drawn.id and told["winner"]["luck"] == drawn.luck
        assert told["source"] == "sampled"


def test_another_seed_is_a_what_if(server, llm):
    path = completed(server)
    run = llm.generate(FRANCE, Sampling(max_tokens=5, seed=1))
    winners = set()
    for seed in range(20):
        told = why(server, path, 2, seed=seed)
        fork = run.fork(2, seed=seed, max_tokens=3)
        assert told["seed"] == seed and told["winner"]["id"] == fork.tokens[2].id
        assert told["winner"]["luck"] == fork.tokens[2].luck
        winners.add(told["winner"]["id"])
    assert len(winners) > 1


def test_the_worst_tokens_are_those_of_the_terminal(server, llm):
    path = completed(server, temperature=1.3, max_tokens=24, ignore_eos=True)
    told = server.get(f"{path}/worst", params={"count": 4}).json()
    run = llm.generate(FRANCE, Sampling(max_tokens=24, seed=1, temperature=1.3, ignore_eos=True))
    in_terminal = worst_to_dict(run.tokens, 4)
    assert len(told["surprising"]) == 4 and told["lucky"]
    assert told["first_unlikely"] is not None
    for kind in (told, in_terminal):
        kind["first"] = [kind["first_unlikely"]]
    for kind in ("surprising", "lucky", "first"):
        for mine, theirs in zip(told[kind], in_terminal[kind], strict=True):
            assert mine.pop("bytes") == run.tokens[mine["index"]].bytes.hex()
            assert mine.pop("index") == theirs.pop("step")
            # The speed of the machine decides which tokens are drafts.
            assert {mine.pop("source"), theirs.pop("source")} <= {"sampled", "draft"}
            assert mine == theirs
    assert len(server.get(f"{path}/worst").json()["surprising"]) == 5
    for count in (0, 101, "x"):
        assert server.get(f"{path}/worst", params={"count": count}).status_code == 400
    assert server.get("/api/runs/00/worst").status_code == 404


# ── files from elsewhere, with a tiny model ────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A server, and the file of its model."""
    path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with serving("--model", str(path), "--kv-memory", "16MB") as server:
        yield server, path


@pytest.fixture(scope="module")
def tiny_llm(tiny):
    return LLM(tiny[1], kv_memory="16MB")


def test_a_foreign_file_is_shown_and_not_explained(tiny, tiny_llm):
    server, _ = tiny
    file = to_bytes([tiny_llm.generate("hello", Sampling(max_tokens=4, seed=3, ignore_eos=True))])
    section = glass.read(file)[0]
    for hash in ("", "0" * 64):
        path = take(server, glass.with_headers(file, {**section.header, "model_hash": hash}))
        assert server.get(path).status_code == 200
        for query in ("", "?seed=3", "?of=prompt", "?luck=new"):
            refused = server.get(f"{path}/explain/1{query}")
            assert refused.status_code == 400 and "was made by a" in refused.json()["error"]["message"]
    path = take(server, file)
    assert why(server, path, 1)["same"] and why(server, path, 1, of="prompt")["source"] == "prompt"


def test_a_run_of_another_op_set_is_explained_and_not_continued(tiny, tiny_llm):
    """A record has the numbers of one op set: whatever would add others is refused, with both names."""
    server, model = tiny
    with LLM(model, ops="reference", kv_memory="16MB") as reference:
        made = reference.generate("hello", Sampling(max_tokens=6, seed=3, ignore_eos=True)).rewind(4)
    assert made.ops == "reference" != tiny_llm.op_set
    file = to_bytes([made])
    path = take(server, file)
    for action, body in (
        ("step", {"tokens": 1}),
        ("fork", {"at": 1}),
        ("fork", {"at": 2, "token": 65}),
        ("edit", {"at": 1, "text": "x"}),
    ):
        refused = server.post(f"{path}/{action}", body)
        assert refused.status_code == 400, action
        told = refused.json()["error"]["message"]
        assert "the op set reference" in told and tiny_llm.op_set in told
    assert server.get(path).json()["ops"] == "reference" and len(server.get(path).json()["tokens"]) == 4
    told = why(server, path, 1)
    assert told["actual"]["id"] == made.token_ids[1] and why(server, path, 1, seed=4)["seed"] == 4
    assert told["difference"]["recorded"]["logprob"] == made.tokens[1].logprob
    assert told["difference"]["now"]["logprob"] == told["taken"]["logprob"] != made.tokens[1].logprob
    assert f"made with reference, computed again with {tiny_llm.op_set}" in told["sentence"]
    assert why(server, path, 1, seed=4)["difference"] is None
    # A record from before op sets were recorded names none, and goes on.
    old = glass.with_headers(file, {**glass.read(file)[0].header, "ops": "", "id": "00000000000000cc"})
    path = take(server, old)
    assert server.post(f"{path}/step", {"tokens": 1}).status_code == 200
    fork = server.post(f"{path}/fork", {"at": 1, "sampling": {"max_tokens": 2}})
    assert fork.status_code == 201 and fork.json()["runs"][0]["ops"] == tiny_llm.op_set


# ── one answer, whichever way it is asked for ──────────────────────────────────────────────────────────────


def random_case(rng: np.random.Generator, llm: LLM) -> Run:
    """A sampled run, a search or a fork with a token of the caller's."""
    kind = int(rng.integers(3))
    if kind == 0:
        return random_run(rng, llm, beam_width=3, n=2, max_tokens=int(rng.integers(2, 8)), min_tokens=0)
    run = random_run(rng, llm)
    if kind == 1 and run.tokens:
        try:
            return run.fork(int(rng.integers(len(run.tokens))), token=int(rng.integers(97, 123)), n=1)
        except GlassloopError:  # the grammar has no room for it
            return run
    return run


def random_question(rng: np.random.Generator, run: Run) -> tuple[int, dict[str, Any]]:
    """A place, and what is asked about it; now and then one that the run does not have."""
    asked: dict[str, Any] = {"of": "prompt"} if rng.random() < 0.3 else {}
    count = len(run.prompt_ids) if asked else len(run.tokens) + 1
    options: list[dict[str, Any]] = [
        *({}, {}, {}, {"luck": "new"}, {"seed": int(rng.integers(1 << 63))}),
        *({"temperature": 0.0}, {"temperature": 1.7, "luck": "new"}, {"top_k": 3, "top_p": 0.8}),
        *({"beam_width": 4}, {"bad_words": ["t"], "seed": 5}, {"regex": "[a-z]+"}, {"min_p": 7.0}),
    ]
    return int(rng.integers(count + 1)), {**asked, **options[int(rng.integers(len(options)))]}


def flags(asked: dict[str, Any]) -> list[str]:
    made = []
    for name, value in asked.items():
        if name in ("of", "luck"):
            made.append({"of": "--prompt", "luck": "--new-luck"}[name])
        else:
            values = value if isinstance(value, list) else [value]
            made += [part for each in values for part in (f"--{name.replace('_', '-')}", str(each))]
    return made


def test_an_option_that_cannot_change_a_choice_is_refused_by_name(tiny, tiny_llm):
    server, _ = tiny
    run = tiny_llm.generate("hello", seed=1, max_tokens=5, ignore_eos=True)
    path = take(server, to_bytes([run]))
    for name, value in (("max_tokens", 3), ("n", 2), ("beam_width", 2), ("logprobs", 9), ("stop", "a")):
        answer = server.get(f"{path}/explain/1", params={name: value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name, answer.text
    # What the run has by itself, and defaults, change nothing and are not refused.
    same = {"max_tokens": 5, "n": 1, "beam_width": 1, "ignore_eos": "true", "logprobs": 5}
    assert server.get(f"{path}/explain/1", params=same).status_code == 200


@pytest.mark.parametrize("seed", range(30))
def test_python_the_terminal_and_http_answer_alike(tiny, tiny_llm, tmp_path, monkeypatch, seed):
    """The same sentence and the same numbers, or the same error."""
    server, _ = tiny
    rng = np.random.default_rng(seed)
    run = random_case(rng, tiny_llm)
    run.save(tmp_path / "run.glass")
    path = take(server, to_bytes([run]))
    monkeypatch.setattr("glassloop.cli.loading.load", lambda *_, **__: tiny_llm)
    for _ in range(8):
        at, asked = random_question(rng, run)
        shell = ["explain", str(tmp_path / "run.glass"), "--run", run.id, "--step", str(at), "--json"]
        done = CliRunner().invoke(COMMANDS, [*shell, "--model", "tiny", *flags(asked)])
        query = {name: json.dumps(v) if isinstance(v, list) else v for name, v in asked.items()}
        answer = server.get(f"{path}/explain/{at}", params=query)
        try:
            told = json.loads(json.dumps(tiny_llm.explain(run, at, **asked).to_dict()))
        except GlassloopError as error:
            assert answer.status_code == 400 and answer.json()["error"]["message"] == str(error), asked
            in_terminal = str(done.exception).replace("--step is", "at is")  # it names its own option
            assert in_terminal == str(error), asked
            continue
        assert answer.status_code == 200, answer.text
        over_http, in_terminal = answer.json(), json.loads(done.stdout)
        assert over_http.pop("of") == in_terminal.pop("of") == asked.get("of", "answer")
        assert {name: over_http[name] for name in over_http.keys() - HTTP_OWN} == told, asked
        assert {name: in_terminal[name] for name in in_terminal.keys() - CLI_OWN} == told, asked
        plain = CliRunner().invoke(COMMANDS, [*shell[:-1], "--model", "tiny", *flags(asked)])
        assert plain.exit_code == 0 and visible(told["sentence"]) in plain.stdout
