"""Products with matrices whose codes are places in a table: within the bound that rounding the rows to 8 bits
leaves, and the same bits on every instruction set and with any number of threads.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.random_models import random_model, random_tensor
from ops.test_arithmetic import check_equal

from glassloop.model.cache import Branches
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.native.packer import NativeMatrix, Packer
from glassloop.ops.quant import FORMATS, Float32
from glassloop.ops.tensor import Tensor

TABLES = [name for name in FORMATS if FORMATS[name].table]
# Bits of a weight in memory. Formats of four bits and more take at most 1.15 times their size in the file.
MOST_BITS = 4.6


def products(weight: Tensor, x: Float32) -> tuple[Float32, Float32]:
    """Returns the products of rows with a matrix, and its first rows as an embedding."""
    ops = NativeOps()
    rows, matrix = ops.matrix(Tensor.of("rows", x)), ops.matrix(weight)
    count = min(len(x), weight.shape[0])

    def compute(batch, pages):
        taken = ops.take(ops.embed(rows, batch.tokens), batch.wanted)
        return [ops.linear(ops.scale(taken, 1.0), matrix, None), ops.take(ops.embed(matrix, batch.tokens), 0)]

    pages = ops.cache([CacheSpec(1, 1, 8)], 1 << 20)
    batch = Batch.of([(np.zeros((1, 4), np.int32), 0, list(range(count)))], [count])
    first, second = ops.program(compute)(batch, pages)
    return first.copy(), second.copy()


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 27), out=st.integers(1, 50), size=st.integers(-8, 8)
)
def test_products_are_within_the_bound_and_rows_are_exact(name, seed, rows, out, size):
    rng = np.random.default_rng(seed)
    format = FORMATS[name]
    into = max(format.block_values, 64) * int(rng.integers(1, 4))
    weight = random_tensor(rng, "weight", (max(out, rows), into), format)
    x = (rng.standard_normal((rows, into)) * 2.0**size).astype(np.float32)
    found, embedded = products(weight, x)
    values = weight.float32()
    assert embedded.tobytes() == values[:rows].tobytes()
    # A value of a row is off by at most half a step, and a step is 1/127 of the largest of its block of 32.
    steps = np.abs(x).reshape(rows, -1, 32).max(axis=2) / 127
    bound = np.repeat(steps, 32, axis=1) / 2 @ np.abs(values).T
    exact = x.astype(np.float64) @ values.astype(np.float64).T
    assert (np.abs(found - exact) <= bound * 1.01 + np.abs(x) @ np.abs(values).T * 1e-5).all()


@pytest.mark.parametrize("name", TABLES)
def test_every_instruction_set_has_the_same_bits(name):
    def compute() -> bytes:
        rng = np.random.default_rng(7)
        weight = random_tensor(rng, "weight", (45, 512), FORMATS[name])
        x = rng.standard_normal((30, 512)).astype(np.float32)
        made = [products(weight, x[:rows]) for rows in (1, 2, 3, 13, 30)]
        config, weights = random_model(rng, name)
        ids = rng.integers(0, config.vocab_size, 20).tolist()
        logits = Branches(Transformer(config, weights, NativeOps()), 64).forward(
            [(0, 0, ids)], every_logit=True
        )
        return b"".join(part.tobytes() for pair in made for part in pair) + logits.tobytes()

    check_equal(compute)


@pytest.mark.parametrize("name", TABLES)
def test_scales_that_are_not_finite_or_very_small_have_the_same_bits_everywhere(name):
    """Random bytes: any scale, infinity and NaN too."""
    rng = np.random.default_rng(3)
    format = FORMATS[name]
    raw = rng.integers(0, 256, 40 * 512 // format.block_values * format.block_bytes, np.uint8)
    weight = Tensor("weight", (40, 512), format, raw)
    x = rng.standard_normal((9, 512)).astype(np.float32)

    def compute() -> bytes:
        return b"".join(np.where(np.isnan(part), 0, part).tobytes() for part in products(weight, x))

    check_equal(compute)


@pytest.mark.parametrize("name", TABLES)
def test_random_bytes_have_the_values_of_their_reader(name):
    """Every point of a grid, and any scale: C takes the blocks apart as `blocks.py` does."""
    format = FORMATS[name]
    raw = np.random.default_rng(5).integers(
        0, 256, 64 * 1024 // format.block_values * format.block_bytes, np.uint8
    )
    weight = Tensor("weight", (64, 1024), format, raw)
    with np.errstate(invalid="ignore"):
        expected = weight.float32()
    _, found = products(weight, np.zeros((64, 1024), np.float32))
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", [*TABLES, "Q4_0", "Q4_1", "Q4_K", "Q8_0"])
def test_memory_of_a_weight(name):
    format = FORMATS[name]
    weight = random_tensor(np.random.default_rng(0), "weight", (64, 1024), format)
    bits = NativeMatrix(weight, Packer()).data.nbytes * 8 / weight.size
    stored = format.block_bytes * 8 / format.block_values
    assert bits <= (MOST_BITS if stored < 4 else 1.15 * stored)


_DIGEST = """
import sys
from ops.test_table_formats import digest
print(digest())
"""


def digest() -> str:
    made = hashlib.sha256()
    for name in TABLES:
        rng = np.random.default_rng(1)
        weight = random_tensor(rng, "weight", (200, 512), FORMATS[name])
        for rows in (1, 7, 60):
            for part in products(weight, rng.standard_normal((rows, 512)).astype(np.float32)):
                made.update(part.tobytes())
    return made.hexdigest()


def test_threads_do_not_matter():
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env=os.environ | {"GLASSLOOP_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "5")
    }
    assert len(digests) == 1
