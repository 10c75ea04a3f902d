/* Runs a recorded forward pass, and selects the instruction set. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

#if defined(__x86_64__)
#include <cpuid.h>
/* Two that not every compiler's __builtin_cpu_supports knows. Both need what AVX2 needs of the system. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}
static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
static int has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; } /* HWCAP_ASIMDDP */
static int has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }   /* HWCAP2_I8MM */
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
static int has(const char *feature) {
    int found = 0;
    size_t size = sizeof found;
    return !sysctlbyname(feature, &found, &size, NULL, 0) && found;
}
static int has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static int has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__aarch64__)
static int has_dotprod(void) { return 0; }
static int has_i8mm(void) { return 0; }
#endif

static const gl_kernels *active;

/* Selects the best kernels for this machine, or those of the named instruction set: "portable", "avx2", "avxvnni",
 * "avx512", "neon", "dotprod", "i8mm". Returns 0 if this machine does not have it. */
int gl_select_kernels(const char *name) {
    const gl_kernels *found[4];
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        found[count++] = gl_kernels_avx512();
    if (avx2 && has_avxvnni()) found[count++] = gl_kernels_avxvnni();
    if (avx2) found[count++] = gl_kernels_avx2();
#elif defined(__aarch64__)
    if (has_dotprod() && has_i8mm()) found[count++] = gl_kernels_i8mm();
    if (has_dotprod()) found[count++] = gl_kernels_dotprod();
    found[count++] = gl_kernels_neon();
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

/* The progress of one op, on a cache line of its own. */
typedef struct {
    _Alignas(64) int32_t next, done; /* units taken, and units finished */
} progress;

typedef struct {
    const gl_program *program;
    progress *progress;
    float *scratch;
    int64_t scratch_size; /* floats per thread */
} run;

/* Every thread goes through all ops and takes the units that are left. A barrier waits for units, not for threads, so
 * a thread that loses its core delays the others only while it holds a unit. */
static void run_thread(void *argument, int thread) {
    const run *r = argument;
    const gl_program *program = r->program;
    for (int32_t i = 0, waited = 0; i <= program->count; i++) {
        const gl_op *op = &program->ops[i];
        if (i == program->count || op->wait) {
            for (; waited < i; waited++) {
                int64_t units = active->count_units(program, &program->ops[waited]);
                for (int spins = 0; __atomic_load_n(&r->progress[waited].done, __ATOMIC_ACQUIRE) < units; spins++)
                    gl_rest(spins);
            }
            if (i == program->count) return;
        }
        int64_t units = active->count_units(program, op);
        for (int64_t unit; (unit = __atomic_fetch_add(&r->progress[i].next, 1, __ATOMIC_RELAXED)) < units;) {
            active->run_unit(program, op, unit, r->scratch + thread * r->scratch_size);
            __atomic_add_fetch(&r->progress[i].done, 1, __ATOMIC_RELEASE);
        }
    }
}

/* Finds the first of some numbers that is not from 0 to below `limit`. */
static int find_wrong(const int32_t *numbers, int32_t count, int32_t limit, int32_t wrong, gl_fault *fault) {
    for (int32_t i = 0; i < count; i++)
        if ((uint32_t)numbers[i] >= (uint32_t)limit) {
            *fault = (gl_fault){wrong, i, numbers[i], limit};
            return 1;
        }
    return 0;
}

/* The last check before memory is touched: every token and position has a row in its table, every span lies within
 * its page table, and every page in it exists. */
static int find_fault(const gl_program *program, gl_fault *fault) {
    const gl_batch *batch = program->batch;
    *fault = (gl_fault){GL_FINE, 0, 0, 0};
    for (int32_t i = 0; i < program->count; i++) {
        const gl_op *op = &program->ops[i];
        if (op->kind != GL_EMBED) continue;
        int is_token = op->i0 == GL_TOKENS;
        if (find_wrong(is_token ? batch->tokens : batch->positions, batch->rows, (int32_t)op->matrix->out,
                       is_token ? GL_WRONG_TOKEN : GL_WRONG_POSITION, fault))
            return 1;
    }
    if (find_wrong(batch->wanted, batch->wanted_rows, batch->rows, GL_WRONG_WANTED, fault)) return 1;
    int64_t row = 0;
    for (int32_t i = 0; i < batch->spans; i++) {
        const gl_span *span = &batch->span[i];
        int64_t end = (int64_t)span->first_position + span->rows;
        int outside = span->first_position < 0 || end > (int64_t)span->stride * GL_PAGE;
        if (span->first_row != row || span->rows < 1 || outside) {
            *fault = (gl_fault){GL_WRONG_SPAN, i, span->first_position, span->stride};
            return 1;
        }
        for (int32_t j = 0; j < span->rows && row + j < batch->rows; j++)
            if (batch->positions[row + j] != span->first_position + j) {
                *fault = (gl_fault){GL_WRONG_SPAN, i, batch->positions[row + j], span->stride};
                return 1;
            }
        row += span->rows;
        for (int32_t group = 0; group < program->groups; group++)
            if (find_wrong(span->pages + (int64_t)group * span->stride, (int32_t)((end + GL_PAGE - 1) / GL_PAGE),
                           program->caches[group].pages, GL_WRONG_PAGE, fault)) {
                fault->at = i;
                return 1;
            }
    }
    if (row != batch->rows) *fault = (gl_fault){GL_WRONG_SPAN, batch->spans, (int32_t)row, batch->rows};
    return row != batch->rows;
}

int64_t gl_progress_bytes(int32_t ops) { return ops * (int64_t)sizeof(progress) + 64; }

/* Runs a program. `memory` has gl_progress_bytes for its ops, `scratch` has `scratch_size` floats per thread. Returns
 * 0 if the batch has a fault; then nothing was computed. */
int gl_run(const gl_program *program, void *memory, float *scratch, int64_t scratch_size, gl_fault *fault) {
    if (find_fault(program, fault)) return 0;
    progress *aligned = (progress *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    memset(aligned, 0, program->count * sizeof *aligned);
    gl_parallel(run_thread, &(run){program, aligned, scratch, scratch_size});
    return 1;
}
