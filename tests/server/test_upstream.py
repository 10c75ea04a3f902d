"""`serve --upstream`: a server in front of another one. What the one behind tells must come through
unchanged, and what it does not tell must be unknown."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest
from cli.terminal import run

from glassloop import Run, Sampling
from glassloop.errors import GlassloopError, TraceError
from glassloop.upstream import UpstreamEngine
from server.conftest import Server, serving

PROMPT = "The capital of France is"
TALK = [{"role": "user", "content": "Name a city in Spain, and say ñ or 🙂."}]
UNKNOWN = ("logprob", "rank", "rank_after", "entropy", "log_sum_exp", "luck", "margin", "runner_up")


@pytest.fixture(scope="module")
def front(server: Server) -> Iterator[Server]:
    with serving("--upstream", server.url) as started:
        yield started


@pytest.fixture(scope="module")
def engine(server: Server) -> Iterator[UpstreamEngine]:
    with UpstreamEngine(server.url) as made:
        yield made


def without_ids(answer: dict) -> dict:
    return {name: answer[name] for name in ("choices", "usage", "model")}


def both(front: Server, back: Server, path: str, body: dict) -> tuple[dict, dict]:
    told, own = front.post(path, body), back.post(path, body)
    assert told.status_code == own.status_code == 200, told.text
    return without_ids(told.json()), without_ids(own.json())


def test_a_chat_comes_through_unchanged(front, server):
    body = {"messages": TALK, "temperature": 0.8, "top_p": 0.9, "seed": 7, "max_tokens": 24}
    told, own = both(front, server, "/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 5})
    for made in (told, own):
        for each in made["choices"][0]["logprobs"]["content"]:
            for other in each["top_logprobs"]:
                del other["bytes"]  # a part of a character is known by its text alone
    told["usage"].pop("prompt_tokens_details"), own["usage"].pop("prompt_tokens_details")
    assert told == own


def test_a_text_comes_through_unchanged(front, server):
    body = {"prompt": PROMPT, "temperature": 1.2, "seed": 3, "max_tokens": 12, "logprobs": 3, "n": 1}
    told, own = both(front, server, "/v1/completions", body)
    assert told["choices"][0]["text"] == own["choices"][0]["text"]
    for name in ("tokens", "token_logprobs"):
        assert told["choices"][0]["logprobs"][name] == own["choices"][0]["logprobs"][name]


def test_the_record_has_what_was_told_and_nothing_else(front, llm):
    sampling = {"temperature": 0.7, "seed": 5, "max_tokens": 10, "prompt_logprobs": 3}
    made = start(front, {"prompt": PROMPT, "sampling": sampling})
    own = llm.generate(PROMPT, Sampling(**sampling))
    assert made["text"] == own.text and made["finish_reason"] == own.finish_reason
    told = {name: made["usage"][name] for name in ("prompt_tokens", "completion_tokens", "context_left")}
    assert told.items() <= own.usage.to_dict().items()
    assert made["upstream"]["server"] == "glassloop" and made["upstream"]["endpoint"] == "completions"
    for token, known in zip(made["tokens"], own.tokens, strict=True):
        assert token["text"] == known.text and token["raw_logprob"] == known.raw_logprob
        assert all(token[name] is None for name in UNKNOWN)
        told = {(each["text"], each["raw_logprob"]) for each in token["alternatives"]}
        assert told >= {(each.text, each.raw_logprob) for each in known.alternatives}
    assert [each["piece"] for each in made["prompt_tokens"]] == list(map(llm.piece, own.prompt_ids))


def test_the_prompt_of_a_chat_is_known_where_the_server_tells_it(engine, llm):
    sampling = Sampling(temperature=0, max_tokens=2, seed=1, prompt_logprobs=3)
    made, own = engine.chat(TALK, sampling), llm.chat(TALK, sampling)
    assert made.text == own.text and len(made.prompt_ids) == len(own.prompt_ids)
    for token, known in zip(made.prompt_tokens, own.prompt_tokens, strict=True):
        assert (token.piece, token.raw_logprob, token.rank) == (known.piece, known.raw_logprob, known.rank)
        told = {(each.text, each.raw_logprob) for each in token.alternatives}
        assert told >= {(each.text, each.raw_logprob) for each in known.alternatives[:3]}


def start(front: Server, body: dict, path: str = "/api/runs") -> dict:
    """Starts a run and returns it when it has ended."""
    answer = front.post(path, body)
    assert answer.status_code == 201, answer.text
    (summary,) = answer.json()["runs"]
    with httpx.stream("GET", f"{front.url}/api/runs/{summary['id']}/events", timeout=120) as events:
        for _ in events.iter_raw():
            pass
    made = front.get(f"/api/runs/{summary['id']}").json()
    assert made["error"] is None, made["error"]
    return made


@pytest.mark.parametrize("prompt", [{"prompt": PROMPT}, {"messages": TALK}], ids=["text", "chat"])
def test_a_fork_continues_the_text_of_its_first_tokens(front, llm, prompt):
    options = {"temperature": 0, "max_tokens": 10, "seed": 1}
    made = start(front, {**prompt, "sampling": options})
    other = next(each for each in made["tokens"][2]["alternatives"] if each["id"] != made["tokens"][2]["id"])
    fork = start(front, {"at": 2, "token": other["id"]}, f"/api/runs/{made['id']}/fork")
    own = (
        llm.generate(PROMPT, Sampling(**options))
        if "prompt" in prompt
        else llm.chat(TALK, Sampling(**options))
    )
    expected = own.fork(2, token=other["text"])
    assert fork["text"] == expected.text and fork["parent"] == made["id"] and fork["fork_at"] == 2
    assert fork["usage"]["prompt_tokens"] == len(own.prompt_ids)
    assert fork["usage"]["completion_tokens"] == len(fork["tokens"])
    forced = fork["tokens"][2]
    assert forced["source"] == "forced" and forced["raw_logprob"] == other["raw_logprob"]
    edit = start(front, {"at": 1, "text": " not what"}, f"/api/runs/{made['id']}/edit")
    assert edit["text"].startswith(made["tokens"][0]["text"] + " not what")
    assert edit["tokens"][1]["raw_logprob"] is None  # how likely the edit was is not known


def test_a_run_pauses_and_goes_on(front, llm):
    options = {"temperature": 0, "max_tokens": 8, "seed": 1}
    made = start(front, {"prompt": PROMPT, "sampling": options, "pause_after": 3})
    assert len(made["tokens"]) == 3 and made["status"] == "paused"
    answer = front.post(f"/api/runs/{made['id']}/step", {"tokens": 2})
    assert answer.status_code == 200, answer.text
    with httpx.stream("GET", f"{front.url}/api/runs/{made['id']}/events", timeout=120) as events:
        list(events.iter_raw())
    made = front.get(f"/api/runs/{made['id']}").json()
    assert len(made["tokens"]) == made["usage"]["completion_tokens"] == 5
    assert made["text"] == "".join(t.text for t in llm.generate(PROMPT, Sampling(**options)).tokens[:5])


def test_an_explanation_says_what_is_known(front):
    made = start(front, {"prompt": PROMPT, "sampling": {"temperature": 0, "max_tokens": 2}})
    told = front.get(f"/api/runs/{made['id']}/explain/0").json()
    assert told["upstream"] and told["stages"] == [] and told["margin"] is None
    assert "not known" in told["sentence"] and "glassloop at" in told["sentence"]
    first = made["tokens"][0]
    assert [each["raw_logprob"] for each in told["candidates"]] == sorted(
        (each["raw_logprob"] for each in first["alternatives"]), reverse=True
    )
    assert all(each["luck"] is each["logprob"] is each["rank"] is None for each in told["candidates"])
    what_if = front.get(f"/api/runs/{made['id']}/explain/0?temperature=0.3")
    assert what_if.status_code == 400 and "only its record is known" in what_if.text


def test_what_is_not_known_is_refused_in_words_or_null(front):
    info = front.get("/api/info").json()
    assert "glassloop at" in info["upstream"] and info["lenses"] == []
    assert all(info[name] is None for name in ("vocabulary", "layers", "dim", "heads", "kv", "drafter"))
    refused = {
        ("/tokenize", "tokenizer"): {"prompt": "a"},
        ("/v1/embeddings", "tokenizer"): {"input": "a", "model": info["model"]},
        ("/v1/completions", "token ids"): {"prompt": [1, 2, 3]},
        ("/v1/chat/completions", "logit_bias"): {"messages": TALK, "logit_bias": {"5": 1}},
        ("/v1/chat/completions", "continue_final_message"): {
            "messages": [*TALK, {"role": "assistant", "content": "M"}],
            "continue_final_message": True,
        },
    }
    for (path, words), body in refused.items():
        answer = front.post(path, body)
        assert answer.status_code == 400 and words in answer.text, (path, answer.text)
    made = start(front, {"prompt": PROMPT, "sampling": {"max_tokens": 1}})
    lens = front.get(f"/api/runs/{made['id']}/lens/attention")
    assert lens.status_code == 400, lens.text


def test_a_saved_run_is_the_same_and_cannot_be_computed_again(engine, llm, tmp_path):
    run = engine.generate(PROMPT, Sampling(temperature=0.9, seed=2, max_tokens=6))
    run.save(tmp_path / "a.glass")
    again = Run.load(tmp_path / "a.glass")
    assert again.same_record(run) and again.upstream == run.upstream and again.usage == run.usage
    assert again.explain(1).sentence == run.explain(1).sentence == llm.explain(run, 1).sentence
    for replay in (lambda: again.replay(llm), lambda: llm.replay(again, strict=False)):
        with pytest.raises(TraceError, match=r"another engine, glassloop at .* cannot be computed again"):
            replay()
    with pytest.raises(TraceError, match="another engine"):
        llm.fork(again, 1)
    with pytest.raises(TraceError, match="computed by this program"):
        engine.fork(llm.generate(PROMPT, Sampling(max_tokens=2)), 1)
    assert "as told" in again._repr_html_()
    again.save_html(tmp_path / "a.html")


def test_the_samples_of_a_request_are_different(engine):
    run = engine.generate(PROMPT, Sampling(temperature=1.5, seed=2, max_tokens=8, n=3))
    assert len({each.text for each in run.samples}) == 3
    assert [each.seed for each in run.samples] == [2, 3, 4]
    assert engine.fork(run, 2).text != run.text  # another seed


def test_an_option_that_the_upstream_does_not_take_is_refused(engine):
    for options in ({"beam_width": 2}, {"regex": "a"}, {"stages": ["temperature"]}, {"revise": 1}):
        (name,) = options
        with pytest.raises(GlassloopError, match=name):
            engine.generate(PROMPT, Sampling(**options))


def test_in_the_terminal(server, tmp_path):
    """A run is made, shown, explained and forked through another engine; a replay is refused in words."""
    upstream = ("--upstream", server.url)
    store = {"GLASSLOOP_STORE": str(tmp_path / "runs.db")}
    options = ("--temperature", "0", "--max-tokens", "5", "--seed", "1")
    made = run("generate", PROMPT, *upstream, *options, **store)
    own = run("generate", PROMPT, "--no-store", "--no-model-defaults", *options)
    assert made.returncode == 0 and made.stdout == own.stdout, made.stderr
    assert "upstream glassloop" in made.stderr
    told = run("explain", "last", "--step", "0", **store)
    assert "Its stages, its luck" in told.stdout and told.returncode == 0
    shown = run("runs", "show", "last", **store)
    assert "Paris" in shown.stdout and "?" in shown.stdout
    again = run("replay", "last", **store)
    assert again.returncode == 2 and "cannot be computed again here" in again.stderr
    fork = run("fork", "last", "--at", "1", "--text", " in the", *upstream, **store)
    assert fork.returncode == 0 and fork.stdout.startswith(" Paris in the"), fork.stderr
    refused = run("fork", "last", "--at", "1", **store)
    assert refused.returncode == 2 and "--upstream" in refused.stderr
    both = run("generate", "Hi", *upstream, "--ops", "native", **store)
    assert both.returncode == 2 and "--ops is given with --upstream" in both.stderr
