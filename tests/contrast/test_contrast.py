"""A contrast finds where two models part, and the weights that did it: one weight is exchanged on purpose."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from engine.random_runs import PROMPT, SmallLLM, small_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import GlassloopError, Sampling
from glassloop.contrast.contrast import _kl
from glassloop.contrast.tensors import RunPlace, chooses_recorded
from glassloop.model.graft import graft, weight_names

PROMPTS = [PROMPT[start : start + 9] for start in range(8)]
SAMPLING = Sampling(temperature=1.2, top_p=0.95, seed=3, max_tokens=12, ignore_eos=True)


def other(*names: str, seed: int = 5) -> SmallLLM:
    """The small model with some weights of another one."""
    one, two = small_llm().transformer, small_llm(seed=seed).transformer
    return SmallLLM(transformer=graft(one, two, frozenset(names)))


def test_every_weight_has_a_name_and_all_of_them_make_the_other_model():
    one, two = small_llm().transformer, small_llm(seed=5).transformer
    names = weight_names(one)
    assert len(names) == len(set(names)) and f"layers.{len(one.layers) - 1}.down" in names
    whole = SmallLLM(transformer=graft(one, two, frozenset(names)))
    assert whole.generate(PROMPT, SAMPLING).tokens == SmallLLM(seed=5).generate(PROMPT, SAMPLING).tokens
    none = SmallLLM(transformer=graft(one, two, frozenset()))
    assert none.generate(PROMPT, SAMPLING).tokens == small_llm().generate(PROMPT, SAMPLING).tokens


def test_equal_models_have_no_difference():
    report = small_llm().contrast(SmallLLM(), PROMPTS, SAMPLING)
    assert report.flips == () and report.first is None and report.tensors == ()
    assert report.kl == (0.0, 0.0) and report.token_flips.share == 0 and report.measured_tokens > 0
    assert report.sentence.startswith("0 of 8 answers changed")


@pytest.mark.parametrize("name", ["layers.0.q", "layers.1.down", "layers.0.sublayers.1", "layers.1.up"])
def test_exchanged_weight_is_found(name):
    report = small_llm().contrast(other(name), PROMPTS, SAMPLING, tensors=3)
    looked = [each for each in report.flips if each.tensor is not None]
    assert len(looked) == min(3, len(report.flips)) > 0
    assert {(each.tensor, each.alone) for each in looked} == {(name, True)}
    assert report.tensors == ((name, len(looked)),)
    assert report.remedies[0].names == (name,) and report.remedies[0].back == report.remedies[0].tried
    json.dumps(report.to_dict())


def test_two_exchanged_weights_are_found_in_order():
    """The token turns with the weights that are found and those before them, not with those before alone."""
    one, two = small_llm(), other("layers.0.v", "layers.1.gate")
    report = one.contrast(two, PROMPTS, SAMPLING, tensors=8)
    names = weight_names(one.transformer)
    for parting in report.flips:
        assert parting.tensor in ("layers.0.v", "layers.1.gate") and parting.runs is not None
        place, until = RunPlace(parting.runs[0], parting.at), names.index(parting.tensor)
        for count, same in ((until, True), (until + 1, False)):
            mixed = graft(one.transformer, two.transformer, frozenset(names[:count]))
            assert chooses_recorded(one, mixed, place, None) is same


def test_parting_is_where_the_answers_of_both_alone_part():
    one, two = small_llm(), other("layers.1.o")
    report = one.contrast(two, PROMPTS, SAMPLING, tensors=0)
    assert report.note == "tensors=0" and len(report.partings) == len(PROMPTS)
    for parting, prompt in zip(report.partings, PROMPTS, strict=True):
        seed = parting.runs[0].seed
        alone = [llm.generate(prompt, replace(SAMPLING, seed=seed)).token_ids for llm in (one, two)]
        assert alone == [run.token_ids for run in parting.runs]
        if parting.at is not None:
            assert alone[0][: parting.at] == alone[1][: parting.at]
            assert (parting.first.id, parting.second.id) == (alone[0][parting.at], alone[1][parting.at])
    assert report.first.at == min(each.at for each in report.flips)


def test_values_are_compared_where_there_is_an_extractor():
    report = small_llm().contrast(
        other("layers.1.o"), PROMPTS, SAMPLING, tensors=0, extract=lambda text: "same"
    )
    assert report.flips and not any(each.changed for each in report.flips)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.1, 20))
def test_kl_is_its_definition(seed, scale):
    rng = np.random.default_rng(seed)
    row, theirs = (rng.normal(0, scale, 50).astype(np.float32) for _ in range(2))
    p, q = (np.exp(each.astype(np.float64)) / np.exp(each.astype(np.float64)).sum() for each in (row, theirs))
    assert abs(_kl(row, theirs) - float(np.sum(p * np.log(p / q)))) < 1e-4
    assert _kl(row, row) == 0


def test_measured_flips_are_those_of_a_replay():
    one, two = small_llm(), other("layers.1.o")
    report = one.contrast(two, PROMPTS, SAMPLING, tensors=0, measured=10**6)
    verdicts = [two.replay(parting.runs[0], strict=False) for parting in report.partings]
    assert report.measured_tokens == sum(verdict.tokens for verdict in verdicts)
    flipped = sum(verdict.tokens - verdict.same_tokens for verdict in verdicts)
    assert round(report.token_flips.share * report.measured_tokens) == flipped


def test_what_cannot_be_compared_says_why():
    one = small_llm()
    with pytest.raises(GlassloopError, match="prompts"):
        one.contrast(one, "text", SAMPLING)
    with pytest.raises(GlassloopError, match="prompts"):
        one.contrast(one, [], SAMPLING)
    for options in ({"n": 2}, {"beam_width": 2}, {"diffusion": 4}):
        with pytest.raises(GlassloopError, match=next(iter(options))):
            one.contrast(one, PROMPTS, SAMPLING, **options)
    with pytest.raises(GlassloopError, match="other is 3"):
        one.contrast(3, PROMPTS, SAMPLING)
    reference = small_llm("reference")
    report = one.contrast(reference, PROMPTS[:2], SAMPLING)
    assert "different op sets" in report.note and report.kl.mean >= 0
    assert one.contrast(one, PROMPTS[:2], SAMPLING).note == "both are the same model"


def test_command_prints_the_report(tmp_path, tiny_path):
    (tmp_path / "prompts.txt").write_text("One two\nThree four\n")
    command = [sys.executable, "-m", "glassloop", "contrast", str(tiny_path), str(tiny_path)]
    command += [
        "--weights-b",
        "q8",
        "--prompts",
        str(tmp_path / "prompts.txt"),
        "--max-tokens",
        "6",
        "--seed",
        "1",
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompts"] == 2
    wrong = subprocess.run([*command, "--beam-width", "3"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "beam_width" in wrong.stderr
