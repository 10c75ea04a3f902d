/* A vector of LANES floats or 32-bit integers, and the operations that the kernels are written in.
 *
 * kernels.h is compiled once for each instruction set, over this file. A lane is one output of a matrix or one
 * key of the cache, never a part of a sum: so the order of every sum is the same on all of them. The caller
 * defines one of GL_AVX512, GL_AVXVNNI, GL_AVX2, or none for portable C.
 */
#ifndef GLASSLOOP_SIMD_H
#define GLASSLOOP_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* IEEE half to float and back, for machines without the instructions. */
static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
    if (exponent == 31) bits = sign | 0x7f800000u | mantissa << 13;
    else if (exponent) bits = sign | (exponent + 112) << 23 | mantissa << 13;
    else {
        float small = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &small, 4);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t float_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x7f800000) return sign | 0x7c00 | (bits > 0x7f800000 ? 0x200 : 0);
    if (bits >= 0x477ff000) return sign | 0x7c00; /* rounds to infinity */
    if (bits < 0x38800000) {                      /* subnormal: let the float unit round */
        float scaled;
        memcpy(&scaled, &bits, 4);
        scaled = scaled * 0x1p24f;
        return sign | (uint16_t)lrintf(scaled);
    }
    bits += 0xfff + (bits >> 13 & 1); /* to nearest, ties to even */
    return sign | (uint16_t)((bits - 0x38000000) >> 13);
}

#if defined(GL_AVX512)
#include <immintrin.h>
#define LANES 16
typedef __m512 vf;
typedef __m512i vi;
#define vf_load _mm512_loadu_ps
#define vf_store _mm512_storeu_ps
#define vf_set _mm512_set1_ps
#define vf_add _mm512_add_ps
#define vf_sub _mm512_sub_ps
#define vf_mul _mm512_mul_ps
#define vf_div _mm512_div_ps
#define vf_max _mm512_max_ps
#define vf_min _mm512_min_ps
#define vf_fma _mm512_fmadd_ps
#define vf_from_vi _mm512_cvtepi32_ps
#define vi_load(p) _mm512_loadu_si512((const void *)(p))
#define vi_zero _mm512_setzero_si512
static inline vf vf_load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline void vf_store_half(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_abs(vf x) { return _mm512_abs_ps(x); }
static inline vi low_nibbles(vi packed) { return _mm512_and_si512(packed, _mm512_set1_epi8(15)); }
static inline vi high_nibbles(vi packed) {
    return _mm512_and_si512(_mm512_srli_epi16(packed, 4), _mm512_set1_epi8(15));
}
static inline vi four_bytes(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
static inline vi dot_small(vi sum, vi codes, vi x) { return _mm512_dpbusd_epi32(sum, codes, x); }
static inline vi dot_small_sum(vi sum) { return sum; }
/* Signed weights as unsigned ones, 128 higher; dot_signed_sum takes off 128 times the sum of the activations. */
static inline vi signed_weights(vi raw) { return _mm512_xor_si512(raw, _mm512_set1_epi8((char)0x80)); }
static inline vi dot_signed(vi sum, vi weights, vi x) { return _mm512_dpbusd_epi32(sum, weights, x); }
static inline vi dot_signed_sum(vi sum, int32_t x_sum) { return _mm512_sub_epi32(sum, _mm512_set1_epi32(x_sum)); }
static inline void vi_store_bytes(int8_t *p, vf rounded) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(rounded)));
}

#elif defined(GL_AVX2) || defined(GL_AVXVNNI)
#include <immintrin.h>
#define LANES 8
typedef __m256 vf;
typedef __m256i vi;
#define vf_load _mm256_loadu_ps
#define vf_store _mm256_storeu_ps
#define vf_set _mm256_set1_ps
#define vf_add _mm256_add_ps
#define vf_sub _mm256_sub_ps
#define vf_mul _mm256_mul_ps
#define vf_div _mm256_div_ps
#define vf_max _mm256_max_ps
#define vf_min _mm256_min_ps
#define vf_fma _mm256_fmadd_ps
#define vf_from_vi _mm256_cvtepi32_ps
#define vi_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define vi_zero _mm256_setzero_si256
static inline vf vf_load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline void vf_store_half(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_times_power_of_two(vf x, vf n) {
    vi exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(exponent));
}
static inline vf vf_abs(vf x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
static inline vi low_nibbles(vi packed) { return _mm256_and_si256(packed, _mm256_set1_epi8(15)); }
static inline vi high_nibbles(vi packed) {
    return _mm256_and_si256(_mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
}
static inline vi four_bytes(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
#if defined(GL_AVXVNNI)
static inline vi dot_small(vi sum, vi codes, vi x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
static inline vi dot_small_sum(vi sum) { return sum; }
static inline vi signed_weights(vi raw) { return _mm256_xor_si256(raw, _mm256_set1_epi8((char)0x80)); }
static inline vi dot_signed(vi sum, vi weights, vi x) { return _mm256_dpbusd_avx_epi32(sum, weights, x); }
static inline vi dot_signed_sum(vi sum, int32_t x_sum) { return _mm256_sub_epi32(sum, _mm256_set1_epi32(x_sum)); }
#else
/* Codes up to 15: eight products of two pairs, 8 * 2 * 15 * 127 = 30480, still fit a 16-bit sum. */
static inline vi dot_small(vi sum, vi codes, vi x) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
    __asm__("" : "+x"(sum)); /* forces the sum now: compilers otherwise keep all products and run out of registers */
    return sum;
}
static inline vi dot_small_sum(vi sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
static inline vi signed_weights(vi raw) { return raw; }
static inline vi dot_signed(vi sum, vi weights, vi x) {
    vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline vi dot_signed_sum(vi sum, int32_t x_sum) { return (void)x_sum, sum; }
#endif
static inline void vi_store_bytes(int8_t *p, vf rounded) {
    vi wide = _mm256_cvtps_epi32(rounded);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}

#else
#define LANES 8
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
#define EACH_LANE for (int lane = 0; lane < LANES; lane++)
static inline vf vf_load(const float *p) { vf x; memcpy(&x, p, sizeof x); return x; }
static inline void vf_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
static inline vf vf_set(float f) { return (vf){f, f, f, f, f, f, f, f}; }
static inline vf vf_add(vf a, vf b) { return a + b; }
static inline vf vf_sub(vf a, vf b) { return a - b; }
static inline vf vf_mul(vf a, vf b) { return a * b; }
static inline vf vf_div(vf a, vf b) { return a / b; }
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf vf_max(vf a, vf b) { vf x; EACH_LANE x[lane] = a[lane] > b[lane] ? a[lane] : b[lane]; return x; }
static inline vf vf_min(vf a, vf b) { vf x; EACH_LANE x[lane] = a[lane] < b[lane] ? a[lane] : b[lane]; return x; }
static inline vf vf_from_vi(vi a) { vf x; EACH_LANE x[lane] = (float)a[lane]; return x; }
static inline vf vf_load_half(const uint16_t *p) { vf x; EACH_LANE x[lane] = half_to_float(p[lane]); return x; }
static inline vf vf_load_bf16(const uint16_t *p) {
    vf x;
    EACH_LANE {
        uint32_t bits = (uint32_t)p[lane] << 16;
        float f;
        memcpy(&f, &bits, 4);
        x[lane] = f;
    }
    return x;
}
static inline void vf_store_half(uint16_t *p, vf x) { EACH_LANE p[lane] = float_to_half(x[lane]); }
static inline vf vf_round(vf x) { EACH_LANE x[lane] = rintf(x[lane]); return x; }
static inline vf vf_times_power_of_two(vf x, vf n) { EACH_LANE x[lane] = ldexpf(x[lane], (int)n[lane]); return x; }
static inline vf vf_abs(vf x) { EACH_LANE x[lane] = fabsf(x[lane]); return x; }
static inline vi vi_load(const void *p) { vi x; memcpy(&x, p, sizeof x); return x; }
static inline vi vi_zero(void) { return (vi){0}; }
static inline vi low_nibbles(vi packed) { return packed & 0x0f0f0f0f; }
static inline vi high_nibbles(vi packed) { return (packed >> 4) & 0x0f0f0f0f; }
static inline vi four_bytes(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return (vi){four, four, four, four, four, four, four, four};
}
/* Lane by lane, the products of four bytes each, taken out of their 32-bit lanes by shifts. */
static inline vi dot_bytes(vi sum, vi codes, vi x, const int is_signed) {
    for (int i = 0; i < 4; i++) {
        vi code = is_signed ? (codes << (24 - 8 * i)) >> 24 : (codes >> 8 * i) & 255;
        sum += code * (int32_t)(int8_t)(x[0] >> 8 * i);
    }
    return sum;
}
static inline vi dot_small(vi sum, vi codes, vi x) { return dot_bytes(sum, codes, x, 0); }
static inline vi dot_small_sum(vi sum) { return sum; }
static inline vi signed_weights(vi raw) { return raw; }
static inline vi dot_signed(vi sum, vi weights, vi x) { return dot_bytes(sum, weights, x, 1); }
static inline vi dot_signed_sum(vi sum, int32_t x_sum) { return (void)x_sum, sum; }
static inline void vi_store_bytes(int8_t *p, vf rounded) { EACH_LANE p[lane] = (int8_t)rounded[lane]; }
#endif

/* Lanes are always added up in this order. */
static inline float vf_sum(vf x) {
    float lane[LANES];
    vf_store(lane, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

/* The largest lane, and the sum of lanes that hold small whole numbers: exact in any order. */
#if defined(GL_AVX512)
static inline float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }
static inline float vf_whole_sum(vf x) { return _mm512_reduce_add_ps(x); }
#elif defined(GL_AVX2) || defined(GL_AVXVNNI)
static inline float vf_largest(vf x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
static inline float vf_whole_sum(vf x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
#else
static inline float vf_largest(vf x) {
    float largest = x[0];
    EACH_LANE if (x[lane] > largest) largest = x[lane];
    return largest;
}
static inline float vf_whole_sum(vf x) { return vf_sum(x); }
#endif

/* e^x to within two units in the last place: 2^n times a polynomial on [-ln2/2, ln2/2]. 0 below -87. */
static inline vf vf_exp(vf x) {
    vf low = vf_set(-87.0f);
#if defined(GL_AVX512)
    vf clipped = x; /* multiplying by 2^n takes any n */
#else
    vf clipped = vf_min(vf_max(x, low), vf_set(88.0f));
#endif
    vf n = vf_round(vf_mul(clipped, vf_set(1.44269504f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), clipped);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), vf_add(r, vf_set(1.0f)));
#if defined(GL_AVX512)
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, low, _CMP_GE_OQ), p, n);
#elif defined(GL_AVX2) || defined(GL_AVXVNNI)
    return _mm256_and_ps(vf_times_power_of_two(p, n), _mm256_cmp_ps(x, low, _CMP_GE_OQ));
#else
    vf y = vf_times_power_of_two(p, n);
    EACH_LANE if (!(x[lane] >= -87.0f)) y[lane] = 0;
    return y;
#endif
}

/* tanh by way of e^2x; exact at both ends, since e^2x is clipped where tanh is 1 to the last bit. */
static inline vf vf_tanh(vf x) {
    vf e = vf_exp(vf_add(x, x));
    return vf_sub(vf_set(1.0f), vf_div(vf_set(2.0f), vf_add(e, vf_set(1.0f))));
}

#endif
