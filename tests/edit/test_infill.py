"""Infill and rewrite: what is taken is the best on both sides, a chain has the distribution of the hole given
both sides, constraints hold inside a span, and no character is cut."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from edit.toy import LETTERS, chi_square, texts
from engine.random_runs import small_llm
from engine.small import CONTEXT, model
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import GlassloopError, Sampling
from glassloop.edit.characters import is_border
from glassloop.edit.infill import infill, rewrite
from glassloop.edit.record import Edit
from glassloop.engine.deadline import TimedOut
from glassloop.model.cache import Branches

BEFORE, AFTER = "the quick brown", "fox jumps"


def _bits(ids: list[int], first: int) -> float:
    """The surprise of the tokens from `first` on, by the definition: without cache, batch or engine."""
    logits = Branches(model(), CONTEXT + 32).forward([(0, 0, ids)], every_logit=True).astype(np.float64)
    total = 0.0
    for place in range(first, len(ids)):
        row = logits[place - 1]
        total -= (row[ids[place]] - np.logaddexp.reduce(row)) / log(2)
    return total


def test_a_loop_does_not_make_a_proposal_shorter_than_its_span():
    looping = Sampling(seed=1, allowed_token_ids=[97], stop_on_repetition=2)
    edit = infill(small_llm(), BEFORE, AFTER, 6, candidates=2, sampling=looping)
    assert {each.text for each in edit.proposals} == {"aaaaaa"}


def test_the_best_on_both_sides_is_taken():
    edit = infill(
        small_llm(), BEFORE, AFTER, 4, candidates=6, sampling=Sampling(seed=1, allowed_token_ids=LETTERS)
    )
    before, after = list(BEFORE.encode()), list(AFTER.encode())
    for each in edit.proposals:
        whole = [*before, *each.ids, *after]
        assert each.own_bits == pytest.approx(_bits([*before, *each.ids], len(before)), abs=1e-3)
        assert each.following_bits == pytest.approx(_bits(whole, len(before) + 4), abs=1e-3)
    (best,) = edit.accepted
    assert best.bits == min(each.bits for each in edit.proposals)
    assert edit.text == BEFORE + best.text + AFTER
    assert edit.text[slice(*edit.span)] == best.text
    assert edit.run.token_ids == [*best.ids, *after]
    assert len({(*each.ids,) for each in edit.proposals}) == len(edit.proposals)


def test_only_the_window_counts_and_the_rest_is_scored_for_the_winner_alone():
    llm, options = small_llm(), Sampling(seed=4, allowed_token_ids=LETTERS)
    edit = infill(llm, BEFORE, AFTER, 3, candidates=5, window=2, sampling=options)
    assert all(each.followed == 2 for each in edit.proposals)
    assert edit.run.token_ids[3:] == list(AFTER.encode())
    assert edit.scored == len(edit.proposals) * (3 + 2) + len(AFTER) - 2
    assert llm.replay(edit.run).identical


def test_a_chain_has_the_distribution_of_the_hole_given_both_sides():
    """The draws are the model's, at another temperature; the chain corrects both that and the right side."""
    llm, known = small_llm(), texts(2, with_end=False)
    after = "fo"
    ids, behind = list(BEFORE.encode()), list(after.encode())
    logs = np.array([-_bits([*ids, *each, *behind], len(ids)) * log(2) for each in known])
    target = np.exp(logs - logs.max())
    target /= target.sum()
    found = []
    for seed in range(60):
        options = Sampling(seed=seed, temperature=6.0, allowed_token_ids=LETTERS)
        edit = infill(
            llm, BEFORE, after, 2, candidates=16, method="metropolis", window=None, sampling=options
        )
        found.append((*edit.accepted[-1].ids,))
    counts = [found.count(each) for each in known]
    assert chi_square(counts, target * len(found)) < 4
    assert target.max() < 0.95  # the toy is no foregone conclusion


@pytest.mark.parametrize("method", ["rerank", "metropolis"])
def test_an_edit_replays_bit_for_bit(method, tmp_path):
    llm, options = small_llm(), Sampling(seed=9, temperature=1.5, allowed_token_ids=tuple(range(97, 123)))
    edits = [
        infill(llm, BEFORE, AFTER, 3, candidates=4, method=method, sampling=options),
        rewrite(llm, BEFORE + AFTER, [(4, 9), (17, 20)], options, candidates=4, method=method, window=5),
    ]
    for edit in edits:
        edit.save(tmp_path / "edit.json")
        verdict = Edit.load(tmp_path / "edit.json").replay(llm)
        assert verdict, str(verdict)
        assert verdict.edit.text == edit.text


def test_a_rewrite_changes_its_spans_and_nothing_else():
    llm, text = small_llm(), BEFORE + AFTER
    options = Sampling(seed=3, allowed_token_ids=LETTERS)
    edit = rewrite(llm, text, [(4, 9), (16, 18)], options, candidates=5, window=4)
    assert (edit.text[:4], edit.text[9:16], edit.text[18:]) == (text[:4], text[9:16], text[18:])
    assert set(edit.text[4:9] + edit.text[16:18]) <= set("abc")
    assert len(edit.accepted) == 2
    assert {each.step for each in edit.proposals} == {0, 1}
    assert llm.replay(edit.run).identical
    assert list(edit.run.token_ids) == list(edit.text.encode()[4:])
    near = rewrite(llm, text, [(4, 9), (16, 18)], options, candidates=5, window=50)
    assert len(near.accepted) == 2  # one after the other


def test_spans_that_are_apart_do_not_affect_each_other():
    llm, text = small_llm(), BEFORE + AFTER
    options = Sampling(seed=3, allowed_token_ids=LETTERS)
    both = rewrite(llm, text, [(4, 9), (16, 18)], options, candidates=5, window=4)
    alone = rewrite(llm, text, [(4, 9)], options, candidates=5, window=4)
    assert [each.own_bits for each in both.proposals if each.step == 0] == [
        each.own_bits for each in alone.proposals
    ]


def test_a_draw_that_its_timeout_cut_short_is_an_error():
    with pytest.raises(TimedOut, match="timeout ended a draw after 1e-09 s"):
        infill(small_llm(), BEFORE, AFTER, 4, candidates=2, sampling=Sampling(seed=1, timeout=1e-9))


def test_a_constraint_holds_inside_the_span():
    llm, text = small_llm(), BEFORE + AFTER
    edit = rewrite(llm, text, (4, 9), Sampling(seed=5, regex="[xyz]{2,4}!"), tokens=6, candidates=4)
    inside = edit.text[slice(*edit.span)]
    assert inside.endswith("!")
    assert set(inside[:-1]) <= set("xyz")
    assert edit.text == text[:4] + inside + text[9:]
    words = rewrite(llm, text, (4, 9), Sampling(seed=5, choice=("slow", "red")), tokens=6)
    assert words.text[slice(*words.span)] in ("slow", "red")
    with pytest.raises(GlassloopError, match="none of 2 candidates fits: the regex is not complete"):
        infill(llm, BEFORE, AFTER, 2, candidates=2, sampling=Sampling(regex="[xyz]{4}", seed=1))


CHARACTERS = [
    *("a", "é", "e\u0301", "한", "\u1112\u1161\u11ab", "\r\n", " "),
    *("👩\u200d👩\u200d👧", "🇫🇷", "👍🏽"),
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=8), st.data())
def test_a_text_is_cut_only_between_characters(parts, data):
    text = "".join(parts)
    borders = {0}
    for part in parts:
        borders.add(max(borders) + len(part))
    found = {at for at in range(len(text) + 1) if is_border(text, at)}
    # Two syllables of jamo or two flags beside each other are still two.
    assert found == borders


def test_a_span_never_cuts_a_character():
    """The model's tokens are bytes, so nearly every draw would cut one; those are refused."""
    llm, text = small_llm(), "naïve e\u0301tude 👩\u200d👩\u200d👧 of it"
    at = text.index("👩")
    edit = rewrite(llm, text, (at + 2, at + 3), Sampling(seed=1, temperature=1.5), tokens=4, candidates=40)
    assert edit.given["spans"] == [(at, at + 5)]
    assert "�" not in edit.text
    refused = [each for each in edit.proposals if each.refusal]
    assert any(each.refusal == "it cuts a character" for each in refused)
    for each in edit.proposals:
        if each.refusal is None:
            bytes(each.ids).decode()
    accent = text.index("\u0301")
    with pytest.raises(GlassloopError):
        infill(
            llm,
            text[:accent],
            text[accent:],
            1,
            candidates=3,
            sampling=Sampling(seed=1, allowed_token_ids=(97,)),
        )


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda llm: infill(llm, BEFORE, AFTER, 0), "tokens"),
        (lambda llm: infill(llm, BEFORE, AFTER, True), "tokens"),
        (lambda llm: infill(llm, BEFORE, AFTER, candidates=10_000), "candidates"),
        (lambda llm: infill(llm, BEFORE, AFTER, method="magic"), "method"),
        (lambda llm: infill(llm, BEFORE, AFTER, window=-1), "window"),
        (lambda llm: infill(llm, 5, AFTER), "before"),
        (lambda llm: infill(llm, "", AFTER), "before"),
        (lambda llm: infill(llm, BEFORE, "x" * 500), "after"),
        (lambda llm: infill(llm, "x" * 500, AFTER), "before"),
        (lambda llm: infill(llm, BEFORE, AFTER, sampling=Sampling(n=2)), "n"),
        (lambda llm: infill(llm, BEFORE, AFTER, sampling=Sampling(beam_width=2)), "beam_width"),
        (lambda llm: rewrite(llm, BEFORE, (3, 99)), "spans[0]"),
        (lambda llm: rewrite(llm, BEFORE, (5, 3)), "spans[0]"),
        (lambda llm: rewrite(llm, BEFORE, [(3, 6), (5, 8)]), "spans"),
        (lambda llm: rewrite(llm, BEFORE, []), "spans"),
        (lambda llm: rewrite(llm, BEFORE, "ab"), "spans"),
    ],
)
def test_a_bad_argument_is_named(call, field):
    with pytest.raises(GlassloopError) as raised:
        call(small_llm())
    assert raised.value.field == field
