"""Options of `glassloop serve` from a file, from variables and from a file of keys; the log's levels; and
what clients are told while the server ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from glassloop.cli.serve.config import read_keys
from glassloop.errors import GlassloopError
from server.conftest import serving

LONG = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True}


def refused(*flags: str, **variables: str) -> str:
    """Returns the one line with which `serve` refuses its options."""
    done = subprocess.run(
        [sys.executable, "-m", "glassloop", "serve", "--port", "0", "--no-store", *flags],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def key_file(folder, text: str, mode: int = 0o600):
    file = folder / "keys"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_file_variables_and_the_command_line(tmp_path):
    keys = key_file(tmp_path, "# of the team\nfirst-key-of-all\n\nsecond-key-of-all\n")
    config = tmp_path / "serve.toml"
    config.write_text(
        f'kv-memory = "300MB"\napi_key_file = "{keys}"\nthreads = 1\nqueue = 7\naccess-log = true\n'
        "shared-cache = true\n"
    )
    variables = {"GLASSLOOP_SERVE_CONFIG": str(config), "GLASSLOOP_SERVE_KV_MEMORY": "200MB"}
    with serving("--queue", "9", env=variables) as server:
        assert "200 MB for keys and values" in server.first_line  # the variable goes before the file
        assert server.get("/v1/models").status_code == 401
        for key in ("first-key-of-all", "second-key-of-all"):
            headers = {"authorization": f"Bearer {key}"}
            assert server.get("/v1/models", headers=headers).status_code == 200
        command = Path(f"/proc/{server.process.pid}/cmdline")  # as `ps` shows it
        assert "key-of-all" not in command.read_text()
        text = server.get("/metrics", headers=headers).text
        assert "process_resident_memory_bytes " in text and "process_cpu_seconds_total " in text
        # Probes are not in the log, unless they find something wrong; other requests are.
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        assert server.get("/metrics").status_code == 401
        wait_until(lambda: any('"/metrics", "' in line or '"/metrics"' in line for line in server.log))
        assert server.end() == 0
        paths = [json.loads(line)["path"] for line in server.log if '"request"' in line]
        assert "/health" not in paths and "/ready" not in paths
        assert paths == ["/v1/models"] * 3 + ["/metrics"]


def test_levels_of_the_log():
    with serving("--log-level", "debug", "--kv-memory", "100MB") as server:
        assert server.get("/health").status_code == 200
        assert server.end() == 0 and any('"/health"' in line for line in server.log)
    with serving("--log-level", "warning", "--kv-memory", "100MB") as server:
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
        assert server.end() == 0 and server.log == []
    with serving("--no-access-log", "--kv-memory", "100MB") as server:
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
        assert server.end() == 0
        assert [json.loads(line)["event"] for line in server.log] == ["start", "run", "shutdown", "end"]


def test_while_the_server_ends_new_requests_are_told_so():
    with serving("--kv-memory", "100MB", "--grace", "60", "--threads", "1") as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG, timeout=120) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.get("/ready").status_code == 503)
            late = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            rest = [line for line in lines if line]
        assert late.status_code == 503 and late.json()["error"]["code"] == "shutting_down"
        assert rest[-1] == "data: [DONE]"
        assert server.end() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "prot is not known; did you mean port?"),
        ('config = "x"', "config is not known"),
        ("port = ", "is no TOML file: "),
        ("port = [1]", "port is [1]; a text or a number is expected"),
        ("port = true", "port is True; a text or a number is expected"),
        ("queue = 0", "'--queue'"),
        ("open = 1", "open is 1; true or false is expected"),
        ("api-key = [{}]", "api-key is [{}]; a text or a number, or a list of them, is expected"),
        ("[serve]\nport = 1", "serve is not known"),
        ("separate-keys = true\nshared-cache = true", "shared-cache says again what another line says"),
        ('api-key = "in-the-file"', "serve.toml: has API keys and mode 0644"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "serve.toml").write_text(text)
    (tmp_path / "serve.toml").chmod(0o644)
    assert said in refused("--config", str(tmp_path / "serve.toml"))


def test_variables_that_are_wrong_are_refused():
    assert "did you mean GLASSLOOP_SERVE_QUEUE?" in refused(GLASSLOOP_SERVE_QUEU="1")
    assert "'--queue'" in refused(GLASSLOOP_SERVE_QUEUE="many")
    assert "log_level is 'loud'; one of debug, " in refused(GLASSLOOP_SERVE_LOG_LEVEL="loud")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o622, 0o660, 0o666])
def test_keys_that_others_can_read_or_change_are_refused(tmp_path, mode):
    with pytest.raises(GlassloopError, match=f"mode {mode:04o}.*chmod 600 it$"):
        read_keys(key_file(tmp_path, "some-long-key\n", mode))
    assert read_keys(key_file(tmp_path, "some-long-key\n", 0o440)) == ["some-long-key"]  # as secrets have it


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="ab #\t\n\r", max_size=30))
def test_no_file_of_keys_gives_a_key_that_is_none(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_bytes(text.encode(errors="surrogatepass"))
    file.chmod(0o600)
    try:
        keys = read_keys(file)
    except GlassloopError as error:
        lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 3]
        assert not any(line in str(error).replace(str(file), "") for line in lines)
        return
    assert keys and all(key.isascii() and key.isprintable() and " " not in key for key in keys)
