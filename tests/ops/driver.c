/* Runs a recorded program without Python, for tests of the kernels under an emulator: reads a file that
 * `ops/recording.py` wrote, packs the matrices for the instruction set named on the command line, computes the batches
 * one after another, and writes all results and records made from them to the standard output.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"

int gl_select_kernels(const char *name);
int64_t gl_pack_size(gl_matrix *m);
void gl_pack(gl_pack_job *jobs, int64_t count);
int64_t gl_progress_bytes(int32_t ops);
int gl_run(const gl_program *program, void *memory, float *scratch, int64_t scratch_size, gl_fault *fault);
int gl_choose_rows(const gl_line *lines, int64_t count, int64_t width, char *records, int64_t record_bytes);

static FILE *file;

static void *take(int64_t bytes) {
    void *memory = calloc(1, (size_t)bytes + 64);
    if (!memory || fread(memory, 1, (size_t)bytes, file) != (size_t)bytes) exit(3);
    return memory;
}

static int64_t number(void) {
    int64_t *one = take(8), value = *one;
    free(one);
    return value;
}

/* The records of some ways to choose a token from each row. */
static void write_records(float *logits, int64_t rows, int64_t width) {
    const gl_rule rules[] = {{GL_RULE_SCALE, GL_NOTHING, 0, 1 / 0.7, NULL, NULL},
                             {GL_RULE_MASS, GL_NOTHING, 0, 0.9, NULL, NULL},
                             {GL_RULE_SHARE, GL_NOTHING, 0, 0.02, NULL, NULL},
                             {GL_RULE_PROBABILITY, GL_NOTHING, 0, 0.001, NULL, NULL}};
    for (int64_t count = 0; count <= 4; count++) {
        gl_request request = {MIN(width, 64), count ? 1 / 0.7 : 1, rules, count, 12345, count != 0, MIN(width, 5)};
        int64_t size = (int64_t)sizeof(gl_record) + request.alternatives * (int64_t)sizeof(gl_alternative);
        char *records = calloc((size_t)rows, (size_t)size);
        for (int64_t row = 0; row < rows; row++) {
            gl_line line = {&request, logits + row * width, row};
            if (gl_choose_rows(&line, 1, width, records + row * size, size)) exit(4);
        }
        fwrite(records, (size_t)size, (size_t)rows, stdout);
        free(records);
    }
}

int main(int count, char **arguments) {
    if (count != 3 || !(file = fopen(arguments[2], "rb"))) return 2;
    if (!gl_select_kernels(arguments[1])) return 5;
    int64_t matrices = number(), vectors = number(), ops = number(), buffers = number(), groups = number();
    int64_t batches = number(), longest = number(), tables = number();
    gl_matrix *matrix = calloc((size_t)matrices + 1, sizeof *matrix);
    for (int64_t i = 0; i < matrices; i++) {
        int64_t format = number(), row_bytes = number(), grid_bytes = number();
        gl_matrix *about = take(sizeof *about);
        uint8_t *grid = take(grid_bytes), *raw = take(about->out * row_bytes), *packed = calloc(1, (size_t)gl_pack_size(about) + 64);
        matrix[i] = *about;
        matrix[i].data = packed;
        gl_pack(&(gl_pack_job){raw, packed, &matrix[i], matrix[i].out, row_bytes, grid, (int32_t)format, 0}, 1);
        free(about);
        free(grid);
        free(raw);
    }
    float **vector = calloc((size_t)vectors + 1, sizeof *vector);
    for (int64_t i = 0; i < vectors; i++) vector[i] = take(number());
    gl_adapter **table = calloc((size_t)tables + 1, sizeof *table);
    for (int64_t i = 0; i < tables; i++) {
        int64_t adapters = number();
        table[i] = calloc((size_t)adapters, sizeof **table);
        for (int64_t j = 0; j < adapters; j++) {
            int64_t down = number(), up = number();
            double *scale = take(8);
            table[i][j] = (gl_adapter){down ? matrix + down - 1 : NULL, up ? matrix + up - 1 : NULL, (float)*scale};
        }
    }
    gl_op *op = take(ops * (int64_t)sizeof *op); /* pointers are places in the lists above, from 1 on */
    for (int64_t i = 0; i < ops; i++) {
        if (op[i].matrix) op[i].matrix = matrix + (intptr_t)op[i].matrix - 1;
        if (op[i].weight) op[i].weight = vector[(intptr_t)op[i].weight - 1];
        if (op[i].adapters) op[i].adapters = table[(intptr_t)op[i].adapters - 1];
        if (op[i].bias) op[i].bias = vector[(intptr_t)op[i].bias - 1];
    }
    struct {
        int64_t width, wanted, quantized, result;
    } *room = take(buffers * 32);
    gl_cache *cache = take(groups * (int64_t)sizeof *cache);
    for (int64_t i = 0; i < groups; i++) {
        int64_t heads = (int64_t)cache[i].pages * cache[i].layers * cache[i].kv_heads * GL_PAGE;
        cache[i].keys = calloc((size_t)(heads * gl_key_rows(cache[i].head_dim)), 4);
        cache[i].values = calloc((size_t)(heads * cache[i].padded_head_dim), 2);
    }
    int64_t widest = 0;
    for (int64_t i = 0; i < buffers; i++) widest = MAX(widest, room[i].width);
    int64_t scratch_size = widest + 12 * (longest + 2 * GL_PAGE + 1024);
    float *scratch = calloc((size_t)scratch_size, sizeof *scratch);
    void *progress = calloc(1, (size_t)gl_progress_bytes((int32_t)ops));
    while (batches--) {
        gl_batch batch = {(int32_t)number(), (int32_t)number(), (int32_t)number(), NULL, NULL, NULL, NULL, NULL};
        batch.tokens = take(4 * batch.rows);
        batch.positions = take(4 * batch.rows);
        batch.wanted = take(4 * batch.wanted_rows);
        int64_t adapted = number();
        if (adapted) batch.adapters = take(4 * adapted);
        gl_span *span = calloc((size_t)batch.spans, sizeof *span);
        for (int32_t i = 0; i < batch.spans; i++) {
            int32_t *about = take(16);
            memcpy(span + i, about, 16);
            span[i].pages = take(4 * groups * span[i].stride);
        }
        batch.span = span;
        gl_buffer *buffer = calloc((size_t)buffers, sizeof *buffer);
        for (int64_t i = 0; i < buffers; i++) {
            int64_t rows = room[i].wanted ? batch.wanted_rows : batch.rows;
            buffer[i].values = calloc((size_t)(rows * room[i].width) + 64, sizeof(float));
            size_t blocks = (size_t)(rows * room[i].quantized * gl_blocks(room[i].width));
            buffer[i].quantized = calloc(blocks + 2, sizeof(gl_block));
        }
        gl_program program = {op, (int32_t)ops, (int32_t)groups, buffer, &batch, cache};
        gl_fault fault;
        if (!gl_run(&program, progress, scratch, scratch_size, &fault)) return 6;
        for (int64_t i = 0; i < buffers; i++) {
            if (room[i].result) {
                fwrite(buffer[i].values, sizeof(float), (size_t)(batch.wanted_rows * room[i].width), stdout);
                write_records(buffer[i].values, batch.wanted_rows, room[i].width);
            }
            free(buffer[i].values);
            free(buffer[i].quantized);
        }
        free(buffer);
    }
    return 0;
}
