"""The notebooks in docs/ run, and their saved outputs are what they give: the same texts and numbers."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
sys.path.insert(0, str(FOLDER))

from run import notebooks, run  # noqa: E402

_ID = re.compile(r"\b[0-9a-f]{8}(?:[0-9a-f]{8})?\b")  # of a run


def outputs(notebook: dict[str, Any]) -> list[str]:
    """Returns what cells print and show, without the ids of runs, which are new each time."""
    made = []
    for cell in notebook["cells"]:
        if "anywidget" in cell["metadata"].get("tags", ()):
            continue
        for output in cell.get("outputs", ()):
            shown = output["text"] if output["output_type"] == "stream" else output["data"].get("text/html")
            made.append(_ID.sub("ID", "".join(shown or ())))
    return made


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_shows(path):
    text = path.read_text(encoding="utf-8")
    if find_spec("nbformat"):
        import nbformat

        nbformat.validate(nbformat.reads(text, as_version=4))
    saved, now = json.loads(text), run(json.loads(text))
    assert any("<span class=" in each for each in outputs(saved)) and len(outputs(saved)) >= 5
    assert outputs(now) == outputs(saved)
