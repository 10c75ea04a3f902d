/* What the machine allows at most, for `bench.wall`: products, and bytes read. Included by kernels.h. */

#define SUMS 8 /* enough to hide the latency of the instructions */

/* Multiplies and adds up bytes as the linear kernels do, but out of registers. After each block of 32 products per sum
 * it does what the arithmetic of a format asks for (docs/ops.md): nothing, a scale, or a scale and a minimum. Returns
 * how many products that were. */
INLINE int64_t multiply_blocks(int64_t blocks, const int scales) {
    static volatile int32_t never;
    uint8_t weights[SUMS * 4 * LANES];
    int8_t x[GL_BLOCK];
    float s[SUMS]; /* scales of a row's blocks */
    vi weight[SUMS], sum[SUMS];
    vf out[SUMS], scale = vf_set((float)never + 1.0f), low = scale;
    for (int i = 0; i < (int)sizeof weights; i++) weights[i] = (uint8_t)never; /* which the compiler cannot know */
    for (int i = 0; i < GL_BLOCK; i++) x[i] = (int8_t)never;
    #pragma GCC unroll 8 /* every loop over sums and weights, or these would lie in memory */
    for (int i = 0; i < SUMS; i++) {
        weight[i] = vi_load(weights + 4 * LANES * i), sum[i] = vi_zero();
        out[i] = vf_set(0.0f), s[i] = 1.0f;
    }
    for (int64_t block = 0; block < blocks; block++) {
        #pragma GCC unroll 8
        for (int i = 0; scales && i < SUMS; i++) sum[i] = vi_zero();
        #pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            vi four = four_bytes(x + 4 * j);
            #pragma GCC unroll 8
            for (int i = 0; i < SUMS; i++) sum[i] = dot_small(sum[i], weight[i], four);
        }
        #pragma GCC unroll 8
        for (int i = 0; scales && i < SUMS; i++) {
            vf value = vf_from_vi(dot_small_sum(sum[i]));
            value = scales == 2 ? vf_fma(value, scale, vf_mul(low, vf_set(s[i]))) : vf_mul(value, scale);
            out[i] = vf_fma(value, vf_set(s[i]), out[i]);
        }
        __asm__ volatile("" : : "r"(x), "r"(s) : "memory"); /* or compilers would compute a block only once */
    }
    #pragma GCC unroll 8
    for (int i = 0; i < SUMS; i++) out[0] = vf_add(out[0], vf_add(out[i], vf_from_vi(dot_small_sum(sum[i]))));
    never = vf_largest(out[0]) > 0;
    return blocks * SUMS * LANES * GL_BLOCK;
}

/* The same number of instructions with integers of 16 bits, as attention does them. */
static int64_t multiply_words(int64_t blocks) {
    static volatile int32_t never;
    int32_t weights[SUMS * LANES], x[8];
    vi weight[SUMS], sum[SUMS];
    for (int i = 0; i < SUMS * LANES; i++) weights[i] = never;
    for (int i = 0; i < 8; i++) x[i] = never;
    #pragma GCC unroll 8
    for (int i = 0; i < SUMS; i++) weight[i] = load_pairs(weights + i * LANES), sum[i] = vi_zero();
    for (int64_t block = 0; block < blocks; block++) {
        #pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            #pragma GCC unroll 8
            for (int i = 0; i < SUMS; i++) sum[i] = dot_pairs_at(sum[i], weight[i], x + j);
        }
        __asm__ volatile("" : : "r"(x) : "memory");
    }
    vf out = vf_set(0.0f);
    #pragma GCC unroll 8
    for (int i = 0; i < SUMS; i++) out = vf_add(out, vf_from_vi(sum[i]));
    never = vf_largest(out) > 0;
    return blocks * SUMS * LANES * 8 * 2;
}

static int64_t multiply(int64_t blocks, int32_t what) {
    switch (what) {
    case GL_PRODUCTS: return multiply_blocks(blocks, 0);
    case GL_SCALED: return multiply_blocks(blocks, 1);
    case GL_WITH_MINIMUM: return multiply_blocks(blocks, 2);
    default: return multiply_words(blocks);
    }
}

/* Reads floats, a multiple of 4 * LANES of them, and returns a number that depends on all of them. */
static float read_all(const float *from, int64_t count) {
    vf sum[4];
    for (int i = 0; i < 4; i++) sum[i] = vf_set(0.0f);
    for (const float *end = from + count; from < end; from += 4 * LANES)
        for (int i = 0; i < 4; i++) sum[i] = vf_add(sum[i], vf_load(from + i * LANES));
    return vf_largest(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}
