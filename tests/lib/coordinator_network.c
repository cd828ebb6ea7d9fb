#include "tests/lib/coordinator_network.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 4096
#define EVENTS_MAX 4096

enum item_kind { ITEM_MESSAGE, ITEM_CONNECTED, ITEM_UP, ITEM_DOWN };

struct item {
    enum item_kind kind;
    char *line; /* or the reason of ITEM_DOWN */
    size_t length;
};

/* What node `to` will hear of node `from`, in order. */
struct channel {
    struct item items[ITEMS_MAX];
    uint32_t head, count;
    bool open; /* messages are taken */
};

enum event_kind { EVENT_JOB, EVENT_GROUP, EVENT_DETACHED, EVENT_LATE, EVENT_IDLE };

struct event {
    enum event_kind kind;
    uint64_t job, sequence;
    uint32_t group, rank;
};

struct engine_job_copy {
    uint64_t id;
    bool failed;
    uint32_t world_size, attached, groups;
    uint32_t rank_nodes[64];
};

struct node {
    struct network *network;
    uint32_t number;
    struct config config;
    struct membership membership;
    struct coordinator *coordinator;
    uint64_t deadline_ns;
    struct event events[EVENTS_MAX];
    uint32_t head, count;
    struct engine_job_copy jobs[NETWORK_JOBS_MAX];
    uint32_t job_count;
    uint32_t late_ranks[8], late_count;
    uint32_t failed;
    char refusal[64];
};

struct network {
    uint32_t count;
    uint64_t now_ns, random;
    uint32_t uid, next_worker;
    struct log log;
    struct node *nodes;
    struct channel *channels; /* [from * count + to] */
    struct network_worker workers[NETWORK_WORKERS_MAX];
    uint32_t worker_count;
    /* The roster that the first engine saw, for each job. */
    struct engine_job_copy rosters[NETWORK_JOBS_MAX];
    uint32_t roster_count;
};

uint32_t network_random(struct network *network, uint32_t below)
{
    network->random = network->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(network->random >> 33) % below;
}

static struct channel *channel(struct network *network, uint32_t from, uint32_t to)
{
    return &network->channels[from * network->count + to];
}

static void channel_put(struct channel *channel, enum item_kind kind, char *line, size_t length)
{
    ck_assert_uint_lt(channel->count, ITEMS_MAX);
    channel->items[(channel->head + channel->count++) % ITEMS_MAX] =
        (struct item){kind, line, length};
}

static struct item channel_take(struct channel *channel)
{
    struct item item = channel->items[channel->head];
    channel->head = (channel->head + 1) % ITEMS_MAX;
    channel->count--;
    return item;
}

static void channel_clear(struct channel *channel)
{
    while (channel->count > 0)
        free(channel_take(channel).line);
}

static void node_event(struct node *node, struct event event)
{
    ck_assert_uint_lt(node->count, EVENTS_MAX);
    node->events[(node->head + node->count++) % EVENTS_MAX] = event;
}

/* --- the I/O table */

static uint64_t io_random(void *context)
{
    struct network *network = ((struct node *)context)->network;
    return (uint64_t)network_random(network, UINT32_MAX) << 32 |
           network_random(network, UINT32_MAX);
}

static void io_send_peer(void *context, uint32_t to, const struct message *message)
{
    struct node *node = context;
    struct channel *line = channel(node->network, node->number, to);
    size_t length;
    if (!line->open)
        return;
    char *text = message_encode(message, &length);
    channel_put(line, ITEM_MESSAGE, text, length - 1);
}

static struct network_worker *find_worker(struct network *network, uint32_t id)
{
    for (uint32_t i = 0; i < network->worker_count; i++) {
        if (network->workers[i].id == id)
            return &network->workers[i];
    }
    return NULL;
}

static void check_joined(struct network *network, const struct network_worker *worker)
{
    if (worker->wished_rank >= 0)
        ck_assert_int_eq(worker->joined.rank, worker->wished_rank);
    for (uint32_t i = 0; i < network->worker_count; i++) {
        const struct network_worker *other = &network->workers[i];
        if (other == worker || other->joined.job_id != worker->joined.job_id)
            continue;
        ck_assert_int_ne(other->joined.rank, worker->joined.rank);
        ck_assert_uint_eq(other->joined.world_size, worker->joined.world_size);
        if (other->node == worker->node)
            ck_assert_int_ne(other->joined.local_rank, worker->joined.local_rank);
        else
            ck_assert_uint_ne(other->joined.node_index, worker->joined.node_index);
    }
}

static void io_send_worker(void *context, uint32_t id, const struct message *message)
{
    struct node *node = context;
    struct network_worker *worker = find_worker(node->network, id);
    ck_assert_ptr_nonnull(worker);
    ck_assert(!worker->closed);
    size_t length;
    struct message copy;
    struct error error;
    char *line = message_encode(message, &length);
    ck_assert_int_eq(message_decode(&copy, MESSAGE_TO_WORKER, line, length - 1, &error), 0);
    free(line);
    uint64_t bound_ns = worker->joined_at_ns + worker->timeout_ns + 4000 * NETWORK_MS;
    switch (copy.type) {
    case MESSAGE_JOINED:
        ck_assert_int_eq(worker->state, CLIENT_JOINING);
        ck_assert_uint_le(node->network->now_ns, bound_ns);
        worker->state = CLIENT_JOINED;
        worker->weight_count = copy.weights.count;
        worker->joined = copy;
        check_joined(node->network, worker);
        break;
    case MESSAGE_ERROR:
        worker->failure = copy;
        if (copy.request == 0) {
            ck_assert_int_eq(worker->state, CLIENT_JOINING);
            ck_assert_uint_le(node->network->now_ns, bound_ns);
            worker->state = CLIENT_OVER;
        } else {
            worker->group_refused = true;
        }
        break;
    case MESSAGE_FAILED:
        worker->failure = copy;
        worker->failed = true;
        worker->failed_count++;
        break;
    case MESSAGE_LEFT:
        worker->left = true;
        worker->state = CLIENT_OVER;
        break;
    case MESSAGE_WORKER_GROUP_OPENED:
        worker->group_opened = true;
        worker->group = copy.group;
        break;
    default:
        ck_abort_msg("unexpected %s", message_type_name(copy.type));
    }
    message_clear(&copy);
}

static void io_end_worker(void *context, uint32_t id)
{
    struct network_worker *worker = find_worker(((struct node *)context)->network, id);
    ck_assert(!worker->closed);
    worker->closed = true;
    if (worker->state == CLIENT_JOINING || worker->state == CLIENT_JOINED)
        ck_assert(worker->failed);
    worker->state = CLIENT_OVER;
}

static struct engine_job_copy *engine_job(struct node *node, uint64_t id)
{
    for (uint32_t i = 0; i < node->job_count; i++) {
        if (node->jobs[i].id == id)
            return &node->jobs[i];
    }
    return NULL;
}

static void check_roster(struct network *network, const struct engine_job_copy *copy)
{
    for (uint32_t i = 0; i < network->roster_count; i++) {
        const struct engine_job_copy *first = &network->rosters[i];
        if (first->id != copy->id)
            continue;
        ck_assert_uint_eq(first->world_size, copy->world_size);
        ck_assert_mem_eq(first->rank_nodes, copy->rank_nodes, sizeof(copy->rank_nodes));
        return;
    }
    if (network->roster_count < NETWORK_JOBS_MAX)
        network->rosters[network->roster_count++] = *copy;
}

static void io_job_open(void *context, const struct job *job)
{
    struct node *node = context;
    struct engine_job_copy copy = {.id = job->id, .world_size = job->world_size};
    ck_assert_ptr_null(engine_job(node, job->id));
    ck_assert_uint_le(job->world_size, 64);
    memcpy(copy.rank_nodes, job->rank_nodes, job->world_size * sizeof(uint32_t));
    check_roster(node->network, &copy);
    ck_assert_uint_lt(node->job_count, NETWORK_JOBS_MAX);
    node->jobs[node->job_count++] = copy;
    node_event(node, (struct event){.kind = EVENT_JOB, .job = job->id});
}

static void io_job_close(void *context, uint64_t id)
{
    struct node *node = context;
    struct engine_job_copy *job = engine_job(node, id);
    if (job)
        *job = node->jobs[--node->job_count];
}

static void io_job_fail(void *context, uint64_t id)
{
    struct node *node = context;
    struct engine_job_copy *job = engine_job(node, id);
    node->failed++;
    if (job)
        job->failed = true;
}

static void io_group_open(void *context, uint64_t id, const struct group *group)
{
    struct node *node = context;
    ck_assert_ptr_nonnull(engine_job(node, id));
    engine_job(node, id)->groups++;
    node_event(node, (struct event){.kind = EVENT_GROUP, .job = id, .group = group->id});
}

static void io_group_close(void *context, uint64_t id, uint32_t group)
{
    (void)group;
    struct engine_job_copy *job = engine_job(context, id);
    ck_assert_ptr_nonnull(job);
    ck_assert_uint_gt(job->groups, 0);
    job->groups--;
}

static void io_rank_left(void *context, uint64_t id, uint32_t group, uint32_t rank,
                         uint64_t sequences)
{
    (void)group;
    const struct engine_job_copy *job = engine_job(context, id);
    ck_assert_ptr_nonnull(job);
    ck_assert_uint_lt(rank, job->world_size);
    ck_assert_uint_eq(sequences, rank + 7);
}

static void io_worker_attach(void *context, uint64_t id, uint32_t rank, uint32_t worker)
{
    struct node *node = context;
    struct engine_job_copy *job = engine_job(node, id);
    ck_assert_ptr_nonnull(job);
    ck_assert_uint_eq(job->rank_nodes[rank], node->number);
    /* Before the worker is told: it may submit at once. */
    ck_assert_int_eq(find_worker(node->network, worker)->state, CLIENT_JOINING);
    job->attached++;
}

static void io_worker_detach(void *context, uint64_t id, uint32_t rank)
{
    struct engine_job_copy *job = engine_job(context, id);
    if (!job)
        return;
    ck_assert_uint_gt(job->attached, 0);
    job->attached--;
    node_event(context, (struct event){.kind = EVENT_DETACHED, .job = id, .rank = rank});
}

static void io_late_query(void *context, uint64_t job, uint32_t group, uint64_t sequence)
{
    node_event(context, (struct event){
                            .kind = EVENT_LATE, .job = job, .group = group, .sequence = sequence});
}

static void io_drain(void *context)
{
    node_event(context, (struct event){.kind = EVENT_IDLE});
}

/* --- nodes */

static void node_start(struct node *node)
{
    struct network *network = node->network;
    struct coordinator_io io = {
        .context = node,
        .random = io_random,
        .send_peer = io_send_peer,
        .send_worker = io_send_worker,
        .end_worker = io_end_worker,
        .job_open = io_job_open,
        .job_close = io_job_close,
        .job_fail = io_job_fail,
        .group_open = io_group_open,
        .group_close = io_group_close,
        .rank_left = io_rank_left,
        .worker_attach = io_worker_attach,
        .worker_detach = io_worker_detach,
        .late_query = io_late_query,
        .drain = io_drain,
    };
    ck_assert_int_eq(membership_init(&node->membership, network->count, node->number, 500, 3000, 0),
                     0);
    ck_assert_int_eq(coordinator_create(&node->coordinator, &node->config, &network->log,
                                        &node->membership, &io),
                     0);
    node->deadline_ns = UINT64_MAX;
    node->job_count = node->count = node->head = 0;
}

static void node_stop(struct node *node)
{
    coordinator_destroy(node->coordinator);
    membership_clear(&node->membership);
}

static void node_configure(struct node *node, const uint32_t *weights)
{
    struct config *config = &node->config;
    config->server_count = node->network->count;
    config->servers = calloc(config->server_count, sizeof(*config->servers));
    for (uint32_t i = 0; i < config->server_count; i++) {
        snprintf(config->servers[i].name, sizeof(config->servers[i].name), "%c", (char)('a' + i));
        snprintf(config->servers[i].address, sizeof(config->servers[i].address), "10.0.0.%u", i);
        config->servers[i].port = (uint16_t)(7000 + i);
        config->servers[i].weight = weights[i];
    }
    config->self = node->number;
    snprintf(config->node, sizeof(config->node), "%c", (char)('a' + node->number));
    config->chunk_bytes = 65536;
    config->least_shard_bytes = 4096;
    config->jobs = 32;
    config->workers = 64;
    config->groups_per_job = 16;
    config->join_ms = 10000;
    config->group_ms = 5000;
    config->late_ms = 5000;
    config->drain_ms = 2000;
}

struct network *network_create(uint32_t nodes, const uint32_t *weights, uint64_t seed)
{
    struct network *network = calloc(1, sizeof(*network));
    network->count = nodes;
    network->random = seed * 2654435761u + 1;
    network->now_ns = 1000 * NETWORK_MS;
    network->next_worker = 1;
    network->uid = 1000;
    log_init(&network->log, "network", LOG_LEVEL_DEBUG, -1, false);
    network->nodes = calloc(nodes, sizeof(*network->nodes));
    network->channels = calloc((size_t)nodes * nodes, sizeof(*network->channels));
    for (uint32_t i = 0; i < nodes; i++) {
        network->nodes[i].network = network;
        network->nodes[i].number = i;
        node_configure(&network->nodes[i], weights);
        node_start(&network->nodes[i]);
    }
    return network;
}

void network_free(struct network *network)
{
    for (uint32_t i = 0; i < network->count; i++) {
        node_stop(&network->nodes[i]);
        free(network->nodes[i].config.servers);
    }
    for (uint32_t i = 0; i < network->count * network->count; i++)
        channel_clear(&network->channels[i]);
    free(network->nodes);
    free(network->channels);
    free(network);
}

uint64_t network_now(const struct network *network)
{
    return network->now_ns;
}

struct config *network_config(struct network *network, uint32_t node)
{
    return &network->nodes[node].config;
}

struct coordinator *network_coordinator(struct network *network, uint32_t node)
{
    return network->nodes[node].coordinator;
}

void network_set_uid(struct network *network, uint32_t uid)
{
    network->uid = uid;
}

/* --- links */

void network_connect(struct network *network, uint32_t a, uint32_t b)
{
    struct channel *there = channel(network, a, b), *back = channel(network, b, a);
    if (there->open || there->count > 0 || back->count > 0)
        return;
    struct channel *both[] = {there, back};
    for (int i = 0; i < 2; i++) {
        both[i]->open = true;
        channel_put(both[i], ITEM_CONNECTED, NULL, 0);
        channel_put(both[i], ITEM_UP, NULL, 0);
    }
}

void network_connect_all(struct network *network)
{
    for (uint32_t a = 0; a < network->count; a++) {
        for (uint32_t b = a + 1; b < network->count; b++)
            network_connect(network, a, b);
    }
}

void network_cut(struct network *network, uint32_t a, uint32_t b, const char *reason)
{
    struct channel *both[] = {channel(network, a, b), channel(network, b, a)};
    if (!both[0]->open)
        return;
    for (int i = 0; i < 2; i++) {
        both[i]->open = false;
        /* What was under way may still arrive, or not. */
        if (network_random(network, 2))
            channel_clear(both[i]);
        channel_put(both[i], ITEM_DOWN, strdup(reason), strlen(reason));
    }
}

void network_crash(struct network *network, uint32_t number)
{
    struct node *node = &network->nodes[number];
    for (uint32_t other = 0; other < network->count; other++) {
        if (other == number)
            continue;
        network_cut(network, number, other, "connection reset");
        channel_clear(channel(network, other, number));
    }
    for (uint32_t i = 0; i < network->worker_count; i++) {
        if (network->workers[i].node == number && !network->workers[i].closed) {
            network->workers[i].closed = true;
            network->workers[i].state = CLIENT_OVER;
        }
    }
    node_stop(node);
    node_start(node);
}

/* --- workers */

int network_say(struct network *network, struct network_worker *worker,
                const struct message *message)
{
    struct coordinator_credentials credentials = {network->uid, 4000 + worker->id};
    struct error error = {0};
    struct node *node = &network->nodes[worker->node];
    int result = coordinator_worker_message(node->coordinator, network->now_ns, worker->id,
                                            &credentials, message, &error);
    if (result < 0) {
        worker->closed = true;
        worker->state = CLIENT_OVER;
        worker->failure.code = error.code;
        snprintf(worker->failure.text, sizeof(worker->failure.text), "%s", error.text);
        coordinator_worker_gone(node->coordinator, network->now_ns, worker->id,
                                "sent nonsense: it did");
    }
    return result;
}

struct network_worker *network_join(struct network *network, uint32_t node, const char *job,
                                    uint32_t world_size, int32_t rank, int32_t local_rank,
                                    uint32_t timeout_ms)
{
    ck_assert_uint_lt(network->worker_count, NETWORK_WORKERS_MAX);
    struct network_worker *worker = &network->workers[network->worker_count++];
    *worker = (struct network_worker){
        .node = node,
        .id = network->next_worker++,
        .state = CLIENT_JOINING,
        .wished_rank = rank,
        .joined_at_ns = network->now_ns,
        .timeout_ns = (timeout_ms ? timeout_ms : network->nodes[node].config.join_ms) * NETWORK_MS,
    };
    snprintf(worker->job, sizeof(worker->job), "%s", job);
    struct message message = {
        .type = MESSAGE_JOIN,
        .world_size = world_size,
        .rank = rank,
        .local_rank = local_rank,
        .timeout_ms = timeout_ms,
    };
    snprintf(message.job, sizeof(message.job), "%s", job);
    network_say(network, worker, &message);
    return worker;
}

void network_leave(struct network *network, struct network_worker *worker)
{
    struct message message = {.type = MESSAGE_LEAVE};
    worker->state = CLIENT_LEAVING;
    network_say(network, worker, &message);
}

void network_kill(struct network *network, struct network_worker *worker)
{
    worker->closed = true;
    worker->state = CLIENT_OVER;
    coordinator_worker_gone(network->nodes[worker->node].coordinator, network->now_ns, worker->id,
                            "ended");
}

void network_group_open(struct network *network, struct network_worker *worker,
                        const uint32_t *ranks, uint32_t count, uint32_t nth, uint32_t timeout_ms)
{
    struct message message = {.type = MESSAGE_WORKER_GROUP_OPEN,
                              .request = 1 + nth,
                              .nth = nth,
                              .timeout_ms = timeout_ms};
    ck_assert_int_eq(message_list_set(&message.ranks, ranks, count), 0);
    network_say(network, worker, &message);
    message_clear(&message);
}

/* --- time */

static void node_give_event(struct node *node)
{
    struct network *network = node->network;
    struct event event = node->events[node->head];
    node->head = (node->head + 1) % EVENTS_MAX;
    node->count--;
    struct message_position position = {0, event.rank + 7};
    switch (event.kind) {
    case EVENT_JOB:
        coordinator_job_opened(node->coordinator, network->now_ns, event.job,
                               node->refusal[0] ? ERR_MEMORY : 0, node->refusal);
        break;
    case EVENT_GROUP:
        coordinator_group_opened(node->coordinator, network->now_ns, event.job, event.group, 0, "");
        break;
    case EVENT_DETACHED:
        coordinator_worker_detached(node->coordinator, network->now_ns, event.job, event.rank,
                                    &position, 1);
        break;
    case EVENT_LATE:
        coordinator_late(node->coordinator, network->now_ns, event.job, event.group, event.sequence,
                         node->late_ranks, node->late_count, NULL, 0);
        break;
    case EVENT_IDLE:
        coordinator_idle(node->coordinator, network->now_ns);
        break;
    }
}

static void node_hear(struct network *network, uint32_t from, uint32_t to)
{
    struct node *node = &network->nodes[to];
    struct item item = channel_take(channel(network, from, to));
    struct message message;
    struct error error = {0};
    switch (item.kind) {
    case ITEM_CONNECTED:
        membership_connected(&node->membership, from, network->now_ns);
        coordinator_peer_connected(node->coordinator, network->now_ns, from);
        break;
    case ITEM_UP:
        membership_up(&node->membership, from);
        coordinator_peer_up(node->coordinator, network->now_ns, from);
        break;
    case ITEM_DOWN:
        membership_lost(&node->membership, from, network->now_ns, item.line);
        coordinator_peer_down(node->coordinator, network->now_ns, from, item.line);
        break;
    case ITEM_MESSAGE:
        if (node->membership.peers[from].state == MEMBERSHIP_DOWN)
            break;
        ck_assert_msg(
            message_decode(&message, MESSAGE_BETWEEN_DAEMONS, item.line, item.length, &error) == 0,
            "%s: %s", item.line, error.text);
        ck_assert_msg(coordinator_peer_message(node->coordinator, network->now_ns, from, &message,
                                               &error) == 0,
                      "%s: %s", item.line, error.text);
        message_clear(&message);
        break;
    }
    free(item.line);
}

bool network_step(struct network *network)
{
    uint32_t count = network->count, choices = 0;
    struct {
        int32_t from; /* -1: an engine's event */
        uint32_t to;
    } open[NETWORK_NODES_MAX * (NETWORK_NODES_MAX + 1)];
    for (uint32_t to = 0; to < count; to++) {
        if (network->nodes[to].count > 0) {
            open[choices].from = -1;
            open[choices++].to = to;
        }
        for (uint32_t from = 0; from < count; from++) {
            if (channel(network, from, to)->count == 0)
                continue;
            open[choices].from = (int32_t)from;
            open[choices++].to = to;
        }
    }
    if (choices == 0)
        return false;
    uint32_t choice = network_random(network, choices);
    if (open[choice].from < 0)
        node_give_event(&network->nodes[open[choice].to]);
    else
        node_hear(network, (uint32_t)open[choice].from, open[choice].to);
    return true;
}

void network_settle(struct network *network)
{
    do {
        while (network_step(network)) {
        }
        for (uint32_t i = 0; i < network->count; i++)
            network->nodes[i].deadline_ns =
                coordinator_tick(network->nodes[i].coordinator, network->now_ns);
    } while (network_step(network));
}

void network_run(struct network *network, uint64_t ms)
{
    uint64_t end_ns = network->now_ns + ms * NETWORK_MS;
    for (uint32_t round = 0;; round++) {
        ck_assert_uint_lt(round, 100000); /* a deadline that stays due would spin */
        network_settle(network);
        uint64_t next_ns = end_ns;
        for (uint32_t i = 0; i < network->count; i++) {
            struct node *node = &network->nodes[i];
            node->deadline_ns = coordinator_tick(node->coordinator, network->now_ns);
            if (node->deadline_ns < next_ns)
                next_ns = node->deadline_ns;
        }
        if (network_step(network))
            continue;
        if (next_ns >= end_ns)
            break;
        ck_assert_uint_gt(next_ns, network->now_ns);
        network->now_ns = next_ns;
    }
    network->now_ns = end_ns;
}

/* --- the stand-in engines */

void network_set_late(struct network *network, uint32_t node, const uint32_t *ranks, uint32_t count)
{
    if (count > 0)
        memcpy(network->nodes[node].late_ranks, ranks, count * sizeof(*ranks));
    network->nodes[node].late_count = count;
}

uint32_t network_engine_jobs(const struct network *network, uint32_t node)
{
    return network->nodes[node].job_count;
}

uint32_t network_engine_attached(const struct network *network, uint32_t node)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < network->nodes[node].job_count; i++)
        sum += network->nodes[node].jobs[i].attached;
    return sum;
}

uint32_t network_engine_groups(const struct network *network, uint32_t node)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < network->nodes[node].job_count; i++)
        sum += network->nodes[node].jobs[i].groups;
    return sum;
}

uint32_t network_engine_failed(const struct network *network, uint32_t node)
{
    return network->nodes[node].failed;
}

void network_refuse_job_open(struct network *network, uint32_t node, const char *text)
{
    snprintf(network->nodes[node].refusal, sizeof(network->nodes[node].refusal), "%s", text);
}

void network_assert_empty(struct network *network)
{
    for (uint32_t i = 0; i < network->count; i++) {
        const struct coordinator *coordinator = network->nodes[i].coordinator;
        ck_assert_ptr_null(coordinator_jobs(coordinator));
        ck_assert_ptr_null(coordinator_gatherings(coordinator));
        ck_assert_uint_eq(coordinator_worker_count(coordinator), 0);
        ck_assert_uint_eq(network->nodes[i].job_count, 0);
    }
}
