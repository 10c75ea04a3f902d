"""Runs the notebooks of this folder as Jupyter would, without Jupyter, and writes their outputs.

    python docs/notebooks/run.py            # all of them, in place

A cell with the tag `anywidget` is left as it is where that package is not installed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Executes the code cells in order and replaces their outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"] = count
        if "anywidget" not in cell["metadata"].get("tags", ()) or find_spec("anywidget"):
            cell["outputs"] = _execute("".join(cell["source"]), names, count)
    return notebook


def _execute(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Returns the outputs of a cell: what it prints, and its last expression if it ends with one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(str(value._repr_html_()))
        shown = {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        outputs.append(shown)
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def notebooks() -> list[Path]:
    """Returns the notebooks of this folder."""
    return sorted(FOLDER.glob("*.ipynb"))


if __name__ == "__main__":
    for path in notebooks():
        made = run(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)
