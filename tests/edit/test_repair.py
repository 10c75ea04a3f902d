"""Repair: surprise from both sides is what its definition says, every accepted replacement pays, the budget
bounds the work, and a verifier is made content."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import pytest
from edit.test_infill import _bits
from edit.toy import LETTERS
from engine.random_runs import small_llm

from glassloop import GlassloopError, Sampling
from glassloop.edit.record import Edit
from glassloop.edit.repair import repair
from glassloop.edit.repair_by_surprise import measure
from glassloop.edit.spans import borders
from glassloop.edit.work import EditWork

TEXT = "the quick brown fox jumps over it"
DRAWN = Sampling(seed=1, temperature=1.0, allowed_token_ids=tuple(range(97, 123)))


def test_surprise_from_both_sides_is_the_share_among_the_rivals():
    llm, ids = small_llm(), list(TEXT.encode())
    work = EditWork(llm, 0)
    run = work.text(ids[:1], ids[1:])
    for found in measure(work, run, [3, 12], window=4, step=0):
        at = found.place.start + 1  # in the whole text
        rivals = [ids[at], *(each.ids[0] for each in found.proposals if each.refusal is None)]
        sums = [-_bits([*ids[:at], token, *ids[at + 1 : at + 5]], at) * log(2) for token in rivals]
        expected = (np.logaddexp.reduce(sums) - sums[0]) / log(2)
        assert found.both == pytest.approx(expected, abs=1e-3)
        assert found.left == pytest.approx(_bits(ids[: at + 1], at), abs=1e-3)


def test_every_accepted_replacement_pays_and_the_rest_of_the_text_stays():
    llm = small_llm()
    edit = repair(llm, TEXT, sampling=DRAWN, tokens=3, window=4, candidates=3, least_gain=2.0, budget=3000)
    assert edit.before == TEXT
    assert edit.accepted
    text = list(TEXT.encode())
    for each in edit.accepted:
        assert each.gain >= 2.0
        assert each.following_gain >= 0
        assert f"{each.following_gain:+.1f} bits on what follows" in each.line or not each.followed
    assert len(edit.text.encode()) == len(text)  # replacements are as long as what they replace
    assert edit.text[0] == TEXT[0]
    assert llm.replay(edit.run).identical
    assert list(edit.text.encode())[1:] == edit.run.token_ids


def test_the_budget_bounds_the_work():
    llm = small_llm()
    assert repair(llm, TEXT, sampling=DRAWN, budget=0).text == TEXT
    spent = repair(llm, TEXT, sampling=DRAWN, budget=300, window=4, tokens=3, candidates=2)
    more = repair(llm, TEXT, sampling=DRAWN, budget=3000, window=4, tokens=3, candidates=2)
    assert spent.sampled + spent.scored < more.sampled + more.scored
    one_round = len(TEXT) * 4 * (1 + 4) + 4 * 2 * (3 + 3 + 4 + 2 + 4) + 2 * len(TEXT)
    assert spent.sampled + spent.scored < 300 + one_round


@dataclass(frozen=True)
class Verdict:
    passed: bool
    score: float


@pytest.mark.parametrize("kind", ["bool", "score", "verdict"])
def test_a_verifier_is_made_content(kind):
    llm = small_llm()
    run = llm.generate(TEXT, Sampling(seed=4, max_tokens=8, allowed_token_ids=LETTERS))

    def check(text: str) -> object:
        score = min(text.count("a"), 5) / 5
        return {"bool": score >= 1, "score": score, "verdict": Verdict(score >= 1, score)}[kind]

    edit = repair(llm, run, check=check, candidates=2, budget=2000, sampling=Sampling(
        seed=3, temperature=20.0, max_tokens=8, allowed_token_ids=LETTERS))  # fmt: skip
    assert edit.text.count("a") >= 5 > run.text.count("a") and edit.accepted
    assert set(edit.text) <= set("abc")
    assert edit.before == run.text
    if kind == "score":
        scores = [each.score for each in edit.accepted]
        assert scores == sorted(scores)
    again = edit.replay(llm, check=check)
    assert again, str(again)
    with pytest.raises(GlassloopError, match="check is missing"):
        edit.replay(llm)
    passed = repair(llm, run, check=lambda text: True)
    assert (passed.text, passed.proposals, passed.sampled) == (run.text, [], 0)


def test_without_a_better_score_the_text_stays_as_it_was():
    llm = small_llm()
    run = llm.generate(TEXT, Sampling(seed=4, max_tokens=8, allowed_token_ids=LETTERS))
    drawn = Sampling(seed=3, temperature=20.0, max_tokens=8, allowed_token_ids=LETTERS)
    edit = repair(llm, run, check=lambda text: False, budget=200, sampling=drawn)
    assert len(edit.proposals) > 5 and len({each.text for each in edit.proposals}) > 1
    assert edit.text == run.text and edit.accepted == [] and edit.run is edit.draft
    # With a score that cannot reach 1, the first text with the highest one is kept.
    seen = [run.text]

    def score(text: str) -> float:
        seen.append(text)
        return min(text.count("a"), 5) / 8

    some = repair(llm, run, check=score, budget=400, sampling=drawn)
    best = max(map(score, list(seen)))
    assert score(some.text) == best > score(run.text)
    scores = [each.score for each in some.accepted]
    assert scores == sorted(scores)  # the text from which the next ones are drawn never gets worse
    assert some.accepted[-1].score == best


def test_a_repair_replays_bit_for_bit(tmp_path):
    llm = small_llm()
    edit = repair(llm, TEXT, prompt="now ", sampling=DRAWN, tokens=3, window=4, candidates=3, budget=1500)
    edit.save(tmp_path / "edit.json")
    verdict = Edit.load(tmp_path / "edit.json").replay(llm)
    assert verdict, str(verdict)
    assert verdict.proposals == len(edit.proposals) > 10


def test_spans_begin_and_end_where_characters_do():
    """The model's tokens are single bytes: most places of this text are inside a character."""
    llm, text = small_llm(), "xé e\u0301tude 👩\u200d👧!"
    work = EditWork(llm, 0)
    ids = list(text.encode())
    run = work.text(ids[:1], ids[1:])
    cuts = borders(work, run)
    whole = {len(part.encode()) - 1 for part in (
        "x", "xé", "xé ", "xé e\u0301", "xé e\u0301t", "xé e\u0301tu", "xé e\u0301tud", "xé e\u0301tude",
        "xé e\u0301tude ", "xé e\u0301tude 👩\u200d👧", text)}  # fmt: skip
    assert {at for at, cut in enumerate(cuts) if cut} == whole
    edit = repair(llm, text, sampling=Sampling(seed=2, temperature=2.0), tokens=2, candidates=4, budget=2000)
    assert "�" not in edit.text
    assert edit.text.count("👩\u200d👧") + edit.text.count("👩") in (0, 1, 2)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"budget": -1}, "budget"),
        ({"candidates": 0}, "candidates"),
        ({"least_gain": float("inf")}, "least_gain"),
        ({"check": 5}, "check"),
        ({"check": lambda text: "yes"}, "check"),
        ({"prompt": [10_000]}, "prompt[0]"),
        ({"spans": 0}, "spans"),
        ({"sampling": Sampling(n=3)}, "n"),
    ],
)
def test_a_bad_argument_is_named(options, field):
    with pytest.raises(GlassloopError) as raised:
        repair(small_llm(), TEXT, **options)
    assert raised.value.field == field
    with pytest.raises(GlassloopError):
        repair(small_llm(), "")
