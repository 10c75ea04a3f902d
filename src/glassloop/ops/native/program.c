/* Runs a recorded forward pass, and chooses the instruction set once. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

static const gl_kernels *active;

/* The best that this machine has, or the named one: "portable", "avx2", "avxvnni", "avx512". 0: not to be had. */
int gl_choose(const char *name) {
    const gl_kernels *found[4];
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        found[count++] = gl_kernels_avx512();
    if (avx2 && __builtin_cpu_supports("avxvnni")) found[count++] = gl_kernels_avxvnni();
    if (avx2) found[count++] = gl_kernels_avx2();
#endif
    found[count++] = gl_kernels_portable();
    for (int i = 0; i < count; i++)
        if (!*name || !strcmp(name, found[i]->name)) {
            active = found[i];
            return 1;
        }
    return 0;
}

const gl_kernels *gl_active(void) { return active; }
const char *gl_name(void) { return active->name; }
int gl_lanes(void) { return active->lanes; }

typedef struct {
    const gl_program *program;
    int32_t *next; /* a counter of units for each op */
    float *scratch;
    int64_t scratch_size; /* of each thread */
} run;

static void run_thread(void *argument, int thread, int threads) {
    const run *r = argument;
    for (int32_t i = 0; i < r->program->count; i++) {
        const gl_op *op = &r->program->ops[i];
        if (op->wait && threads > 1) gl_barrier(threads);
        active->op(r->program, op, &r->next[i], r->scratch + thread * r->scratch_size);
    }
}

/* `scratch`: threads times `scratch_size` floats; `next`: a number for each op. */
void gl_run(const gl_program *program, int32_t *next, float *scratch, int64_t scratch_size) {
    memset(next, 0, program->count * sizeof *next);
    gl_parallel(run_thread, &(run){program, next, scratch, scratch_size});
}
