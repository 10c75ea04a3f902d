/* What the machine allows at most, measured on all threads (limits.h). `bench.wall` compares the forward pass with it. */
#include "native.h"

#define READ_AT_ONCE (1 << 20) /* floats */

typedef struct {
    const float *from;
    int64_t blocks, products;
    int32_t what;
} limits;

static void multiply_some(void *work, int64_t unit) {
    limits *l = work;
    (void)unit;
    __atomic_add_fetch(&l->products, gl_active()->multiply(l->blocks, l->what), __ATOMIC_RELAXED);
}

static void read_some(void *work, int64_t unit) {
    limits *l = work;
    gl_active()->read(l->from + unit * READ_AT_ONCE, READ_AT_ONCE);
}

/* Multiplies integers of 8 or 16 bits (enum gl_limit) in `units` units of `blocks` blocks. Returns how many products that were. */
int64_t gl_multiply(int64_t units, int64_t blocks, int32_t what) {
    limits l = {.blocks = blocks, .what = what};
    gl_run_units(multiply_some, &l, units);
    return l.products;
}

/* Reads an array of floats, whole units of it. Returns how many bytes were read. */
int64_t gl_read(const float *from, int64_t count) {
    limits l = {.from = from};
    gl_run_units(read_some, &l, count / READ_AT_ONCE);
    return count / READ_AT_ONCE * READ_AT_ONCE * (int64_t)sizeof(float);
}
