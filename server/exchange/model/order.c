#include "server/exchange/model/order.h"

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
    group->order->chunks -= collective->layout.chunks;
}
