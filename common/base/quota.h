/* A quota is shared by several owners, in places or bytes: it counts what each has, and says who
 * has to go without. An owner is a user, by number, or whoever stands behind an address. One rule
 * holds for all that is limited so (SECURITY.md, "Limits"):
 *
 * - Of what cannot be taken away again, such as a job that runs, nobody has more than half.
 * - Of what can, such as a job whose ranks gather, an owner may have all while nobody else asks.
 *   When there is no room, the owner who has most gives up something.
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

/* Return half of a limit, at least one. */
uint64_t quota_half(uint64_t limit);

/* Return whether the user may have `amount` more for good: half of the limit at the most. Root and
 * the daemon's own user may have all. */
bool quota_has_room(const struct quota *quota, uint64_t user, uint64_t amount);
/* Return 0 when he may, else ERR_MEMORY; the text says who has how much, and what to do. */
int quota_check(const struct quota *quota, uint64_t user, uint64_t amount, struct error *error);
/* Set that error. */
int quota_refuse(const struct quota *quota, uint64_t user, uint64_t amount, struct error *error);

/* Return whether `amount` more is more than there is. */
bool quota_is_short(const struct quota *quota, uint64_t amount);
/* Return the owner who gives way when `amount` more for `owner` is short: the one who has most
 * then. Among equals it is the one who asks. */
uint64_t quota_giver(const struct quota *quota, uint64_t owner, uint64_t amount);

/* Count `amount` as the owner's, or no longer. ERR_MEMORY: the process has no memory. */
int quota_take(struct quota *quota, uint64_t owner, uint64_t amount);
void quota_give_back(struct quota *quota, uint64_t owner, uint64_t amount);
uint64_t quota_used(const struct quota *quota, uint64_t owner);

/* Return the owner that stands behind an IPv4 or IPv6 address. All addresses of an IPv6 network of
 * 64 bits are one owner, and so are all loopback addresses. */
uint64_t quota_owner_of(const struct sockaddr *address);

#endif
