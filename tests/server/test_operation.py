"""The server in operation: keys, limits, bad input, clients that disconnect, metrics, log, shutdown."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx2 as httpx
import pytest
from waiting import wait_until

from .conftest import MODEL, serving

LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def idle(server) -> bool:
    told = server.get("/health").json()
    return told["running"] == told["waiting"] == 0


def metric(server, name: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


# ── bad input ──────────────────────────────────────────────────────────────────────────────────────────────

JSON = {"content-type": "application/json"}
DEEP = b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b'{"prompt": "x"', 400, None),
        (b"", 400, None),
        (b"[]", 400, None),
        (b'{"prompt": "\xff\xfe"}', 400, None),
        (b'{"prompt": "\\ud800"}', 400, "prompt"),
        (b'{"prompt": 5}', 400, "prompt"),
        (b'{"prompt": "x", "temperature": NaN}', 400, "temperature"),
        (b'{"prompt": "x", "temperature": 1e999}', 400, "temperature"),
        (b'{"prompt": "x", "max_tokens": 1.5}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": true}', 400, "max_tokens"),
        (b'{"prompt": "x", "seed": %s}' % (b"9" * 400), 400, "seed"),
        (b'{"prompt": "x", "n": 100000}', 400, "n"),
        (b'{"prompt": "x", "n": 1000}', 400, "n"),
        (b'{"prompt": "x", "beam_width": 1000}', 400, "beam_width"),
        (b'{"prompt": "x", "json_schema": {"type": "nonsense"}}', 400, "json_schema"),
        (b'{"prompt": "x", "grammar": "start: nothing"}', 400, "grammar"),
        (b'{"prompt": "x", "regex": "a{100000000}"}', 400, "regex"),
        (b'{"prompt": "x", "logit_bias": {"a": 1}}', 400, "logit_bias"),
        (b'{"prompt": "x", "logit_bias": {"1": 1e9}}', 400, "logit_bias"),
        (b'{"prompt": "x", "stop": ["a", ""]}', 400, "stop[1]"),
        (b'{"prompt": "x", "regex": "a", "choice": ["a"]}', 400, "regex"),
        (b'{"prompt": "x", "stages": ["nonsense"]}', 400, "stages"),
        (b'{"prompt": "x", "min_tokens": 99}', 400, "min_tokens"),
        (b'{"prompt": [1, 999999]}', 400, "prompt[1]"),
        (b'{"prompt": "x", "unknown": 1}', 400, "unknown"),
        (b'{"prompt": "x", "model": "../../etc/passwd"}', 404, "model"),
        (b'{"prompt": "x", "grammar": "%import /etc/passwd"}', 400, "grammar"),
        (DEEP, 400, "prompt"),
        (json.dumps({"prompt": "x", "stop": ["s"] * 10_000}).encode(), 400, "stop"),
        (json.dumps({"prompt": "word " * 9000}).encode(), 400, "prompt"),
        (json.dumps({"prompt": "w" * 7_000_000}).encode(), 400, "prompt"),
        (b'{"prompt": "' + b"x" * 50_000_000 + b'"}', 413, None),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else str(value),
)
def test_bad_input_is_refused_in_openais_shape(server, body, status, param):
    answer = httpx.post(f"{server.url}/v1/completions", content=body, headers=JSON, timeout=120)
    error = answer.json()["error"]
    assert answer.status_code == status and set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param and error["message"]
    assert "/etc" not in error["message"] or "etc/passwd" in body.decode("latin-1")


def test_a_prompt_that_is_too_long_has_openais_code_for_it(server):
    code = "context_length_exceeded"
    for body in ({"prompt": "word " * 9000}, {"prompt": "w" * 3_000_000}, {"prompt": [1] * 9000}):
        assert server.post("/v1/completions", body).json()["error"]["code"] == code
    long = [{"role": "user", "content": "word " * 9000}]
    error = server.post("/v1/chat/completions", {"messages": long}).json()["error"]
    assert (error["code"], error["param"]) == (code, "messages")
    for body in ({"prompt": "word " * 9000}, {"prompt": "w" * 1_500_000}, {"prompt": [1] * 9000}):
        message = server.post("/v1/completions", body).json()["error"]["message"]
        assert "this model's maximum context length is 8192 tokens" in message  # where clients look for it
    other = server.post("/v1/completions", {"prompt": "x", "stop": "s" * 5000}).json()["error"]
    assert (other["code"], other["param"]) == (None, "stop")


def test_a_body_without_a_length_is_bounded_too(server):
    def endless():
        for _ in range(20):
            yield b"x" * 1_000_000

    answer = httpx.post(f"{server.url}/v1/completions", content=endless(), headers=JSON, timeout=120)
    assert answer.status_code == 413


def test_deep_schemas_and_messages_do_no_harm(server):
    schema = {"type": "object"}
    for _ in range(300):
        schema = {"type": "object", "properties": {"a": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
    assert server.post("/v1/chat/completions", body).status_code == 400
    parameters: object = {}
    for _ in range(900):
        parameters = {"a": parameters}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    assert server.post("/v1/chat/completions", body).status_code == 400


def test_unknown_paths_and_methods_have_the_same_shape(server):
    assert server.get("/v2/nothing").json()["error"]["type"] == "not_found_error"
    answer = server.get("/v1/completions")
    assert answer.status_code == 405 and "error" in answer.json()
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../settings.py"):
        assert server.get(path).status_code == 404


def test_the_start_page_and_the_docs_need_nothing_from_elsewhere(server):
    page = server.get("/")
    assert page.status_code == 200 and "Glassloop" in page.text
    docs = server.get("/docs")
    assert docs.status_code == 200 and "/v1/chat/completions" in docs.text
    for address in re.findall(r'(?:src|href)="([^"]*)"', docs.text):
        assert address.startswith(("/", "data:")) and not address.startswith("//")


# ── whose requests ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_page_elsewhere_cannot_reach_it(server):
    """Neither by a name of its own that points here, nor by reading answers, nor with a plain form."""
    assert server.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    answer = server.get("/v1/models", headers={"origin": "http://evil.example"})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_site"
    assert not any(name.startswith("access-control") for name in answer.headers)
    form = {"content-type": "text/plain"}
    answer = httpx.post(f"{server.url}/v1/completions", content=b'{"prompt": "x"}', headers=form, timeout=120)
    assert answer.status_code == 415


def test_a_wrong_content_type_is_told_with_the_right_one(server):
    for headers, found in (({}, "missing"), ({"content-type": "text/plain"}, "text/plain")):
        answer = httpx.post(
            f"{server.url}/v1/completions", content=b'{"prompt": "x"}', headers=headers, timeout=120
        )
        message = f"the header content-type is {found}; send content-type: application/json"
        assert (answer.status_code, answer.json()["error"]["message"]) == (415, message)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "chat/completions",
            {"tool_choice": {"type": "custom"}},
            "tool_choice: custom is not supported: send",
        ),
        ("chat/completions", {"tool_choice": {"type": "function"}}, "tool_choice: has to have function"),
        ("chat/completions", {"top_logprobs": 21}, "top_logprobs: at most 20 is expected"),
        (
            "chat/completions",
            {"temperature": 300},
            "temperature is 300.0; a number from 0 to 100 is expected",
        ),
        ("chat/completions", {"temperature": 1e-9}, "temperature is 1e-09; 0, or a number from 1e-06 to"),
        ("chat/completions", {"chat_template_kwargs": {"a": []}}, "chat_template_kwargs: a is no setting;"),
        ("completions", {"prompt": ["a", [1, 2]]}, "prompt[1]: text is expected"),
        ("completions", {"prompt": "x", "max_tokens": -2}, "max_tokens: at least -1 is expected"),
        ("completions", {"prompt": "x", "logprobs": True}, "logprobs: a whole number is expected"),
        ("responses", {"input": "x", "background": "later"}, "background: "),
        ("responses", {"input": "x", "max_tokens": 5}, "max_tokens is not a parameter here; use max_output"),
        (
            "responses",
            {"input": "x", "tools": [{"type": "web_search"}]},
            "tools[0]: web_search is not supported",
        ),
        (
            "responses",
            {"input": "x", "truncation": "middle"},
            "truncation: ",
        ),
    ],
)
def test_errors_are_in_our_own_words(server, path, body, message):
    said = {"messages": [{"role": "user", "content": "x"}]} if path.startswith("chat") else {}
    answer = server.post(f"/v1/{path}", {**said, **body})
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(message)


def test_uptime_checks_may_ask_by_head(server):
    for path in ("/", "/health", "/v1/models", f"/v1/models/{MODEL}", "/api/runs", "/docs", "/metrics"):
        answer = httpx.head(server.url + path)
        assert answer.status_code == 200 and answer.content == b"", path
        assert int(answer.headers["content-length"]) == len(server.get(path).content) or path == "/metrics"
    assert httpx.head(f"{server.url}/v1/completions").status_code == 405
    assert httpx.head(f"{server.url}/api/runs/0123456789abcdef/events").status_code == 405
    assert httpx.head(f"{server.url}/nothing").status_code == 404


@pytest.fixture(scope="module")
def keyed():
    keys = ["--api-key", "first", "--api-key", "zweiter-ü"]
    with serving(*keys, "--kv-memory", "100MB", "--keep", "0") as server:
        yield server


def test_keys(keyed):
    server = keyed
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "first"},
        {"x-api-key": "wrong"},
    ):
        answer = server.get("/v1/models", headers=headers)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    for path in ("/api/runs", "/metrics", "/openapi.json", "/docs", "/docs.js"):
        assert server.get(path).status_code == 401
    assert server.post("/tokenize", {"prompt": "x"}).status_code == 401
    assert server.get("/health").status_code == 200
    key = {"authorization": "Bearer first"}
    assert server.get("/v1/models", headers=key).status_code == 200
    assert server.get("/v1/models", headers={"authorization": "Bearer zweiter-ü".encode()}).status_code == 200
    assert server.get("/v1/models", headers={"x-api-key": "zweiter-ü".encode()}).status_code == 200
    # A browser brings it once, and gets a cookie for it.
    assert "set-cookie" not in server.get("/", params={"key": "wrong"}).headers
    entered = server.get("/", params={"key": "first"})
    assert entered.status_code == 303 and "HttpOnly" in entered.headers["set-cookie"]
    cookie = entered.headers["set-cookie"].split(";")[0]
    assert server.get("/v1/models", headers={"cookie": cookie}).status_code == 200
    # --keep 0: nothing of an answer stays.
    answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, headers=key)
    id = answer.headers["x-glassloop-run"]
    assert server.get(f"/api/runs/{id}", headers=key).status_code == 404
    assert server.get("/api/runs", headers=key).json()["runs"] == []
    log = "".join(server.log)
    assert "first" not in log and "zweiter" not in log
    assert "an API key has fewer than 8 characters" in log


def test_it_does_not_listen_to_other_machines_without_a_key():
    for flags in (["--host", "0.0.0.0"], ["--host", "::"], ["--host", "example.org"]):
        done = subprocess.run(
            [sys.executable, "-m", "glassloop", "serve", *flags], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 2 and "--api-key" in done.stderr and done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "glassloop", "serve", "--port", port, "--kv-memory", "50MB"],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2 and f"{port}: the port is in use; --port 0 takes any" in done.stderr
    assert done.stderr.count("\n") == 1


# ── clients that go away, limits, the end ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_request(server, stream):
    steps = metric(server, "glassloop_engine_steps_total")
    body = {**LONG, "stream": stream}
    if stream:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as answer:
            id = answer.headers["x-glassloop-run"]
            next(answer.iter_lines())
    else:
        with contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as client:
            client.request("POST", "/v1/completions", json.dumps(body), JSON)
            wait_until(lambda: not idle(server))
            id = server.get("/api/runs?limit=1").json()["runs"][0]["id"]
    wait_until(lambda: idle(server))
    run = server.get(f"/api/runs/{id}").json()
    assert run["finish_reason"] == "cancelled" and run["usage"]["completion_tokens"] < 3900
    assert metric(server, "glassloop_engine_steps_total") - steps < 3900


def test_a_full_queue_is_429_with_retry_after():
    with serving("--running", "1", "--queue", "1", "--kv-memory", "100MB", "--grace", "1") as server:
        client = httpx.Client(base_url=server.url, timeout=120)
        with client.stream("POST", "/v1/completions", json=LONG) as first:
            lines = first.iter_lines()  # held: a client that lets go of it hangs up
            next(lines)
            with client.stream("POST", "/v1/completions", json=LONG):
                refused = [server.post("/v1/completions", LONG) for _ in range(3)]
                assert [answer.status_code for answer in refused] == [429] * 3
                assert int(refused[0].headers["retry-after"]) >= 1
                assert refused[0].json()["error"]["type"] == "rate_limit_error"
                assert server.post("/v1/completions", {**LONG, "prompt": ["a", "b"]}).status_code == 429
        wait_until(lambda: idle(server))
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
        # Told to end, it refuses what is new, gives what runs its grace, and ends it with a word.
        with client.stream("POST", "/v1/completions", json=LONG) as last:
            lines = last.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            told = [line for line in lines if line]
        assert json.loads(told[-1][6:])["error"]["code"] == "shutting_down"
        assert server.end() == 0
        assert any('"end"' in line for line in server.log)


def test_what_runs_is_finished_when_the_server_ends(keyed):
    server, key = keyed, {"authorization": "Bearer first"}
    body = {"prompt": "Once", "max_tokens": 40, "ignore_eos": True, "seed": 1, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=key, timeout=120) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]" and '"length"' in rest[-2]
    while server.process.poll() is None:  # told again and again, it still closes what it has open
        server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


def test_a_request_has_its_time(server):
    answer = server.post("/v1/completions", {**LONG, "stream": False, "timeout": 0.3}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["stop_reason"] == "after 0.3 s"


def test_long_prompts_do_not_stop_the_others(server):
    """While a long prompt is read, a short request is answered."""
    ended = threading.Event()

    def long() -> None:
        server.post("/v1/completions", {"prompt": "word " * 700, "max_tokens": 1})
        ended.set()

    thread = threading.Thread(target=long)
    thread.start()
    assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}).status_code == 200
    assert server.get("/health").status_code == 200
    thread.join()
    assert ended.is_set()


# ── metrics and log ────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_count_what_happened(server):
    names = ("prompt_tokens_total", "generated_tokens_total", "cached_prompt_tokens_total")
    before = [metric(server, f"glassloop_{name}") for name in names]
    first = metric(server, "glassloop_time_to_first_token_seconds_count")
    prompt = "One two three four five six seven eight nine ten" * 4  # the cache is told of in pages of 32
    for _ in range(2):
        server.post("/v1/completions", {"prompt": prompt, "max_tokens": 5, "ignore_eos": True})
    after = [metric(server, f"glassloop_{name}") for name in names]
    assert after[0] - before[0] == 80 and after[1] - before[1] == 10 and after[2] - before[2] >= 32
    assert metric(server, "glassloop_time_to_first_token_seconds_count") - first == 2
    text = server.get("/metrics").text
    for name in (
        "http_requests_total",
        "runs_total",
        "queue_seconds_bucket",
        "time_per_token_seconds_bucket",
        "requests_waiting",
        "requests_running",
        "engine_rows_total",
        "kv_pages",
        "kv_pages_held",
        "draft_tokens_accepted_total",
    ):
        assert f"glassloop_{name}" in text


def test_the_log_is_json_without_what_people_wrote(server):
    before = len(server.log)
    server.post("/v1/completions", {"prompt": "a very private thing", "max_tokens": 1})
    # Another thread writes the log.
    wait_until(lambda: "run" in {json.loads(line)["event"] for line in server.log[before:]})
    lines = [json.loads(line) for line in server.log]
    assert {line["event"] for line in lines} >= {"start", "request", "run"}
    assert "private" not in "".join(server.log)
    assert [line for line in lines if line["event"] == "run"][-1]["completion_tokens"] == 1


def test_kv_and_counts_come_back_to_where_they_were(server):
    wait_until(lambda: idle(server))
    assert metric(server, "glassloop_kv_pages_held") == 0
