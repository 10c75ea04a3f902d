"""Luck on the device (docs/luck.md), by the operations of the native op set, so that it has the same bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normal_log(x):
    """Returns the logarithm of normal positive doubles: `gl_normal_log` of ops/native/exact.h."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) & 0x7FF) - 1022
    fraction = ((bits & 0x000FFFFFFFFFFFFF) | (1022 << 52)).to(tl.float64, bitcast=True)
    low = fraction < 0.7071067811865476
    f = tl.where(low, fraction + fraction, fraction) - 1.0
    k = (exponent - low.to(tl.int64)).to(tl.float64)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half = 0.5 * f * f
    return k * 6.93147180369123816490e-01 - (
        (half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f
    )


@triton.jit
def mixed(x):
    """Returns the hash of 64-bit numbers: `mix` of ops/exact.py."""
    x = (x ^ (x >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def position_key(branch, position):
    """Returns the key of the luck of a branch at a position."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    return mixed(branch.to(tl.uint64) + golden + position.to(tl.uint64))


@triton.jit
def uniform_bits(key, ids):
    """Returns the upper 52 bits of the hash of each id: docs/luck.md."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    return (mixed(key + (ids + 1).to(tl.uint64) * golden) >> 12).to(tl.int64)


@triton.jit
def unlucky_share(bits):
    """Returns the share of tokens that have more luck than one with these bits, in float32."""
    return ((4503599627370496 - bits).to(tl.float32) - 0.5) * 2.220446049250313e-16


@triton.jit
def rough_luck(bits):
    """Returns luck in float32, to about six digits."""
    share = unlucky_share(bits)
    # -log(1 - share), of which a small share would lose the digits.
    tail = tl.where(share < 0.01, share * (1.0 + share * (0.5 + share * 0.3333333)), -tl.log(1.0 - share))
    return -tl.log(tail)


@triton.jit
def luck_of(bits):
    """Returns Gumbel noise from the bits of a hash."""
    uniform = (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -normal_log(-normal_log(uniform))
