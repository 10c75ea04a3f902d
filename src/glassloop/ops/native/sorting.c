/* Sorts logits with their ids: the highest first, equal ones by lower id. The time depends on their number alone, not on
 * their values. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

#define DIGIT 11             /* bits that one pass looks at; three passes for the 32 bits of a float */
#define VALUES (1 << DIGIT)
#define FEW 96               /* so few are sorted sooner by comparing them */

/* For qsort: descending logits, ties by lower id. */
int gl_by_logit(const void *a, const void *b) {
    const gl_candidate *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* How many tokens of a sorted head come before this one. */
int64_t gl_count_before(const gl_candidate *head, int64_t count, gl_candidate one) {
    int64_t low = 0;
    while (low < count) {
        int64_t middle = (low + count) / 2;
        if (gl_by_logit(&head[middle], &one) < 0) low = middle + 1;
        else count = middle;
    }
    return low;
}

/* The place of a token in a sorted head, or -1. */
int64_t gl_place_of(const gl_candidate *head, int64_t count, gl_candidate one) {
    int64_t place = gl_count_before(head, count, one);
    return place < count && head[place].id == one.id ? place : -1;
}

/* A candidate as a number: its id, and in the lower half a number whose order is that of the logits, the highest first. */
typedef uint64_t __attribute__((may_alias)) keyed;

/* From the bits of a logit to their order, and back. Without a branch, which could not be predicted. */
static inline uint32_t flip(uint32_t bits) { return bits ^ ((bits >> 31) - 1) >> 1; }

static inline void scatter(const keyed *restrict from, keyed *restrict to, int64_t count, int shift,
                           uint32_t *restrict starts) {
    for (int64_t i = 0; i < count; i++) to[starts[(uint32_t)from[i] >> shift & (VALUES - 1)]++] = from[i];
}

/* Replaces logits by their order, and counts the values of each digit. Returns whether there is a minus zero, which has
 * the order of zero. */
static int count_digits(keyed *restrict all, int64_t count, uint32_t (*restrict starts)[VALUES]) {
    uint32_t minus_zeros = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)all[i], is_minus_zero = bits == 0x80000000u, order = flip(bits ^ is_minus_zero << 31);
        minus_zeros += is_minus_zero;
        all[i] = (all[i] >> 32 << 32) | order;
        starts[0][order & (VALUES - 1)]++;
        starts[1][order >> DIGIT & (VALUES - 1)]++;
        starts[2][order >> 2 * DIGIT]++;
    }
    return minus_zeros > 0;
}

/* Sorts `count` candidates of ascending ids, none of them NaN, from `memory` into `sorted`. `logits` has the logit of
 * each id. */
void gl_sort(gl_candidate *memory, gl_candidate *sorted, int64_t count, const float *logits) {
    if (count <= FEW) {
        memcpy(sorted, memory, count * sizeof *sorted);
        qsort(sorted, count, sizeof *sorted, gl_by_logit);
        return;
    }
    keyed *from = (keyed *)memory, *to = (keyed *)sorted;
    uint32_t starts[3][VALUES] = {0}, first;
    int minus_zeros = count_digits(from, count, starts);
    first = (uint32_t)*from;
    for (int digit = 0; digit < 3; digit++) {
        if (starts[digit][first >> digit * DIGIT & (VALUES - 1)] == count) continue; /* all have the same */
        for (uint32_t value = 0, before = 0, here; value < VALUES; value++, before += here) {
            here = starts[digit][value];
            starts[digit][value] = before;
        }
        scatter(from, to, count, digit * DIGIT, starts[digit]);
        keyed *other = from;
        from = to, to = other;
    }
    for (int64_t i = 0; i < count; i++) ((keyed *)sorted)[i] = (from[i] >> 32 << 32) | flip((uint32_t)from[i]);
    for (int64_t i = 0; minus_zeros && i < count; i++)
        if (sorted[i].value == 0) sorted[i].value = logits[sorted[i].id];
}
