"""The commands that look at recorded runs, as a person uses them: real processes, pipes and a terminal."""

from __future__ import annotations

import json
import re
from math import log

import pytest
from cli.terminal import on_terminal, run

from glassloop import Run, Store
from glassloop.cli.show import Painter, Show
from glassloop.record.format.glass_file import read
from glassloop.record.token import Refusal

PROMPT = "The capital of France is"
FLAGS = ("--seed", "3", "-n", "8", "--temperature", "0.8", "--top-p", "0.9")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("record")


@pytest.fixture(scope="module")
def store(place):
    """A store for this module, with one run in it, which is also in a file."""
    path = str(place / "runs.db")
    done = run("generate", PROMPT, *FLAGS, "--trace", str(place / "a.glass"), GLASSLOOP_STORE=path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"· run [0-9a-f]{8} ·", done.stderr)
    return path


def test_generate_keeps_the_run_in_the_store_and_in_the_file(store, place):
    (entry,) = json.loads(run("runs", "list", "--json", GLASSLOOP_STORE=store).stdout)
    saved = Run.load(place / "a.glass")
    assert entry["id"] == saved.id and entry["text"] == saved.text and entry["seed"] == 3
    shown = run("runs", "list", GLASSLOOP_STORE=store).stdout
    assert saved.id[:8] in shown and PROMPT in shown


def test_generate_does_not_keep_it_if_told_so(place):
    path = place / "none.db"
    done = run("generate", PROMPT, "-n", "1", "--no-store", GLASSLOOP_STORE=str(path))
    assert done.returncode == 0 and "· run " not in done.stderr and not path.exists()


def test_a_store_that_cannot_be_used_costs_nobody_the_text(place):
    (place / "file").write_text("")
    done = run("generate", PROMPT, "-n", "2", GLASSLOOP_STORE=str(place / "file" / "runs.db"))
    assert done.returncode == 0 and done.stdout.strip()
    assert "glassloop: the run was not kept: cannot use the store" in done.stderr


def test_explain_takes_any_run_of_a_file(place):
    path = str(place / "several.glass")
    asked = ("-n", "3", "--temperature", "1", "--samples", "3", "--seed", "5", "--no-store")
    assert run("generate", PROMPT, *asked, "--trace", path).returncode == 0
    runs = read(path)
    assert len(runs) == 3
    for one in runs:
        told = json.loads(run("explain", path, "--step", "2", "--run", one.id[:8], "--json").stdout)
        assert told["run"] == one.id and told["winner"]["id"] == one.tokens[2].id
    refused = run("explain", path, "--run", "zzz")
    assert refused.returncode == 2 and "--run is zzz" in refused.stderr and runs[1].id[:8] in refused.stderr


def test_explain_tells_the_stages_the_race_and_the_sentence(store, place):
    for name in ("last", str(place / "a.glass")):
        done = run("explain", name, "--step", "2", GLASSLOOP_STORE=store)
        assert done.returncode == 0, done.stderr
        for word in ("temperature", "top_p", "removed by top_p", "luck", "won by", "token 2 of run"):
            assert word in done.stdout
    told = json.loads(run("explain", "last", "--step", "2", "--json", GLASSLOOP_STORE=store).stdout)
    token = Run.load(place / "a.glass").tokens[2]
    assert told["winner"]["id"] == told["taken"]["id"] == told["recorded"]["id"] == token.id
    assert told["margin"] == token.margin and told["winner"]["logprob"] == token.logprob
    assert told["sentence"] in done.stdout


def test_a_what_if_says_what_changes(store):
    done = run("explain", "last", "--step", "2", "--temperature", "0", GLASSLOOP_STORE=store)
    assert re.search(r"What if temperature=0.0: “.*” instead of “.*”\.", done.stdout)
    done = run("explain", "last", "--step", "2", "--top-k", "49000", GLASSLOOP_STORE=store)
    assert "What if top_k=49000: nothing changes." in done.stdout


def test_a_token_is_named_by_its_text(store, place):
    tokens = Run.load(place / "a.glass").tokens
    pieces = [token.piece for token in tokens]
    at = next(at for at, piece in enumerate(pieces) if piece.strip().isalpha())
    word = pieces[at].strip()
    first = next(number for number, piece in enumerate(pieces) if piece.strip() == word)
    told = json.loads(run("explain", "last", "--step", word, "--json", GLASSLOOP_STORE=store).stdout)
    assert told["step"] == first and told["recorded"]["id"] == tokens[first].id
    told = json.loads(
        run("explain", "last", "--step", "France", "--prompt", "--json", GLASSLOOP_STORE=store).stdout
    )
    assert told["step"] == 3 and told["of"] == "prompt"


def test_a_token_of_the_prompt_and_the_next_one_are_explained_too(store, place):
    name = str(place / "a.glass")
    done = run("explain", name, "--prompt", "--step", "-1")
    assert "The capital of France “ is”\ntoken 4 of the prompt of run" in done.stdout
    assert "“ is” is part of the prompt, so it was given and not chosen: the model found it" in done.stdout
    done = run("explain", name, "--step", "8", "--new-luck")
    assert "…\ntoken 8 of run" in done.stdout and "to come\n" in done.stdout
    assert re.search(r"What if new luck: “.*”\.", done.stdout)
    done = run("explain", name, "--prompt", "--step", "0")
    assert done.returncode == 2 and "before the first token of the prompt there are no logits" in done.stderr


def test_replay_has_a_verdict_and_an_exit_code(store, place):
    done = run("replay", "last", GLASSLOOP_STORE=store)
    assert (done.returncode, done.stdout) == (0, "identical, 8 of 8 tokens\n")
    done = run("replay", str(place / "a.glass"), "--from", "5", "--json")
    assert (
        done.returncode == 0
        and json.loads(done.stdout)["identical"]
        and json.loads(done.stdout)["tokens"] == 3
    )
    done = run("replay", str(place / "a.glass"), "--ops", "reference")
    assert done.returncode == 1 and "computed again with reference" in done.stdout
    done = run("explain", str(place / "a.glass"), "--step", "2", GLASSLOOP_OPS="reference")
    assert done.returncode == 0
    assert 0 < done.stdout.index("The record has other numbers for") < done.stdout.index("after stages")


def test_a_changed_file_is_refused(place, store):
    data = bytearray((place / "a.glass").read_bytes())
    data[len(data) // 2] ^= 1
    (place / "bad.glass").write_bytes(data)
    for command in ("replay", "explain"):
        done = run(command, str(place / "bad.glass"))
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("glassloop: ") and "damaged: its checksum does not match" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "nosuchrun"], "there is no run 'nosuchrun'"),
        (["explain", "last", "--step", "99"], "step is 99; a token from 0 to 8 is expected"),
        (
            ["explain", "last", "--step", "zebra"],
            "--step is 'zebra', but no token of the answer has this text; the number or the text",
        ),
        (["explain", "last", "--top-p", "3"], "top_p is 3.0"),
        (["replay", "no.glass"], "no.glass: cannot be read"),
        (["runs", "rm"], "either the ids of runs or --keep N is expected"),
        (["runs", "import", "no.glass"], "no.glass: cannot be read"),
        (["compare", "Hi", "--with", "hot"], "--with has 'hot'"),
        (["compare", "Hi", "--with", "temprature=1"], "did you mean temperature?"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(store, arguments, said):
    done = run(*arguments, GLASSLOOP_STORE=store)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_runs_are_shown_exported_and_removed(store, place):
    shown = run("runs", "show", "last", GLASSLOOP_STORE=store).stdout
    assert PROMPT in shown and "temperature=0.8" in shown and "margin" in shown
    plain = json.loads(run("runs", "show", "last", "--json", GLASSLOOP_STORE=store).stdout)
    assert plain["tree"][0]["id"] == plain["id"] and len(plain["tokens"]) == 8
    other = str(place / "other.db")
    for seed in "12":
        run("generate", "Hi", "-n", "2", "--seed", seed, "--samples", "2", GLASSLOOP_STORE=other)
    done = run("runs", "export", "last", str(place / "b.glass"), "--tree", GLASSLOOP_STORE=other)
    assert done.returncode == 0 and "2 runs" in done.stdout and len(read(place / "b.glass")) == 2
    assert run("replay", str(place / "b.glass")).stdout.count("identical, 2 of 2 tokens") == 2
    run("runs", "export", "last", str(place / "b.json"), GLASSLOOP_STORE=other)
    assert json.loads((place / "b.json").read_text())["seed"] == 2
    done = run("runs", "rm", "last", "--json", GLASSLOOP_STORE=other)
    assert json.loads(done.stdout) == {"removed": 1, "left": 3}
    assert "removed 2 runs, 1 left" in run("runs", "rm", "--keep", "1", GLASSLOOP_STORE=other).stdout


def test_without_a_step_the_most_surprising_token_is_explained(store, place):
    tokens = Run.load(place / "a.glass").tokens
    most = min(range(8), key=lambda step: tokens[step].raw_logprob)
    plain, named = run("explain", "last", GLASSLOOP_STORE=store), ("explain", "last", "--step", str(most))
    header, rest = plain.stdout.split("\n", 2)[1:]
    assert header.startswith(f"token {most} of run") and "the most surprising one; --step N" in header
    assert run(*named, GLASSLOOP_STORE=store).stdout.split("\n", 2)[2] == rest
    told = json.loads(run("explain", "last", "--temperature", "0", "--json", GLASSLOOP_STORE=store).stdout)
    assert told["step"] == most
    refused = run("explain", "last", "--prompt", GLASSLOOP_STORE=store)
    assert refused.returncode == 2 and "--prompt is given without --step" in refused.stderr
    scored = str(place / "scored.glass")
    assert run("generate", PROMPT, "-n", "1", "--prompt-logprobs", "2", "--trace", scored).returncode == 0
    of_prompt = json.loads(run("explain", scored, "--prompt", "--json").stdout)
    records = Run.load(scored).prompt_tokens
    assert records[of_prompt["step"] - 1].raw_logprob == min(each.raw_logprob for each in records)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "temperature=0.5 (the model's default), seed=3, max_tokens=2"),
        (["--temperature", "1"], "temperature=1.0, seed=3, max_tokens=2"),
        (["--temperature", "0", "--top-p", "0.9"], "temperature=0.0, top_p=0.9, seed=3, max_tokens=2"),
        (["--no-model-defaults"], "temperature=1.0, seed=3, max_tokens=2"),
    ],
)
def test_a_run_shows_its_temperature_always(tmp_path, flags, line):
    environment = {"GLASSLOOP_STORE": str(tmp_path / "runs.db")}
    assert run("generate", "Hi", "-n", "2", "--seed", "3", *flags, **environment).returncode == 0
    assert f"\noptions  {line}\n" in run("runs", "show", "last", **environment).stdout


def test_the_worst_tokens_are_the_most_surprising_and_the_luckiest(store, place):
    tokens = Run.load(place / "a.glass").tokens
    done = run("runs", "worst", "last", "--count", "3", "--json", GLASSLOOP_STORE=store)
    told = json.loads(done.stdout)
    likely = sorted(range(8), key=lambda step: tokens[step].raw_logprob)
    assert [each["step"] for each in told["surprising"]] == likely[:3]
    assert [each["id"] for each in told["surprising"]] == [tokens[step].id for step in likely[:3]]
    assert told["surprising"][0]["surprise_bits"] == pytest.approx(-tokens[likely[0]].raw_logprob / log(2))
    lucks = [each["luck"] for each in told["lucky"]]
    assert lucks == sorted(lucks, reverse=True) and all(each["rank_after"] > 1 for each in told["lucky"])
    shown = run("runs", "worst", str(place / "a.glass"), "-c", "1").stdout
    row = re.search(rf"\n *{likely[0]}  (.*)", shown)
    assert row is not None and f"“{tokens[likely[0]].piece}”" in row[1] and " bits " in row[1]
    # Each token is shown with the words around it, which are those of the text.
    for each in told["surprising"] + told["lucky"]:
        near = each["before"].lstrip("…") + tokens[each["step"]].text + each["after"].rstrip("…")
        assert near in "".join(token.text for token in tokens)
    unlikely = [step for step in range(8) if tokens[step].raw_logprob < log(0.01)]
    first = told["first_unlikely"]
    assert (None if first is None else first["step"]) == next(iter(unlikely), None)
    said = (
        f"first left the rails at token {unlikely[0]},"
        if unlikely
        else "No token has a probability below 1 %"
    )
    assert said in shown
    greedy = run(
        "generate", PROMPT, "-n", "3", "--temperature", "0", GLASSLOOP_STORE=str(place / "greedy.db")
    )
    assert greedy.returncode == 0
    assert (
        "No token won by luck"
        in run("runs", "worst", "last", GLASSLOOP_STORE=str(place / "greedy.db")).stdout
    )


def test_a_csv_file_has_a_row_for_each_token(store, place):
    import csv

    path = place / "a.csv"
    done = run("runs", "export", str(place / "a.glass"), str(path), GLASSLOOP_STORE=store)
    assert done.returncode == 0 and "1 run" in done.stdout
    saved = Run.load(place / "a.glass")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["id"]) for row in rows] == saved.token_ids
    assert [row["piece"] for row in rows] == [token.piece for token in saved.tokens]
    assert [float(row["luck"]) for row in rows] == [token.luck for token in saved.tokens]
    assert {row["run"] for row in rows} == {saved.id} and [row["step"] for row in rows] == list("01234567")


def test_a_file_is_imported_once_and_replaces_nothing(store, place):
    path, other = str(place / "a.glass"), str(place / "imported.db")
    done = run("runs", "import", path, GLASSLOOP_STORE=other)
    assert (done.returncode, done.stdout) == (0, f"{path}: 1 run imported, 0 there already\n")
    saved = Run.load(path)
    assert Store(other).get("last").text == saved.text and Store(other).is_from_server(saved.id)
    changed = Run(**{**vars(saved), "samples": [], "children": [], "tail": " and more"})
    changed.save(place / "changed.glass")
    done = run("runs", "import", str(place / "changed.glass"), "--json", GLASSLOOP_STORE=store)
    assert done.returncode == 2 and f"run {saved.id} of " in done.stderr and "rm" in done.stderr
    assert Store(store).get(saved.id).text == saved.text
    again = run("runs", "import", path, "--json", GLASSLOOP_STORE=store)
    assert json.loads(again.stdout) == {"path": path, "runs": [saved.id], "imported": 0}
    assert not Store(store).is_from_server(saved.id)


def test_compare_says_where_ways_part(store):
    ways = ["--with", "greedy", "--with", "temperature=1,top_k=50", "--with", "beam=3"]
    done = run("compare", PROMPT, *ways, "-n", "8", "--seed", "5", "--json", GLASSLOOP_STORE=store)
    first, second, third = json.loads(done.stdout)
    assert first["parts"]["same"] and first["sampling"]["temperature"] == 0
    assert second["sampling"]["top_k"] == 50 and third["sampling"]["beam_width"] == 3
    assert {each["seed"] for each in (first, second, third)} == {5}
    assert first["logprob"] < 0 and 0 < first["distinct"]["1"] <= 1 and first["tokens_per_second"] > 0
    text = run("compare", PROMPT, *ways[:4], "-n", "8", "--seed", "5", "--no-store").stdout
    assert "── greedy ──\n" + first["text"] in text and "differs at" in text


def test_samples_are_printed_one_after_the_other(store):
    arguments = ("generate", "Hi", "--samples", "3", "-n", "4", "--seed", "1", "--no-store")
    done = run(*arguments)
    assert [line for line in done.stdout.splitlines() if line.startswith("──")] == [
        f"── {number} of 3 ──" for number in (1, 2, 3)
    ]
    plain = json.loads(
        run("generate", "Hi", "--samples", "3", "-n", "4", "--seed", "1", "--json", "--no-store").stdout
    )
    assert len(plain["samples"]) == 3 and plain["samples"][2]["text"] in done.stdout


# ── on a terminal ──────────────────────────────────────────────────────────────────────────────────────────


def test_show_in_a_pipe_says_that_it_needs_a_terminal_or_colours():
    arguments = ("generate", PROMPT, *FLAGS, "--no-store", "--show")
    note = "glassloop: --show surprise needs a terminal, or --color always in a pipe"
    assert note in run(*arguments, "surprise").stderr
    assert "glassloop: --show" not in run(*arguments, "surprise", "--color", "always").stderr
    assert "glassloop: --show" not in run(*arguments, "surprise", "--json").stderr
    assert "glassloop: --show json needs a terminal;" in run(*arguments, "json").stderr


def test_lines_for_a_terminal_are_broken_between_words(monkeypatch, capsys):
    from glassloop.cli.terminal import wrapped

    class Screen:
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "40")
    statistics = "smollm2-135m-instruct · 6 + 12 tokens · first after 0.02 s · ended by length"
    assert wrapped(statistics) == statistics  # in a pipe
    lines = wrapped(statistics, Screen()).splitlines()
    assert lines == ["smollm2-135m-instruct · 6 + 12 tokens ·", "first after 0.02 s · ended by length"]
    quotation = "they differ from token 2 on: ' here' against ' there'"
    assert wrapped(quotation, Screen()) == "they differ from token 2 on: ' here'\nagainst ' there'"


@pytest.mark.parametrize("show", ["surprise", "alternatives"])
def test_colours_on_a_terminal_and_nowhere_else(store, show):
    arguments = ("generate", PROMPT, *FLAGS, "--no-store", "--show", show)
    code, seen = on_terminal(*arguments)
    assert code == 0 and "\x1b[38;5;" in seen
    assert run(*arguments).stdout == run(*arguments[:-2]).stdout  # in a pipe, the text alone
    code, seen = on_terminal(*arguments, NO_COLOR="1")
    assert "\x1b[38;5;" not in seen and (show == "surprise" or "‹" in seen)


def test_colours_are_always_or_never_there_if_told_so(store):
    arguments = ("generate", PROMPT, *FLAGS, "--no-store", "--show", "surprise", "--color")
    plain = run(*arguments, "auto").stdout
    coloured = run(*arguments, "always", NO_COLOR="1").stdout
    assert "\x1b[38;5;" in coloured and _plain(coloured) == plain
    code, seen = on_terminal(*arguments, "never")
    assert code == 0 and "\x1b[38;5;" not in seen
    refused = run(*arguments, "sometimes")
    assert refused.returncode == 2 and "'sometimes'" in refused.stderr


def test_accepted_guesses_are_coloured(store):
    text = "one two three four five six seven eight nine ten " * 3
    code, seen = on_terminal(
        "generate", text, "-n", "12", "--temperature", "0", "--no-store", "--show", "drafts"
    )
    assert code == 0 and "\x1b[38;5;80m" in seen and "drafts accepted" in seen


def test_a_refused_guess_stands_before_what_was_chosen_and_in_the_explanation(place, store):
    record = Run.load(place / "a.glass")
    token = record.tokens[2]
    token.refused = Refusal(token.runner_up, " Lyon", "lookup", 1)
    assert Painter(Show.DRAFTS).painted(token) == f"‹✗ “ Lyon”›{token.text}"
    assert Painter(None).painted(token) == token.text
    record.save(place / "refused.glass")
    told = run("explain", str(place / "refused.glass"), "--step", "2").stdout
    assert "The drafter had guessed “" in told and f"the model chose “{token.piece}”." in told
    told = run("explain", str(place / "refused.glass"), "--step", "2", "--temperature", "0.3").stdout
    assert "drafter" not in told  # a what-if has no draft


def test_what_steers_a_terminal_is_shown_and_never_obeyed(store, place):
    """Escape sequences in a text that the model wrote, or that was forced."""
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
    path = str(place / "evil.db")
    schema = json.dumps({"const": "ok"})
    run("generate", f"a{evil}b", "--json-schema", schema, "-n", "8", GLASSLOOP_STORE=path)
    for arguments in (["runs", "list"], ["runs", "show", "last"], ["explain", "last", "--step", "1"]):
        code, seen = on_terminal(*arguments, GLASSLOOP_STORE=path, NO_COLOR="1")
        assert code == 0, seen
        for bad in ("\x1b]0;", "\x07", "\x1b[2J", "\u202e", "\x9b"):
            assert bad not in seen
        assert r"\x1b" in seen


@pytest.mark.parametrize("columns", [40, 80])
def test_tables_fit_the_terminal(store, columns):
    for arguments in (["explain", "last", "--step", "2"], ["runs", "show", "last"], ["runs", "list"]):
        code, seen = on_terminal(*arguments, columns=columns, GLASSLOOP_STORE=store, NO_COLOR="1")
        assert code == 0
        # The sentence of an explanation is no table; its words depend on how the token came.
        rows = [line for line in seen.split("\n") if "%" in line and not re.search("won|alone", line)]
        tables = rows + [line for line in seen.split("\n") if "─" in line]
        assert tables or arguments[1] == "list"
        assert all(len(_plain(line)) <= columns for line in tables)


def _plain(line: str) -> str:
    """The text without bold style."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)


def test_wide_characters_and_parts_of_them_are_shown_in_line(place):
    from rich.cells import cell_len

    path, text = str(place / "wide.db"), "日本 😀\té"
    code, seen = on_terminal("generate", "Say", "--choice", text, "-n", "40", GLASSLOOP_STORE=path)
    assert code == 0 and text in seen  # a character of several tokens comes when it is whole
    saved = json.loads(run("runs", "show", "last", "--json", GLASSLOOP_STORE=path).stdout)
    assert saved["text"] == text and len(saved["tokens"]) > len(text)
    for arguments in (["runs", "show", "last"], ["explain", "last", "--step", "1"]):
        code, seen = on_terminal(*arguments, GLASSLOOP_STORE=path, NO_COLOR="1")
        assert code == 0 and "<0x" in seen  # part of a character
        rows = [_plain(line) for line in seen.split("\n") if "%" in line and "won" not in line]
        assert rows and all(cell_len(row) <= 80 for row in rows)


def test_ctrl_c_keeps_what_had_come(place):
    import os
    import signal
    import subprocess

    from cli.terminal import GLASSLOOP

    path = str(place / "stopped.db")
    child = subprocess.Popen(
        [*GLASSLOOP, "generate", PROMPT, "--temperature", "0", "-n", "4000", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "GLASSLOOP_STORE": path},
    )
    assert child.stdout is not None and child.stdout.read(40).startswith(b" Paris")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=120)
    assert child.returncode == 130
    assert run("replay", "last", GLASSLOOP_STORE=path).returncode == 0
    (entry,) = json.loads(run("runs", "list", "--json", GLASSLOOP_STORE=path).stdout)
    assert entry["finish_reason"] == "cancelled" and entry["tokens"] > 0
