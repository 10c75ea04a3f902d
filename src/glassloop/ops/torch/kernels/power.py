"""Powers of two and of e, by the operations of the native op set, so that they have the same bits."""

from __future__ import annotations

import triton
import triton.language as tl

_MAGIC = tl.constexpr(6755399441055744.0 + 1023)


@triton.jit
def power_of_two(x):
    """Returns 2^x for x from -1000 to 0: `power_of_two` of ops/native/rows.h."""
    shifted = x + _MAGIC
    r = x - (shifted - _MAGIC)
    p = tl.full(x.shape, 7.072585949269223e-09, tl.float64)
    p = tl.fma(p, r, tl.full(x.shape, 1.0208690299958306e-07, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 1.321544258792169e-06, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 1.5252657260200837e-05, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.0001540353044173605, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.0013333558230164974, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.009618129107606888, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.05550410866444772, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.24022650695910097, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.69314718055995, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 1.0, tl.float64))
    return p * (shifted.to(tl.int64, bitcast=True) << 52).to(tl.float64, bitcast=True)


@triton.jit
def power_of_e(x):
    """Returns e^x for x from -708 to 0: `gl_exp` of ops/native/exact.h."""
    magic = 6755399441055744.0
    shifted = x * 1.4426950408889634 + magic
    k = shifted - magic
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    z = r * r
    even = tl.full(x.shape, 1.0 / 479001600, tl.float64)
    odd = tl.full(x.shape, 1.0 / 6227020800.0, tl.float64)
    even = even * z + 1.0 / 3628800
    odd = odd * z + 1.0 / 39916800
    even = even * z + 1.0 / 40320
    odd = odd * z + 1.0 / 362880
    even = even * z + 1.0 / 720
    odd = odd * z + 1.0 / 5040
    even = even * z + 1.0 / 24
    odd = odd * z + 1.0 / 120
    even = even * z + 1.0 / 2
    odd = odd * z + 1.0 / 6
    p = 1.0 + (r + z * (even + r * odd))
    bits = (shifted.to(tl.int64, bitcast=True) + 1023) << 52
    return tl.where(x < -708.0, 0.0, p * bits.to(tl.float64, bitcast=True))
