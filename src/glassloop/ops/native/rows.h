/* The vectorized parts of the functions over rows of logits; rows.c combines them. `ops/rows.py` has the same
 * functions in NumPy. Included by kernels.h. */

/* The largest of some numbers; NaN is ignored (vf_max then returns its second argument). */
static float largest(const float *x, int64_t count) {
    vf most = vf_set(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) most = vf_max(vf_load(x + i), most);
    float found = vf_largest(most);
    for (; i < count; i++) found = x[i] > found ? x[i] : found;
    return found;
}

/* A vector of doubles. A sum always has eight lanes, in one vector or several, so that its order is the same on all
 * machines. vd_fma_normal may differ from vd_fma if a number is so small that the product's last bits are lost. */
#if defined(GL_AVX512)
#define WIDE 8
typedef __m512d vd;
#define vd_fma _mm512_fmadd_pd
#define vd_max _mm512_max_pd
#define vd_set _mm512_set1_pd
INLINE vd vd_load(const float *x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
INLINE vd vd_exponent(vd x) { return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(x), 52)); }
#define vd_fma_normal vd_fma
#elif defined(GL_AVX2) || defined(GL_AVXVNNI)
#define WIDE 4
typedef __m256d vd;
#define vd_fma _mm256_fmadd_pd
#define vd_max _mm256_max_pd
#define vd_set _mm256_set1_pd
INLINE vd vd_load(const float *x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
INLINE vd vd_exponent(vd x) { return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(x), 52)); }
#define vd_fma_normal vd_fma
#elif defined(GL_NEON)
#define WIDE 2
typedef float64x2_t vd;
#define vd_set vdupq_n_f64
INLINE vd vd_fma(vd a, vd b, vd c) { return vfmaq_f64(c, a, b); }
INLINE vd vd_max(vd a, vd b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
INLINE vd vd_load(const float *x) { return vcvt_f64_f32(vld1_f32(x)); }
INLINE vd vd_exponent(vd x) { return vreinterpretq_f64_s64(vshlq_n_s64(vreinterpretq_s64_f64(x), 52)); }
#define vd_fma_normal vd_fma
#else
#define WIDE 2
typedef double vd __attribute__((vector_size(16)));
typedef int64_t vl __attribute__((vector_size(16)));
INLINE vd vd_set(double x) { return (vd){x, x}; }
INLINE vd vd_fma(vd a, vd b, vd c) { return (vd){__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1])}; }
#if defined(GL_FUSED)
#define vd_fma_normal vd_fma
#else
/* The exact sum of a + b, rounded, and what the rounding left. */
INLINE vd exact_sum(vd a, vd b, vd *rest) {
    vd sum = a + b, back = sum - a;
    *rest = (a - (sum - back)) + (b - back);
    return sum;
}
INLINE vd upper_half(vd x) {
    vd shifted = x * 134217729.0;
    return shifted - (shifted - x);
}
/* The product is taken apart into two doubles; all that the sum of the larger parts leaves is rounded to odd, so that
 * the last addition rounds as if it had the exact sum. Calls of the C library's fma would take far longer. */
INLINE vd vd_fma_normal(vd a, vd b, vd c) {
    vd high_a = upper_half(a), high_b = upper_half(b), low_a = a - high_a, low_b = b - high_b, product = a * b;
    vd product_rest = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b;
    vd small, rest, error, sum = exact_sum(product, exact_sum(c, product_rest, &small), &rest);
    vd odd = exact_sum(small, rest, &error);
    vl inexact = (error > 0) | (error < 0), even = ((vl)odd & 1) - 1, inward = (error > 0) ^ (odd > 0);
    return sum + (vd)((vl)odd + ((inward | 1) & inexact & even));
}
#endif
INLINE vd vd_max(vd a, vd b) { return (vd){a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1]}; }
INLINE vd vd_load(const float *x) { return (vd){x[0], x[1]}; }
INLINE vd vd_exponent(vd x) { return (vd)((vl)x << 52); }
#endif

/* 2^x for x from -1000 to 0, to within two units in the last place: 2^k times a polynomial on [-1/2, 1/2]. */
INLINE vd power_of_two(vd x) {
    static const double series[] = {
        1.0208690299958306e-07, 1.321544258792169e-06, 1.5252657260200837e-05, 0.0001540353044173605,
        0.0013333558230164974,  0.009618129107606888,  0.05550410866444772,    0.24022650695910097,
        0.69314718055995,       1.0};
    /* Adding 1.5 * 2^52 rounds to an integer in the low bits; with 1023 added they are the bits of an exponent. */
    const vd magic = vd_set(6755399441055744.0 + 1023);
    vd shifted = x + magic, r = x - (shifted - magic), p = vd_set(7.072585949269223e-09);
    for (int i = 0; i < 10; i++) p = vd_fma_normal(p, r, vd_set(series[i]));
    return p * vd_exponent(shifted);
}

/* The sums of 2^d and of d * 2^d, where d = (x - most) * scale, but at least -1000, which adds nothing to the 1 of
 * the largest. A NaN makes them NaN (vd_max then returns its second argument). */
static void sum_powers(const float *x, int64_t count, double most, double scale, double *sums) {
    vd sum[8 / WIDE] = {0}, weighted[8 / WIDE] = {0};
    for (int64_t i = 0; i < count; i += 8) {
        float rest[8];
        const float *eight = x + i;
        if (count - i < 8) {
            for (int j = 0; j < 8; j++) rest[j] = j < count - i ? eight[j] : -INFINITY;
            eight = rest;
        }
        for (int v = 0; v < 8 / WIDE; v++) {
            vd d = vd_max(vd_set(-1000.0), (vd_load(eight + v * WIDE) - vd_set(most)) * vd_set(scale));
            vd power = power_of_two(d);
            sum[v] += power;
            weighted[v] = vd_fma(power, d, weighted[v]);
        }
    }
    double s[8], w[8];
    memcpy(s, sum, sizeof s);
    memcpy(w, weighted, sizeof w);
    sums[0] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    sums[1] = ((w[0] + w[4]) + (w[2] + w[6])) + ((w[1] + w[5]) + (w[3] + w[7]));
}

/* Whether a comes after b in order: it is lower, or equal with a higher id. */
INLINE int after(gl_candidate a, gl_candidate b) { return a.value < b.value || (a.value == b.value && a.id > b.id); }

/* Puts `c` at place `at` of a heap, whose root is the last in order, and moves it down to where it belongs. */
static void sink(gl_candidate *heap, int64_t size, int64_t at, gl_candidate c) {
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && after(heap[child + 1], heap[child])) child++;
        if (!after(heap[child], c)) break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

/* Offers one more logit to the `top` largest, of which the heap has `size` so far. Returns the new size. */
INLINE int64_t offer(gl_candidate *heap, int64_t top, int64_t size, float value, int64_t id) {
    gl_candidate c = {value, (int32_t)id};
    if (size == top) {
        if (value > heap[0].value) sink(heap, top, 0, c); /* ids ascend, so the first of equal logits stays */
        return size;
    }
    heap[size++] = c;
    if (size == top)
        for (int64_t i = top / 2 - 1; i >= 0; i--) sink(heap, top, i, heap[i]);
    return size;
}

/* Finds the `top` largest logits in order, ties by lower id, without NaN. Returns how many were found. `maxima` has
 * the maximum of each group of `group` logits. At least `top` logits reach the `top`-th highest maximum, so all
 * groups below it, nearly all of the row, are skipped. */
static int64_t highest(const float *x, int64_t count, int64_t top, const float *maxima, int64_t group,
                       gl_candidate *heap) {
    int64_t groups = (count + group - 1) / group, size = 0;
    if (!top) return 0;
    for (int64_t g = 0; g < groups; g++) size = offer(heap, top, size, maxima[g], g);
    float least = size == top ? heap[0].value : -INFINITY;
    size = 0;
    for (int64_t g = 0; g < groups; g++) {
        if (maxima[g] < least) continue;
        for (int64_t i = g * group, end = MIN(i + group, count); i < end; i += LANES) {
            int64_t some = MIN(LANES, end - i);
            if (some == LANES && vf_largest(vf_max(vf_load(x + i), vf_set(-INFINITY))) < least) continue;
            for (int64_t j = i; j < i + some; j++)
                if (x[j] >= least) size = offer(heap, top, size, x[j], j);
        }
    }
    for (int64_t left = size; left > 1; left--) { /* heap sort: the last in order goes to the end */
        gl_candidate last = heap[0];
        sink(heap, left - 1, 0, heap[left - 1]);
        heap[left - 1] = last;
    }
    return size;
}

/* Finds the logits that are at least this high, with ascending ids. `found` has room for all and GL_MORE. Returns how
 * many there are. */
static int64_t at_least(const float *x, int64_t count, float least, gl_candidate *found) {
    int64_t size = 0, i = 0;
#if defined(GL_AVX512)
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    __m512i ids = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (; i + 16 <= count; i += 16, ids = _mm512_add_epi32(ids, _mm512_set1_epi32(16))) {
        __m512 some = _mm512_loadu_ps(x + i);
        __mmask16 pass = _mm512_cmp_ps_mask(some, _mm512_set1_ps(least), _CMP_GE_OQ);
        __m512i values = _mm512_castps_si512(_mm512_maskz_compress_ps(pass, some));
        __m512i own = _mm512_maskz_compress_epi32(pass, ids);
        _mm512_storeu_si512(found + size, _mm512_permutex2var_epi32(values, low, own));
        _mm512_storeu_si512(found + size + 8, _mm512_permutex2var_epi32(values, high, own));
        size += __builtin_popcount(pass);
    }
#endif
    for (; i < count; i++) {
        found[size] = (gl_candidate){x[i], (int32_t)i};
        size += x[i] >= least;
    }
    return size;
}

/* How many logits are not minus infinity. */
static int64_t alive(const float *x, int64_t count) {
    int32_t found = 0;
    for (int64_t i = 0; i < count; i++) found += x[i] > -INFINITY;
    return found;
}

typedef int64_t bits_of_vd __attribute__((vector_size(8 * WIDE)));

/* The same bits as gl_exp, for numbers up to 0. */
INLINE vd exp_below(vd x) {
    vd near = vd_max(vd_set(-708.0), x), shifted = near * vd_set(1.4426950408889634) + vd_set(GL_MAGIC);
    vd k = shifted - vd_set(GL_MAGIC);
    vd r = (near - k * vd_set(6.93147180369123816490e-01)) - k * vd_set(1.90821492927058770002e-10), z = r * r;
    vd even = vd_set(1.0 / 479001600), odd = vd_set(1.0 / 6227020800.0);
    even = even * z + vd_set(1.0 / 3628800), odd = odd * z + vd_set(1.0 / 39916800);
    even = even * z + vd_set(1.0 / 40320), odd = odd * z + vd_set(1.0 / 362880);
    even = even * z + vd_set(1.0 / 720), odd = odd * z + vd_set(1.0 / 5040);
    even = even * z + vd_set(1.0 / 24), odd = odd * z + vd_set(1.0 / 120);
    even = even * z + vd_set(1.0 / 2), odd = odd * z + vd_set(1.0 / 6);
    vd power = (vd_set(1.0) + (r + z * (even + r * odd))) * vd_exponent(shifted + vd_set(1023.0));
    return (vd)((bits_of_vd)power & ~(bits_of_vd)(x < vd_set(-708.0)));
}

/* Loads WIDE logits times the scale; those behind the end are 0. */
INLINE vd load_scaled(const float *x, int64_t count, double scale) {
    float some[WIDE] = {0};
    if (count < WIDE) {
        memcpy(some, x, count * sizeof *x);
        x = some;
    }
    return vd_load(x) * vd_set(scale);
}

INLINE void store_some(double *to, int64_t count, vd values) {
    if (count >= WIDE) memcpy(to, &values, sizeof values);
    else memcpy(to, &values, count * sizeof *to);
}

/* The weight of each logit, e^(x * scale - most), where none is above `most`. */
static void weigh(const float *x, int64_t count, double scale, double most, double *weights) {
    for (int64_t i = 0; i < count; i += WIDE)
        store_some(weights + i, count - i, exp_below(load_scaled(x + i, count - i, scale) - vd_set(most)));
}

/* The surprise of each logit, minus its log-probability, and its probability. */
static void surprise(const float *x, int64_t count, double scale, double most, double log_total, double *surprises,
                     double *masses) {
    for (int64_t i = 0; i < count; i += WIDE) {
        vd s = (vd_set(most) - load_scaled(x + i, count - i, scale)) + vd_set(log_total);
        store_some(surprises + i, count - i, s);
        store_some(masses + i, count - i, exp_below(-s));
    }
}

/* Removes the logits whose surprise is farther from the entropy than the border. */
static void keep_close(float *x, int64_t count, double scale, double most, double log_total, double entropy,
                       double border) {
    for (int64_t i = 0; i < count; i++)
        x[i] = fabs(((most - (double)x[i] * scale) + log_total) - entropy) <= border ? x[i] : -INFINITY;
}

/* The bin of each logit, by the distance of its surprise from the entropy. */
static void bins(const float *x, int64_t count, double scale, double most, double log_total, double entropy,
                 uint16_t *bins) {
    for (int64_t i = 0; i < count; i++) {
        double distance = fabs(((most - (double)x[i] * scale) + log_total) - entropy);
        double bin = distance * GL_BINS_PER_NAT;
        bins[i] = (uint16_t)(int32_t)(bin < GL_BINS - 1 ? bin : GL_BINS - 1);
    }
}

static int64_t rank_of(const float *x, int64_t count, int64_t id) {
    int64_t rank = 0;
    for (int64_t i = 0; i < id; i++) rank += x[i] >= x[id];
    for (int64_t i = id + 1; i < count; i++) rank += x[i] > x[id];
    return rank;
}

/* Finds the ids from `first` to before `end` whose hash (docs/luck.md) exceeds the threshold and stores at most
 * `room` of them. Returns how many there are. The last step of the hash does not change its 31 highest bits, so it is
 * computed only for the few ids that pass on those. */
static int64_t lucky_ids(uint64_t key, int64_t first, int64_t end, uint64_t threshold, int32_t *ids, int64_t room) {
    const uint64_t least = threshold >> 33 << 33;
    int64_t found = 0;
    for (int64_t block = first; block < end; block += 64) {
        uint64_t state = key + (uint64_t)(block + 1) * GL_GOLDEN, nearly[64], most = 0;
        for (uint64_t i = 0; i < 64; i++) {
            nearly[i] = gl_nearly_mix(state + i * GL_GOLDEN);
            most = nearly[i] > most ? nearly[i] : most;
        }
        if (most < least) continue; /* the usual case */
        for (int64_t i = 0; i < MIN(64, end - block); i++)
            if (nearly[i] >= least && gl_end_mix(nearly[i]) > threshold) {
                if (found < room) ids[found] = (int32_t)(block + i);
                found++;
            }
    }
    return found;
}
