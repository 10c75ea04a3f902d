"""Our own adapter answers the protocol, in a process of its own, on the default model."""

from __future__ import annotations

import numpy as np
import pytest

from bench.catalog import OURS
from bench.environments import Absent
from bench.process import start
from glassloop.model.registry import DEFAULT_MODEL, fetch

IDS = list(range(100, 140))


@pytest.fixture(scope="module")
def engine():
    engine, said = start(OURS, str(fetch(DEFAULT_MODEL)), 1)
    assert said["version"] and said["variant"] == {}
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "question",
    [
        {"do": "prefill", "ids": IDS},
        {"do": "decode", "prompts": [IDS[:4], IDS[4:8]], "steps": 2},
        {"do": "first_token", "prefix": IDS, "rest": IDS[:3], "cached": True},
        {"do": "first_token", "prefix": IDS, "rest": IDS[:3], "cached": False},
    ],
    ids=lambda question: question["do"],
)
def test_every_workload_has_its_seconds(engine, question):
    assert engine.ask(**question)["seconds"] > 0


def test_memory_is_more_than_the_weights(engine):
    assert engine.ask(do="one_user", ids=IDS, steps=2)["peak_bytes"] > 90e6


def test_logits_go_to_the_file_and_do_not_depend_on_the_pieces(engine, tmp_path):
    def logits(ids: list[int], first: int) -> np.ndarray:
        file = tmp_path / "logits"
        assert engine.ask(do="logits", ids=ids, first=first, file=str(file))["rows"] == len(ids)
        return np.fromfile(file, np.float32).reshape(len(ids), -1)

    whole = logits(IDS, 0)
    pieces = np.concatenate([logits(IDS[:25], 0), logits(IDS[25:], 25)])
    assert np.abs(whole - pieces).max() < 1e-2


def test_a_question_that_fails_is_a_reason_and_the_next_is_answered(engine):
    with pytest.raises(Absent, match="'dance'"):
        engine.ask(do="dance")
    with pytest.raises(Absent, match="TypeError"):
        engine.ask(do="prefill", idds=IDS)
    assert engine.alive and engine.ask(do="prefill", ids=IDS)["seconds"] > 0


def test_a_process_that_dies_is_a_reason():
    engine, _ = start(OURS, str(fetch(DEFAULT_MODEL)), 1)
    engine._process.kill()
    with pytest.raises(Absent, match="died: Killed"):
        engine.ask(do="prefill", ids=IDS)
