#include "server/status/rank_room.h"

void rank_room_want(struct rank_room *room, uint32_t user, uint32_t ranks)
{
    quota_take(&room->wanted, user, ranks);
}

static int room_compare(const struct quota_owner *one, const struct quota_owner *other)
{
    return one->used < other->used ? -1 : one->used > other->used;
}

void rank_room_share_out(struct rank_room *room, uint32_t most)
{
    uint64_t left = most, users = HASH_COUNT(room->wanted.owners);
    room->wanted.limit = room->level = most;
    if (!quota_is_short(&room->wanted, 0))
        return;
    /* Whoever wants less than as much as there is for each leaves the rest to the others. */
    HASH_SORT(room->wanted.owners, room_compare);
    for (const struct quota_owner *it = room->wanted.owners; it; it = it->hh.next) {
        room->level = left / users;
        if (it->used > room->level)
            break;
        left -= it->used;
        users--;
    }
}

void rank_room_enter(struct rank_room *room, uint32_t user)
{
    quota_take(&room->listed, room->user, room->begun - room->left);
    uint64_t used = quota_used(&room->listed, user);
    room->user = user;
    room->begun = room->left = used < room->level && quota_used(&room->wanted, user) > 0
                                   ? (uint32_t)(room->level - used)
                                   : 0;
}

void rank_room_clear(struct rank_room *room)
{
    quota_clear(&room->wanted);
    quota_clear(&room->listed);
}
