/* What several owners share, in places or bytes: how much each has, and who has to go without. An
 * owner is a user, by number, or who stands behind an address. One rule holds for all that is
 * limited so (SECURITY.md, "Limits"):
 *
 * - What cannot be taken away again, such as a job that runs: nobody has more than half of it.
 * - What can, such as a job whose ranks gather: an owner may have all of it while nobody else asks.
 *   When there is no room, it is the owner who has most that gives up something.
 *
 * Pure. */
#ifndef COMMON_BASE_QUOTA_H
#define COMMON_BASE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/error.h"
#include "common/base/hash.h"

struct quota_owner {
    uint64_t owner;
    uint64_t used;
    UT_hash_handle hh; /* by owner */
};

struct quota {
    const char *what; /* "jobs", for words; a constant, as the next */
    const char *key;  /* "limits.jobs": what there is of it stands there; NULL: it is fixed */
    const char *node; /* whose it is, for words; the caller's */
    uint64_t limit;
    uint64_t own_user; /* root and this user are trusted with all of it */
    uint64_t used;
    struct quota_owner *owners; /* who have something */
};

void quota_clear(struct quota *quota);

/* Half of a limit, one at least. */
uint64_t quota_half(uint64_t limit);

/* Of a user, whether he may have so much more for good. */
bool quota_has_room(const struct quota *quota, uint64_t user, uint64_t amount);
/* ERR_MEMORY: he may not; the text says whose how much is, and what to do. */
int quota_check(const struct quota *quota, uint64_t user, uint64_t amount, struct error *error);
/* The same words, when there is no room for that, and the user himself has most. */
int quota_refuse(const struct quota *quota, uint64_t user, uint64_t amount, struct error *error);

/* Whether so much more is more than there is. */
bool quota_is_short(const struct quota *quota, uint64_t amount);
/* Who gives way, when so much more for `owner` is short: whoever has most then. Among equals it is
 * the one who asks. */
uint64_t quota_giver(const struct quota *quota, uint64_t owner, uint64_t amount);

/* It is the owner's, or no more. ERR_MEMORY: the process has no memory. */
int quota_take(struct quota *quota, uint64_t owner, uint64_t amount);
void quota_give_back(struct quota *quota, uint64_t owner, uint64_t amount);
uint64_t quota_used(const struct quota *quota, uint64_t owner);

/* Who stands behind an address of IPv4 or IPv6. One who has a network of IPv6 has 2^64 addresses of
 * it, and whoever is on this machine all that are loopback. */
uint64_t quota_owner_of(const struct sockaddr *address);

#endif
