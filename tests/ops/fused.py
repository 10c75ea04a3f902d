"""A fused multiply-add in NumPy, rounded once as in hardware: Triton's interpreter rounds the product too."""

from __future__ import annotations

from typing import Any

import numpy as np

Float64 = Any


def fused(a: Float64, b: Float64, c: Float64) -> Float64:
    """Returns a * b + c for doubles, rounded once: `vd_fma_normal` of ops/native/rows.h, which says how."""
    product = a * b
    high_a, high_b = _upper_half(a), _upper_half(b)
    low_a, low_b = a - high_a, b - high_b
    product_rest = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    larger, small = _exact_sum(c, product_rest)
    total, rest = _exact_sum(product, larger)
    odd, error = _exact_sum(small, rest)
    bits = odd.view(np.int64)
    inexact, even, inward = error != 0, (bits & 1) == 0, (error > 0) != (odd > 0)
    step = np.where(inexact & even, np.where(inward, -1, 1), 0)
    return total + (bits + step).view(np.float64)


def _upper_half(x: Float64) -> Float64:
    shifted = x * 134217729.0
    return shifted - (shifted - x)


def _exact_sum(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """Returns a + b, and what the rounding left."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)
