/* The rules of a request, followed one after another on one row of logits. `decode/candidates.py` defines the same in
 * NumPy, and the tests hold the two equal.
 *
 * Only the highest logits are ever sorted. Where they cannot settle a question for certain, more of the row is
 * sorted, in the end all of it.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"
#include "exact.h"

#define SHORTEST 16 /* a head that changes have left shorter than this is sorted anew */

static candidates new_candidates(const gl_line *line, const row_facts *facts, int64_t width) {
    int64_t size = line->request->head;
    candidates c = {.request = line->request, .facts = facts, .logits = line->logits, .width = width,
                    .row = line->logits, .scale = 1};
    for (int64_t i = 0; i < line->request->count; i++) c.anew |= line->request->rules[i].action > GL_RULE_PROBABILITY;
    if (!make_room(&c, MAX(size, 1))) return c;
    memcpy(c.head, facts->highest, size * sizeof *c.head);
    set_head(&c, size, size);
    return c;
}

/* Restores the caller's row and frees the memory. */
void free_candidates(candidates *c) {
    for (int64_t i = c->changed - 1; i >= 0; i--) c->logits[c->changes[i].id] = c->changes[i].before;
    free(c->changes);
}

/* Whether a rule changes or removes single tokens. */
static int is_edit(const gl_rule *r) { return r->action <= GL_RULE_KEEP; }

/* The logit of the token at place `i` of a rule, after it. A removed token stays removed, and no change, however large,
 * removes one. */
static float moved(const gl_rule *r, int64_t i, float before, double scale) {
    double logit = (double)before * scale;
    if (r->action == GL_RULE_LESS) logit -= r->numbers ? r->amount * r->numbers[i] : r->amount;
    else logit = logit >= 0 ? logit / r->amount : logit * r->amount;
    if (scale != 1) logit /= scale;
    logit = MIN(MAX(logit, -FLT_MAX), FLT_MAX);
    return before == -INFINITY ? before : (float)logit;
}

/* The logit of a token after the edits. */
float edited_logit(const gl_request *request, gl_candidate one) {
    float value = one.value;
    for (const gl_rule *r = request->rules; r < request->rules + request->count && is_edit(r); r++) {
        const int32_t *ids = r->which;
        if (r->action == GL_RULE_KEEP) {
            if (!((const uint8_t *)r->which)[one.id]) return -INFINITY;
            continue;
        }
        for (int64_t i = 0; i < r->count; i++) {
            if (ids[i] != one.id) continue;
            if (r->action == GL_RULE_REMOVE) return -INFINITY;
            value = moved(r, i, value, 1);
        }
    }
    return value;
}

/* The logit of a token whose logit before any rule is known; minus infinity if it was removed. */
double logit_of(const candidates *c, gl_candidate one) {
    if (!c->listed && c->row) return (double)c->row[one.id] * c->scale;
    if (!c->listed) return (double)edited_logit(c->request, one) * c->scale;
    int64_t place = place_of(c, one.id);
    return place < 0 ? -INFINITY : head_logit(c, place);
}

static void sum_row(candidates *c) {
    if (!c->has_row_sum) gl_sums_of(c->row, c->width, c->scale, &c->row_sum, &c->row_entropy);
    c->has_row_sum = 1;
}

/* Log-sum-exp over all survivors. */
double log_sum_exp_of(candidates *c) {
    if (!c->listed && !c->touched && c->scale == 1) return c->facts->sums.log_sum_exp;
    if (!c->listed && !c->touched && c->scale == c->request->scale) return c->facts->sums.scaled;
    if (!c->listed && !c->row) {
        if (c->facts->edited && c->scale == c->facts->edited->scale) return c->facts->edited->sums.scaled;
        c->failure = GL_NEEDS_ROW;
        return NAN;
    }
    if (c->listed) {
        const double *sums = sums_of(c);
        return sums ? head_logit(c, 0) + gl_log(sums[c->size - 1]) : NAN;
    }
    sum_row(c);
    return c->row_sum;
}

/* The entropy of all survivors, up to rounding; NaN if it cannot be told. */
double entropy_about(candidates *c) {
    if (c->listed) {
        const double *sums = sums_of(c);
        if (!sums) return NAN;
        double total = sums[c->size - 1], most = head_logit(c, 0), weighted[4] = {0};
        for (int64_t i = 1; i < c->size; i++) weighted[i & 3] += (sums[i] - sums[i - 1]) * (head_logit(c, i) - most);
        return gl_log(total) - (weighted[0] + weighted[1] + weighted[2] + weighted[3]) / total;
    }
    if (!c->touched && c->scale == 1) return c->facts->sums.entropy;
    if (!c->touched && c->scale == c->request->scale) return c->facts->sums.scaled_entropy;
    if (!c->row) return NAN;
    sum_row(c);
    return c->row_entropy;
}

/* To be called before logits of the row are changed. */
void touch(candidates *c) {
    c->touched = 1;
    c->summed = c->has_row_sum = 0;
    if (c->anew && !c->listed) {
        c->size = c->complete = 0;
        c->sorted = 1;
        return;
    }
    if (c->sorted) {
        c->bound = c->complete || !c->size ? -INFINITY : c->head[c->size - 1].value;
        c->ordered = c->size;
    }
    c->sorted = 0;
}

/* Returns whether a rule has ids, all of them ids of the row. */
static int has_ids(candidates *c, const gl_rule *r) {
    const int32_t *ids = r->which;
    if (r->selection != GL_IDS) c->failure = GL_WRONG_RULE;
    else
        for (int64_t i = 0; i < r->count; i++)
            if ((uint32_t)ids[i] >= (uint64_t)c->width) c->failure = GL_WRONG_RULE;
    return !c->failure;
}

/* Returns whether the row is on another device, which has done what an edit says if it is before all other rules. */
static int done_elsewhere(candidates *c) {
    if (c->row) return 0;
    if (c->facts->edited && !c->past_edits) touch(c);
    else c->failure = GL_NEEDS_ROW;
    return 1;
}

/* Makes room to note `count` more changes. */
static int may_change(candidates *c, int64_t count) {
    if (c->own || c->changed + count <= c->changes_room) return 1;
    int64_t room = MAX(c->changed + count, 2 * c->changes_room + 256);
    struct change *changes = realloc(c->changes, (size_t)room * sizeof *changes);
    if (!changes) {
        c->failure = GL_NO_MEMORY;
        return 0;
    }
    c->changes = changes;
    c->changes_room = room;
    return 1;
}

static void put(candidates *c, int32_t id, float value) {
    if (!c->own) c->changes[c->changed++] = (struct change){id, c->row[id]};
    c->row[id] = value;
}

/* Changes the logits of some tokens. */
static void move(candidates *c, const gl_rule *r) {
    const int32_t *ids = r->which;
    if (!has_ids(c, r) || !r->count || done_elsewhere(c)) return;
    if (!may_change(c, r->count) || !make_room(c, c->size + r->count)) return;
    touch(c);
    for (int64_t i = 0; i < r->count; i++) {
        put(c, ids[i], moved(r, i, c->row[ids[i]], c->scale));
        if (!c->listed && !c->anew) c->head[c->size++].id = ids[i];
    }
}

static void remove_ids(candidates *c, const gl_rule *r) {
    const int32_t *ids = r->which;
    if (!has_ids(c, r) || !r->count || done_elsewhere(c) || !may_change(c, r->count)) return;
    touch(c);
    for (int64_t i = 0; i < r->count; i++) put(c, ids[i], -INFINITY);
}

/* Makes a copy of the row, which the rules may change in any way. Returns 0, and notes the failure, if it cannot. */
int own_row(candidates *c) {
    if (c->own) return 1;
    c->own = gl_memory(GL_FOR_ROW, (size_t)c->width * sizeof *c->own);
    if (!c->own) {
        c->failure = GL_NO_MEMORY;
        return 0;
    }
    memcpy(c->own, c->row, c->width * sizeof *c->own);
    c->row = c->own;
    return 1;
}

static void keep_mask(candidates *c, const gl_rule *r) {
    const uint8_t *allowed = r->which;
    if (r->selection != GL_MASK || r->count != c->width) {
        c->failure = GL_WRONG_RULE;
        return;
    }
    if (done_elsewhere(c) || !own_row(c)) return;
    touch(c);
    for (int64_t i = 0; i < c->width; i++) c->row[i] = allowed[i] ? c->row[i] : -INFINITY;
}

static void follow(candidates *c, const gl_rule *r) {
    switch (r->action) {
    case GL_RULE_DIVIDE:
    case GL_RULE_LESS: move(c, r); return;
    case GL_RULE_REMOVE: remove_ids(c, r); return;
    case GL_RULE_KEEP: keep_mask(c, r); return;
    }
    if (r->selection != GL_NOTHING) {
        c->failure = GL_WRONG_RULE;
        return;
    }
    c->past_edits = 1;
    if (r->action == GL_RULE_SCALE) {
        c->scale *= r->amount;
        c->summed = c->has_row_sum = 0;
        return;
    }
    grow(c, r->action == GL_RULE_FIRST ? count_of(c, r->amount) : c->anew ? 1 : SHORTEST);
    if (!c->failure && c->size) cut(c, r); /* if there is none, the caller sees that no token is left */
}

/* The survivors of the first `count` rules, to be freed by the caller. */
candidates candidates_after(const gl_line *line, const row_facts *facts, int64_t width, int64_t count) {
    candidates c = new_candidates(line, facts, width);
    for (int64_t i = 0; i < count && !c.failure; i++) follow(&c, &line->request->rules[i]);
    if (!c.failure) grow(&c, c.anew ? 1 : SHORTEST);
    return c;
}
