"""Scenarios that cross everything with everything: each run is what it is alone, and every law holds.
`make fuzz` plays more of them, for as long as is wanted.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from crossings.draw import QUESTIONS, Scenario, check_words, draw
from crossings.guard import Failure, guarded
from crossings.laws import Judge
from crossings.options import GENERATORS
from crossings.questions import ASK, EDITS
from crossings.run import write_small
from crossings.shrink import shrink
from engine.small import PARTS

from glassloop.decode.sampling import Sampling

# GLASSLOOP_SCENARIOS=5000 plays more here, as it does in engine/test_one_answer.py, whose number is 120.
_TIMES = max(1, int(os.environ.get("GLASSLOOP_SCENARIOS", "120")) // 120)
AUDITED = 60  # the first scenarios, which one test looks at as a whole
GROUP = 10
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))  # small scenarios that broke a law once
_GROUPS = 18 * _TIMES


def _played(seed: int) -> Judge:
    """Plays the scenario of a seed. A failure is made small and written to a file."""
    scenario = draw(seed)
    found = guarded(scenario)
    if isinstance(found, Failure):
        path = write_small(scenario, found)
        pytest.fail(f"{found.line}\n{found.stack}\nagain: PYTHONPATH=tests python -m crossings.run {path}")
    return found


# What happens in the scenarios of the audit, and how often at least.
WANTED = {
    "accepted drafts": 30,
    "adapters": 40,
    "adapters loaded under way": 8,
    "beams": 15,
    "cached prefixes": 60,
    "cancelled": 40,
    "chats": 15,
    "continued": 40,
    "continued to the end": 25,
    "diffused": 8,
    "end tokens": 15,
    "errors of stages": 1,
    "evicted pages": 200,
    "forks": 40,
    "forks of running runs": 12,
    "forks that a what-if foretold": 3,
    "forks that are continued": 6,
    "forks with the chosen token": 1,
    "grammars": 15,
    "listeners that raised": 4,
    "own stages": 15,
    "paused": 3,
    "preempted": 3,
    "refusals": 15,
    "refused drafts": 30,
    "repetitions": 4,
    "revised": 8,
    "revised and continued": 2,
    "samples": 60,
    "scored prompts": 20,
    "stop strings": 8,
    "windows": 12,
    "experts": 4,
    "recurrent": 12,
    "states given back": 10,
    **dict.fromkeys(PARTS, 2),
    **dict.fromkeys(["ops native", "ops ahead", "ops reference"], 2),
    **dict.fromkeys([f"draft {kind}" for kind in ("off", "lookup", "model", "drafter")], 2),
    **dict.fromkeys([f"asked {kind}" for kind in QUESTIONS], 1),
}


@pytest.mark.parametrize("group", range(_GROUPS))
def test_every_law_holds_whatever_crosses(group):
    for seed in range(AUDITED + group * GROUP, AUDITED + (group + 1) * GROUP):
        _played(seed)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_scenario_that_broke_a_law_once_does_not_again(path):
    found = guarded(json.loads(path.read_text()))
    assert not isinstance(found, Failure), found.line


def test_the_scenarios_have_what_they_are_about():
    """They are worth something only if it happens in them."""
    happened: Counter[str] = Counter()
    for seed in range(AUDITED):
        happened += _played(seed).counts
    missing = {name: happened[name] for name, least in WANTED.items() if happened[name] < least}
    assert not missing, missing


def test_every_option_is_drawn():
    assert {field.name for field in fields(Sampling)} == GENERATORS.keys()
    drawn = Counter(
        name for seed in range(200) for op in draw(seed)["requests"] for name in op.get("options", {})
    )
    assert not [name for name in GENERATORS if drawn[name] < 2]


def test_every_question_can_be_asked():
    assert {*ASK, *EDITS} == QUESTIONS.keys()


def test_a_scenario_is_plain_data_that_its_seed_decides():
    for seed in range(20):
        assert json.loads(json.dumps(draw(seed))) == draw(seed) == draw(seed)
    with pytest.raises(SystemExit, match="--without: 'nonsense' is unknown"):
        check_words(["nonsense"])
    without = draw(3, ["window", "questions", "seed"])
    assert without["model"]["window"] is None and without["questions"] == []
    assert all("seed" not in op.get("options", {}) for op in without["requests"])


def test_a_failure_is_made_small():
    """Only what the failure needs is left: here, a request with a stop string, and little room."""

    def fails(scenario: Scenario) -> bool:
        asked = any("stop" in op.get("options", {}) for op in scenario["requests"])
        return asked and "pages" in scenario["settings"]

    seed = next(seed for seed in range(100) if fails(draw(seed)))
    small = shrink(draw(seed), fails)
    assert small["settings"].keys() == {"pages"} and small["questions"] == []
    (request,) = small["requests"]
    assert request["options"].keys() - {"seed", "max_tokens"} == {"stop"}
