/* The kernels, over the vectors of simd.h. Compiled once for each instruction set (kernels_*.c).
 *
 * An op is divided into units of work: `count_units` returns how many, `run_unit` does one. Neither the thread that
 * does a unit nor the number of its rows changes a result: an output's sum runs over its inputs in order, block by
 * block, and within a block it is an exact integer.
 */
#include "exact.h"
#include "native.h"
#include "simd.h"

#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

INLINE int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

/* ---- quantized activations ---- */

INLINE gl_block *row_of(const gl_buffer *buffer, int64_t row, int64_t width) {
    return buffer->quantized + row * gl_blocks(width);
}

/* Stores integers from -127 to 127, given as floats, as codes with their scale and sums. If one is NaN, because a value
 * of the block was not finite, the scale is NaN, and so is all that is computed from the block. */
INLINE void store_block(const vf *whole, float scale, gl_block *block) {
    vf sum = whole[0];
    for (int i = 1; i < GL_BLOCK / LANES; i++) sum = vf_add(sum, whole[i]);
    if (vf_has_nan(sum)) {
        *block = (gl_block){.scale = NAN};
        return;
    }
    int32_t sums[2];
    for (int half = 0; half < 2; half++) sums[half] = store_codes(block->codes + 16 * half, whole + half * 16 / LANES);
    block->scale = scale;
    block->sum = (float)(sums[0] + sums[1]);
    for (int half = 0; half < 2; half++) block->halves[half] = 128 * sums[half];
}

/* Quantizes 32 values to codes with one scale. With `rest`, the rounding errors are quantized too, at 1/254 of the
 * scale. */
INLINE void quantize_block(const float *x, gl_block *block, gl_block *rest) {
    vf value[GL_BLOCK / LANES], whole[GL_BLOCK / LANES];
    for (int i = 0; i < GL_BLOCK / LANES; i++) value[i] = vf_load(x + i * LANES);
    vf largest = vf_abs(value[0]);
    for (int i = 1; i < GL_BLOCK / LANES; i++) largest = vf_max(largest, vf_abs(value[i]));
    float most = vf_largest(largest);
    vf inverse = vf_set(most > 0 ? 127.0f / most : 0.0f);
    for (int i = 0; i < GL_BLOCK / LANES; i++) {
        value[i] = vf_mul(value[i], inverse);
        whole[i] = vf_round(value[i]);
    }
    store_block(whole, most / 127.0f, block);
    if (!rest) return;
    for (int i = 0; i < GL_BLOCK / LANES; i++) whole[i] = vf_round(vf_mul(vf_sub(value[i], whole[i]), vf_set(254.0f)));
    store_block(whole, most / 127.0f / 254.0f, rest);
}

/* Quantizes columns `from` to `to` of a row, both multiples of 32 (or the end of the row), whose values are in `x`. A
 * finely quantized row takes two rows of the buffer: its codes, and those of its rounding errors. */
static void quantize_columns(const float *x, const gl_buffer *out, int64_t row, int64_t width, int64_t from, int64_t to,
                             int fine) {
    gl_block *block = row_of(out, fine ? 2 * row : row, width), *rest = row_of(out, 2 * row + 1, width);
    for (int64_t at = from; at < to; at += GL_BLOCK) {
        float padded[GL_BLOCK] = {0};
        const float *values = x + (at - from);
        if (width - at < GL_BLOCK) values = memcpy(padded, values, (width - at) * sizeof(float));
        quantize_block(values, block + at / GL_BLOCK, fine ? rest + at / GL_BLOCK : NULL);
    }
}

#include "linear.h"
#include "adapter.h"

/* ---- norms ---- */

/* The sum of (x - centre)^power over a row, where power is 1 or 2. */
INLINE float sum_of_powers(const float *x, int64_t width, float centre, const int power) {
    vf sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) sum[v] = vf_set(0.0f);
    for (int64_t i = 0; i < width; i += SUM_LANES) {
        float padded[SUM_LANES];
        const float *from = x + i;
        if (width - i < SUM_LANES) { /* what is missing adds 0 */
            for (int j = 0; j < SUM_LANES; j++) padded[j] = j < width - i ? from[j] : centre;
            from = padded;
        }
        for (int v = 0; v < VECTORS; v++) {
            vf value = vf_sub(vf_load(from + v * LANES), vf_set(centre));
            sum[v] = power == 1 ? vf_add(sum[v], value) : vf_fma(value, value, sum[v]);
        }
    }
    return vf_sum(sum);
}

static void norm_group(const gl_op *op, const float *x, float *y, int64_t width) {
    int64_t whole = width / LANES * LANES;
    float mean = op->i1 ? sum_of_powers(x, width, 0.0f, 1) / (float)width : 0.0f;
    float factor = 1.0f / sqrtf(sum_of_powers(x, width, mean, 2) / (float)width + op->f0);
    vf centre = vf_set(mean);
    for (int64_t i = 0; i < whole; i += LANES) {
        vf value = vf_mul(vf_mul(vf_sub(vf_load(x + i), centre), vf_set(factor)), vf_load(op->weight + i));
        vf_store(y + i, op->bias ? vf_add(value, vf_load(op->bias + i)) : value);
    }
    for (int64_t i = whole; i < width; i++) {
        float value = (x[i] - mean) * factor * op->weight[i];
        y[i] = op->bias ? value + op->bias[i] : value;
    }
}

static void norm(const gl_program *p, const gl_op *op, int64_t row, float *scratch) {
    const gl_buffer *out = &p->buffers[op->out];
    const float *x = p->buffers[op->a].values + row * op->width;
    float *y = op->only_quantized ? scratch : out->values + row * op->width;
    int64_t width = op->width / op->i0;
    for (int group = 0; group < op->i0; group++) norm_group(op, x + group * width, y + group * width, width);
    if (op->quantize) quantize_columns(y, out, row, op->width, 0, op->width, op->quantize == 2);
}

/* ---- positions ---- */

static void angles(const gl_program *p, const gl_op *op, int64_t row) {
    float *cosines = p->buffers[op->out].values + row * op->width, *sines = cosines + op->i0;
    float factor = op->f0;
    if (op->i1) factor *= (float)(1.0 + (double)op->f1 * gl_log(1.0 + p->batch->positions[row] / op->i1));
    for (int i = 0; i < op->i0; i++) {
        float turn = (float)p->batch->positions[row] * op->weight[i];
        double sine, cosine;
        gl_sin_cos(turn, &sine, &cosine);
        cosines[i] = (float)cosine * factor;
        sines[i] = (float)sine * factor;
    }
}

static void rotate(const gl_program *p, const gl_op *op, int64_t row) {
    int heads = op->i0, half = op->i1, head_dim = op->width / heads;
    const float *cosines = p->buffers[op->b].values + row * 2 * half, *sines = cosines + half;
    for (int head = 0; head < heads; head++) {
        const float *x = p->buffers[op->a].values + row * op->width + head * head_dim;
        float *y = p->buffers[op->out].values + row * op->width + head * head_dim;
        int i = 0;
        for (; i + LANES <= half; i += LANES) {
            vf a = vf_load(x + i), b = vf_load(x + i + half), cosine = vf_load(cosines + i), sine = vf_load(sines + i);
            vf_store(y + i, vf_sub(vf_mul(a, cosine), vf_mul(b, sine)));
            vf_store(y + i + half, vf_add(vf_mul(b, cosine), vf_mul(a, sine)));
        }
        for (; i < half; i++) {
            float a = x[i], b = x[i + half];
            y[i] = a * cosines[i] - b * sines[i];
            y[i + half] = b * cosines[i] + a * sines[i];
        }
        memcpy(y + 2 * half, x + 2 * half, (head_dim - 2 * half) * sizeof(float));
    }
}

#include "attention.h"

/* ---- one value at a time ---- */

/* x times the normal distribution's probability of a number below x. The probability of one above |x| is e^(-x^2 / 2)
 * times a polynomial in 1 / (1 + 0.23 |x|), fitted with a relative error of 5e-8. */
INLINE vf gelu(vf x) {
    static const float series[] = {0.2904048f,   -0.2781083f, 0.301452f,    -0.03290616f,
                                   0.11950817f,  0.085764416f, 0.092378244f, -2.7749984e-05f};
    vf size = vf_abs(x), p = vf_set(-0.07846546f);
    vf t = vf_div(vf_set(1.0f), vf_fma(size, vf_set(0.23f), vf_set(1.0f)));
    for (int i = 0; i < 8; i++) p = vf_fma(p, t, vf_set(series[i]));
    vf above = vf_mul(p, vf_exp(vf_mul(vf_mul(x, x), vf_set(-0.5f))));
    return vf_sub(vf_max(vf_set(0.0f), x), vf_mul(size, above));
}

INLINE vf activation(vf x, const int kind) {
    switch (kind) {
    case GL_RELU: return vf_max(vf_set(0.0f), x);
    case GL_RELU2: {
        vf above = vf_max(vf_set(0.0f), x);
        return vf_mul(above, above);
    }
    case GL_SIGMOID: return vf_div(vf_set(1.0f), vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_set(0.0f), x))));
    case GL_SILU: return vf_div(x, vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_set(0.0f), x))));
    case GL_GELU_TANH: {
        vf cube = vf_mul(vf_mul(x, x), x);
        vf inner = vf_mul(vf_set(0.7978845608f), vf_fma(vf_set(0.044715f), cube, x));
        return vf_mul(vf_mul(vf_set(0.5f), x), vf_add(vf_set(1.0f), vf_tanh(inner)));
    }
    case GL_NONE: return x;
    default: return gelu(x);
    }
}

INLINE vf pointwise(const gl_op *op, vf a, vf b, const int kind) {
    switch (kind) {
    case GL_ADD: return vf_add(a, b);
    case GL_SCALE: return vf_mul(a, vf_set(op->f0));
    case GL_SOFTCAP: return vf_mul(vf_tanh(vf_div(a, vf_set(op->f0))), vf_set(op->f0));
    default: {
        vf y = op->i0 == GL_SILU        ? activation(a, GL_SILU)
               : op->i0 == GL_GELU_TANH ? activation(a, GL_GELU_TANH)
               : op->i0 == GL_GELU      ? activation(a, GL_GELU)
               : op->i0 == GL_SIGMOID   ? activation(a, GL_SIGMOID)
               : op->i0 == GL_RELU2     ? activation(a, GL_RELU2)
               : op->i0 == GL_NONE      ? a
                                        : activation(a, GL_RELU);
        return op->b >= 0 ? vf_mul(y, b) : y;
    }
    }
}

/* Columns in a unit, with many rows and with few; multiples of the block, so that a unit can quantize its output. */
#define MOST_COLUMNS 512
#define FEW_COLUMNS 128

INLINE void each_value(const gl_program *p, const gl_op *op, int64_t row, int64_t from, int64_t to, const int kind) {
    const gl_buffer *out = &p->buffers[op->out];
    int64_t width = op->width, count = to - from, i = 0;
    const float *a = p->buffers[op->a].values + row * width + from;
    const float *b = op->b >= 0 ? p->buffers[op->b].values + row * width + from : a;
    float here[MOST_COLUMNS], *y = op->only_quantized ? here : out->values + row * width + from;
    for (; i + LANES <= count; i += LANES) vf_store(y + i, pointwise(op, vf_load(a + i), vf_load(b + i), kind));
    if (i < count) {
        float left[LANES] = {0}, right[LANES] = {0}, made[LANES];
        memcpy(left, a + i, (count - i) * sizeof(float));
        memcpy(right, b + i, (count - i) * sizeof(float));
        vf_store(made, pointwise(op, vf_load(left), vf_load(right), kind));
        memcpy(y + i, made, (count - i) * sizeof(float));
    }
    if (op->quantize) quantize_columns(y, out, row, width, from, to, op->quantize == 2);
}

static void take(const gl_program *p, const gl_op *op, int64_t row) {
    memcpy(p->buffers[op->out].values + row * op->width,
           p->buffers[op->a].values + (int64_t)p->batch->wanted[row] * op->width, op->width * sizeof(float));
}

static void quantize(const gl_program *p, const gl_op *op, int64_t row) {
    const gl_buffer *buffer = &p->buffers[op->a];
    quantize_columns(buffer->values + row * op->width, buffer, row, op->width, 0, op->width, op->quantize == 2);
}

#include "experts.h"
#include "states.h"
#include "limits.h"
#include "rows.h"

/* ---- units of work ---- */

INLINE int64_t linear_rows_of(const gl_program *p, const gl_op *op) {
    int64_t rows = op->wanted ? p->batch->wanted_rows : p->batch->rows;
    return op->i0 && op->matrix->packing >= GL_Q4 ? 2 * rows : rows;
}

/* All ops but linear, down, up, keep, attend, conv and those of experts work on rows, or on some columns of rows where a column depends on no
 * other. With few rows the threads divide the columns, as they do those of a linear op, and a unit has all rows. With
 * many they divide the rows, and a unit has several, since one is little work. So a thread mostly reads what it has
 * written. */
typedef struct {
    int64_t rows, columns; /* of a unit */
} piece;

INLINE piece piece_of(const gl_op *op, int64_t rows) {
    int whole = op->kind != GL_ACTIVATE && op->kind != GL_ADD && op->kind != GL_SCALE && op->kind != GL_SOFTCAP;
    if (rows <= ROWS_A_UNIT && !whole) return (piece){ROWS_A_UNIT, FEW_COLUMNS};
    return (piece){MAX(1, MIN(16, rows / 16)), whole ? op->width : MOST_COLUMNS};
}

static void run_row(const gl_program *p, const gl_op *op, int64_t row, int64_t from, int64_t to, float *scratch) {
    switch (op->kind) {
    case GL_EMBED: embed(p, op, row); break;
    case GL_NORM: norm(p, op, row, scratch); break;
    case GL_ANGLES: angles(p, op, row); break;
    case GL_ROTATE: rotate(p, op, row); break;
    case GL_ACTIVATE: each_value(p, op, row, from, to, GL_ACTIVATE); break;
    case GL_ADD: each_value(p, op, row, from, to, GL_ADD); break;
    case GL_SCALE: each_value(p, op, row, from, to, GL_SCALE); break;
    case GL_SOFTCAP: each_value(p, op, row, from, to, GL_SOFTCAP); break;
    case GL_TAKE: take(p, op, row); break;
    case GL_ROUTE: route(p, op, row, scratch); break;
    case GL_WEIGH: weigh_rows(p, op, row); break;
    case GL_QUANTIZE: quantize(p, op, row); break;
    }
}

static int64_t count_units(const gl_program *p, const gl_op *op) {
    int64_t rows = op->wanted ? p->batch->wanted_rows : p->batch->rows, units = 0;
    switch (op->kind) {
    case GL_LINEAR:
        rows = linear_rows_of(p, op);
        return parts_of(parts_of(op->matrix->out, LANES), tiles_a_unit(op->matrix, rows)) * parts_of(rows, ROWS_A_UNIT);
    case GL_DOWN: return parts_of(rows, ROWS_A_UNIT) * (op->width / LANES);
    case GL_UP: return parts_of(rows, ROWS_A_UNIT) * parts_of(op->width, OUTPUTS_A_UNIT);
    case GL_KEEP:
        for (int32_t s = 0; s < p->batch->spans; s++) units += span_pages(&p->batch->span[s]);
        return units;
    case GL_ATTEND:
        for (int32_t s = 0; s < p->batch->spans; s++) units += span_units(&p->batch->span[s], cache_of(p, op));
        return units;
    case GL_GROUP: return 1;
    case GL_EXPERTS_INNER: return inner_units(p, op->experts);
    case GL_EXPERTS_OUTER: return parts_of(parts_of(op->width, LANES), tiles_a_unit(op->experts->down, rows));
    case GL_CONV: return p->batch->spans * parts_of(op->width, CHANNELS_A_UNIT);
    default: {
        piece each = piece_of(op, rows);
        return parts_of(rows, each.rows) * parts_of(op->width, each.columns);
    }
    }
}

static int64_t weights(const gl_program *p, const gl_op *op, int range, int ranges, const uint8_t **from) {
    const gl_matrix *m = op->matrix;
    if (op->kind != GL_LINEAR || linear_rows_of(p, op) > ROWS_A_UNIT) return 0;
    int64_t tiles = parts_of(m->out, LANES), each = tiles_a_unit(m, linear_rows_of(p, op)), units = parts_of(tiles, each);
    int64_t first = units * range / ranges * each, last = MIN(units * (range + 1) / ranges * each, tiles);
    *from = m->data + first * m->tile_bytes;
    return (last - first) * m->tile_bytes;
}

INLINE void ask_for(const void *from, const void *to) {
    for (const char *at = from; at < (const char *)to; at += 64) __builtin_prefetch(at, 0, 2);
}

/* With few rows, a thread reads what all threads have computed: a norm whole rows of outputs, a linear op all quantized
 * rows. It asks for all of it at once, since each line that another core holds takes long to come. */
static void ask_for_rows(const gl_program *p, const gl_op *op, int range, int ranges) {
    if (ranges == 1 || (op->kind != GL_LINEAR && op->kind != GL_NORM)) return;
    const gl_buffer *in = &p->buffers[op->a];
    if (op->kind == GL_LINEAR) {
        int64_t rows = linear_rows_of(p, op);
        if (rows < 2 || rows > ROWS_A_UNIT || op->matrix->packing < GL_Q4) return;
        ask_for(in->quantized, row_of(in, rows, op->matrix->in));
    } else {
        int64_t rows = op->wanted ? p->batch->wanted_rows : p->batch->rows;
        if (rows < 2 || rows > ROWS_A_UNIT) return;
        ask_for(in->values + rows * range / ranges * op->width, in->values + rows * (range + 1) / ranges * op->width);
    }
}

static void run_unit(const gl_program *p, const gl_op *op, int64_t unit, float *scratch) {
    int64_t rows = op->wanted ? p->batch->wanted_rows : p->batch->rows;
    switch (op->kind) {
    case GL_LINEAR: linear(p, op, linear_rows_of(p, op), unit); break;
    case GL_DOWN: adapter_down(p, op, unit); break;
    case GL_UP: adapter_up(p, op, unit); break;
    case GL_KEEP: keep(p, op, unit); break;
    case GL_ATTEND: attend(p, op, unit, scratch); break;
    case GL_GROUP: group_pairs(p, op); break;
    case GL_EXPERTS_INNER: experts_inner(p, op, unit); break;
    case GL_EXPERTS_OUTER: experts_outer(p, op, unit); break;
    case GL_CONV: conv(p, op, unit); break;
    default: {
        piece each = piece_of(op, rows);
        int64_t across = parts_of(op->width, each.columns);
        int64_t first = unit / across * each.rows, from = unit % across * each.columns;
        for (int64_t row = first; row < MIN(first + each.rows, rows); row++)
            run_row(p, op, row, from, MIN(from + each.columns, op->width), scratch);
    }
    }
}

#define KERNELS(name)                                                                                               \
    {name,    LANES,      count_units, run_unit, weights, ask_for_rows, largest,   sum_powers,                      \
     highest, at_least,   alive,       weigh,    surprise, keep_close,  bins,      rank_of,   lucky_ids, multiply, read_all}
