/* Packs matrices from their stored format into the tiles that the kernels read (native.h). No stored value changes:
 * codes are only moved, and scales that a float16 cannot hold are kept as float32.
 */
#include <string.h>

#include "native.h"
#include "simd.h"

/* GGUF's numbers of the formats. */
enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };

typedef struct {
    int packing, minimum, wide, halves;
    int values, bytes; /* of a stored block */
} layout;

/* Without a minimum, 4-bit codes stand for -8 … 7 and 8-bit codes are signed. */
static const layout *layout_of(int format) {
    static const layout layouts[] = {
        [F32] = {GL_F32, 0, 0, 0, 1, 4},    [F16] = {GL_F16, 0, 0, 0, 1, 2},    [BF16] = {GL_BF16, 0, 0, 0, 1, 2},
        [Q4_0] = {GL_Q4, 0, 0, 0, 32, 18},  [Q4_1] = {GL_Q4, 1, 0, 0, 32, 20},  [Q5_0] = {GL_Q8, 0, 0, 0, 32, 22},
        [Q5_1] = {GL_Q8, 1, 0, 0, 32, 24},  [Q8_0] = {GL_Q8, 0, 0, 0, 32, 34},  [Q4_K] = {GL_Q4, 1, 1, 0, 256, 144},
        [Q5_K] = {GL_Q8, 1, 1, 0, 256, 176}, [Q6_K] = {GL_Q8, 0, 1, 1, 256, 210},
    };
    return format < 0 || format > BF16 || !layouts[format].values ? NULL : &layouts[format];
}

static int64_t block_bytes(const layout *l, int lanes) {
    int scales = (l->halves ? 2 : 1) + l->minimum;
    return (int64_t)lanes * (scales * (l->wide ? 4 : 2) + GL_BLOCK / (l->packing == GL_Q4 ? 2 : 1));
}

/* Fills in all of a matrix but its data. Returns the bytes that the data takes, or 0 for an unknown format. */
int64_t gl_pack_size(int format, int64_t out, int64_t in, gl_matrix *m) {
    const layout *l = layout_of(format);
    if (!l) return 0;
    int lanes = gl_active()->lanes;
    int64_t tile = l->packing < GL_Q4 ? in * lanes * l->bytes : gl_blocks(in) * block_bytes(l, lanes);
    *m = (gl_matrix){NULL, out, in, tile, l->packing, l->minimum, l->wide, l->halves};
    return (out + lanes - 1) / lanes * tile;
}

static uint16_t half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

/* Writes one group of 32 codes, a byte each, with its scales and minimum to lane `lane` of a packed block. */
static void put(uint8_t *block, const layout *l, int lanes, int lane, const uint8_t *codes, const float *scales,
                float low) {
    int size = l->wide ? 4 : 2, groups = l->halves ? 2 : 1;
    for (int g = 0; g < groups + l->minimum; g++) {
        float value = g < groups ? scales[g] : low;
        uint8_t *to = block + (g * lanes + lane) * size;
        if (l->wide) memcpy(to, &value, 4);
        else memcpy(to, &(uint16_t){float_to_half(value)}, 2);
    }
    block += (groups + l->minimum) * lanes * size;
    if (l->packing == GL_Q4)
        for (int i = 0; i < 16; i++) block[i / 4 * 4 * lanes + 4 * lane + i % 4] = codes[i] | codes[16 + i] << 4;
    else
        for (int i = 0; i < 32; i += 4) memcpy(block + i * lanes + 4 * lane, codes + i, 4);
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

static void move_any_row(int format, const uint8_t *raw, uint8_t *to, int64_t blocks, int lanes, int lane) {
    if (format == Q8_0) move_row(raw, to, blocks, lanes, lane, 1, 8);
    else if (format == Q4_1) move_row(raw, to, blocks, lanes, lane, 2, 4);
    else move_row(raw, to, blocks, lanes, lane, 1, 4);
}

/* Packs a block of 32 of a format that stores the fifth bits apart. */
static void pack_small(int format, const uint8_t *raw, uint8_t *block, const layout *l, int lanes, int lane) {
    uint8_t codes[32];
    const uint8_t *nibbles = raw + l->bytes - 16;
    uint32_t fifth;
    memcpy(&fifth, nibbles - 4, 4);
    for (int i = 0; i < 32; i++) {
        int code = (i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4) | (fifth >> i & 1) << 4;
        codes[i] = (uint8_t)(format == Q5_0 ? code - 16 : code);
    }
    float scale = half_to_float(half_at(raw));
    put(block, l, lanes, lane, codes, &scale, format == Q5_1 ? half_to_float(half_at(raw + 2)) : 0);
}

/* Packs a block of 256: eight groups of 32, each with its own scales. */
static void pack_large(int format, const uint8_t *raw, uint8_t *block, int64_t stride, const layout *l, int lanes,
                       int lane) {
    uint8_t codes[32];
    for (int g = 0; g < 8; g++, block += stride) {
        if (format == Q6_K) {
            const uint8_t *low = raw + g / 4 * 64 + g % 2 * 32, *high = raw + 128 + g / 4 * 32;
            int high_half = g % 4 / 2, shift = g % 4 * 2;
            for (int i = 0; i < 32; i++) {
                int code = (high_half ? low[i] >> 4 : low[i] & 15) | (high[i] >> shift & 3) << 4;
                codes[i] = (uint8_t)(code - 32);
            }
            float d = half_to_float(half_at(raw + 208));
            float scales[2] = {d * (int8_t)raw[192 + 2 * g], d * (int8_t)raw[193 + 2 * g]};
            put(block, l, lanes, lane, codes, scales, 0);
            continue;
        }
        const uint8_t *s = raw + 4, *nibbles = raw + (format == Q4_K ? 16 : 48) + g / 2 * 32;
        int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        int low = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
        for (int i = 0; i < 32; i++) {
            codes[i] = g % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
            if (format == Q5_K) codes[i] |= (raw[16 + i] >> g & 1) << 4;
        }
        float factor = half_to_float(half_at(raw)) * (float)scale;
        put(block, l, lanes, lane, codes, &factor, -(half_to_float(half_at(raw + 2)) * (float)low));
    }
}

static void pack_tiles(void *argument, int thread) {
    gl_pack_job *p = argument;
    const gl_matrix *m = p->matrix;
    int lanes = gl_active()->lanes;
    int64_t tiles = (m->out + lanes - 1) / lanes;
    (void)thread;
    const layout *l = layout_of(p->format);
    int64_t row_bytes = m->in / l->values * l->bytes, stride = block_bytes(l, lanes);
    for (int64_t tile; (tile = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < tiles;) {
        uint8_t *to = p->data + tile * m->tile_bytes;
        int64_t left = m->out - tile * lanes;
        if (left < lanes) memset(to, 0, m->tile_bytes);
        for (int lane = 0; lane < lanes && lane < left; lane++) {
            const uint8_t *row = p->raw + (tile * lanes + lane) * row_bytes;
            if (l->packing < GL_Q4)
                for (int64_t k = 0; k < m->in; k++)
                    memcpy(to + (k * lanes + lane) * l->bytes, row + k * l->bytes, l->bytes);
            else if (p->format == Q8_0 || p->format == Q4_0 || p->format == Q4_1)
                move_any_row(p->format, row, to, m->in / 32, lanes, lane);
            else if (l->values == 32)
                for (int64_t b = 0; b < m->in / 32; b++)
                    pack_small(p->format, row + b * l->bytes, to + b * stride, l, lanes, lane);
            else
                for (int64_t b = 0; b < m->in / 256; b++)
                    pack_large(p->format, row + b * l->bytes, to + 8 * b * stride, stride, l, lanes, lane);
        }
    }
}

void gl_pack(gl_pack_job *jobs, int64_t count) {
    for (gl_pack_job *p = jobs; p < jobs + count; p++) {
        p->matrix->data = p->data;
        gl_parallel(pack_tiles, p);
    }
}
