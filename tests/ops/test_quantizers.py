"""What the quantizers write: read by the `gguf` package, close to the values, and never wrong for odd
blocks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as read
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glassloop.ops.quant import FORMATS, dequantize, quantize

# The error of llama.cpp (ggml_quantize_chunk) for the same normal values, in parts of their root mean square.
THEIRS = {"Q4_0": 0.0861, "Q4_K": 0.0715, "Q5_K": 0.0362, "Q6_K": 0.0178, "IQ4_NL": 0.0762, "MXFP4": 0.1142}
WRITTEN = [*THEIRS]


def _type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def _block(name: str) -> int:
    return int(gguf.GGML_QUANT_SIZES[_type(name)][0])


def _round_trip(name: str, values: np.ndarray) -> np.ndarray:
    raw = FORMATS[name].write(values.reshape(-1, _block(name)))
    assert raw.dtype == np.uint8 and raw.shape[1] == gguf.GGML_QUANT_SIZES[_type(name)][1]
    return read(raw, _type(name)).reshape(values.shape)


@pytest.mark.parametrize("name", WRITTEN)
def test_errors_are_those_of_llama_cpp_or_less(name):
    values = (np.random.default_rng(0).standard_normal((256, 1024)) * 0.02).astype(np.float32)
    difference = _round_trip(name, values) - values
    error = np.sqrt(np.square(difference).mean() / np.square(values).mean())
    assert error < 1.01 * THEIRS[name]


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_block_is_worse_than_zeros(name, data):
    """Any finite weights of a usual size: what is read back is nearer than zeros would be, and finite."""
    numbers = st.floats(-8, 8, width=32).filter(lambda number: number == 0 or abs(number) > 1e-3)
    values = data.draw(arrays(np.float32, (2, 256), elements=numbers, fill=st.just(0.0)))
    found = _round_trip(name, values)
    assert np.isfinite(found).all()
    assert np.square(found - values).sum() <= np.square(values).sum() * 1.0001 + 1e-6


@pytest.mark.parametrize("name", WRITTEN)
def test_zeros_stay_zeros_and_signs_stay(name):
    assert not _round_trip(name, np.zeros((3, 256), np.float32)).any()
    row = np.where(np.arange(256) % 2, 1.0, -1.0).astype(np.float32)[None]
    assert (np.sign(_round_trip(name, row)) == row).all()


@pytest.mark.parametrize("name", WRITTEN)
def test_our_reader_reads_them_as_gguf_does(name):
    values = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    raw = quantize(FORMATS[name], values)
    theirs = read(raw.reshape(-1, FORMATS[name].block_bytes), _type(name)).reshape(-1)
    np.testing.assert_array_equal(dequantize(FORMATS[name], raw), theirs)
