/* The native op set: the data that Python and the parts of the library exchange.
 *
 * A forward pass is recorded once, in Python, as a list of `gl_op`, and run for batches of any size. Matrices are
 * packed once (pack.c). Everything is plain data and raw pointers; the library does not depend on Python. Python
 * defines the same structures and numbers, and checks them against layout.c when it loads the library.
 */
#ifndef GLASSLOOP_NATIVE_H
#define GLASSLOOP_NATIVE_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#define GL_BLOCK 32 /* values that share an activation scale */
#define GL_PAGE 32  /* tokens in one page of the cache */

/* How a matrix is packed: in tiles of `lanes` outputs. A tile of a quantized matrix is a sequence of blocks of 32
 * inputs; a block has a scale for every lane (two where groups are of 16), a minimum for every lane if the format has
 * minimums, and the codes, four inputs of every lane at a time. Floats are packed as one vector of lanes per input.
 * Codes of GL_TABLE have four bits and are places in a table of 16 values. Those of GL_Q2 have two bits: with minimums
 * they stand for 0 … 3, without for -1 … 2, and all steps are 1 and not stored. */
enum gl_packing { GL_F32, GL_F16, GL_BF16, GL_Q4, GL_Q8, GL_TABLE, GL_Q2 };

/* How scales and minimums are stored: as floats, or as steps, which are whole numbers of a unit. Before each eight blocks
 * there is then a unit for every lane, in float16, and in a format with minimums another one for these. A step is a byte
 * with a sign; a minimum is one too, and is subtracted. In GL_Q2, scale and minimum share a byte: its low and high half.
 * With GL_SCALE_ZEROS, a scale is a float16, and in place of a minimum there is a byte: the code that stands for 0. */
enum gl_scale { GL_SCALE_F16, GL_SCALE_BF16, GL_SCALE_STEPS, GL_SCALE_ZEROS };
#define GL_UNIT_BLOCKS 8 /* blocks that share a unit */

typedef struct {
    const uint8_t *data;
    int64_t out, in;     /* sizes before padding: `out` to whole tiles, quantized `in` to whole blocks */
    int64_t tile_bytes;  /* bytes of one tile */
    int32_t packing;
    int32_t has_minimum; /* value = scale * code + minimum */
    int32_t scale;       /* enum gl_scale */
    int32_t half_groups; /* a scale for every 16 inputs, else for every 32 */
    float factor;        /* of GL_TABLE: what all scales are multiplied with, a power of two */
    int8_t table[16];    /* of GL_TABLE: the value of each code */
} gl_matrix;

/* Rows of a matrix to pack: all of them, or some whole tiles. */
typedef struct {
    const uint8_t *raw; /* the rows as stored, one after another */
    uint8_t *data;      /* memory for the packed tiles */
    const gl_matrix *matrix;
    int64_t rows, row_bytes;
    const uint8_t *grid; /* the points of the format's grid, a byte for each of their values; NULL if it has none */
    int32_t format;      /* GGUF's number */
    int32_t next;        /* the next tile to pack; 0 at first */
} gl_pack_job;

/* How the blocks of a format become those that pack.c moves to their lanes (unpack.c). */
typedef struct {
    int format, values, bytes, arranged; /* GGUF's number; of a stored block; bytes of what becomes of it */
    void (*arrange)(const uint8_t *stored, uint8_t *to, const uint8_t *grid);
} gl_reader;
const gl_reader *gl_reader_of(int format);

/* What an adapter adds to the product with one matrix: scale * up(down(x)). Both are matrices of floats, or NULL if the
 * adapter leaves the matrix as it is. */
typedef struct {
    const gl_matrix *down, *up; /* [rank, in], [out, rank] */
    float scale;
} gl_adapter;

enum gl_op_kind {
    GL_EMBED,     /* out = rows of a matrix, times f0; i0: by which ids (enum gl_ids) */
    GL_NORM,      /* i0: groups in a row, i1: 1 for layer norm; f0: eps */
    GL_LINEAR,    /* out = a @ matrix.T + bias, + b if there is one; i0: a is quantized finely */
    GL_DOWN,      /* out = a @ down.T, for rows that have an adapter */
    GL_UP,        /* out = b + scale * (a @ up.T), in place over b, for rows that have an adapter; i0: width of a */
    GL_ANGLES,    /* out = cos and sin of position * frequency, times f0; i0: half; if i1: and times
                   * 1 + f1 * log(1 + position / i1) */
    GL_ROTATE,    /* out = a rotated by the angles b; i0: heads, i1: half */
    GL_KEEP,      /* write keys a and values b of layer i0 to the cache */
    GL_ATTEND,    /* out = attention of a over layer i0; i1: heads, i2: window or 0; f0: scale, f1: softcap or 0; weight:
                   * a sink for each head, or NULL */
    GL_ACTIVATE,  /* out = activation i0 of a, times b if there is one */
    GL_ADD,       /* out = a + b */
    GL_SCALE,     /* out = a * f0 */
    GL_SOFTCAP,   /* out = tanh(a / f0) * f0 */
    GL_TAKE,      /* out = the wanted rows of a */
    GL_ROUTE,     /* out = the experts of each row, and their weights, by the logits a */
    GL_GROUP,     /* out = all pairs of a row and an expert by the routes a, sorted by expert; i0: chosen, i1: experts */
    GL_WEIGH,     /* out = a times each weight of the routes b, one after the other; i0: chosen */
    GL_EXPERTS_INNER, /* out = gated products of a with the first matrices of experts, for each pair of b */
    GL_EXPERTS_OUTER, /* out = weighted sums of the products of a with their last matrices, for each row */
    GL_QUANTIZE,  /* quantize a, for the linears that follow */
    GL_CONV       /* out = activation i2 of a convolution of a over the last i1 tokens; i0: layer */
};

enum gl_activation { GL_SILU, GL_GELU_TANH, GL_GELU, GL_RELU, GL_SIGMOID, GL_RELU2, GL_NONE };
/* How a router scores: see ops/routing.py. */
enum gl_scores { GL_SOFTMAX, GL_LOGISTIC, GL_CHOSEN, GL_MIXER };
enum gl_ids { GL_TOKENS, GL_POSITIONS, GL_ADAPTERS };

/* How a row chooses its experts. The numbers are within these bounds. */
#define GL_MOST_EXPERTS (1 << 14)
#define GL_MOST_CHOSEN 256
#define GL_MOST_GROUPS 256
typedef struct {
    int32_t experts, chosen, scores, normalized, groups, chosen_groups;
    float epsilon, factor, closeness;
    const float *choice_bias, *factors; /* [experts], or NULL */
} gl_routing;

/* The experts of a layer. */
typedef struct {
    const gl_matrix *gate, *up, *down;                    /* [count] */
    const float *gate_bias, *up_bias, *down_bias;         /* [count, outputs], or NULL */
    int32_t count, chosen, ffn, weigh_input, activation;
    float limit, slope, shift; /* limit: 0 for none */
} gl_experts;

typedef struct {
    int32_t kind;
    int32_t wait;      /* starts only when all ops before it are done */
    int32_t wanted;    /* works on the wanted rows only, not on all */
    int32_t quantize;  /* 1: also quantize the output, for the linears that follow; 2: finely */
    int32_t width;     /* of the output */
    int32_t a, b, out; /* buffers; -1: none */
    int32_t i0, i1, i2;
    int32_t group;          /* the group of layers whose cache it writes or reads */
    int32_t only_quantized; /* the output is never read as floats, so these are not written */
    float f0, f1;
    const gl_matrix *matrix;
    const float *weight, *bias;
    const gl_adapter *adapters; /* by the number that rows have; 0 is none */
    const gl_routing *routing;
    const gl_experts *experts;
} gl_op;

/* 32 values of a row, quantized. All that the kernels read of it lies together, so that they need one pointer per row. */
typedef struct {
    float scale, sum;   /* sum: of all codes */
    int32_t halves[2];  /* 128 times the sum of each 16 codes */
    int8_t codes[GL_BLOCK];
} gl_block;

/* A row of a quantized buffer is its blocks, the last one padded with zeros. */
static inline int64_t gl_blocks(int64_t width) { return (width + GL_BLOCK - 1) / GL_BLOCK; }

/* A buffer holds [rows, width] floats and, if a linear reads it, the same values quantized. */
typedef struct {
    float *values;
    gl_block *quantized;
} gl_buffer;

typedef struct {
    int32_t first_row, rows, first_slot;
    int32_t stride;
    const int32_t *pages; /* [groups, stride] page table of the branch, from slot 0. With recurrent layers there are
                           * GL_STATE_LINES more lines: for each page the slot of the state at its end, and those of
                           * the rows of its tokens; -1 where nothing is kept */
} gl_span;

#define GL_STATE_LINES (1 + GL_PAGE)

/* The slots of recurrent layers. */
typedef struct {
    float *states;           /* [state_count, layers, state] */
    float *rows;             /* [row_count, layers, row] */
    int64_t state, row;      /* floats of a layer */
    int32_t layers, state_count, row_count;
} gl_states;

/* Keys and values are integers of 16 bits, two in a word, with a scale for each key and each value. A word of keys has two
 * dimensions of a key, and a word of values has one dimension of two values, so that a vector of words holds what many
 * sums need next. */
typedef struct {
    int32_t *keys;   /* [pages, layers, kv heads, gl_key_rows, GL_PAGE]; the last rows are the scales of keys and values */
    int32_t *values; /* [pages, layers, kv heads, GL_PAGE / 2, padded head dim] */
    int32_t layers, kv_heads, head_dim, padded_head_dim;
    int32_t pages; /* number of pages */
} gl_cache;

static inline int32_t gl_pairs(int32_t head_dim) { return (head_dim + 1) / 2; }
static inline int32_t gl_key_rows(int32_t head_dim) { return gl_pairs(head_dim) + 2; }

typedef struct {
    int32_t rows, wanted_rows, spans;
    const int32_t *tokens, *positions, *wanted;
    const gl_span *span;
    const int32_t *adapters; /* of each row; NULL if no row has one */
    const int32_t *reach; /* how many slots of its branch a row sees; NULL: those up to its own, which is its position */
} gl_batch;

/* What one thread has spent on one op, in nanoseconds: on its units of work, and on waiting before it for other ops. */
typedef struct {
    int64_t working, waiting, units;
} gl_times;

typedef struct {
    const gl_op *ops;
    int32_t count;
    int32_t groups; /* of layers; the layers of a group have the same window */
    const gl_buffer *buffers;
    const gl_batch *batch;
    const gl_cache *caches; /* one for each group */
    const gl_states *states; /* NULL without recurrent layers */
    gl_times *times;        /* [threads, count + 1], to which a run adds; NULL: nothing is measured */
} gl_program;

/* Which number of a batch is out of range. The caller has checked the lengths of the arrays. */
enum gl_wrong { GL_FINE, GL_WRONG_TOKEN, GL_WRONG_POSITION, GL_WRONG_PAGE, GL_WRONG_WANTED, GL_WRONG_SPAN,
                GL_WRONG_ADAPTER, GL_WRONG_REACH, GL_WRONG_STATE };

typedef struct {
    int32_t wrong;        /* enum gl_wrong */
    int32_t at;           /* the row, or the span */
    int32_t found, limit; /* the number, and the limit that it must be below */
} gl_fault;

typedef struct {
    float value;
    int32_t id;
} gl_candidate;

/* Arrays of candidates in which `at_least` writes have room for so many more. */
#define GL_MORE 16

/* Bins of equal width into which typical-p puts tokens by their distance from the entropy; the last has all that are
 * farther. */
#define GL_BINS 2048
#define GL_BINS_PER_NAT 128.0

/* SplitMix64, the hash that luck is made from, and its last step by itself. */
#define GL_GOLDEN 0x9E3779B97F4A7C15u
static inline uint64_t gl_nearly_mix(uint64_t h) {
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    return (h ^ h >> 27) * 0x94D049BB133111EBu;
}
static inline uint64_t gl_end_mix(uint64_t h) { return h ^ h >> 31; }
static inline uint64_t gl_mix(uint64_t h) { return gl_end_mix(gl_nearly_mix(h)); }

/* What `gl_multiply` measures: products of bytes alone, with the scale of each block, with scale and minimum, or
 * products of floats. */
enum gl_limit { GL_PRODUCTS, GL_SCALED, GL_WITH_MINIMUM, GL_WORDS };

/* A chain of drafts of one branch: tokens that are drawn one after another, each from what was computed with the one
 * before it. It stops when the chance that all of its drafts are right becomes too small. */
#define GL_MOST_DRAFTS 8
#define GL_MARGINS 8 /* classes of margins, by which a draft led before the next token */
typedef struct {
    uint64_t branch_key; /* of the luck */
    int64_t position;    /* of the first draft */
    double scale;        /* of the logits */
    int64_t with_luck, most;
    double chance[GL_MARGINS];   /* that a draft with such a margin is right */
    double keep[GL_MOST_DRAFTS]; /* the least chance of a draft and all before it, for it to be kept */
    double next[GL_MOST_DRAFTS]; /* the same, for another one to be drawn after it */
    int64_t drawn, kept;         /* results */
    int32_t tokens[GL_MOST_DRAFTS], margins[GL_MOST_DRAFTS]; /* those that were drawn, and their classes */
} gl_chain;

/* The kernels of one instruction set. An op consists of units of work, which any thread may do in any order. */
typedef struct {
    const char *name;
    int lanes;
    int64_t (*count_units)(const gl_program *, const gl_op *);
    void (*run_unit)(const gl_program *, const gl_op *, int64_t unit, float *scratch);
    /* The weights that a range of an op's units reads in order, if it reads them once. Returns how many bytes. */
    int64_t (*weights)(const gl_program *, const gl_op *, int range, int ranges, const uint8_t **from);
    /* Asks for what a range of an op's units reads that other threads have computed. */
    void (*ask_for_rows)(const gl_program *, const gl_op *, int range, int ranges);
    /* Work on parts of a row of logits (rows.h). */
    float (*largest)(const float *logits, int64_t count);
    void (*sum_powers)(const float *logits, int64_t count, double most, double scale, double *sums);
    int64_t (*highest)(const float *logits, int64_t count, int64_t top, const float *maxima, int64_t group,
                       gl_candidate *heap);
    int64_t (*at_least)(const float *logits, int64_t count, float least, gl_candidate *found);
    int64_t (*alive)(const float *logits, int64_t count);
    void (*weigh)(const float *logits, int64_t count, double scale, double most, double *weights);
    void (*surprise)(const float *logits, int64_t count, double scale, double most, double log_total, double *surprises,
                     double *masses);
    void (*keep_close)(float *logits, int64_t count, double scale, double most, double log_total, double entropy,
                       double border);
    void (*bins)(const float *logits, int64_t count, double scale, double most, double log_total, double entropy,
                 uint16_t *bins);
    int64_t (*rank_of)(const float *logits, int64_t count, int64_t id);
    int64_t (*lucky_ids)(uint64_t key, int64_t first, int64_t end, uint64_t threshold, int32_t *ids, int64_t room);
    /* What this machine allows (limits.h). */
    int64_t (*multiply)(int64_t blocks, int32_t what);
    float (*read)(const float *from, int64_t count);
} gl_kernels;

const gl_kernels *gl_kernels_portable(void);
const gl_kernels *gl_kernels_avx2(void);
const gl_kernels *gl_kernels_avxvnni(void);
const gl_kernels *gl_kernels_avx512(void);
const gl_kernels *gl_kernels_neon(void);
const gl_kernels *gl_kernels_dotprod(void);
const gl_kernels *gl_kernels_i8mm(void);

/* The kernels of the selected instruction set. */
const gl_kernels *gl_active(void);

/* Calls `job` on the calling thread and on those threads of the pool that are free. Returns when all of these calls
 * have returned. The pool's threads need not join, so a job must be complete as soon as any one call returns. Called
 * from within a job, it calls the new job on the calling thread only. */
typedef void gl_job(void *argument, int thread);
void gl_parallel(gl_job *job, void *argument);
int gl_threads(void);

/* Runs units of work in any order on any thread; from within a unit, on the calling thread only. */
void gl_run_units(void (*run)(void *work, int64_t unit), void *work, int64_t units);

/* Sums over a row of logits; NaN if a logit is NaN or plus infinity. */
typedef struct {
    double log_sum_exp, entropy;
    double scaled;         /* log-sum-exp of the logits times a scale */
    double scaled_entropy; /* their entropy then */
} gl_sums;

/* Memory that a thread keeps (memory.c). Each purpose has its own piece; two of the same are never needed at a time. */
enum gl_purpose { GL_FOR_HEAD, GL_FOR_SUMS, GL_FOR_SORTING, GL_FOR_ROW, GL_FOR_EVERYONE, GL_FOR_MASSES, GL_FOR_BINS,
                  GL_PURPOSES };
void *gl_memory(enum gl_purpose purpose, size_t bytes);

/* Sorting logits (sorting.c). */
int gl_by_logit(const void *a, const void *b);
int64_t gl_count_before(const gl_candidate *head, int64_t count, gl_candidate one);
int64_t gl_place_of(const gl_candidate *head, int64_t count, gl_candidate one);
void gl_sort(gl_candidate *memory, gl_candidate *sorted, int64_t count, const float *logits);

/* Functions over rows of logits (rows.c). Those that return int return 0 if there is no memory. */
int gl_sum_up(const float *const *row, int64_t rows, int64_t count, int64_t top, const double *scales,
              gl_candidate *found, gl_sums *sums);
int64_t gl_find_highest(const float *logits, int64_t count, int64_t top, gl_candidate *found);
double gl_log_sum_exp(const float *logits, int64_t count, double scale);
void gl_sums_of(const float *logits, int64_t count, double scale, double *log_sum_exp, double *entropy);
int64_t gl_rank_of(const float *logits, int64_t count, int64_t id);
int gl_race_many(uint64_t key, const gl_candidate *head, int64_t count, const float *row, int64_t width, double scale,
                 int64_t *places, int32_t *winners, double *numbers);
int gl_race(uint64_t key, const int32_t *ids, const double *logits, int64_t count, const float *row, int64_t width,
             double scale, int64_t *places, int32_t *winners, double *numbers);
void gl_race_found(uint64_t key, const int32_t *ids, const double *logits, int64_t count, const gl_candidate *others,
                   int64_t other_count, double scale, int64_t *places, int32_t *winners, double *numbers);
void gl_luck_of(uint64_t key, const int32_t *ids, int64_t count, double *luck);
int64_t gl_parts(int64_t width);
void gl_add_parts(double most, const double *sums, int64_t stride, int64_t parts, double scale, double *log_sum_exp,
                  double *entropy);

/* Runs a program (program.c). */
int gl_run(const gl_program *program, void *memory, float *scratch, int64_t scratch_size, gl_fault *fault);

/* One step of waiting for another thread: spins at first, later gives up the core. */
static inline void gl_rest(int spins) {
    if (spins > 4000) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#elif defined(__aarch64__)
    else __asm__ volatile("yield");
#endif
}

#endif
