/* Products of rows with a packed matrix, and single rows of a matrix for the embedding. Included by kernels.h. */

/* ---- linear ---- */

#define ROWS_A_UNIT 48 /* a multiple of MOST_ROWS */

INLINE vf load_scale(const uint8_t *at, const int scale) {
    return scale == GL_SCALE_BF16 ? vf_load_bf16((const uint16_t *)at) : vf_load_half((const uint16_t *)at);
}

/* The bytes of a vector of scales. */
INLINE int scale_bytes(const int scale) {
    return LANES * (scale == GL_SCALE_STEPS ? 1 : 2);
}

#if LANES == 16
#define MOST_ROWS 12
#else
#define MOST_ROWS 4
#endif

#if defined(GL_I8MM)
/* Adds the products of eight inputs, given as two vectors of four, with two rows: [0] for the first, [1] for the second.
 * An instruction multiplies eight inputs of two outputs with eight of two rows, so its results are interleaved;
 * `separate` puts them in order. */
INLINE void dot_two_rows(vi *sum, vi weights, vi next_weights, const int8_t *x, const int8_t *next_x) {
    int8x16_t both = vcombine_s8(vld1_s8(x), vld1_s8(next_x));
#define TWO_OUTPUTS(zip, half) vreinterpretq_s8_s32(zip(weights.half, next_weights.half))
    sum[0].low = dot_matrices(sum[0].low, TWO_OUTPUTS(vzip1q_s32, low), both);
    sum[0].high = dot_matrices(sum[0].high, TWO_OUTPUTS(vzip2q_s32, low), both);
    sum[1].low = dot_matrices(sum[1].low, TWO_OUTPUTS(vzip1q_s32, high), both);
    sum[1].high = dot_matrices(sum[1].high, TWO_OUTPUTS(vzip2q_s32, high), both);
#undef TWO_OUTPUTS
}

INLINE void separate(vi *sum) {
    vi a = sum[0], b = sum[1];
    sum[0] = (vi){vuzp1q_s32(a.low, a.high), vuzp1q_s32(b.low, b.high)};
    sum[1] = (vi){vuzp2q_s32(a.low, a.high), vuzp2q_s32(b.low, b.high)};
}

/* As block_sums, for an even number of rows. */
INLINE void block_sums_by_two(const uint8_t *codes, vi table, const gl_block *const *x, int64_t at, vi *first, vi *second,
                              const int rows, const int packing, const int halves) {
    const int steps = packing == GL_Q8 ? 8 : 4;
    #pragma GCC unroll 4
    for (int j = 0; j < steps; j += 2) {
        vi one = vi_load(codes + 4 * LANES * j), two = vi_load(codes + 4 * LANES * (j + 1));
        vi low_one = low_nibbles(one), low_two = low_nibbles(two);
        vi high_one = high_nibbles(one), high_two = high_nibbles(two);
        if (packing == GL_TABLE) {
            low_one = look_up(table, low_one), low_two = look_up(table, low_two);
            high_one = look_up(table, high_one), high_two = look_up(table, high_two);
        }
        #pragma GCC unroll 4
        for (int r = 0; r < rows; r += 2) {
            const int8_t *a = x[r][at].codes + 4 * j, *b = x[r + 1][at].codes + 4 * j;
            if (packing != GL_Q8) {
                dot_two_rows(first + r, low_one, low_two, a, b);
                dot_two_rows(halves ? second + r : first + r, high_one, high_two, a + 16, b + 16);
            } else dot_two_rows(halves && j >= 4 ? second + r : first + r, one, two, a, b);
        }
    }
    for (int r = 0; r < rows; r += 2) {
        separate(first + r);
        separate(second + r);
    }
}
#endif

/* The exact sums of the products of a block's codes with those of block `at` of each row. `second` has those of the
 * upper 16 inputs if these have scales of their own. */
INLINE void block_sums(const uint8_t *codes, vi table, const gl_block *const *x, int64_t at, vi *first, vi *second,
                       const int rows, const int packing, const int halves) {
    for (int r = 0; r < rows; r++) first[r] = second[r] = vi_zero();
#if defined(GL_I8MM)
    if (rows % 2 == 0) {
        block_sums_by_two(codes, table, x, at, first, second, rows, packing, halves);
        return;
    }
#endif
    if (packing == GL_Q4) {
        /* Byte i of vector j: input 4j + i in the low half, input 16 + 4j + i in the high half. */
        #pragma GCC unroll 4
        for (int j = 0; j < 4; j++, codes += 4 * LANES) {
            vi packed = vi_load(codes), low_half = low_nibbles(packed), high_half = high_nibbles(packed);
            #pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                first[r] = dot_small(first[r], low_half, four_bytes(x[r][at].codes + 4 * j));
            #pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                first[r] = dot_small(first[r], high_half, four_bytes(x[r][at].codes + 16 + 4 * j));
        }
        return;
    }
    if (packing == GL_TABLE) { /* in the same places */
        #pragma GCC unroll 4
        for (int j = 0; j < 4; j++, codes += 4 * LANES) {
            vi packed = vi_load(codes);
            vi low_half = look_up(table, low_nibbles(packed)), high_half = look_up(table, high_nibbles(packed));
            #pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                first[r] = dot_signed(first[r], low_half, four_bytes(x[r][at].codes + 4 * j));
            #pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                vi four = four_bytes(x[r][at].codes + 16 + 4 * j);
                if (halves) second[r] = dot_signed(second[r], high_half, four);
                else first[r] = dot_signed(first[r], high_half, four);
            }
        }
        return;
    }
    #pragma GCC unroll 8
    for (int j = 0; j < 8; j++, codes += 4 * LANES) {
        vi weights = signed_weights(vi_load(codes));
        #pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vi four = four_bytes(x[r][at].codes + 4 * j);
            if (halves && j >= 4) second[r] = dot_signed(second[r], weights, four);
            else first[r] = dot_signed(first[r], weights, four);
        }
    }
}

/* The exact sums of the products of codes of two bits. With `steps`, for the two halves of a block, each code is multiplied
 * with its step first: a table of the four multiples of a lane's step fits the lane, where its codes look them up. */
INLINE void two_bit_sums(const uint8_t *codes, const vi *steps, const gl_block *const *x, int64_t at, vi *sums,
                         const int rows) {
    for (int r = 0; r < rows; r++) sums[r] = vi_zero();
    const vi places = lane_places();
    /* Bits 2k and 2k + 1 of byte i of vector j: input 8k + 4j + i. */
    #pragma GCC unroll 2
    for (int j = 0; j < 2; j++, codes += 4 * LANES) {
        vi packed = vi_load(codes);
        #pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            vi weights = two_bits(packed, 2 * k);
            if (steps) weights = look_up(steps[k / 2], vi_or(weights, places));
            #pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                sums[r] = dot_medium(sums[r], weights, four_bytes(x[r][at].codes + 8 * k + 4 * j));
        }
    }
}

/* Asks for a block of weights that comes after the one at `block`. With fewer than four rows the processor's own
 * prefetching keeps up. From eight rows on a block takes so long that the second cache is near enough, and lines there can
 * wait for their turn: so they are asked for early, which hides all of the memory's latency. */
INLINE void ask_for_block(const uint8_t *block, const int bytes, const int rows) {
    for (int i = 0; i < bytes; i += 64) {
        if (rows < 8) __builtin_prefetch(block + 4096 + i, 0, 3);
        else __builtin_prefetch(block + 8192 + i, 0, 2);
    }
}

/* One tile (LANES outputs) times `rows` rows. A block is unpacked once and used for all rows. Consecutive terms of a
 * sum are a round of rows apart, which hides the latency of the instructions. */
INLINE void quantized_tile(const gl_matrix *m, const uint8_t *tile, const gl_block *const *x, vf *out, const int rows,
                           const int packing, const int minimum, const int scales, const int halves, int ask) {
    const int64_t blocks = gl_blocks(m->in);
    const int vector = scale_bytes(scales), steps = scales == GL_SCALE_STEPS, zeros = scales == GL_SCALE_ZEROS;
    const int groups = halves ? 2 : 1, codes = GL_BLOCK * LANES / (packing == GL_Q8 ? 1 : 2); /* their bytes */
    const vi table = packing == GL_TABLE ? table_of(m->table) : vi_zero();
    vf unit = vf_set(0.0f), low_unit = unit;
    for (int r = 0; r < rows; r++) out[r] = vf_set(0.0f);
    for (int64_t b = 0; b < blocks; b++) {
        vf scale[2], low = vf_set(0.0f);
        if (steps && b % GL_UNIT_BLOCKS == 0) {
            unit = vf_load_half((const uint16_t *)tile), tile += 2 * LANES;
            if (minimum) low_unit = vf_sub(vf_set(0.0f), vf_load_half((const uint16_t *)tile)), tile += 2 * LANES;
        }
        if (rows >= 4 && ask) ask_for_block(tile, (groups + minimum) * vector + codes, rows);
        for (int g = 0; g < groups; g++, tile += vector) {
            scale[g] = steps ? vf_mul(unit, vf_from_vi(vi_load_signed(tile))) : load_scale(tile, scales);
        }
        if (zeros) low = vf_from_vi(vi_load_bytes(tile)), tile += LANES; /* the codes of 0 */
        else if (minimum) {
            low = steps ? vf_mul(low_unit, vf_from_vi(vi_load_signed(tile))) : load_scale(tile, scales);
            tile += vector;
        }
        vi first[MOST_ROWS], second[MOST_ROWS]; /* sums of the one or two groups of the block */
        block_sums(tile, table, x, b, first, second, rows, packing, halves);
        tile += codes;
        #pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const gl_block *block = x[r] + b;
            vf value;
            int32_t sum = halves ? block->halves[0] : block->halves[0] + block->halves[1];
            if (packing == GL_Q4) value = vf_from_vi(dot_small_sum(first[r]));
            else value = vf_from_vi(dot_signed_sum(first[r], sum));
            if (zeros) value = vf_sub(value, vf_mul(low, vf_set(block->sum))); /* exact: whole numbers */
            else if (packing == GL_Q4 && !minimum) value = vf_sub(value, vf_set(8.0f * block->sum));
            value = minimum && !zeros ? vf_fma(value, scale[0], vf_mul(low, vf_set(block->sum))) : vf_mul(value, scale[0]);
            if (halves) value = vf_fma(vf_from_vi(dot_signed_sum(second[r], block->halves[1])), scale[1], value);
            out[r] = vf_fma(value, vf_set(block->scale), out[r]);
        }
    }
    if (packing == GL_TABLE)
        for (int r = 0; r < rows; r++) out[r] = vf_mul(out[r], vf_set(m->factor));
}

/* The same for codes of two bits: one sum for each row, since steps are multiplied with codes as integers. */
INLINE void two_bit_tile(const gl_matrix *m, const uint8_t *tile, const gl_block *const *x, vf *out, const int rows,
                         const int minimum, int ask) {
    const int64_t blocks = gl_blocks(m->in);
    const int codes = GL_BLOCK * LANES / 4;
    vf unit = vf_set(0.0f), low_unit = unit;
    for (int r = 0; r < rows; r++) out[r] = vf_set(0.0f);
    for (int64_t b = 0; b < blocks; b++) {
        vf low[2];
        vi steps[2], sums[MOST_ROWS];
        if (b % GL_UNIT_BLOCKS == 0) {
            unit = vf_load_half((const uint16_t *)tile), tile += 2 * LANES;
            if (minimum) low_unit = vf_load_half((const uint16_t *)tile), tile += 2 * LANES;
        }
        if (rows >= 4 && ask) ask_for_block(tile, minimum * 2 * LANES + codes, rows);
        for (int g = 0; minimum && g < 2; g++, tile += LANES) {
            vi both = vi_load_bytes(tile);
            steps[g] = vi_times(low_nibbles(both), 0x03020100);
            low[g] = vf_mul(low_unit, vf_from_vi(high_nibbles(both)));
        }
        two_bit_sums(tile, minimum ? steps : NULL, x, b, sums, rows);
        tile += codes;
        #pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const gl_block *block = x[r] + b;
            vf value = vf_from_vi(sums[r]);
            if (!minimum) value = vf_sub(value, vf_set(block->sum));
            value = vf_mul(value, unit);
            for (int g = 0; minimum && g < 2; g++)
                value = vf_fma(low[g], vf_set((float)block->halves[g] * -0x1p-7f), value);
            out[r] = vf_fma(value, vf_set(block->scale), out[r]);
        }
    }
}

INLINE void float_tile(const gl_matrix *m, const uint8_t *tile, const float *x, int64_t stride, vf *out, const int rows,
                       const int packing) {
    for (int r = 0; r < rows; r++) out[r] = vf_set(0.0f);
    for (int64_t k = 0; k < m->in; k++) {
        vf weights = packing == GL_F32   ? vf_load((const float *)tile + k * LANES)
                     : packing == GL_F16 ? vf_load_half((const uint16_t *)tile + k * LANES)
                                         : vf_load_bf16((const uint16_t *)tile + k * LANES);
        for (int r = 0; r < rows; r++) out[r] = vf_fma(weights, vf_set(x[r * stride + k]), out[r]);
    }
}

/* Stores the outputs of a tile that has fewer than LANES: `count` of one row. */
static __attribute__((noinline)) void store_few(float *y, const float *bias, const float *onto, const float *sum,
                                                int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float value = bias ? sum[i] + bias[i] : sum[i];
        y[i] = onto ? onto[i] + value : value;
    }
}

/* Stores LANES outputs of some rows from output `first` on. `at` is where the first row begins in its buffer. */
INLINE void store_outputs(const gl_program *p, const gl_op *op, int64_t at, int64_t first, vf *sum, const int rows) {
    int64_t width = op->matrix->out, count = width - first;
    float *y = p->buffers[op->out].values + at + first;
    const float *bias = op->bias ? op->bias + first : NULL;
    const float *onto = op->b >= 0 ? p->buffers[op->b].values + at + first : NULL;
    if (count < LANES) {
        for (int r = 0; r < rows; r++) {
            float lane[LANES];
            vf_store(lane, sum[r]);
            store_few(y + r * width, bias, onto ? onto + r * width : NULL, lane, count);
        }
        return;
    }
    #pragma GCC unroll 12 /* every loop over rows, or the sums would lie in memory */
    for (int r = 0; bias && r < rows; r++) sum[r] = vf_add(sum[r], vf_load(bias));
    #pragma GCC unroll 12
    for (int r = 0; onto && r < rows; r++) sum[r] = vf_add(vf_load(onto + r * width), sum[r]);
    #pragma GCC unroll 12
    for (int r = 0; r < rows; r++) vf_store(y + r * width, sum[r]);
}

/* Rows `row` to `row + rows` times the tiles from `tile` to before `last`. */
INLINE void linear_rows(const gl_program *p, const gl_op *op, int64_t row, const int rows, int64_t tile, int64_t last,
                        const int packing, const int minimum, const int scales, const int halves, int ask) {
    const gl_matrix *m = op->matrix;
    const gl_buffer *in = &p->buffers[op->a];
    const int fine = packing >= GL_Q4 && op->i0; /* then every row takes two: see quantize_columns */
    const int64_t at = (fine ? row / 2 : row) * m->out; /* where the first row's outputs go */
    const gl_block *x[MOST_ROWS];
    if (packing >= GL_Q4)
        for (int r = 0; r < rows; r++) x[r] = row_of(in, row + r, m->in);
    for (; tile < last; tile++) {
        vf out[MOST_ROWS];
        const uint8_t *data = m->data + tile * m->tile_bytes;
        if (packing == GL_Q2) two_bit_tile(m, data, x, out, rows, minimum, ask);
        else if (packing >= GL_Q4) quantized_tile(m, data, x, out, rows, packing, minimum, scales, halves, ask);
        else float_tile(m, data, in->values + row * m->in, m->in, out, rows, packing);
        if (fine) {
            #pragma GCC unroll 6
            for (int r = 0; r < rows / 2; r++) out[r] = vf_add(out[2 * r], out[2 * r + 1]);
            store_outputs(p, op, at, tile * LANES, out, rows / 2);
        } else store_outputs(p, op, at, tile * LANES, out, rows);
    }
}

/* Rows `row` to before `end`, as many at a time as fit the registers: one sum for each, and with half groups another one for
 * the block's second half, for which twelve rows are too many. The first ones ask for the weights that come next; the others
 * find them in the caches. */
INLINE void linear_unit(const gl_program *p, const gl_op *op, int64_t row, int64_t end, int64_t tile, int64_t last,
                        const int packing, const int minimum, const int scales, const int halves) {
    int ask = 1;
#define SOME_ROWS(count) \
    linear_rows(p, op, row, count, tile, last, packing, minimum, scales, halves, ask), row += count, ask = 0
    while (MOST_ROWS == 12 && !halves && row + 12 <= end) SOME_ROWS(12);
    while (MOST_ROWS == 12 && row + 8 <= end) SOME_ROWS(8);
    while (row + 4 <= end) SOME_ROWS(4);
    if (row + 2 <= end) SOME_ROWS(2);
    if (row < end) SOME_ROWS(1);
#undef SOME_ROWS
}

#define LINEAR(name, ...)                                                                                          \
    static void name(const gl_program *p, const gl_op *op, int64_t row, int64_t end, int64_t tile, int64_t last) { \
        linear_unit(p, op, row, end, tile, last, __VA_ARGS__);                                                     \
    }
LINEAR(linear_f32, GL_F32, 0, 0, 0)
LINEAR(linear_f16, GL_F16, 0, 0, 0)
LINEAR(linear_bf16, GL_BF16, 0, 0, 0)
LINEAR(linear_q4, GL_Q4, 1, GL_SCALE_F16, 0)
LINEAR(linear_q4_centred, GL_Q4, 0, GL_SCALE_F16, 0)
LINEAR(linear_q4_steps, GL_Q4, 1, GL_SCALE_STEPS, 0)
LINEAR(linear_q4_zeros, GL_Q4, 1, GL_SCALE_ZEROS, 0)
LINEAR(linear_q8, GL_Q8, 0, GL_SCALE_F16, 0)
LINEAR(linear_q8_minimum, GL_Q8, 1, GL_SCALE_F16, 0)
LINEAR(linear_q8_steps_minimum, GL_Q8, 1, GL_SCALE_STEPS, 0)
LINEAR(linear_q8_steps_halves, GL_Q8, 0, GL_SCALE_STEPS, 1)
LINEAR(linear_table, GL_TABLE, 0, GL_SCALE_F16, 0)
LINEAR(linear_table_halves, GL_TABLE, 0, GL_SCALE_F16, 1)
LINEAR(linear_table_power, GL_TABLE, 0, GL_SCALE_BF16, 0)
LINEAR(linear_table_steps, GL_TABLE, 0, GL_SCALE_STEPS, 0)
LINEAR(linear_table_steps_halves, GL_TABLE, 0, GL_SCALE_STEPS, 1)
LINEAR(linear_q2, GL_Q2, 1, GL_SCALE_STEPS, 0)
LINEAR(linear_q2_centred, GL_Q2, 0, GL_SCALE_STEPS, 0)

/* With few rows, a unit has few outputs, so that the threads finish together; with many rows, it has enough that most
 * reads of the rows hit the nearest cache. */
INLINE int64_t tiles_a_unit(const gl_matrix *m, int64_t rows) {
    int64_t tiles = parts_of(m->out, LANES);
    return MAX(1, MIN(64 / LANES, tiles / (rows < ROWS_A_UNIT ? 32 : 8)));
}

static void linear(const gl_program *p, const gl_op *op, int64_t rows, int64_t unit) {
    const gl_matrix *m = op->matrix;
    int64_t tiles = parts_of(m->out, LANES), each = tiles_a_unit(m, rows), across = parts_of(tiles, each);
    int64_t row = unit / across * ROWS_A_UNIT, end = MIN(row + ROWS_A_UNIT, rows);
    int64_t tile = unit % across * each, last = MIN(tile + each, tiles);
    int steps = m->scale == GL_SCALE_STEPS;
    switch (m->packing) {
    case GL_F32: linear_f32(p, op, row, end, tile, last); break;
    case GL_F16: linear_f16(p, op, row, end, tile, last); break;
    case GL_BF16: linear_bf16(p, op, row, end, tile, last); break;
    case GL_Q4:
        if (m->scale == GL_SCALE_ZEROS) linear_q4_zeros(p, op, row, end, tile, last);
        else (steps ? linear_q4_steps : m->has_minimum ? linear_q4 : linear_q4_centred)(p, op, row, end, tile, last);
        break;
    case GL_TABLE:
        (m->scale == GL_SCALE_BF16 ? linear_table_power
         : m->half_groups          ? (steps ? linear_table_steps_halves : linear_table_halves)
                                   : (steps ? linear_table_steps : linear_table))(p, op, row, end, tile, last);
        break;
    case GL_Q2: (m->has_minimum ? linear_q2 : linear_q2_centred)(p, op, row, end, tile, last); break;
    default:
        if (m->half_groups) linear_q8_steps_halves(p, op, row, end, tile, last);
        else if (!m->has_minimum) linear_q8(p, op, row, end, tile, last);
        else (steps ? linear_q8_steps_minimum : linear_q8_minimum)(p, op, row, end, tile, last);
    }
}

/* ---- embedding ---- */

static float bf16_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static float scale_at(const gl_matrix *m, const uint8_t *block, int at) {
    uint16_t half = ((const uint16_t *)block)[at];
    return m->scale == GL_SCALE_BF16 ? bf16_to_float(half) : half_to_float(half);
}

/* Value `k` of a matrix whose scales are steps, in lane `lane` of a tile. */
static float value_of_steps(const gl_matrix *m, const uint8_t *tile, int64_t k, int lane) {
    int two = m->packing == GL_Q2, units = 1 + m->has_minimum, i = (int)(k % GL_BLOCK), groups = m->half_groups ? 2 : 1;
    int steps = !two ? groups + m->has_minimum : m->has_minimum ? groups : 0; /* their bytes in a block of a lane */
    int in_byte = two ? 4 : m->packing == GL_Q8 ? 1 : 2, bits = 8 / in_byte, apart = GL_BLOCK / in_byte;
    int64_t block_bytes = LANES * (steps + apart), block = k / GL_BLOCK;
    int64_t eight_bytes = 2 * LANES * units + GL_UNIT_BLOCKS * block_bytes;
    const uint16_t *unit = (const uint16_t *)(tile + block / GL_UNIT_BLOCKS * eight_bytes);
    const uint8_t *at = (const uint8_t *)(unit + LANES * units) + block % GL_UNIT_BLOCKS * block_bytes;
    uint8_t packed = at[LANES * steps + i % apart / 4 * 4 * LANES + 4 * lane + i % 4];
    int code = packed >> i / apart * bits & ((1 << bits) - 1);
    int step = steps ? (int8_t)at[(m->half_groups ? i / 16 : 0) * LANES + lane] : 1, low = 0;
    if (m->has_minimum) low = two ? (uint8_t)step >> 4 : at[groups * LANES + lane];
    if (two && m->has_minimum) step &= 15;
    float scale = half_to_float(unit[lane]) * m->factor * (float)step;
    float value = scale * (float)(m->packing == GL_Q4 ? code : m->packing == GL_Q8 ? (int8_t)code : m->table[code]);
    if (m->has_minimum) return value + -(half_to_float(unit[LANES + lane]) * (float)low);
    return m->packing == GL_Q8 ? value + 0.0f : value; /* no zero with a sign, as in formats without steps */
}

/* Value `k` of row `row` of a packed matrix. */
static float packed_value(const gl_matrix *m, int64_t row, int64_t k) {
    const uint8_t *tile = m->data + row / LANES * m->tile_bytes;
    int lane = (int)(row % LANES);
    if (m->packing == GL_F32) return ((const float *)tile)[k * LANES + lane];
    if (m->packing == GL_F16) return half_to_float(((const uint16_t *)tile)[k * LANES + lane]);
    if (m->packing == GL_BF16) return bf16_to_float(((const uint16_t *)tile)[k * LANES + lane]);
    if (m->scale == GL_SCALE_STEPS) return value_of_steps(m, tile, k, lane);
    int groups = m->half_groups ? 2 : 1, zeros = m->scale == GL_SCALE_ZEROS;
    int64_t codes = GL_BLOCK * LANES / (m->packing == GL_Q8 ? 1 : 2);
    int64_t scales = (2 * (groups + m->has_minimum) - zeros) * LANES; /* their bytes, and those of minimums or zeros */
    const uint8_t *block = tile + k / GL_BLOCK * (scales + codes);
    int i = (int)(k % GL_BLOCK), group = m->half_groups ? i / 16 : 0;
    float scale = scale_at(m, block, group * LANES + lane);
    float low = m->has_minimum && !zeros ? scale_at(m, block, groups * LANES + lane) : 0.0f;
    int zero = zeros ? block[2 * LANES + lane] : m->has_minimum ? 0 : 8;
    const uint8_t *code = block + scales;
    if (m->packing != GL_Q8) {
        uint8_t both = code[i % 16 / 4 * 4 * LANES + 4 * lane + i % 4];
        int place = i < 16 ? both & 15 : both >> 4;
        if (m->packing == GL_TABLE) return scale * (float)m->table[place];
        return scale * (float)(place - zero) + low;
    }
    return scale * (float)(int8_t)code[i / 4 * 4 * LANES + 4 * lane + i % 4] + low;
}

static void embed(const gl_program *p, const gl_op *op, int64_t row) {
    const int32_t *all[] = {p->batch->tokens, p->batch->positions, p->batch->adapters}, *ids = all[op->i0];
    float *out = p->buffers[op->out].values + row * op->width;
    for (int64_t k = 0; k < op->width; k++) out[k] = packed_value(op->matrix, ids[row], k) * op->f0;
}
