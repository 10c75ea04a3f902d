"""What is said when replicas cannot be started, and that nothing is imported for them without need."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from glassloop.cluster import start
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
    wanted = "glassloop.cli.serve, glassloop.server.serve, glassloop.engine.llm"
    names = "[name for name in sys.modules if name.split('.')[0] in ('ray', 'psycopg') or '.cluster' in name]"
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys, {wanted}; print({names})"], capture_output=True, text=True
    )
    assert printed.stdout.strip() == "[]", printed
