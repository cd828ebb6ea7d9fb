#include "server/exchange/node/issue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/window.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/chunk.h"

/* Chunks that a group issues before others have their turn; what comes without data is delivered at
 * once, so that no window ends it. */
#define ISSUE_TURN 64u

/* Smaller priority first, then older. */
static bool outlet_goes_before(const struct heap_entry *entry, const struct heap_entry *other)
{
    const struct collective *first = ((const struct outlet *)entry)->collective;
    const struct collective *second = ((const struct outlet *)other)->collective;
    if (first->priority != second->priority)
        return first->priority < second->priority;
    if (first->sequence != second->sequence)
        return first->sequence < second->sequence;
    return first->ask.block < second->ask.block;
}

bool issuing_open(struct exchange_group *group)
{
    struct issuing *issuing = group->issuing;
    uint32_t owners = group->owners.count;
    issuing->in_flight = calloc(owners, sizeof(*issuing->in_flight));
    issuing->queues = calloc(owners, sizeof(*issuing->queues));
    if (!issuing->in_flight || !issuing->queues)
        return false;
    issuing->transfers.goes_before = outlet_goes_before;
    for (uint32_t i = 0; i < owners; i++)
        issuing->queues[i].goes_before = outlet_goes_before;
    return true;
}

void issuing_close(struct exchange_group *group)
{
    free(group->issuing->in_flight);
    free(group->issuing->queues);
}

void issuing_drop(struct exchange_group *group)
{
    memset(group->issuing->in_flight, 0, group->owners.count * sizeof(*group->issuing->in_flight));
}

/* --- queues ----------------------------------------------------------------------------------- */

static uint32_t outlet_shard(const struct outlet *outlet)
{
    return (uint32_t)(outlet - outlet->collective->outlets);
}

/* The owner that the collective's shard goes to. */
static uint32_t outlet_owner(const struct outlet *outlet)
{
    const struct collective *collective = outlet->collective;
    const struct layout *layout = &collective->layout;
    if (collective->ask.block > 0)
        return collective->owner;
    return layout_server(layout, outlet_shard(outlet));
}

static uint32_t outlet_pieces_delivered(const struct outlet *outlet)
{
    return outlet->next_piece - outlet->in_flight;
}

/* Whether its next chunk is near enough to what the slowest shard has had delivered. */
static bool outlet_keeps_pace(const struct outlet *outlet)
{
    const struct collective *collective = outlet->collective;
    return outlet->next_piece - collective->slowest_pieces < collective->lead_window;
}

/* Its next chunk, or NO_INDEX when that is not ready, or has to wait for other shards. */
static uint32_t outlet_next_chunk(const struct outlet *outlet)
{
    const struct collective *collective = outlet->collective;
    const struct layout *layout = &collective->layout;
    if (outlet->next_piece >= layout->pieces || !outlet_keeps_pace(outlet))
        return NO_INDEX;
    uint32_t chunk = outlet->next_piece * layout->shards + outlet_shard(outlet);
    return chunk < collective->ready ? chunk : NO_INDEX;
}

static struct heap *outlet_queue(const struct outlet *outlet)
{
    struct issuing *issuing = outlet->collective->group->issuing;
    return ask_is_transfer(&outlet->collective->ask) ? &issuing->transfers
                                                     : &issuing->queues[outlet_owner(outlet)];
}

static void outlet_enqueue(struct outlet *outlet)
{
    heap_add(outlet_queue(outlet), &outlet->entry);
    outlet->queued = true;
    outlet->collective->group->issuing->queued++;
}

/* Queue the outlet if it can issue a chunk now: the reason that kept its next chunk back may be
 * over. */
static void outlet_enqueue_ready(struct outlet *outlet)
{
    if (!outlet->queued && outlet_next_chunk(outlet) != NO_INDEX)
        outlet_enqueue(outlet);
}

static void outlet_leave(struct outlet *outlet)
{
    if (!outlet->queued)
        return;
    heap_remove(outlet_queue(outlet), &outlet->entry);
    outlet->queued = false;
    outlet->collective->group->issuing->queued--;
}

/* Beside the group's window. A block between two ranks has that one alone: it waits for one of
 * them, and must not keep back those of others. A transfer, which counts in no window but its own,
 * has one shard: what is in flight is all that it leads by. */
static void outlets_set_windows(struct collective *made)
{
    uint32_t window_bytes = made->group->job->exchange->options.window_bytes;
    made->shard_window = made->network_window = made->lead_window = UINT32_MAX;
    if (ask_is_transfer(&made->ask))
        made->lead_window = made->group->owners.window;
    if (made->single || (made->route.from != ROUTE_ALL && made->route.to != ROUTE_ALL))
        return;
    /* Parts to be summed lie at their owner until the other nodes' are there, and no results
     * follow. */
    if (made->ask.block > 0 && made->route.from == ROUTE_ALL)
        window_bytes *= 2;
    made->shard_window = window_of_shard(made->layout.pieces);
    if (made->ask.block > 0 && made->route.from != ROUTE_ALL)
        made->shard_window =
            window_of_gathered(made->shard_window, window_bytes, made->layout.largest_bytes,
                               made->group->members.node_count - 1);
    made->network_window = window_of_network(window_bytes, made->layout.largest_bytes);
    if (made->layout.shards > 1)
        made->lead_window = window_of_lead(made->shard_window, made->network_window,
                                           made->group->owners.least_window);
}

void outlets_begin(struct collective *collective)
{
    for (uint32_t i = 0; i < collective->layout.shards; i++)
        collective->outlets[i].collective = collective;
    collective->slowest_shards = collective->layout.shards;
    outlets_set_windows(collective);
}

void outlets_end(struct collective *collective)
{
    for (uint32_t i = 0; i < collective->layout.shards; i++)
        outlet_leave(&collective->outlets[i]);
}

void issue_first_alone(struct collective *transfer)
{
    transfer->lead_window = 1;
}

void issue_others(struct collective *transfer)
{
    transfer->lead_window = transfer->group->owners.window;
    outlet_enqueue_ready(&transfer->outlets[0]);
    group_mark_dirty(transfer->group);
}

void issue_advance_ready(struct collective *collective, uint32_t ready)
{
    uint32_t shards = collective->layout.shards;
    uint32_t first = collective->ready;
    collective->ready = ready;
    /* The next of a shard that waits is the first one at or after `first`. */
    for (uint32_t chunk = first; chunk < ready && chunk - first < shards; chunk++)
        outlet_enqueue_ready(&collective->outlets[chunk % shards]);
    group_mark_dirty(collective->group);
}

/* --- issuing ---------------------------------------------------------------------------------- */

/* Whether a local rank may yet submit something older. With blocks it may, since ranks take part in
 * different ones. */
static bool issue_may_get_older(const struct exchange_group *group,
                                const struct collective *collective)
{
    for (uint32_t i = 0; i < group->members.local_count; i++) {
        const struct local_rank *rank = &group->members.locals[i];
        uint64_t sequence = rank->next_sequence - (rank->next_block > 0);
        if (sequence < collective->sequence ||
            (sequence == collective->sequence && rank->next_block < collective->ask.block))
            return true;
    }
    return false;
}

/* The first of a queue, or NULL. */
static struct outlet *queue_first(const struct heap *queue)
{
    return (struct outlet *)queue->first;
}

/* The outlet of the oldest collective for the owner, when it has a chunk for it. */
static struct outlet *issue_oldest_outlet(const struct exchange_group *group, uint32_t owner)
{
    const struct collective *oldest = group->order->oldest;
    const struct layout *layout = &oldest->layout;
    uint32_t shard = layout->shards;
    if (oldest->ask.block > 0)
        shard = owner == oldest->owner ? 0 : shard;
    else if (owner < layout->rule->servers)
        shard = layout_shard(layout, owner);
    return shard < layout->shards && oldest->outlets[shard].queued ? &oldest->outlets[shard] : NULL;
}

/* in_flight: for its owner, of all collectives. */
static bool outlet_has_room(const struct outlet *outlet, uint32_t in_flight)
{
    return outlet->in_flight < outlet->collective->shard_window &&
           in_flight < outlet->collective->network_window;
}

/* The last chunk of the window is for the oldest collective alone, and only when no older one can
 * come. Chunks that others have in flight do not keep the oldest back if it has none in flight to
 * this owner: the others may be waiting for it. */
static struct outlet *issue_next_outlet(const struct exchange_group *group, uint32_t owner)
{
    uint32_t in_flight = group->issuing->in_flight[owner];
    bool is_last = in_flight + 1 >= group->owners.windows[owner];
    struct outlet *first = queue_first(&group->issuing->queues[owner]);
    if (!is_last && outlet_has_room(first, in_flight))
        return first;
    struct outlet *oldest = issue_oldest_outlet(group, owner);
    if (!oldest || (oldest->in_flight > 0 && !outlet_has_room(oldest, in_flight)))
        return NULL;
    return is_last && issue_may_get_older(group, group->order->oldest) ? NULL : oldest;
}

/* Count `by` more of the outlet's chunks as in flight, or fewer if `by` is negative. */
static void outlet_count(struct outlet *outlet, int by)
{
    const struct collective *collective = outlet->collective;
    outlet->in_flight += (uint32_t)by;
    if (!ask_is_transfer(&collective->ask))
        collective->group->issuing->in_flight[outlet_owner(outlet)] += (uint32_t)by;
}

static uint32_t issue_shards_at(const struct collective *collective, uint32_t pieces)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < collective->layout.shards; i++)
        count += outlet_pieces_delivered(&collective->outlets[i]) == pieces;
    return count;
}

/* All shards have got one piece further: those that waited for it go on. */
static void issue_advance_slowest(struct collective *collective)
{
    collective->slowest_shards = issue_shards_at(collective, ++collective->slowest_pieces);
    for (uint32_t i = 0; i < collective->layout.shards; i++)
        outlet_enqueue_ready(&collective->outlets[i]);
}

void issue_delivered(struct collective *collective, uint32_t chunk)
{
    struct outlet *outlet = &collective->outlets[chunk % collective->layout.shards];
    assert(outlet->in_flight > 0);
    bool was_slowest = outlet_pieces_delivered(outlet) == collective->slowest_pieces;
    outlet_count(outlet, -1);
    if (was_slowest && --collective->slowest_shards == 0)
        issue_advance_slowest(collective);
    group_mark_dirty(collective->group);
}

static bool outlet_issue(struct outlet *outlet)
{
    struct collective *collective = outlet->collective;
    struct exchange_group *group = collective->group;
    struct chunk *chunk = chunk_get(collective, outlet_next_chunk(outlet));
    if (!chunk) {
        group->starved = true;
        return false;
    }
    outlet_count(outlet, 1);
    outlet->next_piece++;
    collective->issued++;
    if (outlet_next_chunk(outlet) == NO_INDEX)
        outlet_leave(outlet); /* now: the collective may be gone when the chunk is issued */
    if (chunk_issue(chunk))
        return true;
    group->starved = true;
    outlet_count(outlet, -1);
    outlet->next_piece--;
    collective->issued--;
    if (!outlet->queued)
        outlet_enqueue(outlet);
    return false;
}

static bool issue_one(struct exchange_group *group, uint32_t owner)
{
    if (!group->issuing->queues[owner].first ||
        group->issuing->in_flight[owner] >= group->owners.windows[owner])
        return false;
    struct outlet *outlet = issue_next_outlet(group, owner);
    return outlet && outlet_issue(outlet);
}

/* Issue one chunk of a shard: a sum waits for its slowest part, so all servers get some soon.
 * Before it go the chunks of blocks that have room, ISSUE_TURN at the most, since one turn for many
 * costs less. Return whether there may be more in another turn. */
static bool issue_turn(struct exchange_group *group, uint32_t owner)
{
    const struct heap *queue = &group->issuing->queues[owner];
    for (uint32_t issued = 0; !group->failed && queue->first && issued < ISSUE_TURN; issued++) {
        bool is_block = queue_first(queue)->collective->ask.block > 0;
        if (!issue_one(group, owner))
            return false;
        group->issuing->turn++;
        if (!is_block)
            return true;
    }
    return !group->failed && queue->first;
}

/* A turn for each of some owners but this node. Nodes begin at different ones, as far as there are
 * enough: if all began with the same, their chunks would queue at its link. */
static bool issue_round(struct exchange_group *group, uint32_t first, uint32_t count)
{
    assert(group->members.self_node != NO_INDEX); /* others have nothing queued */
    uint32_t begin =
        (uint32_t)((uint64_t)group->members.self_node * count / group->members.node_count);
    bool more = false;
    for (uint32_t turn = 0; turn < count && group->issuing->queued > 0; turn++) {
        uint32_t position = begin + turn;
        uint32_t owner = first + (position < count ? position : position - count);
        if (owner != group->owners.self)
            more |= issue_turn(group, owner);
    }
    return more;
}

/* The turn of this node itself is the last: others may be waiting for it alone, and results are
 * long. Its messages to other owners would leave behind those results, and it would be late again.
 * With blocks it waits until no other owner has more. */
static bool issue_own_turn(struct exchange_group *group, bool others_have_more)
{
    uint32_t self = group->owners.self;
    const struct outlet *first =
        self == NO_INDEX ? NULL : queue_first(&group->issuing->queues[self]);
    if (!first || (others_have_more && first->collective->ask.block > 0))
        return false;
    return issue_turn(group, self);
}

void group_issue(struct exchange_group *group)
{
    struct issuing *issuing = group->issuing;
    uint32_t servers = group->owners.rule.servers;
    bool more = issuing->queued > 0; /* most often nothing is, and this is called often */
    issuing->turn = 0;
    while (more && issuing->turn < ISSUE_TURN) {
        more = issue_round(group, 0, servers);
        more |= issue_round(group, servers, group->owners.count - servers);
        more |= issue_own_turn(group, more);
    }
    if (more)
        group_mark_dirty(group);
}

void group_issue_transfers(struct exchange_group *group)
{
    struct issuing *issuing = group->issuing;
    for (uint32_t issued = 0; !group->failed && issuing->transfers.first; issued++) {
        if (issued == ISSUE_TURN) {
            group_mark_dirty(group);
            return;
        }
        if (!outlet_issue(queue_first(&issuing->transfers)))
            return; /* without memory for one there is none for the next */
    }
}

/* How many are queued; each is in the queue of its owner, NULL: a transfer. */
static uint32_t queue_check(const struct heap *queue, const uint32_t *owner)
{
    uint32_t count = 0;
    heap_check(queue);
    for (const struct heap_entry *it = queue->first; it; it = heap_next(it)) {
        const struct outlet *outlet = (const struct outlet *)it;
        assert(outlet->queued);
        assert(owner ? outlet_owner(outlet) == *owner : ask_is_transfer(&outlet->collective->ask));
        count++;
    }
    return count;
}

static uint32_t issue_check_outlets(const struct collective *first)
{
    uint32_t queued = 0;
    for (const struct collective *it = first; it; it = it->next) {
        assert(it->slowest_shards > 0 &&
               it->slowest_shards == issue_shards_at(it, it->slowest_pieces));
        for (uint32_t i = 0; i < it->layout.shards; i++) {
            assert(outlet_pieces_delivered(&it->outlets[i]) >= it->slowest_pieces);
            assert(it->outlets[i].next_piece - it->slowest_pieces <= it->lead_window);
            assert(it->outlets[i].queued == (outlet_next_chunk(&it->outlets[i]) != NO_INDEX));
            queued += it->outlets[i].queued;
        }
    }
    return queued;
}

void issue_check_invariants(const struct exchange_group *group)
{
    const struct issuing *issuing = group->issuing;
    uint32_t all = issue_check_outlets(group->order->oldest);
    uint32_t queued = 0;
    for (uint32_t owner = 0; owner < group->owners.count; owner++) {
        assert(issuing->in_flight[owner] <= group->owners.windows[owner]);
        queued += queue_check(&issuing->queues[owner], &owner);
    }
    assert(queued == all);
    all += issue_check_outlets(group->order->transfers);
    assert(all == queued + queue_check(&issuing->transfers, NULL));
    assert(all == issuing->queued);
}
