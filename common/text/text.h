/* Text put together piece by piece: what has no room is omitted. Pure. Calls nothing. */
#ifndef COMMON_TEXT_TEXT_H
#define COMMON_TEXT_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct text {
    char *at;    /* ended by a zero after each piece */
    size_t room; /* of it, at least 1 */
    size_t length;
};

/* Add a piece, printf's way. */
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "rank 3", "ranks 3, 4", "ranks 3, 4 and 2 more": `count` ranks, of which the first `named` at the
 * most are named, so that ranks[] need not have more. */
void text_add_ranks(struct text *text, const uint32_t *ranks, uint32_t count, uint32_t named);

#endif
