/* The cache of keys and values, and attention over it. Included by kernels.h.
 *
 * Every query has its own sums over the keys, in order, however many queries share the loads. So a row's result does
 * not depend on its neighbours.
 */

typedef struct {
    int32_t *keys, *values;
    float *key_scales, *value_scales;
} page;

/* The cache of the group of layers that an op belongs to, and an entry of the group's page table. */
INLINE const gl_cache *cache_of(const gl_program *p, const gl_op *op) { return p->caches + op->group; }
INLINE int32_t page_at(const gl_span *span, const gl_op *op, int32_t index) {
    return span->pages[op->group * span->stride + index];
}

INLINE page page_of(const gl_cache *c, int32_t layer, int32_t index, int32_t head) {
    int64_t at = ((int64_t)index * c->layers + layer) * c->kv_heads + head;
    int32_t *keys = c->keys + at * gl_key_rows(c->head_dim) * GL_PAGE;
    float *scales = (float *)(keys + gl_pairs(c->head_dim) * GL_PAGE);
    return (page){keys, c->values + at * GL_PAGE / 2 * c->padded_head_dim, scales, scales + GL_PAGE};
}

INLINE int64_t span_pages(const gl_span *span) {
    return (span->first_slot + span->rows - 1) / GL_PAGE - span->first_slot / GL_PAGE + 1;
}

/* Queries, keys and values are vectors of `head_dim` numbers, and become integers of 16 bits with a scale. For queries and
 * keys, LARGEST_CODE is the length of the vector, so that the product of two of them always fits 32 bits; for values it is
 * the largest of the numbers. */
#define LARGEST_CODE 32767.0f

INLINE float length_of(const float *x, int32_t head_dim) { return sqrtf(sum_of_powers(x, head_dim, 0.0f, 2)); }

/* Some numbers of a vector, padded with zeros. */
INLINE vf numbers_from(const float *x, int32_t d, int32_t head_dim) {
    if (d + LANES <= head_dim) return vf_load(x + d);
    float padded[LANES] = {0};
    memcpy(padded, x + d, (head_dim - d) * sizeof(float));
    return vf_load(padded);
}

INLINE float largest_of(const float *x, int32_t head_dim) {
    vf largest = vf_set(0.0f), sum = vf_set(0.0f);
    for (int32_t d = 0; d < head_dim; d += LANES) {
        vf size = vf_abs(numbers_from(x, d, head_dim));
        largest = vf_max(largest, size);
        sum = vf_add(sum, size);
    }
    return vf_has_nan(sum) ? NAN : vf_largest(largest);
}

/* Quantizes a vector such that a number as large as `whole` becomes LARGEST_CODE. Two codes that follow each other are
 * stored `apart`, and each two of them `stride` after the two before. Returns the scale: NaN if `whole` is not finite. */
INLINE float quantize_vector(const float *x, int32_t head_dim, float whole, code *codes, int32_t stride,
                             const int apart) {
    const int finite = whole < INFINITY;
    vf inverse = vf_set(finite && whole > 1e-15f ? LARGEST_CODE / whole : 0.0f);
    for (int32_t d = 0; d < head_dim; d += LANES) {
        code words[LANES];
        store_words(words, finite ? vf_round(vf_mul(numbers_from(x, d, head_dim), inverse)) : vf_set(0.0f));
        int32_t count = MIN(LANES, 2 * gl_pairs(head_dim - d));
        for (int32_t i = 0; i < count; i += 2) {
            code *to = codes + (d + i) / 2 * stride;
            to[0] = words[i], to[apart] = words[i + 1];
        }
    }
    return finite ? whole / LARGEST_CODE : NAN;
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
            int32_t own = slot - start;
            code *key = (code *)(here.keys + own);
            code *value = (code *)(here.values + own / 2 * c->padded_head_dim) + own % 2;
            float length = length_of(k, c->head_dim), largest = largest_of(v, c->head_dim);
            here.key_scales[own] = quantize_vector(k, c->head_dim, length, key, 2 * GL_PAGE, 1);
            here.value_scales[own] = quantize_vector(v, c->head_dim, largest, value, 4, 2);
        }
    }
}

#if LANES == 16 /* queries that share each load of a key or value; with two sums each they fill the registers */
#define QUERIES 12
#else
#define QUERIES 6
#endif
#define QUERY_ROWS 8 /* rows in a unit of work */
#define LINE 16      /* words in a cache line */

typedef struct {
    const float *q; /* [head dim] */
    float *out;
    float sink;     /* the score of one more key, whose value is zero; minus infinity: there is none */
    int32_t slot;
    int32_t reach; /* how many slots it sees, from slot 0 on */
} query;

/* Scores of `count` queries against the keys of one page: [count, GL_PAGE]. `turned` are the codes of the queries, in
 * pairs: [pairs, count]; `scales` are theirs. Asks for the page's values, and for the keys of the next page. */
INLINE void score(const page here, const page next, int32_t pairs, const int32_t *turned, const float *scales,
                  const int count, float *scores) {
    for (int i = 0; i < 2 * GL_PAGE; i += LINE) __builtin_prefetch(next.key_scales + i); /* and of values */
    for (int at = 0; at < GL_PAGE; at += 2 * LANES) {
        vi sum[QUERIES][2];
        for (int t = 0; t < count; t++) sum[t][0] = sum[t][1] = vi_zero();
        for (int32_t pair = 0; pair < pairs; pair++) {
            const int32_t *keys = here.keys + pair * GL_PAGE + at;
            for (int i = 0; at == 0 && i < GL_PAGE; i += LINE) {
                __builtin_prefetch(next.keys + pair * GL_PAGE + i);
                __builtin_prefetch(here.values + pair * GL_PAGE + i);
            }
            vi low = load_pairs(keys), high = load_pairs(keys + LANES);
            #pragma GCC unroll 12
            for (int t = 0; t < count; t++) {
                sum[t][0] = dot_pairs_at(sum[t][0], low, turned + pair * count + t);
                sum[t][1] = dot_pairs_at(sum[t][1], high, turned + pair * count + t);
            }
        }
        vf low = vf_load(here.key_scales + at), high = vf_load(here.key_scales + at + LANES);
        for (int t = 0; t < count; t++) {
            vf scale = vf_set(scales[t]);
            vf_store(scores + t * GL_PAGE + at, vf_mul(vf_mul(vf_from_vi(sum[t][0]), low), scale));
            vf_store(scores + t * GL_PAGE + at + LANES, vf_mul(vf_mul(vf_from_vi(sum[t][1]), high), scale));
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

/* A weight for each value of a page, with its scale in it, as codes with a scale of their own. A query's scores of a page
 * are overwritten with them. */
typedef struct {
    int32_t codes[GL_PAGE / 2]; /* in pairs */
    float scale;
    float unused[GL_PAGE / 2 - 1];
} page_weights;

/* Quantizes the products of weights with the scales of their values. The sum of the codes is about LARGEST_CODE, so the
 * sum of the weighted codes of a page fits 32 bits. */
INLINE void quantize_weights(const vf *products, page_weights *out) {
    vf sums[VECTORS];
    for (int i = 0; i < GL_PAGE / LANES; i++)
        sums[i % VECTORS] = i < VECTORS ? products[i] : vf_add(sums[i % VECTORS], products[i]);
    float sum = vf_sum(sums);
    const int any = sum > 1e-30f;
    vf inverse = vf_set(LARGEST_CODE / sum);
    for (int i = 0; i < GL_PAGE / LANES; i++)
        store_words((code *)out->codes + i * LANES, any ? vf_round(vf_mul(products[i], inverse)) : vf_set(0.0f));
    out->scale = sum / LARGEST_CODE;
}

/* Turns scores into weights, in place: softmax without its division. `sums` receives the sum of each query's weights. Page
 * by page, so that the exponentials of all queries are under way together. */
INLINE void soften(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head, int32_t first,
                   int32_t last, const int count, const vf *largest, float *scores, float *sums) {
    vf most[QUERIES], sum[QUERIES][VECTORS];
    for (int t = 0; t < count; t++) {
        most[t] = vf_set(vf_largest(largest[t]));
        for (int v = 0; v < VECTORS; v++) sum[t][v] = vf_set(0.0f);
    }
    for (int32_t index = first; index <= last; index++) {
        const float *scales = page_of(cache_of(p, op), op->i0, page_at(span, op, index), kv_head).value_scales;
        for (int t = 0; t < count; t++, scores += GL_PAGE) {
            vf products[GL_PAGE / LANES];
            for (int i = 0; i < GL_PAGE / LANES; i++) {
                vf weight = vf_exp(vf_sub(vf_load(scores + i * LANES), most[t]));
                products[i] = vf_times_if_any(weight, vf_load(scales + i * LANES));
                sum[t][i % VECTORS] = vf_add(sum[t][i % VECTORS], weight);
            }
            quantize_weights(products, (page_weights *)scores);
        }
    }
    for (int t = 0; t < count; t++) sums[t] = vf_sum(sum[t]);
}

/* Adds the weighted values of a page to a few vectors of sums for each query: [count, width]. */
INLINE void mix_dims(const int32_t *values, int32_t width, const int pairs, const page_weights *weights, const int count,
                     float *out, const int vectors) {
    vi sum[QUERIES][4];
    for (int t = 0; t < count; t++)
        for (int v = 0; v < vectors; v++) sum[t][v] = vi_zero();
    for (int pair = 0; pair < pairs; pair++, values += width) {
        vi some[4];
        for (int v = 0; v < vectors; v++) some[v] = load_pairs(values + v * LANES);
        #pragma GCC unroll 12
        for (int t = 0; t < count; t++)
            for (int v = 0; v < vectors; v++) sum[t][v] = dot_pairs_at(sum[t][v], some[v], weights[t].codes + pair);
    }
    for (int t = 0; t < count; t++)
        for (int v = 0; v < vectors; v++) {
            float *to = out + t * width + v * LANES;
            vf_store(to, vf_fma(vf_from_vi(sum[t][v]), vf_set(weights[t].scale), vf_load(to)));
        }
}

/* Sums up the weighted values, page by page: `out` is [count, padded head dim]. */
INLINE void mix(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head, const int count,
                int32_t first, int32_t end, const page_weights *weights, float *out) {
    const gl_cache *c = cache_of(p, op);
    int32_t width = c->padded_head_dim;
    const int vectors = 2 * count <= QUERIES ? 4 : 2; /* that fit the registers */
    memset(out, 0, count * width * sizeof(float));
    for (int32_t index = first; index * GL_PAGE < end; index++, weights += count) {
        const int32_t *values = page_of(c, op->i0, page_at(span, op, index), kv_head).values;
        int pairs = (MIN(GL_PAGE, end - index * GL_PAGE) + 1) / 2;
        int32_t d = 0;
        for (; d + vectors * LANES <= width; d += vectors * LANES)
            mix_dims(values + d, width, pairs, weights, count, out + d, vectors);
        for (; d < width; d += LANES) mix_dims(values + d, width, pairs, weights, count, out + d, 1);
    }
}

/* Attention of `count` queries over the slots from page `first` to below `end`. `scratch` has room for each query, its
 * output, and a score for each key. */
INLINE void attend_queries(const gl_program *p, const gl_op *op, const gl_span *span, int32_t kv_head,
                           const query *queries, const int count, int32_t first, int32_t end, float *scratch) {
    const gl_cache *c = cache_of(p, op);
    int32_t last = (end - 1) / GL_PAGE, pairs = gl_pairs(c->head_dim), *turned = (int32_t *)scratch;
    float *out = scratch + count * pairs, *scores = out + count * c->padded_head_dim;
    float scales[QUERIES], sums[QUERIES];
    vf largest[QUERIES];
    for (int t = 0; t < count; t++) {
        largest[t] = vf_set(queries[t].sink);
        float length = length_of(queries[t].q, c->head_dim);
        code *codes = (code *)(turned + t);
        scales[t] = op->f0 * quantize_vector(queries[t].q, c->head_dim, length, codes, 2 * count, 1);
    }
    for (int32_t index = first; index <= last; index++) {
        page here = page_of(c, op->i0, page_at(span, op, index), kv_head);
        page next = index < last ? page_of(c, op->i0, page_at(span, op, index + 1), kv_head) : here;
        float *own = scores + (index - first) * count * GL_PAGE;
        score(here, next, pairs, turned, scales, count, own);
        finish_scores(op, queries, count, index * GL_PAGE, own, largest);
    }
    soften(p, op, span, kv_head, first, last, count, largest, scores, sums);
    if (op->weight)
        for (int t = 0; t < count; t++) {
            float weight[LANES];
            vf_store(weight, vf_exp(vf_sub(vf_set(queries[t].sink), vf_set(vf_largest(largest[t])))));
            sums[t] += weight[0];
        }
    mix(p, op, span, kv_head, count, first, end, (const page_weights *)scores, out);
    for (int t = 0; t < count; t++)
        for (int32_t d = 0; d < c->head_dim; d++) queries[t].out[d] = out[t * c->padded_head_dim + d] * (1.0f / sums[t]);
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
            float sink = op->weight ? op->weight[kv_head * group + g] : -INFINITY;
            queries[count++] = (query){p->buffers[op->a].values + at, out->values + at, sink, slot, seen};
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
