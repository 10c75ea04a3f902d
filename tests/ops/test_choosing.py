"""Choosing in C has the bits of its definition in NumPy, for every chain of built-in stages and every row."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.random_chains import (
    BY_DEFINITION,
    SIZES,
    check_chain,
    random_logits,
    random_sampling,
    record_of,
)
from ops.test_native import instructions  # noqa: F401  (a fixture)

from glassloop import Sampling
from glassloop.decode.candidates import SLACK, Candidates
from glassloop.decode.decoder import Decoder
from glassloop.ops import rows as reference
from glassloop.ops.exact import exp, log_of
from glassloop.ops.native import rows as native


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("part", range(4))
def test_every_chain_of_stages_has_the_bits_of_its_definition(part):
    """Ties, removed tokens, minus zero, denormals, few candidates; stages in any order."""
    chosen = sum(check_chain(seed) for seed in range(1000 * part, 1000 * part + 150))
    assert chosen > 100


@pytest.mark.usefixtures("instructions")
def test_wide_rows_have_the_bits_of_the_definition():
    assert sum(check_chain(seed, (40_000, 49_152, 128_256)) for seed in range(25)) > 15


_EVERYTHING = {"top_p": 0.99, "min_p": 1e-4, "typical_p": 0.99, "top_n_sigma": 4.0, "eta_cutoff": 1e-7}


@pytest.mark.parametrize("name", [*_EVERYTHING, "epsilon_cutoff", "xtc_threshold", "all"])
@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_flat_rows_have_the_bits_of_the_definition(name, temperature):
    """Where nearly all tokens survive; top-p, min-p and epsilon together with XTC, which makes C and NumPy
    sort the same tokens."""
    rest = {"epsilon_cutoff": 1e-7, "xtc_threshold": 1e-5}
    options = _EVERYTHING | rest if name == "all" else {name: (_EVERYTHING | rest)[name]}
    chance = 1.0 if name in ("xtc_threshold", "all") else 1e-9
    sampling = Sampling(temperature=temperature, xtc_probability=chance, **options)
    logits = np.random.default_rng(3).normal(0, 2, 49_152).astype(np.float32)
    for row in (logits, np.round(logits), np.where(logits > 0, logits, -np.inf).astype(np.float32)):
        made, expected = (record_of(row, sampling, [1, 2], [], 5, ops) for ops in (native, BY_DEFINITION))
        assert made == expected


@pytest.mark.usefixtures("instructions")
@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 2**32), st.integers(1, 20_000), st.integers(1, 20_000))
def test_any_number_of_the_highest(seed, size, top):
    """Sorted as the definition sorts them, zeros with their signs."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, size).astype(np.float32)
    if seed % 3 == 0:
        row = np.round(row) * np.float32(rng.choice([1.0, -1e-40]))  # many ties, minus zero among them
    row[rng.random(size) < rng.choice([0, 0.5])] = -np.inf
    for made, expected in zip(native.highest(row, top), reference.highest(row, top), strict=True):
        assert made.tobytes() == expected.tobytes()


def _typical_sums(logits):
    """The masses, added up in the order of typical-p."""
    whole = Candidates.of(logits, reference.summarize(logits, 64), reference)
    _, x = whole.everyone()
    below = x.max() - x
    surprise = below + log_of(float(exp(-below).sum()))
    masses = exp(-surprise)
    distance = np.abs(surprise - float((masses * surprise).sum()))
    return np.cumsum(masses[np.lexsort((-x, distance))]), whole


@pytest.mark.parametrize("off", [-1e-11, -1e-16, 0.0, 1e-16, 1e-11])
def test_typical_p_at_the_very_border(off):
    """Where rounding decides, the masses are added up one after another."""
    for seed in range(6):
        logits = np.random.default_rng(seed).normal(0, 1, 3000).astype(np.float32)
        sums, whole = _typical_sums(logits)
        for place in (0, 7, 1500, 2990):
            p = float(sums[place]) + SLACK + off
            if not 0 < p < 1:
                continue
            decoder = Decoder(Sampling(typical_p=p), 3000, 1, ops=native)
            left = decoder.run_stages(logits)[1]
            assert left.count == whole.typical(p).count


@pytest.mark.parametrize("off", [-1e-9, -1e-15, 0.0, 1e-15, 1e-9])
def test_eta_at_the_very_border(off):
    """Where a token has just the least probability, the entropy is computed to the last bit."""
    for seed in range(6):
        logits = np.random.default_rng(seed).normal(0, 1, 3000).astype(np.float32)
        probabilities = np.exp(logits.astype(float) - reference.log_sum_exp(logits, 1.0))
        entropy = -float((probabilities * np.log(probabilities)).sum())
        for token in (0, 100, int(logits.argmin())):
            wanted = probabilities[token] * (1 + off) * np.exp(SLACK)
            epsilon = float((wanted * np.exp(entropy)) ** 2)
            if not wanted < epsilon < 1:
                continue
            made, expected = (
                record_of(logits, Sampling(eta_cutoff=epsilon), [1], [], 5, ops)
                for ops in (native, BY_DEFINITION)
            )
            assert made == expected


_WITHOUT_WHOLE_ROWS = {"xtc_probability": 0.0, "typical_p": 1.0, "top_n_sigma": 0.0, "eta_cutoff": 0.0}


def test_recorded_bits_stay_as_they_were():
    """The digest of records from before rows were sorted at once, which replays must find again."""
    digest = sha256()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        size = int(rng.choice([*SIZES, 20_000]))
        logits, sampling = random_logits(rng, size), random_sampling(rng, size)
        sampling = replace(sampling, **_WITHOUT_WHOLE_ROWS)
        prompt = rng.integers(0, size, 300).tolist()
        record = record_of(logits, sampling, prompt, prompt[:20], seed, native)
        digest.update(record if isinstance(record, bytes) else b"none left")
    assert digest.hexdigest() == "db8bdd2b65304ec5b570bb4ff89a981f06a0908748d38ce0510a33ebe59c6199"
