/* The cuts that look at every survivor: typical-p, top-n-sigma, eta. `decode/shape.py` defines the same in NumPy.
 *
 * A sum over all survivors has the order in which NumPy adds up an array, so both give the same bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"
#include "exact.h"

/* All survivors: in the order of their ids, or if they are listed, the highest first. */
typedef struct {
    const float *logits; /* without the scale */
    int64_t count;
    double scale, most;  /* most: the highest logit */
    double number;       /* that the terms of a sum need */
    double *masses;      /* [count] where the probabilities of all are stored, or NULL */
} everyone;

/* Returns all survivors; their count is 0, and the failure is noted, if there is no memory. */
static everyone everyone_of(candidates *c) {
    everyone all = {.scale = c->scale, .most = head_logit(c, 0)};
    if (!c->listed && !c->row) {
        c->failure = GL_NEEDS_ROW;
        return all;
    }
    int64_t count = c->listed ? c->size : gl_active()->alive(c->row, c->width);
    if (!c->listed && count == c->width) {
        all.logits = c->row;
        all.count = count;
        return all;
    }
    float *logits = gl_memory(GL_FOR_EVERYONE, ((size_t)count + 1) * sizeof *logits);
    if (!logits) {
        c->failure = GL_NO_MEMORY;
        return all;
    }
    all.logits = logits;
    all.count = count;
    if (c->listed)
        for (int64_t i = 0; i < count; i++) logits[i] = c->head[i].value;
    else
        for (int64_t i = 0, size = 0; i < c->width; i++) {
            logits[size] = c->row[i];
            size += c->row[i] > -INFINITY;
        }
    return all;
}

#define ROUGH 1e-7   /* `entropy_about` is closer than this */
#define UNSURE 1e-10 /* sums over all survivors in different orders differ by less */

enum { MOST_TERMS = 128 }; /* of a sum that is not divided into two */

/* Computes some terms of a sum over all survivors. */
typedef void write_terms(const everyone *all, int64_t first, int64_t count, double *terms);

/* The sum of `count` terms, in the order in which NumPy adds up an array. */
static double sum_up(const everyone *all, write_terms *write, int64_t first, int64_t count) {
    if (count > MOST_TERMS) {
        int64_t half = count / 2 - count / 2 % 8;
        double sum = sum_up(all, write, first, half);
        return sum + sum_up(all, write, first + half, count - half);
    }
    double terms[MOST_TERMS], sums[8], sum = 0;
    int64_t i = 8;
    write(all, first, count, terms);
    if (count < 8) i = 0;
    else {
        memcpy(sums, terms, sizeof sums);
        for (; i + 8 <= count; i += 8)
            for (int lane = 0; lane < 8; lane++) sums[lane] += terms[i + lane];
        sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; i < count; i++) sum += terms[i];
    return sum;
}

static void write_logits(const everyone *all, int64_t first, int64_t count, double *terms) {
    for (int64_t i = 0; i < count; i++) terms[i] = (double)all->logits[first + i] * all->scale;
}

static void write_squares(const everyone *all, int64_t first, int64_t count, double *terms) {
    write_logits(all, first, count, terms);
    for (int64_t i = 0; i < count; i++) terms[i] = (terms[i] - all->number) * (terms[i] - all->number);
}

static void write_weights(const everyone *all, int64_t first, int64_t count, double *terms) {
    gl_active()->weigh(all->logits + first, count, all->scale, all->most, terms);
}

/* The surprises times their probabilities, whose sum is the entropy. */
static void write_surprises(const everyone *all, int64_t first, int64_t count, double *terms) {
    double some[MOST_TERMS], *masses = all->masses ? all->masses + first : some;
    gl_active()->surprise(all->logits + first, count, all->scale, all->most, all->number, terms, masses);
    for (int64_t i = 0; i < count; i++) terms[i] *= masses[i];
}

/* The entropy of all survivors. `number` is then the logarithm of their weights' sum. */
static double entropy_of(everyone *all) {
    all->number = gl_log(sum_up(all, write_weights, 0, all->count));
    return sum_up(all, write_surprises, 0, all->count);
}

/* Keeps the tokens whose logit is within so many standard deviations of the highest. */
void keep_deviations(candidates *c, double deviations) {
    everyone all = everyone_of(c);
    if (c->failure) return;
    all.number = sum_up(&all, write_logits, 0, all.count) / (double)all.count;
    double deviation = sqrt(sum_up(&all, write_squares, 0, all.count) / (double)all.count);
    keep_from(c, all.most - deviations * deviation);
}

/* Whether a survivor has a logit from `low` to `high`, or it cannot be told. */
static int is_between(const candidates *c, double low, double high) {
    if (!(low <= high)) return 1;
    if (c->complete || head_logit(c, c->size - 1) < low) return reaching(c, c->size, low) != reaching(c, c->size, high);
    if (!c->row) return 1;
    int32_t found = 0;
    for (int64_t i = 0; i < c->width; i++) {
        double logit = (double)c->row[i] * c->scale;
        found += (logit >= low) & (logit <= high);
    }
    return found > 0;
}

/* The least logit that eta leaves, given the entropy. */
static double eta_border(candidates *c, double epsilon, double entropy) {
    double border = sqrt(epsilon) * gl_exp(-entropy);
    return log_sum_exp_of(c) + gl_log(border < epsilon ? border : epsilon) - SLACK;
}

/* Keeps the tokens with at least the probability min(epsilon, sqrt(epsilon) * exp(-entropy)). */
void keep_eta(candidates *c, double epsilon) {
    double highest = log_sum_exp_of(c) + gl_log(epsilon); /* that the border can be */
    if (c->failure || (c->complete && head_logit(c, c->size - 1) > highest)) return;
    /* Mostly no token is so close to the border that the last bits of the entropy matter. */
    double about = entropy_about(c), low = eta_border(c, epsilon, about + ROUGH);
    double high = eta_border(c, epsilon, about - ROUGH);
    if (c->failure) return;
    if (!isnan(about) && !is_between(c, low, high)) {
        keep_from(c, high);
        return;
    }
    everyone all = everyone_of(c);
    if (c->failure) return;
    keep_from(c, eta_border(c, epsilon, entropy_of(&all)));
}

/* A token as typical-p sees it. */
typedef struct {
    double distance; /* of its surprise from the entropy */
    double mass;
    float logit;
} typical;

enum { FEW = 256 };  /* so many tokens are sorted by comparing them */

static double distance_of(const everyone *all, double entropy, float logit) {
    return fabs(((all->most - (double)logit * all->scale) + all->number) - entropy);
}

/* For qsort: the closest first, ties by higher logit. */
static int by_distance(const void *a, const void *b) {
    const typical *x = a, *y = b;
    if (x->distance != y->distance) return x->distance < y->distance ? -1 : 1;
    return x->logit > y->logit ? -1 : x->logit < y->logit;
}

/* The mass of the tokens of a bin, as four sums that are computed side by side. */
typedef double bin[4];

/* Returns the bin in which the sum of the masses, the closest first, reaches what is wanted, and adds those before it to
 * `below`. */
static int bin_with(bin *bins, double wanted, double *below) {
    for (int number = 0; number < GL_BINS - 1; number++) {
        double mass = (bins[number][0] + bins[number][1]) + (bins[number][2] + bins[number][3]);
        if (*below + mass >= wanted) return number;
        *below += mass;
    }
    return GL_BINS - 1;
}

static typical typical_of(const everyone *all, double entropy, int64_t place) {
    float logit = all->logits[place];
    return (typical){distance_of(all, entropy, logit), all->masses[place], logit};
}

/* Divides tokens into bins again and keeps those of one, until they are few or equally far from the entropy. Returns how
 * many are left, or 0 if they cannot be divided. */
static int64_t narrow_further(typical *some, int64_t count, double wanted, double *below) {
    while (count > FEW) {
        bin bins[GL_BINS] = {0};
        double least = INFINITY, most = 0;
        for (int64_t i = 0; i < count; i++) least = MIN(least, some[i].distance), most = MAX(most, some[i].distance);
        double per_nat = (GL_BINS - 1) / (most - least);
        if (!(per_nat > 0)) return 0;
        if (per_nat == INFINITY) break; /* else the closest and the farthest are in different bins */
        for (int64_t i = 0; i < count; i++)
            bins[(int)((some[i].distance - least) * per_nat)][i & 3] += some[i].mass;
        int chosen = bin_with(bins, wanted, below);
        int64_t before = count;
        count = 0;
        for (int64_t i = 0; i < before; i++)
            if ((int)((some[i].distance - least) * per_nat) == chosen) some[count++] = some[i];
    }
    return count;
}

static typical *new_typical(candidates *c, int64_t count) {
    typical *some = malloc(((size_t)count + 1) * sizeof *some);
    if (!some) c->failure = GL_NO_MEMORY;
    return some;
}

/* Finds those survivors among which the wanted mass is reached, the closest first. Returns them, in memory that the
 * caller frees, or NULL, and notes the failure, if there is none; those that are closer have the mass `below`. */
static typical *narrow_down(candidates *c, const everyone *all, double entropy, double wanted, uint16_t *numbers,
                            int64_t *count, double *below) {
    bin bins[GL_BINS] = {0};
    gl_active()->bins(all->logits, all->count, all->scale, all->most, all->number, entropy, numbers);
    for (int64_t i = 0; i < all->count; i++) bins[numbers[i]][i & 3] += all->masses[i];
    int chosen = bin_with(bins, wanted, below);
    int32_t size = 0;
    for (int64_t i = 0; i < all->count; i++) size += numbers[i] == chosen;
    typical *some = new_typical(c, size);
    *count = 0;
    for (int64_t i = 0; some && i < all->count; i++)
        if (numbers[i] == chosen) some[(*count)++] = typical_of(all, entropy, i);
    if (some) *count = narrow_further(some, *count, wanted, below);
    return some;
}

/* Returns the distance of the last token that is kept, by the definition: the masses are added up one by one. */
static double border_by_sorting(candidates *c, const everyone *all, double entropy, double wanted) {
    typical *some = new_typical(c, all->count);
    if (!some) return 0;
    for (int64_t i = 0; i < all->count; i++) some[i] = typical_of(all, entropy, i);
    qsort(some, all->count, sizeof *some, by_distance);
    double reached = 0;
    int64_t last = 0;
    while (!((reached += some[last].mass) >= wanted) && last < all->count - 1) last++;
    double border = some[last].distance;
    free(some);
    return border;
}

/* Returns the same. The masses are added up in another order, unless rounding could then decide. */
static double border_of(candidates *c, const everyone *all, double entropy, double wanted, uint16_t *numbers) {
    double reached = 0, border = -1;
    int64_t count;
    typical *some = narrow_down(c, all, entropy, wanted, numbers, &count, &reached);
    if (!some) return 0;
    if (count <= FEW) qsort(some, count, sizeof *some, by_distance); /* else they are equally far */
    for (int64_t i = 0; i < count && border < 0 && reached <= wanted - UNSURE;) {
        double distance = some[i].distance;
        do reached += some[i++].mass;
        while (i < count && some[i].distance == distance);
        if (reached >= wanted + UNSURE) border = distance;
    }
    free(some);
    return border < 0 ? border_by_sorting(c, all, entropy, wanted) : border;
}

/* Removes the survivors that are farther from the entropy than the border. */
static void keep_close(candidates *c, const everyone *all, double entropy, double border) {
    if (!c->listed) {
        if (!own_row(c)) return;
        touch(c);
        gl_active()->keep_close(c->row, c->width, all->scale, all->most, all->number, entropy, border);
        return;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < c->size; i++)
        if (distance_of(all, entropy, c->head[i].value) <= border) c->head[kept++] = c->head[i];
    c->size = kept;
    c->summed = 0;
}

/* Keeps the tokens whose surprise is closest to the entropy and that together have this probability, with all that are
 * as close as the last of these. */
void keep_typical(candidates *c, double mass) {
    everyone all = everyone_of(c);
    if (c->failure) return;
    uint16_t *numbers = gl_memory(GL_FOR_BINS, (size_t)all.count * sizeof *numbers);
    all.masses = gl_memory(GL_FOR_MASSES, (size_t)all.count * sizeof *all.masses);
    if (!numbers || !all.masses) {
        c->failure = GL_NO_MEMORY;
        return;
    }
    double entropy = entropy_of(&all), border = border_of(c, &all, entropy, mass - SLACK, numbers);
    if (!c->failure) keep_close(c, &all, entropy, border);
}
