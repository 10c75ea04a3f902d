"""Anthropic's own client against the server."""

from __future__ import annotations

import pytest

anthropic = pytest.importorskip("anthropic")
MODEL = "smollm2-135m-instruct"
ASKED = {"model": MODEL, "max_tokens": 12, "messages": [{"role": "user", "content": "Say hi."}]}


def test_a_message_and_its_stream_are_the_same(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        whole = client.messages.create(**ASKED, extra_body={"seed": 7})
        with client.messages.stream(**ASKED, extra_body={"seed": 7}) as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
        assert client.messages.count_tokens(model=MODEL, messages=ASKED["messages"]).input_tokens > 5
