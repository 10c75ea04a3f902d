/* Runs a recorded forward pass, and selects the instruction set. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "native.h"

#if defined(__x86_64__)
#include <cpuid.h>
/* Features that some compilers' __builtin_cpu_supports lacks. What the system must support for them, the check for
 * AVX2 covers. */
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

/* The units of an op are divided into as many ranges as there are threads, up to this. A thread does its own range, and
 * helps with the others only if they are not done soon after. So threads seldom meet at a counter, which takes long if
 * their cores share no cache, and a thread mostly finds in its own cache what it has written. */
#define MOST_RANGES 8
#define SPINS_BEFORE_HELP 20

/* How far ahead a waiting thread asks for weights. */
#define MOST_OPS_AHEAD 6
#define MOST_BYTES_AHEAD (1 << 17) /* of an op */
#define BYTES_ASKED_AT_ONCE 512

#define MIN(a, b) ((a) < (b) ? (a) : (b))

static int count_ranges(void) { return gl_threads() < MOST_RANGES ? gl_threads() : MOST_RANGES; }

/* The counters of one range lie together, apart from those of the others: 16 of them fill a cache line. */
static int64_t counters(int32_t ops) { return (ops + 15) / 16 * 16; }

/* The units that the threads of a range have finished, of all ops so far. */
typedef struct {
    _Alignas(64) int64_t units;
} finished;

typedef struct {
    const gl_program *program;
    finished *finished; /* [ranges] */
    int32_t *next;      /* [ranges, counters(ops)]: the next unit of a range */
    int ranges;
    float *scratch;
    int64_t scratch_size; /* floats per thread */
} run;

/* Where a thread is. */
typedef struct {
    const run *run;
    int thread, range;
    int64_t units;         /* finished, but not yet added to those of its range */
    int32_t op;            /* the op whose weights it has asked for last, */
    int64_t asked;         /* and how many bytes of them */
    gl_times *times;       /* [count + 1], or NULL */
} walker;

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Does the units that are left in a range of an op. */
static void take_units(walker *w, int32_t op, int range) {
    const run *r = w->run;
    const gl_program *program = r->program;
    int64_t began = w->times ? nanoseconds() : 0, before = w->units;
    int64_t units = active->count_units(program, &program->ops[op]);
    int64_t first = units * range / r->ranges, count = units * (range + 1) / r->ranges - first, unit;
    int32_t *next = r->next + range * counters(program->count) + op;
    if (range == w->range) active->ask_for_rows(program, &program->ops[op], range, r->ranges);
    while (__atomic_load_n(next, __ATOMIC_RELAXED) < count &&
           (unit = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < count) {
        active->run_unit(program, &program->ops[op], first + unit, r->scratch + w->thread * r->scratch_size);
        w->units++;
    }
    if (!w->times) return;
    w->times[op].working += nanoseconds() - began;
    w->times[op].units += w->units - before;
}

static void publish(walker *w) {
    if (w->units) __atomic_add_fetch(&w->run->finished[w->range].units, w->units, __ATOMIC_RELEASE);
    w->units = 0;
}

static int are_finished(const run *r, int64_t units) {
    for (int range = 0; range < r->ranges; range++)
        units -= __atomic_load_n(&r->finished[range].units, __ATOMIC_ACQUIRE);
    return units <= 0;
}

/* Asks for a few more bytes of the weights that the thread will read after op `from`, so that the memory is not idle
 * while the thread waits. */
static void ask_ahead(walker *w, int32_t from) {
    const run *r = w->run;
    if (w->op < from) w->op = from, w->asked = 0;
    if (w->op >= MIN(from + MOST_OPS_AHEAD, r->program->count)) return;
    const uint8_t *weights;
    int64_t bytes = active->weights(r->program, &r->program->ops[w->op], w->range, r->ranges, &weights);
    int64_t end = MIN(bytes, w->asked + BYTES_ASKED_AT_ONCE);
    for (; w->asked < end; w->asked += 64) __builtin_prefetch(weights + w->asked, 0, 2);
    if (w->asked >= MIN(bytes, MOST_BYTES_AHEAD)) w->op++, w->asked = 0;
}

/* Waits until `units` units of the program are finished, which are all those before op `end`. The first of them that may
 * be unfinished is `begin`. */
static void wait_for(walker *w, int32_t begin, int32_t end, int64_t units) {
    int64_t began = w->times ? nanoseconds() : 0;
    publish(w);
    for (int spins = 0; !are_finished(w->run, units); spins++) {
        ask_ahead(w, end);
        if (spins == SPINS_BEFORE_HELP) {
            int64_t helped = w->times ? nanoseconds() : 0;
            for (int32_t op = begin; op < end; op++)
                for (int k = 1; k < w->run->ranges; k++) take_units(w, op, (w->range + k) % w->run->ranges);
            publish(w);
            if (w->times) began += nanoseconds() - helped;
        }
        gl_rest(spins);
    }
    if (w->times) w->times[end].waiting += nanoseconds() - began;
}

/* Every thread goes through all ops. A barrier waits for units, not for threads, so a thread that loses its core delays
 * the others only while it holds a unit. */
static void run_thread(void *argument, int thread) {
    const run *r = argument;
    const gl_program *program = r->program;
    gl_times *times = program->times ? program->times + (int64_t)thread * (program->count + 1) : NULL;
    walker w = {.run = r, .thread = thread, .range = thread % r->ranges, .times = times};
    int64_t units = 0;
    for (int32_t i = 0, begin = 0; i < program->count; i++) {
        if (program->ops[i].wait) wait_for(&w, begin, i, units), begin = i;
        take_units(&w, i, w.range);
        units += active->count_units(program, &program->ops[i]);
        if (i + 1 == program->count) wait_for(&w, begin, i + 1, units);
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

/* Whether the slots of a span exist, and those that its rows read are kept. */
static int has_slots(const gl_program *program, const gl_span *span) {
    const gl_states *states = program->states;
    int64_t stride = span->stride, first = span->first_slot, end = (first + span->rows + GL_PAGE - 1) / GL_PAGE;
    int64_t page = first / GL_PAGE, within = first % GL_PAGE;
    for (int32_t line = 0; line < GL_STATE_LINES; line++) {
        const int32_t *slots = span->pages + (program->groups + line) * stride;
        int32_t limit = line ? states->row_count : states->state_count;
        for (int64_t i = page > 0 ? page - 1 : 0; i < end; i++)
            if (slots[i] < -1 || slots[i] >= limit) return 0;
        if (line && line <= within && slots[page] < 0) return 0;
        if (!line && page > 0 && slots[page - 1] < 0) return 0;
    }
    return 1;
}

/* The last check before memory is touched: every token, position and adapter has a row in its table (a program with
 * adapters has a table with a row for each of them), every span lies within its page table, every row sees its own slot
 * and none beyond its span, and every page and every slot that is needed exists. */
static int find_fault(const gl_program *program, gl_fault *fault) {
    const gl_batch *batch = program->batch;
    *fault = (gl_fault){GL_FINE, 0, 0, 0};
    for (int32_t i = 0; i < program->count; i++) {
        const gl_op *op = &program->ops[i];
        if (op->kind != GL_EMBED) continue;
        static const int32_t wrong[] = {GL_WRONG_TOKEN, GL_WRONG_POSITION, GL_WRONG_ADAPTER};
        const int32_t *ids[] = {batch->tokens, batch->positions, batch->adapters};
        if (!ids[op->i0]) {
            *fault = (gl_fault){GL_WRONG_ADAPTER, 0, -1, (int32_t)op->matrix->out};
            return 1;
        }
        if (find_wrong(ids[op->i0], batch->rows, (int32_t)op->matrix->out, wrong[op->i0], fault)) return 1;
    }
    if (find_wrong(batch->wanted, batch->wanted_rows, batch->rows, GL_WRONG_WANTED, fault)) return 1;
    int64_t row = 0;
    for (int32_t i = 0; i < batch->spans; i++) {
        const gl_span *span = &batch->span[i];
        int64_t end = (int64_t)span->first_slot + span->rows;
        int outside = span->first_slot < 0 || end > (int64_t)span->stride * GL_PAGE;
        if (span->first_row != row || span->rows < 1 || outside) {
            *fault = (gl_fault){GL_WRONG_SPAN, i, span->first_slot, span->stride};
            return 1;
        }
        for (int64_t j = row; j < row + span->rows && j < batch->rows; j++) {
            int64_t slot = span->first_slot + j - row;
            if (!batch->reach && batch->positions[j] != slot) {
                *fault = (gl_fault){GL_WRONG_SPAN, i, batch->positions[j], span->stride};
                return 1;
            }
            if (batch->reach && (batch->reach[j] <= slot || batch->reach[j] > end)) {
                *fault = (gl_fault){GL_WRONG_REACH, (int32_t)j, batch->reach[j], (int32_t)end + 1};
                return 1;
            }
        }
        row += span->rows;
        for (int32_t group = 0; group < program->groups; group++)
            if (find_wrong(span->pages + (int64_t)group * span->stride, (int32_t)((end + GL_PAGE - 1) / GL_PAGE),
                           program->caches[group].pages, GL_WRONG_PAGE, fault)) {
                fault->at = i;
                return 1;
            }
        if (program->states && (batch->reach || !has_slots(program, span))) {
            *fault = (gl_fault){GL_WRONG_STATE, i, span->first_slot, 0};
            return 1;
        }
    }
    if (row != batch->rows) *fault = (gl_fault){GL_WRONG_SPAN, batch->spans, (int32_t)row, batch->rows};
    return row != batch->rows;
}

/* The memory that gl_run needs for the progress of some ops. */
int64_t gl_progress_bytes(int32_t ops) {
    return count_ranges() * (int64_t)(sizeof(finished) + counters(ops) * sizeof(int32_t)) + 64;
}

/* Returns 0 if the batch of a program has a fault. */
int gl_check(const gl_program *program, gl_fault *fault) { return !find_fault(program, fault); }

/* Runs a program. `memory` has gl_progress_bytes for its ops, `scratch` has `scratch_size` floats per thread. Returns
 * 0 if the batch has a fault; then nothing was computed. */
int gl_run(const gl_program *program, void *memory, float *scratch, int64_t scratch_size, gl_fault *fault) {
    if (find_fault(program, fault)) return 0;
    finished *all = (finished *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    memset(all, 0, gl_progress_bytes(program->count) - 64);
    int ranges = count_ranges();
    gl_parallel(run_thread, &(run){program, all, (int32_t *)(all + ranges), ranges, scratch, scratch_size});
    return 1;
}
