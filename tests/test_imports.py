"""The folders of the package are layers: a module imports only from its own folder and from those before it.

Every import statement counts, also inside functions and under `if TYPE_CHECKING`. `errors.py`, directly in
the package, is below all folders; its `__init__.py` and `__main__.py` are above them.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "glassloop"
LAYERS = [
    "util",
    "text",
    "ops",
    "model",
    "decode",
    "record",
    "engine",
    "diffuse",
    "edit",
    "search",
    "contrast",
    "api",
    "evaluate",
    "train",
    "server",
    "cluster",
    "upstream",
    "cli",
]
# `LLM` has a method for every capability; what is above the engine is imported when it is called.
FACADE = "api/llm.py"


def imports(path: Path) -> list[str]:
    """Returns what a module imports from the package: "ops.native" for `from glassloop.ops import native`."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; write the full name"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.removeprefix("glassloop.") for name in names if f"{name}.".startswith("glassloop.")]


def layer(name: str) -> int:
    if name in LAYERS:
        return LAYERS.index(name)
    return -1 if (PACKAGE / f"{name}.py").exists() and not name.startswith("__") else len(LAYERS)


@cache  # not when the file is imported, as every worker does
def modules() -> dict[str, list[str]]:
    return {path.relative_to(PACKAGE).as_posix(): imports(path) for path in PACKAGE.rglob("*.py")}


def test_every_folder_has_a_place_in_the_order():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(LAYERS)


def test_no_module_imports_from_a_layer_above_its_own():
    wrong = [
        f"{module} imports glassloop.{name}"
        for module, names in modules().items()
        for name in names
        if layer(name.split(".")[0]) > layer(module.removesuffix(".py").split("/")[0])
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    names = {_name(module): module for module in modules()}
    imported = {
        name: {target for each in modules()[module] if (target := _target(each, names)) not in (None, name)}
        for name, module in names.items()
    }
    while leaves := [name for name, targets in imported.items() if not targets & imported.keys()]:
        for name in leaves:
            del imported[name]
    # What is left imports each other, or what does.
    assert sorted(imported) == []


def _name(module: str) -> str:
    return module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _target(name: str, names: dict[str, str]) -> str | None:
    """Returns the module that an imported name is, or is in."""
    if name in names:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in names else None


def test_a_public_class_name_means_one_thing():
    places: dict[str, list[str]] = {}
    for module in modules():
        for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_only_ops_imports_the_native_op_set():
    importers = {
        module
        for module, names in modules().items()
        if not module.startswith("ops/") and any(f"{name}.".startswith("ops.native.") for name in names)
    }
    assert importers == set()


def test_contributing_lists_the_layers_in_their_order():
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE) == LAYERS
