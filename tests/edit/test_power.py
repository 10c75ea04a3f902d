"""Power sampling has the distribution p^alpha: detailed balance over all texts of a toy, and chi-square."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from edit.toy import LETTERS, chi_square, given, texts
from engine.random_runs import small_llm
from engine.small import EOS, naive

from glassloop import GlassloopError, Sampling
from glassloop.edit.acceptance import ended, logprob, suffix_ratio
from glassloop.edit.power import sharpen, sharpen_all
from glassloop.edit.record import Edit
from glassloop.errors import TraceError

PROMPT = list(b"the quick brown")
DRAWN = Sampling(
    temperature=0.7, allowed_token_ids=(*LETTERS, EOS), max_tokens=3, seed=3, repetition_penalty=1.2
)


def _target(alpha: float, drawn: Sampling = DRAWN) -> tuple[list[tuple[int, ...]], list, np.ndarray]:
    known = texts(3)
    runs = [given(small_llm(), PROMPT, each, drawn) for each in known]
    logs = alpha * np.array([logprob(ended(run)) for run in runs])
    weights = np.exp(logs - logs.max())
    return known, runs, weights / weights.sum()


def _transitions(known: list[tuple[int, ...]], runs: list, alpha: float) -> np.ndarray:
    """The probability of each step of the chain, from what is drawn and how it is accepted."""
    made = np.zeros((len(known), len(known)))
    for one, old in enumerate(runs):
        for other, new in enumerate(runs):
            for at in range(len(ended(old))):
                if one != other and known[one][:at] == known[other][:at] and len(ended(new)) > at:
                    drawn = exp(sum(token.logprob for token in ended(new)[at:]))
                    accepted = exp(min(0.0, suffix_ratio(old, new, at, alpha)))
                    made[one, other] += drawn * accepted / len(ended(old))
        made[one, one] = 1 - made[one].sum()
    return made


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.5])
def test_each_step_and_its_reverse_are_equally_likely(alpha):
    """Detailed balance: so p^alpha is what the chain keeps, with stages that change the draw, and with texts
    of different lengths."""
    known, runs, target = _target(alpha)
    steps = _transitions(known, runs, alpha)
    flow = target[:, None] * steps
    assert np.all(steps >= -1e-12)
    np.testing.assert_allclose(flow, flow.T, atol=1e-12)
    np.testing.assert_allclose(target @ steps, target, atol=1e-12)


def test_texts_come_with_the_probabilities_of_p_to_the_alpha():
    """Chains that begin with the model's own draws end with p^alpha; the same draws are far from it."""
    alpha, count, drawn = 0.15, 300, replace(DRAWN, temperature=4.0)
    known, _, target = _target(alpha, drawn)
    places = {each: place for place, each in enumerate(known)}
    edits = sharpen_all(small_llm(), [PROMPT] * count, alpha, steps=10, sampling=drawn)

    def deviations(found: list[list[int]]) -> float:
        seen = Counter(places[tuple(ids)] for ids in found)
        return chi_square([seen[place] for place in range(len(known))], target * count)

    assert deviations([edit.token_ids for edit in edits]) < 4
    assert deviations([edit.draft.token_ids for edit in edits]) > 6


def test_an_edit_replays_bit_for_bit(tmp_path):
    edit = sharpen(small_llm(), PROMPT, 3.0, steps=20, block=4, sampling=Sampling(max_tokens=12, seed=5))
    assert len(edit.accepted) > 1
    edit.save(tmp_path / "a.json")
    read = Edit.load(tmp_path / "a.json")
    assert read.to_dict() | {"draft": None, "run": None} == edit.to_dict() | {
        "draft": None,
        "run": None,
        "proposals": [each | {"drawn": None, "run": None} for each in edit.to_dict()["proposals"]],
    }
    verdict = read.replay(small_llm())
    assert verdict
    assert str(verdict) == f"identical, {len(edit.proposals)} of {len(edit.proposals)} proposals"
    read.proposals[3].own_bits += 1e-9
    verdict = read.replay(small_llm())
    assert not verdict
    assert "first differs at proposal 3: its own_bits" in str(verdict)


@pytest.mark.parametrize(
    "value", [10**400, float("nan"), float("inf"), True, "1"], ids=lambda it: str(it)[:9]
)
def test_a_record_with_anything_but_finite_numbers_is_refused(value):
    edit = sharpen(small_llm(), PROMPT, 3.0, steps=2, sampling=Sampling(max_tokens=4, seed=5)).to_dict()
    assert Edit.from_dict(edit).created == edit["created"]
    with pytest.raises(TraceError, match=r"^created .* a number is expected$"):
        Edit.from_dict(edit | {"created": value})


def test_the_result_is_a_run_of_the_tree_like_any_other():
    """Every proposal is a branch; the result equals what the naive loop makes with its luck, and replays."""
    llm = small_llm()
    edit = sharpen(llm, PROMPT, 2.0, steps=8, sampling=Sampling(max_tokens=10, seed=11, temperature=0.8))
    tree = list(edit.run.tree())
    assert {each.run.id for each in edit.proposals} <= {run.id for run in tree}
    for proposal in edit.proposals:
        assert llm.replay(proposal.run).identical
    first = naive(llm.transformer, replace(edit.draft))
    assert first.tokens == edit.draft.tokens


def test_other_chains_beside_it_change_nothing():
    llm = small_llm()
    options = Sampling(max_tokens=8, seed=21, temperature=0.9)
    alone = sharpen(llm, PROMPT, 2.0, steps=6, sampling=options)
    beside = sharpen_all(llm, [PROMPT, "another", PROMPT], 2.0, steps=6, sampling=options)
    assert beside[0].token_ids == alone.token_ids
    assert [each.own_bits for each in beside[0].proposals] == [each.own_bits for each in alone.proposals]
    assert beside[2].seed != alone.seed


def test_decisions_are_lines_with_their_draw():
    edit = sharpen(small_llm(), PROMPT, 2.0, steps=6, sampling=Sampling(max_tokens=8, seed=2))
    for each, line in zip(edit.proposals, edit.lines, strict=True):
        assert each.accepted == (each.coin < each.threshold)
        assert f"{each.own_gain:+.1f} bits on itself" in line
        lengths = log(each.end + 1) - log(each.start + len(each.ids) + 1)
        if edit.draft.finish_reason == "length" and all(run.end is None for run in edit.run.tree()):
            lengths = 0.0  # all texts are full
        # The draw is the model's own (temperature 1), so of the ratio one power of two is left.
        assert each.threshold == pytest.approx(min(1.0, exp(each.own_gain * log(2) + lengths)))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"alpha": 0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"steps": -1}, "steps"),
        ({"steps": 1 << 40}, "steps"),
        ({"block": 0}, "block"),
        ({"sampling": Sampling(temperature=0)}, "temperature"),
        ({"sampling": Sampling(n=2)}, "n"),
        ({"sampling": Sampling(revise=2)}, "revise"),
    ],
)
def test_a_bad_argument_is_named(options, field):
    with pytest.raises(GlassloopError) as raised:
        sharpen(small_llm(), PROMPT, **options)
    assert raised.value.field == field
