"""The server uses an engine through `Engine` alone, so that the engine may be elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

import glassloop.server

SERVER = Path(glassloop.server.__file__).parent
# The parts of the engine's own machinery, which an engine elsewhere does not have in this process.
INSIDE = {"loop", "thread", "tree", "llm", "scheduler", "logits", "hidden"}


def test_no_module_of_the_server_reaches_into_the_engine():
    wrong = []
    for path in SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("engine", "transformer"):
                wrong.append(f"{path.name}:{node.lineno}: .{node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("glassloop.engine."):
                names = [alias.name for alias in node.names]
                if node.module.rpartition(".")[2] in INSIDE and names != ["Busy"]:
                    wrong.append(f"{path.name}:{node.lineno}: {node.module}")
    assert not wrong


def test_a_server_with_one_engine_names_it(server):
    (replica,) = server.get("/api/replicas").json()
    assert replica["id"] == "local"
    assert replica["pid"] > 0
    assert replica["model"] == server.get("/health").json()["model"]
    assert server.get("/ready").json() == {"status": "ready"}
    cluster = server.get("/api/cluster").json()
    assert cluster["ready"] is True
    assert cluster["handovers"] == []
    assert cluster["replicas"][0]["id"] == "local"
