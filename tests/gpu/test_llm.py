"""On a GPU: the default model, through `LLM`, against the reference and against itself in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from glassloop import LLM, Sampling
from glassloop.errors import GlassloopError
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops.torch import has_device

if not has_device():
    pytest.skip("needs a GPU, torch and Triton", allow_module_level=True)

TEXT = (
    "The Python interpreter is easily extended with new functions and data types implemented in C or C++. It"
    " is also suitable as an extension language for customizable applications. This tutorial introduces the"
    " reader informally to the basic concepts and features of the language and system. By reading it you will"
    " be able to write modules and programs, and you will be ready to learn more about the library."
)
PROMPTS = ["The capital of France is", "One, two, three,", "def add(a, b):", TEXT, "Why is the sky blue?"]


@pytest.fixture(scope="module")
def llm():
    try:
        fetch(DEFAULT_MODEL)
    except GlassloopError as error:
        pytest.skip(f"the default model cannot be had: {error}")
    return LLM(ops="torch", kv_memory="1GB")


def test_the_gpu_is_used_by_itself():
    from glassloop.ops import choose_ops

    assert choose_ops().name == "torch"


def test_an_answer_is_the_same_alone_and_in_a_batch(llm):
    options = [Sampling(max_tokens=60, seed=place, logprobs=3) for place in range(len(PROMPTS))]
    options[0] = Sampling(max_tokens=60, temperature=0, logprobs=3)
    alone = [llm.generate(prompt, each) for prompt, each in zip(PROMPTS, options, strict=True)]
    together = llm.generate(PROMPTS * 6, options * 6)
    for place, run in enumerate(together):
        assert run.tokens == alone[place % len(PROMPTS)].tokens, PROMPTS[place % len(PROMPTS)]


def test_a_run_can_be_replayed(llm):
    run = llm.generate(TEXT, Sampling(max_tokens=40, seed=3))
    assert llm.replay(run).identical


def test_logits_are_close_to_the_reference(llm):
    ids = llm.tokenizer.encode(TEXT)
    found = llm.logits(ids, 0).astype(np.float64)
    expected = LLM(ops="reference").logits(ids, 0).astype(np.float64)
    log_p, log_q = (each - np.log(np.exp(each).sum(1, keepdims=True)) for each in (expected, found))
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(1).mean()
    assert divergence < 0.002
    ordered = np.sort(expected, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 0.5
    assert clear.sum() > len(ids) // 2
    assert (found.argmax(1) == expected.argmax(1))[clear].all()


def test_a_cache_that_does_not_fit_is_an_error_with_figures(llm):
    with pytest.raises(GlassloopError, match=r"no room for keys and values: .* of its memory is free"):
        LLM(ops="torch", kv_memory="4TB")
