"""A beam search in the terminal: the tree of its beams, with scores, and no luck."""

from __future__ import annotations

import json
import re

import pytest
from cli.terminal import on_terminal, run

from glassloop import Run

PROMPT = "The best thing about school is"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("beams") / "beams.glass"
    asked = ("generate", PROMPT, "--beam-width", "4", "-n", "10", "--no-store", "--trace", str(path))
    code, shown = on_terminal(*asked, NO_COLOR="1")
    assert code == 0, shown
    return path, re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown.split("\r")[-1])


def test_generate_shows_the_tree_on_a_terminal(file):
    path, shown = file
    made = Run.load(path)
    lines = shown.splitlines()
    header = next(place for place, line in enumerate(lines) if line.startswith("beam "))
    assert lines[0] == made.text
    tree = lines[header + 2 : -2]
    chosen = [line for line in tree if "chosen" in line]
    assert len(chosen) == 1
    score = made.logprob / len(made.tokens)
    assert f"{score:.2f}  chosen" in chosen[0]
    assert any("├─ " in line for line in tree) and any("pruned after token" in line for line in tree)
    assert all(len(line) <= 80 for line in tree)


def test_runs_show_has_the_score_of_the_beam_and_no_luck(file):
    path, _ = file
    made = Run.load(path)
    shown = run("runs", "show", str(path)).stdout
    header = next(line for line in shown.splitlines() if line.startswith("step "))
    assert "beam logprob" in header and "luck" not in header and "margin" not in header
    total = 0.0
    for at, token in enumerate(made.tokens):
        total += token.logprob
        row = next(line for line in shown.splitlines() if line.startswith(f"{at:>4}  "))
        assert f"“{token.piece}”" in row and f"{total:.2f}" in row
    tree = shown[shown.index("outcome") :].splitlines()[1:]
    chosen = [line for line in tree if "chosen" in line]
    # The branch to the chosen beam is the first line of each level, and spells the text.
    texts = re.findall("“(.*?)”", "\n".join(tree[: tree.index(chosen[0]) + 1]))
    assert "".join(texts) == made.text


def test_explain_shows_the_beams_of_the_step(file):
    path, _ = file
    shown = run("explain", str(path), "--step", "2").stdout
    made = Run.load(path)
    tree = shown[shown.index("outcome") :]
    own = next(line for line in tree.splitlines() if made.tokens[2].piece in line)
    assert "kept" in own and "luck  score" not in shown
    # Four beams of three tokens were kept or pruned at this step; those before it are where they ended.
    assert sum(line.endswith(("kept", "pruned")) for line in tree.splitlines()) == 4
    plain = json.loads(run("explain", str(path), "--step", "2", "--json").stdout)
    assert plain["beam"]["beams"] >= 4


def test_few_lines_show_the_beams_that_lasted_longest(file, monkeypatch, capsys):
    from glassloop.cli import beams

    monkeypatch.setattr(beams, "_MOST", 3)
    made = Run.load(file[0])
    beams.print_beams(made, str)
    shown = capsys.readouterr().out
    assert shown.count("chosen") == 1 and "more beams, which were pruned earlier" in shown
    leaves = {beam.number for beam in made.beams} - {beam.parent for beam in made.beams}
    assert f"… and {len(leaves) - 3} more" in shown


def test_a_record_without_its_model_shows_unknown_tokens_by_id(file, monkeypatch):
    from glassloop.cli import run_model

    made = Run.load(file[0])
    monkeypatch.setattr(run_model, "tokenizer_of", lambda name, run: None)
    piece = run_model.beam_pieces(str(file[0]), made)
    assert piece(made.tokens[0].id) == made.tokens[0].piece and piece(49_000) == "<49000>"
