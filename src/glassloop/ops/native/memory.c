/* Memory for work on one row of logits that a thread keeps for its next row: to get some hundred kilobytes from the
 * system and to return them takes longer than most of the work. */
#include <pthread.h>
#include <stdlib.h>

#include "native.h"

typedef struct {
    void *start;
    size_t bytes;
} piece;

static _Thread_local piece *kept; /* [GL_PURPOSES] */
static pthread_key_t at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_pieces(void *argument) {
    piece *pieces = argument;
    for (int purpose = 0; purpose < GL_PURPOSES; purpose++) free(pieces[purpose].start);
    free(pieces);
}

static void make_key(void) { pthread_key_create(&at_exit, free_pieces); }

/* Returns this thread's memory for a purpose, at least so many bytes, with what it has held so far. NULL if there is
 * none. */
void *gl_memory(enum gl_purpose purpose, size_t bytes) {
    if (!kept) {
        pthread_once(&once, make_key);
        kept = calloc(GL_PURPOSES, sizeof *kept);
        if (!kept) return NULL;
        pthread_setspecific(at_exit, kept);
    }
    if (kept[purpose].bytes < bytes) {
        void *larger = realloc(kept[purpose].start, bytes);
        if (!larger) return NULL;
        kept[purpose] = (piece){larger, bytes};
    }
    return kept[purpose].start;
}
