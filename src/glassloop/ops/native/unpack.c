/* Arranges blocks of the formats that are not stored in the kernels' order: each 32 values have their scales and minimums,
 * then their codes; where scales are steps, each 256 values begin with the units. pack.c moves these to their lanes.
 * The readers of `ops/blocks.py`, in NumPy, are the specification of the formats.
 *
 * Byte i of 4-bit codes holds those of values i and i + 16; of 2-bit codes, those of values i, i + 8, i + 16 and i + 24.
 * Eight codes are handled at a time, a byte each in a word of 64 bits.
 */
#include <string.h>

#include "native.h"

#define ONES 0x0101010101010101u

static uint64_t eight(const uint8_t *bytes) {
    uint64_t codes;
    memcpy(&codes, bytes, 8);
    return codes;
}

static uint16_t word(const uint8_t *bytes) { return (uint16_t)(bytes[0] | bytes[1] << 8); }

/* Eight bits, lowest first, as eight bytes of 0 or 1. */
static uint64_t spread(uint64_t bits) {
    uint64_t one_each = bits * ONES & 0x8040201008040201u;
    return (one_each + 0x7f * ONES) >> 7 & ONES;
}

/* Eight codes below 64, less a power of two from 8 to 64, as bytes with signs. */
static uint64_t less(uint64_t codes, uint64_t by) { return ((codes | 128 * ONES) - by * ONES) ^ 128 * ONES; }

/* Stores 32 codes of four bits, or of two. Returns where the next bytes go. */
static uint8_t *put_nibbles(uint8_t *to, const uint64_t *codes) {
    for (int i = 0; i < 2; i++) {
        uint64_t both = codes[i] | codes[2 + i] << 4;
        memcpy(to + 8 * i, &both, 8);
    }
    return to + 16;
}

static uint8_t *put_pairs(uint8_t *to, const uint64_t *codes) {
    uint64_t all = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6;
    memcpy(to, &all, 8);
    return to + 8;
}

static uint8_t *put_two(uint8_t *to, const uint8_t *bytes) {
    memcpy(to, bytes, 2);
    return to + 2;
}

/* 32 codes of eight bits. */
static uint8_t *put_bytes(uint8_t *to, const uint64_t *codes) {
    memcpy(to, codes, 32);
    return to + 32;
}

/* 32 codes of five bits: the fifth ones lie apart. */
static void five_bits(const uint8_t *nibbles, const uint8_t *fifth, uint64_t *codes) {
    for (int i = 0; i < 4; i++)
        codes[i] = (eight(nibbles + i % 2 * 8) >> i / 2 * 4 & 15 * ONES) | spread(fifth[i]) << 4;
}

static void q5_0(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    five_bits(raw + 6, raw + 2, codes);
    for (int i = 0; i < 4; i++) codes[i] = less(codes[i], 16);
    put_bytes(put_two(to, raw), codes);
}

static void q5_1(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    five_bits(raw + 8, raw + 4, codes);
    put_bytes(put_two(put_two(to, raw), raw + 2), codes);
}

/* The step and the minimum of group `g` of Q4_K and Q5_K: six bits each. */
static uint8_t *put_k_steps(uint8_t *to, const uint8_t *packed, int g) {
    *to++ = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
    *to++ = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    return to;
}

static void q4_k(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    to = put_two(put_two(to, raw), raw + 2);
    for (int g = 0; g < 8; g++) {
        for (int i = 0; i < 4; i++) codes[i] = eight(raw + 16 + g / 2 * 32 + 8 * i) >> g % 2 * 4 & 15 * ONES;
        to = put_nibbles(put_k_steps(to, raw + 4, g), codes);
    }
}

static void q5_k(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    to = put_two(put_two(to, raw), raw + 2);
    for (int g = 0; g < 8; g++) {
        for (int i = 0; i < 4; i++)
            codes[i] = (eight(raw + 48 + g / 2 * 32 + 8 * i) >> g % 2 * 4 & 15 * ONES) |
                       (eight(raw + 16 + 8 * i) >> g & ONES) << 4;
        to = put_bytes(put_k_steps(to, raw + 4, g), codes);
    }
}

static void q6_k(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    to = put_two(to, raw + 208);
    for (int g = 0; g < 8; g++) {
        const uint8_t *low = raw + g / 4 * 64 + g % 2 * 32, *high = raw + 128 + g / 4 * 32;
        for (int i = 0; i < 4; i++)
            codes[i] = less((eight(low + 8 * i) >> g % 4 / 2 * 4 & 15 * ONES) |
                                (eight(high + 8 * i) >> g % 4 * 2 & 3 * ONES) << 4,
                            32);
        to = put_bytes(put_two(to, raw + 192 + 2 * g), codes);
    }
}

/* Group `g` of 32 codes of two bits: each 32 bytes hold 128 values. */
static void quarter(const uint8_t *packed, int g, uint64_t *codes) {
    for (int i = 0; i < 4; i++) codes[i] = eight(packed + g / 4 * 32 + 8 * i) >> g % 4 * 2 & 3 * ONES;
}

static void q2_k(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    to = put_two(put_two(to, raw + 80), raw + 82);
    for (int g = 0; g < 8; g++) {
        to = put_two(to, raw + 2 * g); /* steps and minimums share bytes in the file too */
        quarter(raw + 16, g, codes);
        to = put_pairs(to, codes);
    }
}

static void q3_k(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    to = put_two(to, raw + 108);
    for (int g = 0; g < 8; g++) {
        for (int k = 2 * g; k < 2 * g + 2; k++) {
            int low = k < 8 ? raw[96 + k] & 15 : raw[96 + k - 8] >> 4, high = raw[104 + k % 4] >> k / 4 * 2 & 3;
            *to++ = (uint8_t)((low | high << 4) - 32);
        }
        quarter(raw + 32, g, codes);
        for (int i = 0; i < 4; i++) codes[i] |= (eight(raw + 8 * i) >> g & ONES) << 2;
        to = put_nibbles(to, codes);
    }
}

static void iq4_xs(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    (void)grid;
    to = put_two(to, raw);
    for (int g = 0; g < 8; g++, to += 16) {
        int low = raw[4 + g / 2] >> g % 2 * 4 & 15, high = word(raw + 2) >> 2 * g & 3;
        *to++ = (uint8_t)((low | high << 4) - 32);
        memcpy(to, raw + 8 + 16 * g, 16);
    }
}

/* The scale, a power of two, in bfloat16: half of what its byte says. */
static void mxfp4(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint16_t scale = (uint16_t)(*raw < 2 ? 0x20 << *raw : (*raw - 1) << 7);
    (void)grid;
    memcpy(to, &scale, 2);
    memcpy(to + 2, raw + 1, 16);
}

/* An unsigned float of eight bits, four of them the exponent, halved, in float16. */
static uint16_t half_of_e4m3(uint8_t byte) {
    int exponent = byte >> 3 & 15, mantissa = (byte & 7) + (exponent ? 8 : 0);
    if (!mantissa || byte == 0x7f) return 0;
    for (exponent = exponent ? exponent : 1; mantissa < 8; exponent--) mantissa *= 2;
    return (uint16_t)((exponent + 7) << 10 | (mantissa & 7) << 7);
}

static void nvfp4(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    for (int block = 0; block < 2; block++) {
        for (int half = 0; half < 2; half++) {
            uint16_t scale = half_of_e4m3(raw[2 * block + half]);
            memcpy(to, &scale, 2), to += 2;
            uint64_t both = eight(raw + 4 + 16 * block + 8 * half);
            codes[2 * half] = both & 15 * ONES, codes[2 * half + 1] = both >> 4 & 15 * ONES;
        }
        to = put_nibbles(to, codes);
    }
}

static void q1_0(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    for (int block = 0; block < 4; block++) {
        to = put_two(to, raw);
        for (int i = 0; i < 4; i++) codes[i] = spread(raw[2 + 4 * block + i]);
        to = put_nibbles(to, codes);
    }
}

static void q2_0(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[4];
    (void)grid;
    for (int block = 0; block < 2; block++) {
        to = put_two(to, raw);
        for (int i = 0; i < 4; i++) {
            uint64_t pairs = word(raw + 2 + 8 * block + 2 * i);
            codes[i] = 0;
            for (int k = 0; k < 8; k++) codes[i] |= (pairs >> 2 * k & 3) << 8 * k;
        }
        to = put_nibbles(to, codes);
    }
}

static void put_ternary(uint8_t *to, const uint8_t *unit, const uint8_t *codes) {
    to = put_two(to, unit);
    for (int g = 0; g < 8; g++, codes += 32) {
        uint64_t four[4];
        memcpy(four, codes, sizeof four);
        to = put_pairs(to, four);
    }
}

/* Five digits of base 3 in a byte, as a fraction: multiplied by 3, each is carried out at the top. */
static void tq1_0(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    static const struct {
        int from, bytes, digits;
    } parts[] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    uint8_t codes[256], *next = codes;
    (void)grid;
    for (int part = 0; part < 3; part++)
        for (int digit = 0, power = 1; digit < parts[part].digits; digit++, power *= 3)
            for (int i = 0; i < parts[part].bytes; i++)
                *next++ = (uint8_t)((uint8_t)(raw[parts[part].from + i] * power) * 3 >> 8);
    put_ternary(to, raw + 52, codes);
}

static void tq2_0(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint64_t codes[32];
    (void)grid;
    for (int g = 0; g < 8; g++) quarter(raw, g, codes + 4 * g);
    put_ternary(to, raw + 64, (const uint8_t *)codes);
}

/* ---- places in a grid of points, and signs: a point has eight values in IQ1 and IQ2, and four in IQ3 ---- */

static uint8_t odd(int step) { return (uint8_t)(2 * step + 1); }

/* Signs of eight values, of which the last is such that their number is even. */
static uint64_t even_signs(uint32_t seven) { return seven | (uint64_t)(__builtin_popcount(seven) & 1) << 7; }

static uint64_t two_points(const uint8_t *grid, int first, int second) {
    uint32_t low, high;
    memcpy(&low, grid + 4 * first, 4);
    memcpy(&high, grid + 4 * second, 4);
    return low | (uint64_t)high << 32;
}

static void iq2_xxs(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    to = put_two(to, raw), raw += 2;
    for (int g = 0; g < 8; g++, raw += 8) {
        uint64_t codes[4];
        uint32_t signs;
        memcpy(&signs, raw + 4, 4);
        *to++ = odd(signs >> 28);
        for (int i = 0; i < 4; i++) codes[i] = eight(grid + 8 * raw[i]) | spread(even_signs(signs >> 7 * i & 127)) << 2;
        to = put_nibbles(to, codes);
    }
}

static void iq2_xs(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    to = put_two(to, raw);
    for (int g = 0; g < 8; g++) {
        uint64_t codes[4];
        *to++ = odd(raw[66 + g] & 15), *to++ = odd(raw[66 + g] >> 4);
        for (int i = 0; i < 4; i++) {
            int both = word(raw + 2 + 8 * g + 2 * i);
            codes[i] = eight(grid + 8 * (both & 511)) | spread(even_signs(both >> 9)) << 2;
        }
        to = put_nibbles(to, codes);
    }
}

static void iq2_s(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    to = put_two(to, raw);
    for (int g = 0; g < 8; g++) {
        uint64_t codes[4];
        *to++ = odd(raw[74 + g] & 15), *to++ = odd(raw[74 + g] >> 4);
        for (int i = 0; i < 4; i++) {
            int place = raw[2 + 4 * g + i] | (raw[66 + g] >> 2 * i & 3) << 8;
            codes[i] = eight(grid + 8 * place) | spread(raw[34 + 4 * g + i]) << 2;
        }
        to = put_nibbles(to, codes);
    }
}

static void iq3_xxs(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    to = put_two(to, raw);
    for (int g = 0; g < 8; g++) {
        uint64_t codes[4];
        uint32_t signs;
        memcpy(&signs, raw + 66 + 4 * g, 4);
        *to++ = odd(signs >> 28);
        for (int i = 0; i < 4; i++) {
            const uint8_t *place = raw + 2 + 8 * g + 2 * i;
            codes[i] = two_points(grid, place[0], place[1]) | spread(even_signs(signs >> 7 * i & 127)) << 3;
        }
        to = put_nibbles(to, codes);
    }
}

static void iq3_s(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    to = put_two(to, raw);
    for (int g = 0; g < 8; g++) {
        uint64_t codes[4];
        *to++ = odd(raw[106 + g / 2] >> g % 2 * 4 & 15);
        for (int i = 0; i < 4; i++) {
            const uint8_t *place = raw + 2 + 8 * g + 2 * i;
            int high = raw[66 + g] >> 2 * i;
            uint64_t sizes = two_points(grid, place[0] | (high & 1) << 8, place[1] | (high >> 1 & 1) << 8);
            codes[i] = sizes | spread(raw[74 + 4 * g + i]) << 3;
        }
        to = put_nibbles(to, codes);
    }
}

/* A point of IQ1: -1, 0 and 1, all shifted by 1/8, up or down. */
static uint64_t shifted_point(const uint8_t *grid, int place, int minus) { return eight(grid + 8 * place) + 3 * minus * ONES; }

static void iq1_s(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    to = put_two(to, raw);
    for (int g = 0; g < 8; g++) {
        uint64_t codes[4];
        int high = word(raw + 34 + 2 * g);
        *to++ = odd(high >> 12 & 7);
        for (int i = 0; i < 4; i++)
            codes[i] = shifted_point(grid, raw[2 + 4 * g + i] | (high >> 3 * i & 7) << 8, high >> 15);
        to = put_nibbles(to, codes);
    }
}

static void iq1_m(const uint8_t *raw, uint8_t *to, const uint8_t *grid) {
    uint16_t unit = 0; /* in the highest bits of four words, which have four steps each below */
    for (int i = 0; i < 4; i++) unit |= (uint16_t)(word(raw + 48 + 2 * i) >> 12 << 4 * i);
    memcpy(to, &unit, 2), to += 2;
    for (int g = 0; g < 8; g++) {
        uint64_t codes[4];
        int steps = word(raw + 48 + g / 2 * 2) >> g % 2 * 6;
        *to++ = odd(steps & 7), *to++ = odd(steps >> 3 & 7);
        for (int i = 0; i < 4; i++) {
            int high = raw[32 + 2 * g + i / 2] >> i % 2 * 4;
            codes[i] = shifted_point(grid, raw[4 * g + i] | (high & 7) << 8, high >> 3 & 1);
        }
        to = put_nibbles(to, codes);
    }
}

/* ---- the table ---- */

/* A format, with GGUF's number; `values` and `bytes` of a stored block, and `arranged` bytes of what becomes of it. */
static const gl_reader readers[] = {
    {6, 32, 22, 34, q5_0},              {7, 32, 24, 36, q5_1},              {12, 256, 144, 4 + 8 * 18, q4_k},
    {13, 256, 176, 4 + 8 * 34, q5_k},   {14, 256, 210, 2 + 8 * 34, q6_k},
    {10, 256, 84, 4 + 8 * 10, q2_k},    {11, 256, 110, 2 + 8 * 18, q3_k},   {16, 256, 66, 2 + 8 * 17, iq2_xxs},
    {17, 256, 74, 2 + 8 * 18, iq2_xs},  {18, 256, 98, 2 + 8 * 17, iq3_xxs}, {19, 256, 50, 2 + 8 * 17, iq1_s},
    {21, 256, 110, 2 + 8 * 17, iq3_s},  {22, 256, 82, 2 + 8 * 18, iq2_s},   {23, 256, 136, 2 + 8 * 17, iq4_xs},
    {29, 256, 56, 2 + 8 * 18, iq1_m},   {34, 256, 54, 2 + 8 * 8, tq1_0},    {35, 256, 66, 2 + 8 * 8, tq2_0},
    {39, 32, 17, 18, mxfp4},            {40, 64, 36, 2 * 20, nvfp4},        {41, 128, 18, 4 * 18, q1_0},
    {42, 64, 18, 2 * 18, q2_0},
};

/* Returns the reader of a format, or NULL if pack.c needs none. */
const gl_reader *gl_reader_of(int format) {
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (readers[i].format == format) return &readers[i];
    return NULL;
}
