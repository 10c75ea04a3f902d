/* The rules about the shape of the distribution: which of the survivors they keep. `decode/candidates.py`
 * defines the same in NumPy. Those that look at every survivor are in shape.c.
 *
 * A cut first looks at the sorted head. Where that is not enough, all tokens that it may keep are sorted at once.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"
#include "exact.h"

#define GROWTH 8 /* how many times as many are sorted when the head was not enough */

/* The amount of a rule as a number of tokens. */
int64_t count_of(const candidates *c, double amount) {
    if (!(amount > 0)) return 0;
    return amount < (double)c->width ? (int64_t)amount : c->width;
}

static void keep_first(candidates *c, int64_t count) {
    grow(c, count);
    if (c->complete && c->size <= count) return;
    c->size = MIN(c->size, count);
    c->summed = MIN(c->summed, c->size);
    c->complete = c->listed = 1;
}

/* Finds all tokens of the row that have this logit or a higher one, and perhaps a few lower ones, with ascending ids. They
 * are in memory that is kept for sorting; NULL, and the failure is noted, if there is none. */
static gl_candidate *find_from(candidates *c, double logit, int64_t *count) {
    gl_candidate *found = gl_memory(GL_FOR_SORTING, ((size_t)c->width + GL_MORE) * sizeof *found);
    float least = (float)(logit / c->scale);
    /* Rounding has moved it by less than this. */
    least = isfinite(least) ? nextafterf(nextafterf(least, -INFINITY), -INFINITY) : -INFINITY;
    if (found) *count = gl_active()->at_least(c->row, c->width, MAX(least, -FLT_MAX), found);
    else c->failure = GL_NO_MEMORY;
    return found;
}

/* Sorts all tokens of the row that have this logit or a higher one, and perhaps a few lower ones, which become the head.
 * If these are more than `most`, all tokens are sorted. Returns how many tokens the row has, or 0, and notes the
 * failure, if there is no memory. */
static int64_t sort_from(candidates *c, double logit, int64_t most) {
    int64_t alive = gl_active()->alive(c->row, c->width), count;
    gl_candidate *found = find_from(c, logit, &count);
    if (found && count > most && count < alive) found = find_from(c, -INFINITY, &count);
    if (!found || !make_room(c, count)) return 0;
    gl_sort(found, c->head, count, c->row);
    c->size = count;
    return alive;
}

/* How many of the first `count` tokens of the head have this logit or a higher one. */
int64_t reaching(const candidates *c, int64_t count, double logit) {
    int64_t low = 0;
    while (low < count) {
        int64_t middle = (low + count) / 2;
        if (head_logit(c, middle) < logit) count = middle;
        else low = middle + 1;
    }
    return low;
}

/* Keeps the tokens with this logit or a higher one, and in any case the highest and all that equal it. */
void keep_from(candidates *c, double logit) {
    logit = MIN(logit, head_logit(c, 0));
    while (!c->row && !c->complete && head_logit(c, c->size - 1) >= logit) {
        grow(c, c->size * GROWTH);
        if (c->failure) return;
    }
    if (!c->complete && head_logit(c, c->size - 1) >= logit) {
        c->complete = sort_from(c, logit, c->width) == c->size;
        if (c->failure) return;
    }
    keep_first(c, reaching(c, c->size, logit));
}

/* The place of the first of these ascending sums that is at least so much, or their count. */
static int64_t first_with(const double *sums, int64_t count, double wanted) {
    int64_t low = 0;
    while (low < count) {
        int64_t middle = (low + count) / 2;
        if (sums[middle] >= wanted) count = middle;
        else low = middle + 1;
    }
    return low;
}

/* The rest of `keep_mass` for a row of which the sorted head has less than this share of the `total`. */
static void keep_more_mass(candidates *c, double share, double total) {
    int64_t size = c->size, largest = size, enough;
    while (largest * GROWTH < c->width) largest *= GROWTH;
    /* Tokens below this logit have together less than the rest of the total. */
    double least = head_logit(c, 0) + gl_log((1 - share) * total / (double)c->width) - 1e-3;
    for (;; least = -INFINITY) {
        int64_t alive = sort_from(c, least, largest);
        const double *sums = c->failure ? NULL : sums_of(c);
        if (!sums) return;
        enough = first_with(sums, c->size, share * total);
        if (enough == c->size && c->size < alive) continue;
        /* The head grows step by step in the definition. When it has become complete, its own sum is the total. */
        do size = MIN(MAX(size * GROWTH, FIRST_HEAD), c->width);
        while (enough >= MIN(size, alive) && size <= alive && size < c->width);
        if (alive >= size && size < c->width) break;
        if (c->size < alive) continue;
        c->complete = 1;
        enough = first_with(sums, alive, share * sums[alive - 1]);
        break;
    }
    keep_first(c, enough + 1);
}

/* Keeps the fewest of the highest that together have this much of the probability. */
static void keep_mass(candidates *c, double mass) {
    double most = head_logit(c, 0), share = mass - SLACK;
    for (;;) {
        const double *sums = sums_of(c);
        double total = !sums ? NAN : c->complete ? sums[c->size - 1] : gl_exp(log_sum_exp_of(c) - most);
        if (c->failure) return;
        int64_t enough = first_with(sums, c->size, share * total);
        if (enough < c->size || c->complete) {
            keep_first(c, enough + 1);
            return;
        }
        if (c->row) {
            keep_more_mass(c, share, total);
            return;
        }
        grow(c, c->size * GROWTH);
        if (c->failure) return;
    }
}

/* Keeps the tokens with at least this probability. */
void keep_likely(candidates *c, double probability) {
    double least = log_sum_exp_of(c) + gl_log(probability) - SLACK;
    if (!c->failure) keep_from(c, least);
}

/* Removes the tokens of the row with this logit or a higher one, but the last of them in order. */
static void exclude_from_row(candidates *c, double border) {
    int64_t found, count = 0, last = -1;
    gl_candidate *likely = find_from(c, border, &found);
    if (!likely) return;
    for (int64_t i = 0; i < found; i++) {
        if (!((double)likely[i].value * c->scale >= border)) continue;
        if (last < 0 || likely[i].value <= likely[last].value) last = count;
        likely[count++] = likely[i];
    }
    if (count < 2 || !own_row(c)) return;
    touch(c);
    for (int64_t i = 0; i < count; i++) c->row[likely[i].id] = i == last ? likely[i].value : -INFINITY;
}

/* Removes all tokens with at least this probability but the least likely of them. */
static void exclude(candidates *c, double probability) {
    if (probability > 1) return; /* no token has that */
    double border = log_sum_exp_of(c) + gl_log(probability) - SLACK;
    if (c->failure || head_logit(c, 0) < border) return;
    if (!c->listed) {
        if (c->row) exclude_from_row(c, border);
        else c->failure = GL_NEEDS_ROW;
        return;
    }
    int64_t gone = reaching(c, c->size, border) - 1;
    if (gone < 1) return;
    memmove(c->head, c->head + gone, (c->size -= gone) * sizeof *c->head);
    c->summed = 0;
}

void cut(candidates *c, const gl_rule *r) {
    switch (r->action) {
    case GL_RULE_FIRST: keep_first(c, count_of(c, r->amount)); return;
    case GL_RULE_MASS: keep_mass(c, r->amount); return;
    case GL_RULE_SHARE: keep_from(c, head_logit(c, 0) + gl_log(r->amount)); return;
    case GL_RULE_PROBABILITY: keep_likely(c, r->amount); return;
    case GL_RULE_TYPICAL: keep_typical(c, r->amount); return;
    case GL_RULE_SIGMA: keep_deviations(c, r->amount); return;
    case GL_RULE_EXCLUDE: exclude(c, r->amount); return;
    case GL_RULE_ETA: keep_eta(c, r->amount); return;
    default: c->failure = GL_WRONG_RULE;
    }
}
