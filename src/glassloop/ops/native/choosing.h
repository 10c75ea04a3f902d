/* Choosing tokens: what decoding sends to the library and what it gets back.
 *
 * `decode/rules.py` and `decode/chosen.py` define what rules and records mean; layout.c exports where every field
 * lies, and Python compares that with its own definitions.
 */
#ifndef GLASSLOOP_CHOOSING_H
#define GLASSLOOP_CHOOSING_H

#include "native.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

enum { FIRST_HEAD = 64 }; /* how many logits are sorted at first: HEAD in decode/candidates.py */
#define SLACK 1e-9        /* probability masses closer than this count as equal, so that rounding never decides a cut */

/* What a rule does to a row of logits: `Action` in decode/rules.py. */
enum gl_action {
    GL_RULE_DIVIDE,
    GL_RULE_LESS,
    GL_RULE_REMOVE,
    GL_RULE_KEEP,
    GL_RULE_SCALE,
    GL_RULE_FIRST,
    GL_RULE_MASS,
    GL_RULE_SHARE,
    GL_RULE_PROBABILITY,
    GL_RULE_TYPICAL,
    GL_RULE_SIGMA,
    GL_RULE_EXCLUDE,
    GL_RULE_ETA
};

/* What the array of a rule holds. */
enum gl_selection { GL_NOTHING, GL_IDS, GL_MASK };

/* Why a row has no result. These take the place of a token id or of a count, which are never negative. */
enum gl_failure { GL_NONE_LEFT = -1, GL_WRONG_RULE = -2, GL_NO_MEMORY = -3, GL_NEEDS_ROW = -4 };

typedef struct {
    int32_t action;        /* enum gl_action */
    int32_t selection;     /* enum gl_selection: what `which` holds */
    int64_t count;         /* of entries of `which` */
    double amount;
    const void *which;     /* int32 ids, or a byte for each token of the vocabulary */
    const double *numbers; /* a factor of the amount for each id, or NULL */
} gl_rule;

/* How a token is to be chosen from a row of logits. */
typedef struct {
    int64_t head; /* how many of the highest logits to sort at first, from 1 to the width of the row */
    double scale; /* the scale at which the rules need the log-sum-exp of the untouched row; 1 if they do not */
    const gl_rule *rules;
    int64_t count;
    uint64_t branch_key;
    int64_t with_luck;    /* 0: the highest logit wins */
    int64_t alternatives; /* how many of the highest logits to record, at most `head` */
} gl_request;

typedef struct {
    const gl_request *request;
    float *logits;    /* may be changed during the call; restored at its end. NULL: only what was found is here */
    int64_t position; /* of the token to choose */
} gl_line;

/* One of the model's likeliest tokens with its log-probabilities. */
typedef struct {
    int64_t id;
    double logprob;     /* after the rules */
    double raw_logprob; /* the model's own */
} gl_alternative;

/* A choice; decode/chosen.py says what the fields mean. */
typedef struct {
    int64_t id; /* or an enum gl_failure */
    double logprob, raw_logprob;
    int64_t rank, rank_after;
    double entropy, log_sum_exp, log_sum_exp_after, scale, luck, margin;
    int64_t runner_up; /* -1: there is none */
    int64_t survivors; /* -1: not counted */
    gl_alternative alternatives[];
} gl_record;

/* What is left of a row after some of its rules, for `gl_survivors`. */
typedef struct {
    int64_t complete; /* the head holds all survivors */
    int64_t listed;   /* the head alone is valid, not the row */
    double scale, log_sum_exp;
} gl_remainder;

/* What another device has found in a row of logits, without its arrays: each is a range of bytes behind this header.
 * First come the sums of each part of the row, as `gl_add_parts` adds them up, then the tokens. A `gl_cut` follows, and
 * the sums of each part over the survivors. */
typedef struct {
    int32_t count;  /* of tokens that were found to be high: at least the `head` highest, in any order */
    int32_t others; /* of other tokens that may win the race or be second in it */
    int32_t winner; /* the winner of the race among all tokens, if it is not one of those that are high; else -1. In a
                       row that is followed by one after its edits: the token that is likely to be chosen */
    int32_t rank;   /* how many logits come before the winner's */
    float most;     /* the highest logit */
    float least;    /* of the logits that count as high; minus infinity: all that were not removed do */
    double bound;   /* the score of the second in the race, or less */
    float own;      /* the logit of the winner */
    int32_t unused;
} gl_found;

enum { GL_MOST_HIGH = 256, GL_MOST_OTHERS = 64 }; /* how many of either are stored; there may have been more */
enum { GL_MOST_RACERS = 64 };

/* What another device has found when it has followed all rules of a row after the edits. The survivors follow one
 * another in the order of the row, the highest logit first, ties by lower id. */
typedef struct {
    int32_t valid;           /* 0: the device has not followed them, or rounding might decide which token is kept */
    int32_t listed;          /* the tokens were listed (`candidates`): `sum` is valid, else the sums of the parts */
    int32_t complete;
    int32_t count;           /* of survivors */
    int32_t before;          /* how many tokens of the row come before the first survivor */
    int32_t first, last;     /* survivors */
    float highest, lowest;   /* their logits, without the scale */
    int32_t unused;
    double sum;              /* of the weights of all survivors, in order; a weight is relative to the first's */
    /* Among these survivors are the first and the second in the race, or without luck, they begin with these. */
    int32_t ids[GL_MOST_RACERS]; /* -1: there is none */
    float logits[GL_MOST_RACERS];
    int32_t places[GL_MOST_RACERS]; /* in the order of the row */
} gl_cut;

/* What one pass over a row found. */
typedef struct row_facts {
    const gl_candidate *highest; /* the `head` highest logits in order; on another device, all that are high */
    gl_sums sums;
    double scale;                /* of the logits in `sums.scaled` */
    const gl_found *found;       /* if the row itself is on another device; NULL otherwise */
    const gl_cut *cut;           /* then: what all rules have left; NULL if that is not known */
    const gl_candidate *others;  /* then: the tokens beside those that are high that may win the race or be second */
    const struct row_facts *edited; /* then: the same about the row after its edits, the rules about single tokens
                                       that come before all others; NULL if there are none */
} row_facts;

/* The tokens of one row that the rules have left so far (candidates.c). */
typedef struct {
    const gl_request *request;
    const row_facts *facts;
    float *logits;        /* the caller's row */
    int64_t width;
    float *row;           /* every logit as the rules have left it, without the scale; minus infinity: removed.
                             NULL: on another device */
    float *own;           /* the memory of `row` where it is not the caller's */
    double scale;
    gl_candidate *head;   /* sorted: the highest survivors in order; else: all tokens that may be among them */
    int64_t size, room;   /* of the head */
    double *sums;         /* of the weights of the head's first tokens, in order; a weight is relative to the first's */
    int64_t summed, sums_room;
    int sorted, complete; /* complete: the head holds all survivors */
    int listed;           /* the head alone is valid, not the row */
    int touched;          /* a logit was changed */
    int anew;             /* after a change of the row the head is found anew, as `decode/candidates.py` does it */
    int has_row_sum;
    double row_sum, row_entropy; /* log-sum-exp of the row, and its entropy up to rounding */
    int past_edits;       /* a rule was followed that is not about single tokens */
    int failure;          /* an enum gl_failure: then no other field is meaningful */
    float bound;          /* while not sorted: no token outside the head is above this */
    int64_t ordered;      /* while not sorted: so many tokens at the start of the head were sorted */
    struct change {
        int32_t id;
        float before;
    } *changes;           /* of the caller's row, to be undone at the end */
    int64_t changed, changes_room;
} candidates;

static inline double head_logit(const candidates *c, int64_t place) { return (double)c->head[place].value * c->scale; }

candidates candidates_after(const gl_line *line, const row_facts *facts, int64_t width, int64_t count);
void free_candidates(candidates *c);
void touch(candidates *c);
int own_row(candidates *c);
double logit_of(const candidates *c, gl_candidate one);
double log_sum_exp_of(candidates *c);
double entropy_about(candidates *c);
float edited_logit(const gl_request *request, gl_candidate one);

/* The head (head.c). */
int make_room(candidates *c, int64_t wanted);
void set_head(candidates *c, int64_t found, int64_t looked_for);
const row_facts *facts_now(const candidates *c);
void grow(candidates *c, int64_t count);
int64_t place_of(const candidates *c, int32_t id);
const double *sums_of(candidates *c);

/* What the rules about the shape of the distribution do (cuts.c). There is at least one survivor. */
void cut(candidates *c, const gl_rule *rule);
int64_t count_of(const candidates *c, double amount);
int64_t reaching(const candidates *c, int64_t count, double logit);
void keep_from(candidates *c, double logit);
void keep_likely(candidates *c, double probability);
void keep_typical(candidates *c, double mass);
void keep_deviations(candidates *c, double deviations);
void keep_eta(candidates *c, double epsilon);

#endif
