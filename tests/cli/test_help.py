"""`--help`: readable at 80 columns, in groups, and without the names of Python types."""

from __future__ import annotations

import re

import pytest
from cli.terminal import on_terminal, run

COMMANDS = (
    *("generate", "chat", "watch", "explain", "fork", "replay", "compare", "diff", "export"),
    *("serve", "tokenize", "infill", "edit", "eval", "passes", "solve"),
    *("lens attention", "lens layers", "lens neighbours", "runs list", "runs show", "runs worst", "runs rm"),
    *("runs export", "runs import", "models list", "models pull", "models show", "models path", "models rm"),
    *(
        "train run",
        "train resume",
        "train pretrain",
        "train distil",
        "train sweep",
        "train exposure",
        "train show",
        "train prepare",
        "train tokenizer",
        "train export",
    ),
)
LONG = ("generate", "solve", "watch", "explain", "fork", "infill", "edit", "compare")
GROUPS = (
    *("What to generate", "Choosing tokens", "Penalties", "Constraints", "Samples and beams", "When to stop"),
    *("Output and record", "Model and memory", "Options"),
)


@pytest.mark.parametrize("command", ["", "lens", "runs", "models", "train", *COMMANDS])
def test_help_fits_80_columns_and_has_a_word_for_every_value(command):
    text = run(*command.split(), "--help", COLUMNS="80").stdout
    assert "Usage:" in text and "--help" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "<" not in text.replace("<|im_end|>", "")  # no types of Python
    for line in text.splitlines():
        if line.startswith("│"):  # the names of an option are never cut
            assert "…" not in line[:27]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("solve", "Missing argument 'QUESTION'; python -m glassloop solve -h has the options"),
        ("solve q --nope", "No such option: --nope"),
        ("solve q --n many", "Invalid value for '--n'"),
        ("infill a b --method magic", "'magic' is not one of 'rerank', 'metropolis', 'holes'"),
        ("runs nope", "No such command 'nope'; python -m glassloop runs -h has the options"),
        ("--nope", "No such option: --nope; python -m glassloop -h has the options"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(command, told):
    done = run(*command.split())
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("glassloop: ")
    assert told in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [*LONG, "chat", "eval"])
def test_a_long_help_has_the_common_options_and_the_way_to_all(command):
    short, whole = (run(command, flag, COLUMNS="80").stdout for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 90 and len(whole.splitlines()) > 120
    assert max(map(len, whole.splitlines())) <= 80
    options = [set(re.findall(r"^│ (?:-\w, )?(--(?!no-)[a-z-]+)", text, re.M)) for text in (short, whole)]
    assert options[0] < options[1] and {"--temperature", "--help-all"} <= options[0]
    assert "--epsilon-cutoff" in options[1] - options[0]
    told = re.search(r"(\d+) more options: .* --help-all", short)
    assert told is not None and int(told[1]) == len(options[1]) - len(options[0])
    assert "more options" not in whole


def test_options_of_generate_are_in_groups_in_this_order():
    text = run("generate", "--help-all", COLUMNS="80").stdout
    titles = [line.strip("╭─╮ ") for line in text.splitlines() if line.startswith("╭")]
    assert titles == ["Arguments", *GROUPS]
    group = {}
    for line in text.splitlines():
        if line.startswith("╭"):
            title = line.strip("╭─╮ ")
        elif line.startswith("│ -"):
            group[line[2:26].split(" ")[-1 if line[2:].startswith("-n,") else 0].strip(",")] = title
    assert group["--temperature"] == "Choosing tokens" and group["--dry-base"] == "Penalties"
    assert group["--samples"] == "Samples and beams" and group["--json"] == "Output and record"


def test_help_on_a_terminal_is_in_colours_and_has_the_same_words():
    code, text = on_terminal("runs", "rm", "--help")
    assert code == 0 and "\x1b[" in text and "Remove all runs except the newest N." in text


def test_n_is_a_hidden_deprecated_name_of_samples():
    assert "--n " not in run("generate", "--help-all").stdout
    asked = ("generate", "Hi", "-n", "2", "--seed", "1", "--no-store")
    old, new = run(*asked, "--n", "2"), run(*asked, "--samples", "2")
    assert old.stdout == new.stdout and old.stdout.count("──") == 4
    assert "--n is deprecated; use --samples (-n is --max-tokens)" in old.stderr
    assert "deprecated" not in new.stderr
