"""Requests as Open WebUI sends them: from its server, and from a browser with a direct connection."""

from __future__ import annotations

import json

import pytest

from .conftest import MODEL, SITE

httpx = pytest.importorskip("httpx")

KEY = {"authorization": "Bearer none", "content-type": "application/json"}
USER = {
    "x-openwebui-user-name": "Ann",
    "x-openwebui-user-id": "1",
    "x-openwebui-user-email": "ann@example.org",
    "x-openwebui-user-role": "user",
    "x-openwebui-chat-id": "2",
}
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": [{"type": "text", "text": "Say more."}]},
]


def events(answer):
    lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_models(base):
    answer = httpx.get(f"{base}/models", headers=KEY | USER, timeout=60).json()
    assert answer["object"] == "list" and answer["data"][0]["id"] == MODEL


def test_a_chat_is_streamed(base):
    body = {
        "stream": True,
        "model": MODEL,
        "messages": SAID,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "seed": -1,
        "max_tokens": 20,
        "stop": [],
        "logit_bias": {},
        "reasoning_effort": "medium",
        "stream_options": {"include_usage": True},
        "user": "ann",
    }
    with httpx.stream(
        "POST", f"{base}/chat/completions", headers=KEY | USER, json=body, timeout=60
    ) as answer:
        told = events(answer)
    assert (
        told[0]["choices"][0]["delta"]["role"] == "assistant" and told[-1]["usage"]["completion_tokens"] > 0
    )


def test_titles_tags_and_follow_ups(base):
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Give this chat a title."}],
        "stream": False,
        "max_completion_tokens": 20,
        "metadata": {"task": "title_generation", "chat_id": "2"},
    }
    answer = httpx.post(f"{base}/chat/completions", headers=KEY | USER, json=body, timeout=60)
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"


def test_a_browser_with_a_direct_connection(base):
    asked = {
        "origin": SITE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
        "sec-fetch-site": "same-site",
        "sec-fetch-mode": "cors",
    }
    answer = httpx.options(f"{base}/chat/completions", headers=asked)
    assert answer.status_code == 204 and answer.headers["access-control-allow-origin"] == SITE
    sent = KEY | {"origin": SITE, "sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}
    body = {"model": MODEL, "messages": SAID, "stream": True, "max_tokens": 5}
    with httpx.stream("POST", f"{base}/chat/completions", headers=sent, json=body, timeout=60) as answer:
        assert answer.headers["access-control-allow-origin"] == SITE and events(answer)
