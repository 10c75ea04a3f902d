/* Recurrent layers: what a row reads of the tokens before it is in slots, a state for each kept border between pages
 * and a row for each token of the last page. Included by kernels.h.
 *
 * A unit of work is some channels of a span, whose rows it goes through in order. It writes a slot only with what the
 * same tokens always leave there, so two branches with the same tokens may write the same slot. */

#define CHANNELS_A_UNIT 128

/* The slots of one layer of a branch. */
typedef struct {
    const gl_states *pool;
    const gl_span *span;
    const int32_t *table; /* [1 + GL_PAGE, stride] */
    int64_t layer;
} layer_slots;

INLINE layer_slots slots_of(const gl_program *p, const gl_op *op, const gl_span *span) {
    return (layer_slots){p->states, span, span->pages + (int64_t)op->group * span->stride, op->i0};
}

/* The state after `border` pages, or NULL if it is not kept. */
INLINE float *state_at(const layer_slots *s, int64_t border) {
    int32_t slot = s->table[border - 1];
    return slot < 0 ? NULL : s->pool->states + ((int64_t)slot * s->pool->layers + s->layer) * s->pool->state;
}

/* The row of a token, or NULL if it is not kept. */
INLINE float *row_at(const layer_slots *s, int64_t position) {
    int32_t slot = s->table[(1 + position % GL_PAGE) * s->span->stride + position / GL_PAGE];
    return slot < 0 ? NULL : s->pool->rows + ((int64_t)slot * s->pool->layers + s->layer) * s->pool->row;
}

/* ---- convolution over the last tokens ---- */

#define MOST_KERNEL 16

INLINE vf conv_activation(vf x, int kind) { return kind == GL_SILU ? activation(x, GL_SILU) : x; }

/* `count` channels from `from` on of all rows of a span. */
static void conv_span(const gl_program *p, const gl_op *op, const gl_span *span, int64_t from, int64_t count) {
    static const float nothing[CHANNELS_A_UNIT];
    layer_slots s = slots_of(p, op, span);
    int64_t width = op->width, first = span->first_slot, end = first + span->rows, begin = first / GL_PAGE * GL_PAGE;
    int taps = op->i1;
    const float *x = p->buffers[op->a].values + ((int64_t)span->first_row - first) * width + from; /* + position * width */
    float *y = p->buffers[op->out].values + ((int64_t)span->first_row - first) * width + from;
    for (int64_t t = first; t < end; t++) {
        const float *tap[MOST_KERNEL];
        for (int m = 0; m < taps; m++) {
            int64_t at = t - taps + 1 + m;
            if (at >= first) tap[m] = x + at * width;
            else if (at >= begin) tap[m] = row_at(&s, at) + from;
            else if (at < 0) tap[m] = nothing;
            else tap[m] = state_at(&s, begin / GL_PAGE) + (at - begin + taps - 1) * width + from;
        }
        for (int64_t i = 0; i < count; i += LANES) {
            int64_t few = MIN(LANES, count - i);
            if (few == LANES) {
                vf sum = op->bias ? vf_load(op->bias + from + i) : vf_set(0.0f);
                for (int m = 0; m < taps; m++)
                    sum = vf_fma(vf_load(op->weight + m * width + from + i), vf_load(tap[m] + i), sum);
                vf_store(y + t * width + i, conv_activation(sum, op->i2));
                continue;
            }
            float sum[LANES] = {0};
            for (int64_t j = 0; j < few; j++) {
                sum[j] = op->bias ? op->bias[from + i + j] : 0.0f;
                for (int m = 0; m < taps; m++)
                    sum[j] = fmaf(op->weight[m * width + from + i + j], tap[m][i + j], sum[j]);
            }
            vf_store(sum, conv_activation(vf_load(sum), op->i2));
            memcpy(y + t * width + i, sum, few * sizeof(float));
        }
        float *row = row_at(&s, t);
        if (row) memcpy(row + from, x + t * width, count * sizeof(float));
        float *state = (t + 1) % GL_PAGE ? NULL : state_at(&s, (t + 1) / GL_PAGE);
        for (int m = 1; state && m < taps; m++)
            memcpy(state + (m - 1) * width + from, tap[m], count * sizeof(float));
    }
}

static void conv(const gl_program *p, const gl_op *op, int64_t unit) {
    int64_t across = parts_of(op->width, CHANNELS_A_UNIT), from = unit % across * CHANNELS_A_UNIT;
    conv_span(p, op, &p->batch->span[unit / across], from, MIN(CHANNELS_A_UNIT, op->width - from));
}
