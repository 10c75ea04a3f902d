"""Attention of the native op set is what docs/ops.md defines, bit for bit. The oracle is the
definition in NumPy, for random sizes, windows, soft caps, chunks and pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.test_arithmetic import on_each

from glassloop.ops.batch import PAGE, Batch, pages_for
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor

LARGEST = np.float32(32767)


class Case(NamedTuple):
    q: Float32  # [rows, heads, head dim]
    k: Float32  # [rows, kv heads, head dim]
    v: Float32
    scale: float
    window: int | None
    softcap: float | None


# ── the definition ─────────────────────────────────────────────────────────────────────────────────────────


def fma(a: Float32, b: Float32, c: Float32) -> Float32:
    """Returns a * b + c, rounded once: the sum in double precision is rounded to odd first."""
    product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits % 2 == 0), bits + step, bits).view(np.float64)
    return odd.astype(np.float32)


def in_lanes(terms: Float32, squares: bool = False) -> np.float32:
    """Returns the sum in 16 lanes, of the terms or of their squares."""
    lanes = np.zeros(16, np.float32)
    for start in range(0, len(terms), 16):
        some = np.zeros(16, np.float32)
        some[: len(terms[start : start + 16])] = terms[start : start + 16]
        lanes = fma(some, some, lanes) if squares else lanes + some
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def quantize(x: Float32, whole: np.float32) -> tuple[Float32, np.float32]:
    """Returns the codes and the scale of a vector."""
    inverse = LARGEST / whole if whole > np.float32(1e-15) else np.float32(0)
    return np.round(x * inverse).astype(np.int64), whole / LARGEST


def exponential(x: Float32) -> Float32:
    clipped = np.clip(x, np.float32(-100), np.float32(88))  # below -87 the result is 0
    n = np.round(clipped * np.float32(1.44269504))
    r = fma(n, np.float32(2.12194440e-4), fma(n, np.float32(-0.693359375), clipped))
    p = np.float32(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, np.float32(c))
    p = fma(p, r * r, r + np.float32(1))
    return np.where(x < -87, np.float32(0), np.ldexp(p, n.astype(np.int32))).astype(np.float32)


def tanh(x: Float32) -> Float32:
    return np.float32(1) - np.float32(2) / (exponential(x + x) + np.float32(1))


def defined(case: Case, row: int, head: int) -> Float32:
    """Returns the output of a query as docs/ops.md defines it."""
    kv_head = head // (case.q.shape[1] // case.k.shape[1])
    first = 0 if case.window is None else max(0, row - case.window + 1)
    codes, scale = quantize(case.q[row, head], np.sqrt(in_lanes(case.q[row, head], squares=True)))
    scores = np.full(row + 1, -np.inf, np.float32)
    values, value_scales = [], np.zeros(row + 1, np.float32)
    for slot in range(row + 1):
        key, value = case.k[slot, kv_head], case.v[slot, kv_head]
        key_codes, key_scale = quantize(key, np.sqrt(in_lanes(key, squares=True)))
        value_codes, value_scales[slot] = quantize(value, np.abs(value).max())
        values.append(value_codes)
        if slot >= first:
            total = np.float32(codes @ key_codes)
            scores[slot] = (total * key_scale) * (np.float32(case.scale) * scale)
    if case.softcap:
        cap = np.float32(case.softcap)
        scores[first:] = tanh(scores[first:] / cap) * cap
    weights = exponential(scores - scores.max())
    out = np.zeros(case.q.shape[2], np.float32)
    for start in range(0, row + 1, PAGE):
        products = weights[start : start + PAGE] * value_scales[start : start + PAGE]
        total = in_lanes(products)
        inverse = LARGEST / total if total > np.float32(1e-30) else np.float32(0)
        shares = np.round(products * inverse).astype(np.int64)
        sums = (shares @ np.array(values[start : start + PAGE])).astype(np.float32)
        out = fma(sums, total / LARGEST, out)
    return out * (np.float32(1) / in_lanes(weights))


# ── the native op set ──────────────────────────────────────────────────────────────────────────────────────


class Attention:
    """Attention alone, on one branch: a token stands for the query, key and value of its row."""

    def __init__(self, case: Case, table: list[int]) -> None:
        ops = NativeOps()
        tables = [ops.matrix(Tensor.of("x", x.reshape(len(x), -1))) for x in case[:3]]
        heads = [x.shape[1] for x in case[:3]]

        def compute(batch, pages):
            rows = [ops.embed(each, batch.tokens) for each in tables]
            q, k, v = map(ops.split_heads, rows, heads)
            place, limits = (0, 0), (case.scale, case.window, case.softcap)
            return ops.take(ops.attention(q, k, v, batch, pages, place, *limits), batch.wanted)

        spec = CacheSpec(1, heads[1], case.q.shape[2])
        self.pages = ops.cache([spec], ops.page_bytes(spec) * (max(table) + 1))
        self._table = np.array([table], np.int32)
        self._run = ops.program(compute)

    def __call__(self, first: int, rows: range) -> Float32:
        """Returns the outputs of rows, whose first one has the slot `first`."""
        return self._run(Batch.of([(self._table, first, list(rows))], [len(rows)]), self.pages)


def chunks(rng: np.random.Generator, rows: int) -> Iterator[range]:
    start = 0
    while start < rows:
        stop = min(rows, start + int(rng.integers(1, 40)))
        yield range(start, stop)
        start = stop


def random_case(rng: np.random.Generator, rows: int) -> Case:
    kv_heads, group, head_dim = int(rng.integers(1, 3)), int(rng.integers(1, 5)), int(rng.integers(1, 70))
    shapes = [(rows, heads, head_dim) for heads in (kv_heads * group, kv_heads, kv_heads)]
    q, k, v = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    for x in (q, k, v):  # numbers of all sizes, and vectors with one that is much larger than the others
        x *= np.float32(10) ** rng.integers(-3, 3)
        x[rng.random(rows) < 0.2, :, rng.integers(head_dim)] *= 50
        x[rng.random(rows) < 0.1] = 0
    window = int(rng.integers(1, rows + 1)) if rng.random() < 0.4 else None
    softcap = float(rng.uniform(5, 50)) if rng.random() < 0.4 else None
    return Case(q, k, v, float(head_dim**-0.5), window, softcap)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_attention_is_what_the_document_defines(seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng, rows=int(rng.integers(1, 150)))
    rows, heads, head_dim = case.q.shape
    table = rng.permutation(pages_for(rows) + 2)[: pages_for(rows)].tolist()
    split = list(chunks(rng, rows))

    def compute() -> bytes:
        attention = Attention(case, table)
        return np.concatenate([attention(each.start, each) for each in split]).tobytes()

    for name, made in on_each(compute):
        found = np.frombuffer(made, np.float32).reshape(rows, heads, head_dim)
        for row in {0, rows - 1, *rng.integers(0, rows, 3).tolist()}:
            for head in range(heads):
                expected = defined(case, row, head)
                assert found[row, head].tobytes() == expected.tobytes(), (name, row, head)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("field", ["q", "k", "v"])
def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_other(field, value):
    """The squares of 3e38 are not finite; as a value it is a number like others."""
    case = random_case(np.random.default_rng(5), 50)._replace(window=None, softcap=None)
    getattr(case, field)[20, 0, 0] = value
    for name, made in on_each(lambda: Attention(case, [0, 1])(0, range(50)).tobytes()):
        found = np.frombuffer(made, np.float32).reshape(50, -1, case.q.shape[2])[:, 0]
        bad = ~np.isfinite(found).all(axis=1)
        reached = [20] if field == "q" else range(20, 50)
        if field == "v" and value == 3e38:
            reached = []
        assert bad.nonzero()[0].tolist() == list(reached), name


def test_what_another_branch_left_in_a_page_changes_nothing():
    case = random_case(np.random.default_rng(6), 60)._replace(window=None)
    case.k[30:], case.v[30:] = np.nan, np.inf
    for name, same in on_each(lambda: _used_pages_equal_new_ones(case)):
        assert same == b"1", name


def _used_pages_equal_new_ones(case: Case) -> bytes:
    used, new = Attention(case, [0, 1]), Attention(case, [0, 1])
    used(0, range(30, 60))
    return b"%d" % (used(0, range(20)).tobytes() == new(0, range(20)).tobytes())
