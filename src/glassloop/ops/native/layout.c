/* Where every field lies that both C and Python name, and the value of every constant that both have. library.py
 * compares this table with its own definitions when it loads the library, and `decode/` does so with the record and
 * the actions of rules. */
#include "choosing.h"

typedef struct {
    const char *name;
    int64_t value;
} gl_constant;

#define SIZE(type) {#type, sizeof(type)}
#define AT(type, field) {#type "." #field, offsetof(type, field)}
#define IS(constant) {#constant, constant}
#define ACTION(name) {"action." #name, GL_RULE_##name}
#define RECORD(field) {"record." #field, offsetof(gl_record, field)}
#define ALTERNATIVE(field) {"alternative." #field, offsetof(gl_alternative, field)}

static const gl_constant table[] = {
    IS(GL_BLOCK), IS(GL_PAGE), {"gl_block", sizeof(gl_block)},

    SIZE(gl_matrix), AT(gl_matrix, data), AT(gl_matrix, out), AT(gl_matrix, in), AT(gl_matrix, tile_bytes),
    AT(gl_matrix, packing), AT(gl_matrix, has_minimum), AT(gl_matrix, scale), AT(gl_matrix, half_groups),
    AT(gl_matrix, factor), AT(gl_matrix, table),
    IS(GL_F32), IS(GL_F16), IS(GL_BF16), IS(GL_Q4), IS(GL_Q8), IS(GL_TABLE), IS(GL_Q2), IS(GL_SCALE_F16),
    IS(GL_SCALE_BF16), IS(GL_SCALE_STEPS), IS(GL_SCALE_ZEROS),

    SIZE(gl_pack_job), AT(gl_pack_job, raw), AT(gl_pack_job, data), AT(gl_pack_job, matrix), AT(gl_pack_job, rows),
    AT(gl_pack_job, row_bytes), AT(gl_pack_job, grid), AT(gl_pack_job, format), AT(gl_pack_job, next),

    SIZE(gl_op), AT(gl_op, kind), AT(gl_op, wait), AT(gl_op, wanted), AT(gl_op, quantize), AT(gl_op, width),
    AT(gl_op, a), AT(gl_op, b), AT(gl_op, out), AT(gl_op, i0), AT(gl_op, i1), AT(gl_op, i2), AT(gl_op, group),
    AT(gl_op, only_quantized), AT(gl_op, f0), AT(gl_op, f1), AT(gl_op, matrix), AT(gl_op, weight), AT(gl_op, bias),
    AT(gl_op, adapters), AT(gl_op, routing), AT(gl_op, experts),

    SIZE(gl_routing), AT(gl_routing, experts), AT(gl_routing, chosen), AT(gl_routing, scores), AT(gl_routing, normalized),
    AT(gl_routing, groups), AT(gl_routing, chosen_groups), AT(gl_routing, epsilon), AT(gl_routing, factor),
    AT(gl_routing, closeness), AT(gl_routing, choice_bias), AT(gl_routing, factors), IS(GL_MOST_EXPERTS),
    IS(GL_MOST_CHOSEN), IS(GL_MOST_GROUPS), IS(GL_SOFTMAX), IS(GL_LOGISTIC), IS(GL_CHOSEN), IS(GL_MIXER),

    SIZE(gl_experts), AT(gl_experts, gate), AT(gl_experts, up), AT(gl_experts, down), AT(gl_experts, gate_bias),
    AT(gl_experts, up_bias), AT(gl_experts, down_bias), AT(gl_experts, count), AT(gl_experts, chosen), AT(gl_experts, ffn),
    AT(gl_experts, weigh_input), AT(gl_experts, activation), AT(gl_experts, limit), AT(gl_experts, slope),
    AT(gl_experts, shift),

    SIZE(gl_adapter), AT(gl_adapter, down), AT(gl_adapter, up), AT(gl_adapter, scale),

    SIZE(gl_buffer), AT(gl_buffer, values), AT(gl_buffer, quantized),

    SIZE(gl_cache), AT(gl_cache, keys), AT(gl_cache, values), AT(gl_cache, layers), AT(gl_cache, kv_heads),
    AT(gl_cache, head_dim), AT(gl_cache, padded_head_dim), AT(gl_cache, pages),

    SIZE(gl_program), AT(gl_program, ops), AT(gl_program, count), AT(gl_program, groups), AT(gl_program, buffers),
    AT(gl_program, batch), AT(gl_program, caches), AT(gl_program, states),
    AT(gl_program, times),

    SIZE(gl_states), AT(gl_states, states), AT(gl_states, rows), AT(gl_states, state), AT(gl_states, row),
    AT(gl_states, layers), AT(gl_states, state_count), AT(gl_states, row_count),

    SIZE(gl_times), AT(gl_times, working), AT(gl_times, waiting), AT(gl_times, units),

    SIZE(gl_batch), AT(gl_batch, rows), AT(gl_batch, wanted_rows), AT(gl_batch, spans), AT(gl_batch, tokens),
    AT(gl_batch, positions), AT(gl_batch, wanted), AT(gl_batch, span), AT(gl_batch, adapters), AT(gl_batch, reach),

    SIZE(gl_span), AT(gl_span, first_row), AT(gl_span, rows), AT(gl_span, first_slot), AT(gl_span, stride),
    AT(gl_span, pages),

    SIZE(gl_fault), AT(gl_fault, wrong), AT(gl_fault, at), AT(gl_fault, found), AT(gl_fault, limit),

    SIZE(gl_chain), AT(gl_chain, branch_key), AT(gl_chain, position), AT(gl_chain, scale), AT(gl_chain, with_luck),
    AT(gl_chain, most), AT(gl_chain, chance), AT(gl_chain, keep), AT(gl_chain, next), AT(gl_chain, drawn),
    AT(gl_chain, kept), AT(gl_chain, tokens), AT(gl_chain, margins), IS(GL_MOST_DRAFTS), IS(GL_MARGINS),

    IS(GL_EMBED), IS(GL_NORM), IS(GL_LINEAR), IS(GL_DOWN), IS(GL_UP), IS(GL_ANGLES), IS(GL_ROTATE), IS(GL_KEEP), IS(GL_ATTEND),
    IS(GL_ACTIVATE), IS(GL_ADD), IS(GL_SCALE), IS(GL_SOFTCAP), IS(GL_TAKE), IS(GL_ROUTE), IS(GL_GROUP), IS(GL_WEIGH),
    IS(GL_EXPERTS_INNER), IS(GL_EXPERTS_OUTER), IS(GL_QUANTIZE), IS(GL_CONV),

    IS(GL_SILU), IS(GL_GELU_TANH), IS(GL_GELU), IS(GL_RELU), IS(GL_SIGMOID), IS(GL_RELU2), IS(GL_NONE), IS(GL_TOKENS), IS(GL_POSITIONS), IS(GL_ADAPTERS),

    IS(GL_PRODUCTS), IS(GL_SCALED), IS(GL_WITH_MINIMUM), IS(GL_WORDS),

    IS(GL_FINE), IS(GL_WRONG_TOKEN), IS(GL_WRONG_POSITION), IS(GL_WRONG_PAGE), IS(GL_WRONG_WANTED), IS(GL_WRONG_SPAN),
    IS(GL_WRONG_ADAPTER), IS(GL_WRONG_REACH), IS(GL_WRONG_STATE),

    SIZE(gl_rule), AT(gl_rule, action), AT(gl_rule, selection), AT(gl_rule, count), AT(gl_rule, amount),
    AT(gl_rule, which), AT(gl_rule, numbers),

    SIZE(gl_request), AT(gl_request, head), AT(gl_request, scale), AT(gl_request, rules), AT(gl_request, count),
    AT(gl_request, branch_key), AT(gl_request, with_luck), AT(gl_request, alternatives),

    SIZE(gl_line), AT(gl_line, request), AT(gl_line, logits), AT(gl_line, position),

    SIZE(gl_remainder), AT(gl_remainder, complete), AT(gl_remainder, listed), AT(gl_remainder, scale),
    AT(gl_remainder, log_sum_exp),

    SIZE(gl_found), AT(gl_found, count), AT(gl_found, others), AT(gl_found, winner), AT(gl_found, rank),
    AT(gl_found, most), AT(gl_found, least), AT(gl_found, bound), AT(gl_found, own), AT(gl_found, unused),
    IS(GL_MOST_HIGH), IS(GL_MOST_OTHERS), IS(GL_MOST_RACERS),

    SIZE(gl_cut), AT(gl_cut, valid), AT(gl_cut, listed), AT(gl_cut, complete), AT(gl_cut, count), AT(gl_cut, before),
    AT(gl_cut, first), AT(gl_cut, last), AT(gl_cut, highest), AT(gl_cut, lowest), AT(gl_cut, unused), AT(gl_cut, sum),
    AT(gl_cut, ids), AT(gl_cut, logits), AT(gl_cut, places),

    IS(GL_NOTHING), IS(GL_IDS), IS(GL_MASK), IS(GL_NONE_LEFT), IS(GL_WRONG_RULE), IS(GL_NO_MEMORY), IS(GL_NEEDS_ROW),

    ACTION(DIVIDE), ACTION(LESS), ACTION(REMOVE), ACTION(KEEP), ACTION(SCALE), ACTION(FIRST), ACTION(MASS),
    ACTION(SHARE), ACTION(PROBABILITY), ACTION(TYPICAL), ACTION(SIGMA), ACTION(EXCLUDE), ACTION(ETA),

    {"record", sizeof(gl_record)}, RECORD(id), RECORD(logprob), RECORD(raw_logprob), RECORD(rank), RECORD(rank_after),
    RECORD(entropy), RECORD(log_sum_exp), RECORD(log_sum_exp_after), RECORD(scale), RECORD(luck), RECORD(margin),
    RECORD(runner_up), RECORD(survivors),

    {"alternative", sizeof(gl_alternative)}, ALTERNATIVE(id), ALTERNATIVE(logprob), ALTERNATIVE(raw_logprob),
};

/* The table. Writes how many entries it has to `count`. */
const gl_constant *gl_constants(int64_t *count) {
    *count = sizeof table / sizeof *table;
    return table;
}
