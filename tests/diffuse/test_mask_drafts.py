"""Drafts by masks: the output is that of plain decoding, whatever the masks propose."""

from __future__ import annotations

import numpy as np
import pytest
from diffuse.small import MaskedLLM
from engine.random_runs import PROMPT, random_sampling, small_llm

from glassloop import GlassloopError, Sampling


@pytest.fixture(scope="module")
def llm():
    made = MaskedLLM()
    made.draft_by_masks()
    assert made.drafter == "masks"
    # A step's cost does not grow with its rows, so that drafts always seem to pay.
    made.engine.loop._step_cost.cost = lambda rows: 1.0
    yield made
    made.close()


def test_the_output_is_that_of_plain_decoding(llm):
    proposed = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        sampling = random_sampling(rng, max_tokens=25)
        (run,), (plain,) = llm.generate([PROMPT], sampling), small_llm().generate([PROMPT], sampling)
        assert run.tokens == plain.tokens and run.finish_reason == plain.finish_reason, seed
        proposed += run.drafts.proposed
    assert proposed > 100
    llm.engine.call(llm.engine.loop.tree.check_integrity)


def test_the_first_token_of_a_draft_is_always_right(llm):
    """It comes from the logits of the run's own last row."""
    run = llm.generate(PROMPT, Sampling(seed=5, temperature=0.7, max_tokens=40, ignore_eos=True))
    assert run.drafts.accepted >= 13
    refused = [token.refused for token in run.tokens if token.refused is not None]
    assert refused and all(each.by == "masks" for each in refused)
    assert llm.replay(run).identical


def test_many_runs_share_a_pass(llm):
    sampling = Sampling(seed=1, n=12, temperature=0.9, max_tokens=20)
    found, expected = llm.generate(PROMPT, sampling), small_llm().generate(PROMPT, sampling)
    assert [run.tokens for run in found.samples] == [run.tokens for run in expected.samples]


def test_a_model_without_masks_cannot(llm):
    with pytest.raises(GlassloopError, match="no adapter for masked rows"):
        small_llm().draft_by_masks()


def test_a_function_that_is_told_of_passes_cannot_end_the_engine():
    made = MaskedLLM()

    def leave(run, record):
        raise SystemExit

    with pytest.raises(GlassloopError, match=r"code of the request called sys\.exit\(\)"):
        made.diffuse(PROMPT, Sampling(max_tokens=8), on_pass=leave)
    with pytest.raises(GlassloopError, match="was made on the engine's thread"):
        made.diffuse(PROMPT, Sampling(max_tokens=8), on_pass=lambda run, record: made.generate(PROMPT))
    assert (
        made.generate(PROMPT, Sampling(seed=1)).tokens
        == small_llm().generate(PROMPT, Sampling(seed=1)).tokens
    )
    made.close()
