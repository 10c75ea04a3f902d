"""Tokens have one numbering, from 0, wherever the terminal, Python and the records name them."""

from __future__ import annotations

import csv
import json
import re

import pytest
from cli.terminal import run

from glassloop.record.diff import diff
from glassloop.record.store.store import Store

AT = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return str(tmp_path_factory.mktemp("numbers") / "runs.db")


@pytest.fixture(scope="module")
def made(store):
    asked = ("generate", "The best thing about school is", "-n", "8", "--seed", "3", "--temperature", "1")
    done = run(*asked, GLASSLOOP_STORE=store)
    assert done.returncode == 0, done.stderr
    return Store(store).get("last")


def row(text: str, number: int) -> str:
    """Returns the row of a table that begins with this number."""
    return next(line for line in text.splitlines() if re.match(rf" *{number}  ", line))


def test_step_3_is_token_3_in_every_command(store, made, tmp_path):
    piece = made.tokens[AT].piece
    environment = {"GLASSLOOP_STORE": store}
    told = run("explain", made.id, "--step", str(AT), **environment).stdout
    assert told.splitlines()[0].endswith(f"“{piece}”")
    assert told.splitlines()[1].startswith(f"token {AT} of run {made.id[:8]}")
    by_text = run("explain", made.id, "--step", piece, "--json", **environment).stdout
    assert json.loads(by_text)["step"] == made.token_ids.index(made.tokens[AT].id)

    shown = row(run("runs", "show", made.id, **environment).stdout, AT)
    assert f"“{piece}”" in shown and f"  {made.tokens[AT].entropy:.2f} nats  " in shown
    worst = run("runs", "worst", made.id, "--count", "8", **environment).stdout
    assert f"“{piece}”" in row(worst, AT)
    plain = json.loads(run("runs", "worst", made.id, "--count", "8", "--json", **environment).stdout)
    assert [each["piece"] for each in plain["surprising"] if each["step"] == AT] == [piece]

    table = tmp_path / "run.csv"
    assert run("runs", "export", made.id, str(table), **environment).returncode == 0
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[AT]["step"] == str(AT) and rows[AT]["piece"] == piece
    assert made.to_records()[AT]["step"] == AT and made.to_records()[AT]["piece"] == piece


def test_a_fork_at_3_keeps_three_tokens_and_differs_at_token_3(store, made):
    environment = {"GLASSLOOP_STORE": store}
    done = run("fork", made.id, "--at", str(AT), "--token", '" the"', **environment)
    assert done.returncode == 0, done.stderr
    fork = Store(store).get("last")
    assert fork.fork_at == AT and fork.token_ids[:AT] == made.token_ids[:AT]
    assert fork.tokens[AT].piece == " the" and fork.tokens[AT].source == "forced"

    found = diff(made, fork)
    said = f"they differ from token {AT} on: {made.tokens[AT].piece!r} against ' the'"
    assert found.at == AT and said in found.sentence
    assert said in run("diff", made.id, fork.id, **environment).stdout
    assert f"at {AT} forced: {fork.id[:8]}" in run("runs", "show", made.id, **environment).stdout


def test_compare_and_replay_count_from_0(store, made):
    environment = {"GLASSLOOP_STORE": store}
    ways = ("--with", "seed=3", "--with", "seed=3,top_k=1", "--temperature", "1", "-n", "8")
    asked = ("compare", "The best thing about school is", *ways)
    first, second = json.loads(run(*asked, "--json", **environment).stdout)
    one, other = Store(store).get(first["run"]), Store(store).get(second["run"])
    at = second["parts"]["at"]
    assert one.token_ids == made.token_ids and one.token_ids[:at] == other.token_ids[:at]
    assert second["parts"]["first"] == one.tokens[at].piece != other.tokens[at].piece
    assert f"from token {at} on" in run(*asked, "--no-store", **environment).stdout
    assert "identical, 5 of 5 tokens" in run("replay", made.id, "--from", str(AT), **environment).stdout
