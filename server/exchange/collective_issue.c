/* Which chunk of which collective a node gives to each owner next.
 *
 * For every owner a group keeps a queue of the collectives that have a chunk for it now, in the
 * order in which they go: what is issued costs the same however many blocks there are for others.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <utlist.h>

#include "server/exchange/exchange_private.h"

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
    return (layout->first_server + outlet_shard(outlet)) % layout->rule->servers;
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

/* Smaller priority first, then older. */
static bool outlet_goes_before(const struct outlet *a, const struct outlet *b)
{
    const struct collective *left = a->collective, *right = b->collective;
    if (left->priority != right->priority)
        return left->priority < right->priority;
    return collective_comes_before(left, right->sequence, right->ask.block);
}

static struct outlet **outlet_queue(const struct outlet *outlet)
{
    struct exchange_group *group = outlet->collective->group;
    if (is_transfer(&outlet->collective->ask))
        return &group->transfer_queue;
    return &group->queues[outlet_owner(outlet)];
}

/* Most come in the order in which they go. */
static void outlet_enqueue(struct outlet *outlet)
{
    struct outlet **queue = outlet_queue(outlet);
    struct outlet *after = *queue ? (*queue)->prev : NULL;
    while (after && outlet_goes_before(outlet, after))
        after = after == *queue ? NULL : after->prev;
    if (after)
        DL_APPEND_ELEM(*queue, after, outlet);
    else
        DL_PREPEND(*queue, outlet);
    outlet->queued = true;
    outlet->collective->group->queued++;
}

/* After what may have been all that kept its next chunk back. */
static void outlet_enqueue_ready(struct outlet *outlet)
{
    if (!outlet->queued && outlet_next_chunk(outlet) != NO_INDEX)
        outlet_enqueue(outlet);
}

void outlet_leave(struct outlet *outlet)
{
    if (!outlet->queued)
        return;
    struct outlet **queue = outlet_queue(outlet);
    DL_DELETE(*queue, outlet);
    outlet->queued = false;
    outlet->collective->group->queued--;
}

void collective_advance_ready(struct collective *collective, uint32_t ready)
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

/* Whether a local rank may yet submit something older: with blocks, ranks take part in different
 * ones. */
static bool group_may_get_older(const struct exchange_group *group,
                                const struct collective *collective)
{
    for (uint32_t i = 0; i < group->local_count; i++) {
        const struct local_rank *rank = &group->locals[i];
        uint64_t sequence = rank->next_sequence - (rank->next_block > 0);
        if (sequence < collective->sequence ||
            (sequence == collective->sequence && rank->next_block < collective->ask.block))
            return true;
    }
    return false;
}

/* The outlet of the oldest collective for the owner, when it has a chunk for it. */
static struct outlet *group_oldest_outlet(const struct exchange_group *group, uint32_t owner)
{
    const struct collective *oldest = group->oldest;
    const struct layout *layout = &oldest->layout;
    uint32_t servers = layout->rule->servers;
    uint32_t shard = layout->shards;
    if (oldest->ask.block > 0)
        shard = owner == oldest->owner ? 0 : shard;
    else if (owner < servers)
        shard = (owner + servers - layout->first_server) % servers;
    return shard < layout->shards && oldest->outlets[shard].queued ? &oldest->outlets[shard] : NULL;
}

/* in_flight: for its owner, of all collectives. */
static bool outlet_has_room(const struct outlet *outlet, uint32_t in_flight)
{
    return outlet->in_flight < outlet->collective->shard_window &&
           in_flight < outlet->collective->network_window;
}

/* The window's last place is for the oldest alone, and only when no older one can come. What others
 * have in flight keeps no oldest back that has nothing there: they may be waiting for it. */
static struct outlet *group_next_outlet(const struct exchange_group *group, uint32_t owner)
{
    uint32_t in_flight = group->in_flight[owner];
    bool is_last_place = in_flight + 1 >= group->window;
    struct outlet *first = group->queues[owner];
    if (!is_last_place && outlet_has_room(first, in_flight))
        return first;
    struct outlet *oldest = group_oldest_outlet(group, owner);
    if (!oldest || (oldest->in_flight > 0 && !outlet_has_room(oldest, in_flight)))
        return NULL;
    return is_last_place && group_may_get_older(group, group->oldest) ? NULL : oldest;
}

void outlet_count(struct outlet *outlet, int by)
{
    const struct collective *collective = outlet->collective;
    outlet->in_flight += (uint32_t)by;
    if (!is_transfer(&collective->ask))
        collective->group->in_flight[outlet_owner(outlet)] += (uint32_t)by;
}

static uint32_t collective_shards_at(const struct collective *collective, uint32_t pieces)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < collective->layout.shards; i++)
        count += outlet_pieces_delivered(&collective->outlets[i]) == pieces;
    return count;
}

/* All shards have got one piece further: those that waited for it go on. */
static void collective_advance_slowest(struct collective *collective)
{
    collective->slowest_shards = collective_shards_at(collective, ++collective->slowest_pieces);
    for (uint32_t i = 0; i < collective->layout.shards; i++)
        outlet_enqueue_ready(&collective->outlets[i]);
}

void outlet_delivered(struct outlet *outlet)
{
    assert(outlet->in_flight > 0);
    struct collective *collective = outlet->collective;
    bool was_slowest = outlet_pieces_delivered(outlet) == collective->slowest_pieces;
    outlet_count(outlet, -1);
    if (was_slowest && --collective->slowest_shards == 0)
        collective_advance_slowest(collective);
}

bool outlet_issue(struct outlet *outlet)
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
    chunk_trace(chunk, TRACE_WAIT);
    if (outlet_next_chunk(outlet) == NO_INDEX)
        outlet_leave(outlet); /* now: the collective may be gone when the chunk is issued */
    if (collective->single) {
        chunk_issue_single(chunk);
        return true;
    }
    if (chunk_issue_shared(chunk))
        return true;
    group->starved = true;
    outlet_count(outlet, -1);
    outlet->next_piece--;
    collective->issued--;
    if (!outlet->queued)
        outlet_enqueue(outlet);
    return false;
}

static bool group_issue_one(struct exchange_group *group, uint32_t owner)
{
    if (!group->queues[owner] || group->in_flight[owner] >= group->window)
        return false;
    struct outlet *outlet = group_next_outlet(group, owner);
    return outlet && outlet_issue(outlet);
}

/* One chunk of a shard: a sum waits for its slowest part, so all servers get some soon. Of blocks
 * all that have room, which costs less. Whether there may be more in another turn. */
static bool group_issue_turn(struct exchange_group *group, uint32_t owner)
{
    while (!group->failed && group->queues[owner]) {
        bool is_block = group->queues[owner]->collective->ask.block > 0;
        if (!group_issue_one(group, owner))
            return false;
        if (!is_block)
            return true;
    }
    return false;
}

/* A turn for each of some owners. Nodes begin at different ones, as far as there are enough: if all
 * began with the same, their chunks would queue at its link. */
static bool group_issue_round(struct exchange_group *group, uint32_t first, uint32_t count)
{
    assert(group->self_node != NO_INDEX); /* others have nothing queued */
    uint32_t begin = (uint32_t)((uint64_t)group->self_node * count / group->node_count);
    bool more = false;
    for (uint32_t turn = 0; turn < count && group->queued > 0; turn++) {
        uint32_t place = begin + turn;
        more |= group_issue_turn(group, first + (place < count ? place : place - count));
    }
    return more;
}

static void group_issue(struct exchange_group *group)
{
    uint32_t servers = group->rule.servers;
    bool more = group->queued > 0; /* most often nothing is: this comes after every message */
    while (more) {
        more = group_issue_round(group, 0, servers);
        more |= group_issue_round(group, servers, group->owner_count - servers);
    }
}

/* The owner of chunk 0 hears of the oldest disagreement: there is no receive for more. */
static void group_report_disagreements(struct exchange_group *group)
{
    if (!group->disagrees)
        return;
    for (struct collective *it = group->oldest; it; it = it->next) {
        if (!it->disagree || it->submitted < it->needed)
            continue;
        if (it->told)
            return;
        it->told = true;
        uint32_t server = it->layout.first_server;
        uint32_t node = group->owner_nodes[server];
        if (it->single || it->ask.block > 0 || server == group->self_owner) {
            slot_disagree_local(it);
            return;
        }
        struct buffer *buffer = buffer_get(group->job->exchange->options.pool);
        if (!buffer) {
            it->told = false;
            group->starved = true;
            return;
        }
        buffer->peer = NO_INDEX;
        uint8_t *payload = buffer->data + WIRE_HEADER_BYTES;
        uint32_t bytes = collective_encode_asks(it, payload, buffer->capacity - WIRE_HEADER_BYTES);
        struct exchange_send *send =
            send_create(group, node, WIRE_DISAGREE, it->sequence, 0, &it->ask, payload, bytes);
        send->buffer = buffer;
        send_submit(group->job->exchange, send);
        return;
    }
}

static void group_check_left(struct exchange_group *group)
{
    if (!group->newest || group->newest->sequence < group->least_left)
        return;
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text),
             "rank %" PRIu32 " has left job '%s' after %" PRIu64 " collectives of group %" PRIu32,
             group->left_rank, group->job->name, group->least_left, group->id);
    exchange_group_fail(group, ERR_LOST, text);
}

void group_pump(struct exchange_group *group)
{
    if (!group->failed)
        group_check_left(group);
    if (!group->failed)
        group_report_disagreements(group);
    if (!group->failed)
        group_issue(group);
    if (!group->failed)
        transfers_issue(group);
    if (group->failed)
        exchange_job_settle(group->job);
}

void group_check_queues(const struct exchange_group *group)
{
    uint32_t queued = 0;
    for (const struct collective *it = group->oldest; it; it = it->next) {
        assert(it->slowest_shards > 0 &&
               it->slowest_shards == collective_shards_at(it, it->slowest_pieces));
        for (uint32_t i = 0; i < it->layout.shards; i++) {
            assert(outlet_pieces_delivered(&it->outlets[i]) >= it->slowest_pieces);
            assert(it->outlets[i].next_piece - it->slowest_pieces <= it->lead_window);
            assert(it->outlets[i].queued == (outlet_next_chunk(&it->outlets[i]) != NO_INDEX));
            queued += it->outlets[i].queued;
        }
    }
    uint32_t all = queued;
    for (uint32_t owner = 0; owner < group->owner_count; owner++) {
        for (const struct outlet *it = group->queues[owner]; it; it = it->next) {
            assert(outlet_owner(it) == owner);
            assert(!it->next || outlet_goes_before(it, it->next));
            queued--;
        }
    }
    assert(queued == 0);
    for (const struct collective *it = group->transfers; it; it = it->next)
        all += it->outlets[0].queued;
    assert(all == group->queued);
}
