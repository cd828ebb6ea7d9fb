#include "server/exchange/model/order.h"

#include <stdlib.h>
#include <utlist.h>

#include "server/exchange/model/ask.h"

static struct collective **order_bucket(const struct exchange_group *group, uint64_t sequence,
                                        uint32_t block)
{
    return &group->order->table[group_bucket(sequence, block, 0, COLLECTIVE_BUCKETS)];
}

struct collective *collective_find(const struct exchange_group *group, uint64_t sequence,
                                   uint32_t block)
{
    struct collective *it = *order_bucket(group, sequence, block);
    while (it && (it->sequence != sequence || it->ask.block != block))
        it = it->next_in_bucket;
    return it;
}

bool collective_comes_before(const struct collective *collective, uint64_t sequence, uint32_t block)
{
    return collective->sequence < sequence ||
           (collective->sequence == sequence && collective->ask.block < block);
}

static void order_add_to_table(struct collective *made)
{
    struct order *order = made->group->order;
    struct collective **bucket = order_bucket(made->group, made->sequence, made->ask.block);
    made->next_in_bucket = *bucket;
    *bucket = made;
    order->chunks += made->layout.chunks;
}

void order_add(struct collective *made, const struct local_rank *rank)
{
    struct order *order = made->group->order;
    struct collective *before = rank->submitted;
    struct collective *after = before ? before->next : order->oldest;
    while (after && collective_comes_before(after, made->sequence, made->ask.block)) {
        before = after;
        after = after->next;
    }
    made->previous = before;
    made->next = after;
    if (after)
        after->previous = made;
    else
        order->newest = made;
    if (before)
        before->next = made;
    else
        order->oldest = made;
    order->count++;
    order_add_to_table(made);
}

void order_add_transfer(struct collective *made)
{
    struct order *order = made->group->order;
    made->next = order->transfers;
    if (made->next)
        made->next->previous = made;
    order->transfers = made;
    order_add_to_table(made);
}

/* --- what has been sent ----------------------------------------------------------------------- */

static struct collective **sent_bucket(const struct exchange_group *group, uint32_t local,
                                       uint32_t to, uint32_t tag)
{
    return &group->order->sent[local * SENT_BUCKETS + group_bucket(tag, to, 0, SENT_BUCKETS)];
}

static struct collective **sent_bucket_of(const struct collective *transfer, uint32_t local)
{
    return sent_bucket(transfer->group, local, transfer->route.to, send_tag(transfer->sequence));
}

int order_add_sent(struct collective *transfer, uint32_t local, struct error *error)
{
    const struct exchange_group *group = transfer->group;
    struct order *order = group->order;
    if (!order->sent)
        order->sent =
            calloc((size_t)group->members.local_count * SENT_BUCKETS, sizeof(*order->sent));
    if (!order->sent)
        return error_set(error, ERR_MEMORY, "no memory for the sends of a group");
    struct collective **bucket = sent_bucket_of(transfer, local);
    DL_APPEND2(*bucket, transfer, previous_sent, next_sent);
    transfer->sender = local;
    return 0;
}

bool order_find_sent(const struct exchange_group *group, uint32_t local, uint32_t to, uint32_t tag,
                     uint32_t number, uint32_t *steps)
{
    if (!group->order->sent)
        return false;
    const struct collective *it = *sent_bucket(group, local, to, tag);
    for (; it; it = it->next_sent) {
        ++*steps;
        if (it->route.to == to && send_serves(it->sequence, tag, number))
            return true;
    }
    return false;
}

static void order_remove_sent(struct collective *transfer)
{
    if (!transfer->previous_sent)
        return; /* its sender is elsewhere, or has not come */
    struct collective **bucket = sent_bucket_of(transfer, transfer->sender);
    DL_DELETE2(*bucket, transfer, previous_sent, next_sent);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void order_remove_from_list(struct collective *collective)
{
    struct order *order = collective->group->order;
    bool transfer = ask_is_transfer(&collective->ask);
    struct collective **first = transfer ? &order->transfers : &order->oldest;
    if (collective->previous)
        collective->previous->next = collective->next;
    else
        *first = collective->next;
    if (collective->next)
        collective->next->previous = collective->previous;
    else if (!transfer)
        order->newest = collective->previous;
    order->count -= !transfer;
}

void order_remove(struct collective *collective)
{
    struct exchange_group *group = collective->group;
    struct collective **link = order_bucket(group, collective->sequence, collective->ask.block);
    while (*link != collective)
        link = &(*link)->next_in_bucket;
    *link = collective->next_in_bucket;
    order_remove_from_list(collective);
    order_remove_sent(collective);
    group->order->chunks -= collective->layout.chunks;
}

void order_close(struct exchange_group *group)
{
    free(group->order->sent);
}
