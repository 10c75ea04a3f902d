"""Verifiers and methods of one's own by `--plugin`, as docs/thinking.md shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli.terminal import run

from glassloop import GlassloopError, load_plugin, search_method, verifier
from glassloop.search.decorators import OWN_METHODS, OWN_VERIFIERS
from glassloop.search.methods import make_method
from glassloop.search.verify import find_verifier

PAGE = (Path(__file__).parents[2] / "docs" / "thinking.md").read_text(encoding="utf-8")
_, PART = PAGE.split("### On the command line\n")
PLUGIN = re.search(r"```python\n(.*?)```", PART, re.S)[1]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    return str(tmp_path / "mine.py")


def test_a_search_uses_the_verifier_and_the_method_of_a_plugin(file, tmp_path):
    asked = ("solve", "What is the sea?", "--plugin", file, "-n", "24", "--seed", "1", "--json")
    own = ("--method", "first_that_passes", "--option", "most=3", "--verify", "short")
    done = run(*asked, *own, GLASSLOOP_STORE=str(tmp_path / "runs.db"))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["method"] == "first_that_passes" and record["options"] == {"most": 3}
    assert record["verify"] == "short" and 1 <= len(record["paths"]) <= 3
    answer = record["paths"][record["answer"]]
    assert answer["verdict"]["passed"] or len(record["paths"]) == 3
    for wrong, says in (
        (("--verify", "shrt"), "json:SCHEMA, short is expected, or one of your own: @verifier in a file"),
        (("--method", "other"), "first_that_passes is expected"),
        ((*own[:2], "--option", "least=3", "--verify", "short"), "does not take these options"),
        (own[:2], "needs a verifier"),
    ):
        refused = run(*asked, *wrong)
        assert refused.returncode == 2 and says in refused.stderr and refused.stderr.count("\n") == 1


def test_an_evaluation_takes_a_method_of_a_plugin(file, tmp_path):
    task = tmp_path / "task.jsonl"
    task.write_text(json.dumps({"question": "2 + 2 = ?", "answer": 4}) + "\n")
    with_vote = file.replace("mine.py", "vote.py")
    Path(with_vote).write_text(
        PLUGIN.replace("needs_verifier = True", "").replace("paths.verify(path).passed", "1")
    )
    done = run("eval", str(task), "--plugin", with_vote, "--method", "first_that_passes", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert "first_that_passes" in done.stdout


def test_what_a_plugin_registers_goes_if_it_fails(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(PLUGIN + "\nraise ValueError('no')\n")
    with pytest.raises(GlassloopError, match="ValueError: no"):
        load_plugin(path)
    assert "short" not in OWN_VERIFIERS and "first_that_passes" not in OWN_METHODS
    path.write_text(PLUGIN)
    load_plugin(path)
    try:
        assert find_verifier("short")("a few words") is True
        assert make_method("first_that_passes", {"most": 2}).options == {"most": 2}
        other = tmp_path / "other.py"
        other.write_text(PLUGIN)
        with pytest.raises(GlassloopError, match="'short' is registered already"):
            load_plugin(other)
    finally:
        OWN_VERIFIERS.clear()
        OWN_METHODS.clear()


@pytest.mark.parametrize("name", ["", "json", "regex", "a b", 7, "x" * 65])
def test_names_of_verifiers_and_methods_are_checked(name):
    with pytest.raises(GlassloopError, match="expected"):
        verifier(name)
    with pytest.raises(GlassloopError, match="expected"):
        search_method("vote" if name in ("json", "regex") else name)
    with pytest.raises(GlassloopError, match="a subclass of Search is expected"):
        search_method("fine")(dict)
