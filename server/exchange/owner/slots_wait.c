#include "server/exchange/owner/slots_wait.h"

#include "server/exchange/model/ask.h"

static struct waits *slot_waits(const struct slot *slot)
{
    return &slot->group->job->waits;
}

static uint64_t slot_now_ns(const struct slot *slot)
{
    return slot->group->job->exchange->now_ns;
}

/* The one that has not been heard. */
static uint32_t slot_wait_find(const struct slot *slot)
{
    const struct wire_ask *ask = slot_first_ask(slot);
    uint32_t i = 0;
    while (i < slot->group->members.node_count &&
           (slot->contributions[i].heard || !ask_takes_part(slot->group, ask, i)))
        i++;
    return i;
}

/* This node's own part is here, or it has none, and others' are lacking. */
static void slot_wait_gather(struct slot *slot)
{
    const struct exchange_group *group = slot->group;
    uint32_t self = group->members.self_node;
    if (slot->gathers || slot->heard == slot->needed)
        return;
    if (self != NO_INDEX && !slot->contributions[self].heard &&
        ask_takes_part(group, slot_first_ask(slot), self))
        return;
    slot->gathers = true;
    wait_begin(&slot_waits(slot)->gather, slot_now_ns(slot));
}

void slot_wait_heard(struct slot *slot, uint32_t node_index)
{
    const struct members *members = &slot->group->members;
    if (slot->transfer)
        return;
    waits_node_heard(slot_waits(slot), members->nodes[node_index], slot_now_ns(slot));
    slot_wait_gather(slot);
    if (slot->heard + 1 == slot->needed) {
        uint32_t i = slot_wait_find(slot);
        if (i == members->node_count)
            return; /* the nodes do not agree who takes part */
        slot->lacks = i + 1;
        waits_node_lacks(slot_waits(slot), members->nodes[i], slot->sequence, slot_now_ns(slot));
    } else if (slot->heard == slot->needed) {
        waits_gathered(slot_waits(slot), slot->sequence);
        slot_wait_over(slot);
    }
}

void slot_wait_over(struct slot *slot)
{
    if (slot->lacks > 0)
        waits_node_done(slot_waits(slot), slot->group->members.nodes[slot->lacks - 1],
                        slot_now_ns(slot));
    if (slot->gathers)
        wait_end(&slot_waits(slot)->gather, slot_now_ns(slot));
    slot->lacks = 0;
    slot->gathers = false;
}
