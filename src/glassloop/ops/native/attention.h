/* The cache of keys and values, and attention over it. Included by kernels.h.
 *
 * Every query has its own sums over the keys, in order, however many queries share the loads. So a row's result does
 * not depend on its neighbours.
 */

typedef struct {
    uint16_t *keys, *values;
} page;

/* The cache of the group of layers that an op belongs to, and an entry of the group's page table. */
INLINE const gl_cache *cache_of(const gl_program *p, const gl_op *op) { return p->caches + op->group; }
INLINE int32_t page_at(const gl_span *span, const gl_op *op, int32_t index) {
    return span->pages[op->group * span->stride + index];
}

INLINE page page_of(const gl_cache *c, int32_t layer, int32_t index, int32_t head) {
    int64_t at = ((int64_t)index * c->layers + layer) * c->kv_heads + head;
    return (page){c->keys + at * c->head_dim * GL_PAGE, c->values + at * GL_PAGE * c->padded_head_dim};
}

INLINE int64_t span_pages(const gl_span *span) {
    return (span->first_slot + span->rows - 1) / GL_PAGE - span->first_slot / GL_PAGE + 1;
}

/* Writes keys and values to the cache. A unit is the rows of one branch that fall into one page. */
static void keep(const gl_program *p, const gl_op *op, int64_t unit) {
    const gl_cache *c = cache_of(p, op);
    const gl_span *span = p->batch->span;
    for (; unit >= span_pages(span); span++) unit -= span_pages(span);
    int32_t index = span->first_slot / GL_PAGE + (int32_t)unit, start = index * GL_PAGE;
    int32_t from = MAX(span->first_slot, start), to = MIN(span->first_slot + span->rows, start + GL_PAGE);
    for (int32_t head = 0; head < c->kv_heads; head++) {
        page here = page_of(c, op->i0, page_at(span, op, index), head);
        for (int32_t slot = from; slot < to; slot++) {
            int64_t row = span->first_row + slot - span->first_slot;
            int64_t at = (row * c->kv_heads + head) * c->head_dim;
            const float *k = p->buffers[op->a].values + at, *v = p->buffers[op->b].values + at;
            uint16_t *key = here.keys + (slot - start);
            uint16_t *value = here.values + (slot - start) * c->padded_head_dim;
            int32_t d = 0;
            for (; d + LANES <= c->head_dim; d += LANES) {
                uint16_t half[LANES];
                vf_store_half(half, vf_load(k + d));
                for (int lane = 0; lane < LANES; lane++) key[(d + lane) * GL_PAGE] = half[lane];
                vf_store_half(value + d, vf_load(v + d));
            }
            for (; d < c->head_dim; d++) {
                key[d * GL_PAGE] = float_to_half(k[d]);
                value[d] = float_to_half(v[d]);
            }
        }
    }
}

#if LANES == 16 /* queries that share each load of a key or value; with two sums each they fill the registers */
#define QUERIES 12
#else
#define QUERIES 6
#endif
#define QUERY_ROWS 8 /* rows in a unit of work */

typedef struct {
    const float *q; /* [head dim] */
    float *out;
    int32_t slot;
    int32_t reach; /* how many slots it sees, from slot 0 on */
} query;

/* Scores of `count` queries against the keys of one page: [count, GL_PAGE]. `turned` are the queries, scaled: [head dim,
 * count]. Asks for the page's values, and for the keys of the next page. */
INLINE void score(const page here, const page next, int32_t head_dim, const float *turned, const int count,
                  float *scores) {
    for (int at = 0; at < GL_PAGE; at += 2 * LANES) {
        vf sum[QUERIES][2];
        for (int t = 0; t < count; t++) sum[t][0] = sum[t][1] = vf_set(0.0f);
        for (int32_t d = 0; d < head_dim; d++) {
            if (at == 0) { /* a cache line each; a page has one for each dimension */
                __builtin_prefetch(next.keys + d * GL_PAGE);
                __builtin_prefetch(here.values + d * GL_PAGE);
            }
            const uint16_t *keys = here.keys + d * GL_PAGE + at;
            vf low = vf_load_half(keys), high = vf_load_half(keys + LANES);
            #pragma GCC unroll 12
            for (int t = 0; t < count; t++) {
                sum[t][0] = vf_fma_at(turned + d * count + t, low, sum[t][0]);
                sum[t][1] = vf_fma_at(turned + d * count + t, high, sum[t][1]);
            }
        }
        for (int t = 0; t < count; t++) {
            vf_store(scores + t * GL_PAGE + at, sum[t][0]);
            vf_store(scores + t * GL_PAGE + at + LANES, sum[t][1]);
        }
    }
}

/* Caps the scores of a page whose first key has the slot `start`, gives those that a query does not see no weight, and
 * raises each query's largest score. */
INLINE void finish_scores(const gl_op *op, const query *queries, const int count, int32_t start, float *scores,
                          vf *largest) {
    for (int t = 0; t < count; t++, scores += GL_PAGE) {
        int32_t seen_from = op->i2 ? queries[t].slot - op->i2 + 1 - start : 0, seen_to = queries[t].reach - start;
        for (int i = 0; op->f1 > 0 && i < GL_PAGE; i += LANES)
            vf_store(scores + i, vf_mul(vf_tanh(vf_div(vf_load(scores + i), vf_set(op->f1))), vf_set(op->f1)));
        if (seen_from > 0 || seen_to < GL_PAGE)
            for (int i = 0; i < GL_PAGE; i++) scores[i] = i >= seen_from && i < seen_to ? scores[i] : -INFINITY;
        for (int i = 0; i < GL_PAGE; i += LANES) largest[t] = vf_max(largest[t], vf_load(scores + i));
    }
}

/* Turns scores into weights, in place: softmax without its division. `sums` receives the sum of each query's weights. Page
 * by page, so that the exponentials of all queries are under way together. */
INLINE void soften(float *scores, int64_t pages, const int count, const vf *largest, float *sums) {
    vf most[QUERIES], sum[QUERIES][VECTORS];
    for (int t = 0; t < count; t++) {
        most[t] = vf_set(vf_largest(largest[t]));
        for (int v = 0; v < VECTORS; v++) sum[t][v] = vf_set(0.0f);
    }
    for (int64_t page = 0; page < pages; page++)
        for (int t = 0; t < count; t++, scores += GL_PAGE)
            for (int i = 0; i < GL_PAGE; i += LANES) {
                vf weight = vf_exp(vf_sub(vf_load(scores + i), most[t]));
                vf_store(scores + i, weight);
                sum[t][i / LANES % VECTORS] = vf_add(sum[t][i / LANES % VECTORS], weight);
            }
    for (int t = 0; t < count; t++) sums[t] = vf_sum(sum[t]);
}

/* Sums up the weighted values of one or two vectors of dimensions from `d` on, over all keys in order: from page `first`
 * to below slot `end`. */
INLINE void mix_dims(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head, const query *queries,
                     const int count, int32_t first, int32_t end, const float *weight, const float *sums, int32_t d,
                     const int both) {
    const gl_cache *c = cache_of(p, op);
    vf out[QUERIES][2];
    #pragma GCC unroll 12
    for (int t = 0; t < count; t++) out[t][0] = out[t][1] = vf_set(0.0f);
    for (int32_t index = first; index * GL_PAGE < end; index++, weight += count * GL_PAGE) {
        const uint16_t *values = page_of(c, op->i0, page_at(span, op, index), kv_head).values + d;
        /* Slots after the last key may hold values of another branch, and are never read. */
        int slots = MIN(GL_PAGE, end - index * GL_PAGE);
        for (int slot = 0; slot < slots; slot++, values += c->padded_head_dim) {
            vf low = vf_load_half(values), high = both ? vf_load_half(values + LANES) : vf_set(0.0f);
            #pragma GCC unroll 12
            for (int t = 0; t < count; t++) {
                out[t][0] = vf_fma_at(weight + t * GL_PAGE + slot, low, out[t][0]);
                if (both) out[t][1] = vf_fma_at(weight + t * GL_PAGE + slot, high, out[t][1]);
            }
        }
    }
    #pragma GCC unroll 12 /* all three loops, or the sums would lie in memory */
    for (int t = 0; t < count; t++) {
        float lane[2 * LANES];
        vf share = vf_set(1.0f / sums[t]);
        vf_store(lane, vf_mul(out[t][0], share));
        vf_store(lane + LANES, vf_mul(out[t][1], share));
        memcpy(queries[t].out + d, lane, MIN(2 * LANES, c->head_dim - d) * sizeof(float));
    }
}

INLINE void mix(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head, const query *queries,
                const int count, int32_t first, int32_t end, const float *weights, const float *sums) {
    int32_t d = 0, dims = cache_of(p, op)->padded_head_dim;
    for (; d + 2 * LANES <= dims; d += 2 * LANES)
        mix_dims(p, op, span, kv_head, queries, count, first, end, weights, sums, d, 1);
    if (d < dims) mix_dims(p, op, span, kv_head, queries, count, first, end, weights, sums, d, 0);
}

/* Attention of `count` queries over the slots from page `first` to below `end`. `scratch` has room for each query's values
 * and a score for each key. */
INLINE void attend_queries(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head,
                           const query *queries, const int count, int32_t first, int32_t end, float *scratch) {
    const gl_cache *c = cache_of(p, op);
    int32_t last = (end - 1) / GL_PAGE;
    float sums[QUERIES], *scores = scratch + count * c->head_dim;
    vf largest[QUERIES];
    for (int t = 0; t < count; t++) {
        largest[t] = vf_set(-INFINITY);
        for (int32_t d = 0; d < c->head_dim; d++) scratch[d * count + t] = queries[t].q[d] * op->f0;
    }
    for (int32_t index = first; index <= last; index++) {
        page here = page_of(c, op->i0, page_at(span, op, index), kv_head);
        page next = index < last ? page_of(c, op->i0, page_at(span, op, index + 1), kv_head) : here;
        float *own = scores + (index - first) * count * GL_PAGE;
        score(here, next, c->head_dim, scratch, count, own);
        finish_scores(op, queries, count, index * GL_PAGE, own, largest);
    }
    soften(scores, last - first + 1, count, largest, sums);
    mix(p, op, span, kv_head, queries, count, first, end, scores, sums);
}

/* The same for a fixed number of queries. */
typedef void attending(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head, const query *queries,
                       int32_t first, int32_t end, float *scratch);
#define ATTEND(name, count)                                                                                            \
    static void name(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head, const query *queries, \
                     int32_t first, int32_t end, float *scratch) {                                                     \
        attend_queries(p, op, span, kv_head, queries, count, first, end, scratch);                                     \
    }
ATTEND(attend_1, 1)
ATTEND(attend_2, 2)
ATTEND(attend_3, 3)
ATTEND(attend_4, 4)
ATTEND(attend_5, 5)
ATTEND(attend_6, 6)
#if QUERIES == 12
ATTEND(attend_7, 7)
ATTEND(attend_8, 8)
ATTEND(attend_9, 9)
ATTEND(attend_10, 10)
ATTEND(attend_11, 11)
ATTEND(attend_12, 12)
#endif
static attending *const attend_some[] = {
    NULL, attend_1, attend_2, attend_3, attend_4, attend_5, attend_6,
#if QUERIES == 12
    attend_7, attend_8, attend_9, attend_10, attend_11, attend_12,
#endif
};

INLINE int64_t span_units(const gl_span *span, const gl_cache *c) {
    return parts_of(span->rows, QUERY_ROWS) * c->kv_heads;
}

/* A unit is a few rows of one branch and one key-value head, with all query heads that share it. */
static void attend(const gl_program *p, const gl_op *op, int64_t unit, float *scratch) {
    const gl_cache *c = cache_of(p, op);
    const gl_span *span = p->batch->span;
    for (; unit >= span_units(span, c); span++) unit -= span_units(span, c);
    /* The last rows have the most keys. They go first, so that no thread is left with them at the end. */
    int32_t chunk = (int32_t)(parts_of(span->rows, QUERY_ROWS) - 1 - unit / c->kv_heads);
    int32_t kv_head = (int32_t)(unit % c->kv_heads), group = op->i1 / c->kv_heads;
    int32_t from = chunk * QUERY_ROWS, to = MIN(from + QUERY_ROWS, span->rows), count = 0;
    int64_t width = (int64_t)op->i1 * c->head_dim;
    const gl_buffer *out = &p->buffers[op->out];
    const int32_t *reach = p->batch->reach ? p->batch->reach + span->first_row : NULL;
    query queries[QUERIES];
    int32_t end = 0;
    for (int32_t i = from; i < to; i++)
        for (int g = 0; g < group; g++) {
            int64_t at = (span->first_row + i) * width + (kv_head * group + g) * c->head_dim;
            int32_t slot = span->first_slot + i, seen = reach ? reach[i] : slot + 1;
            queries[count++] = (query){p->buffers[op->a].values + at, out->values + at, slot, seen};
            end = MAX(end, seen);
            if (count < QUERIES && (i + 1 < to || g + 1 < group)) continue;
            int32_t first = op->i2 ? MAX(0, queries[0].slot - op->i2 + 1) / GL_PAGE : 0;
            attend_some[count](p, op, span, kv_head, queries, first, end, scratch);
            count = end = 0;
        }
    if (!op->quantize) return;
    int64_t columns = (int64_t)group * c->head_dim;
    for (int64_t row = span->first_row + from; row < span->first_row + to; row++)
        quantize_columns(out->values + row * width + kv_head * columns, out, row, width, kv_head * columns,
                         (kv_head + 1) * columns, op->quantize == 2);
}
