/* The string arrays of model files (a vocabulary, its merges): a length of eight bytes before each string. */
#include <stdint.h>
#include <string.h>

/* Copies `count` strings to `to`, a zero byte after each, and tells how many bytes they took of the `size` at
 * `from`. Without a `to` it only tells. 0: they do not fit into `size`, or one of them holds a zero byte. */
int64_t gl_join_strings(const uint8_t *from, int64_t size, int64_t count, uint8_t *to) {
    const uint8_t *at = from, *end = from + size;
    for (int64_t i = 0; i < count; i++) {
        uint64_t length;
        if (end - at < 8) return 0;
        memcpy(&length, at, 8);
        at += 8;
        if (length > (uint64_t)(end - at) || memchr(at, 0, length)) return 0;
        if (to) {
            memcpy(to, at, length);
            to[length] = 0;
            to += length + 1;
        }
        at += length;
    }
    return at - from;
}
