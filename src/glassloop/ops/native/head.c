/* The head of a row: its highest survivors in order, as far as they are needed, with the sums of their weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"

#define LONG 256  /* a head longer than this is not sorted by comparing its tokens */
#define BLOCK 256 /* weights that are computed at a time */

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
void set_head(candidates *c, int64_t found, int64_t looked_for) {
    while (found && c->head[found - 1].value == -INFINITY) found--;
    c->size = found;
    c->complete = found < looked_for || found == c->width;
    c->sorted = 1;
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

/* The place of a token in the sorted head, or -1. */
int64_t place_of(const candidates *c, int32_t id) {
    if (!c->row) {
        for (int64_t i = 0; i < c->size; i++)
            if (c->head[i].id == id) return i;
        return -1;
    }
    return gl_place_of(c->head, c->size, (gl_candidate){c->row[id], id});
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
