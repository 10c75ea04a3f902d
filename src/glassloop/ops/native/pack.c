/* Packs matrices from their stored format into the tiles that the kernels read (native.h). No stored value changes:
 * codes are only moved, and scales that are products of a float16 and a small integer are kept as these two.
 */
#include <string.h>

#include "native.h"

/* GGUF's numbers of the formats that are unpacked here. All others come with their codes in the kernels' order: they
 * are stored so (Q4_0, Q4_1, Q8_0), or Python has arranged them. */
enum { Q5_0 = 6, Q5_1 = 7, Q4_K = 12, Q5_K = 13, Q6_K = 14 };

static int groups_of(const gl_matrix *m) { return m->half_groups ? 2 : 1; }

/* How many steps a lane of a block has. */
static int steps_of(const gl_matrix *m) {
    if (m->packing == GL_Q2) return m->has_minimum ? groups_of(m) : 0;
    return groups_of(m) + m->has_minimum;
}

/* The bytes of a packed block without its unit. */
static int64_t block_bytes(const gl_matrix *m, int lanes) {
    int scales = m->scale == GL_SCALE_STEPS ? steps_of(m) : 2 * (groups_of(m) + m->has_minimum);
    return (int64_t)lanes * (scales + GL_BLOCK / (m->packing == GL_Q8 ? 1 : m->packing == GL_Q2 ? 4 : 2));
}

/* Fills in the size of a tile of a matrix, of which all else but the data is given. Returns the bytes of the data. */
int64_t gl_pack_size(gl_matrix *m) {
    int lanes = gl_active()->lanes;
    int64_t blocks = gl_blocks(m->in);
    if (m->packing < GL_Q4) m->tile_bytes = m->in * lanes * (m->packing == GL_F32 ? 4 : 2);
    else m->tile_bytes = blocks * block_bytes(m, lanes);
    if (m->scale == GL_SCALE_STEPS) m->tile_bytes += blocks / GL_UNIT_BLOCKS * lanes * (m->has_minimum ? 4 : 2);
    return (m->out + lanes - 1) / lanes * m->tile_bytes;
}

/* Writes 32 codes, a byte each, to lane `lane` of the codes of a packed block. */
static void put_codes(uint8_t *to, const gl_matrix *m, int lanes, int lane, const uint8_t *codes) {
    if (m->packing == GL_Q4)
        for (int i = 0; i < 16; i++) to[i / 4 * 4 * lanes + 4 * lane + i % 4] = codes[i] | codes[16 + i] << 4;
    else
        for (int i = 0; i < 32; i += 4) memcpy(to + i * lanes + 4 * lane, codes + i, 4);
}

/* Moves a row of a format with blocks of 32 whose codes are already in the kernels' order: scales two bytes at a
 * time, codes four. Most weights have such a format, so it is compiled with constant counts. */
static inline __attribute__((always_inline)) void move_row(const uint8_t *raw, uint8_t *to, int64_t blocks, int lanes,
                                                           int lane, int scales, int words) {
    for (int64_t b = 0; b < blocks; b++) {
        for (int i = 0; i < scales; i++, raw += 2) memcpy(to + (i * lanes + lane) * 2, raw, 2);
        to += scales * lanes * 2;
        for (int i = 0; i < words; i++, raw += 4) memcpy(to + (i * lanes + lane) * 4, raw, 4);
        to += words * lanes * 4;
    }
}

/* The same for eight blocks after their units, with steps of a byte. */
static void move_steps(const uint8_t *raw, uint8_t *to, int64_t eights, int lanes, int lane, int units, int steps,
                       int words) {
    for (int64_t e = 0; e < eights; e++) {
        for (int i = 0; i < units; i++, raw += 2) memcpy(to + (i * lanes + lane) * 2, raw, 2);
        to += units * lanes * 2;
        for (int b = 0; b < GL_UNIT_BLOCKS; b++) {
            for (int i = 0; i < steps; i++) to[i * lanes + lane] = *raw++;
            to += steps * lanes;
            for (int i = 0; i < words; i++, raw += 4) memcpy(to + (i * lanes + lane) * 4, raw, 4);
            to += words * lanes * 4;
        }
    }
}

/* Moves a row whose codes are in the kernels' order. */
static void move_any_row(const gl_matrix *m, const uint8_t *raw, uint8_t *to, int lanes, int lane) {
    int64_t blocks = m->in / GL_BLOCK;
    int words = m->packing == GL_Q8 ? 8 : m->packing == GL_Q2 ? 2 : 4;
    if (m->scale == GL_SCALE_STEPS)
        move_steps(raw, to, blocks / GL_UNIT_BLOCKS, lanes, lane, 1 + m->has_minimum, steps_of(m), words);
    else if (m->packing == GL_Q8 && !m->has_minimum && !m->half_groups) move_row(raw, to, blocks, lanes, lane, 1, 8);
    else if (m->packing == GL_Q8) move_row(raw, to, blocks, lanes, lane, groups_of(m) + m->has_minimum, 8);
    else if (m->has_minimum || m->half_groups) move_row(raw, to, blocks, lanes, lane, 2, 4);
    else move_row(raw, to, blocks, lanes, lane, 1, 4);
}

/* Packs a block of 32 of a format that stores the fifth bits apart. */
static void pack_small(int format, const uint8_t *raw, uint8_t *block, const gl_matrix *m, int lanes, int lane) {
    uint8_t codes[32];
    const uint8_t *nibbles = raw + (format == Q5_0 ? 6 : 8);
    uint32_t fifth;
    memcpy(&fifth, nibbles - 4, 4);
    for (int i = 0; i < 32; i++) {
        int code = (i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4) | (fifth >> i & 1) << 4;
        codes[i] = (uint8_t)(format == Q5_0 ? code - 16 : code);
    }
    for (int i = 0; i < 1 + m->has_minimum; i++, block += 2 * lanes) memcpy(block + 2 * lane, raw + 2 * i, 2);
    put_codes(block, m, lanes, lane, codes);
}

/* Packs a block of 256: the units, and eight groups of 32, each with its own steps. */
static void pack_large(int format, const uint8_t *raw, uint8_t *to, int64_t stride, const gl_matrix *m, int lanes,
                       int lane) {
    uint8_t codes[32];
    const uint8_t *unit = format == Q6_K ? raw + 208 : raw;
    for (int i = 0; i < 1 + m->has_minimum; i++, to += 2 * lanes) memcpy(to + 2 * lane, unit + 2 * i, 2);
    for (int g = 0; g < 8; g++, to += stride) {
        uint8_t steps[2];
        if (format == Q6_K) {
            const uint8_t *low = raw + g / 4 * 64 + g % 2 * 32, *high = raw + 128 + g / 4 * 32;
            int high_half = g % 4 / 2, shift = g % 4 * 2;
            for (int i = 0; i < 32; i++) {
                int code = (high_half ? low[i] >> 4 : low[i] & 15) | (high[i] >> shift & 3) << 4;
                codes[i] = (uint8_t)(code - 32);
            }
            memcpy(steps, raw + 192 + 2 * g, 2);
        } else {
            const uint8_t *s = raw + 4, *nibbles = raw + (format == Q4_K ? 16 : 48) + g / 2 * 32;
            steps[0] = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
            steps[1] = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4; /* the minimum */
            for (int i = 0; i < 32; i++) {
                codes[i] = g % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
                if (format == Q5_K) codes[i] |= (raw[16 + i] >> g & 1) << 4;
            }
        }
        to[lane] = steps[0], to[lanes + lane] = steps[1];
        put_codes(to + 2 * lanes, m, lanes, lane, codes);
    }
}

static void pack_tiles(void *argument, int thread) {
    gl_pack_job *p = argument;
    const gl_matrix *m = p->matrix;
    int lanes = gl_active()->lanes, bytes = m->packing == GL_F32 ? 4 : 2;
    int64_t tiles = (p->rows + lanes - 1) / lanes, stride = block_bytes(m, lanes);
    (void)thread;
    for (int64_t tile; (tile = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < tiles;) {
        uint8_t *to = p->data + tile * m->tile_bytes;
        int64_t left = p->rows - tile * lanes;
        if (left < lanes) memset(to, 0, m->tile_bytes);
        for (int lane = 0; lane < lanes && lane < left; lane++) {
            const uint8_t *row = p->raw + (tile * lanes + lane) * p->row_bytes;
            if (m->packing < GL_Q4)
                for (int64_t k = 0; k < m->in; k++) memcpy(to + (k * lanes + lane) * bytes, row + k * bytes, bytes);
            else if (p->format == Q5_0 || p->format == Q5_1)
                for (int64_t b = 0, blocks = m->in / 32; b < blocks; b++)
                    pack_small(p->format, row + b * (p->row_bytes / blocks), to + b * stride, m, lanes, lane);
            else if (p->format == Q4_K || p->format == Q5_K || p->format == Q6_K)
                for (int64_t b = 0, blocks = m->in / 256; b < blocks; b++)
                    pack_large(p->format, row + b * (p->row_bytes / blocks), to + b * (m->tile_bytes / blocks), stride, m,
                               lanes, lane);
            else move_any_row(m, row, to, lanes, lane);
        }
    }
}

void gl_pack(gl_pack_job *jobs, int64_t count) {
    for (gl_pack_job *p = jobs; p < jobs + count; p++) gl_parallel(pack_tiles, p);
}
