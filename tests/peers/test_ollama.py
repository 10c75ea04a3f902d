"""Ollama's own client against the server."""

from __future__ import annotations

import pytest

ollama = pytest.importorskip("ollama")
MODEL = "smollm2-135m-instruct"
ASKED = {"messages": [{"role": "user", "content": "Say hi."}], "options": {"seed": 7, "num_predict": 12}}


def test_a_chat_and_its_stream_are_the_same(url):
    client = ollama.Client(host=url, timeout=120)
    assert MODEL in [model.model for model in client.list().models]
    whole = client.chat(model=MODEL, **ASKED).message.content
    parts = client.chat(model=MODEL, stream=True, **ASKED)
    assert "".join(part.message.content for part in parts) == whole
