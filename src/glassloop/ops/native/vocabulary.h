/* What decoding asks of one row of logits over the whole vocabulary. `ops/vocabulary.py` has the same in NumPy.
 *
 * Included by kernels.h. One thread does a row: it is a few microseconds, less than waking another.
 */

#define SUM_BLOCK 1024 /* exponentials that are added up as floats before they go into a double */

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

/* Sums of e^d and of d * e^d, where d = (x - most) * scale. */
static void exponentials(const float *x, int64_t count, float most, float scale, double *sum, double *weighted) {
    *sum = *weighted = 0;
    vf top = vf_set(most), factor = vf_set(scale);
    for (int64_t block = 0; block < count; block += SUM_BLOCK) {
        int64_t end = MIN(block + SUM_BLOCK, count);
        vf a = vf_set(0.0f), b = vf_set(0.0f);
        for (int64_t i = block; i < end; i += LANES) {
            vf d = vf_mul(vf_sub(load_some(x + i, end - i), top), factor), e = vf_exp(d);
            a = vf_add(a, e);
            b = vf_fma(e, vf_max(d, vf_set(-1000.0f)), b);
        }
        *sum += vf_sum(a);
        *weighted += vf_sum(b);
    }
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
    exponentials(x, count, most, 1.0f, &sum, &weighted);
    out[0] = most + log(sum);
    out[1] = log(sum) - weighted / sum;
    return 1;
}

static double log_sum_exp(const float *x, int64_t count, double scale) {
    double sum, weighted;
    float most = largest_of(x, count);
    if (most == -INFINITY) return -INFINITY;
    exponentials(x, count, most, (float)scale, &sum, &weighted);
    return (double)most * scale + log(sum);
}

static int64_t rank_of(const float *x, int64_t count, int64_t id) {
    int64_t rank = 0;
    for (int64_t i = 0; i < id; i++) rank += x[i] >= x[id];
    for (int64_t i = id + 1; i < count; i++) rank += x[i] > x[id];
    return rank;
}

/* Ids below `count` whose luck hash exceeds the threshold, at most `room` of them; how many there are. docs/luck.md
 * specifies the hash. */
static int64_t lucky_ids(uint64_t key, int64_t count, uint64_t threshold, int32_t *ids, int64_t room) {
    int64_t found = 0;
    for (int64_t block = 0; block < count; block += 64) {
        uint64_t hash[64];
        for (int i = 0; i < 64; i++) {
            uint64_t h = key + (uint64_t)(block + i + 1) * 0x9E3779B97F4A7C15u;
            h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
            h = (h ^ h >> 27) * 0x94D049BB133111EBu;
            hash[i] = h ^ h >> 31;
        }
        for (int i = 0; i < MIN(64, count - block); i++)
            if (hash[i] > threshold) {
                if (found < room) ids[found] = (int32_t)(block + i);
                found++;
            }
    }
    return found;
}
