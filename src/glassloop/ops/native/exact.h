/* Logarithm, exponential, sine and cosine, written out in operations whose result IEEE 754 determines, so that they have
 * the same bits on every machine; those of the C library do not. `ops/exact.py` has the same in NumPy. Nothing here
 * uses a fused multiply-add, which not every processor has.
 */
#ifndef GLASSLOOP_EXACT_H
#define GLASSLOOP_EXACT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t gl_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

static inline double gl_from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* The logarithm of a normal positive number, as docs/luck.md specifies it. */
static inline double gl_normal_log(double x) {
    uint64_t bits = gl_bits(x);
    int64_t exponent = (int64_t)(bits >> 52 & 0x7ff) - 1022;
    /* x = fraction * 2^exponent, fraction from 1/2 to 1 */
    double fraction = gl_from_bits((bits & 0x800fffffffffffffu) | (uint64_t)1022 << 52);
    int low = fraction < 0.7071067811865476;
    double f = (low ? fraction + fraction : fraction) - 1.0, k = (double)(exponent - low);
    double s = f / (2.0 + f), z = s * s, w = z * z;
    double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    double odd = z * (6.666666666666735130e-01 +
                      w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    double half = 0.5 * f * f;
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f);
}

/* The logarithm of any number: minus infinity below the smallest normal one. */
static inline double gl_log(double x) {
    if (!(x < INFINITY)) return x; /* infinity, or NaN */
    return x < 0x1p-1022 ? -INFINITY : gl_normal_log(x);
}

#define GL_MAGIC 6755399441055744.0 /* 1.5 * 2^52: adding it rounds to a whole number, which the low bits then hold */

/* e^x: 2^k times the Taylor polynomial of degree 13 on [-ln2/2, ln2/2], whose even and odd powers are summed apart,
 * side by side. 0 below -708, infinity above 709. */
static inline double gl_exp(double x) {
    if (x < -708.0) return 0.0;
    if (!(x <= 709.0)) return x > 709.0 ? INFINITY : x;
    double shifted = x * 1.4426950408889634 + GL_MAGIC, k = shifted - GL_MAGIC;
    double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10, z = r * r;
    double even = 1.0 / 479001600, odd = 1.0 / 6227020800.0;
    even = even * z + 1.0 / 3628800, odd = odd * z + 1.0 / 39916800;
    even = even * z + 1.0 / 40320, odd = odd * z + 1.0 / 362880;
    even = even * z + 1.0 / 720, odd = odd * z + 1.0 / 5040;
    even = even * z + 1.0 / 24, odd = odd * z + 1.0 / 120;
    even = even * z + 1.0 / 2, odd = odd * z + 1.0 / 6;
    double p = 1.0 + (r + z * (even + r * odd));
    return p * gl_from_bits((gl_bits(shifted) + 1023) << 52);
}

/* Sine and cosine of an angle whose number of right angles is below 2^20, for results that are rounded to float: the
 * Taylor polynomials of degree 13 and 12 on [-pi/4, pi/4]. */
static inline void gl_sin_cos(double x, double *sine, double *cosine) {
    double shifted = x * 0.63661977236758138 + GL_MAGIC, k = shifted - GL_MAGIC;
    double r = (x - k * 1.57079632673412561417e+00) - k * 6.07710050650619224932e-11, z = r * r;
    double s = 1.0 / 6227020800.0, c = 1.0 / 479001600;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = s * (z * r) + r;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 1.0 / 2;
    c = c * z + 1.0;
    uint64_t quarter = gl_bits(shifted); /* its two low bits count right angles */
    *sine = quarter & 1 ? c : s;
    *cosine = quarter & 1 ? s : c;
    if (quarter & 2) *sine = -*sine;
    if ((quarter + 1) & 2) *cosine = -*cosine;
}

#endif
