/* Lines that another daemon was told over the control connection and may not have heard, where
 * recovery is on. Lines are counted on both sides, and kept until the other one says how many have
 * come. On the next connection the lines that it lacks are said again. Pings and the handshake are
 * not counted. */
#ifndef SERVER_JOBS_CONVERSATION_H
#define SERVER_JOBS_CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/quota.h"

#define CONVERSATION_MOST_BYTES (16ull << 20)
/* A user for whom so much is kept begins nothing new. A line that ends something is no longer than
 * the one that began it, so a user has at most half of all. */
#define CONVERSATION_USER_MOST_BYTES (CONVERSATION_MOST_BYTES / 4)

struct conversation_line {
    struct conversation_line *next;
    uint32_t user; /* whose it is; root's, if it is nobody's */
    size_t length; /* without the NUL behind it */
    char text[];
};

struct conversation {
    uint64_t said;       /* lines to the other daemon */
    uint64_t heard;      /* lines of it */
    uint64_t kept_bytes; /* of the lines from `first` on, the last one of which is number `said` */
    uint32_t kept;
    struct quota users; /* of the bytes, whose they are */
    struct conversation_line *first, *last;
};

/* Begin the conversation, or end it: nothing is kept or counted. */
void conversation_clear(struct conversation *conversation);
/* Drop what is kept: the conversation cannot go on over another connection. The counts stay. */
void conversation_keep_nothing(struct conversation *conversation);
/* Whether something new may be begun for the user. Root may. */
bool conversation_may_begin(const struct conversation *conversation, uint32_t user);
/* A line of the user's is said. False: it could not be kept (no memory, or
 * CONVERSATION_MOST_BYTES), so that the conversation cannot go on over another connection. */
bool conversation_say(struct conversation *conversation, uint32_t user, const char *line,
                      size_t length);
/* Drop the lines that have come, of which the other daemon says how many (heard). ERR_PROTOCOL:
 * more than were said, or fewer than it has said before. */
int conversation_acknowledge(struct conversation *conversation, uint64_t heard,
                             struct error *error);

#endif
