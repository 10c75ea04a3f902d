/* What decoding asks of one row of logits over the whole vocabulary. `ops/vocabulary.py` has the same in NumPy.
 *
 * Included by kernels.h. One thread does a row: it is a few microseconds, less than waking another.
 */

INLINE vf load_some(const float *x, int64_t left) {
    if (left >= LANES) return vf_load(x);
    float lane[LANES];
    for (int i = 0; i < LANES; i++) lane[i] = i < left ? x[i] : -INFINITY;
    return vf_load(lane);
}

static float largest_of(const float *x, int64_t count) {
    vf most = vf_set(-INFINITY);
    for (int64_t i = 0; i < count; i += LANES) most = vf_max(most, load_some(x + i, count - i));
    return vf_largest(most);
}

/* e^x in double precision for up to DOUBLES numbers of at most 0, in plain loops that compilers turn into vectors:
 * 2^k times a series on [-ln2/2, ln2/2]. 0 below -700. */
#define DOUBLES 64
static void exponentials(const double *x, int count, double *e) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to a whole number, in the low bits */
    double shifted[DOUBLES], power[DOUBLES];
    int64_t bits[DOUBLES];
    for (int i = 0; i < count; i++) shifted[i] = (x[i] > -700.0 ? x[i] : -700.0) * 1.4426950408889634 + magic;
    memcpy(bits, shifted, sizeof bits);
    for (int i = 0; i < count; i++) bits[i] = (int64_t)((uint64_t)(bits[i] + 1023) << 52);
    memcpy(power, bits, sizeof power);
    for (int i = 0; i < count; i++) {
        double k = shifted[i] - magic, clipped = x[i] > -700.0 ? x[i] : -700.0;
        double r = (clipped - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10, p = 1.0 / 6227020800.0;
        p = p * r + 1.0 / 479001600.0;
        p = p * r + 1.0 / 39916800.0;
        p = p * r + 1.0 / 3628800.0;
        p = p * r + 1.0 / 362880.0;
        p = p * r + 1.0 / 40320.0;
        p = p * r + 1.0 / 5040.0;
        p = p * r + 1.0 / 720.0;
        p = p * r + 1.0 / 120.0;
        p = p * r + 1.0 / 24.0;
        p = p * r + 1.0 / 6.0;
        p = p * r + 0.5;
        p = p * r + 1.0;
        p = p * r + 1.0;
        e[i] = x[i] > -700.0 ? p * power[i] : 0.0;
    }
}

/* Sums of e^d and of d * e^d, where d = (x - most) * scale. */
static void sum_exponentials(const float *x, int64_t count, double most, double scale, double *sum, double *weighted) {
    double a[8] = {0}, b[8] = {0};
    for (int64_t block = 0; block < count; block += DOUBLES) {
        double d[DOUBLES], e[DOUBLES] = {0};
        int size = (int)MIN(DOUBLES, count - block);
        for (int i = 0; i < DOUBLES; i++) d[i] = i < size ? ((double)x[block + i] - most) * scale : -1000.0;
        exponentials(d, DOUBLES, e);
        for (int i = 0; i < DOUBLES; i += 8)
            for (int lane = 0; lane < 8; lane++) {
                a[lane] += e[i + lane];
                b[lane] += e[i + lane] * (d[i + lane] > -1000.0 ? d[i + lane] : -1000.0);
            }
    }
    *sum = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
    *weighted = ((b[0] + b[4]) + (b[2] + b[6])) + ((b[1] + b[5]) + (b[3] + b[7]));
}

/* Whether a comes after b: lower, or equal with a higher id. */
INLINE int after(gl_candidate a, gl_candidate b) { return a.value < b.value || (a.value == b.value && a.id > b.id); }

/* `heap` has the last of all at its root; put a new one there and let it sink. */
static void sink(gl_candidate *heap, int64_t size, int64_t at, gl_candidate c) {
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && after(heap[child + 1], heap[child])) child++;
        if (!after(heap[child], c)) break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

/* The `top` largest logits in order, ties by lower id. `top` is at most `count`, and no logit is NaN. */
static void highest(const float *x, int64_t count, int64_t top, gl_candidate *heap) {
    for (int64_t i = 0; i < top; i++) heap[i] = (gl_candidate){x[i], (int32_t)i};
    for (int64_t i = top / 2 - 1; i >= 0; i--) sink(heap, top, i, heap[i]);
    for (int64_t block = top; top && block < count; block += 4 * LANES) {
        int64_t end = MIN(block + 4 * LANES, count);
        if (end - block == 4 * LANES) { /* nearly always nothing here is large enough */
            vf best = vf_max(vf_max(vf_load(x + block), vf_load(x + block + LANES)),
                             vf_max(vf_load(x + block + 2 * LANES), vf_load(x + block + 3 * LANES)));
            if (!(vf_largest(best) > heap[0].value)) continue;
        }
        for (int64_t i = block; i < end; i++)
            if (x[i] > heap[0].value) sink(heap, top, 0, (gl_candidate){x[i], (int32_t)i});
    }
    for (int64_t size = top; size > 1; size--) { /* the last goes to the end, again and again */
        gl_candidate last = heap[0];
        sink(heap, size - 1, 0, heap[size - 1]);
        heap[size - 1] = last;
    }
}

/* The `top` largest, and in `out` log-sum-exp and entropy. 0 if a logit is NaN or plus infinity. */
static int summarize(const float *x, int64_t count, int64_t top, gl_candidate *heap, double *out) {
    int broken = 0;
    for (int64_t i = 0; i < count; i++) broken |= !(x[i] < INFINITY);
    if (broken) return 0;
    highest(x, count, top, heap);
    float most = largest_of(x, count);
    out[0] = -INFINITY, out[1] = 0;
    if (most == -INFINITY) return 1;
    double sum, weighted;
    sum_exponentials(x, count, most, 1.0, &sum, &weighted);
    out[0] = most + log(sum);
    out[1] = log(sum) - weighted / sum;
    return 1;
}

static double log_sum_exp(const float *x, int64_t count, double scale) {
    double sum, weighted;
    float most = largest_of(x, count);
    if (most == -INFINITY) return -INFINITY;
    sum_exponentials(x, count, most, scale, &sum, &weighted);
    return (double)most * scale + log(sum);
}

static int64_t rank_of(const float *x, int64_t count, int64_t id) {
    int64_t rank = 0;
    for (int64_t i = 0; i < id; i++) rank += x[i] >= x[id];
    for (int64_t i = id + 1; i < count; i++) rank += x[i] > x[id];
    return rank;
}

/* Luck, as docs/luck.md specifies it: the hash, and the logarithm spelled out so that every bit is the same. */
INLINE uint64_t luck_hash(uint64_t key, uint64_t id) {
    uint64_t h = key + (id + 1) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    return h ^ h >> 31;
}

static double luck_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int64_t exponent = (int64_t)(bits >> 52 & 0x7ff) - 1022;
    bits = (bits & 0x800fffffffffffffu) | (uint64_t)1022 << 52;
    double fraction; /* x = fraction * 2^exponent, fraction from 1/2 to 1 */
    memcpy(&fraction, &bits, 8);
    int low = fraction < 0.7071067811865476;
    double f = (low ? fraction + fraction : fraction) - 1.0, k = (double)(exponent - low);
    double s = f / (2.0 + f), z = s * s, w = z * z;
    double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    double odd = z * (6.666666666666735130e-01 +
                      w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    double half = 0.5 * f * f;
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f);
}

static void luck_of(uint64_t key, const int64_t *ids, int64_t count, double *luck) {
    for (int64_t i = 0; i < count; i++) {
        double uniform = ((double)(luck_hash(key, (uint64_t)ids[i]) >> 12) + 0.5) * 0x1p-52;
        luck[i] = -luck_log(-luck_log(uniform));
    }
}

/* Ids below `count` whose hash exceeds the threshold, at most `room` of them; how many there are. */
static int64_t lucky_ids(uint64_t key, int64_t count, uint64_t threshold, int32_t *ids, int64_t room) {
    int64_t found = 0;
    for (int64_t block = 0; block < count; block += 64) {
        uint64_t hash[64];
        for (int i = 0; i < 64; i++) hash[i] = luck_hash(key, (uint64_t)(block + i));
        for (int i = 0; i < MIN(64, count - block); i++)
            if (hash[i] > threshold) {
                if (found < room) ids[found] = (int32_t)(block + i);
                found++;
            }
    }
    return found;
}
