/* The choice of a token for each of some rows of logits: what its stages ask for, one rule after another, then the race,
 * then the numbers of the record. `decode/candidates.py` says the same in NumPy.
 *
 * Only the highest logits are ever sorted. A question that they cannot settle for certain takes more of the row, in the
 * end all of it.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

#define FIRST_HEAD 64  /* how many are sorted at first */
#define FEWEST 16      /* a head that changes have left shorter is sorted anew */
#define GROWTH 8       /* and how many times as many when that was not enough */
#define SLACK 1e-9     /* two probability masses that are closer than this are equal: rounding never decides a cut */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Why no token was chosen, in the place of its id (choosing.py has the same). */
enum { NOBODY_LEFT = -1, WRONG_RULE = -2, NO_MEMORY = -3 };

/* What a stage does to the logits of a row; ops/rules.py has the same. */
enum { DIVIDE, LESS, REMOVE, KEEP, SCALE, FIRST, MASS, SHARE, PROBABILITY };

typedef struct {
    int64_t kind, count;
    double amount;
    const void *which;      /* ids, or for KEEP a byte for each token */
    const double *numbers;  /* by which the amount is multiplied, or NULL */
} rule;

/* What is asked of a row. */
typedef struct {
    int64_t head;         /* how many of the highest to sort at first, no more than there are */
    double scale;         /* at which the rules will ask for the log-sum-exp of the row as it came; or 1 */
    const rule *rules;
    int64_t count;
    uint64_t branch;      /* the key of its luck */
    int64_t lucky;        /* whether luck has a part in it */
    int64_t wanted;       /* how many of the highest are to be recorded, at most `head` */
} asked;

typedef struct {
    const asked *asked;
    float *logits;        /* ours while it lasts, and then as they were */
    int64_t position;     /* of the token to choose */
} line;

/* What is known of it. */
typedef struct {
    const gl_candidate *highest; /* `head` of them, in order */
    gl_sums sums;
} known;

/* Those who are still in the race. */
typedef struct {
    const asked *asked;
    const known *known;
    float *logits;       /* the caller's */
    int64_t width;
    float *row;          /* every logit as the rules have left it, but for the scale; minus infinity: out */
    float *own;          /* its memory where it is not the caller's */
    double scale;
    gl_candidate *head;  /* the highest in order, none of them out; while not `sorted`, who may be among them */
    int64_t size, room;
    int sorted, complete; /* the head is all there are */
    int listed;          /* only the head is left, whatever the row says */
    int touched;         /* a logit was changed */
    int fault;           /* WRONG_RULE or NO_MEMORY: nothing else here means anything */
    float least;         /* while not sorted: nobody outside the head is above this */
    struct change {
        int32_t id;
        float before;
    } *changes;          /* of the caller's row, to be taken back */
    int64_t changed, changes_room;
} field;

/* 0: there is no memory, and the field has a fault. */
static int make_room(field *f, int64_t wanted) {
    if (wanted <= f->room) return 1;
    gl_candidate *head = realloc(f->head, (size_t)wanted * sizeof *head);
    if (!head) {
        f->fault = NO_MEMORY;
        return 0;
    }
    f->head = head;
    f->room = wanted;
    return 1;
}

static void set_head(field *f, int64_t found, int64_t looked_for) {
    while (found && f->head[found - 1].value == -INFINITY) found--;
    f->size = found;
    f->complete = found < looked_for || found == f->width;
    f->sorted = 1;
}

static field new_field(const line *l, const known *k, int64_t width) {
    int64_t size = l->asked->head;
    field f = {.asked = l->asked, .known = k, .logits = l->logits, .width = width, .row = l->logits, .scale = 1};
    if (!make_room(&f, MAX(size, 1))) return f;
    memcpy(f.head, k->highest, size * sizeof *f.head);
    set_head(&f, size, size);
    return f;
}

/* The caller has its row as it was. */
static void end_field(field *f) {
    for (int64_t i = f->changed - 1; i >= 0; i--) f->logits[f->changes[i].id] = f->changes[i].before;
    free(f->head);
    free(f->own);
    free(f->changes);
}

/* For qsort: descending, ties by lower id. */
static int by_logit(const void *a, const void *b) {
    const gl_candidate *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Nobody outside was above `least`. So whoever is above it now, of the head and of those that moved, comes before all
 * others; who is level with it may not, and is left out. */
static void sort_head(field *f) {
    int64_t size = 0, kept = 0;
    for (int64_t i = 0; i < f->size; i++) {
        int32_t id = f->head[i].id;
        if (f->row[id] > f->least) f->head[size++] = (gl_candidate){f->row[id], id};
    }
    qsort(f->head, size, sizeof *f->head, by_logit);
    for (int64_t i = 0; i < size; i++)
        if (!kept || f->head[i].id != f->head[kept - 1].id) f->head[kept++] = f->head[i];
    f->size = kept;
    f->sorted = 1;
}

/* At least so many in order, or all there are. */
static void grow(field *f, int64_t count) {
    if (!f->sorted) sort_head(f);
    if (f->complete || f->size >= count) return;
    int64_t top = MIN(MAX(count, FIRST_HEAD), f->width);
    if (!make_room(f, top)) return;
    set_head(f, gl_find_highest(f->row, f->width, top, f->head), top);
}

static double logit_at(const field *f, int64_t place) { return (double)f->head[place].value * f->scale; }

static double log_sum_exp(const field *f) {
    if (!f->listed && !f->touched && f->scale == 1) return f->known->sums.log_sum_exp;
    if (!f->listed && !f->touched && f->scale == f->asked->scale) return f->known->sums.scaled;
    if (!f->listed) return gl_log_sum_exp(f->row, f->width, f->scale);
    double most = logit_at(f, 0), sum = 0;
    for (int64_t i = 0; i < f->size; i++) sum += exp(logit_at(f, i) - most);
    return most + log(sum);
}

static void touch(field *f) {
    if (f->sorted) f->least = f->complete || !f->size ? -INFINITY : f->head[f->size - 1].value;
    f->sorted = 0;
    f->touched = 1;
}

/* Whether the ids of a rule are all ids of the row. */
static int has_ids(field *f, const rule *r) {
    const int32_t *ids = r->which;
    for (int64_t i = 0; i < r->count; i++)
        if ((uint32_t)ids[i] >= (uint64_t)f->width) f->fault = WRONG_RULE;
    return !f->fault;
}

/* Room to note so many more changes. */
static int may_change(field *f, int64_t count) {
    if (f->own || f->changed + count <= f->changes_room) return 1;
    int64_t room = MAX(f->changed + count, 2 * f->changes_room + 256);
    struct change *changes = realloc(f->changes, (size_t)room * sizeof *changes);
    if (!changes) {
        f->fault = NO_MEMORY;
        return 0;
    }
    f->changes = changes;
    f->changes_room = room;
    return 1;
}

static void put(field *f, int32_t id, float value) {
    if (!f->own) f->changes[f->changed++] = (struct change){id, f->row[id]};
    f->row[id] = value;
}

/* Some logits anew. Who is out stays out, and nobody is put out by being moved, however far. */
static void move(field *f, const rule *r) {
    const int32_t *ids = r->which;
    if (!has_ids(f, r) || !may_change(f, r->count) || !make_room(f, f->size + r->count)) return;
    touch(f);
    for (int64_t i = 0; i < r->count; i++) {
        float before = f->row[ids[i]];
        double logit = (double)before * f->scale;
        if (r->kind == LESS) logit -= r->numbers ? r->amount * r->numbers[i] : r->amount;
        else logit = logit >= 0 ? logit / r->amount : logit * r->amount;
        if (f->scale != 1) logit /= f->scale;
        logit = MIN(MAX(logit, -FLT_MAX), FLT_MAX);
        put(f, ids[i], before == -INFINITY ? before : (float)logit);
        if (!f->listed) f->head[f->size++].id = ids[i];
    }
}

static void drop(field *f, const rule *r) {
    const int32_t *ids = r->which;
    if (!has_ids(f, r) || !may_change(f, r->count)) return;
    touch(f);
    for (int64_t i = 0; i < r->count; i++) put(f, ids[i], -INFINITY);
}

static void keep(field *f, const rule *r) {
    const uint8_t *allowed = r->which;
    if (r->count != f->width) {
        f->fault = WRONG_RULE;
        return;
    }
    if (!f->own) {
        f->own = malloc((size_t)f->width * sizeof *f->own);
        if (!f->own) {
            f->fault = NO_MEMORY;
            return;
        }
        memcpy(f->own, f->row, f->width * sizeof *f->own);
        f->row = f->own;
    }
    touch(f);
    for (int64_t i = 0; i < f->width; i++) f->row[i] = allowed[i] ? f->row[i] : -INFINITY;
}

static void keep_first(field *f, int64_t count) {
    grow(f, count);
    if (f->complete && f->size <= count) return;
    f->size = MIN(f->size, count);
    f->complete = f->listed = 1;
}

/* Those with this logit or a higher one; the highest, and who ties with it, in any case. */
static void keep_from(field *f, double logit) {
    logit = MIN(logit, logit_at(f, 0));
    while (!f->complete && logit_at(f, f->size - 1) >= logit) {
        grow(f, f->size * GROWTH);
        if (f->fault) return;
    }
    int64_t count = f->size;
    while (logit_at(f, count - 1) < logit) count--;
    keep_first(f, count);
}

/* The highest that together have this much of the probability: as few as will do. */
static void keep_mass(field *f, double mass) {
    for (;;) {
        double most = logit_at(f, 0), total = 0, reached = 0;
        if (f->complete)
            for (int64_t i = 0; i < f->size; i++) total += exp(logit_at(f, i) - most);
        else total = exp(log_sum_exp(f) - most);
        int64_t enough = 0;
        for (; enough < f->size; enough++)
            if ((reached += exp(logit_at(f, enough) - most)) >= (mass - SLACK) * total) break;
        if (enough < f->size || f->complete) {
            keep_first(f, enough + 1);
            return;
        }
        grow(f, f->size * GROWTH);
        if (f->fault) return;
    }
}

/* A number of tokens, as a rule has it. */
static int64_t count_of(const field *f, double amount) {
    if (!(amount > 0)) return 0;
    return amount < (double)f->width ? (int64_t)amount : f->width;
}

static void follow(field *f, const rule *r) {
    switch (r->kind) {
    case DIVIDE:
    case LESS:
        if (r->count) move(f, r);
        return;
    case REMOVE:
        if (r->count) drop(f, r);
        return;
    case KEEP: keep(f, r); return;
    case SCALE: f->scale *= r->amount; return;
    }
    grow(f, r->kind == FIRST ? count_of(f, r->amount) : FEWEST);
    if (f->fault || !f->size) return; /* nobody is left; the caller will see */
    switch (r->kind) {
    case FIRST: keep_first(f, count_of(f, r->amount)); return;
    case MASS: keep_mass(f, r->amount); return;
    case SHARE: keep_from(f, logit_at(f, 0) + log(r->amount)); return;
    case PROBABILITY: keep_from(f, log_sum_exp(f) + log(r->amount) - SLACK); return;
    default: f->fault = WRONG_RULE;
    }
}

/* The field after the first `count` rules. */
static field field_after(const line *l, const known *k, int64_t width, int64_t count) {
    field f = new_field(l, k, width);
    for (int64_t i = 0; i < count && !f.fault; i++) follow(&f, &l->asked->rules[i]);
    if (!f.fault) grow(&f, FEWEST);
    return f;
}

/* One of the highest, and its log-probabilities: when all rules were followed, and the model's own. */
typedef struct {
    int64_t id;
    double after, raw;
} alternative;

/* What is told of the choice; ops/rules.py says what the numbers mean. */
typedef struct {
    int64_t id; /* below 0: there is none, and this is why */
    double logprob, raw_logprob;
    int64_t rank, rank_after;
    double entropy, log_sum_exp, log_sum_exp_after, scale, luck, margin;
    int64_t runner_up; /* -1: nobody */
    int64_t survivors; /* -1: not counted */
    alternative alternatives[];
} chosen;

typedef struct {
    const line *lines;
    const known *known;
    int64_t width;
    char *made;
    int64_t size; /* of one that is made */
} choosing;

static void race(field *f, int64_t position, chosen *d, int64_t *place, double *logit) {
    *place = 0;
    *logit = logit_at(f, 0);
    d->id = f->head[0].id;
    d->runner_up = f->size > 1 ? f->head[1].id : -1;
    d->luck = 0;
    d->margin = f->size > 1 ? *logit - logit_at(f, 1) : INFINITY;
    if (!f->asked->lucky) return;
    uint64_t key = gl_mix(f->asked->branch + GL_GOLDEN + (uint64_t)position);
    double *logits = malloc((size_t)f->size * (sizeof(double) + sizeof(int32_t))), numbers[4];
    if (!logits) {
        f->fault = NO_MEMORY;
        return;
    }
    int32_t *ids = (int32_t *)(logits + f->size), winners[2];
    int64_t places[2];
    for (int64_t i = 0; i < f->size; i++) ids[i] = f->head[i].id, logits[i] = logit_at(f, i);
    if (!gl_race(key, ids, logits, f->size, f->complete ? NULL : f->row, f->width, f->scale, places, winners, numbers))
        f->fault = NO_MEMORY;
    free(logits);
    if (f->fault) return;
    *place = places[0];
    *logit = numbers[0];
    d->id = winners[0];
    d->runner_up = winners[1];
    d->luck = numbers[1];
    d->margin = winners[1] < 0 ? INFINITY : numbers[0] + numbers[1] - (numbers[2] + numbers[3]);
}

static double logit_of(const field *f, int32_t id) {
    if (!f->listed) return (double)f->row[id] * f->scale;
    for (int64_t i = 0; i < f->size; i++)
        if (f->head[i].id == id) return logit_at(f, i);
    return -INFINITY;
}

static void choose(void *work, int64_t row) {
    const choosing *c = work;
    const line *l = &c->lines[row];
    const asked *of = l->asked;
    const known *k = &c->known[row];
    chosen *d = (chosen *)(c->made + row * c->size);
    d->id = NOBODY_LEFT;
    d->entropy = k->sums.entropy;
    d->log_sum_exp = k->sums.log_sum_exp;
    if (isnan(d->log_sum_exp)) return;
    field f = field_after(l, k, c->width, of->count);
    int64_t place;
    double logit;
    if (!f.fault && f.size) race(&f, l->position, d, &place, &logit);
    if (f.fault) d->id = f.fault;
    else if (f.size) {
        d->log_sum_exp_after = log_sum_exp(&f);
        d->logprob = logit - d->log_sum_exp_after;
        d->scale = f.scale;
        d->survivors = f.complete ? f.size : -1;
        d->rank_after = 1 + (place < f.size ? place : gl_rank_of(f.row, f.width, d->id));
        for (int64_t i = 0; i < of->wanted; i++) {
            gl_candidate one = k->highest[i];
            d->alternatives[i] = (alternative){
                one.id, logit_of(&f, one.id) - d->log_sum_exp_after, (double)one.value - d->log_sum_exp};
        }
    }
    end_field(&f);
    if (d->id < 0) return;
    int64_t rank = 0;
    while (rank < of->head && k->highest[rank].id != d->id) rank++;
    d->rank = 1 + (rank < of->head ? rank : gl_rank_of(l->logits, c->width, d->id));
    d->raw_logprob = (double)l->logits[d->id] - d->log_sum_exp;
}

/* What is known of some rows, in memory that the caller frees; NULL: there is none. */
static known *know(const line *lines, int64_t count, int64_t width) {
    int64_t top = 0;
    if (count < 1) return NULL;
    for (int64_t i = 0; i < count; i++) top = MAX(top, lines[i].asked->head);
    known *all = calloc(count, sizeof *all + sizeof(gl_sums) + sizeof(double) + sizeof(float *) + top * sizeof(gl_candidate));
    if (!all) return NULL;
    gl_sums *sums = (gl_sums *)(all + count);
    double *scales = (double *)(sums + count);
    const float **logits = (const float **)(scales + count);
    gl_candidate *found = (gl_candidate *)(logits + count);
    for (int64_t i = 0; i < count; i++) logits[i] = lines[i].logits, scales[i] = lines[i].asked->scale;
    if (!gl_look(logits, count, width, top, scales, found, sums)) {
        free(all);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) all[i] = (known){found + i * top, sums[i]};
    return all;
}

/* Each row on its own: whatever the others ask for, and whichever thread does it, the answer is the same. 0: there is no
 * memory. */
int gl_choose_rows(const line *lines, int64_t count, int64_t width, char *made, int64_t size) {
    known *all = know(lines, count, width);
    if (!all) return 0;
    gl_run_units(choose, &(choosing){lines, all, width, made, size}, count);
    free(all);
    return 1;
}

/* Who is left after some rules of a row. */
typedef struct {
    int64_t complete, listed;
    double scale, log_sum_exp;
} left;

/* For somebody who looks on, and who has the highest of the row and its log-sum-exp. After the first `count` rules: the
 * head in order, at most `room` of it, and the row (minus infinity: out) if it is not the head alone. How long the head
 * is, or below 0 why that is not known. */
int64_t gl_left(const asked *of, float *logits, int64_t width, int64_t count, const int32_t *highest_ids,
                const float *highest, double log_sum_exp_before, int64_t room, int32_t *ids, float *values, float *row,
                left *told) {
    gl_candidate *known_highest = malloc((size_t)of->head * sizeof *known_highest + 1);
    if (!known_highest) return NO_MEMORY;
    for (int64_t i = 0; i < of->head; i++) known_highest[i] = (gl_candidate){highest[i], highest_ids[i]};
    known k = {known_highest, {.log_sum_exp = log_sum_exp_before, .scaled = log_sum_exp_before}};
    field f = field_after(&(line){of, logits, 0}, &k, width, count);
    int64_t size = f.fault ? f.fault : f.size;
    for (int64_t i = 0; i < MIN(size, room); i++) ids[i] = f.head[i].id, values[i] = f.head[i].value;
    *told = (left){f.complete, f.listed, f.scale, size > 0 ? log_sum_exp(&f) : -INFINITY};
    if (!f.fault && !f.listed) memcpy(row, f.row, width * sizeof *row);
    end_field(&f);
    free(known_highest);
    return size;
}
