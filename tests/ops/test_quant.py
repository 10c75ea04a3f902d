"""Every stored number format reads back exactly what the `gguf` package reads, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.model.gguf import GGUFFile
from glassloop.model.registry import fetch
from glassloop.ops.quant import FORMATS, dequantize, quantize
from glassloop.ops.tensor import Tensor


def _assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    # A NaN scale makes every value of its block NaN; which of the many NaNs is not part of the format.
    numbers = ~np.isnan(theirs)
    assert (np.isnan(ours) == ~numbers).all()
    assert ours[numbers].tobytes() == theirs[numbers].tobytes()


def _expected(name: str, raw: np.ndarray) -> np.ndarray:
    if name == "Q1_0":  # of which the package knows only the size: a scale, and a bit for each sign
        blocks = raw.reshape(-1, 18)
        signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
        return (blocks[:, :2].copy().view(np.float16).astype(np.float32) * signs).reshape(-1)
    if name == "Q2_0":  # newer than the package: a scale, and two bits for each of -1, 0, 1, 2
        blocks = raw.reshape(-1, 18)
        bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").reshape(len(blocks), 64, 2)
        codes = bits[..., 0].astype(np.float32) + 2 * bits[..., 1].astype(np.float32) - 1
        return (blocks[:, :2].copy().view(np.float16).astype(np.float32) * codes).reshape(-1)
    return gguf_dequantize(raw, gguf.GGMLQuantizationType[name]).reshape(-1)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 40))
def test_random_blocks_equal_the_gguf_package(name, seed, blocks):
    format = FORMATS[name]
    raw = np.random.default_rng(seed).integers(0, 256, blocks * format.block_bytes, np.uint8)
    with np.errstate(all="ignore"):
        _assert_same_bits(dequantize(format, raw), _expected(name, raw))


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_blocks_of_special_values_equal_the_gguf_package(name, data):
    """Bytes of which infinities, NaN, zeros of both signs, the smallest numbers and the outermost codes
    consist."""
    format = FORMATS[name]
    special = st.sampled_from([0x00, 0x01, 0x03, 0x7B, 0x7C, 0x7E, 0x7F, 0x80, 0x81, 0xFB, 0xFC, 0xFF])
    size = format.block_bytes * 2
    raw = np.array(data.draw(st.lists(special, min_size=size, max_size=size)), np.uint8)
    with np.errstate(all="ignore"):
        _assert_same_bits(dequantize(format, raw), _expected(name, raw))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_of_a_byte_equals_the_gguf_package(name):
    format = FORMATS[name]
    raw = np.random.default_rng(0).integers(0, 256, (256, format.block_bytes), np.uint8)
    raw[:, : format.block_bytes - format.block_values // 2] = np.arange(256, dtype=np.uint8)[:, None]
    with np.errstate(all="ignore"):
        _assert_same_bits(dequantize(format, raw.reshape(-1)), _expected(name, raw.reshape(-1)))


@pytest.mark.parametrize(
    "format", [each for each in FORMATS.values() if each.table], ids=lambda each: each.name
)
def test_codes_are_places_in_the_table(format):
    """In any block: the kernels look codes up without asking."""
    raw = np.random.default_rng(0).integers(0, 256, (500, format.block_bytes), np.uint8)
    codes = format.take_apart(raw).codes
    assert codes.dtype == np.uint8 and codes.max() < len(format.table) <= 16
    assert codes.shape[2] == format.group or format.name in ("Q1_0", "Q2_0")
    assert all(-127 <= value <= 127 for value in format.table)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "Q2_0"])
def test_sizes_equal_the_gguf_package(name):
    assert (FORMATS[name].block_values, FORMATS[name].block_bytes) == gguf.GGML_QUANT_SIZES[
        gguf.GGMLQuantizationType[name]
    ]
    assert FORMATS[name].gguf_id == gguf.GGMLQuantizationType[name].value


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_real_tensors_equal_the_gguf_package(model):
    """The first rows of every tensor, and the whole of the smallest of each format."""
    tensors = GGUFFile(fetch(model)).tensors
    whole: set[str] = set()
    for tensor in sorted(tensors.values(), key=lambda each: each.data.size):
        if tensor.format.name in whole:
            tensor = tensor.rows(slice(0, 32))
        whole.add(tensor.format.name)
        kind = gguf.GGMLQuantizationType[tensor.format.name]
        _assert_same_bits(dequantize(tensor.format, tensor.data), gguf_dequantize(tensor.data, kind))
    assert whole >= ({"Q4_1", "Q8_0", "F32"} if "smol" in model else {"Q4_K", "Q5_0", "Q6_K", "Q8_0", "F32"})


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "BF16", "F32"])
def test_picking_rows_and_reading_them_commute(name):
    format = FORMATS[name]
    rng = np.random.default_rng(1)
    values = 2 * format.block_values if format.block_values > 1 else 7
    # Finite scales: every byte small enough not to be an infinity or NaN in any float format.
    raw = rng.integers(0, 60, 6 * format.size_of(values), np.uint8)
    tensor = Tensor("t", (6, values), format, raw)
    order = np.array([4, 0, 5, 5])
    assert (tensor.rows(order).float32() == tensor.float32()[order]).all()
    assert (tensor.rows(slice(1, 3)).float32() == tensor.float32()[1:3]).all()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])
@given(
    seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 40), size=st.sampled_from([0.0, 1e-6, 1.0, 300.0])
)
def test_quantizing_equals_the_gguf_package(name, seed, blocks, size):
    format = FORMATS[name]
    values = (np.random.default_rng(seed).standard_normal(blocks * 32) * size).astype(np.float32)
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    assert quantize(format, values).tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])
def test_what_was_quantized_reads_back_within_half_a_step(name):
    values = np.random.default_rng(5).standard_normal(64 * 32).astype(np.float32)
    back = Tensor.of("t", values.reshape(64, 32)).stored_as(FORMATS[name]).float32().reshape(-1)
    steps = {"Q8_0": 2 * np.abs(values).max() / 254, "Q4_1": (values.max() - values.min()) / 15}
    assert np.abs(back - values).max() <= 0.51 * steps[name] + 1e-3
