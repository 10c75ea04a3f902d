"""What has been tried and did no harm, as far as no other test of the suite has it: it stays so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attacks.harness import Answer, Server, Watch, left_behind, serving, standing
from attacks.limits import FACTOR, SEED, cases
from attacks.routes import Document

from glassloop.errors import GlassloopError
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch

# ── keys ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def keyed(tiny_file: Path) -> Iterator[Server]:
    with serving("--kv-memory", "16MB", "--api-key", "s3cret-key", "--grace", "1", model=tiny_file) as server:
        yield server


def _status(server: Server, line: bytes, headers: bytes = b"") -> int:
    raw = server.raw(line + b"\r\nHost: localhost\r\nConnection: close\r\n" + headers + b"\r\n", 5)
    return int(raw.split(b" ", 2)[1]) if raw else 0


def test_no_spelling_of_a_path_gets_around_the_key(keyed: Server) -> None:
    document = Document(keyed.get("/openapi.json", headers={"authorization": "Bearer s3cret-key"}).json())
    closed = {route.path.replace("{", "").replace("}", "") for route in document.routes} - {
        "/health",
        "/ready",
    }
    for path in sorted(closed):
        spellings = [path, path + "/", "/" + path, path.replace("/", "//"), path + "?key=s3cret", path + "#x"]
        spellings += [path.upper(), path.replace("v1", "%761"), path.replace("/", "/./"), f"/health/..{path}"]
        spellings += [
            f"http://localhost{path}",
            path + "%2f",
            path + ";x",
            path.replace("/", "/%2e/"),
            path + "%00",
        ]
        for each in spellings:
            status = _status(keyed, f"GET {each} HTTP/1.1".encode())
            assert status in (0, 400, 401, 403, 404, 405), (each, status)
            assert status != 404 or each != path


def test_no_header_gets_around_the_key(keyed: Server) -> None:
    key = b"s3cret-key"
    wrong = [
        *(
            b"Authorization: " + each
            for each in (b"", b"Bearer", b"Bearer ", b"Basic " + key, key, b"Bearer x" + key)
        ),
        *(
            b"Authorization: Bearer " + each
            for each in (key[:-1], key + b"x", key.upper(), b"\xff", b"a" * 5000)
        ),
        *(
            b"Cookie: glassloop-key=" + each
            for each in (b"", key[:-1], b"%00", b'"', b"a" * 5000, key + b"x")
        ),
        *(
            b"X-Api-Key: " + each
            for each in (b"", key[:-1], key + b"x", key.upper(), b"Bearer " + key, b"\xff", b"a" * 5000)
        ),
        *(b"Cookie: x=" + key, b"X-Api-Key : " + key, b"Api-Key: " + key, b"Authorization : Bearer " + key),
    ]
    for header in wrong:
        status = _status(keyed, b"GET /v1/models HTTP/1.1", header + b"\r\n")
        assert status in (400, 401), (header[:60], status)
    for header in (b"Authorization: Bearer " + key, b"X-Api-Key: " + key):
        assert _status(keyed, b"GET /v1/models HTTP/1.1", header + b"\r\n") == 200
    assert "s3cret" not in keyed.log_text()


def test_an_upgrade_is_a_plain_request(keyed: Server) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: %b\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
    for kind in (b"websocket", b"h2c"):
        assert _status(keyed, b"GET /v1/models HTTP/1.1", upgrade % kind) in (400, 401)


def test_pages_carry_their_policy(tiny: Server) -> None:
    page = tiny.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for path in ("/", "/docs", "/health", "/nothing", "/v1/models"):
        headers = tiny.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY", path


# ── texts ──────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = (
    *("é", "e\u0301", "Straße", "שלום", "नमस्ते", "日本語", "🏳️‍🌈", "👩‍👩‍👧", "\U0010ffff"),
    *("\u200b\u200d\ufeff", "\u202eabc", "\x00", "\x7f\x80\x9f", "\u2028\u2029\x85", "\ufdd0\ufffe"),
    *("a" * 100, " \t\r\n\v\f", "\r\n\r\n", "<|im_start|>", "{{x}}", "%s"),
)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_any_text_comes_back_as_it_was(tiny: Server, text: str) -> None:
    asked = {"prompt": text, "parse_special_tokens": False, "add_special_tokens": False}
    tokens = tiny.post("/tokenize", asked).json()["tokens"]
    assert tiny.post("/detokenize", {"tokens": tokens}).json()["prompt"] == text
    echo = {"prompt": tokens, "max_tokens": 1, "echo": True, "seed": 1}
    assert tiny.post("/v1/completions", echo).json()["choices"][0]["text"].startswith(text)
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "seed": 1}
    whole = tiny.post("/v1/chat/completions", chat).json()["choices"][0]["message"]["content"]
    assert isinstance(whole, str)


# ── many at once, and for long ─────────────────────────────────────────────────────────────────────────────


def _all_at_once(jobs: list[tuple[Server, str, dict[str, Any]]]) -> list[Answer]:
    answers: dict[int, Answer] = {}

    def one(number: int) -> None:
        server, path, body = jobs[number]
        answers[number] = server.post(path, body, timeout=120)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    return [answers[number] for number in range(len(jobs))]


def test_answers_do_not_depend_on_what_else_is_asked(tiny: Server) -> None:
    embeddings = [
        ("/v1/embeddings", {"input": f"text {number} " + "x" * (number * 7)}) for number in range(30)
    ]
    plain = {"max_tokens": 12, "ignore_eos": True}
    completions = [
        ("/v1/completions", {"prompt": f"{number}", "seed": number, **plain}) for number in range(10)
    ]
    jobs = [(tiny, *each) for pair in zip(embeddings[::3], completions, strict=True) for each in pair]
    jobs += [(tiny, *each) for number, each in enumerate(embeddings) if number % 3]
    together = _all_at_once(jobs)
    for (server, path, body), answer in zip(jobs, together, strict=True):
        assert answer.status == 200, answer.body
        name = "data" if "embeddings" in path else "choices"
        assert server.post(path, body).json()[name] == answer.json()[name], body


@pytest.mark.parametrize(
    "options",
    [
        {"beam_width": 32, "n": 32, "max_tokens": 6},
        {"n": 128, "max_tokens": 3, "temperature": 1.5},
        {"prompt": "word " * 250, "prompt_logprobs": 64, "max_tokens": 1},
        {"prompt": "word " * 250, "dry_multiplier": 1.0, "no_repeat_ngram_size": 4, "max_tokens": 4},
        {"logprobs": 20, "max_tokens": 40, "n": 16},
    ],
    ids=lambda options: " ".join(key for key in options if key != "max_tokens"),
)
def test_the_largest_that_is_allowed_holds_up_nobody(real: Server, options: dict[str, Any]) -> None:
    before = standing(real)
    with Watch(real, canary=True) as watch:
        answer = real.post("/v1/completions", {"prompt": "Once", "timeout": 60, **options}, timeout=120)
    assert answer.status == 200, answer.body[:300]
    watch.report.check(canary=True)
    left_behind(real, before)


def test_memory_stays_flat(tiny_file: Path) -> None:
    count = 3000 if FACTOR else 240
    with serving("--kv-memory", "16MB", "--keep", "20", model=tiny_file) as server:
        connection = server.connect()
        sizes = []
        run = server.post("/api/runs", {"prompt": "x", "sampling": {"max_tokens": 3}}).json()["runs"][0]["id"]
        for number in range(count):
            body = f'{{"prompt": "number {number}", "max_tokens": 8, "ignore_eos": true}}'
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            assert connection.getresponse().read()
            if number % 5 == 0:
                fork = server.post(f"/api/runs/{run}/fork", {"at": 1, "sampling": {"max_tokens": 3}})
                run = fork.json()["runs"][0]["id"] if fork.status == 201 else run
            if number in (count // 2, count - 1):
                sizes.append(server.memory)
        connection.close()
        assert sizes[1] - sizes[0] < 20 << 20, [size >> 20 for size in sizes]
        assert len(server.get("/api/runs?limit=1000").json()["runs"]) <= 21


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_damaged_header_of_the_real_model(tmp_path: Path) -> None:
    """The weights are left out as a hole in the file; its header has a real vocabulary."""
    real = fetch("smollm2-135m-instruct")
    size = real.stat().st_size
    with real.open("rb") as file:
        header = file.read(2_000_000)
    rng = Random(SEED)
    for number in range(cases(12)):
        damaged = bytearray(header)
        for _ in range(rng.choice([1, 3, 20])):
            damaged[rng.randrange(len(damaged) if rng.random() < 0.5 else 4000)] = rng.randrange(256)
        path = tmp_path / f"damaged{number}.gguf"
        with path.open("wb") as file:
            file.write(damaged)
            file.truncate(size)
        try:
            ModelFiles(path).tokenizer()
        except GlassloopError as error:
            assert "\n" not in str(error)
        path.unlink()


def test_it_runs_without_a_home_or_a_place_for_temporary_files(tiny_file: Path) -> None:
    nowhere = {"HOME": "/proc/nothing", "TMPDIR": "/proc/nothing", "XDG_DATA_HOME": "/proc/nothing"}
    nowhere |= {"XDG_CACHE_HOME": "/proc/nothing"}
    with serving("--kv-memory", "16MB", model=tiny_file, env=nowhere) as server:
        answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        assert answer.status == 200
        run = answer.headers["x-glassloop-run"]
        file = server.get(f"/api/runs/{run}/export")
        assert file.status == 200
        assert server.ask("DELETE", f"/api/runs/{run}").status == 204
        headers = {"content-type": "application/octet-stream"}
        assert server.post("/api/runs/import", file.body, headers=headers).status == 201


def test_a_home_that_cannot_be_written_is_one_line() -> None:
    env = os.environ | {"GLASSLOOP_HOME": "/proc/nothing/models", "HOME": "/proc/nothing"}
    env |= {
        "https_proxy": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
        "PIP_INDEX_URL": "http://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "glassloop", "models", "pull", "smollm2-135m-instruct"],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("glassloop: ")
