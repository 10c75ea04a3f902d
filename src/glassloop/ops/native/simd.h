/* A vector of LANES floats or 32-bit integers, and the operations that the kernels are written in.
 *
 * kernels.h is compiled once for each instruction set, over this file. All of them compute the same bits, which
 * docs/ops.md defines: a lane is one output of a matrix or one key of the cache, and the few sums that cross lanes
 * have SUM_LANES of them, in as many vectors as that takes. The caller defines one of GL_AVX512, GL_AVXVNNI, GL_AVX2,
 * GL_NEON (with GL_DOTPROD, and with GL_I8MM too, if there is more), or none for portable C.
 */
#ifndef GLASSLOOP_SIMD_H
#define GLASSLOOP_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Whether the compiler has an instruction for a fused multiply-add outside the sections for instruction sets. */
#if defined(__FP_FAST_FMAF) && defined(__FP_FAST_FMA)
#define GL_FUSED
#endif

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

typedef int16_t code __attribute__((may_alias)); /* in 16 bits; two of them are also used as a word of 32 bits */

/* vf_times_if_any is a * b, and 0 where a is 0, whatever b is. store_codes of each instruction set stores 16 whole numbers from -127 to 127 as bytes, and returns their sum;
 * store_words stores LANES whole numbers from -32767 to 32767 in 16 bits each. dot_pairs_at adds, in each lane, the two
 * products of a pair of such numbers in `pairs`, which was loaded by load_pairs, with the pair at `x`. look_up replaces
 * each byte, a place from 0 to 15, by the byte there in the same 16 bytes of the table; table_of is a table of signed bytes in
 * the form of signed_weights. lane_places are the places where each lane's own four bytes of such 16 begin. dot_medium is
 * dot_small for codes up to 127, whose sum is complete. vi_load_bytes and vi_load_signed load LANES bytes as numbers. */
#if defined(GL_AVX512) || defined(GL_AVX2) || defined(GL_AVXVNNI)
#include <immintrin.h>
static inline int32_t sum_of_codes(__m128i codes) { /* as numbers from 1 to 255, since only such are added at once */
    __m128i sums = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8((char)0x80)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}
#endif

#if defined(GL_AVX512)
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
/* fma(*a, b, sum). The broadcast is a part of the instruction: compilers load it into a register first if it is used
 * twice, which makes attention 8 % slower. */
static inline vf vf_fma_at(const float *a, vf b, vf sum) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
}
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
/* x * 2^n, or 0 where `where` is below `least`; n is a whole number from -126 to 127, or anything where that is so. */
static inline vf vf_times_power_of_two(vf x, vf n, vf where, float least) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(where, _mm512_set1_ps(least), _CMP_NLT_UQ), x, n);
}
static inline vf vf_times_if_any(vf a, vf b) {
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_UQ), a, b);
}
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
static inline vi table_of(const int8_t *values) {
    return signed_weights(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values)));
}
static inline vi look_up(vi table, vi places) { return _mm512_shuffle_epi8(table, places); }
static inline vi lane_places(void) { return _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0)); }
static inline vi two_bits(vi packed, int shift) {
    return _mm512_and_si512(_mm512_srli_epi16(packed, shift), _mm512_set1_epi8(3));
}
#define vi_or _mm512_or_si512
static inline vi vi_times(vi a, int32_t b) { return _mm512_mullo_epi32(a, _mm512_set1_epi32(b)); }
#define dot_medium dot_small
static inline vi vi_load_bytes(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline vi vi_load_signed(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline int vf_has_nan(vf x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
static inline int32_t store_codes(int8_t *p, const vf *whole) {
    __m128i codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(*whole));
    _mm_storeu_si128((__m128i *)p, codes);
    return sum_of_codes(codes);
}
static inline void store_words(code *p, vf whole) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(whole)));
}
#define load_pairs vi_load
static inline vi dot_pairs_at(vi sum, vi pairs, const int32_t *x) { /* as in vf_fma_at */
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(pairs), "m"(*x));
    return sum;
}

#elif defined(GL_AVX2) || defined(GL_AVXVNNI)
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
static inline vf vf_times_power_of_two(vf x, vf n, vf where, float least) {
    vi exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    vf product = _mm256_mul_ps(x, _mm256_castsi256_ps(exponent));
    return _mm256_and_ps(product, _mm256_cmp_ps(where, _mm256_set1_ps(least), _CMP_NLT_UQ));
}
static inline vf vf_times_if_any(vf a, vf b) {
    return _mm256_and_ps(_mm256_mul_ps(a, b), _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_UQ));
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
static inline vi dot_pairs_at(vi sum, vi pairs, const int32_t *x) {
    return _mm256_dpwssd_avx_epi32(sum, pairs, _mm256_set1_epi32(*x));
}
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
static inline vi dot_pairs_at(vi sum, vi pairs, const int32_t *x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi32(*x)));
}
#endif
static inline vi table_of(const int8_t *values) {
    return signed_weights(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values)));
}
static inline vi look_up(vi table, vi places) { return _mm256_shuffle_epi8(table, places); }
static inline vi lane_places(void) {
    return _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
}
static inline vi two_bits(vi packed, int shift) {
    return _mm256_and_si256(_mm256_srli_epi16(packed, shift), _mm256_set1_epi8(3));
}
#define vi_or _mm256_or_si256
static inline vi vi_times(vi a, int32_t b) { return _mm256_mullo_epi32(a, _mm256_set1_epi32(b)); }
#if defined(GL_AVXVNNI)
#define dot_medium dot_small
#else
static inline vi dot_medium(vi sum, vi codes, vi x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
}
#endif
static inline vi vi_load_bytes(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
static inline vi vi_load_signed(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
#define load_pairs vi_load
static inline int vf_has_nan(vf x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
static inline __m128i eight_words(vf whole) {
    vi wide = _mm256_cvtps_epi32(whole);
    return _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
}
static inline int32_t store_codes(int8_t *p, const vf *whole) {
    __m128i codes = _mm_packs_epi16(eight_words(whole[0]), eight_words(whole[1]));
    _mm_storeu_si128((__m128i *)p, codes);
    return sum_of_codes(codes);
}
static inline void store_words(code *p, vf whole) { _mm_storeu_si128((__m128i *)p, eight_words(whole)); }

#elif defined(GL_NEON)
#include <arm_neon.h>
#define LANES 8
/* Two registers: each value of a row that is loaded meets eight outputs, and four rows fit the 32 registers. */
typedef struct {
    float32x4_t low, high;
} vf;
typedef struct {
    int32x4_t low, high;
} vi;
#define EACH_HALF(name, operation) \
    static inline vf name(vf a, vf b) { return (vf){operation(a.low, b.low), operation(a.high, b.high)}; }
/* Not the instructions for maximum and minimum, whose result for NaN and for zeros differs from that of x86. */
static inline float32x4_t half_max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline float32x4_t half_min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
EACH_HALF(vf_add, vaddq_f32)
EACH_HALF(vf_sub, vsubq_f32)
EACH_HALF(vf_mul, vmulq_f32)
EACH_HALF(vf_div, vdivq_f32)
EACH_HALF(vf_max, half_max)
EACH_HALF(vf_min, half_min)
static inline vf vf_fma(vf a, vf b, vf c) {
    return (vf){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
static inline vf vf_load(const float *p) { return (vf){vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void vf_store(float *p, vf x) { vst1q_f32(p, x.low), vst1q_f32(p + 4, x.high); }
static inline vf vf_set(float f) { return (vf){vdupq_n_f32(f), vdupq_n_f32(f)}; }
static inline vf vf_from_vi(vi a) { return (vf){vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
static inline float32x4_t four_halves(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline vf vf_load_half(const uint16_t *p) { return (vf){four_halves(p), four_halves(p + 4)}; }
static inline float32x4_t four_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline vf vf_load_bf16(const uint16_t *p) { return (vf){four_bf16(p), four_bf16(p + 4)}; }
static inline void vf_store_half(uint16_t *p, vf x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.low)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.high)));
}
static inline vf vf_round(vf x) { return (vf){vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
static inline float32x4_t half_times_power(float32x4_t x, float32x4_t n, float32x4_t where, float least) {
    int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
    uint32x4_t product = vreinterpretq_u32_f32(vmulq_f32(x, vreinterpretq_f32_s32(exponent)));
    return vreinterpretq_f32_u32(vbicq_u32(product, vcltq_f32(where, vdupq_n_f32(least))));
}
static inline vf vf_times_power_of_two(vf x, vf n, vf where, float least) {
    return (vf){half_times_power(x.low, n.low, where.low, least), half_times_power(x.high, n.high, where.high, least)};
}
static inline float32x4_t half_times_if_any(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(vmulq_f32(a, b)), vceqzq_f32(a)));
}
EACH_HALF(vf_times_if_any, half_times_if_any)
static inline vf vf_abs(vf x) { return (vf){vabsq_f32(x.low), vabsq_f32(x.high)}; }
static inline vi vi_load(const void *p) {
    const int8_t *bytes = p;
    return (vi){vreinterpretq_s32_s8(vld1q_s8(bytes)), vreinterpretq_s32_s8(vld1q_s8(bytes + 16))};
}
static inline vi vi_zero(void) { return (vi){vdupq_n_s32(0), vdupq_n_s32(0)}; }
static inline int32x4_t half_low_nibbles(int32x4_t packed) { return vandq_s32(packed, vdupq_n_s32(0x0f0f0f0f)); }
static inline int32x4_t half_high_nibbles(int32x4_t packed) {
    return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(packed), 4));
}
static inline vi low_nibbles(vi packed) { return (vi){half_low_nibbles(packed.low), half_low_nibbles(packed.high)}; }
static inline vi high_nibbles(vi packed) { return (vi){half_high_nibbles(packed.low), half_high_nibbles(packed.high)}; }
static inline vi four_bytes(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return (vi){vdupq_n_s32(four), vdupq_n_s32(four)};
}
static inline int32x4_t half_dot(int32x4_t sum, int32x4_t weights, int32x4_t x) {
    int8x16_t a = vreinterpretq_s8_s32(weights), b = vreinterpretq_s8_s32(x);
#if defined(GL_DOTPROD) && defined(__clang__) /* older ones have no vdotq_s32 for a function's own target */
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
#elif defined(GL_DOTPROD)
    return vdotq_s32(sum, a, b);
#else
    /* The sum of two products is at most 2 * 128 * 127 and fits 16 bits. */
    int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
#endif
}
#if defined(GL_I8MM)
/* The products of the two rows of eight bytes in `a` with the two in `b`: a 2 x 2 matrix. */
static inline int32x4_t dot_matrices(int32x4_t sum, int8x16_t a, int8x16_t b) {
#if defined(__clang__)
    __asm__("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
#else
    return vmmlaq_s32(sum, a, b);
#endif
}
#endif
static inline vi dot_signed(vi sum, vi weights, vi x) {
    return (vi){half_dot(sum.low, weights.low, x.low), half_dot(sum.high, weights.high, x.high)};
}
#define dot_small dot_signed
static inline vi dot_small_sum(vi sum) { return sum; }
static inline vi signed_weights(vi raw) { return raw; }
static inline vi dot_signed_sum(vi sum, int32_t x_sum) { return (void)x_sum, sum; }
static inline vi table_of(const int8_t *values) {
    int32x4_t table = vreinterpretq_s32_s8(vld1q_s8(values));
    return (vi){table, table};
}
static inline int32x4_t half_look_up(int32x4_t table, int32x4_t places) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(vreinterpretq_s8_s32(table), vreinterpretq_u8_s32(places)));
}
static inline vi look_up(vi table, vi places) {
    return (vi){half_look_up(table.low, places.low), half_look_up(table.high, places.high)};
}
static inline vi lane_places(void) {
    const int32_t places[4] = {0, 0x04040404, 0x08080808, 0x0c0c0c0c};
    return (vi){vld1q_s32(places), vld1q_s32(places)};
}
static inline int32x4_t half_two_bits(int32x4_t packed, int shift) {
    uint8x16_t shifted = vshlq_u8(vreinterpretq_u8_s32(packed), vdupq_n_s8((int8_t)-shift));
    return vreinterpretq_s32_u8(vandq_u8(shifted, vdupq_n_u8(3)));
}
static inline vi two_bits(vi packed, int shift) {
    return (vi){half_two_bits(packed.low, shift), half_two_bits(packed.high, shift)};
}
static inline vi vi_or(vi a, vi b) { return (vi){vorrq_s32(a.low, b.low), vorrq_s32(a.high, b.high)}; }
static inline vi vi_times(vi a, int32_t b) { return (vi){vmulq_n_s32(a.low, b), vmulq_n_s32(a.high, b)}; }
#define dot_medium dot_small
static inline vi vi_load_signed(const uint8_t *p) {
    int16x8_t words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return (vi){vmovl_s16(vget_low_s16(words)), vmovl_s16(vget_high_s16(words))};
}
static inline vi vi_load_bytes(const uint8_t *p) {
    uint16x8_t words = vmovl_u8(vld1_u8(p));
    return (vi){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(words)))};
}
static inline int vf_has_nan(vf x) {
    return vminvq_u32(vandq_u32(vceqq_f32(x.low, x.low), vceqq_f32(x.high, x.high))) == 0;
}
static inline int16x8_t eight_words(vf whole) {
    return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(whole.low)), vqmovn_s32(vcvtnq_s32_f32(whole.high)));
}
static inline int32_t store_codes(int8_t *p, const vf *whole) {
    int8x16_t codes = vcombine_s8(vqmovn_s16(eight_words(whole[0])), vqmovn_s16(eight_words(whole[1])));
    vst1q_s8(p, codes);
    return vaddlvq_s8(codes);
}
static inline void store_words(code *p, vf whole) {
    int16x8_t words = eight_words(whole);
    memcpy(p, &words, sizeof words);
}
/* The first numbers of eight pairs, and the second ones. */
static inline vi load_pairs(const int32_t *p) {
    int16x8x2_t both = vld2q_s16((const code *)p);
    return (vi){vreinterpretq_s32_s16(both.val[0]), vreinterpretq_s32_s16(both.val[1])};
}
static inline vi dot_pairs_at(vi sum, vi pairs, const int32_t *x) {
    int16x8_t first = vreinterpretq_s16_s32(pairs.low), second = vreinterpretq_s16_s32(pairs.high);
    int16_t a = (int16_t)*x, b = (int16_t)(*x >> 16);
    sum.low = vmlal_n_s16(vmlal_n_s16(sum.low, vget_low_s16(first), a), vget_low_s16(second), b);
    sum.high = vmlal_high_n_s16(vmlal_high_n_s16(sum.high, first, a), second, b);
    return sum;
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
#if defined(GL_FUSED)
static inline vf vf_fma(vf a, vf b, vf c) { vf x; EACH_LANE x[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]); return x; }
#else
/* In double precision the product is exact. Their sum is rounded to odd, so that rounding it to float is as good as
 * rounding the exact sum. */
static inline vf vf_fma(vf a, vf b, vf c) {
    typedef double wide __attribute__((vector_size(64)));
    typedef int64_t bits __attribute__((vector_size(64)));
    wide product = __builtin_convertvector(a, wide) * __builtin_convertvector(b, wide);
    wide addend = __builtin_convertvector(c, wide), sum = product + addend, back = sum - product;
    wide error = (product - (sum - back)) + (addend - back);
    bits inexact = (error > 0) | (error < 0), even = ((bits)sum & 1) - 1, inward = (error > 0) ^ (sum > 0);
    sum = (wide)((bits)sum + ((inward | 1) & inexact & even));
    return __builtin_convertvector(sum, vf);
}
#endif
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
/* Rounds values below 2^22: adding 1.5 * 2^23 leaves no bits behind the point. */
static inline vf vf_round(vf x) { return (x + vf_set(12582912.0f)) - vf_set(12582912.0f); }
static inline vf vf_times_power_of_two(vf x, vf n, vf where, float least) {
    vi exponent = (vi)(n + vf_set(12582912.0f + 127)) << 23; /* the low bits of the sum are n + 127 */
    return (vf)((vi)(x * (vf)exponent) & ~(where < vf_set(least)));
}
static inline vf vf_times_if_any(vf a, vf b) { return (vf)((vi)(a * b) & (a != vf_set(0.0f))); }
static inline vf vf_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
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
static inline vi table_of(const int8_t *values) {
    vi table;
    memcpy(&table, values, 16);
    memcpy((char *)&table + 16, values, 16);
    return table;
}
static inline vi look_up(vi table, vi places) {
    int8_t values[4 * LANES];
    uint8_t bytes[4 * LANES];
    memcpy(values, &table, sizeof values);
    memcpy(bytes, &places, sizeof bytes);
    for (int i = 0; i < 4 * LANES; i++) bytes[i] = (uint8_t)values[(i & 16) + bytes[i]];
    return vi_load(bytes);
}
static inline vi lane_places(void) {
    return (vi){0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c};
}
static inline vi two_bits(vi packed, int shift) { return (packed >> shift) & 0x03030303; }
static inline vi vi_or(vi a, vi b) { return a | b; }
static inline vi vi_times(vi a, int32_t b) { return a * b; }
#define dot_medium dot_small
static inline vi vi_load_bytes(const uint8_t *p) { vi x; EACH_LANE x[lane] = p[lane]; return x; }
static inline vi vi_load_signed(const uint8_t *p) { vi x; EACH_LANE x[lane] = (int8_t)p[lane]; return x; }
static inline int vf_has_nan(vf x) {
    int32_t count = 0;
    EACH_LANE count += x[lane] != x[lane];
    return count != 0;
}
static inline int32_t store_codes(int8_t *p, const vf *whole) {
    int32_t sum = 0;
    for (int i = 0; i < 2; i++) EACH_LANE sum += p[i * LANES + lane] = (int8_t)whole[i][lane];
    return sum;
}
static inline void store_words(code *p, vf whole) { EACH_LANE p[lane] = (code)whole[lane]; }
#define load_pairs vi_load
static inline vi dot_pairs_at(vi sum, vi pairs, const int32_t *x) {
    typedef uint32_t words __attribute__((vector_size(32))); /* whose sums may pass the largest number on their way */
    words first = (words)((vi)((words)pairs << 16) >> 16), second = (words)(pairs >> 16);
    return (vi)((words)sum + first * (uint32_t)(int16_t)*x + second * (uint32_t)(*x >> 16));
}
#endif

/* The largest lane; and the sum of all lanes, where the upper half is added to the lower half until one is left. */
#if defined(GL_AVX512) || defined(GL_AVX2) || defined(GL_AVXVNNI)
static inline float sum_of_four(__m128 x) {
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static inline float sum_of_eight(__m256 x) {
    return sum_of_four(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
#endif
#if defined(GL_AVX512)
static inline float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }
static inline float vf_sum_of_lanes(vf x) {
    return sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
#elif defined(GL_AVX2) || defined(GL_AVXVNNI)
static inline float vf_largest(vf x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
static inline float vf_sum_of_lanes(vf x) { return sum_of_eight(x); }
#elif defined(GL_NEON)
static inline float vf_largest(vf x) { return vmaxvq_f32(half_max(x.low, x.high)); }
static inline float vf_sum_of_lanes(vf x) {
    float32x4_t four = vaddq_f32(x.low, x.high);
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
#else
static inline float vf_largest(vf x) {
    float largest = x[0];
    EACH_LANE if (x[lane] > largest) largest = x[lane];
    return largest;
}
static inline float vf_sum_of_lanes(vf x) {
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) x[lane] += x[lane + width];
    return x[0];
}
#endif

/* A sum over many numbers has SUM_LANES partial sums: number i is added to partial sum i % SUM_LANES. They are kept in
 * VECTORS vectors, and always added up in the same order, the upper half to the lower half. */
#define SUM_LANES 16
#define VECTORS (SUM_LANES / LANES)
static inline float vf_sum(const vf *partial) {
#if VECTORS == 1
    return vf_sum_of_lanes(partial[0]);
#else
    return vf_sum_of_lanes(vf_add(partial[0], partial[1]));
#endif
}

/* e^x to within two units in the last place: 2^n times a polynomial on [-ln2/2, ln2/2]. 0 below -87, e^88 above 88, so
 * that every result is a normal number; NaN for NaN. */
static inline vf vf_exp(vf x) {
    vf clipped = vf_min(vf_set(88.0f), x);
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
    return vf_times_power_of_two(p, n, x, -87.0f);
}

/* tanh by way of e^2x; exact at both ends, since e^2x is clipped where tanh is 1 to the last bit. */
static inline vf vf_tanh(vf x) {
    vf e = vf_exp(vf_add(x, x));
    return vf_sub(vf_set(1.0f), vf_div(vf_set(2.0f), vf_add(e, vf_set(1.0f))));
}

#if !defined(GL_AVX512)
static inline vf vf_fma_at(const float *a, vf b, vf sum) { return vf_fma(vf_set(*a), b, sum); }
#endif

#endif
