/* Packs matrices from their stored format into the tiles that the kernels read (native.h). No stored value changes:
 * codes are only moved, and scales that are products of a float16 and a small integer are kept as these two.
 */
#include <string.h>

#include "native.h"

#define MOST_ARRANGED 280 /* bytes of a block, at most */

static int groups_of(const gl_matrix *m) { return m->half_groups ? 2 : 1; }

/* How many steps a lane of a block has. */
static int steps_of(const gl_matrix *m) {
    if (m->packing == GL_Q2) return m->has_minimum ? groups_of(m) : 0;
    return groups_of(m) + m->has_minimum;
}

/* The bytes of a packed block without its unit. */
static int64_t block_bytes(const gl_matrix *m, int lanes) {
    int scales = m->scale == GL_SCALE_STEPS   ? steps_of(m)
                 : m->scale == GL_SCALE_ZEROS ? 3
                                              : 2 * (groups_of(m) + m->has_minimum);
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

/* The same for blocks of 32 with a float16 scale, the code of 0, and codes of four bits. */
static void move_zeros(const uint8_t *raw, uint8_t *to, int64_t blocks, int lanes, int lane) {
    for (int64_t b = 0; b < blocks; b++, to += 19 * lanes) {
        memcpy(to + 2 * lane, raw, 2);
        to[2 * lanes + lane] = raw[2];
        raw += 3;
        for (int i = 0; i < 4; i++, raw += 4) memcpy(to + 3 * lanes + (i * lanes + lane) * 4, raw, 4);
    }
}

/* Moves blocks of a row whose codes are in the kernels' order. */
static void move_blocks(const gl_matrix *m, const uint8_t *raw, uint8_t *to, int64_t blocks, int lanes, int lane) {
    int words = m->packing == GL_Q8 ? 8 : m->packing == GL_Q2 ? 2 : 4;
    if (m->scale == GL_SCALE_STEPS)
        move_steps(raw, to, blocks / GL_UNIT_BLOCKS, lanes, lane, 1 + m->has_minimum, steps_of(m), words);
    else if (m->scale == GL_SCALE_ZEROS) move_zeros(raw, to, blocks, lanes, lane);
    else if (m->packing == GL_Q8 && !m->has_minimum && !m->half_groups) move_row(raw, to, blocks, lanes, lane, 1, 8);
    else if (m->packing == GL_Q8) move_row(raw, to, blocks, lanes, lane, groups_of(m) + m->has_minimum, 8);
    else if (m->has_minimum || m->half_groups) move_row(raw, to, blocks, lanes, lane, 2, 4);
    else move_row(raw, to, blocks, lanes, lane, 1, 4);
}

/* Moves a row whose blocks a reader arranges first. */
static void move_arranged(const gl_reader *reader, const gl_pack_job *p, const uint8_t *row, uint8_t *to, int lanes,
                          int lane) {
    uint8_t arranged[MOST_ARRANGED];
    const gl_matrix *m = p->matrix;
    int64_t count = m->in / reader->values, bytes = m->tile_bytes / count;
    for (int64_t b = 0; b < count; b++, row += reader->bytes, to += bytes) {
        reader->arrange(row, arranged, p->grid);
        move_blocks(m, arranged, to, reader->values / GL_BLOCK, lanes, lane);
    }
}

static void pack_tiles(void *argument, int thread) {
    gl_pack_job *p = argument;
    const gl_matrix *m = p->matrix;
    int lanes = gl_active()->lanes, bytes = m->packing == GL_F32 ? 4 : 2;
    int64_t tiles = (p->rows + lanes - 1) / lanes;
    const gl_reader *reader = gl_reader_of(p->format);
    (void)thread;
    for (int64_t tile; (tile = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < tiles;) {
        uint8_t *to = p->data + tile * m->tile_bytes;
        int64_t left = p->rows - tile * lanes;
        if (left < lanes) memset(to, 0, m->tile_bytes);
        for (int lane = 0; lane < lanes && lane < left; lane++) {
            const uint8_t *row = p->raw + (tile * lanes + lane) * p->row_bytes;
            if (m->packing < GL_Q4)
                for (int64_t k = 0; k < m->in; k++) memcpy(to + (k * lanes + lane) * bytes, row + k * bytes, bytes);
            else if (reader) move_arranged(reader, p, row, to, lanes, lane);
            else move_blocks(m, row, to, m->in / GL_BLOCK, lanes, lane);
        }
    }
}

void gl_pack(gl_pack_job *jobs, int64_t count) {
    for (gl_pack_job *p = jobs; p < jobs + count; p++) gl_parallel(pack_tiles, p);
}
