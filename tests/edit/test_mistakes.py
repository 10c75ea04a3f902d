"""Repair by masks: the evidence is that of Bayes' rule, what is accepted has enough of it, replacements are
single tokens that are apart, and everything is made again the same."""

from __future__ import annotations

from itertools import pairwise
from math import log, log2

import numpy as np
import pytest
from diffuse.small import masked_llm, naive_logits
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Sampling
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.edit import mistakes
from glassloop.edit.masks import look
from glassloop.edit.mistakes import evidence
from glassloop.edit.proposal import EditWork, Proposal
from glassloop.edit.record import Edit
from glassloop.edit.repair import repair
from glassloop.engine.tasks.masked import MaskedRow, Pass

TEXT = "the quick brown fox jumps over the lazy dog and runs away from it"
LETTERS = tuple(range(97, 123))
SHIFT = 12.0  # bits
SHARES = st.integers(1, 1000)


@pytest.fixture(autouse=True)
def _mistakes_are_common(monkeypatch):
    """All that a random model finds likely is nearly as likely as anything else, so nothing would pay."""
    monkeypatch.setattr(mistakes, "evidence", lambda each: evidence(each) + SHIFT)
    monkeypatch.setattr(mistakes, "_UNLIKELY", 20.0)


def _edit(**options):
    given_ = {"least_gain": 0.0, "sampling": Sampling(seed=1, allowed_token_ids=LETTERS), **options}
    return repair(masked_llm(), TEXT, proposer="diffusion", **given_)


@given(st.lists(SHARES, min_size=3, max_size=6), st.data())
@settings(deadline=None)
def test_the_evidence_is_the_posterior_of_a_writer_from_the_left(weights, data):
    """A writer draws each token from the left and, with a small probability, writes another draw instead. The
    odds of each intended token against what stands there are those of the evidence, up to one factor."""
    prior = np.array(weights, float) / sum(weights)
    following = np.array(data.draw(st.lists(SHARES, min_size=len(prior), max_size=len(prior)))) / 1001
    written, rate = data.draw(st.integers(0, len(prior) - 1)), 0.01
    # joint[c]: c was intended, `written` was written in its place, and the text goes on as it does
    joint = rate * prior * prior[written] * following
    right = (1 - rate) * prior[written] * following[written]
    for intended in range(len(prior)):
        if intended == written:
            continue
        own, after = -log2(prior[intended]), -log2(following[intended])
        proposal = Proposal(0, 0, 0, 1, [intended], "", "", None, own_bits=own, following_bits=after)
        proposal.old_own_bits, proposal.old_following_bits = -log2(prior[written]), -log2(following[written])
        proposal.masked_bits = own  # a masked model that knows no more than the model from the left
        odds = log2(joint[intended] / right) - log2(rate / (1 - rate))
        assert evidence(proposal) == pytest.approx(odds, abs=1e-9)


def test_a_look_is_what_masks_in_these_places_expect():
    llm = masked_llm()
    ids = list(TEXT.encode())
    work = EditWork(llm, 1)
    run = work.text(ids[:3], ids[3:])
    places = [4, 9, 10, 17, 30]
    found = look(work, run, places, {9: [120, 121]}, 2, 3)
    assert sorted(found) == places
    for masked in (places[::2], places[1::2]):
        rows = MaskedRows(ids[:3], 1, [], llm.mask)
        rows.tokens = ids[: 3 + masked[0]]
        rows.kept = [
            MaskedRow(ids[3 + at], 3 + at) for at in range(masked[0], len(ids) - 3) if at not in masked
        ]
        made = Pass([MaskedRow(llm.mask.token, 3 + at, True, llm.mask.adapter) for at in masked], len(masked))
        for row, at in zip(naive_logits(llm.transformer, rows, made).astype(float), masked, strict=True):
            bits = -(row - np.logaddexp.reduce(row)) / log(2)
            top = np.argsort(bits, kind="stable")[:3]
            asked = [120, 121] if at == 9 else []
            assert set(found[at]) == {*top.tolist(), ids[3 + at], *asked}
            for token, value in found[at].items():
                assert value == pytest.approx(bits[token], abs=1e-5)


def test_what_is_accepted_has_the_most_evidence_and_enough_of_it(tmp_path):
    edit = _edit(least_gain=0.0, window=16, candidates=32, budget=9000)
    assert edit.accepted
    by_place: dict[int, list[Proposal]] = {}
    for each in edit.proposals:
        by_place.setdefault(each.step, []).append(each)
    for each in edit.accepted:
        others = [other for other in by_place[each.step] if other.run is not None]
        assert evidence(each) == max(map(evidence, others)) >= -SHIFT
        assert each.ids[0] in LETTERS and (each.end, len(each.ids)) == (each.start + 1, 1)
        assert f"evidence {evidence(each) + SHIFT:+.1f} bits" in each.line
        assert f"{each.masked_bits:.1f} bits to a mask there" in each.why
    refused = [each for each in edit.proposals if not each.accepted and each.run is not None]
    assert refused and all(each.why.startswith("evidence ") for each in refused)
    text = list(TEXT.encode())
    for each in edit.accepted:
        text[each.start + 1] = each.ids[0]  # the first token is the prompt
    assert edit.text == bytes(text).decode()
    assert len({each.start for each in edit.accepted}) == len(edit.accepted)  # a token is replaced once
    assert masked_llm().replay(edit.run).identical
    edit.save(tmp_path / "edit.json")
    again = Edit.load(tmp_path / "edit.json").replay(masked_llm())
    assert again, str(again)


def test_replacements_of_a_round_are_apart_and_bounded():
    rounds: dict[int, list[int]] = {}
    length = len(TEXT) - 1
    for each in _edit().accepted:
        rounds.setdefault(each.step // length, []).append(each.start)
    assert len(rounds) > 1
    for starts in rounds.values():
        starts.sort()
        assert all(later - earlier > 3 for earlier, later in pairwise(starts))
    for each in (one := _edit(spans=1).accepted):
        assert [other.step // length for other in one].count(each.step // length) == 1


def test_the_budget_bounds_a_repair_by_masks():
    assert _edit(budget=0).proposals == []
    little, more = _edit(budget=500), _edit(budget=5000)
    assert little.sampled == 0
    assert little.scored < more.scored
    # The round that passes the budget ends with one batch, the second look and its batch.
    assert little.scored < 500 + 6 * len(TEXT) + 3 * 72 * 5 + 4 * len(TEXT)


def test_a_record_without_masked_bits_is_read():
    plain = _edit().to_dict()
    for each in plain["proposals"]:
        del each["masked_bits"], each["old_masked_bits"]
    assert all(each.masked_bits is None for each in Edit.from_dict(plain).proposals)
