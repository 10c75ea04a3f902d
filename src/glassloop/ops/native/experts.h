/* Experts: which of them each row takes, and the products of their matrices with the rows that take them. Included by
 * kernels.h.
 *
 * A pair is a row and one of its experts. `group` sorts all pairs by expert, so that the rows of an expert share each load
 * of its weights, up to ROWS_A_UNIT at a time. A row's sums have the same order whichever rows are beside it. */

/* ---- the choice ---- */

/* x[i] = e^(x[i] - most) */
static void exp_each_less(float *x, int64_t count, float most) {
    for (int64_t i = 0; i < count; i += LANES) {
        float some[LANES] = {0};
        int64_t left = MIN(LANES, count - i);
        memcpy(some, x + i, left * sizeof(float));
        vf_store(some, vf_exp(vf_sub(vf_load(some), vf_set(most))));
        memcpy(x + i, some, left * sizeof(float));
    }
}

static float most_of(const float *x, int64_t count) {
    float most = x[0];
    for (int64_t i = 1; i < count; i++) most = MAX(most, x[i]);
    return most;
}

/* The places of the highest values, the highest first, ties by the lower place. */
static void best_places(const float *x, int32_t count, int32_t wanted, int32_t *places) {
    for (int32_t i = 0, size = 0; i < count; i++) {
        if (size == wanted && !(x[i] > x[places[size - 1]])) continue;
        int32_t at = size < wanted ? size++ : size - 1;
        for (; at > 0 && x[i] > x[places[at - 1]]; at--) places[at] = places[at - 1];
        places[at] = i;
    }
}

/* Sets the values outside the best groups to minus infinity. A group is as good as the sum of its two best. */
static void keep_best_groups(const gl_routing *routing, float *wanted, int32_t *places) {
    int32_t size = routing->experts / routing->groups;
    float sums[GL_MOST_GROUPS];
    for (int32_t g = 0; g < routing->groups; g++) {
        best_places(wanted + g * size, size, MIN(2, size), places);
        sums[g] = wanted[g * size + places[0]];
        if (size > 1) sums[g] += wanted[g * size + places[1]];
    }
    best_places(sums, routing->groups, routing->chosen_groups, places);
    for (int32_t g = 0; g < routing->groups; g++) {
        int kept = 0;
        for (int32_t i = 0; i < routing->chosen_groups; i++) kept |= places[i] == g;
        for (int32_t e = 0; !kept && e < size; e++) wanted[g * size + e] = -INFINITY;
    }
}

/* The weight of an expert by `mixer`: softmax over those that are left and close to it, which is the best of them. */
static float mixed_weight(const gl_routing *routing, const float *logits, const int32_t *before, int32_t place,
                          float *powers) {
    float best = logits[before[place]];
    for (int32_t e = 0; e < routing->experts; e++) {
        int far = (best - logits[e]) / MAX(fabsf(logits[e]), best) > routing->closeness;
        for (int32_t i = 0; i < place; i++) far |= before[i] == e;
        powers[e] = far ? -INFINITY : logits[e];
    }
    exp_each_less(powers, routing->experts, best);
    return 1.0f / sum_of_powers(powers, routing->experts, 0.0f, 1);
}

static void route(const gl_program *p, const gl_op *op, int64_t row, float *scratch) {
    const gl_routing *routing = op->routing;
    const int32_t experts = routing->experts, chosen = routing->chosen;
    const float *logits = p->buffers[op->a].values + row * experts;
    float *numbers = p->buffers[op->out].values + row * op->width, *weights = numbers + chosen;
    float *scores = scratch, *wanted = scratch + experts;
    int32_t order[GL_MOST_CHOSEN];
    int is_nan = 0;
    for (int32_t e = 0; e < experts; e++) is_nan |= isnan(logits[e]);
    if (is_nan) {
        for (int32_t i = 0; i < chosen; i++) numbers[i] = (float)i, weights[i] = NAN;
        return;
    }
    memcpy(scores, logits, experts * sizeof(float));
    if (routing->scores == GL_SOFTMAX) {
        exp_each_less(scores, experts, most_of(scores, experts));
        float sum = sum_of_powers(scores, experts, 0.0f, 1);
        for (int32_t e = 0; e < experts; e++) scores[e] /= sum;
    } else if (routing->scores == GL_LOGISTIC) {
        for (int32_t e = 0; e < experts; e++) scores[e] = -scores[e];
        exp_each_less(scores, experts, 0.0f);
        for (int32_t e = 0; e < experts; e++) scores[e] = 1.0f / (1.0f + scores[e]);
    }
    int plain = !routing->choice_bias && routing->groups == 1; /* scores only grow with logits */
    memcpy(wanted, plain ? logits : scores, experts * sizeof(float));
    for (int32_t e = 0; routing->choice_bias && e < experts; e++) wanted[e] += routing->choice_bias[e];
    if (routing->groups > 1) keep_best_groups(routing, wanted, order);
    best_places(wanted, experts, chosen, order);
    for (int32_t i = 0; i < chosen; i++) { /* by ascending number, with their weights */
        float weight = routing->scores == GL_MIXER ? mixed_weight(routing, logits, order, i, wanted) : scores[order[i]];
        int32_t at = i;
        for (; at > 0 && numbers[at - 1] > (float)order[i]; at--)
            numbers[at] = numbers[at - 1], weights[at] = weights[at - 1];
        numbers[at] = (float)order[i], weights[at] = weight;
    }
    float sum = 0.0f;
    if (routing->scores == GL_CHOSEN) exp_each_less(weights, chosen, most_of(weights, chosen));
    for (int32_t i = 0; i < chosen; i++) sum += weights[i];
    if (routing->scores == GL_CHOSEN)
        for (int32_t i = 0; i < chosen; i++) weights[i] /= sum;
    if (routing->normalized)
        for (int32_t i = 0; i < chosen; i++) weights[i] /= sum + routing->epsilon;
    for (int32_t i = 0; i < chosen; i++) {
        weights[i] *= routing->factor;
        if (routing->factors) weights[i] *= routing->factors[(int32_t)numbers[i]];
    }
}

/* ---- pairs by expert ---- */

/* Pairs of one expert, at most ROWS_A_UNIT of them. */
typedef struct {
    int32_t expert, first, count;
} pair_group;

typedef struct {
    int32_t pair; /* row * chosen + place */
    float weight;
} weighted_pair;

/* In the buffer of `group`, which has 5 * chosen + 2 words for each row. */
typedef struct {
    int32_t *count; /* of the groups */
    pair_group *groups;
    weighted_pair *pairs;
} pair_plan;

INLINE int64_t most_groups(int64_t pairs, int64_t experts) { return MIN(pairs, experts + pairs / ROWS_A_UNIT); }

INLINE pair_plan plan_in(const gl_program *p, int32_t buffer) {
    int32_t *words = (int32_t *)p->buffers[buffer].values;
    return (pair_plan){words, (pair_group *)(words + 2), NULL};
}

static pair_plan plan_of(const gl_program *p, int32_t buffer, int32_t chosen, int32_t experts) {
    pair_plan plan = plan_in(p, buffer);
    plan.pairs = (weighted_pair *)(plan.groups + most_groups((int64_t)p->batch->rows * chosen, experts));
    return plan;
}

static void group_pairs(const gl_program *p, const gl_op *op) {
    const int32_t chosen = op->i0, experts = op->i1;
    const int64_t pairs = (int64_t)p->batch->rows * chosen;
    const float *routes = p->buffers[op->a].values;
    pair_plan plan = plan_of(p, op->out, chosen, experts);
    int32_t groups = 0, ends[GL_MOST_EXPERTS + 1]; /* where the pairs of the experts before one end */
    memset(ends, 0, (experts + 1) * sizeof *ends);
    for (int64_t i = 0; i < pairs; i++) ends[(int32_t)routes[i / chosen * 2 * chosen + i % chosen] + 1]++;
    for (int32_t e = 0; e < experts; e++) {
        for (int32_t first = 0; first < ends[e + 1]; first += ROWS_A_UNIT)
            plan.groups[groups++] = (pair_group){e, ends[e] + first, MIN(ROWS_A_UNIT, ends[e + 1] - first)};
        ends[e + 1] += ends[e];
    }
    for (int64_t i = 0; i < pairs; i++) {
        const float *number = routes + i / chosen * 2 * chosen + i % chosen;
        plan.pairs[ends[(int32_t)*number]++] = (weighted_pair){(int32_t)i, number[chosen]};
    }
    *plan.count = groups;
}

/* ---- tiles of rows that lie anywhere ---- */

/* The rows that a tile is multiplied with: quantized, and as floats. */
typedef struct {
    const gl_block *quantized[MOST_ROWS];
    const float *values[MOST_ROWS];
} some_rows;

INLINE void float_rows(const gl_matrix *m, const uint8_t *tile, const float *const *x, vf *out, const int rows,
                       const int packing) {
    for (int r = 0; r < rows; r++) out[r] = vf_set(0.0f);
    for (int64_t k = 0; k < m->in; k++) {
        vf weights = load_floats(tile, k, packing);
        for (int r = 0; r < rows; r++) out[r] = vf_fma(weights, vf_set(x[r][k]), out[r]);
    }
}

INLINE void tile_of_rows(const gl_matrix *m, const uint8_t *tile, const some_rows *x, vf *out, const int rows,
                         const int packing, const int minimum, const int scales, const int halves) {
    vf sums[MOST_ROWS]; /* in registers */
    if (packing == GL_Q2) two_bit_tile(m, tile, x->quantized, sums, rows, minimum, 1);
    else if (packing >= GL_Q4) quantized_tile(m, tile, x->quantized, sums, rows, packing, minimum, scales, halves, 1);
    else float_rows(m, tile, x->values, sums, rows, packing);
    #pragma GCC unroll 12
    for (int r = 0; r < rows; r++) out[r] = sums[r];
}

#define TILE_OF_ROWS(name, ...)                                                                                     \
    static void name(const gl_matrix *m, const uint8_t *tile, const some_rows *x, vf *out, int rows) {              \
        switch (rows) {                                                                                             \
        case 1: tile_of_rows(m, tile, x, out, 1, __VA_ARGS__); break;                                               \
        case 2: tile_of_rows(m, tile, x, out, 2, __VA_ARGS__); break;                                               \
        case 4: tile_of_rows(m, tile, x, out, 4, __VA_ARGS__); break;                                               \
        default: tile_of_rows(m, tile, x, out, MOST_EXPERT_ROWS, __VA_ARGS__);                                      \
        }                                                                                                           \
    }
#define MOST_EXPERT_ROWS (MOST_ROWS == 12 ? 8 : 4)
TILE_OF_ROWS(rows_f32, GL_F32, 0, 0, 0)
TILE_OF_ROWS(rows_f16, GL_F16, 0, 0, 0)
TILE_OF_ROWS(rows_bf16, GL_BF16, 0, 0, 0)
TILE_OF_ROWS(rows_q4, GL_Q4, 1, GL_SCALE_F16, 0)
TILE_OF_ROWS(rows_q4_centred, GL_Q4, 0, GL_SCALE_F16, 0)
TILE_OF_ROWS(rows_q4_steps, GL_Q4, 1, GL_SCALE_STEPS, 0)
TILE_OF_ROWS(rows_q4_zeros, GL_Q4, 1, GL_SCALE_ZEROS, 0)
TILE_OF_ROWS(rows_q8, GL_Q8, 0, GL_SCALE_F16, 0)
TILE_OF_ROWS(rows_q8_minimum, GL_Q8, 1, GL_SCALE_F16, 0)
TILE_OF_ROWS(rows_q8_steps_minimum, GL_Q8, 1, GL_SCALE_STEPS, 0)
TILE_OF_ROWS(rows_q8_steps_halves, GL_Q8, 0, GL_SCALE_STEPS, 1)
TILE_OF_ROWS(rows_table, GL_TABLE, 0, GL_SCALE_F16, 0)
TILE_OF_ROWS(rows_table_halves, GL_TABLE, 0, GL_SCALE_F16, 1)
TILE_OF_ROWS(rows_table_power, GL_TABLE, 0, GL_SCALE_BF16, 0)
TILE_OF_ROWS(rows_table_steps, GL_TABLE, 0, GL_SCALE_STEPS, 0)
TILE_OF_ROWS(rows_table_steps_halves, GL_TABLE, 0, GL_SCALE_STEPS, 1)
TILE_OF_ROWS(rows_q2, GL_Q2, 1, GL_SCALE_STEPS, 0)
TILE_OF_ROWS(rows_q2_centred, GL_Q2, 0, GL_SCALE_STEPS, 0)

typedef void tile_kernel(const gl_matrix *m, const uint8_t *tile, const some_rows *x, vf *out, int rows);

static tile_kernel *kernel_of(const gl_matrix *m) {
    int steps = m->scale == GL_SCALE_STEPS;
    switch (m->packing) {
    case GL_F32: return rows_f32;
    case GL_F16: return rows_f16;
    case GL_BF16: return rows_bf16;
    case GL_Q4:
        if (m->scale == GL_SCALE_ZEROS) return rows_q4_zeros;
        return steps ? rows_q4_steps : m->has_minimum ? rows_q4 : rows_q4_centred;
    case GL_TABLE:
        if (m->scale == GL_SCALE_BF16) return rows_table_power;
        if (m->half_groups) return steps ? rows_table_steps_halves : rows_table_halves;
        return steps ? rows_table_steps : rows_table;
    case GL_Q2: return m->has_minimum ? rows_q2 : rows_q2_centred;
    default:
        if (m->half_groups) return rows_q8_steps_halves;
        if (!m->has_minimum) return rows_q8;
        return steps ? rows_q8_steps_minimum : rows_q8_minimum;
    }
}

/* How many of the pairs that are left are computed together. */
INLINE int together_of(int32_t left) {
    return left >= MOST_EXPERT_ROWS ? MOST_EXPERT_ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Finds the inputs of some pairs: the rows of the buffer, or with `apart` a row for each pair. */
INLINE void rows_of_pairs(const gl_buffer *in, const weighted_pair *pairs, int count, int32_t chosen, int apart,
                          int64_t width, some_rows *x) {
    for (int r = 0; r < count; r++) {
        int64_t row = apart ? pairs[r].pair : pairs[r].pair / chosen;
        x->quantized[r] = row_of(in, row, width);
        x->values[r] = in->values + row * width;
    }
}

/* ---- the products ---- */

/* The tiles of a unit of the first products: whole blocks, so that it can quantize its outputs. */
INLINE int64_t inner_tiles_a_unit(const gl_experts *experts) {
    int64_t block = GL_BLOCK / LANES, tiles = parts_of(experts->ffn, LANES);
    return MAX(block, MIN(64 / LANES, tiles / 32 / block * block));
}

INLINE int64_t inner_units(const gl_program *p, const gl_experts *experts) {
    int64_t across = parts_of(parts_of(experts->ffn, LANES), inner_tiles_a_unit(experts));
    return across * most_groups((int64_t)p->batch->rows * experts->chosen, experts->count);
}

INLINE vf gated(const gl_experts *experts, vf gate, vf up) {
    if (experts->limit > 0) {
        vf zero = vf_set(0.0f), low = vf_set(-experts->limit); /* a NaN is the second operand, and stays */
        gate = vf_sub(zero, vf_max(low, vf_sub(zero, gate)));
        up = vf_max(low, vf_sub(zero, vf_max(low, vf_sub(zero, up))));
    }
    if (experts->shift != 0.0f) up = vf_add(up, vf_set(experts->shift));
    if (experts->slope != 1.0f) {
        vf power = vf_exp(vf_sub(vf_set(0.0f), vf_mul(vf_set(experts->slope), gate)));
        return vf_mul(vf_div(gate, vf_add(vf_set(1.0f), power)), up);
    }
    switch (experts->activation) {
    case GL_SILU: return vf_mul(activation(gate, GL_SILU), up);
    case GL_GELU_TANH: return vf_mul(activation(gate, GL_GELU_TANH), up);
    case GL_GELU: return vf_mul(activation(gate, GL_GELU), up);
    case GL_SIGMOID: return vf_mul(activation(gate, GL_SIGMOID), up);
    case GL_RELU2: return vf_mul(activation(gate, GL_RELU2), up);
    default: return vf_mul(activation(gate, GL_RELU), up);
    }
}

INLINE vf load_some(const float *from, int64_t count) {
    float lane[LANES] = {0};
    if (count >= LANES) return vf_load(from);
    memcpy(lane, from, count * sizeof(float));
    return vf_load(lane);
}

/* One group of pairs times some columns of the gate and up matrices of their expert. */
static void experts_inner(const gl_program *p, const gl_op *op, int64_t unit) {
    const gl_experts *experts = op->experts;
    const int64_t ffn = experts->ffn, groups = most_groups((int64_t)p->batch->rows * experts->chosen, experts->count);
    const pair_plan plan = plan_of(p, op->b, experts->chosen, experts->count);
    if (unit % groups >= *plan.count) return;
    const pair_group *group = plan.groups + unit % groups;
    const int64_t each = inner_tiles_a_unit(experts), first = unit / groups * each;
    const int64_t last = MIN(first + each, parts_of(ffn, LANES)), from = first * LANES, to = MIN(last * LANES, ffn);
    const gl_matrix *gate = experts->gate + group->expert, *up = experts->up + group->expert;
    tile_kernel *gate_kernel = kernel_of(gate), *up_kernel = kernel_of(up);
    const gl_buffer *out = &p->buffers[op->out];
    for (int32_t done = 0, together; done < group->count; done += together) {
        together = together_of(group->count - done);
        const weighted_pair *pairs = plan.pairs + group->first + done;
        float made[MOST_EXPERT_ROWS][64];
        some_rows x;
        rows_of_pairs(&p->buffers[op->a], pairs, together, experts->chosen, experts->weigh_input, gate->in, &x);
        for (int64_t tile = first; tile < last; tile++) {
            vf gates[MOST_EXPERT_ROWS], ups[MOST_EXPERT_ROWS];
            int64_t column = tile * LANES, count = ffn - column;
            gate_kernel(gate, gate->data + tile * gate->tile_bytes, &x, gates, together);
            up_kernel(up, up->data + tile * up->tile_bytes, &x, ups, together);
            for (int r = 0; r < together; r++) {
                if (experts->gate_bias) {
                    int64_t at = group->expert * ffn + column;
                    gates[r] = vf_add(gates[r], load_some(experts->gate_bias + at, count));
                    ups[r] = vf_add(ups[r], load_some(experts->up_bias + at, count));
                }
                vf_store(made[r] + (column - from), gated(experts, gates[r], ups[r]));
            }
        }
        for (int r = 0; r < together; r++) {
            if (!op->only_quantized)
                memcpy(out->values + pairs[r].pair * ffn + from, made[r], (to - from) * sizeof(float));
            if (op->quantize) quantize_columns(made[r], out, pairs[r].pair, ffn, from, to, 0);
        }
    }
}

/* All pairs times some columns of the down matrices, expert by expert: a row's sum is over its experts in ascending order. */
static void experts_outer(const gl_program *p, const gl_op *op, int64_t unit) {
    const gl_experts *experts = op->experts;
    const pair_plan plan = plan_of(p, op->b, experts->chosen, experts->count);
    const int64_t width = op->width, rows = p->batch->rows, tiles = parts_of(width, LANES);
    const int64_t each = tiles_a_unit(experts->down, rows), first = unit * each, last = MIN(first + each, tiles);
    float *y = p->buffers[op->out].values;
    for (int64_t row = 0; row < rows; row++)
        memset(y + row * width + first * LANES, 0, (MIN(last * LANES, width) - first * LANES) * sizeof(float));
    for (int32_t g = 0; g < *plan.count; g++) {
        const pair_group *group = plan.groups + g;
        const gl_matrix *down = experts->down + group->expert;
        tile_kernel *kernel = kernel_of(down);
        for (int32_t done = 0, together; done < group->count; done += together) {
            together = together_of(group->count - done);
            const weighted_pair *pairs = plan.pairs + group->first + done;
            some_rows x;
            rows_of_pairs(&p->buffers[op->a], pairs, together, experts->chosen, 1, down->in, &x);
            for (int64_t tile = first; tile < last; tile++) {
                vf sums[MOST_EXPERT_ROWS];
                int64_t column = tile * LANES, count = width - column;
                kernel(down, down->data + tile * down->tile_bytes, &x, sums, together);
                for (int r = 0; r < together; r++) {
                    if (experts->down_bias)
                        sums[r] = vf_add(sums[r], load_some(experts->down_bias + group->expert * width + column, count));
                    float *to = y + pairs[r].pair / experts->chosen * width + column;
                    add_outputs(to, sums[r], experts->weigh_input ? 1.0f : pairs[r].weight, count);
                }
            }
        }
    }
}

/* Each row times the weights of its experts, one after the other. */
static void weigh_rows(const gl_program *p, const gl_op *op, int64_t row) {
    const gl_buffer *out = &p->buffers[op->out];
    const int32_t chosen = op->i0;
    const int64_t width = op->width / chosen;
    const float *x = p->buffers[op->a].values + row * width;
    const float *weights = p->buffers[op->b].values + row * 2 * chosen + chosen;
    float *y = out->values + row * op->width;
    for (int32_t i = 0; i < chosen; i++)
        for (int64_t k = 0; k < width; k++) y[i * width + k] = x[k] * weights[i];
    if (op->quantize) quantize_columns(y, out, row, op->width, 0, op->width, 0);
}
