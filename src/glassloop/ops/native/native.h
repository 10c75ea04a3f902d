/* The native op set: what Python and the parts of the library say to each other.
 *
 * A forward pass is recorded once, in Python, as a list of `gl_op`, and run for any number of rows. Matrices are
 * packed once (pack.c). Everything is plain data and raw pointers; nothing here knows of Python.
 */
#ifndef GLASSLOOP_NATIVE_H
#define GLASSLOOP_NATIVE_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#define GL_BLOCK 32 /* values that share an activation scale */
#define GL_PAGE 32  /* tokens in one page of the cache */

/* How a matrix is packed. Tiles of `lanes` outputs; within a tile, blocks of 32 inputs, each a scale for every
 * lane (two of them where groups are of 16), a minimum where there is one, and the codes, four inputs of every
 * lane at a time. Floats are packed as one vector of lanes for each input. */
enum gl_packing { GL_F32, GL_F16, GL_BF16, GL_Q4, GL_Q8 };

typedef struct {
    const uint8_t *data;
    int64_t out, in;     /* real sizes; `out` is padded to whole tiles, quantized `in` to whole blocks */
    int64_t tile_bytes;  /* bytes of one tile */
    int32_t packing;
    int32_t has_minimum; /* value = scale * code + minimum */
    int32_t wide_scale;  /* scales and minimums are float32, else float16 */
    int32_t half_groups; /* a scale for every 16 inputs, else for every 32 */
} gl_matrix;

enum gl_kind {
    GL_EMBED,     /* out = rows `ids` of a matrix, times f0 */
    GL_NORM,      /* i0: groups in a row, i1: 1 for layer norm; f0: eps */
    GL_LINEAR,    /* out = a @ matrix.T + bias, + b if there is one; i0: a was quantized finely */
    GL_ANGLES,    /* out = cos and sin of position * frequency, times f0; i0: half */
    GL_ROTATE,    /* out = a turned by b; i0: heads, i1: half */
    GL_KEEP,      /* write keys a and values b of layer i0 to the cache */
    GL_ATTEND,    /* out = attention of a over layer i0; i1: heads, i2: window or 0; f0: scale, f1: softcap or 0 */
    GL_ACTIVATE,  /* out = activation i0 of a, times b if there is one */
    GL_ADD,       /* out = a + b */
    GL_SCALE,     /* out = a * f0 */
    GL_SOFTCAP,   /* out = tanh(a / f0) * f0 */
    GL_TAKE,      /* out = the wanted rows of a */
    GL_QUANTIZE   /* quantize a, for the linears that follow */
};

enum gl_activation { GL_SILU, GL_GELU_TANH, GL_GELU, GL_RELU };
enum gl_ids { GL_TOKENS, GL_POSITIONS };

typedef struct {
    int32_t kind;
    int32_t wait;      /* starts only when everything before it is done */
    int32_t wanted;    /* works on the wanted rows only, not on all */
    int32_t quantize;  /* 1: also quantize the output, for the linears that follow; 2: finely */
    int32_t width;     /* of the output */
    int32_t a, b, out; /* buffers; -1: none */
    int32_t i0, i1, i2;
    int32_t group;          /* whose cache it keeps in or attends to */
    int32_t only_quantized; /* nobody reads the output as floats: they need not be written */
    float f0, f1;
    const gl_matrix *matrix;
    const float *weight, *bias;
} gl_op;

/* A buffer is [rows, width] floats; beside it, where a linear reads it, the same quantized. */
typedef struct {
    float *values;
    uint8_t *quantized;
} gl_buffer;

typedef struct {
    int32_t first_row, rows, first_position;
    int32_t stride;
    const int32_t *pages; /* [groups, stride] of the branch, from position 0 */
} gl_span;

/* Keys lie transposed within a page, so that a vector is the same dimension of many keys. */
typedef struct {
    uint16_t *keys;   /* [pages, layers, kv heads, head dim, GL_PAGE] */
    uint16_t *values; /* [pages, layers, kv heads, GL_PAGE, padded head dim] */
    int32_t layers, kv_heads, head_dim, padded_head_dim;
    int32_t pages; /* how many there are */
} gl_cache;

typedef struct {
    int32_t rows, wanted_rows, spans;
    const int32_t *tokens, *positions, *wanted;
    const gl_span *span;
} gl_batch;

typedef struct {
    const gl_op *ops;
    int32_t count;
    int32_t groups; /* of layers: those with the same window */
    const gl_buffer *buffers;
    const gl_batch *batch;
    const gl_cache *caches; /* one for each group */
} gl_program;

/* What is wrong with a batch: a number out of range. The caller has seen to it that the arrays have their lengths. */
enum gl_wrong { GL_FINE, GL_WRONG_TOKEN, GL_WRONG_POSITION, GL_WRONG_PAGE, GL_WRONG_WANTED, GL_WRONG_SPAN };

typedef struct {
    int32_t wrong;        /* enum gl_wrong */
    int32_t at;           /* the row, or the span */
    int32_t found, limit; /* the number, and what it must be below */
} gl_fault;

/* What belongs to a block of 32 codes of a row, in the form in which the kernels read it. */
typedef struct {
    float scale, sum;   /* the sum is of all codes */
    int32_t halves[2];  /* 128 times the sums of 16 */
} gl_block;

/* One row of a quantized buffer: the codes, then a gl_block for each 32 of them. */
static inline int64_t gl_padded(int64_t width) { return (width + GL_BLOCK - 1) / GL_BLOCK * GL_BLOCK; }
static inline int64_t gl_quantized_bytes(int64_t width) {
    return gl_padded(width) + gl_padded(width) / GL_BLOCK * (int64_t)sizeof(gl_block);
}

typedef struct {
    float value;
    int32_t id;
} gl_candidate;

/* SplitMix64, from which luck comes, and its last step apart. */
#define GL_GOLDEN 0x9E3779B97F4A7C15u
static inline uint64_t gl_nearly_mix(uint64_t h) {
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    return (h ^ h >> 27) * 0x94D049BB133111EBu;
}
static inline uint64_t gl_end_mix(uint64_t h) { return h ^ h >> 31; }
static inline uint64_t gl_mix(uint64_t h) { return gl_end_mix(gl_nearly_mix(h)); }

/* The kernels of one instruction set. An op is so many units of work, done in any order by any thread. */
typedef struct {
    const char *name;
    int lanes;
    int64_t (*count_units)(const gl_program *, const gl_op *);
    void (*run_unit)(const gl_program *, const gl_op *, int64_t unit, float *scratch);
    /* Parts of a row of logits (vocabulary.h). */
    float (*largest)(const float *logits, int64_t count);
    void (*sum_powers)(const float *logits, int64_t count, double most, double scale, double *sums);
    int64_t (*highest)(const float *logits, int64_t count, int64_t top, const float *maxima, int64_t group,
                       gl_candidate *heap);
    int64_t (*rank_of)(const float *logits, int64_t count, int64_t id);
    int64_t (*lucky_ids)(uint64_t key, int64_t first, int64_t end, uint64_t threshold, int32_t *ids, int64_t room);
} gl_kernels;

const gl_kernels *gl_kernels_portable(void);
const gl_kernels *gl_kernels_avx2(void);
const gl_kernels *gl_kernels_avxvnni(void);
const gl_kernels *gl_kernels_avx512(void);

/* The chosen instruction set. */
const gl_kernels *gl_active(void);

/* Runs `job` on the threads of the pool. It returns when the caller's own call has returned and no other is under
 * way: a thread that was not free in time is not waited for, so a job must be done when any one call returns. From within
 * a job it is the caller alone who runs the other. */
typedef void gl_job(void *argument, int thread);
void gl_parallel(gl_job *job, void *argument);
int gl_threads(void);

/* Units of work, done in any order by any thread. From within a unit, by the thread that does it. */
void gl_run_units(void (*run)(void *work, int64_t unit), void *work, int64_t units);

/* Of a row of logits; NaN where one of them is NaN or plus infinity. */
typedef struct {
    double log_sum_exp, entropy;
    double scaled; /* log-sum-exp with the logits times a scale */
} gl_sums;

/* Rows of logits (vocabulary.c). A function that needs memory and does not get it returns 0. */
int gl_look(const float *const *row, int64_t rows, int64_t count, int64_t top, const double *scales, gl_candidate *found,
             gl_sums *sums);
int64_t gl_find_highest(const float *logits, int64_t count, int64_t top, gl_candidate *found);
double gl_log_sum_exp(const float *logits, int64_t count, double scale);
int64_t gl_rank_of(const float *logits, int64_t count, int64_t id);
int gl_race(uint64_t key, const int32_t *ids, const double *logits, int64_t count, const float *row, int64_t width,
             double scale, int64_t *places, int32_t *winners, double *numbers);

/* What waits for another thread: a moment busily, then it lets others have the core. */
static inline void gl_rest(int spins) {
    if (spins > 4000) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
}

#endif
