/* Adapters: what a row's own low-rank matrices add to the output of a linear op. Rows next to each other with the same
 * adapter share each load of its weights. A sum has the same order for any number of rows. Included by kernels.h. */

#define OUTPUTS_A_UNIT 64
#define ROWS_AT_ONCE 4
#define CHAINS 4 /* partial sums of one output of `down`: a single one would wait for each addition */

INLINE vf load_floats(const uint8_t *tile, int64_t k, const int packing) {
    return packing == GL_F32   ? vf_load((const float *)tile + k * LANES)
           : packing == GL_F16 ? vf_load_half((const uint16_t *)tile + k * LANES)
                               : vf_load_bf16((const uint16_t *)tile + k * LANES);
}

/* The same as `float_tile`, with input i in partial sum i % CHAINS. */
INLINE void chained_tile(const gl_matrix *m, const uint8_t *tile, const float *x, int64_t stride, vf *out,
                         const int rows, const int packing) {
    vf sum[ROWS_AT_ONCE][CHAINS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < CHAINS; c++) sum[r][c] = vf_set(0.0f);
    int64_t whole = m->in / CHAINS * CHAINS;
    for (int64_t k = 0; k < whole; k += CHAINS)
        for (int c = 0; c < CHAINS; c++) {
            vf weights = load_floats(tile, k + c, packing);
            for (int r = 0; r < rows; r++) sum[r][c] = vf_fma(weights, vf_set(x[r * stride + k + c]), sum[r][c]);
        }
    for (int c = 0; c < CHAINS; c++)
        if (whole + c < m->in) {
            vf weights = load_floats(tile, whole + c, packing);
            for (int r = 0; r < rows; r++) sum[r][c] = vf_fma(weights, vf_set(x[r * stride + whole + c]), sum[r][c]);
        }
    for (int r = 0; r < rows; r++) out[r] = vf_add(vf_add(sum[r][0], sum[r][2]), vf_add(sum[r][1], sum[r][3]));
}

/* One tile times ROWS_AT_ONCE rows or one. */
#define TILE(name, tile_of, packing)                                                                                 \
    static void name(const gl_matrix *m, const uint8_t *tile, const float *x, int64_t stride, vf *out, int together) { \
        if (together == 1) tile_of(m, tile, x, stride, out, 1, packing);                                             \
        else tile_of(m, tile, x, stride, out, ROWS_AT_ONCE, packing);                                                \
    }
TILE(down_f32, chained_tile, GL_F32)
TILE(down_f16, chained_tile, GL_F16)
TILE(down_bf16, chained_tile, GL_BF16)
TILE(up_f32, float_tile, GL_F32)
TILE(up_f16, float_tile, GL_F16)
TILE(up_bf16, float_tile, GL_BF16)

/* How many rows from `row` to before `end` are computed together: ROWS_AT_ONCE if all of them have the same adapter. */
INLINE int rows_alike(const int32_t *adapters, int64_t row, int64_t end) {
    if (row + ROWS_AT_ONCE > end) return 1;
    for (int r = 1; r < ROWS_AT_ONCE; r++)
        if (adapters[row + r] != adapters[row]) return 1;
    return ROWS_AT_ONCE;
}

static void adapter_down(const gl_program *p, const gl_op *op, int64_t unit) {
    const int32_t *adapters = p->batch->adapters;
    int64_t tiles = op->width / LANES, tile = unit % tiles;
    int64_t row = unit / tiles * ROWS_A_UNIT, end = MIN(row + ROWS_A_UNIT, p->batch->rows);
    for (int together; row < end; row += together) {
        const gl_matrix *m = op->adapters[adapters[row]].down;
        together = rows_alike(adapters, row, end);
        if (!m || tile * LANES >= m->out) continue;
        const uint8_t *data = m->data + tile * m->tile_bytes;
        const float *x = p->buffers[op->a].values + row * m->in;
        vf out[ROWS_AT_ONCE];
        (m->packing == GL_F32 ? down_f32 : m->packing == GL_F16 ? down_f16 : down_bf16)(m, data, x, m->in, out, together);
        for (int r = 0; r < together; r++)
            vf_store(p->buffers[op->out].values + (row + r) * op->width + tile * LANES, out[r]);
    }
}

/* Adds LANES outputs, or the last few, to those of a row. */
INLINE void add_outputs(float *y, vf sum, float scale, int64_t count) {
    float lane[LANES] = {0};
    if (count >= LANES) {
        vf_store(y, vf_fma(sum, vf_set(scale), vf_load(y)));
        return;
    }
    memcpy(lane, y, count * sizeof(float));
    vf_store(lane, vf_fma(sum, vf_set(scale), vf_load(lane)));
    memcpy(y, lane, count * sizeof(float));
}

static void adapter_up(const gl_program *p, const gl_op *op, int64_t unit) {
    const int32_t *adapters = p->batch->adapters;
    int64_t across = parts_of(op->width, OUTPUTS_A_UNIT), first = unit % across * OUTPUTS_A_UNIT;
    int64_t row = unit / across * ROWS_A_UNIT, end = MIN(row + ROWS_A_UNIT, p->batch->rows);
    for (int together; row < end; row += together) {
        const gl_adapter *adapter = &op->adapters[adapters[row]];
        const gl_matrix *m = adapter->up;
        together = rows_alike(adapters, row, end);
        if (!m) continue;
        const float *x = p->buffers[op->a].values + row * op->i0;
        for (int64_t at = first; at < MIN(first + OUTPUTS_A_UNIT, op->width); at += LANES) {
            const uint8_t *data = m->data + at / LANES * m->tile_bytes;
            vf out[ROWS_AT_ONCE];
            (m->packing == GL_F32 ? up_f32 : m->packing == GL_F16 ? up_f16 : up_bf16)(m, data, x, op->i0, out, together);
            for (int r = 0; r < together; r++)
                add_outputs(p->buffers[op->out].values + (row + r) * op->width + at, out[r], adapter->scale,
                            op->width - at);
        }
    }
}
