#include "server/exchange/exchange_group.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/window.h"
#include "common/reduce/reduce.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/ground/segments.h"
#include "server/exchange/ground/session.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/agreement.h"
#include "server/exchange/node/any_receive.h"
#include "server/exchange/node/chunk.h"
#include "server/exchange/node/collective.h"
#include "server/exchange/node/issue.h"
#include "server/exchange/node/probe.h"
#include "server/exchange/node/stability.h"
#include "server/exchange/owner/slots.h"
#include "server/jobs/group.h"

/* A group and what each layer keeps for it, in one piece of memory. */
struct group_memory {
    struct exchange_group group; /* first: either is known by the other */
    struct order order;
    struct slots slots;
    struct any_receives any;
    struct probes probes;
    struct issuing issuing;
    struct agreement agreement;
};

/* --- who takes part, and who owns ------------------------------------------------------------- */

/* All are ranks of the job, and each is there once. */
static int group_check_ranks(const struct exchange_job *job, const uint32_t *ranks,
                             uint32_t rank_count, struct error *error)
{
    uint32_t wrong;
    if (group_find_wrong_rank(ranks, rank_count, job->world_size, &wrong) != 0)
        return error_set(error, ERR_MEMORY, "no memory for a group of %" PRIu32, rank_count);
    return wrong == rank_count
               ? 0
               : error_set(error, ERR_INVALID, "rank %" PRIu32 " is not of the job, or twice",
                           ranks[wrong]);
}

static int group_fill_members(struct exchange_group *group, const uint32_t *ranks,
                              struct error *error)
{
    const struct exchange_job *job = group->job;
    const struct exchange_options *options = &job->exchange->options;
    struct members *members = &group->members;
    memcpy(members->ranks, ranks, members->size * sizeof(*ranks));
    bool *has_rank = calloc(options->node_count, sizeof(*has_rank));
    if (!has_rank)
        return error_set(error, ERR_MEMORY, "no memory for a group of %" PRIu32, members->size);
    for (uint32_t i = 0; i < members->size; i++)
        has_rank[job->rank_nodes[ranks[i]]] = true;
    for (uint32_t node = 0; node < options->node_count; node++) {
        if (has_rank[node])
            members->nodes[members->node_count++] = node;
    }
    free(has_rank);
    for (uint32_t i = 0; i < members->size; i++) {
        if (job->rank_nodes[ranks[i]] == options->self)
            members->locals[members->local_count++] =
                (struct local_rank){.group_rank = i, .job_rank = ranks[i]};
    }
    if (members->local_count > REDUCE_MAX_INPUTS || members->node_count > REDUCE_MAX_INPUTS)
        return error_set(error, ERR_MEMORY, "more than %d ranks on a node or nodes in a group",
                         REDUCE_MAX_INPUTS);
    members->self_node = group_node_index(group, options->self);
    members->single = members->node_count == 1;
    return 0;
}

static void group_fill_owners(struct exchange_group *group)
{
    const struct exchange_job *job = group->job;
    const struct exchange_options *options = &job->exchange->options;
    const struct members *members = &group->members;
    struct owners *owners = &group->owners;
    uint32_t servers = members->single ? 1 : job->server_count;
    for (uint32_t node = 0; node < options->node_count; node++)
        owners->index_of[node] = NO_INDEX;
    for (uint32_t i = 0; i < servers; i++) {
        owners->nodes[i] = members->single ? members->nodes[0] : job->server_nodes[i];
        owners->weights[i] = members->single ? 1 : job->server_weights[i];
        owners->index_of[owners->nodes[i]] = i;
    }
    owners->rule =
        (struct layout_rule){.servers = servers,
                             .weights = owners->weights,
                             .chunk_bytes = options->chunk_bytes,
                             .least_shard_bytes = options->least_shard_bytes,
                             .equal_weights = layout_weights_equal(owners->weights, servers)};
    owners->block_rule = layout_rule_single(&owners->rule, true);
    owners->send_rule = layout_rule_single(&owners->rule, false);
    owners->count = servers;
    for (uint32_t i = 0; i < members->node_count; i++) {
        if (group_owner_index(group, members->nodes[i]) != NO_INDEX)
            continue;
        owners->index_of[members->nodes[i]] = owners->count;
        owners->nodes[owners->count++] = members->nodes[i];
    }
    owners->self = group_owner_index(group, options->self);
    owners->window = window_chunks(options->window_chunks, members->node_count);
    owners->least_window = window_chunks(options->window_chunks, owners->count);
    for (uint32_t i = 0; i < owners->count; i++)
        owners->windows[i] = group_node_index(group, owners->nodes[i]) != NO_INDEX
                                 ? owners->window
                                 : owners->least_window;
}

/* --- the memory of its windows ---------------------------------------------------------------- */

/* How many messages of this group the node may have under way to this one. */
static uint32_t group_receives_from(const struct exchange_group *group, uint32_t node)
{
    const struct owners *owners = &group->owners;
    if (group->members.single || node == group->job->exchange->options.self)
        return 0;
    uint32_t owner = group_owner_index(group, node);
    bool contributes = owners->self != NO_INDEX && group_node_index(group, node) != NO_INDEX;
    bool returns = group->members.self_node != NO_INDEX && owner != NO_INDEX;
    /* Where both hold, both nodes have ranks, and the windows are the same. */
    uint32_t window = contributes ? owners->windows[owners->self]
                      : returns   ? owners->windows[owner]
                                  : 0;
    return window_receives(window, contributes, returns);
}

/* And of how many of its own messages to the node it keeps a copy: windows count alike both ways.
 */
static uint32_t group_copies_for(const struct exchange_group *group, uint32_t node)
{
    return group->job->recovery ? group_receives_from(group, node) : 0;
}

/* Promise all the buffers that the group's windows need, or none, and post the receives. */
static int group_reserve(struct exchange_group *group, struct error *error)
{
    struct exchange *exchange = group->job->exchange;
    uint32_t nodes = exchange->options.node_count;
    uint64_t wanted = 0;
    for (uint32_t i = 0; !group->members.single && i < group->owners.count; i++)
        wanted += group->members.local_count > 1 ? group->owners.windows[i] : 0;
    for (uint32_t node = 0; node < nodes; node++)
        wanted += group_receives_from(group, node) + group_copies_for(group, node);
    struct buffer_pool *pool = exchange->options.pool;
    uint64_t before = buffer_pool_reserved_bytes(pool);
    int result = buffer_pool_reserve(pool, wanted, error);
    if (result != 0)
        return result;
    uint64_t bytes = buffer_pool_reserved_bytes(pool) - before;
    result = share_promise(exchange, group->job->share, bytes, true, error);
    if (result != 0) {
        buffer_pool_unreserve(pool, wanted);
        return result;
    }
    group->reserved_bytes = bytes;
    group->reserved = wanted;
    group->promised = true;
    for (uint32_t node = 0; node < nodes; node++) {
        uint32_t receives = group_receives_from(group, node);
        receive_account(exchange, node)->allowed += receives;
        exchange->peers[node].link.groups += receives > 0;
        exchange->peers[node].session.promised += group_copies_for(group, node);
    }
    for (uint32_t node = 0; node < nodes; node++)
        receive_replenish(exchange, node);
    return 0;
}

/* Late messages find the receives that they were promised: those stay posted. */
static void group_unreserve(struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    if (!group->promised)
        return;
    group->promised = false;
    session_forget_group(group);
    for (uint32_t node = 0; node < exchange->options.node_count; node++) {
        uint32_t receives = group_receives_from(group, node);
        receive_account(exchange, node)->allowed -= receives;
        exchange->peers[node].link.groups -= receives > 0;
        exchange->peers[node].session.promised -= group_copies_for(group, node);
    }
    buffer_pool_unreserve(exchange->options.pool, group->reserved);
    share_return(group->job->exchange, group->job->share, group->reserved_bytes);
}

/* --- opening ---------------------------------------------------------------------------------- */

static void group_free_memory(struct exchange_group *group)
{
    chunks_close(group);
    slots_close(group);
    any_receives_close(group);
    order_close(group);
    issuing_close(group);
    stability_close(group);
    free(group->members.ranks);
    free(group->members.nodes);
    free(group->members.locals);
    free(group->members.departed);
    free(group->owners.nodes);
    free(group->owners.weights);
    free(group->owners.windows);
    free(group->owners.index_of);
    free(group); /* first in its struct group_memory */
}

static struct exchange_group *group_allocate(struct exchange_job *job, uint32_t id, uint32_t size)
{
    struct group_memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return NULL;
    uint32_t nodes = job->exchange->options.node_count;
    uint32_t servers = job->server_count > 0 ? job->server_count : 1;
    memory->agreement.least_disagreed = UINT64_MAX;
    memory->group = (struct exchange_group){
        .job = job,
        .id = id,
        .members = {.size = size,
                    .ranks = calloc(size, sizeof(uint32_t)),
                    .nodes = calloc(nodes, sizeof(uint32_t)),
                    .locals = calloc(size, sizeof(struct local_rank)),
                    .departed = calloc(size, sizeof(bool)),
                    .least_departed = UINT64_MAX},
        .owners = {.nodes = calloc((size_t)servers + nodes, sizeof(uint32_t)),
                   .weights = calloc(servers, sizeof(uint32_t)),
                   .windows = calloc((size_t)servers + nodes, sizeof(uint32_t)),
                   .index_of = calloc(nodes, sizeof(uint32_t))},
        .order = &memory->order,
        .slots = &memory->slots,
        .any = &memory->any,
        .probes = &memory->probes,
        .issuing = &memory->issuing,
        .agreement = &memory->agreement,
    };
    const struct members *members = &memory->group.members;
    const struct owners *owners = &memory->group.owners;
    if (!members->ranks || !members->nodes || !members->locals || !members->departed ||
        !owners->nodes || !owners->weights || !owners->windows || !owners->index_of) {
        group_free_memory(&memory->group);
        return NULL;
    }
    return &memory->group;
}

static int group_open_layers(struct exchange_group *group, struct error *error)
{
    chunks_open(group);
    if (!slots_open(group) || !any_receives_open(group) || !issuing_open(group) ||
        !stability_open(group))
        return error_set(error, ERR_MEMORY, "no memory for a group of %" PRIu32,
                         group->members.size);
    return 0;
}

int exchange_group_create(struct exchange_group **opened, struct exchange_job *job, uint32_t id,
                          const uint32_t *ranks, uint32_t rank_count, struct error *error)
{
    int result = group_check_ranks(job, ranks, rank_count, error);
    if (result != 0)
        return result;
    struct exchange_group *group = group_allocate(job, id, rank_count);
    if (!group)
        return error_set(error, ERR_MEMORY, "no memory for a group of %" PRIu32, rank_count);
    result = group_fill_members(group, ranks, error);
    if (result == 0) {
        group_fill_owners(group);
        result = group_open_layers(group, error);
    }
    if (result == 0)
        result = group_reserve(group, error);
    if (result != 0) {
        group_free_memory(group);
        return result;
    }
    *opened = group;
    return 0;
}

/* --- what is in progress ---------------------------------------------------------------------- */

bool exchange_group_busy(const struct exchange_group *group)
{
    uint64_t sequence, first_ns;
    return group->order->oldest || group->order->transfers || group->pending > 0 ||
           stability_waits(group) || slots_oldest_waiting(group, &sequence, &first_ns);
}

bool exchange_group_waits(const struct exchange_group *group)
{
    return exchange_group_busy(group) || any_receives_waiting(group);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Free what is in progress, of which nothing is pending. False: so much that the rest is left for
 * another turn. */
static bool group_drop(struct exchange_group *group, uint32_t *most)
{
    assert(group->pending == 0);
    if (!collectives_drop(group, most) || !any_receives_drop(group, most) ||
        !probes_drop(group, most)) {
        group_mark_dirty(group);
        return false;
    }
    slots_drop(group);
    issuing_drop(group);
    return true;
}

/* Free what no task or send touches: buffers, and the ranks' memory in their arenas. The rest
 * waits, and may wait long: a send takes until its peer is given up. */
static void group_drop_idle(struct exchange_group *group)
{
    group->dropped = true;
    slots_drop_idle(group);
    collectives_drop_idle(group);
}

void exchange_group_settle(struct exchange_group *group, uint32_t *most)
{
    if (group->job->exchange->options.recovery)
        sends_drop_waiting(group);
    if (group->pending == 0) {
        if (group_drop(group, most))
            group_unreserve(group);
    } else if (!group->dropped) {
        group_drop_idle(group);
    }
}

bool exchange_group_free(struct exchange_group *group, uint32_t *most)
{
    if (!group_drop(group, most))
        return false;
    group_unmark_dirty(group);
    session_forget_group(group); /* what it has sent since it failed, too */
    segments_release(group);
    group_unreserve(group);
    group_free_memory(group);
    return true;
}
