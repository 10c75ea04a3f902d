"""`--adapter` in the terminal."""

from __future__ import annotations

import json

import pytest
from cli.terminal import run
from engine.peft_adapter import write_adapter

from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = tmp_path_factory.mktemp("adapters")
    config = ModelFiles(fetch("smollm2-135m-instruct")).config
    write_adapter(made / "sea", config, 4, "q v down", 1)
    return made


def command(place, *words: str):
    return run(*words, GLASSLOOP_STORE=str(place / "runs.db"))


def test_a_run_with_an_adapter_is_replayed_and_explained_with_it(place):
    adapter = f"--adapter={place / 'sea'}"
    made = command(place, "generate", "The sea", "-n", "5", "--seed", "1", "--json", adapter)
    answer = json.loads(made.stdout)
    assert answer["sampling"]["adapter"] == "sea" and len(answer["adapters"]["sea"]) == 64
    assert command(place, "replay", "last", adapter).stdout.startswith("identical, 5 of 5 tokens")
    refused = command(place, "replay", "last")
    assert refused.returncode == 2 and "with the adapter sea" in refused.stderr
    assert (
        "has no adapter of this name: pass --adapter sea=PATH" in refused.stderr
        and len(refused.stderr.splitlines()) == 1
    )
    told = command(place, "explain", "last", "--step", "2", adapter)
    assert told.returncode == 0 and "What if" not in told.stdout, told.stderr


@pytest.mark.parametrize("given", ["nowhere", "sea=", "a:b=."])
def test_a_wrong_adapter_is_one_line(place, given):
    refused = command(place, "generate", "a", "--adapter", given)
    assert refused.returncode == 2 and "adapter" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
