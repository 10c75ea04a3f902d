"""The files for deployment work: the server takes the options, systemd the unit, and the dashboard shows
metrics that exist; the page has the same files and sizes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from server.conftest import serving

from glassloop.ops import choose_ops
from glassloop.ops.batch import PAGE
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.memory import format_bytes

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE_TEXT = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
_METRIC = re.compile(r"\b(?:glassloop|process)_[a-z_]+")


def test_the_page_shows_the_options_as_they_are_in_the_file():
    assert (DEPLOY / "serve.toml").read_text() in PAGE_TEXT


def test_the_server_takes_the_options_and_has_every_metric_of_the_dashboard(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a-key-for-the-team\n")
    keys.chmod(0o400)
    flags = ("--config", str(DEPLOY / "serve.toml"), "--store", str(tmp_path / "runs.db"))
    variables = {"GLASSLOOP_SERVE_API_KEY_FILE": str(keys)}
    with serving(*flags, env=variables) as server:
        key = {"authorization": "Bearer a-key-for-the-team"}
        body = {"model": "default", "prompt": "x", "max_tokens": 2}
        assert server.post("/v1/completions", body, headers=key).status_code == 200
        known = set(_METRIC.findall(server.get("/metrics", headers=key).text))
        assert server.end() == 0
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    shown = {name for panel in panels for each in panel["targets"] for name in _METRIC.findall(each["expr"])}
    alerts = PAGE_TEXT[PAGE_TEXT.index("Worth an alert") :]
    assert len(shown) > 10 and shown | set(_METRIC.findall(alerts)) <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path):
    unit = (DEPLOY / "glassloop.service").read_text()
    command = re.search(r"^ExecStart=(\S+) (.*)$", unit, re.MULTILINE)
    assert command is not None and command[2] == "serve --config /etc/glassloop/serve.toml"
    (tmp_path / "glassloop.service").write_text(unit.replace(command[1], "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "glassloop.service")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_containerfile_copies_is_there():
    text = (DEPLOY / "Containerfile").read_text()
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE):
        assert (ROOT / source).exists(), source


def test_the_sizes_of_the_page_are_those_of_the_formula():
    ops, shapes = choose_ops("native"), {"SmolLM2 135M": (30, 3, 64), "Llama 3.1 8B": (32, 8, 128)}
    shapes |= {"Llama 3.2 1B": (16, 8, 64), "Llama 3.2 3B": (28, 8, 128)}
    for name, (layers, kv_heads, head_dim) in shapes.items():
        token = ops.page_bytes(CacheSpec(layers, kv_heads, head_dim)) // PAGE
        assert token == layers * kv_heads * (4 * head_dim + 8)
        (row,) = re.findall(rf"^\| {name}, .*$", PAGE_TEXT, re.MULTILINE)
        users = [cell.strip() for cell in row.split("|")[4:7]]
        assert users == [format_bytes(token * 2000 * count) for count in (1, 16, 64)]
