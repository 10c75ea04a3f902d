"""Each stage equals the processor of the same name in transformers, or its definition where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decode.naive import Naive
from transformers.generation import logits_process as hf

from glassloop import Sampling
from glassloop.decode.decoder import Decoder

VOCABULARY = 40
TOKENS = [3, 7, 3, 7, 9, 3, 7]


def rows(size=VOCABULARY):
    """Random and adversarial logits."""
    random = np.random.default_rng(0)
    for scale in (0.01, 1, 5, 30):
        for _ in range(12):
            yield (random.normal(0, scale, size)).astype(np.float32)
    for _ in range(6):  # some are out of the question already
        yield np.where(random.random(size) < 0.6, -np.inf, random.normal(0, 3, size)).astype(np.float32)
    one = np.full(size, -np.inf, np.float32)
    one[5 % size] = 2.5
    yield one
    yield np.array([1e30] + [-1e30 * (1 + i / 100) for i in range(size - 1)], np.float32)
    yield np.linspace(80, -80, size, dtype=np.float32)


def tied_rows(size=VOCABULARY):
    random = np.random.default_rng(1)
    yield np.zeros(size, np.float32)
    for _ in range(10):
        yield random.integers(-2, 3, size).astype(np.float32)


def ours(options, logits, tokens=TOKENS, prompt_length=2, eos_ids=()):
    decoder = Decoder(Sampling(**options), len(logits), 1, tokens[:prompt_length], eos_ids=eos_ids)
    for token in tokens[prompt_length:]:
        decoder.commit(token)
    after = [logits.astype(np.float64)]
    everyone = np.arange(len(logits))
    decoder.run_stages(logits, lambda stage, before, left: after.append(left.logits_of(everyone)))
    return after[-1]


def theirs(processor, logits, tokens=TOKENS):
    out = processor(torch.tensor([tokens]), torch.tensor(logits[None]).double())
    return out[0].numpy()


CASES = [
    *[({"repetition_penalty": p}, hf.RepetitionPenaltyLogitsProcessor(p)) for p in (0.5, 1.2, 3.0)],
    *[({"temperature": t}, hf.TemperatureLogitsWarper(t)) for t in (0.1, 0.7, 2.0)],
    *[({"top_k": k}, hf.TopKLogitsWarper(k)) for k in (1, 5, 39, 40, 1000)],
    *[({"top_p": p}, hf.TopPLogitsWarper(p)) for p in (0.05, 0.5, 0.9, 0.999)],
    *[({"min_p": p}, hf.MinPLogitsWarper(p)) for p in (0.01, 0.3, 1.0)],
    *[({"typical_p": p}, hf.TypicalLogitsWarper(p)) for p in (0.1, 0.5, 0.95)],
    *[({"epsilon_cutoff": e}, hf.EpsilonLogitsWarper(e)) for e in (1e-4, 0.01, 0.5)],
    *[({"eta_cutoff": e}, hf.EtaLogitsWarper(e)) for e in (1e-4, 0.01, 0.5)],
    *[({"no_repeat_ngram_size": n}, hf.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3, 6)],
    (
        {"bad_words": [[4], [3, 7, 11], [9, 12], [3, 7]]},
        hf.NoBadWordsLogitsProcessor([[4], [3, 7, 11], [9, 12], [3, 7]]),
    ),
    ({"logit_bias": {2: 4.5, 8: -7.0}}, hf.SequenceBiasLogitsProcessor([[[2], 4.5], [[8], -7.0]])),
    (
        {"allowed_token_ids": [1, 5, 0, 30]},
        hf.PrefixConstrainedLogitsProcessor(lambda *_: [1, 5, 0, 30], num_beams=1),
    ),
]
NAMES = [f"{next(iter(options))}-{i}" for i, (options, _) in enumerate(CASES)]
# With ties at the border transformers keeps all of them (top-k) or whichever its sort put first (top-p);
# here the lower ids stay. Everything else agrees on ties too.
CUT_AT_TIES = ("top_k", "top_p")


def comparable(logits, options):
    """Logits of minus infinity everywhere, or a mask that leaves none, are an error here and NaN there."""
    return np.isfinite(logits[[1, 5, 0, 30]]).any() if "allowed_token_ids" in options else True


@pytest.mark.parametrize(("options", "processor"), CASES, ids=NAMES)
def test_it_equals_transformers(options, processor):
    count = 0
    for logits in [*rows(), *([] if next(iter(options)) in CUT_AT_TIES else tied_rows())]:
        if not comparable(logits, options):
            continue
        expected = theirs(processor, logits)
        if not np.isfinite(expected).any():
            continue
        np.testing.assert_allclose(ours(options, logits), expected, rtol=2e-6)
        count += 1
    assert count > 50


@pytest.mark.parametrize("options", [{"top_k": 7}, {"top_p": 0.61}])
def test_on_ties_the_lower_ids_stay(options):
    """As many, of the same logits, as transformers keeps; of equal ones those with lower ids."""
    for logits in tied_rows():
        kept = np.flatnonzero(np.isfinite(ours(options, logits)))
        if "top_k" in options:
            assert len(kept) == 7
        else:
            assert len(kept) == np.isfinite(theirs(hf.TopPLogitsWarper(0.61), logits)).sum()
        order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
        assert sorted(kept.tolist()) == sorted(order[: len(kept)])


@pytest.mark.parametrize(
    ("options", "processor"),
    [
        ({"top_p": 0.9}, hf.TopPLogitsWarper(0.9)),
        ({"min_p": 0.001}, hf.MinPLogitsWarper(0.001)),
        ({"typical_p": 0.9}, hf.TypicalLogitsWarper(0.9)),
        ({"top_k": 5000}, hf.TopKLogitsWarper(5000)),
        ({"epsilon_cutoff": 1e-6}, hf.EpsilonLogitsWarper(1e-6)),
    ],
)
def test_it_equals_transformers_on_a_huge_vocabulary(options, processor):
    random = np.random.default_rng(4)
    for scale in (0.5, 3):
        # Distinct logits: with ties the two differ as told above.
        logits = (random.permutation(262_144) * 1e-4 * scale / 3).astype(np.float32)
        np.testing.assert_allclose(ours(options, logits), theirs(processor, logits), rtol=2e-6)


@pytest.mark.parametrize(("generated", "removed"), [(2, True), (3, False), (4, False)])
def test_min_tokens_equals_transformers(generated, removed):
    processor = hf.MinNewTokensLengthLogitsProcessor(2, 3, [6, 8], device="cpu")
    tokens = TOKENS[: 2 + generated]
    for logits in rows():
        expected = theirs(processor, logits, tokens)
        if not np.isfinite(expected).any():
            continue
        got = ours({"min_tokens": 3, "stop_token_ids": [8]}, logits, tokens, eos_ids=(6,))
        np.testing.assert_array_equal(got, expected)
        assert removed == (got[6] == got[8] == -np.inf) or not np.isfinite(logits[[6, 8]]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 0.7, "frequency_penalty": -0.2},
        {"dry_multiplier": 0.8},
        {"dry_multiplier": 1.5, "dry_base": 1.2, "dry_allowed_length": 1},
        {"dry_multiplier": 1.5, "dry_base": 3, "dry_allowed_length": 4},
        {"top_n_sigma": 1.0},
        {"top_n_sigma": 0.2},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"xtc_probability": 1.0, "xtc_threshold": 0.3},
    ],
)
def test_it_equals_its_definition(options):
    sampling = Sampling(**options)
    random = np.random.default_rng(7)
    for logits in [*rows(), *tied_rows()]:
        tokens = TOKENS * 2 + [int(i) for i in random.integers(0, 4, random.integers(0, 20))]
        naive = Naive(logits, tokens, 2, sampling, 1, len(tokens)).run()
        np.testing.assert_allclose(ours(options, logits, tokens), naive.logits, rtol=1e-6)


def test_the_openai_penalties_by_hand():
    logits = np.zeros(10, np.float32)
    got = ours({"presence_penalty": 0.5, "frequency_penalty": 0.25}, logits, [1, 2, 2, 5], prompt_length=1)
    assert got.tolist() == [0, 0, -1.0, 0, 0, -0.75, 0, 0, 0, 0]  # the prompt's 1 is free


def test_dry_by_hand():
    """… a b c x, a b c: x would continue three repeated tokens; b continues none."""
    got = ours({"dry_multiplier": 0.8, "dry_base": 1.75}, np.zeros(10, np.float32), [1, 2, 3, 9, 1, 2, 3])
    assert got[9] == pytest.approx(-0.8 * 1.75) and np.count_nonzero(got) == 1


def test_dry_on_an_endless_loop_is_bounded():
    logits = np.zeros(10, np.float32)
    got = ours({"dry_multiplier": 0.8, "dry_base": 100}, logits, [4] * 3000)
    assert got[4] < -1e30 and np.isfinite(got).all()


def test_xtc_acts_as_often_as_it_should():
    logits = np.log(np.array([0.5, 0.4, 0.1], np.float32))
    decoder = Decoder(Sampling(xtc_probability=0.3, xtc_threshold=0.2, temperature=0), 3, seed=5)
    acted = 0
    for _ in range(2000):
        acted += decoder.choose(logits).id == 1
        decoder.commit(0)
    assert abs(acted - 600) < 4 * np.sqrt(2000 * 0.3 * 0.7)
