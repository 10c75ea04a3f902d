"""In front of the real server of llama-cpp-python. It is compiled for minutes, so the test runs only where
GLASSLOOP_LLAMA_PYTHON names a Python that has `llama-cpp-python[server]` (docs/upstream.md)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from glassloop import LLM, Sampling
from glassloop.errors import GlassloopError
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.upstream import UpstreamEngine

PYTHON = os.environ.get("GLASSLOOP_LLAMA_PYTHON")
PROMPT = "The capital of France is"
TALK = [{"role": "user", "content": "Name a city in Spain."}]
pytestmark = pytest.mark.skipif(not PYTHON, reason="GLASSLOOP_LLAMA_PYTHON names no Python")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(kv_memory="200MB")


@pytest.fixture(scope="module", params=["true", "false"], ids=["logits_all", "plain"])
def llama(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    """The server, which gives log-probabilities only if it keeps all logits."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--port", str(port), "--host", "127.0.0.1", "--n_ctx", "512", "--logits_all", request.param]
    command = [PYTHON, "-m", "llama_cpp.server", "--model", str(fetch(DEFAULT_MODEL)), *flags]
    server = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | {"PYTHONPATH": ""},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            time.sleep(0.2)
            try:
                httpx.get(f"{url}/v1/models", timeout=5)
                break
            except httpx.HTTPError:
                assert server.poll() is None
        yield url, request.param == "true"
    finally:
        server.kill()
        server.wait()


def test_text_and_log_probabilities_are_those_of_the_server(llama):
    url, gives = llama
    options = Sampling(temperature=0, max_tokens=8, seed=1, logprobs=3)
    with UpstreamEngine(url) as engine:
        assert engine.kind.name == "llama-cpp-python"
        for run in (engine.generate(PROMPT, options), engine.chat(TALK, options)):
            assert run.finish_reason == "length" and run.upstream.logprobs is gives
            body = {"temperature": 0, "max_tokens": 8, "seed": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1}
            if run.messages is None:
                wanted = {"prompt": PROMPT, "logprobs": 3 if gives else None}
                (own,) = httpx.post(f"{url}/v1/completions", json=body | wanted, timeout=120).json()[
                    "choices"
                ]
                assert run.text == own["text"]
                told = own["logprobs"] and own["logprobs"]["token_logprobs"]
            else:
                wanted = {"messages": TALK, "logprobs": gives, "top_logprobs": 3 if gives else None}
                made = httpx.post(f"{url}/v1/chat/completions", json=body | wanted, timeout=120).json()
                (own,) = made["choices"]
                assert run.text == own["message"]["content"]
                told = own["logprobs"] and [each["logprob"] for each in own["logprobs"]["content"]]
            if gives:
                assert [token.raw_logprob for token in run.tokens] == pytest.approx(told, abs=1e-4)
                assert "came with" in run.explain(0).sentence


def test_forks_and_prompts_as_far_as_the_server_can(llama):
    url, _ = llama
    with UpstreamEngine(url) as engine:
        run = engine.generate(PROMPT, Sampling(temperature=0, max_tokens=6, seed=1))
        fork = engine.fork(run, 2, text=" Then")
        assert fork.text.startswith("".join(token.text for token in run.tokens[:2]) + " Then")
        talk = engine.chat(TALK, Sampling(temperature=0, max_tokens=4, seed=1))
        with pytest.raises(GlassloopError, match="not known to continue an answer of a chat"):
            engine.fork(talk, 2)
        asked = Sampling(temperature=0, max_tokens=2, prompt_logprobs=2)
        with pytest.raises(GlassloopError, match="prompt_logprobs is given; llama-cpp-python gives"):
            engine.generate(PROMPT, asked)


def test_what_the_server_says_of_a_prompt_is_one_place_off(llama, llm):
    """Why its log-probabilities of prompts are refused; if this fails, they can be had."""
    url, gives = llama
    if not gives:
        pytest.skip("it gives none")
    body = {"prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    told = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()["choices"][0]["logprobs"]
    best = [max(each, key=each.get) for each in told["top_logprobs"][1:]]
    own = llm.generate(PROMPT, Sampling(max_tokens=1, prompt_logprobs=1)).prompt_tokens
    assert best[:-1] == [token.alternatives[0].text for token in own[1:]]
