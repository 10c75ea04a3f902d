"""`--plugin` and options of stages in the terminal, by the commands of docs/decoding.md in real processes."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial

import pytest
from cli.terminal import run
from engine.test_own_stages import BLOCKS, PLUGIN

from glassloop.cli.chat.commands import _value
from glassloop.cli.compare import _way
from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError

COMMANDS = [
    shlex.split(line)[1:]
    for block in BLOCKS
    for line in block.splitlines()
    if line.startswith("glassloop ") and not line.startswith("glassloop serve")
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = tmp_path_factory.mktemp("plugins")
    (made / "my_stages.py").write_text(PLUGIN)
    return made


def in_place(place, command: list[str]):
    absolute = [str(place / each) if each.endswith(".py") else each for each in command]
    return run(*absolute, GLASSLOOP_STORE=str(place / "runs.db"))


def test_the_commands_of_the_document_work_and_without_the_plugin_the_error_names_it(place):
    assert [command[0] for command in COMMANDS] == [
        *("generate", "explain", "explain", "explain", "replay", "compare")
    ]
    generate, explain, what_if, without, replay, compare = COMMANDS
    made = in_place(place, [*generate, "--json"])
    assert made.returncode == 0, made.stderr
    answer = json.loads(made.stdout)
    assert answer["sampling"]["stages"] == ["default", "new_opening"]
    assert answer["sampling"]["stage_options"] == {"new_opening": {"length": 2}}
    assert answer["plugins"]["new_opening"]["file"] == "my_stages.py"

    assert " · greedy, stage new_opening · " in in_place(place, generate).stderr

    told = in_place(place, explain)
    assert told.returncode == 0 and "new_opening" in told.stdout, told.stderr
    assert "What if stage_options={'new_opening': {'length': 1}}" in in_place(place, what_if).stdout
    assert "new_opening" not in in_place(place, without).stdout
    assert re.match("identical, 4[01] of 4[01] tokens", in_place(place, replay).stdout)
    side_by_side = in_place(place, [*compare, "--no-store", "--json"])
    ways = json.loads(side_by_side.stdout)
    assert ways[2]["sampling"]["stage_options"] == {"new_opening": {"length": 2}}
    assert ways[2]["text"] == answer["text"] != ways[0]["text"]
    assert "new_opening was added" in ways[2]["parts"]["sentence"]

    hint = "the run was made with plugin my_stages.py (sha256 "
    for command in (["replay", "last"], ["explain", "last"], ["fork", "last", "--at", "3"]):
        failed = in_place(place, command)
        assert failed.returncode == 2 and hint in failed.stderr and "--plugin my_stages.py" in failed.stderr
    (place / "my_stages.py").write_text(PLUGIN + "\n# changed\n")
    for command in (replay, explain, ["fork", "last", "--at", "3", "-n", "4", "--plugin", "my_stages.py"]):
        done = in_place(place, command)
        said = done.stdout + done.stderr
        assert done.returncode == 0, done.stderr
        assert re.search(r"made with plugin my_stages\.py \(sha256 .*and here it is my_stages\.py", said)


def test_a_misspelt_stage_has_a_hint(place):
    near = in_place(place, ["generate", "Hi", "--stages", "default,top_pp"])
    assert "did you mean top_p? Register a stage of your own" in near.stderr
    far = in_place(place, ["generate", "Hi", "--stages", "default,qqqqqq"])
    assert re.search(r"the stages are .*, \w+\. Register a stage of your own", far.stderr)


def test_a_bad_plugin_is_one_line(place):
    (place / "bad.py").write_text("1 / 0")
    failed = in_place(place, ["generate", "Hi", "--plugin", "bad.py"])
    assert failed.returncode == 2 and len(failed.stderr.splitlines()) == 1
    assert "bad.py, line 1: ZeroDivisionError: division by zero" in failed.stderr


def test_an_exception_in_a_stage_is_shown_from_the_authors_own_line_on(place):
    wrong = '@stage("wrong", kind="mask")\ndef wrong(candidates, step):\n    1 / 0\n'
    (place / "raises.py").write_text(f"from glassloop import stage\n{wrong}")
    failed = in_place(place, ["generate", "Hi", "--plugin", "raises.py", "--stages", "default,wrong"])
    first, where, *_, last, note = failed.stderr.splitlines()
    assert failed.returncode == 2 and first == "Traceback (most recent call last):"
    assert where.endswith('raises.py", line 4, in wrong') and last == "ZeroDivisionError: division by zero"
    assert note == "raised by stage 'wrong' at position 1"


def test_every_command_that_runs_stages_takes_a_plugin():
    for command in ("generate", "chat", "compare", "explain", "replay", "fork", "diff", "watch", "serve"):
        flag = "--help" if command in ("replay", "diff", "serve") else "--help-all"
        shown = run(command, flag, COLUMNS="300").stdout
        assert "--plugin" in shown and "with all your rights" in shown, command


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("stages=default,mine", {"stages": ["default", "mine"]}),
        ("stages=mine,default,temperature=0", {"stages": ["mine", "default"], "temperature": 0}),
        (
            "greedy,stages=default,mine,mine.words=3,mine.name=a",
            {
                "temperature": 0.0,
                "stages": ["default", "mine"],
                "stage_options": {"mine": {"words": 3, "name": "a"}},
            },
        ),
        ("default", {}),
    ],
)
def test_a_way_can_have_stages_and_their_options(text, options):
    assert _way(text) == options


def test_an_option_of_a_stage_has_its_form():
    failed = run("generate", "Hi", "--stage-option", "words=3")
    assert failed.returncode == 2 and "STAGE.NAME=VALUE, such as new_opening.words=3," in failed.stderr
    with pytest.raises(SamplingError, match="greedy, default or name=value"):
        _way("stages=a,temperature=0,b")


def test_a_chat_sets_stages_and_their_options():
    value = partial(_value, defaults=Sampling())
    assert value("stages", "default, mine") == ["default", "mine"]
    assert value("stages", '["mine"]') == ["mine"] and value("stages", "none") is None
    assert value("stage_options", "mine.words=3 mine.on=true") == {"mine": {"words": 3, "on": True}}
    assert value("stage_options", '{"mine": {}}') == {"mine": {}} and value("stage_options", "none") == {}
