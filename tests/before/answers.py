"""Answers of a server and of the command line, in a form that can be compared with those of another version.

    python tests/before/answers.py http://127.0.0.1:8000 > tests/before/files/answers.json

asks a server that runs (`glassloop serve --kv-memory 200MB --model-defaults`, an empty store). What differs
from one call to the next (ids, times, speeds) is replaced by a word.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx

MODEL = "smollm2-135m-instruct"
TALK = [{"role": "user", "content": "Name three moons of Jupiter."}]
PLAIN = {"prompt": "The capital of France is", "seed": 7, "max_tokens": 6}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}

# Each: a name, method, path, body. "{run}" is the id of the run of the answer named "run".
REQUESTS: list[tuple[str, str, str, Any]] = [
    ("models", "GET", "/v1/models", None),
    ("model", "GET", f"/v1/models/{MODEL}", None),
    ("completion", "POST", "/v1/completions", PLAIN),
    ("logprobs", "POST", "/v1/completions", {**PLAIN, "logprobs": 2, "echo": True, "temperature": 0}),
    ("samples", "POST", "/v1/completions", {**PLAIN, "n": 2, "temperature": 1.1, "top_p": 0.8}),
    ("stop", "POST", "/v1/completions", {**PLAIN, "stop": ["Paris", "."], "max_tokens": 20}),
    (
        "stream",
        "POST",
        "/v1/completions",
        {**PLAIN, "stream": True, "stream_options": {"include_usage": True}},
    ),
    ("chat", "POST", "/v1/chat/completions", {"messages": TALK, "seed": 1, "max_tokens": 8}),
    (
        "chat logprobs",
        "POST",
        "/v1/chat/completions",
        {"messages": TALK, "seed": 1, "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
    ),
    (
        "chat stream",
        "POST",
        "/v1/chat/completions",
        {"messages": TALK, "seed": 2, "max_tokens": 4, "stream": True},
    ),
    (
        "chat schema",
        "POST",
        "/v1/chat/completions",
        {
            "messages": TALK,
            "seed": 3,
            "max_tokens": 24,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n",
                    "schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
                },
            },
        },
    ),
    (
        "chat tool",
        "POST",
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Weather in Oslo?"}],
            "seed": 4,
            "max_tokens": 32,
            "tools": [TOOL],
            "tool_choice": "required",
        },
    ),
    ("response", "POST", "/v1/responses", {"input": "Say hi.", "seed": 5, "max_output_tokens": 5}),
    ("embedding", "POST", "/v1/embeddings", {"input": ["moon", "sun"]}),
    ("tokens", "POST", "/tokenize", {"prompt": "Hello, world", "add_special_tokens": False}),
    ("text", "POST", "/detokenize", {"tokens": [504, 2025, 282]}),
    (
        "run",
        "POST",
        "/api/runs",
        {"prompt": "The sea", "sampling": {"seed": 9, "temperature": 0.9, "max_tokens": 6}},
    ),
    ("run events", "GET", "/api/runs/{run}/events", None),
    ("run again", "GET", "/api/runs/{run}", None),
    ("runs", "GET", "/api/runs?search=The+sea", None),
    ("explain", "GET", "/api/runs/{run}/explain/2", None),
    ("what if", "GET", "/api/runs/{run}/explain/2?temperature=0.1", None),
    ("worst", "GET", "/api/runs/{run}/worst", None),
    ("attention", "GET", "/api/runs/{run}/lens/attention?token=3", None),
    ("layers", "GET", "/api/runs/{run}/lens/layers?token=3", None),
    ("fork", "POST", "/api/runs/{run}/fork", {"at": 2, "sampling": {"temperature": 0.2}}),
    ("edit", "POST", "/api/runs/{run}/edit", {"at": 2, "text": " is blue"}),
    (
        "infill",
        "POST",
        "/api/edits/infill",
        {"before": "The sun rises in the", "after": " and sets.", "tokens": 3, "sampling": {"seed": 1}},
    ),
    (
        "diffusion",
        "POST",
        "/api/diffusions",
        {"prompt": "The sea", "diffusion": {"block": 4}, "sampling": {"max_tokens": 4, "seed": 1}},
    ),
    ("no such option", "POST", "/v1/completions", {**PLAIN, "temprature": 1}),
    ("wrong value", "POST", "/v1/completions", {**PLAIN, "top_p": 2}),
    ("wrong type", "POST", "/v1/chat/completions", {"messages": "hi"}),
    ("no such model", "POST", "/v1/completions", {**PLAIN, "model": "nothing"}),
    ("no such run", "GET", "/api/runs/0000000000000000", None),
    ("no such path", "GET", "/v2/nothing", None),
    ("information", "GET", "/api/info", None),
]

# Fields whose values are not the same in every call.
_VARIABLE = re.compile(
    r"created.*|completed_at|id|took|.*_id|ids|time|times?_.*|timings|.*seconds|.*tokens_per_second|speed|queue|prefill|decode|"
    r"added|tree|request|parent|started|uptime.*|version|commit|path|paths|cached_tokens|drafts|system_fingerprint|"
    r"statistics|memory.*|kv.*|threads|ops|op_set|processor|.*bytes|pid|port|url|store|previous_response_id|obfuscation"
)
_MOST = 12  # entries of a list that are compared
_ID = re.compile(r"\b(?:chatcmpl-|cmpl-|resp_|msg_|call_|fc_|rs_)?[0-9a-f]{16}(?:[-_]?\d+)?\b|\bcall_\w+")


def comparable(value: Any, name: str = "") -> Any:
    """Returns a JSON value without what differs from one call to the next."""
    if name == "refused":  # the draft that was not taken, if there was one: see below
        return None
    is_token = name == "id" and isinstance(value, int)
    if _VARIABLE.fullmatch(name) and not is_token:
        return type(value).__name__
    if isinstance(value, dict):
        if value.get("status") in ("waiting", "running"):  # how far it is depends on the moment
            return sorted(value)
        return {_ID.sub("ID", key): comparable(each, key) for key, each in value.items()}
    if isinstance(value, list):
        rest = len(value) - _MOST
        return [comparable(each, name) for each in value[:_MOST]] + ([f"and {rest} more"] if rest > 0 else [])
    if isinstance(value, str):
        # Whether a token was guessed before it was chosen depends on what guessing costs at the moment.
        return "sampled" if (name, value) == ("source", "draft") else _ID.sub("ID", value)
    # Numbers are equal on every processor; their last digits depend on how they were printed.
    return float(f"{value:.6g}") if isinstance(value, float) else value


def answers(url: str) -> Iterator[tuple[str, Any]]:
    """Yields the answer of a server to each request, by its name."""
    run = ""
    with httpx.Client(base_url=url, timeout=120) as client:
        for name, method, path, body in REQUESTS:
            answer = client.request(method, path.replace("{run}", run), json=body)
            if name == "run":
                run = answer.json()["runs"][0]["id"] if "runs" in answer.json() else answer.json()["id"]
            kind = answer.headers["content-type"].split(";")[0]
            yield name, {"status": answer.status_code, "type": kind, "body": _body(kind, answer.text)}


def _body(kind: str, text: str) -> Any:
    if kind == "text/event-stream":
        parts = [line for line in text.split("\n") if line and not line.startswith(("id:", ":"))]
        return [_part(line) for line in parts]
    return comparable(json.loads(text)) if kind.endswith("json") else text


def _part(line: str) -> Any:
    field, _, value = line.partition(": ")
    return [field, comparable(json.loads(value)) if value.startswith("{") else value]


if __name__ == "__main__":
    json.dump(dict(answers(sys.argv[1])), sys.stdout, indent=1, ensure_ascii=False, sort_keys=True)
