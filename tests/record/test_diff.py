"""Where two runs differ and why; rewinding; the tree of a run."""

from __future__ import annotations

import json

import pytest
from engine.random_runs import PROMPT, small_llm

from glassloop import Run, Sampling, TraceError, diff

OPTIONS = {"seed": 5, "max_tokens": 25, "ignore_eos": True}


def make(prompt=PROMPT, **options) -> Run:
    return small_llm().generate(prompt, Sampling(**{**OPTIONS, **options}))


def causes(found) -> dict[str, bool | None]:
    return {cause.what: cause.decisive for cause in found.causes}


def test_runs_that_are_the_same():
    found = diff(make(), make(logprobs=9))
    assert found.same and found.at is None and not found.causes and str(found) == "the same 25 tokens"
    assert "although these differ: top_k (0 against 257)" in str(diff(make(), make(top_k=257)))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"seed": 6}, "seed"),
        ({"temperature": 0.2}, "temperature"),
        ({"logit_bias": {101: 50.0}}, "logit_bias"),
    ],
)
def test_one_change_is_the_cause(options, what):
    first, second = make(), make(**options)
    found = diff(first, second)
    assert found.at is not None and first.token_ids[: found.at] == second.token_ids[: found.at]
    assert first.token_ids[found.at] != second.token_ids[found.at]
    assert causes(found) == {what: True} and f"because of {what}" in str(found)
    json.dumps(found.to_dict())


def test_of_two_changes_the_one_that_did_it_is_named():
    found = diff(make(), make(logit_bias={101: 50.0}, top_k=250))
    assert causes(found) == {"top_k": False, "logit_bias": True} and "because of logit_bias (" in str(found)


def test_prompts_forced_tokens_and_luck_of_another_branch():
    run = make()
    assert causes(diff(run, make(PROMPT[1:]))) == {"prompt": None}
    fork = run.fork(3, token=(run.token_ids[3] + 1) % 256)
    found = diff(run, fork)
    assert found.at == 3 and causes(found) == {"forced": True}
    assert "because of a token that was given by the caller" in str(found)
    again = run.fork(0)
    assert causes(diff(run, again)) == {"salt": None} and "another branch of luck" in str(diff(run, again))


def test_one_that_ended_earlier():
    found = diff(make(), make(max_tokens=7))
    assert found.at == 7 and found.second is None and "against the end (length)" in str(found)
    assert causes(found) == {"max_tokens": None}


def test_models_and_op_sets():
    other = small_llm(seed=1).generate(PROMPT, Sampling(**OPTIONS))
    assert causes(diff(make(), other)) == {"model": True}
    other = small_llm("reference").generate(PROMPT, Sampling(**OPTIONS))
    assert "ops" in causes(diff(make(), other))


def test_rewinding_keeps_everything():
    run = make()
    before = run.to_dict()
    back = run.rewind(4)
    assert run.to_dict() == before and run.children == [back]
    assert back.token_ids == run.token_ids[:4] and back.id != run.id
    assert b"".join(token.bytes for token in back.tokens).decode("utf-8", "replace") == back.text
    assert (back.parent, back.fork_at, back.reason) == (run.id, 4, "rewound")
    assert back.replay().identical
    with pytest.raises(TraceError, match="at is 26; a number of tokens from 0 to 25"):
        run.rewind(26)


def test_a_family_is_drawn():
    run = make()
    fork = run.fork(3, token=101)
    fork.fork(5)
    run.rewind(2)
    lines = str(run.tree()).split("\n")
    assert len(lines) == len(run.tree()) == 4
    assert lines[0].startswith(f"● {run.id[:8]}") and lines[1].startswith("├─ at 3 forced: ")
    assert lines[2].startswith("│  └─ at 5 sampled: ") and lines[3].startswith("└─ at 2 rewound: ")
    assert [each.id for each in fork.tree()] == [each.id for each in run.tree()]
    plain = json.loads(json.dumps(run.tree().to_dict()))
    assert plain[0]["children"][0]["children"][0]["fork_at"] == 5


def test_a_difference_of_stages_is_said_in_words():
    from glassloop import DEFAULT_ORDER
    from glassloop.record.diff import Cause, _listed, _stages

    less = tuple(name for name in DEFAULT_ORDER if name != "xtc")
    said = {
        _stages(Cause("stages", None, (*DEFAULT_ORDER, "fresh"))): "stage fresh was added",
        _stages(Cause("stages", None, ("default", "fresh"))): "stage fresh was added",
        _stages(Cause("stages", (*less, "a", "b"), None)): "stage xtc was added and stages a, b were removed",
        _stages(Cause("stages", None, DEFAULT_ORDER[::-1])): "the stages are in another order",
    }
    assert all(found == expected for found, expected in said.items())
    assert _listed([Cause("stages", None, less)]) == "the stages (stage xtc was removed)"
