"""docs/walk.md names functions with their files; each of them must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "glassloop"
# `Class.method` (folder/file.py), or `function` (folder/file.c)
_NAMED = re.compile(r"`([\w.]+)`[\s\n]+\(([\w/]+\.(?:py|c))\)")
NAMED = sorted(set(_NAMED.findall((ROOT / "docs" / "walk.md").read_text(encoding="utf-8"))))


def defined(path: Path) -> set[str]:
    """Returns the functions and classes of a file, methods as `Class.method`."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".c":
        return set(re.findall(r"^\w[\w *]*?(\w+)\([^;]*?\)\s*\{", source, re.MULTILINE))
    names: set[str] = set()

    def visit(node: ast.AST, before: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(before + child.name)
                visit(child, f"{before}{child.name}.")

    visit(ast.parse(source), "")
    return names


def test_the_walk_names_functions_of_every_layer():
    folders = {file.split("/")[0] for _, file in NAMED}
    assert folders == {"text", "ops", "model", "decode", "record", "engine", "api", "server", "cli"}
    assert len(NAMED) > 50


@pytest.mark.parametrize(("name", "file"), NAMED, ids=lambda value: value)
def test_a_function_of_the_walk_exists(name, file):
    assert name in defined(PACKAGE / file)
