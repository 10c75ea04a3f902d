"""The real models, from their GGUF files: the same logits and the same greedy tokens as `transformers` gives
for the same file in float32. `GLASSLOOP_TEST_QWEN=1` adds Qwen2.5-Coder 0.5B, a download of 478 MB;
`GLASSLOOP_TEST_TOKENS` says how many greedy tokens of each prompt are compared.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from model.quick_gguf import vocabularies_skipped
from transformers import AutoModelForCausalLM

from glassloop.model.adapter import read_adapter
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops import choose_ops
from glassloop.ops.reference import ReferenceOps

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "1, 2, 3, 4, 5, 6,",
    "The three most important things in life are",
    "Ein kleines Haus stand",
    "Q: What is the tallest mountain on Earth?\nA:",
    "日本の首都は",
    "Dear Sir or Madam,\n\nI am writing to you because",
]
NEW_TOKENS = int(os.environ.get("GLASSLOOP_TEST_TOKENS", "16"))
MODELS = ["smollm2-135m-instruct", "gemma-3-270m"]
if os.environ.get("GLASSLOOP_TEST_QWEN"):
    MODELS.append("qwen2.5-coder-0.5b-instruct")


@pytest.fixture(scope="module", params=MODELS)
def models(request):
    path = fetch(request.param)
    with vocabularies_skipped():
        theirs = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()
    files = ModelFiles(path)
    return theirs, files.transformer(ReferenceOps()), files.tokenizer()


def test_logits_equal_transformers(models):
    """The prompts in one batch: NumPy reads the weights once for all of them. The oracle has them alone."""
    theirs, ours, tokenizer = models
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    work = [(branch, 0, ids) for branch, ids in enumerate(prompts)]
    logits = Branches(ours, 64, branches=len(prompts)).forward(work, every_logit=True)
    for ids, found in zip(prompts, np.split(logits, np.cumsum([*map(len, prompts)])[:-1]), strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0].numpy()
        assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-3


def test_a_long_prompt_in_chunks_equals_transformers(models):
    """Longer than Gemma's window of 512, so that what falls out of it matters."""
    theirs, ours, tokenizer = models
    ids = tokenizer.encode(" ".join(PROMPTS * 10))[:700]
    cache = Branches(ours, 1024)
    for start in range(0, len(ids), 160):
        logits = cache.forward([(0, start, ids[start : start + 160])])
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), logits_to_keep=1).logits[0, -1].numpy()
    assert np.abs(logits[0] - expected).max() / np.abs(expected).max() < 1e-3


def test_greedy_tokens_equal_transformers(models):
    """All ten prompts in one batch of ten branches. A token is the oracle's own greedy choice if it is the
    oracle's argmax after the same tokens, so one pass of the oracle over the whole text checks all of them.
    """
    theirs, ours, tokenizer = models
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    cache = Branches(ours, 32 + NEW_TOKENS, branches=len(prompts))
    made: list[list[int]] = [[] for _ in prompts]
    work = [(branch, 0, ids) for branch, ids in enumerate(prompts)]
    for step in range(NEW_TOKENS):
        best = cache.forward(work).argmax(axis=-1).tolist()
        for tokens, token in zip(made, best, strict=True):
            tokens.append(token)
        work = [(b, len(prompts[b]) + step, [token]) for b, token in enumerate(best)]
    for ids, tokens in zip(prompts, made, strict=True):
        with torch.no_grad():
            logits = theirs(torch.tensor([ids + tokens[:-1]]), logits_to_keep=len(tokens)).logits[0]
        assert tokens == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("op_set", ["reference", "native"])
def test_probabilities_sum_to_one(models, op_set):
    _, ours, tokenizer = models
    logits = Branches(ours, 1024).forward([(0, 0, tokenizer.encode(PROMPTS[0]))])[0]
    for temperature in (0.1, 1.0, 3.0):
        log_sum_exp = choose_ops(op_set).rows.log_sum_exp(logits, 1 / temperature)
        total = np.exp(logits.astype(np.float64) / temperature - log_sum_exp).sum()
        assert abs(total - 1) < 1e-9


def test_an_adapter_beside_the_model_equals_peft(models, tmp_path):
    import peft  # takes several seconds, and every worker imports this file

    theirs, ours, tokenizer = models
    settings = peft.LoraConfig(r=4, lora_alpha=4, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(theirs, settings)
    adapted.save_pretrained(tmp_path)
    number = ours.load_adapter(read_adapter(tmp_path, ours.config))
    assert len(ours.adapters.parts) == 7 * len(ours.config.layers)
    for prompt in PROMPTS[:2]:
        ids = tokenizer.encode(prompt)
        found = Branches(ours, 64).forward([(0, 0, ids)], every_logit=True, adapters=[number] * len(ids))
        with torch.no_grad():
            expected = adapted(input_ids=torch.tensor([ids])).logits[0].numpy()
        plain = Branches(ours, 64).forward([(0, 0, ids)], every_logit=True)
        assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-3
        assert np.abs(found - plain).max() / np.abs(expected).max() > 1e-2
        margins = np.sort(expected)[:, -1] - np.sort(expected)[:, -2]
        sure = margins > 1e-2
        assert sure.any() and (found.argmax(-1) == expected.argmax(-1))[sure].all()
    adapted.unload()
    ours.unload_adapter(number)
