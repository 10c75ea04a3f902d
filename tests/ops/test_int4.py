"""Codes of four bits with a zero for each block (`INT4`): the same values and products as in Q8_0, to which
the kernels subtract no zero, on every instruction set.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.test_arithmetic import check_equal
from ops.test_table_formats import products

from glassloop.ops.native.packer import packed_bytes
from glassloop.ops.quant import FORMATS, INT4
from glassloop.ops.tensor import Tensor


def _twins(rng: np.random.Generator, out: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Returns a random matrix in both formats."""
    scale = (rng.standard_normal((out * blocks, 1)) / 16).astype(np.float16)
    zero = rng.integers(0, 16, (out * blocks, 1), np.uint8)
    codes = rng.integers(0, 16, (out * blocks, 32), np.uint8)
    nibbles = codes[:, :16] | codes[:, 16:] << 4
    small = np.concatenate([scale.view(np.uint8), zero, nibbles], axis=1)
    signed = codes.astype(np.int8) - zero.astype(np.int8)
    large = np.concatenate([scale.view(np.uint8), signed.view(np.uint8)], axis=1)
    shape = (out, 32 * blocks)
    return (
        Tensor("weight", shape, INT4, small.reshape(-1)),
        Tensor("weight", shape, FORMATS["Q8_0"], large.reshape(-1)),
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 27), out=st.integers(1, 50), blocks=st.integers(1, 9)
)
def test_values_and_products_equal_those_of_q8_0(seed, rows, out, blocks):
    rng = np.random.default_rng(seed)
    small, large = _twins(rng, max(out, rows), blocks)
    assert (small.float32() == large.float32()).all()
    x = rng.standard_normal((rows, 32 * blocks)).astype(np.float32)
    for ours, theirs in zip(products(small, x), products(large, x), strict=True):
        assert (ours == theirs).all()


def test_every_instruction_set_has_the_same_bits():
    def compute() -> bytes:
        rng = np.random.default_rng(3)
        small, _ = _twins(rng, 45, 8)
        return b"".join(
            each.tobytes() for each in products(small, rng.standard_normal((30, 256)).astype("f4"))
        )

    check_equal(compute)


@pytest.mark.parametrize("out", [64, 128])
def test_a_weight_takes_less_than_five_bits(out):
    assert packed_bytes((out, 512), INT4) * 8 == 4.75 * out * 512
