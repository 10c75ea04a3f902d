"""Exponential, logarithm, sine, cosine and a hash with the same bits on every machine.

Those of NumPy and of the C library differ between processors in the last bit, and so would the numbers of a
record. These consist of operations whose result IEEE 754 determines. `ops/native/exact.h` has the same in C.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import GlassloopError
from glassloop.ops.native import library as lib

Float64 = NDArray[np.float64]

# Of SplitMix64, whose bits luck is made from: docs/luck.md.
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_MAGIC = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to a whole number, which the low bits then hold
_LN2, _LN2_REST = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_RIGHT_ANGLE, _RIGHT_ANGLE_REST = 1.57079632673412561417e00, 6.07710050650619224932e-11


def _inverse_factorial(number: int) -> float:
    product = 1
    for factor in range(2, number + 1):
        product *= factor
    return 1.0 / product


@cache
def _native() -> Any:
    """Returns the C library, which is faster, or None where there is none that can be used."""
    with suppress(OSError, GlassloopError):
        return lib.library()
    return None


def exp(x: Float64) -> Float64:
    """Returns e^x: 0 below -708, infinity above 709."""
    native = _native()
    if native is None:
        return exp_in_numpy(x)
    x = np.ascontiguousarray(x, np.float64)
    result = np.empty_like(x)
    native.gl_exp_each(lib.address(x), x.size, lib.address(result))
    return result


def exp_in_numpy(x: Float64) -> Float64:
    clipped = np.clip(x, -708.0, 709.0)
    shifted = clipped * 1.4426950408889634 + _MAGIC
    k = shifted - _MAGIC
    r = (clipped - k * _LN2) - k * _LN2_REST
    z = r * r
    even: Float64 = np.full_like(z, _inverse_factorial(12))
    odd: Float64 = np.full_like(z, _inverse_factorial(13))
    for power in (10, 8, 6, 4, 2):
        even = even * z + _inverse_factorial(power)
        odd = odd * z + _inverse_factorial(power + 1)
    powers: Float64 = (1.0 + (r + z * (even + r * odd))) * ((shifted.view(np.int64) + 1023) << 52).view(
        np.float64
    )
    return np.where(x < -708.0, 0.0, np.where(x > 709.0, np.inf, powers))


def log_normal(x: Float64) -> Float64:
    """Returns the logarithm of normal positive numbers by the method and constants of fdlibm's `log`."""
    fraction, exponent = np.frexp(x)  # x = fraction · 2^exponent, fraction from 1/2 to 1
    low = fraction < 0.7071067811865476
    f = np.where(low, fraction + fraction, fraction) - 1.0  # 1 + f lies between √½ and √2
    k = (exponent - low).astype(np.float64)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half = 0.5 * f * f
    r: Float64 = k * 6.93147180369123816490e-01 - (
        (half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f
    )
    return r


def sin_cos(x: Float64) -> tuple[Float64, Float64]:
    """Returns sine and cosine, to within 10^-12, of angles up to a million."""
    shifted = x * 0.63661977236758138 + _MAGIC
    k = shifted - _MAGIC
    r = (x - k * _RIGHT_ANGLE) - k * _RIGHT_ANGLE_REST
    z = r * r
    s: Float64 = np.full_like(z, _inverse_factorial(13))
    c: Float64 = np.full_like(z, _inverse_factorial(12))
    for power, sign in ((11, -1), (9, 1), (7, -1), (5, 1), (3, -1)):
        s = s * z + sign * _inverse_factorial(power)
    s = s * (z * r) + r
    for power, sign in ((10, -1), (8, 1), (6, -1), (4, 1), (2, -1), (0, 1)):
        c = c * z + sign * _inverse_factorial(power)
    quarter = shifted.view(np.int64)  # its two low bits count right angles
    sine, cosine = np.where(quarter & 1, c, s), np.where(quarter & 1, s, c)
    return np.where(quarter & 2, -sine, sine), np.where((quarter + 1) & 2, -cosine, cosine)


def mix(x: int) -> int:
    """Returns the finalizer of SplitMix64: a bijection of 64 bits in which every input bit affects every
    output bit."""
    x = ((x ^ (x >> 30)) * FIRST) & _WORD
    x = ((x ^ (x >> 27)) * SECOND) & _WORD
    return x ^ (x >> 31)


def exp_of(x: float) -> float:
    return float(exp(np.array([x]))[0])


def log_of(x: float) -> float:
    """Returns the logarithm of a number, minus infinity below the smallest normal one."""
    if not x < np.inf:  # infinity, or NaN
        return x
    return -np.inf if x < 2.0**-1022 else float(log_normal(np.array([x]))[0])


def power(base: float, exponents: Float64) -> Float64:
    """Returns a positive base to the power of each exponent."""
    return exp(exponents * log_of(base))
