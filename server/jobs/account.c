#include "server/jobs/account.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

static const char *const account_words[ACCOUNT_KINDS] = {
    [ACCOUNT_MEMORY] = "bytes of arenas and shared memory (limits.user_bytes)",
    [ACCOUNT_LEFT] = "bytes of arenas that are no longer its workers'",
    [ACCOUNT_OUTPUT] = "bytes that its connections do not read",
    [ACCOUNT_DESCRIPTORS] = "descriptors under way, being closed, or of shared memory",
};

static struct account *account_find(const struct account_book *book, uint32_t uid)
{
    struct account *account;
    HASH_FIND(hh, book->accounts, &uid, sizeof(uid), account);
    return account;
}

static struct account *account_open(struct account_book *book, uint32_t uid)
{
    struct account *account = account_find(book, uid);
    if (account)
        return account;
    account = calloc(1, sizeof(*account));
    if (!account)
        return NULL;
    account->uid = uid;
    HASH_ADD(hh, book->accounts, uid, sizeof(uid), account);
    if (!HASH_IS_ADDED(account)) {
        free(account);
        return NULL;
    }
    return account;
}

static void account_close(struct account_book *book, struct account *account)
{
    HASH_DEL(book->accounts, account);
    free(account);
}

void account_book_clear(struct account_book *book)
{
    /* The analyzer takes each of a table of several for its only one. */
    while (book->accounts)
        account_close(book, book->accounts); /* NOLINT(clang-analyzer-unix.Malloc) */
}

bool account_is_beyond(const struct account_book *book, uint32_t uid, enum account_kind kind,
                       uint64_t amount)
{
    return uid != 0 && uid != book->own_uid && amount > book->limits[kind];
}

int account_charge(struct account_book *book, uint32_t uid, enum account_kind kind, uint64_t amount,
                   struct error *error)
{
    uint64_t used = account_used(book, uid, kind), limit = book->limits[kind];
    uint64_t sum = amount <= UINT64_MAX - used ? used + amount : UINT64_MAX;
    bool only_one = kind != ACCOUNT_MEMORY && used == 0;
    if (!only_one && account_is_beyond(book, uid, kind, sum))
        return error_set(error, ERR_MEMORY,
                         "user %" PRIu32 " may have %" PRIu64 " %s on node %s, has %" PRIu64
                         ", and asks for %" PRIu64 " more",
                         uid, limit, account_words[kind], book->node, used, amount);
    return account_add(book, uid, kind, amount, error);
}

int account_add(struct account_book *book, uint32_t uid, enum account_kind kind, uint64_t amount,
                struct error *error)
{
    if (amount == 0)
        return 0;
    struct account *account = account_open(book, uid);
    if (!account)
        return error_set(error, ERR_MEMORY, "no memory for the account of a user");
    account->used[kind] += amount;
    return 0;
}

void account_release(struct account_book *book, uint32_t uid, enum account_kind kind,
                     uint64_t amount)
{
    if (amount == 0)
        return;
    struct account *account = account_find(book, uid);
    assert(account && account->used[kind] >= amount);
    account->used[kind] -= amount;
    for (int i = 0; i < ACCOUNT_KINDS; i++) {
        if (account->used[i] != 0)
            return;
    }
    account_close(book, account);
}

uint64_t account_used(const struct account_book *book, uint32_t uid, enum account_kind kind)
{
    const struct account *account = account_find(book, uid);
    return account ? account->used[kind] : 0;
}
