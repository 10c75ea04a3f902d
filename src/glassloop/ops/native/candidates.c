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

#define SHORTEST 16   /* a head that changes have left shorter than this is sorted anew */
#define LONG 256      /* a head longer than this is not sorted by comparing its tokens */
#define BLOCK 256     /* weights that are computed at a time */

/* Returns 0, and notes the failure, if there is no memory. */
int make_room(candidates *c, int64_t wanted) {
    if (wanted <= c->room) return 1;
    gl_candidate *head = gl_memory(GL_FOR_HEAD, (size_t)wanted * sizeof *head);
    if (!head) {
        c->failure = GL_NO_MEMORY;
        return 0;
    }
    c->head = head;
    c->room = wanted;
    return 1;
}

/* The head holds `found` sorted tokens, of `looked_for` that were searched. */
static void set_head(candidates *c, int64_t found, int64_t looked_for) {
    while (found && c->head[found - 1].value == -INFINITY) found--;
    c->size = found;
    c->complete = found < looked_for || found == c->width;
    c->sorted = 1;
}

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

/* What was found in the row as the rules have left it, if it is on another device. */
const row_facts *facts_now(const candidates *c) { return c->facts->edited ? c->facts->edited : c->facts; }

/* Takes the `count` highest survivors, or all that there are, from what another device has found. Returns 0, and notes
 * the failure, if it has not found as many. */
static int take_found(candidates *c, int64_t count) {
    const row_facts *facts = facts_now(c);
    if (!facts->highest || (facts->found->count < count && facts->found->least > -INFINITY)) {
        c->failure = GL_NEEDS_ROW;
        return 0;
    }
    int64_t size = MIN(count, facts->found->count);
    if (!make_room(c, size)) return 0;
    memcpy(c->head, facts->highest, size * sizeof *c->head);
    c->size = size;
    return 1;
}

/* The same as `sort_head` for a row on another device: the head is all tokens that are above the bound now. */
static void sort_found(candidates *c) {
    const row_facts *facts = facts_now(c);
    int64_t above = 0;
    if (facts->highest)
        while (above < facts->found->count && facts->highest[above].value > c->bound) above++;
    /* The next one has to be known, or to be none, so that there are no more. */
    if (!take_found(c, above + 1)) return;
    c->size = above;
    c->sorted = 1;
}

/* The same as the rest of `sort_head` for many tokens: in the order of their ids, each once, they are sorted fast. */
static void sort_long_head(candidates *c) {
    uint8_t *in_head = calloc((size_t)c->width, 1);
    gl_candidate *memory = gl_memory(GL_FOR_SORTING, ((size_t)c->size + 1) * sizeof *memory);
    if (!in_head || !memory) c->failure = GL_NO_MEMORY;
    else {
        int64_t size = 0;
        for (int64_t i = 0; i < c->size; i++) in_head[c->head[i].id] = 1;
        for (int64_t id = 0; id < c->width; id++) {
            memory[size] = (gl_candidate){c->row[id], (int32_t)id};
            size += in_head[id] && c->row[id] > c->bound;
        }
        gl_sort(memory, c->head, size, c->row);
        c->size = size;
        c->sorted = 1;
    }
    free(in_head);
}

/* The same for a complete head, whose first `ordered` tokens are in the order from before the changes: those that were
 * changed are taken out, sorted and merged into the others. */
static void merge_changed(candidates *c) {
    gl_candidate *changed = gl_memory(GL_FOR_SORTING, (size_t)c->ordered * sizeof *changed + 1), *head = c->head;
    if (!changed) {
        c->failure = GL_NO_MEMORY;
        return;
    }
    int64_t same = 0, count = 0;
    for (int64_t i = 0; i < c->ordered; i++) {
        gl_candidate now = {c->row[head[i].id], head[i].id};
        if (!memcmp(&now, &head[i], sizeof now)) head[same++] = now;
        else if (now.value > -INFINITY) changed[count++] = now;
    }
    qsort(changed, count, sizeof *changed, gl_by_logit);
    c->size = same + count;
    c->sorted = 1;
    for (; count; count--) { /* those behind the last one move to the end */
        int64_t place = gl_count_before(head, same, changed[count - 1]);
        memmove(head + place + count, head + place, (same - place) * sizeof *head);
        head[place + count - 1] = changed[count - 1];
        same = place;
    }
}

/* Sorts the head after changes. No token outside it was above `bound`, so every token of the head that is above it
 * now comes before all others. Tokens equal to the bound may not, and are dropped from the head. */
static void sort_head(candidates *c) {
    int64_t size = 0, kept = 0;
    if (!c->row) {
        sort_found(c);
        return;
    }
    if (c->size > LONG) {
        if (c->complete) merge_changed(c);
        else sort_long_head(c);
        return;
    }
    for (int64_t i = 0; i < c->size; i++) {
        int32_t id = c->head[i].id;
        if (c->row[id] > c->bound) c->head[size++] = (gl_candidate){c->row[id], id};
    }
    qsort(c->head, size, sizeof *c->head, gl_by_logit);
    for (int64_t i = 0; i < size; i++)
        if (!kept || c->head[i].id != c->head[kept - 1].id) c->head[kept++] = c->head[i];
    c->size = kept;
    c->sorted = 1;
}

/* Sorts at least `count` survivors, or all that there are. */
void grow(candidates *c, int64_t count) {
    if (!c->sorted) sort_head(c);
    if (c->failure || c->complete || c->size >= count) return;
    int64_t top = MIN(MAX(count, FIRST_HEAD), c->width);
    if (!c->row) {
        if (take_found(c, top)) set_head(c, c->size, top);
        return;
    }
    if (!make_room(c, top)) return;
    set_head(c, gl_find_highest(c->row, c->width, top, c->head), top);
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
static float edited_logit(const gl_request *request, gl_candidate one) {
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

/* The place of a token in the sorted head, or -1. */
int64_t place_of(const candidates *c, int32_t id) {
    if (!c->row) {
        for (int64_t i = 0; i < c->size; i++)
            if (c->head[i].id == id) return i;
        return -1;
    }
    return gl_place_of(c->head, c->size, (gl_candidate){c->row[id], id});
}

/* The logit of a token whose logit before any rule is known; minus infinity if it was removed. */
double logit_of(const candidates *c, gl_candidate one) {
    if (!c->listed && c->row) return (double)c->row[one.id] * c->scale;
    if (!c->listed) return (double)edited_logit(c->request, one) * c->scale;
    int64_t place = place_of(c, one.id);
    return place < 0 ? -INFINITY : head_logit(c, place);
}

/* The sums of the weights of the head's tokens, one after another, or NULL if there is no memory. */
const double *sums_of(candidates *c) {
    if (c->size > c->sums_room) {
        double *sums = gl_memory(GL_FOR_SUMS, (size_t)c->size * sizeof *sums);
        if (!sums) {
            c->failure = GL_NO_MEMORY;
            return NULL;
        }
        c->sums = sums;
        c->sums_room = c->size;
    }
    double sum = c->summed ? c->sums[c->summed - 1] : 0;
    while (c->summed < c->size) {
        float some[BLOCK];
        int64_t count = MIN(BLOCK, c->size - c->summed);
        for (int64_t i = 0; i < count; i++) some[i] = c->head[c->summed + i].value;
        gl_active()->weigh(some, count, c->scale, head_logit(c, 0), c->sums + c->summed);
        for (int64_t i = 0; i < count; i++) c->sums[c->summed + i] = sum += c->sums[c->summed + i];
        c->summed += count;
    }
    return c->sums;
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
