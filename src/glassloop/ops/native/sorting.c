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

/* A number whose order is that of the logits, the highest first. Adding 0 makes minus zero equal to zero. */
static inline uint32_t place_of(float logit) {
    float value = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

static inline void scatter(const gl_candidate *from, gl_candidate *to, int64_t count, int shift, uint32_t *starts) {
    for (int64_t i = 0; i < count; i++) to[starts[place_of(from[i].value) >> shift & (VALUES - 1)]++] = from[i];
}

/* Sorts `count` candidates of ascending ids, none of them NaN, from `memory` into `sorted`. */
void gl_sort(gl_candidate *memory, gl_candidate *sorted, int64_t count) {
    if (count <= FEW) {
        memcpy(sorted, memory, count * sizeof *sorted);
        qsort(sorted, count, sizeof *sorted, gl_by_logit);
        return;
    }
    uint32_t starts[3][VALUES] = {0};
    for (int64_t i = 0; i < count; i++) {
        uint32_t place = place_of(memory[i].value);
        starts[0][place & (VALUES - 1)]++;
        starts[1][place >> DIGIT & (VALUES - 1)]++;
        starts[2][place >> 2 * DIGIT]++;
    }
    for (int digit = 0; digit < 3; digit++)
        for (uint32_t value = 0, before = 0, here; value < VALUES; value++, before += here) {
            here = starts[digit][value];
            starts[digit][value] = before;
        }
    scatter(memory, sorted, count, 0, starts[0]);
    scatter(sorted, memory, count, DIGIT, starts[1]);
    scatter(memory, sorted, count, 2 * DIGIT, starts[2]);
}
