#include "common/base/quota.h"

#include <assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define LOOPBACK 1u /* no address of IPv4 is that, and of IPv6 ::1 alone */

static struct quota_owner *quota_find(const struct quota *quota, uint64_t number)
{
    struct quota_owner *owner;
    HASH_FIND(hh, quota->owners, &number, sizeof(number), owner);
    return owner;
}

static void quota_forget(struct quota *quota, struct quota_owner *owner)
{
    HASH_DEL(quota->owners, owner);
    free(owner);
}

void quota_clear(struct quota *quota)
{
    /* The analyzer takes each of a table of several for its only one. */
    while (quota->owners)
        quota_forget(quota, quota->owners); /* NOLINT(clang-analyzer-unix.Malloc) */
    quota->used = 0;
}

uint64_t quota_half(uint64_t limit)
{
    return limit > 1 ? limit / 2 : limit;
}

bool quota_is_short(const struct quota *quota, uint64_t amount)
{
    return amount > quota->limit || quota->used > quota->limit - amount;
}

/* How much of it the user may have. */
static uint64_t quota_most(const struct quota *quota, uint64_t user)
{
    return user == 0 || user == quota->own_user ? quota->limit : quota_half(quota->limit);
}

bool quota_has_room(const struct quota *quota, uint64_t user, uint64_t amount)
{
    uint64_t most = quota_most(quota, user);
    return !quota_is_short(quota, amount) && amount <= most &&
           quota_used(quota, user) <= most - amount;
}

int quota_check(const struct quota *quota, uint64_t user, uint64_t amount, struct error *error)
{
    return quota_has_room(quota, user, amount) ? 0 : quota_refuse(quota, user, amount, error);
}

int quota_refuse(const struct quota *quota, uint64_t user, uint64_t amount, struct error *error)
{
    uint64_t used = quota_used(quota, user), most = quota_most(quota, user);
    const char *raise = quota->key ? ", or raise the limit" : "";
    bool others = amount <= most && used <= most - amount; /* they have what he would have had */
    return error_set(error, ERR_MEMORY,
                     "there may be %" PRIu64 " %s on node %s (%s), %" PRIu64 " of them one user's: "
                     "there are %" PRIu64 ", user %" PRIu64 " has %" PRIu64 " and asks for %" PRIu64
                     " more; end some%s%s",
                     quota->limit, quota->what, quota->node,
                     quota->key ? quota->key : "which is fixed", most, quota->used, user, used,
                     amount, others ? " of others, or wait" : " of them first", raise);
}

uint64_t quota_giver(const struct quota *quota, uint64_t owner, uint64_t amount)
{
    uint64_t giver = owner, most = quota_used(quota, owner) + amount;
    for (const struct quota_owner *it = quota->owners; it; it = it->hh.next) {
        if (it->owner == owner || it->used <= most)
            continue;
        giver = it->owner;
        most = it->used;
    }
    return giver;
}

int quota_take(struct quota *quota, uint64_t number, uint64_t amount)
{
    struct quota_owner *owner = amount > 0 ? quota_find(quota, number) : NULL;
    if (amount == 0)
        return 0;
    if (!owner) {
        owner = calloc(1, sizeof(*owner));
        if (!owner)
            return ERR_MEMORY;
        owner->owner = number;
        HASH_ADD(hh, quota->owners, owner, sizeof(owner->owner), owner);
        if (!HASH_IS_ADDED(owner)) {
            free(owner);
            return ERR_MEMORY;
        }
    }
    owner->used += amount;
    quota->used += amount;
    return 0;
}

void quota_give_back(struct quota *quota, uint64_t number, uint64_t amount)
{
    struct quota_owner *owner = amount > 0 ? quota_find(quota, number) : NULL;
    if (amount == 0)
        return;
    assert(owner && owner->used >= amount && quota->used >= amount);
    owner->used -= amount;
    quota->used -= amount;
    if (owner->used == 0)
        quota_forget(quota, owner);
}

uint64_t quota_used(const struct quota *quota, uint64_t number)
{
    const struct quota_owner *owner = quota_find(quota, number);
    return owner ? owner->used : 0;
}

static uint64_t quota_owner_of_ipv4(const uint8_t bytes[4])
{
    uint32_t number = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 |
                      (uint32_t)bytes[2] << 8 | (uint32_t)bytes[3];
    return bytes[0] == IN_LOOPBACKNET ? LOOPBACK : number;
}

uint64_t quota_owner_of(const struct sockaddr *address)
{
    struct sockaddr_in6 ipv6;
    if (address->sa_family == AF_INET) {
        struct sockaddr_in ipv4;
        memcpy(&ipv4, address, sizeof(ipv4));
        uint8_t bytes[4];
        memcpy(bytes, &ipv4.sin_addr, sizeof(bytes));
        return quota_owner_of_ipv4(bytes);
    }
    memcpy(&ipv6, address, sizeof(ipv6));
    if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr))
        return quota_owner_of_ipv4(&ipv6.sin6_addr.s6_addr[12]);
    if (IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr))
        return LOOPBACK;
    uint64_t network;
    memcpy(&network, &ipv6.sin6_addr, sizeof(network));
    return network;
}
