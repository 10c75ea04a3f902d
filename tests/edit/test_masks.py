"""Masks as a proposer of edits: what they propose is scored and recorded as any proposal, constraints hold,
and the doubt about a token is what a masked row in its place says."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from diffuse.small import masked_llm, naive_logits
from engine.random_runs import small_llm

from glassloop import GlassloopError, Sampling, TraceError
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.edit.infill import infill, rewrite
from glassloop.edit.masks import masked_bits
from glassloop.edit.proposal import EditWork
from glassloop.edit.record import Edit
from glassloop.edit.repair import repair
from glassloop.engine.tasks.masked import MaskedRow, Pass
from glassloop.record.format.glass_file import from_bytes, to_bytes

BEFORE, AFTER = "the quick brown", "fox jumps"
LETTERS = Sampling(seed=1, allowed_token_ids=[97, 98, 99])


def _filled(**options):
    given = {"candidates": 3, "sampling": LETTERS, "proposer": "diffusion", **options}
    return infill(masked_llm(), BEFORE, AFTER, 4, **given)


def test_masks_propose_what_fits_between_both_sides(tmp_path):
    edit = _filled(diffusion={"threshold": 0.5})
    (best,) = edit.accepted
    assert edit.text == BEFORE + best.text + AFTER and len(best.ids) == 4
    assert best.bits == min(each.bits for each in edit.proposals)
    for each in edit.proposals:
        assert each.drawn is not None and each.drawn.passes and each.drawn.token_ids == each.ids
        assert sum(len(record.filled) for record in each.drawn.passes) == 4
    assert edit.replay(masked_llm()).identical
    edit.save(tmp_path / "edit.json")
    assert Edit.load(tmp_path / "edit.json").given["proposer"] == "diffusion"


def test_the_text_of_what_masks_draw_is_that_of_its_tokens():
    """Also where bytes are no characters by themselves."""
    llm, sampling = masked_llm(), Sampling(seed=1, choice=["ä", "é"])
    edit = infill(llm, BEFORE, AFTER, 2, candidates=6, sampling=sampling, proposer="diffusion")
    drawn = [each.drawn for each in edit.proposals if each.drawn is not None]
    assert {run.text for run in drawn} <= {"ä", "é"}


def test_holes_is_a_name_of_masks_that_are_ranked():
    edit = infill(masked_llm(), BEFORE, AFTER, 4, candidates=3, sampling=LETTERS, method="holes")
    same = _filled()
    assert edit.text == same.text and edit.given == same.given
    assert edit.replay(masked_llm()).identical
    with pytest.raises(GlassloopError, match=r"method is 'holes', but .* has no adapter for masked rows"):
        infill(small_llm(), BEFORE, AFTER, 4, sampling=LETTERS, method="holes")
    with pytest.raises(GlassloopError, match="'rerank' or 'metropolis' or 'holes' is expected"):
        _filled(method="hole")
    with pytest.raises(GlassloopError, match="method is 'holes'; 'rerank' or 'metropolis' is expected"):
        rewrite(masked_llm(), BEFORE, (4, 9), method="holes")


@pytest.mark.parametrize(
    ("sampling", "diffusion"),
    [
        (replace(LETTERS, temperature=5.0), {"threshold": 0.5}),
        (
            Sampling(seed=2, temperature=2.0, allowed_token_ids=list(range(97, 123))),
            {"threshold": 0.2, "revise": 1},
        ),
        (Sampling(seed=3, regex="[ab]{4}", temperature=5.0), {"most": 2, "threshold": None}),
    ],
)
def test_what_fills_a_hole_is_explained_and_replayed(sampling, diffusion):
    """The masks saw the text after the hole, which is in the record."""
    llm = masked_llm()
    edit = _filled(sampling=sampling, diffusion=diffusion, candidates=6)
    drawn = from_bytes(to_bytes([each.drawn for each in edit.proposals]))
    assert len(drawn) > 1
    for run in drawn:
        verdict = run.replay(llm)
        assert verdict.identical and verdict.tokens == len(run.tokens), verdict
        for at, token in enumerate(run.tokens):
            told = run.explain(at, llm=llm)
            assert told.winner.id == token.id and told.winner.luck == token.luck
            assert told.winner.logprob == token.logprob and told.winner.raw_logprob == token.raw_logprob
    changed = replace(run, diffusion={**run.diffusion, "after": [120] * len(run.diffusion["after"])})
    assert not changed.replay(llm).identical
    with pytest.raises(TraceError, match=r"diffusion\.after\[1\] is 999; a token id below 257"):
        replace(run, diffusion={**run.diffusion, "after": [1, 999]}).replay(llm)


def test_an_old_record_of_a_hole_says_what_it_lacks():
    run = _filled().proposals[0].drawn
    old = {name: value for name, value in run.diffusion.items() if name not in ("adapter", "after")}
    for ask in (lambda run: run.explain(0), lambda run: run.replay()):
        with pytest.raises(TraceError, match="fills a hole, and its record, which is old, does not have"):
            ask(replace(run, diffusion=old))


def test_the_text_after_the_hole_matters():
    """A proposer that looks to the left alone would fill both the same."""
    one = infill(masked_llm(), BEFORE, "fox jumps", 4, candidates=1, sampling=LETTERS, proposer="diffusion")
    two = infill(masked_llm(), BEFORE, "zzzzzzzzz", 4, candidates=1, sampling=LETTERS, proposer="diffusion")
    assert one.proposals[0].drawn.tokens != two.proposals[0].drawn.tokens


def test_a_constraint_holds_in_what_masks_propose():
    edit = _filled(sampling=Sampling(seed=3, regex="(ab){2}"))
    assert edit.text == BEFORE + "abab" + AFTER


def test_what_does_not_go_together_is_refused():
    with pytest.raises(GlassloopError, match="proposer is 'right'; 'left' or 'diffusion' is expected"):
        _filled(proposer="right")
    with pytest.raises(GlassloopError, match="no probability that a chain could use"):
        _filled(method="metropolis")
    with pytest.raises(GlassloopError, match="diffusion is given; proposer 'diffusion' is expected"):
        _filled(proposer="left", diffusion={})
    with pytest.raises(GlassloopError, match="only 'confidence' is"):
        _filled(diffusion={"revise": 1, "revise_by": "likelihood"})
    with pytest.raises(GlassloopError, match="has no adapter for masked rows"):
        infill(small_llm(), BEFORE, AFTER, 4, sampling=LETTERS, proposer="diffusion")
    with pytest.raises(GlassloopError, match="proposer is given with check"):
        repair(masked_llm(), "abc", check=bool, proposer="diffusion")


def test_the_doubt_about_a_token_is_that_of_a_mask_in_its_place():
    llm = masked_llm()
    ids = list(b"the lazy dog and the cat")
    work = EditWork(llm, 1)
    run = work.text(list(b"hello "), ids)
    found = masked_bits(work, run)
    # Masks at the places 1, 7, 13 and 19: what is before the first is plain, the rest is kept.
    places = range(1, len(ids), 6)
    whole = [*b"hello ", *ids]
    rows = MaskedRows(whole[:7], 1, [], llm.mask)
    rows.tokens, rows.kept = whole[:7], []
    rows.kept = [MaskedRow(ids[at], 6 + at) for at in range(1, len(ids)) if at not in places]
    made = Pass([MaskedRow(llm.mask.token, 6 + at, True, llm.mask.adapter) for at in places], len(places))
    logits = naive_logits(llm.transformer, rows, made).astype(np.float64)
    for row, at in zip(logits, places, strict=True):
        assert found[at] == pytest.approx(-(row[ids[at]] - np.logaddexp.reduce(row)) / log(2), abs=1e-6)
    assert len(found) == len(ids) and all(each >= 0 for each in found)


def test_a_repair_with_masks_is_made_again_the_same():
    llm = masked_llm()
    options = {"candidates": 2, "spans": 2, "budget": 600, "sampling": LETTERS}
    edit = repair(llm, "abcabcabzabcabc", proposer="diffusion", **options)
    assert edit.given["proposer"] == "diffusion" and edit.replay(llm).identical
