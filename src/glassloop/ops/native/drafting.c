/* Chains of drafts: a program computes a step, a token is drawn from its logits, and the program runs again with it. */
#include <math.h>

#include "native.h"

/* A token whose logit, scaled, lies further below the highest than this would need luck that one in 8,000 has. It is
 * not looked at: a draft may be wrong. */
#define FARTHEST 9.0

typedef struct {
    int64_t place; /* among the logits; -1: none of them is a number */
    double margin; /* before the next one */
} draw;

static draw draw_token(const float *logits, const int32_t *ids, int64_t width, const gl_chain *chain, int64_t number) {
    uint64_t key = gl_mix(chain->branch_key + GL_GOLDEN + (uint64_t)(chain->position + number));
    double best = -INFINITY, second = -INFINITY;
    int64_t place = -1;
    float bound = (float)(gl_active()->largest(logits, width) - FARTHEST / chain->scale);
    for (int64_t i = 0; i < width; i++) {
        if (!(logits[i] >= bound)) continue;
        double value = (double)logits[i] * chain->scale, luck = 0;
        if (chain->with_luck) gl_luck_of(key, &ids[i], 1, &luck);
        value += luck;
        if (value > best) second = best, best = value, place = i;
        else if (value > second) second = value;
    }
    return (draw){place, best - second};
}

static int32_t class_of(double margin) {
    static const double bounds[GL_MARGINS - 1] = {0.25, 0.5, 1, 1.5, 2, 3, 4.5};
    int32_t found = 0;
    while (found < GL_MARGINS - 1 && margin >= bounds[found]) found++;
    return found;
}

/* Draws the chains of all rows of a program's batch, each row a branch. The program writes `logits`, [rows, width], for
 * the tokens `ids`; its input is the state that it has written before. `tokens` are those of the batch. The caller has
 * checked that the ids are tokens. Returns 0 if the batch has a fault. */
int gl_draft(const gl_program *program, void *memory, float *scratch, int64_t scratch_size, gl_fault *fault,
             int32_t *tokens, const int32_t *ids, int64_t width, const float *logits, gl_chain *chains) {
    int32_t rows = program->batch->rows;
    double chances[rows];
    for (int32_t row = 0; row < rows; row++) chances[row] = 1, chains[row].drawn = chains[row].kept = 0;
    for (int64_t number = 0, more = 1; more && number < GL_MOST_DRAFTS; number++) {
        if (!gl_run(program, memory, scratch, scratch_size, fault)) return 0;
        more = 0;
        for (int32_t row = 0; row < rows; row++) {
            gl_chain *chain = &chains[row];
            if (chain->drawn < number || number >= chain->most) continue; /* it has stopped */
            if (number && (chain->kept < number || chances[row] < chain->next[number - 1])) continue;
            draw drawn = draw_token(logits + row * width, ids, width, chain, number);
            if (drawn.place < 0) continue;
            int32_t class = class_of(drawn.margin);
            chances[row] *= chain->chance[class];
            chain->tokens[number] = tokens[row] = ids[drawn.place];
            chain->margins[number] = class;
            chain->drawn++;
            if (chances[row] >= chain->keep[number]) chain->kept++;
            more |= chain->kept > number && number + 1 < chain->most && chances[row] >= chain->next[number];
        }
    }
    return 1;
}
