"""The functions over rows, luck and the race in C give what their NumPy definitions give."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops.test_native import instructions  # noqa: F401  (a fixture)

from glassloop import Sampling
from glassloop.decode import luck
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.ops import rows as reference
from glassloop.ops.native import rows as native

_LOGIT = st.floats(-100, 100, width=32) | st.just(-np.inf) | st.sampled_from([0.0, 1.0, 1.5])
_ROWS = st.lists(_LOGIT, min_size=1, max_size=200).map(lambda row: np.array(row, np.float32))


@pytest.mark.parametrize("odd", ["same", "ascending", "one"])
@pytest.mark.parametrize("top", [1, 64, 2000])
def test_rows_of_an_odd_shape(odd, top):
    row = np.zeros(9000, np.float32)
    if odd == "ascending":
        row = np.arange(9000, dtype=np.float32)
    elif odd == "one":
        row[:] = -np.inf
        row[77] = 1.0
    for made, expected in zip(native.highest(row, top), reference.highest(row, top), strict=True):
        assert made.tolist() == expected.tolist()


@given(row=_ROWS, top=st.integers(1, 220))
def test_summaries(row, top):
    expected, made = reference.summarize(row, top), native.summarize(row, top)
    assert made.ids.tolist() == expected.ids.tolist()
    assert made.logits.tolist() == expected.logits.tolist()
    assert made.log_sum_exp == pytest.approx(expected.log_sum_exp, abs=1e-11)
    assert made.entropy == pytest.approx(expected.entropy, abs=1e-11)
    assert made.finite


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@given(row=_ROWS, data=st.data())
def test_rows_that_are_not_numbers(wrong, row, data):
    row[data.draw(st.integers(0, len(row) - 1))] = wrong
    assert not native.summarize(row, 3).finite and not reference.summarize(row, 3).finite


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("size", [1, 7, 49152, 262144])
def test_whole_vocabularies(size):
    row = (np.random.default_rng(size).standard_normal(size) * 4).astype(np.float32)
    expected, made = reference.summarize(row, 64), native.summarize(row, 64)
    assert made.ids.tolist() == expected.ids.tolist()
    assert made.log_sum_exp == pytest.approx(expected.log_sum_exp, abs=1e-11)
    assert made.entropy == pytest.approx(expected.entropy, abs=1e-11)
    for scale in (0.3, 1.0, 1 / 0.05):
        assert native.log_sum_exp(row, scale) == pytest.approx(reference.log_sum_exp(row, scale), rel=1e-12)
        decoder = Decoder(Sampling(temperature=1 / scale), len(row), 3, ops=native)
        assert decoder.choose(row).log_sum_exp_after == native.log_sum_exp(row, decoder.scale)


_EVERY_NUMBER = """
import hashlib, sys
import numpy as np
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.sampling import Sampling
from glassloop.ops.native import library, rows as native
library.library().gl_set_threads(int(sys.argv[1]))
rows = (np.random.default_rng(1).standard_normal((5, 70_000)) * 4).astype(np.float32)
asked = [
    Sampling(temperature=0), Sampling(temperature=0.5), Sampling(temperature=2, repetition_penalty=1.2),
    Sampling(top_p=0.5), Sampling(top_k=3000, min_p=0.1),
]
decoders = [Decoder(each, 70_000, 7, range(100), ops=native) for each in asked]
together = choose_rows(decoders, rows)
alone = [decoder.choose(row) for decoder, row in zip(decoders, rows)]
for made in (together, alone):
    told = hashlib.sha256()
    for chosen in made:
        told.update(repr(chosen).encode())
    for row in rows:
        ids, logits, *numbers = native.summarize(row, 80)
        told.update(ids.tobytes() + logits.tobytes() + np.array(numbers).tobytes())
        told.update(repr(native.chooser.race(3, ids, logits * 1.5, row, 1.5)).encode())
    print(told.hexdigest())
"""


def test_rows_and_threads_do_not_change_a_bit():
    told = set()
    for threads in ("1", "2", "5"):
        command = [sys.executable, "-c", _EVERY_NUMBER, threads]
        told |= set(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    assert len(told) == 1


def test_rows_may_lie_apart_and_be_read_only():
    wide = (np.random.default_rng(2).standard_normal((3, 500)) * 4).astype(np.float32)
    wide.flags.writeable = False
    for rows in (wide, wide[:, 3:450], wide[::2], wide[:, ::2]):
        decoders = [
            Decoder(Sampling(top_p=0.9), rows.shape[1], 3, ops=ops)
            for ops in (native, reference)
            for _ in rows
        ]
        chosen = choose_rows(decoders[: len(rows)], rows)
        for row, made, other in zip(rows, chosen, decoders[len(rows) :], strict=True):
            summary, expected = native.summarize(row, 9), reference.summarize(row, 9)
            assert summary.ids.tolist() == expected.ids.tolist()
            assert summary.log_sum_exp == pytest.approx(expected.log_sum_exp, abs=1e-11)
            assert isinstance(made, Chosen)
            assert made.id == other.choose(row).id


@given(row=_ROWS, data=st.data())
def test_ranks(row, data):
    token = data.draw(st.integers(0, len(row) - 1))
    assert native.rank_of(row, token) == reference.rank_of(row, token)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32), st.integers(1, 3000), st.integers(1, 70), st.data())
def test_race(key, seed, count, top, data):
    """Ties, tokens that are out, a head of any length, logits of any spread; with or without the rest."""
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(count) * data.draw(st.sampled_from([0.1, 3, 40]))).astype(np.float32)
    if data.draw(st.booleans()):
        row = np.round(row)
    row[rng.random(count) < data.draw(st.sampled_from([0, 0.3, 0.99]))] = -np.inf
    row[rng.integers(count)] = 1.0
    ids, best = reference.highest(row, top)
    ids, best = ids[best > -np.inf], best[best > -np.inf]
    scale = data.draw(st.sampled_from([1.0, 0.5, 7.3]))
    logits = best.astype(np.float64) * scale
    for rest in (row, None):
        made, expected = (race(key, ids, logits, rest, scale) for race in (native.chooser.race, luck.race))
        assert made == expected


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**31 - 1), max_size=50))
def test_luck_is_the_same_to_the_last_bit(key, ids):
    made, expected = (of(key, np.array(ids, int)) for of in (native.chooser.luck_of, luck.luck_of))
    assert made.tobytes() == expected.tobytes()
