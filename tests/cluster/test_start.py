"""What is said when replicas cannot be started, and that nothing is imported for them without need."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from glassloop.cluster import start
from glassloop.cluster.options import AppOptions
from glassloop.cluster.ray_token import private_token
from glassloop.errors import GlassloopError


@pytest.mark.parametrize("found", [None, ModuleSpec("ray", None)], ids=["nothing", "a folder of this name"])
def test_without_ray_the_error_says_what_to_install(monkeypatch, found):
    monkeypatch.setattr(start, "find_spec", lambda name: found)
    with pytest.raises(GlassloopError, match=r"pip install 'glassloop\[ray\]'"):
        start.need_ray()


def test_an_address_at_which_nothing_listens_is_refused_before_ray_tries_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        start._check_reachable(address)
    start._check_reachable("auto")
    for wrong in (address, "127.0.0.1:none", "127.0.0.1:70000"):
        with pytest.raises(GlassloopError, match="there is no Ray cluster at"):
            start._check_reachable(wrong)


def test_a_server_without_replicas_imports_nothing_for_them():
    wanted = "glassloop.cli.serve, glassloop.server.serve, glassloop.api.llm"
    names = "[name for name in sys.modules if name.split('.')[0] in ('ray', 'psycopg') or '.cluster' in name]"
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys, {wanted}; print({names})"], capture_output=True, text=True
    )
    assert printed.stdout.strip() == "[]", printed


def test_the_ray_of_a_server_has_a_token_that_only_its_user_can_read():
    environ: dict[str, str] = {}
    old = os.umask(0)
    try:
        with private_token(environ):
            path = Path(environ["RAY_AUTH_TOKEN_PATH"])
            assert environ["RAY_AUTH_MODE"] == "token"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            first = path.read_text()
        assert environ == {} and not path.parent.exists()
        with private_token(environ):
            second = Path(environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    finally:
        os.umask(old)
    assert len(first) == 64 and first != second


@pytest.mark.parametrize("mode", ["disabled", "k8s", "0"])
def test_a_ray_without_a_token_is_not_started(mode, monkeypatch):
    with (
        pytest.raises(GlassloopError, match=r"RAY_AUTH_MODE is .*; token is expected"),
        private_token({"RAY_AUTH_MODE": mode}),
    ):
        pass
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr(start, "need_ray", lambda: None)
    options = AppOptions.from_dict({"open_to_all": True})
    with pytest.raises(GlassloopError, match="RAY_AUTH_MODE"), start.engines(options):
        pass


def test_a_token_of_the_user_is_used_if_nobody_else_can_read_it(tmp_path):
    given = {"RAY_AUTH_TOKEN": "mine"}
    with private_token(given):
        assert given == {"RAY_AUTH_TOKEN": "mine", "RAY_AUTH_MODE": "token"}
    path = tmp_path / "token"
    path.write_text("mine")
    path.chmod(0o644)
    named = {"RAY_AUTH_TOKEN_PATH": str(path), "RAY_AUTH_MODE": "TOKEN"}
    with pytest.raises(GlassloopError, match="mode 0644; 0600 is expected"), private_token(named):
        pass
    path.chmod(0o600)
    with private_token(named):
        assert named == {"RAY_AUTH_TOKEN_PATH": str(path), "RAY_AUTH_MODE": "token"}
    with (
        pytest.raises(GlassloopError, match="No such file"),
        private_token({"RAY_AUTH_TOKEN_PATH": "/none/x"}),
    ):
        pass


def test_the_token_is_there_before_ray_is_imported_and_not_for_another_cluster(monkeypatch):
    seen = []

    @contextmanager
    def started(options, address):
        seen.append((address, "ray" in sys.modules, os.environ.get("RAY_AUTH_TOKEN_PATH")))
        yield []

    monkeypatch.delitem(sys.modules, "ray", raising=False)  # other tests may have imported it
    monkeypatch.setattr(start, "need_ray", lambda: None)
    monkeypatch.setattr(start, "_engines", started)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    options = AppOptions.from_dict({"open_to_all": True})
    for address in (None, "auto"):
        with start.engines(options, address):
            pass
    assert [(address, loaded, bool(path)) for address, loaded, path in seen] == [
        (None, False, True),
        ("auto", False, False),
    ]
