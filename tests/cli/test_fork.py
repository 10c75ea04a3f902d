"""`glassloop fork` and `glassloop diff`: real processes, with runs of a store and of a file."""

from __future__ import annotations

import json

import pytest
from cli.terminal import run

from glassloop import Run, Store

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fork")


@pytest.fixture(scope="module")
def store(place):
    """A store with one run, which is also in a file."""
    path = str(place / "runs.db")
    flags = ("--seed", "3", "-n", "8", "--temperature", "0.8", "--ignore-eos")
    done = run("generate", PROMPT, *flags, "--trace", str(place / "a.glass"), GLASSLOOP_STORE=path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def first(store, place):
    return Run.load(place / "a.glass")


def test_a_fork_has_another_token_is_printed_whole_and_kept(store, first):
    done = run("fork", first.id, "--at", "2", "--token", '" Lyon"', GLASSLOOP_STORE=store)
    assert done.returncode == 0, done.stderr
    made = Store(store).get("last")
    assert made.parent == first.id and made.fork_at == 2 and made.reason == "forced"
    assert made.token_ids[:2] == first.token_ids[:2] and made.tokens[2].piece == " Lyon"
    assert done.stdout == f"{made.text}\n" and f"run {made.id[:8]}" in done.stderr
    assert made.seed == first.seed and made.sampling.temperature == 0.8  # of the run


def test_forks_with_new_luck_differ_and_other_options_keep_the_luck(store, first):
    salts = []
    for _ in range(2):
        assert run("fork", first.id, "--at", "1", GLASSLOOP_STORE=store).returncode == 0
        salts.append(Store(store).get("last").salt)
    assert len({first.salt, *salts}) == 3
    asked = ("--at", "-1", "--temperature", "0", "-n", "9", "--json", "--no-store")
    made = json.loads(run("fork", first.id, *asked, GLASSLOOP_STORE=store).stdout)
    assert made["fork_at"] == 7 and made["salt"] == first.salt and made["sampling"]["temperature"] == 0
    assert len(made["tokens"]) == 9


def test_a_text_replaces_a_token_by_several(place, first):
    word = next(token.piece for token in first.tokens if token.piece.strip().isalpha())
    asked = ("--at", word.strip(), "--text", " Llanfairpwllgwyngyll, of all places", "-n", "20")
    made = json.loads(run("fork", str(place / "a.glass"), *asked, "--json", "--no-store").stdout)
    assert made["reason"] == "edited" and " Llanfairpwllgwyngyll, of all places" in made["text"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--at", "99"], "--at is 99; a token from 0 to 8 is expected"),
        (["--at", "-99"], "--at is -99; a token from 0 to 8 is expected"),
        (["--at", "zebra"], "--at is 'zebra', but no token of the run has this text; the number or the text"),
        (["--at", "1", "--token", "a", "--text", "b"], "--token and --text are both given"),
        (["--at", "1", "--token", "Llanfairpwllgwyngyll"], "--text takes any text"),
        (["--at", "1", "--temperature", "900"], "temperature is 900.0"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(store, first, arguments, said):
    done = run("fork", first.id, *arguments, GLASSLOOP_STORE=store)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


# ── diff ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_diff_says_where_two_runs_differ_and_why(store, place, first):
    done = run("fork", first.id, "--at", "2", "--token", '" Rome"', GLASSLOOP_STORE=store)
    other = Store(store).get("last")
    done = run("diff", str(place / "a.glass"), other.id[:8], GLASSLOOP_STORE=store)
    assert done.returncode == 0, done.stderr
    assert (
        f"they differ from token 2 on: {first.tokens[2].piece!r} against ' Rome', because of" in done.stdout
    )
    assert f"── {first.id[:8]} ──\n{first.text}" in done.stdout and other.text in done.stdout
    same = json.loads(run("diff", first.id, str(place / "a.glass"), "--json", GLASSLOOP_STORE=store).stdout)
    assert same["same"] and same["at"] is None and same["first_run"] == same["second_run"] == first.id


def test_diff_tries_which_option_is_the_reason(store, first):
    flags = ("--seed", "3", "-n", "8", "--temperature", "0", "--top-k", "40", "--ignore-eos")
    assert run("generate", PROMPT, *flags, GLASSLOOP_STORE=store).returncode == 0
    told = json.loads(run("diff", first.id, "last", "--json", GLASSLOOP_STORE=store).stdout)
    assert not told["same"] and told["first_text"] == first.text
    decisive = {cause["what"]: cause["decisive"] for cause in told["causes"]}
    assert decisive == {"temperature": True, "top_k": False}


def test_diff_of_runs_whose_model_is_not_here_names_all_differences(tmp_path, first):
    paths = []
    for seed, second in ((1, 5), (2, 6)):
        made = Run(**{**vars(first), "samples": [], "children": [], "seed": seed})
        made.id, made.model, made.tokens = f"{seed:016x}", "nobody/has-this", first.tokens[:second]
        paths.append(str(tmp_path / f"{seed}.glass"))
        made.save(paths[-1])
    done = run("diff", *paths)
    assert done.returncode == 0 and "what differs is seed (1 against 2)" in done.stdout
    assert "--model NAME" in done.stderr and done.stderr.count("\n") == 1
    done = run("diff", *paths, "--model", "no-such-model")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
