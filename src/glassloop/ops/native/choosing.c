/* The choice of a token from each of some rows of logits: the rules (candidates.c), the race, the record. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"
#include "exact.h"

typedef struct {
    const gl_line *lines;
    const row_facts *facts;
    int64_t width;
    char *records;
    int64_t record_bytes;
    int64_t count; /* of lines */
} choosing;

#define MANY 1024 /* survivors, of which only those with enough luck are looked at */

static void note_race(const int64_t *places, const int32_t *winners, const double *numbers, gl_record *record,
                      int64_t *place, double *logit) {
    *place = places[0];
    *logit = numbers[0];
    record->id = winners[0];
    record->runner_up = winners[1];
    record->luck = numbers[1];
    record->margin = winners[1] < 0 ? INFINITY : numbers[0] + numbers[1] - (numbers[2] + numbers[3]);
}

static void race_of_many(candidates *c, uint64_t key, gl_record *record, int64_t *place, double *logit) {
    int64_t places[2];
    int32_t winners[2];
    double numbers[4];
    if (!gl_race_many(key, c->head, c->size, c->row, c->width, c->scale, places, winners, numbers))
        c->failure = GL_NO_MEMORY;
    else note_race(places, winners, numbers, record, place, logit);
}

/* Finds the winner of a row, its place among the survivors and its logit. */
static void race(candidates *c, int64_t position, gl_record *record, int64_t *place, double *logit) {
    *place = 0;
    *logit = head_logit(c, 0);
    record->id = c->head[0].id;
    record->runner_up = c->size > 1 ? c->head[1].id : -1;
    record->luck = 0;
    record->margin = c->size > 1 ? *logit - head_logit(c, 1) : INFINITY;
    if (!c->request->with_luck) return;
    const row_facts *facts = facts_now(c);
    int elsewhere = !c->complete && facts->found;
    if (elsewhere && (!facts->highest || c->scale != facts->scale || facts->found->others > GL_MOST_OTHERS ||
                      facts->found->count < c->size)) {
        c->failure = GL_NEEDS_ROW;
        return;
    }
    uint64_t key = gl_mix(c->request->branch_key + GL_GOLDEN + (uint64_t)position);
    if (c->complete && c->row && c->size >= MANY && c->size >= c->width / 16) {
        race_of_many(c, key, record, place, logit);
        return;
    }
    double *logits = malloc((size_t)c->size * (sizeof(double) + sizeof(int32_t))), numbers[4];
    if (!logits) {
        c->failure = GL_NO_MEMORY;
        return;
    }
    int32_t *ids = (int32_t *)(logits + c->size), winners[2];
    int64_t places[2];
    for (int64_t i = 0; i < c->size; i++) ids[i] = c->head[i].id, logits[i] = head_logit(c, i);
    if (elsewhere) {
        /* Those that are high beyond the head take part in the race like the others. */
        gl_candidate others[GL_MOST_OTHERS + GL_MOST_HIGH];
        int64_t count = facts->found->others, beyond = facts->found->count - c->size;
        memcpy(others, facts->others, count * sizeof *others);
        memcpy(others + count, facts->highest + c->size, beyond * sizeof *others);
        gl_race_found(key, ids, logits, c->size, others, count + beyond, c->scale, places, winners, numbers);
    } else if (!gl_race(key, ids, logits, c->size, c->complete ? NULL : c->row, c->width, c->scale, places, winners, numbers))
        c->failure = GL_NO_MEMORY;
    free(logits);
    if (!c->failure) note_race(places, winners, numbers, record, place, logit);
}

/* The rank of a token that is not among the first of the highest. On another device it has been found if the token is
 * the winner; if it is high, its place is its rank. */
static int64_t rank_of(const row_facts *facts, const float *row, int64_t width, int64_t id) {
    if (!facts->found) return gl_rank_of(row, width, id);
    for (int64_t i = 0; i < facts->found->count; i++)
        if (facts->highest[i].id == id) return i;
    return facts->found->winner == id ? facts->found->rank : GL_NEEDS_ROW;
}

/* The logit before any rule of the token that was chosen, whose rank is known. */
static double raw_logit(const row_facts *facts, const gl_line *line, int64_t id, int64_t rank) {
    if (line->logits) return line->logits[id];
    return rank < facts->found->count ? facts->highest[rank].value : facts->found->own;
}

/* Whether a token of a row, with its logit after the edits, is a survivor. */
static int survives(const gl_cut *cut, gl_candidate one) {
    gl_candidate first = {cut->highest, cut->first}, last = {cut->lowest, cut->last};
    return one.value > -INFINITY && gl_by_logit(&first, &one) <= 0 && gl_by_logit(&one, &last) <= 0;
}

/* Writes the record of a row whose rules another device has followed. Only the fields about the model's own distribution
 * are there already. */
static void note_cut(const gl_line *line, const row_facts *facts, int64_t width, gl_record *record) {
    const gl_request *request = line->request;
    const row_facts *now = facts->edited ? facts->edited : facts;
    const gl_cut *cut = now->cut;
    gl_candidate racers[GL_MOST_RACERS];
    int64_t places[2] = {0, 0}, at[GL_MOST_RACERS], count = 0;
    int32_t winners[2];
    double numbers[4], scale = 1, entropy;
    for (int64_t i = 0; i < request->count; i++)
        if (request->rules[i].action == GL_RULE_SCALE) scale *= request->rules[i].amount;
    for (int64_t i = 0; i < GL_MOST_RACERS; i++)
        if (cut->ids[i] >= 0) at[count] = cut->places[i], racers[count++] = (gl_candidate){cut->logits[i], cut->ids[i]};
    if (facts->found->count < request->alternatives || count < MIN(cut->count, 2)) return;
    if (request->with_luck) {
        uint64_t key = gl_mix(request->branch_key + GL_GOLDEN + (uint64_t)line->position);
        gl_race_found(key, NULL, NULL, 0, racers, count, scale, places, winners, numbers);
    } else {
        /* The first racers of a line without luck are its first survivors. */
        for (int i = 0; i < 2; i++) {
            places[i] = i;
            winners[i] = i < cut->count ? racers[i].id : -1;
            numbers[2 * i] = (double)racers[i].value * scale, numbers[2 * i + 1] = 0;
        }
    }
    int64_t place, rank = at[places[0]];
    double logit;
    gl_candidate winner = racers[places[0]];
    note_race(places, winners, numbers, record, &place, &logit);
    record->id = GL_NEEDS_ROW;
    if (cut->listed) record->log_sum_exp_after = (double)cut->highest * scale + gl_log(cut->sum);
    else gl_add_parts(cut->highest, (const double *)(cut + 1), 2, gl_parts(width), scale, &record->log_sum_exp_after, &entropy);
    record->logprob = logit - record->log_sum_exp_after;
    record->scale = scale;
    record->survivors = cut->complete ? cut->count : -1;
    record->rank_after = 1 + rank - cut->before;
    for (int64_t i = 0; i < request->alternatives; i++) {
        gl_candidate one = facts->highest[i], after = {facts->edited ? edited_logit(request, one) : one.value, one.id};
        double own = survives(cut, after) ? (double)after.value * scale : -INFINITY;
        record->alternatives[i] =
            (gl_alternative){one.id, own - record->log_sum_exp_after, (double)one.value - record->log_sum_exp};
    }
    double raw = winner.value;
    if (facts->edited) {
        rank = rank_of(facts, NULL, width, winner.id);
        if (rank < 0) return;
        raw = raw_logit(facts, line, winner.id, rank);
    }
    record->rank = 1 + rank;
    record->raw_logprob = raw - record->log_sum_exp;
    record->id = winner.id;
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
    if (facts->found && !facts->highest) { /* what was found is not enough */
        record->id = GL_NEEDS_ROW;
        return;
    }
    if (facts->found && (facts->edited ? facts->edited : facts)->cut) {
        record->id = GL_NEEDS_ROW;
        note_cut(line, facts, all->width, record);
        return;
    }
    if (facts->found && facts->found->count < request->head && facts->found->least > -INFINITY) {
        record->id = GL_NEEDS_ROW;
        return;
    }
    candidates c = candidates_after(line, facts, all->width, request->count);
    int64_t place;
    double logit;
    if (!c.failure && c.size) {
        race(&c, line->position, record, &place, &logit);
        record->log_sum_exp_after = log_sum_exp_of(&c);
    }
    if (c.failure) record->id = c.failure;
    else if (c.size) {
        record->logprob = logit - record->log_sum_exp_after;
        record->scale = c.scale;
        record->survivors = c.complete ? c.size : -1;
        int64_t before = place < c.size ? place : rank_of(facts_now(&c), c.row, c.width, record->id);
        record->rank_after = 1 + before;
        for (int64_t i = 0; i < request->alternatives; i++) {
            gl_candidate one = facts->highest[i];
            record->alternatives[i] = (gl_alternative){one.id, logit_of(&c, one) - record->log_sum_exp_after,
                                                       (double)one.value - record->log_sum_exp};
        }
        if (before < 0) record->id = GL_NEEDS_ROW;
    }
    free_candidates(&c);
    if (record->id < 0) return;
    int64_t rank = 0;
    while (rank < request->head && facts->highest[rank].id != record->id) rank++;
    if (rank == request->head) rank = rank_of(facts, line->logits, all->width, record->id);
    if (rank < 0) {
        record->id = GL_NEEDS_ROW;
        return;
    }
    record->rank = 1 + rank;
    record->raw_logprob = raw_logit(facts, line, record->id, rank) - record->log_sum_exp;
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
    for (int64_t i = 0; i < count; i++) all[i] = (row_facts){.highest = found + i * top, .sums = sums[i], .scale = scales[i]};
    return all;
}

/* A unit of work: all lines of one row, one after another, since rules change the row and restore it. It has the number of
 * the first of them; the units of the others have nothing to do. */
static void choose_all(void *work, int64_t first) {
    const choosing *all = work;
    const float *row = all->lines[first].logits;
    for (int64_t i = 0; i < first; i++)
        if (all->lines[i].logits == row) return;
    for (int64_t i = first; i < all->count; i++)
        if (all->lines[i].logits == row) choose(work, i);
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
    gl_run_units(choose_all, &(choosing){lines, facts, width, records, record_bytes, count}, count);
    free(facts);
    int64_t worst = 0;
    for (int64_t i = 0; i < count; i++) worst = MIN(worst, ((gl_record *)(records + i * record_bytes))->id);
    return worst < GL_NONE_LEFT ? (int)worst : 0;
}

/* Returns the bytes that one row takes in what another device has found. */
int64_t gl_found_bytes(int64_t width) {
    int64_t candidate = sizeof(int32_t) + sizeof(float), many = GL_MOST_HIGH + GL_MOST_OTHERS;
    return (int64_t)sizeof(gl_found) + gl_parts(width) * 6 * (int64_t)sizeof(double) + many * candidate +
           (int64_t)sizeof(gl_cut);
}

/* Reads what was found in one row; `high` and `others` have room for as many as can be. `highest` stays NULL if the
 * row itself is needed: fewer than `least` tokens are known to be high, and there are more. */
static row_facts read_found(const gl_found *found, int64_t least, double scale, int64_t width, gl_candidate *high,
                            gl_candidate *others) {
    int64_t parts = gl_parts(width);
    const double *sums = (const double *)(found + 1);
    const int32_t *high_ids = (const int32_t *)(sums + 4 * parts), *other_ids = high_ids + GL_MOST_HIGH;
    const float *high_logits = (const float *)(other_ids + GL_MOST_OTHERS), *other_logits = high_logits + GL_MOST_HIGH;
    const gl_cut *cut = (const gl_cut *)(other_logits + GL_MOST_OTHERS);
    row_facts facts = {.found = found, .scale = scale, .others = others, .cut = cut->valid ? cut : NULL};
    gl_add_parts(found->most, sums, 4, parts, 1, &facts.sums.log_sum_exp, &facts.sums.entropy);
    facts.sums.scaled = facts.sums.log_sum_exp;
    facts.sums.scaled_entropy = facts.sums.entropy;
    if (scale != 1)
        gl_add_parts(found->most, sums + 2, 4, parts, scale, &facts.sums.scaled, &facts.sums.scaled_entropy);
    if (found->count > GL_MOST_HIGH || found->count < least) return facts;
    for (int64_t i = 0; i < found->count; i++) high[i] = (gl_candidate){high_logits[i], high_ids[i]};
    for (int64_t i = 0; i < MIN(found->others, GL_MOST_OTHERS); i++)
        others[i] = (gl_candidate){other_logits[i], other_ids[i]};
    qsort(high, found->count, sizeof *high, gl_by_logit);
    facts.highest = high;
    return facts;
}

typedef struct {
    const gl_line *lines;
    const char *found;
    int64_t found_bytes;
    const int64_t *edited;
    const double *scales;
    int64_t width;
    char *records;
    int64_t record_bytes;
} choosing_found;

/* A unit of work: the record of one row that is on another device. */
static void choose_found(void *work, int64_t row) {
    const choosing_found *all = work;
    const gl_line *line = &all->lines[row];
    gl_candidate high[2][GL_MOST_HIGH + 1], others[2][GL_MOST_OTHERS];
    const gl_found *found = (const gl_found *)(all->found + row * all->found_bytes);
    int64_t least = MIN(line->request->head, FIRST_HEAD);
    row_facts edited, facts = read_found(found, least, line->request->scale, all->width, high[0], others[0]);
    if (found->most == -INFINITY) facts.highest = NULL; /* whether it is NaN is known from the row alone */
    if (all->edited[row] >= 0) {
        found = (const gl_found *)(all->found + all->edited[row] * all->found_bytes);
        edited = read_found(found, 0, all->scales[row], all->width, high[1], others[1]);
        facts.edited = &edited;
    }
    choose(&(choosing){line, &facts, all->width, all->records + row * all->record_bytes, 0, 1}, 0);
}

/* Writes a record for each line, like `gl_choose_rows`, from what another device has found in its row: `blocks` pieces
 * of `found_bytes` each, first one for each line. If the rules of a line begin with edits, `edited` says which piece is
 * about the row after these, with the scale at which its logits were summed; else it is -1. A row that has to be here,
 * because all this is not enough, has GL_NEEDS_ROW for its id. */
int gl_choose_found(const gl_line *lines, int64_t count, int64_t width, const char *found, int64_t found_bytes,
                    int64_t blocks, const int64_t *edited, const double *scales, char *records, int64_t record_bytes) {
    if (found_bytes != gl_found_bytes(width) || blocks < count) return GL_WRONG_RULE;
    for (int64_t i = 0; i < count; i++)
        if (lines[i].logits || edited[i] < -1 || edited[i] >= blocks ||
            record_bytes < (int64_t)(sizeof(gl_record) + lines[i].request->alternatives * sizeof(gl_alternative)))
            return GL_WRONG_RULE;
    choosing_found all = {lines, found, found_bytes, edited, scales, width, records, record_bytes};
    gl_run_units(choose_found, &all, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t id = ((gl_record *)(records + i * record_bytes))->id;
        if (id == GL_WRONG_RULE || id == GL_NO_MEMORY) return (int)id;
    }
    return 0;
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
    row_facts facts = {.highest = head, .sums = {log_sum_exp, NAN, log_sum_exp, NAN}};
    candidates c = candidates_after(&(gl_line){request, logits, 0}, &facts, width, count);
    int64_t size = c.failure ? c.failure : c.size;
    for (int64_t i = 0; i < MIN(size, room); i++) ids[i] = c.head[i].id, values[i] = c.head[i].value;
    *remainder = (gl_remainder){c.complete, c.listed, c.scale, size > 0 ? log_sum_exp_of(&c) : -INFINITY};
    if (!c.failure && !c.listed) memcpy(row, c.row, width * sizeof *row);
    free_candidates(&c);
    free(head);
    return size;
}
