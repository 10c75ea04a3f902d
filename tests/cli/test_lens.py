"""`glassloop lens`, as a person uses it: tables, JSON and pictures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from cli.terminal import on_terminal, run

from glassloop import Run

TIRED = "The cat sat on the mat because it was tired"


def test_attention_as_a_table_json_and_a_picture(tmp_path):
    picture = tmp_path / "it.svg"
    done = run("lens", "attention", TIRED, "--token", "it", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "Where “ it” looks" in done.stdout and "layer 14, head 9: 8" in done.stdout
    assert "“ tired”" not in done.stdout  # a token sees nothing that comes after it
    assert {"cat", "because", "layer 1", "layer 30"} <= set(_texts(picture))
    one = run("lens", "attention", TIRED, "-t", "7", "--layer", "14").stdout.splitlines()
    assert one[-1].split()[0] == "9" and "“ cat” 8" in one[-1]
    told = json.loads(run("lens", "attention", TIRED, "-t", "it", "--json").stdout)
    assert told["token"] == 7 and len(told["layers"]) == 30
    assert all(abs(sum(head) - 1) < 1e-4 for each in told["layers"] for head in each["weights"])


def test_layers_as_a_table_json_and_a_picture(tmp_path):
    picture = tmp_path / "layers.svg"
    done = run("lens", "layers", "The capital of France is", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "“ Paris” 7" in next(line for line in lines if line.lstrip().startswith("30 "))
    said = "Rank and probability are those of “ Paris”, the favourite of the last layer; entropy is in nats."
    assert lines[-1] == said
    words = _texts(picture)
    assert {"1st", "4th", "embedding", "layer 30"} <= set(words) and len(words) == 1 + 4 + 31 * (1 + 4)
    assert str(words[words.index("layer 30") + 1]).startswith("Paris 7")
    told = json.loads(run("lens", "layers", "The capital of France is", "-c", "2", "--json").stdout)
    assert [len(each["top"]) for each in told["layers"]] == [2] * 31 and told["follows"]["text"] == " Paris"


def _texts(picture) -> list[str | None]:
    return [text.text for text in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_neighbours_of_the_king(tmp_path):
    picture = tmp_path / "king.svg"
    done = run("lens", "neighbours", " king", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "Near “ king”" in done.stdout
    assert "“ queen”" in done.stdout and "“ emperor”" in done.stdout
    assert {"Near “ king” · smollm2-135m-instruct", "cosine", "“ queen”"} <= set(_texts(picture))
    told = json.loads(run("lens", "neighbours", " king", "-c", "3", "--json").stdout)
    assert [len(told["of"]), len(told["neighbours"])] == [1, 3]


def test_a_run_is_looked_into_by_name(tmp_path):
    store, file = str(tmp_path / "runs.db"), str(tmp_path / "a.glass")
    flags = ("--seed", "3", "-n", "4", "--trace", file)
    assert run("generate", "The capital of France is", *flags, GLASSLOOP_STORE=store).returncode == 0
    seen = [
        run("lens", "layers", name, "--token", "2", "--json", GLASSLOOP_STORE=store)
        for name in ("last", file)
    ]
    assert seen[0].returncode == 0 and seen[0].stdout == seen[1].stdout
    told = json.loads(seen[0].stdout)
    # The number of a token is that of every other command: the third of the answer, after five of the prompt.
    recorded = Run.load(file)
    assert told["token"] == 5 + 2 and told["tokens"][-1]["id"] == recorded.tokens[2].id
    assert told["follows"]["given"] and told["follows"]["text"] == recorded.tokens[3].piece
    shown = run("lens", "attention", file, "-t", "2").stdout
    assert f" · token 2 of the answer of run {recorded.id[:8]} · " in shown
    in_prompt = run("lens", "attention", file, "-t", "France", "--prompt").stdout
    assert "Where “ France” looks · token 3 of the prompt of run " in in_prompt
    for wrong in (("-t", "4"), ("-t", "-10"), ("-t", "5", "--prompt"), ("-t", "qux", "--prompt")):
        refused = run("lens", "layers", file, *wrong)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert "it is for the prompt of a run" in run("lens", "layers", TIRED, "--prompt").stderr
    text = json.loads(run("lens", "layers", "last", "--text", "--json", GLASSLOOP_STORE=store).stdout)
    assert [piece["text"] for piece in text["tokens"]] == ["last"]


def test_tables_fit_eighty_columns():
    code, seen = on_terminal("lens", "attention", TIRED, "--token", "it", NO_COLOR="1")
    table = seen[seen.index("──") :]
    assert code == 0 and "“ because”" in table and "layer 19, head 9: 100 %" in table and "…" not in table


def test_on_a_terminal_nothing_is_obeyed_and_lines_fit():
    code, seen = on_terminal("lens", "attention", "a \x1b[31mb 漢字 👍 end", NO_COLOR="1")
    assert code == 0 and "\x1b[31m" not in seen and "\\x1b" in seen


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("attention", TIRED, "--token", "dog"), "token is 'dog'"),
        (("attention", TIRED, "--layer", "31"), "layer is 31; one from 1 to 30 is expected"),
        (("layers", TIRED, "--picture", "a.png"), "a name that ends in .svg is expected"),
        (("layers", TIRED, "--picture", "/nowhere/a.svg"), "cannot write /nowhere/a.svg"),
        (("layers", "missing.glass"), "missing.glass"),
        (("layers", "0123456789abcdef"), "0123456789abcdef"),
        (("neighbours", ""), "of is empty"),
    ],
)
def test_errors_are_one_line(arguments, said, tmp_path):
    done = run("lens", *arguments, GLASSLOOP_STORE=str(tmp_path / "runs.db"))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not done.stdout
