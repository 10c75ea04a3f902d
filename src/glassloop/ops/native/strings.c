/* String arrays of model files (a vocabulary, its merges): each string has its length, eight bytes, before it. */
#include <stdint.h>
#include <string.h>

/* Copies `count` strings to `to` (unless it is NULL), with a zero byte after each. Returns how many of the `size`
 * bytes at `from` they take, or 0 if they do not fit or a string holds a zero byte. */
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
