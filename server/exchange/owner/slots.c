#include "server/exchange/owner/slots.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/exchange/ground/post.h"
#include "server/exchange/ground/recorder.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/owner/slots_wait.h"

/* --- the table of open slots ------------------------------------------------------------------ */

bool slots_open(struct exchange_group *group)
{
    struct slots *slots = group->slots;
    uint32_t nodes = group->members.node_count, locals = group->members.local_count;
    slab_init(&slots->slab, sizeof(struct slot) + ((size_t)nodes + locals + 2) * sizeof(void *) +
                                nodes * sizeof(struct contribution));
    slots->of_node = calloc(nodes, sizeof(*slots->of_node));
    slots->disagreed = calloc(nodes, sizeof(*slots->disagreed));
    return slots->of_node && slots->disagreed;
}

void slots_close(struct exchange_group *group)
{
    struct slots *slots = group->slots;
    assert(slots->slab.in_use == 0);
    slab_clear(&slots->slab);
    free(slots->of_node);
    free(slots->disagreed);
}

static struct slot **slot_bucket(struct exchange_group *group, uint64_t sequence, uint32_t block,
                                 uint32_t chunk)
{
    return &group->slots->table[group_bucket(sequence, block, chunk, SLOT_BUCKETS)];
}

static struct slot *slot_find(struct exchange_group *group, uint64_t sequence, uint32_t block,
                              uint32_t chunk)
{
    struct slot *slot = *slot_bucket(group, sequence, block, chunk);
    while (slot && (slot->sequence != sequence || slot->block != block || slot->chunk != chunk))
        slot = slot->next;
    return slot;
}

/* The slot for the chunk of what is asked for. */
static struct slot *slot_create(struct exchange_group *group, uint64_t sequence,
                                const struct wire_ask *ask, uint32_t chunk)
{
    struct exchange *exchange = group->job->exchange;
    struct slot *slot = slab_get(&group->slots->slab);
    if (!slot)
        return NULL;
    const struct members *members = &group->members;
    slot->group = group;
    slot->sequence = sequence;
    slot->block = ask->block;
    slot->chunk = chunk;
    slot->needed = ask_node_count(group, ask);
    slot->transfer = ask_is_transfer(ask);
    slot->first_ns = exchange->now_ns;
    if (group->job->trace)
        slot->stage_ns = recorder_now_ns(exchange);
    slot->task.reduction.in = slot->pointers;
    slot->task.reduction.out = (void **)(slot->pointers + members->node_count);
    slot->task.owner = slot;
    slot->contributions =
        (struct contribution *)(slot->pointers + members->node_count + members->local_count + 2);
    struct slot **bucket = slot_bucket(group, sequence, ask->block, chunk);
    slot->next = *bucket;
    if (slot->next)
        slot->next->previous = slot;
    *bucket = slot;
    if (slot->transfer) {
        group->slots->transfers++;
        share_keep(group, group->slots->slab.object_bytes);
    }
    group->job->slots++;
    exchange->slots++;
    return slot;
}

struct slot *slots_get(struct exchange_group *group, uint64_t sequence, const struct wire_ask *ask,
                       uint32_t chunk)
{
    struct slot *slot = slot_find(group, sequence, ask->block, chunk);
    if (slot)
        return slot;
    struct error error = {.text = "no memory for a slot"};
    if (!ask_is_transfer(ask) || share_check(group, group->slots->slab.object_bytes, &error) == 0)
        slot = slot_create(group, sequence, ask, chunk);
    if (!slot)
        exchange_group_fail(group, ERR_MEMORY, error.text);
    return slot;
}

void slot_free(struct slot *slot)
{
    struct exchange_group *group = slot->group;
    struct exchange *exchange = group->job->exchange;
    slot_wait_over(slot);
    for (uint32_t i = 0; i < group->members.node_count; i++)
        receive_release(exchange, slot->contributions[i].buffer);
    if (slot->previous)
        slot->previous->next = slot->next;
    else
        *slot_bucket(group, slot->sequence, slot->block, slot->chunk) = slot->next;
    if (slot->next)
        slot->next->previous = slot->previous;
    if (slot->transfer) {
        group->slots->transfers--;
        share_let_go(group, group->slots->slab.object_bytes);
    }
    slab_put(&group->slots->slab, slot);
    group->job->slots--;
    exchange->slots--;
}

/* Return the ask of the first node, by index, that has been heard; at least one has. */
const struct wire_ask *slot_first_ask(const struct slot *slot)
{
    uint32_t first = 0;
    while (!slot->contributions[first].heard)
        first++;
    return &slot->contributions[first].ask;
}

void slots_drop(struct exchange_group *group)
{
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        while (group->slots->table[i])
            slot_free(group->slots->table[i]);
    }
    memset(group->slots->of_node, 0, group->members.node_count * sizeof(*group->slots->of_node));
}

/* A slot that gathers waits for nothing but other contributions: no task or send touches its
 * memory. */
void slots_drop_idle(struct exchange_group *group)
{
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        struct slot *next;
        for (struct slot *it = group->slots->table[i]; it; it = next) {
            next = it->next;
            if (it->state == SLOT_GATHERING)
                slot_free(it);
        }
    }
}

void slots_visit_transfers(struct exchange_group *group,
                           void (*visit)(struct exchange_group *group, uint64_t sequence,
                                         const struct wire_ask *ask))
{
    for (uint32_t i = 0; i < SLOT_BUCKETS && group->slots->transfers > 0; i++) {
        for (const struct slot *it = group->slots->table[i]; it && !group->failed; it = it->next) {
            if (it->transfer && it->heard < it->needed)
                visit(group, it->sequence, slot_first_ask(it));
        }
    }
}

bool slot_has_lender(struct exchange_group *group, uint32_t chunk, const struct lender *lender)
{
    const struct collective *collective = lender->piece->collective;
    const struct slot *slot = slot_find(group, collective->sequence, collective->ask.block, chunk);
    return slot && slot->lender == lender;
}

/* --- in a trace ------------------------------------------------------------------------------- */

static struct trace_record slot_record(const struct slot *slot, enum trace_stage stage,
                                       uint32_t peer)
{
    const struct wire_ask *ask = slot_first_ask(slot);
    return (struct trace_record){
        .begin_ns = slot->stage_ns,
        .sequence = slot->sequence,
        .bytes = slot->extent.count * ask_element_bytes(ask),
        .group = slot->group->id,
        .block = slot->block,
        .chunk = slot->chunk,
        .peer = peer,
        .stage = (uint8_t)stage,
        .kind = ask->kind,
    };
}

static enum trace_stage slot_stage(const struct slot *slot)
{
    if (slot->state == SLOT_GATHERING)
        return TRACE_GATHER;
    return slot->task.reduction.inputs > 1 ? TRACE_OWNER_SUM : TRACE_DELIVER;
}

/* All nodes have been heard, this one last. */
void slot_trace_gathered(struct slot *slot, uint32_t node_index)
{
    if (!slot->group->job->trace)
        return;
    uint32_t peer = slot->group->members.nodes[node_index];
    struct trace_record record = slot_record(slot, TRACE_GATHER, peer);
    slot->stage_ns = recorder_end(slot->group->job, &record);
}

void slot_trace_task(struct slot *slot)
{
    if (!slot->group->job->trace)
        return;
    struct trace_record record = slot_record(slot, slot_stage(slot), TRACE_NO_PEER);
    slot->stage_ns = recorder_end_task(slot->group->job, &record, &slot->task);
}

void slots_record_open(const struct exchange_group *group, struct trace *trace)
{
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        for (const struct slot *it = group->slots->table[i]; it; it = it->next)
            recorder_cut(trace, slot_record(it, slot_stage(it), TRACE_NO_PEER));
    }
}

/* --- late nodes ------------------------------------------------------------------------------- */

bool slots_oldest_waiting(const struct exchange_group *group, uint64_t *sequence,
                          uint64_t *first_ns)
{
    const struct slot *oldest = NULL;
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        for (const struct slot *it = group->slots->table[i]; it; it = it->next) {
            bool waits = it->heard < it->needed && !it->transfer; /* a receive may be early */
            if (waits && (!oldest || it->sequence < oldest->sequence))
                oldest = it;
        }
    }
    if (!oldest)
        return false;
    *sequence = oldest->sequence;
    *first_ns = oldest->first_ns;
    return true;
}

uint32_t slots_missing_nodes(const struct exchange_group *group, uint64_t sequence, uint32_t *nodes)
{
    uint32_t count = 0;
    for (uint32_t node = 0; node < group->members.node_count; node++) {
        bool missing = false;
        for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
            for (const struct slot *it = group->slots->table[i]; it; it = it->next)
                missing |= it->sequence == sequence && !it->contributions[node].heard &&
                           ask_takes_part(group, slot_first_ask(it), node);
        }
        if (missing && node != group->members.self_node)
            nodes[count++] = group->members.nodes[node];
    }
    return count;
}

void slots_check_invariants(const struct exchange_group *group)
{
    const struct owners *owners = &group->owners;
    for (uint32_t i = 0; owners->self != NO_INDEX && i < group->members.node_count; i++)
        assert(group->slots->of_node[i] <= owners->windows[owners->self]);
}
