"""Simon Willison's `llm` command, with the server as an entry of extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from .conftest import MODEL

pytest.importorskip("llm")


@pytest.fixture
def llm(base, tmp_path):
    entry = (
        f"- model_id: glass\n  model_name: {MODEL}\n  api_base: {base}\n"
        "  supports_schema: true\n  supports_tools: true\n"
    )
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    env = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


OPTIONS = ("-m", "glass", "-o", "temperature", "0", "-o", "max_tokens", "40")


def test_prompts(llm):
    streamed = llm("Say hi.", *OPTIONS)
    assert streamed.strip() and llm("Say hi.", "--no-stream", *OPTIONS) == streamed
    assert llm("Say hi.", "-s", "Be brief.", *OPTIONS).strip()


def test_conversations(llm):
    assert llm("Say hi.", *OPTIONS).strip() and llm("-c", "And again.").strip()


def test_schemas(llm):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert json.loads(llm("A city", "--schema", json.dumps(schema), *OPTIONS))["city"] in ("Paris", "Oslo")


def test_tools(llm):
    function = 'def lookup(city: str) -> str:\n    "The weather of a city."\n    return "22 C"\n'
    assert (
        llm("What is the weather in Paris?", "--functions", function, "--chain-limit", "3", *OPTIONS)
        is not None
    )
