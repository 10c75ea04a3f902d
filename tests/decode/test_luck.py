"""Luck is what docs/luck.md says, to the bit, and is Gumbel noise that no neighbour shares."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.decode import luck as definition
from glassloop.decode.decoder import Decoder
from glassloop.decode.luck import coin, fork_salt, hash_ids, list_seed, luck, luck_key, luck_of
from glassloop.decode.sampling import Sampling
from glassloop.ops.exact import log_normal, mix

DOCUMENT = Path(__file__).parents[2] / "docs" / "luck.md"
SEEDS = st.integers(0, 2**64 - 1)


def table(title: str) -> list[list[str]]:
    """The rows of the table under a heading of the document."""
    section = DOCUMENT.read_text().split(f"### {title}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_the_vectors_of_the_document_hold():
    vectors = table("Luck of a token")
    assert len(vectors) >= 8
    for seed, salt, position, token, key, bits, value in vectors:
        numbers = int(seed), int(salt), int(position)
        assert luck_key(*numbers) == int(key, 16)
        assert int(hash_ids(int(key, 16), np.array([int(token)]))[0]) == int(bits, 16)
        assert luck(*numbers, np.array([int(token)]))[0] == float(value)  # to the last bit


def test_the_coins_and_fork_salts_of_the_document_hold():
    for seed, salt, position, value in table("Coins"):
        assert coin(int(seed), int(salt), int(position)) == float(value)
    for salt, position, ordinal, made in table("Salts of forks"):
        assert fork_salt(int(salt, 16), int(position), int(ordinal)) == int(made, 16)


def test_the_seeds_of_lists_of_the_document_hold():
    vectors = table("Seeds of a list")
    assert len(vectors) >= 5
    for seed, number, made in vectors:
        assert list_seed(int(seed), int(number)) == int(made)


@given(SEEDS)
def test_the_seeds_of_a_list_differ_and_are_exact_as_doubles(seed):
    made = [list_seed(seed, number) for number in range(200)]
    assert made[0] == seed and len(set(made)) == 200
    assert all(int(float(each)) == each for each in made[1:])


def test_the_constants_of_the_document_are_those_of_the_code():

    text = DOCUMENT.read_text()
    for constant in (definition.GOLDEN, definition.FIRST, definition.SECOND):
        assert f"0x{constant:016X}" in text
    source = inspect.getsource(log_normal)
    spelled = re.findall(r"\d\.\d{15,}e[-+]\d\d", source)
    assert len(spelled) == 9 and all(number in text for number in spelled)


@given(SEEDS, st.integers(0, 2**32), st.integers(0, 2**20), st.integers(0, 2**18))
def test_the_hash_on_arrays_equals_its_definition_on_whole_numbers(seed, salt, position, token):
    key = 0
    for part in (seed, salt, position):
        key = mix((key + 0x9E3779B97F4A7C15 + part) % 2**64)
    expected = mix((key + (token + 1) * 0x9E3779B97F4A7C15) % 2**64)
    assert int(hash_ids(luck_key(seed, salt, position), np.array([token]))[0]) == expected


@given(SEEDS)
def test_the_logarithm_is_within_a_rounding_of_the_library_s(key):
    ids = np.arange(500)
    uniform = ((hash_ids(key, ids) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    np.testing.assert_allclose(luck_of(key, ids), -np.log(-np.log(uniform)), rtol=1e-14, atol=1e-15)


def test_luck_is_finite_at_both_ends(monkeypatch):

    for bits in (0, 2**64 - 1):
        monkeypatch.setattr(definition, "hash_ids", lambda key, ids, b=bits: np.full(1, b, np.uint64))
        (value,) = luck_of(0, np.array([0]))
        assert value == pytest.approx(-np.log(53 * np.log(2)) if bits == 0 else 53 * np.log(2))


def test_it_works_on_torch_tensors_with_the_same_integers():
    """64-bit whole numbers wrap in torch as they do here, so the same formula gives the same bits."""
    import torch

    def signed(x):
        return x - 2**64 if x >= 2**63 else x

    def shifted(x, by):  # a logical shift: torch has signed numbers only
        return (x >> by) & ((1 << (64 - by)) - 1)

    key = luck_key(7, 1, 12)
    x = signed(key) + (torch.arange(1000) + 1) * signed(0x9E3779B97F4A7C15)
    x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
    x = x ^ shifted(x, 31)
    assert (x.numpy().view(np.uint64) == hash_ids(key, np.arange(1000))).all()


# ── the distribution ───────────────────────────────────────────────────────────────────────────────────────


def noise(vary):
    """A table of luck, [400, 500], with one of seed, salt and position along the first axis."""
    return np.stack([luck(*vary(i), np.arange(500)) for i in range(400)])


VARIED = {
    "seed": lambda i: (i, 0, 0),
    "high bits of the seed": lambda i: (i << 40, 0, 3),
    "salt": lambda i: (9, i, 0),
    "position": lambda i: (9, 0, i),
}


@pytest.mark.parametrize("vary", VARIED.values(), ids=VARIED)
def test_luck_is_gumbel_noise_and_neighbours_are_independent(vary):
    values = noise(vary)
    count = values.size
    assert values.mean() == pytest.approx(0.5772157, abs=5 * np.sqrt(np.pi**2 / 6 / count))
    assert values.var() == pytest.approx(np.pi**2 / 6, abs=0.03)
    limit = 5 / np.sqrt(count)
    assert abs(np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]) < limit  # neighbours of `vary`
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < limit  # neighbouring ids
    assert abs(np.corrcoef(values[:-1, :-1].ravel(), values[1:, 1:].ravel())[0, 1]) < limit


def test_every_bit_of_seed_salt_and_position_matters():
    ids = np.arange(64)
    start = hash_ids(luck_key(5, 6, 7), ids)
    for place in range(3):
        for bit in range(64 if place < 2 else 31):
            numbers = [5, 6, 7]
            numbers[place] ^= 1 << bit
            changed = np.bitwise_count(start ^ hash_ids(luck_key(*numbers), ids)).mean()
            assert 28 < changed < 36  # half of 64 bits


# ── drawing with it ────────────────────────────────────────────────────────────────────────────────────────


def g_statistic(options, logits, draws=6000):
    """Twice the log-likelihood ratio of what was drawn over positions against the survivors' probabilities,
    and its degrees of freedom."""
    decoder = Decoder(Sampling(**options, logprobs=0), len(logits), seed=11)
    counts = np.zeros(len(logits))
    for _ in range(draws):
        counts[decoder.choose(logits).id] += 1
        decoder.step.position += 1
    left = []
    decoder.run_stages(logits, lambda stage, before, after: left.append(after))
    after = left[-1].logits_of(np.arange(len(logits))) if left else logits.astype(np.float64)
    expected = np.exp(after - after.max())
    expected *= draws / expected.sum()
    drawn = counts > 0
    with np.errstate(divide="ignore"):
        return 2 * (counts[drawn] * np.log(counts[drawn] / expected[drawn])).sum(), (expected > 0).sum() - 1


DISTRIBUTION = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01], np.float32))
REQUESTS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 3},
    {"top_p": 0.8, "temperature": 1.5},
    {"min_p": 0.2},
    {"logit_bias": {5: 4.0}},
]
# Chance passes these once in a hundred thousand, with so many degrees of freedom.
LIMITS = {1: 19.5, 2: 23.0, 3: 25.9, 4: 28.5, 5: 30.9}


@pytest.mark.parametrize("options", REQUESTS, ids=str)
def test_tokens_are_drawn_with_their_probabilities(options):
    statistic, freedom = g_statistic(options, DISTRIBUTION)
    assert statistic < LIMITS[int(freedom)]


MUTANTS = {
    "too little luck": lambda key, ids: luck_of(key, ids) * 0.85,  # as if the temperature were another
    "too much luck": lambda key, ids: luck_of(key, ids) * 1.15,
    "the wrong tail": lambda key, ids: -luck_of(key, ids),
    "some ids are luckier": lambda key, ids: luck_of(key, ids) + 0.06 * ids,
    "normal noise": lambda key, ids: np.random.default_rng(key).normal(0.5772, np.pi / 6**0.5, len(ids)),
    "the same at every position": lambda key, ids: luck_of(3, ids),
    "none": lambda key, ids: np.zeros(len(ids)),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_sampler_is_caught(monkeypatch, mutant):
    monkeypatch.setattr(definition, "luck_of", mutant)
    statistic, freedom = g_statistic({}, DISTRIBUTION)
    assert statistic > LIMITS[int(freedom)]


def test_another_key_is_as_good(monkeypatch):
    """The control of the test above: this mutant is right, and passes."""
    monkeypatch.setattr(definition, "luck_of", lambda key, ids: luck_of(key ^ 0xABCDEF, ids))
    statistic, freedom = g_statistic({}, DISTRIBUTION)
    assert statistic < LIMITS[int(freedom)]


def test_the_seed_the_salt_and_the_position_decide():
    logits = np.zeros(1000, np.float32)
    ids = {
        Decoder(Sampling(), 1000, seed, [0] * position, salt).choose(logits).id
        for seed in (1, 2)
        for salt in (0, 1, fork_salt(0, 3, 1))
        for position in (3, 4)
    }
    assert len(ids) >= 11  # twelve draws of a thousand
    again = [Decoder(Sampling(), 1000, 1, [0] * 3).choose(logits).id for _ in range(2)]
    assert again[0] == again[1]


def test_the_answer_does_not_depend_on_neighbours():
    """Eight branches step by step, together in any company or alone: the same tokens."""
    random = np.random.default_rng(3)
    requests = [
        Sampling(),
        Sampling(temperature=0),
        Sampling(top_k=5, repetition_penalty=1.3),
        Sampling(top_p=0.7, xtc_probability=0.5),
        Sampling(seed=4, dry_multiplier=1.0),
        Sampling(typical_p=0.5),
        Sampling(presence_penalty=1.0, temperature=2.0),
        Sampling(min_p=0.1),
    ]
    rows = random.normal(0, 2, (20, 300)).astype(np.float32)

    def tokens(company, mine):
        """One branch without a seed is always there: its luck is new every time."""
        unseeded = Decoder(Sampling(), 300, int(np.random.default_rng().integers(2**63)))
        decoders = [(i, Decoder(requests[i], 300, seed=100 + i)) for i in company]
        made = []
        for row in rows:
            for i, decoder in decoders:
                chosen = decoder.choose(row).id
                decoder.commit(chosen)
                if i == mine:
                    made.append(chosen)
            unseeded.commit(unseeded.choose(row).id)
        return made

    for mine in range(8):
        alone = tokens([mine], mine)
        assert tokens(range(8), mine) == alone == tokens([7 - mine, mine], mine)
