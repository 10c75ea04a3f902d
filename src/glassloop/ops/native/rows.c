/* The functions over rows of logits that decoding needs: the highest logits, sums over all of them, luck, the race.
 *
 * Wide rows are processed in parts by all threads. Where the parts begin depends on the width of the row alone, not
 * on the number of rows or threads, so every result is the same to the last bit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact.h"
#include "native.h"

#define PART 4096        /* logits in one unit of work: a few microseconds */
#define FEWEST_SHARED 4   /* fewer units than this are done by the calling thread alone */
#define MOST_GROUPS 1024  /* groups of a row; the maximum of each is kept to find the highest logits fast */
#define MANY 128          /* more of the highest logits than this are found by sorting */
#define FIRST_RACERS 256  /* of a long head are all looked at */
#define LUCKY 256         /* how many ids of a part are expected to pass the threshold of luck, at most */
#define SAMPLE 2048       /* logits of which it is guessed how high the highest are */
#define LOG2_E 1.4426950408889634
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Units of work that the threads share. */
typedef struct {
    void (*run)(void *work, int64_t unit);
    void *work;
    int64_t units, next;
} share;

static void take_units(void *argument, int thread) {
    (void)thread;
    share *s = argument;
    for (int64_t unit; (unit = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < s->units;) s->run(s->work, unit);
}

void gl_run_units(void (*run)(void *, int64_t), void *work, int64_t units) {
    share all = {run, work, units, 0};
    if (units >= FEWEST_SHARED) gl_parallel(take_units, &all);
    else take_units(&all, 0);
}

/* One pass over some rows, with its results. */
typedef struct {
    const float *const *row;
    int64_t rows, count, top;
    const double *scales;  /* [rows] a second scale for the sums, beside 1 */
    int64_t group, groups; /* logits in a group, and groups in a row */
    int64_t part, parts;   /* logits in a part (a multiple of the group), and parts in a row */
    float *maxima;         /* [rows, groups] */
    float *most;           /* [rows] */
    double *sums;          /* [rows, parts, 2] */
    double *scaled;        /* [rows, parts, 2] with the logits times the scale of their row */
    gl_candidate *found;   /* [rows, top] */
} sweep;

static sweep new_sweep(const float *const *row, int64_t rows, int64_t count, int64_t top, const double *scales,
                       gl_candidate *found) {
    sweep s = {row, rows, count, top, scales, .group = 64, .found = found};
    while (s.group * MOST_GROUPS < count) s.group *= 2;
    s.groups = (count + s.group - 1) / s.group;
    s.part = s.group > PART ? s.group : PART;
    s.parts = (count + s.part - 1) / s.part;
    return s;
}

static size_t sweep_bytes(const sweep *s) {
    return (size_t)s->rows * ((size_t)s->parts * 4 * sizeof(double) + (size_t)(s->groups + 1) * sizeof(float)) + 1;
}

/* Divides one piece of memory among the arrays, those with the largest alignment first. */
static void lay_out(sweep *s, double *memory) {
    s->sums = memory;
    s->scaled = s->sums + s->rows * s->parts * 2;
    s->maxima = (float *)(s->scaled + s->rows * s->parts * 2);
    s->most = s->maxima + s->rows * s->groups;
}

/* Memory for a single row, on the stack: it has at most MOST_GROUPS groups and as many parts. */
typedef struct {
    double numbers[MOST_GROUPS * 4 + (MOST_GROUPS + 2) / 2];
} one_row;

static void find_maxima(void *work, int64_t unit) {
    const sweep *s = work;
    int64_t row = unit / s->parts, begin = unit % s->parts * s->part, end = MIN(begin + s->part, s->count);
    for (int64_t i = begin; i < end; i += s->group)
        s->maxima[row * s->groups + i / s->group] =
            gl_active()->largest(s->row[row] + i, MIN(s->group, end - i));
}

/* Guesses a logit that at least `top` of a row reach, and not many more, from a sample. Uses `memory` and `sorted`. */
static float guess_least(const float *row, int64_t count, int64_t top, gl_candidate *memory, gl_candidate *sorted) {
    float sample[SAMPLE];
    int64_t step = count / SAMPLE, size = 0, wanted = top * SAMPLE / count;
    wanted += wanted / 4 + 16;
    if (!step || wanted > SAMPLE / 2) return -INFINITY;
    for (int64_t i = 0; i < SAMPLE; i++) sample[i] = row[i * step];
    size = gl_active()->at_least(sample, SAMPLE, -INFINITY, memory);
    gl_sort(memory, sorted, size, sample);
    return wanted < size ? sorted[wanted].value : -INFINITY;
}

/* Finds the `top` highest logits of a row by sorting those that are as high as a guess, or all if these are too few.
 * Returns how many were found, or -1 if there is no memory. */
static int64_t sort_highest(const float *row, int64_t count, int64_t top, gl_candidate *found) {
    size_t room = (size_t)MAX(count, SAMPLE) + GL_MORE;
    gl_candidate *memory = gl_memory(GL_FOR_SORTING, 2 * room * sizeof *memory);
    if (!memory) return -1;
    gl_candidate *sorted = memory + room;
    int64_t size = gl_active()->at_least(row, count, guess_least(row, count, top, memory, sorted), memory);
    if (size < top) size = gl_active()->at_least(row, count, -INFINITY, memory);
    gl_sort(memory, sorted, size, row);
    size = MIN(size, top);
    memcpy(found, sorted, size * sizeof *found);
    return size;
}

static int64_t find_top(const sweep *s, int64_t row, gl_candidate *found) {
    int64_t size = s->top > MANY ? sort_highest(s->row[row], s->count, s->top, found) : -1;
    if (size >= 0) return size;
    return gl_active()->highest(s->row[row], s->count, s->top, s->maxima + row * s->groups, s->group, found);
}

static void find_highest(void *work, int64_t row) {
    const sweep *s = work;
    gl_candidate *found = s->found + row * s->top;
    int64_t size = find_top(s, row, found);
    memset(found + size, 0, (s->top - size) * sizeof *found);
}

static void find_sums(void *work, int64_t unit) {
    const sweep *s = work;
    int64_t row = unit / s->parts, begin = unit % s->parts * s->part, count = MIN(s->part, s->count - begin);
    const float *logits = s->row[row] + begin;
    gl_active()->sum_powers(logits, count, s->most[row], LOG2_E, s->sums + 2 * unit);
    if (s->scales[row] != 1)
        gl_active()->sum_powers(logits, count, s->most[row], s->scales[row] * LOG2_E, s->scaled + 2 * unit);
}

static void find_scaled(void *work, int64_t part) {
    const sweep *s = work;
    int64_t begin = part * s->part;
    gl_active()->sum_powers(s->row[0] + begin, MIN(s->part, s->count - begin), s->most[0], s->scales[0] * LOG2_E,
                            s->scaled + 2 * part);
}

/* The units that take longest come first. */
static void find_both(void *work, int64_t unit) {
    const sweep *s = work;
    if (unit < s->rows) find_highest(work, unit);
    else find_sums(work, unit - s->rows);
}

static void find_most(sweep *s) {
    gl_run_units(find_maxima, s, s->rows * s->parts);
    for (int64_t row = 0; row < s->rows; row++)
        s->most[row] = gl_active()->largest(s->maxima + row * s->groups, s->groups);
}

/* Returns how many parts a row has. */
int64_t gl_parts(int64_t width) { return new_sweep(NULL, 1, width, 0, NULL, NULL).parts; }

/* Adds up the sums of the parts of one row, a pair every `stride` numbers, to its log-sum-exp and entropy, which are
 * NaN if a sum is NaN or the highest logit is plus infinity. */
void gl_add_parts(double most, const double *sums, int64_t stride, int64_t parts, double scale, double *log_sum_exp,
                  double *entropy) {
    double sum = 0, weighted = 0;
    for (int64_t part = 0; part < parts; part++) {
        sum += sums[part * stride];
        weighted += sums[part * stride + 1];
    }
    if (most == INFINITY) sum = NAN;
    *log_sum_exp = most * scale + gl_log(sum);
    *entropy = gl_log(sum) - weighted / sum / LOG2_E;
}

/* The log-sum-exp and entropy of one row, which are NaN if a logit is NaN or plus infinity. */
static void add_up(const sweep *s, int64_t row, const double *sums, double scale, double *log_sum_exp,
                   double *entropy) {
    if (s->most[row] == -INFINITY) { /* there is nothing to sum */
        *log_sum_exp = -INFINITY;
        *entropy = 0;
        for (int64_t i = 0; i < s->count; i++)
            if (isnan(s->row[row][i])) *log_sum_exp = *entropy = NAN;
    } else gl_add_parts(s->most[row], sums + 2 * row * s->parts, 2, s->parts, scale, log_sum_exp, entropy);
}

/* Finds the `top` highest logits of each row in order, ties by lower id, and the sums of each row. */
int gl_sum_up(const float *const *row, int64_t rows, int64_t count, int64_t top, const double *scales,
              gl_candidate *found, gl_sums *sums) {
    sweep s = new_sweep(row, rows, count, top, scales, found);
    double *memory = malloc(sweep_bytes(&s));
    if (!memory) return 0;
    lay_out(&s, memory);
    find_most(&s);
    gl_run_units(find_both, &s, rows + rows * s.parts);
    for (int64_t i = 0; i < rows; i++) {
        add_up(&s, i, s.sums, 1, &sums[i].log_sum_exp, &sums[i].entropy);
        if (scales[i] != 1) add_up(&s, i, s.scaled, scales[i], &sums[i].scaled, &sums[i].scaled_entropy);
        else sums[i].scaled = sums[i].log_sum_exp, sums[i].scaled_entropy = sums[i].entropy;
    }
    free(memory);
    return 1;
}

int gl_summarize(const float *logits, int64_t count, int64_t top, int32_t *ids, float *values, double *sums) {
    gl_candidate *found = calloc(top + 1, sizeof *found);
    gl_sums all;
    int done = found && gl_sum_up(&logits, 1, count, top, &(double){1}, found, &all);
    if (done) {
        for (int64_t i = 0; i < top; i++) ids[i] = found[i].id, values[i] = found[i].value;
        sums[0] = all.log_sum_exp;
        sums[1] = all.entropy;
    }
    free(found);
    return done;
}

/* Finds the `top` highest logits in order, ties by lower id. Returns how many were found. */
int64_t gl_find_highest(const float *logits, int64_t count, int64_t top, gl_candidate *found) {
    one_row memory;
    sweep s = new_sweep(&logits, 1, count, top, NULL, found);
    lay_out(&s, memory.numbers);
    find_most(&s);
    return find_top(&s, 0, found);
}

int gl_highest(const float *logits, int64_t count, int64_t top, int32_t *ids, float *values) {
    gl_candidate *found = calloc(top + 1, sizeof *found);
    if (!found) return 0;
    gl_find_highest(logits, count, top, found);
    for (int64_t i = 0; i < top; i++) ids[i] = found[i].id, values[i] = found[i].value;
    free(found);
    return 1;
}

/* Computes log-sum-exp and entropy of the logits times the scale. */
void gl_sums_of(const float *logits, int64_t count, double scale, double *log_sum_exp, double *entropy) {
    one_row memory;
    sweep s = new_sweep(&logits, 1, count, 0, &scale, NULL);
    lay_out(&s, memory.numbers);
    find_most(&s);
    gl_run_units(find_scaled, &s, s.parts);
    add_up(&s, 0, s.scaled, scale, log_sum_exp, entropy);
}

double gl_log_sum_exp(const float *logits, int64_t count, double scale) {
    double found, unused;
    gl_sums_of(logits, count, scale, &found, &unused);
    return found;
}

int64_t gl_rank_of(const float *logits, int64_t count, int64_t id) { return gl_active()->rank_of(logits, count, id); }

void gl_exp_each(const double *x, int64_t count, double *y) {
    for (int64_t i = 0; i < count; i++) y[i] = gl_exp(x[i]);
}

static uint64_t hash_of(uint64_t key, int32_t id) { return gl_mix(key + ((uint64_t)(uint32_t)id + 1) * GL_GOLDEN); }

static double luck_by(uint64_t hash) { return -gl_normal_log(-gl_normal_log(((double)(hash >> 12) + 0.5) * 0x1p-52)); }

void gl_luck_of(uint64_t key, const int32_t *ids, int64_t count, double *luck) {
    for (int64_t i = 0; i < count; i++) luck[i] = luck_by(hash_of(key, ids[i]));
}

typedef struct {
    uint64_t key, threshold;
    int64_t count, room; /* room: ids per unit */
    int32_t *ids;
    int64_t *found; /* [units] how many there are */
} search;

static void find_lucky(void *work, int64_t unit) {
    const search *s = work;
    int64_t first = unit * PART, end = MIN(first + PART, s->count);
    s->found[unit] = gl_active()->lucky_ids(s->key, first, end, s->threshold, s->ids + unit * s->room, s->room);
}

/* Finds the ids below `count` whose hash exceeds the threshold, in ascending order, in memory that the caller frees.
 * Returns how many there are, or -1 if there is no memory. */
static int64_t all_lucky_ids(uint64_t key, int64_t count, uint64_t threshold, int32_t **ids) {
    int64_t units = (count + PART - 1) / PART, total = 0, *found = malloc((size_t)units * sizeof *found + 1);
    *ids = NULL;
    if (!found) return -1;
    for (int64_t room = LUCKY; ; room = PART) { /* few pass; if a unit has more, a second round has room for all */
        *ids = malloc((size_t)(units * room) * sizeof **ids + 1);
        if (!*ids) break;
        gl_run_units(find_lucky, &(search){key, threshold, count, room, *ids, found}, units);
        int64_t most = 0;
        for (int64_t unit = 0; unit < units; unit++) most = found[unit] > most ? found[unit] : most;
        if (most <= room) {
            for (int64_t unit = 0; unit < units; total += found[unit++])
                memmove(*ids + total, *ids + unit * room, found[unit] * sizeof **ids);
            free(found);
            return total;
        }
        free(*ids);
    }
    free(found);
    return -1;
}

/* Returns a threshold that the hash of every id with more luck than `needed` exceeds: P(luck > g) = 1 -
 * exp(-exp(-g)). It is set slightly low (by a millionth of a nat, and by the 12 bits of the hash that luck does not
 * use), so rounding may let through a few ids too many but never loses one. */
static uint64_t hash_above(double needed) {
    double chance = needed < -4 ? 1 : -expm1(-exp(1e-6 - needed)), below = 0x1p64 * (1 - chance) - 0x1p13;
    return below > 0 ? (uint64_t)below : 0;
}

typedef struct {
    int64_t place;
    int32_t id;
    double logit, luck;
} racer;

static int beats(const racer *a, const racer *b) {
    double mine = a->logit + a->luck, theirs = b->logit + b->luck;
    return b->id < 0 || mine > theirs || (mine == theirs && a->id < b->id);
}

/* Returns whether it is one of the best two now. */
static int enter(racer *best, int64_t place, int32_t id, double logit, uint64_t hash) {
    racer new = {place, id, logit, luck_by(hash)};
    if (beats(&new, &best[0])) best[1] = best[0], best[0] = new;
    else if (beats(&new, &best[1])) best[1] = new;
    else return 0;
    return 1;
}

/* Returns a threshold for the hashes of ids that beat this racer with this logit or a lower one. */
static uint64_t hash_after(const racer *r, double logit) {
    return r->id < 0 ? 0 : hash_above(r->logit + r->luck - logit);
}

static void enter_head(racer *best, uint64_t key, const int32_t *ids, const double *logits, int64_t count) {
    /* To beat the second so far, an id needs more luck than its logit is behind; ids with lower logits need more. */
    uint64_t threshold = 0;
    for (int64_t i = 0, look_at = 2; i < count; i++) {
        if (i == look_at) threshold = hash_after(&best[1], logits[i]), look_at *= 2;
        uint64_t hash = hash_of(key, ids[i]);
        if (hash >= threshold) enter(best, i, ids[i], logits[i], hash);
    }
}

static void write_race(const racer *best, int64_t *places, int32_t *winners, double *numbers) {
    for (int i = 0; i < 2; i++) {
        places[i] = best[i].place;
        winners[i] = best[i].id;
        numbers[2 * i] = best[i].logit;
        numbers[2 * i + 1] = best[i].luck;
    }
}

/* The same as `gl_race`, with all tokens beside the `count` ids that may be first or second, none of which is an id. */
void gl_race_found(uint64_t key, const int32_t *ids, const double *logits, int64_t count, const gl_candidate *others,
                   int64_t other_count, double scale, int64_t *places, int32_t *winners, double *numbers) {
    racer best[2] = {{0, -1, 0, 0}, {0, -1, 0, 0}};
    enter_head(best, key, ids, logits, count);
    for (int64_t i = 0; i < other_count; i++)
        enter(best, count + i, others[i].id, (double)others[i].value * scale, hash_of(key, others[i].id));
    write_race(best, places, winners, numbers);
}

/* Finds the two highest of logit + luck, ties by lower id, among `count` ids with descending logits and, if `row` is
 * not NULL, all other tokens of the row. Their logits are row[id] * scale, minus infinity if they were removed, and
 * none is above the last of the `count`; their places are `count` or more. With a row, `count` is at least 1. An id
 * of -1 means that there is no such racer. Writes two places, two ids, and logit and luck of both. Returns 0 if there
 * is no memory. */
int gl_race(uint64_t key, const int32_t *ids, const double *logits, int64_t count, const float *row, int64_t width,
             double scale, int64_t *places, int32_t *winners, double *numbers) {
    racer best[2] = {{0, -1, 0, 0}, {0, -1, 0, 0}};
    enter_head(best, key, ids, logits, count);
    if (row) {
        double last = logits[count - 1];
        int32_t *lucky;
        int64_t found = all_lucky_ids(key, width, hash_after(&best[1], last), &lucky);
        if (found < 0) return 0;
        uint64_t threshold = 0;
        for (int64_t i = 0; i < found; i++) {
            double logit = (double)row[lucky[i]] * scale;
            uint64_t hash = hash_of(key, lucky[i]);
            if (hash < threshold) continue;
            int known = logit > last || logit == -INFINITY;
            for (int64_t j = count - 1; j >= 0 && !known && logits[j] == logit; j--) known = ids[j] == lucky[i];
            if (!known && enter(best, count + i, lucky[i], logit, hash)) threshold = hash_after(&best[1], last);
        }
        free(lucky);
    }
    write_race(best, places, winners, numbers);
    return 1;
}

/* The same as `gl_race` among all tokens of a long sorted head, whose logits the row has too: only those with enough luck
 * are looked at. */
int gl_race_many(uint64_t key, const gl_candidate *head, int64_t count, const float *row, int64_t width, double scale,
                 int64_t *places, int32_t *winners, double *numbers) {
    racer best[2] = {{0, -1, 0, 0}, {0, -1, 0, 0}};
    int32_t ids[FIRST_RACERS], *lucky;
    double logits[FIRST_RACERS];
    int64_t first = MIN(count, FIRST_RACERS);
    for (int64_t i = 0; i < first; i++) ids[i] = head[i].id, logits[i] = (double)head[i].value * scale;
    enter_head(best, key, ids, logits, first);
    uint64_t threshold = hash_after(&best[1], logits[first - 1]);
    int64_t found = all_lucky_ids(key, width, threshold, &lucky);
    if (found < 0) return 0;
    for (int64_t i = 0; i < found; i++) {
        uint64_t hash = hash_of(key, lucky[i]);
        if (hash < threshold) continue;
        int64_t place = gl_place_of(head, count, (gl_candidate){row[lucky[i]], lucky[i]});
        if (place >= first && enter(best, place, lucky[i], (double)head[place].value * scale, hash))
            threshold = hash_after(&best[1], logits[first - 1]);
    }
    free(lucky);
    write_race(best, places, winners, numbers);
    return 1;
}
