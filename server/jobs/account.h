/* Accounts of what the daemon keeps for the users of this node, each kind within a limit, so that
 * no user takes what others need. Pure. */
#ifndef SERVER_JOBS_ACCOUNT_H
#define SERVER_JOBS_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/base/hash.h"

enum account_kind {
    ACCOUNT_MEMORY,      /* bytes of arenas and of memory that ranks share, touched or not: what the
                          * daemon touches of them is the ranks' to say */
    ACCOUNT_LEFT,        /* bytes of arenas whose workers have gone and that sums still use: a job
                          * that comes after another need not wait for these */
    ACCOUNT_OUTPUT,      /* bytes of answers that connections have not taken yet */
    ACCOUNT_DESCRIPTORS, /* that have come and are not yet used, are to go out, or being closed;
                          * those of shared memory until all ranks have it */
    ACCOUNT_KINDS,
};

struct account {
    uint32_t uid;
    uint64_t used[ACCOUNT_KINDS];
    UT_hash_handle hh;
};

struct account_book {
    const char *node; /* this daemon's, for messages; the caller's */
    uint32_t own_uid; /* the daemon's: this user and root have no limits */
    uint64_t limits[ACCOUNT_KINDS];
    struct account *accounts; /* of users that have something */
};

void account_book_clear(struct account_book *book);
/* Charge the amount to the user. ERR_MEMORY: the user would have more than he may, or there is no
 * memory for the account; nothing is charged. In kinds other than memory, a user who has nothing
 * may take any amount. */
int account_charge(struct account_book *book, uint32_t uid, enum account_kind kind, uint64_t amount,
                   struct error *error);
/* Charge an amount that is there already, whatever the limit. ERR_MEMORY: no memory for the
 * account. */
int account_add(struct account_book *book, uint32_t uid, enum account_kind kind, uint64_t amount,
                struct error *error);
/* Take back what was charged, at once or in parts. */
void account_release(struct account_book *book, uint32_t uid, enum account_kind kind,
                     uint64_t amount);
/* Whether an amount is more than the user may have of the kind. */
bool account_is_beyond(const struct account_book *book, uint32_t uid, enum account_kind kind,
                       uint64_t amount);
/* Return how much of the kind the user has. */
uint64_t account_used(const struct account_book *book, uint32_t uid, enum account_kind kind);

#endif
