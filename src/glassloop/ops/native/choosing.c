/* The choice of a token from each of some rows of logits: the rules (candidates.c), the race, the record. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"

typedef struct {
    const gl_line *lines;
    const row_facts *facts;
    int64_t width;
    char *records;
    int64_t record_bytes;
} choosing;

/* Finds the winner of a row, its place among the survivors and its logit. */
static void race(candidates *c, int64_t position, gl_record *record, int64_t *place, double *logit) {
    *place = 0;
    *logit = head_logit(c, 0);
    record->id = c->head[0].id;
    record->runner_up = c->size > 1 ? c->head[1].id : -1;
    record->luck = 0;
    record->margin = c->size > 1 ? *logit - head_logit(c, 1) : INFINITY;
    if (!c->request->with_luck) return;
    uint64_t key = gl_mix(c->request->branch_key + GL_GOLDEN + (uint64_t)position);
    double *logits = malloc((size_t)c->size * (sizeof(double) + sizeof(int32_t))), numbers[4];
    if (!logits) {
        c->failure = GL_NO_MEMORY;
        return;
    }
    int32_t *ids = (int32_t *)(logits + c->size), winners[2];
    int64_t places[2];
    for (int64_t i = 0; i < c->size; i++) ids[i] = c->head[i].id, logits[i] = head_logit(c, i);
    if (!gl_race(key, ids, logits, c->size, c->complete ? NULL : c->row, c->width, c->scale, places, winners, numbers))
        c->failure = GL_NO_MEMORY;
    free(logits);
    if (c->failure) return;
    *place = places[0];
    *logit = numbers[0];
    record->id = winners[0];
    record->runner_up = winners[1];
    record->luck = numbers[1];
    record->margin = winners[1] < 0 ? INFINITY : numbers[0] + numbers[1] - (numbers[2] + numbers[3]);
}

/* A unit of work: the record of one row. */
static void choose(void *work, int64_t row) {
    const choosing *all = work;
    const gl_line *line = &all->lines[row];
    const gl_request *request = line->request;
    const row_facts *facts = &all->facts[row];
    gl_record *record = (gl_record *)(all->records + row * all->record_bytes);
    record->id = GL_NONE_LEFT;
    record->entropy = facts->sums.entropy;
    record->log_sum_exp = facts->sums.log_sum_exp;
    if (isnan(record->log_sum_exp)) return;
    candidates c = candidates_after(line, facts, all->width, request->count);
    int64_t place;
    double logit;
    if (!c.failure && c.size) race(&c, line->position, record, &place, &logit);
    if (c.failure) record->id = c.failure;
    else if (c.size) {
        record->log_sum_exp_after = log_sum_exp_of(&c);
        record->logprob = logit - record->log_sum_exp_after;
        record->scale = c.scale;
        record->survivors = c.complete ? c.size : -1;
        record->rank_after = 1 + (place < c.size ? place : gl_rank_of(c.row, c.width, record->id));
        for (int64_t i = 0; i < request->alternatives; i++) {
            gl_candidate one = facts->highest[i];
            record->alternatives[i] = (gl_alternative){one.id, logit_of(&c, one.id) - record->log_sum_exp_after,
                                                       (double)one.value - record->log_sum_exp};
        }
    }
    free_candidates(&c);
    if (record->id < 0) return;
    int64_t rank = 0;
    while (rank < request->head && facts->highest[rank].id != record->id) rank++;
    record->rank = 1 + (rank < request->head ? rank : gl_rank_of(line->logits, all->width, record->id));
    record->raw_logprob = (double)line->logits[record->id] - record->log_sum_exp;
}

/* One pass over all rows. Returns memory that the caller frees, or NULL if there is none. */
static row_facts *find_facts(const gl_line *lines, int64_t count, int64_t width) {
    int64_t top = 0;
    if (count < 1) return NULL;
    for (int64_t i = 0; i < count; i++) top = MAX(top, lines[i].request->head);
    row_facts *all = calloc(count, sizeof *all + sizeof(gl_sums) + sizeof(double) + sizeof(float *) +
                                       top * sizeof(gl_candidate));
    if (!all) return NULL;
    gl_sums *sums = (gl_sums *)(all + count);
    double *scales = (double *)(sums + count);
    const float **logits = (const float **)(scales + count);
    gl_candidate *found = (gl_candidate *)(logits + count);
    for (int64_t i = 0; i < count; i++) logits[i] = lines[i].logits, scales[i] = lines[i].request->scale;
    if (!gl_sum_up(logits, count, width, top, scales, found, sums)) {
        free(all);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) all[i] = (row_facts){found + i * top, sums[i]};
    return all;
}

/* Writes a record for each line. A row's record depends neither on the other rows nor on the thread that makes it.
 * Returns 0, or GL_WRONG_RULE or GL_NO_MEMORY if that happened to a row; a row of which no token is left, or whose
 * logits are not finite, has GL_NONE_LEFT for its id. */
int gl_choose_rows(const gl_line *lines, int64_t count, int64_t width, char *records, int64_t record_bytes) {
    for (int64_t i = 0; i < count; i++)
        if (record_bytes < (int64_t)(sizeof(gl_record) + lines[i].request->alternatives * sizeof(gl_alternative)))
            return GL_WRONG_RULE;
    row_facts *facts = find_facts(lines, count, width);
    if (!facts) return GL_NO_MEMORY;
    gl_run_units(choose, &(choosing){lines, facts, width, records, record_bytes}, count);
    free(facts);
    int64_t worst = 0;
    for (int64_t i = 0; i < count; i++) worst = MIN(worst, ((gl_record *)(records + i * record_bytes))->id);
    return worst < GL_NONE_LEFT ? (int)worst : 0;
}

/* The survivors of the first `count` rules, for a caller that has the highest logits of the row and its log-sum-exp:
 * the head in order, at most `room` of it, and unless the head is all, the row with minus infinity for every removed
 * token. Returns the length of the head, or an enum gl_failure. */
int64_t gl_survivors(const gl_request *request, float *logits, int64_t width, int64_t count, const int32_t *highest_ids,
                     const float *highest, double log_sum_exp, int64_t room, int32_t *ids, float *values, float *row,
                     gl_remainder *remainder) {
    gl_candidate *head = malloc((size_t)request->head * sizeof *head + 1);
    if (!head) return GL_NO_MEMORY;
    for (int64_t i = 0; i < request->head; i++) head[i] = (gl_candidate){highest[i], highest_ids[i]};
    row_facts facts = {head, {.log_sum_exp = log_sum_exp, .scaled = log_sum_exp}};
    candidates c = candidates_after(&(gl_line){request, logits, 0}, &facts, width, count);
    int64_t size = c.failure ? c.failure : c.size;
    for (int64_t i = 0; i < MIN(size, room); i++) ids[i] = c.head[i].id, values[i] = c.head[i].value;
    *remainder = (gl_remainder){c.complete, c.listed, c.scale, size > 0 ? log_sum_exp_of(&c) : -INFINITY};
    if (!c.failure && !c.listed) memcpy(row, c.row, width * sizeof *row);
    free_candidates(&c);
    free(head);
    return size;
}
