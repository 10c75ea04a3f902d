"""No answer tells where files are on the server's machine, whatever goes wrong."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import httpx2 as httpx
import pytest
from hostile.tiny import write_tiny

from .conftest import serving

# A template that fails in its own words, in Jinja's, or not at all, by what the message says.
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'raise' %}{{ raise_exception('refused') }}"
    "{% elif m.content == 'break' %}{{ m.nothing.more }}{% elif m.content == 'divide' %}{{ 1 / 0 }}"
    "{% elif m.content == 'import' %}{% import '/etc/passwd' as p %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret-folder")
    file = write_tiny(folder / "tiny.gguf", TEMPLATE)
    flags = ["--model", str(file), "--kv-memory", "16MB", "--store", str(folder / "runs.db")]
    with serving(*flags, "--max-body", "200kB") as server:
        yield server, folder


def said(content):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}
BAD = [
    *(("/v1/chat/completions", said(word)) for word in ("raise", "break", "divide", "import", "x" * 9000)),
    ("/v1/chat/completions", {**said("x"), "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/chat/completions", {**said("x"), "chat_template_kwargs": {"a": "/etc"}}),
    ("/v1/chat/completions", {**said("x"), "model": "/etc/passwd"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("/v1/chat/completions", {**said("x"), "continue_final_message": True}),
    ("/v1/chat/completions", {**said("x"), "allowed_token_ids": [5], "choice": ["red"]}),
    ("/v1/responses", {"input": "break"}),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}),
    ("/v1/completions", {"prompt": "x", "regex": "("}),
    ("/v1/completions", {"prompt": "x", "grammar": "%import /etc/passwd"}),
    ("/v1/completions", {"prompt": "x", "json_schema": {"$ref": "file:///etc/passwd"}}),
    ("/v1/completions", {"prompt": "x", "json_schema": "nofile.json"}),
    ("/v1/completions", {"prompt": "x", "stages": ["nonsense"]}),
    ("/v1/completions", {"prompt": "x", "timeout": 1e-9}),
    ("/v1/completions", {"prompt": [999999]}),
    ("/v1/completions", {"prompt": "x" * 190_000}),
    ("/v1/completions", {"prompt": "x" * 250_000}),
    ("/v1/completions", {}),
    ("/v1/embeddings", {"input": ""}),
    ("/tokenize", {"messages": [{"role": "user", "content": "break"}]}),
    ("/detokenize", {"tokens": [-1]}),
    ("/api/runs", {"messages": [{"role": "user", "content": "break"}]}),
    ("/api/runs", {"prompt": "x", "tree": "nothing"}),
    ("/api/runs/0123456789abcdef/fork", {"at": 0}),
    ("/nothing", {}),
]


def test_no_answer_tells_a_path(served):
    server, folder = served
    told: list[tuple[str, str]] = []

    def keep(name: str, answer: httpx.Response) -> httpx.Response:
        told.append((name, f"{dict(answer.headers)} {answer.text}"))
        return answer

    good = keep("run", server.post("/v1/completions", {"prompt": "x", "max_tokens": 3}))
    id = good.headers["x-glassloop-run"]
    failed = 0
    for path, body in BAD:
        answer = keep(f"{path} {json.dumps(body)[:200]}", server.post(path, body))
        failed += answer.status_code >= 400
        if body.get("messages") or body.get("input"):
            keep(f"{path} streamed", server.post(path, {**body, "stream": True}))
    assert failed > len(BAD) * 0.8
    kinds = {"content-type": "application/octet-stream"}
    for data in (b"", b"not a file", server.get(f"/api/runs/{id}/export").content[:-20]):
        keep("import", httpx.post(f"{server.url}/api/runs/import", content=data, headers=kinds, timeout=120))
    for data, kind in ((b"{", "application/json"), (b"x=1", "text/plain"), (b"[" * 9000, "application/json")):
        keep("body", httpx.post(f"{server.url}/v1/completions", content=data, headers={"content-type": kind}))
    keep("host", server.get("/v1/models", headers={"host": "evil.example"}))
    keep("site", server.get("/v1/models", headers={"origin": "http://evil.example"}))
    for path in (
        *("/", "/docs", "/docs.js", "/openapi.json", "/health", "/metrics", "/api/info", "/v1/models"),
        *("/v1/models//etc/passwd", "/api/runs", f"/api/runs/{id}", f"/api/runs/{id}/export", "/../etc"),
        *(f"/api/runs/{id}/explain/99", f"/api/runs/{id}/explain/0", f"/api/runs/{id}/lens/nothing"),
        *(f"/api/runs/{id}/explain/0?stages=[1]", f"/api/runs/{id}/lens/layers?token=99", "/favicon.ico"),
    ):
        keep(path, server.get(path))
    secrets = (str(folder), folder.name, tempfile.gettempdir() + "/", str(Path.home()), ".gguf", "runs.db")
    for name, text in told:
        for secret in (*secrets, "site-packages", "Traceback", "glassloop/server"):
            assert secret not in text, (name, text[:500])
