/* How many ranks the lists of one document may have, and how many of them each user's jobs. Pure.
 */
#ifndef SERVER_STATUS_RANK_ROOM_H
#define SERVER_STATUS_RANK_ROOM_H

#include "common/base/quota.h"

/* Room for so many ranks in a status document; the others are left out. The limit keeps the control
 * thread's work on a document to milliseconds, whatever jobs there are. */
struct rank_room {
    struct quota wanted; /* ranks that might be listed, by user */
    struct quota listed;
    uint64_t level; /* of one user */
    uint32_t user;
    uint32_t begun, left; /* of the user, when his turn began, and now */
};

/* Say before all else that a job of the user might list so many ranks. A user for whom there is no
 * memory gets no room. */
void rank_room_want(struct rank_room *room, uint32_t user, uint32_t ranks);
/* Then, once: so many may be listed in all. Where all that are wanted are more, users with few have
 * what they want, and the others the same. */
void rank_room_share_out(struct rank_room *room, uint32_t most);
/* Begin with a job of the user, who has `left`. */
void rank_room_enter(struct rank_room *room, uint32_t user);
void rank_room_clear(struct rank_room *room);

#endif
