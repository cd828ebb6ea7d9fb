#include "tests/lib/server/coordinator_network_internal.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/job_name.h"

/* Why a link is cut to a daemon that has ended. */
#define NETWORK_ENDED "connection reset"

uint32_t network_random(struct network *network, uint32_t below)
{
    network->random = network->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(network->random >> 33) % below;
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

/* --- nodes */

static void node_start(struct node *node)
{
    struct network *network = node->network;
    struct coordinator_io io = network_io(node);
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

static void network_node_configure(struct node *node, const uint32_t *weights)
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
    config->pinned_bytes = 1 << 20;
    config->join_ms = 10000;
    config->group_ms = 5000;
    config->late_ms = 5000;
    config->collective_ms = 0;
    config->restart_ms = 2000;
    config->drain_ms = 2000;
    config->memory_bytes = 1 << 20;
}

struct network *network_create(uint32_t nodes, const uint32_t *weights, uint64_t seed)
{
    struct network *network = calloc(1, sizeof(*network));
    network->count = nodes;
    network->random = seed * 2654435761u + 1;
    network->now_ns = 1000 * NETWORK_MS;
    network->next_worker = 1;
    network->uid = 1000;
    network->log_fd = -1;
    log_init(&network->log, "network", LOG_LEVEL_DEBUG, -1, false);
    network->nodes = calloc(nodes, sizeof(*network->nodes));
    network->channels = calloc((size_t)nodes * nodes, sizeof(*network->channels));
    for (uint32_t i = 0; i < nodes; i++) {
        network->nodes[i].network = network;
        network->nodes[i].number = i;
        network_node_configure(&network->nodes[i], weights);
        node_start(&network->nodes[i]);
    }
    return network;
}

struct network *network_create_connected(uint32_t nodes)
{
    static const uint32_t weights[NETWORK_NODES_MAX] = {1, 1, 1, 1, 1};
    struct network *network = network_create(nodes, weights, 7);
    network_connect_all(network);
    network_settle(network);
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
    log_close(&network->log);
    if (network->log_fd >= 0)
        close(network->log_fd);
    free(network);
}

void network_keep_log(struct network *network)
{
    network->log_fd = memfd_create("log", MFD_CLOEXEC);
    ck_assert_int_ge(network->log_fd, 0);
    log_close(&network->log);
    log_init(&network->log, "network", LOG_LEVEL_DEBUG, network->log_fd, false);
}

uint32_t network_log_count(const struct network *network, const char *text)
{
    char log[65536];
    ssize_t bytes = pread(network->log_fd, log, sizeof(log) - 1, 0);
    ck_assert_int_ge(bytes, 0);
    log[bytes] = '\0';
    uint32_t count = 0;
    for (const char *at = log; (at = strstr(at, text)); at++)
        count++;
    return count;
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

void network_set_unheard(struct network *network, uint32_t uid)
{
    network->unheard = uid;
}

void network_set_uid(struct network *network, uint32_t uid)
{
    network->uid = uid;
}

/* --- links */

static void connect_nodes(struct network *network, uint32_t a, uint32_t b, bool fabric)
{
    struct channel *there = network_channel(network, a, b), *back = network_channel(network, b, a);
    if (there->open || there->count > 0 || back->count > 0)
        return;
    struct channel *both[] = {there, back};
    for (int i = 0; i < 2; i++) {
        both[i]->open = true;
        network_channel_put(both[i], ITEM_CONNECTED, NULL, 0);
        if (fabric)
            network_channel_put(both[i], ITEM_UP, NULL, 0);
    }
}

void network_connect(struct network *network, uint32_t a, uint32_t b)
{
    connect_nodes(network, a, b, true);
}

void network_connect_without_fabric(struct network *network, uint32_t a, uint32_t b)
{
    connect_nodes(network, a, b, false);
}

void network_connect_fabric(struct network *network, uint32_t a, uint32_t b)
{
    network_channel_put(network_channel(network, a, b), ITEM_UP, NULL, 0);
    network_channel_put(network_channel(network, b, a), ITEM_UP, NULL, 0);
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
    struct channel *both[] = {network_channel(network, a, b), network_channel(network, b, a)};
    if (!both[0]->open)
        return;
    for (int i = 0; i < 2; i++) {
        both[i]->open = false;
        /* Items that were under way may still arrive, or not. */
        if (network_random(network, 2))
            channel_clear(both[i]);
        network_channel_put(both[i], ITEM_DOWN, strdup(reason), strlen(reason));
    }
}

void network_restart(struct network *network, uint32_t number)
{
    struct node *node = &network->nodes[number];
    for (uint32_t other = 0; other < network->count; other++) {
        if (other == number)
            continue;
        network_cut(network, number, other, NETWORK_ENDED);
        channel_clear(network_channel(network, other, number));
    }
    for (uint32_t i = 0; i < network->worker_count; i++) {
        if (network->workers[i].node == number && !network->workers[i].closed)
            network->workers[i].state = CLIENT_ORPHAN;
    }
    node_stop(node);
    node_start(node);
}

void network_crash(struct network *network, uint32_t number)
{
    network_restart(network, number);
    for (uint32_t i = 0; i < network->worker_count; i++) {
        if (network->workers[i].node == number && !network->workers[i].closed) {
            network->workers[i].closed = true;
            network->workers[i].state = CLIENT_OVER;
        }
    }
}

void network_return(struct network *network, struct network_worker *worker, uint32_t timeout_ms,
                    uint32_t stragglers_ms)
{
    struct message message = {
        .type = MESSAGE_RETURN,
        .lineage = worker->joined.lineage,
        .generation = worker->joined.generation,
        .world_size = worker->joined.world_size,
        .rank = worker->joined.rank,
        .local_rank = worker->joined.local_rank,
        .former = worker->id,
        .timeout_ms = timeout_ms,
        .stragglers_ms = stragglers_ms,
        .least_ranks = worker->least_ranks,
        .wait_ms = worker->wait_ms,
        .whole = worker->whole,
    };
    snprintf(message.job, sizeof(message.job), "%s", worker->job);
    worker->id = network->next_worker++;
    worker->state = CLIENT_JOINING;
    worker->failed = false;
    worker->joined_at_ns = network->now_ns;
    worker->timeout_ns = timeout_ms * NETWORK_MS;
    network_say(network, worker, &message);
}

void network_away(struct network *network, uint32_t node, uint32_t peer)
{
    struct membership *membership = &network->nodes[node].membership;
    ck_assert_int_eq(membership->peers[peer].state, MEMBERSHIP_UP);
    membership_begin_session(membership, peer, 1);
    ck_assert(membership_away(membership, peer, network->now_ns));
    membership_lost(membership, peer, network->now_ns, "connection reset");
}

void network_back(struct network *network, uint32_t node, uint32_t peer)
{
    struct membership *membership = &network->nodes[node].membership;
    membership_connected(membership, peer, 1, network->now_ns);
    membership_up(membership, peer, network->now_ns);
    coordinator_peer_up(network->nodes[node].coordinator, network->now_ns, peer);
}

void network_gone(struct network *network, uint32_t node, uint32_t peer)
{
    membership_forget(&network->nodes[node].membership, peer);
    coordinator_peer_down(network->nodes[node].coordinator, network->now_ns, peer, "gone");
}

void network_lose_fabric(struct network *network, uint32_t node, uint32_t peer)
{
    ck_assert_int_eq(network->nodes[node].membership.peers[peer].state, MEMBERSHIP_UP);
    coordinator_peer_down(network->nodes[node].coordinator, network->now_ns, peer,
                          "the fabric lost it");
}

/* --- workers */

void network_set_mark(struct network *network, uint32_t mark)
{
    network->mark = mark;
}

void network_set_age(struct network *network, uint32_t age_ms)
{
    network->age_ms = age_ms;
}

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
    uint32_t most_ms = network->nodes[node].config.join_ms;
    *worker = (struct network_worker){
        .node = node,
        .id = network->next_worker++,
        .state = CLIENT_JOINING,
        .wished_rank = rank,
        .joined_at_ns = network->now_ns,
        .timeout_ns = (timeout_ms && timeout_ms < most_ms ? timeout_ms : most_ms) * NETWORK_MS,
    };
    snprintf(worker->job, sizeof(worker->job), "%s", job);
    struct message message = {
        .type = MESSAGE_JOIN,
        .world_size = world_size,
        .rank = rank,
        .local_rank = local_rank,
        .timeout_ms = timeout_ms,
        .age_ms = network->age_ms,
        .mark = network->mark,
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

void network_release(struct network *network, struct network_worker *worker)
{
    struct message message = {.type = MESSAGE_RELEASE};
    worker->state = CLIENT_RELEASING;
    network_say(network, worker, &message);
}

void network_rejoin(struct network *network, struct network_worker *worker, uint32_t timeout_ms,
                    uint32_t stragglers_ms)
{
    struct message message = {.type = MESSAGE_REJOIN,
                              .timeout_ms = timeout_ms,
                              .stragglers_ms = stragglers_ms,
                              .least_ranks = worker->least_ranks,
                              .wait_ms = worker->wait_ms,
                              .whole = worker->whole};
    worker->state = CLIENT_JOINING;
    worker->failed = false;
    worker->joined_at_ns = network->now_ns;
    worker->timeout_ns = timeout_ms * NETWORK_MS;
    network_say(network, worker, &message);
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

void network_engine_says(struct network *network, uint32_t node, struct engine_event event)
{
    ck_assert(coordinator_engine_event(network->nodes[node].coordinator, network->now_ns, &event));
}

static void node_give_event(struct node *node)
{
    struct event event = node->events[node->head];
    node->head = (node->head + 1) % EVENTS_MAX;
    node->count--;
    struct engine_position position = {0, event.rank + 7};
    struct engine_event said = {.job = event.job,
                                .group = event.group,
                                .rank = event.rank,
                                .segment = event.segment,
                                .sequence = event.sequence};
    switch (event.kind) {
    case EVENT_JOB:
        said.type = ENGINE_JOB_OPENED;
        said.code = node->refusal[0] ? ERR_MEMORY : 0;
        snprintf(said.text, sizeof(said.text), "%s", node->refusal);
        break;
    case EVENT_GROUP:
        said.type = ENGINE_GROUP_OPENED;
        break;
    case EVENT_DETACHED:
        said.type = ENGINE_WORKER_DETACHED;
        said.positions = &position;
        said.position_count = 1;
        break;
    case EVENT_LATE:
        said.type = ENGINE_LATE;
        said.ranks = node->late_ranks;
        said.rank_count = node->late_count;
        break;
    case EVENT_SEGMENT:
        for (uint32_t i = 0; i < node->job_count; i++)
            node->jobs[i].segments += node->jobs[i].id == event.job && node->segment_refusal == 0;
        said.type = ENGINE_SEGMENT_OPENED;
        said.code = node->segment_refusal;
        snprintf(said.text, sizeof(said.text), "the engine says no");
        break;
    case EVENT_RELEASED:
        coordinator_worker_released(node->coordinator, node->network->now_ns, event.rank);
        return;
    case EVENT_IDLE:
        said.type = ENGINE_IDLE;
        break;
    }
    network_engine_says(node->network, node->number, said);
}

static void node_hear(struct network *network, uint32_t from, uint32_t to)
{
    struct node *node = &network->nodes[to];
    struct item item = channel_take(network_channel(network, from, to));
    struct message message;
    struct error error = {0};
    switch (item.kind) {
    case ITEM_CONNECTED:
        membership_connected(&node->membership, from, 1, network->now_ns);
        coordinator_peer_connected(node->coordinator, network->now_ns, from);
        break;
    case ITEM_UP:
        membership_up(&node->membership, from, network->now_ns);
        coordinator_peer_up(node->coordinator, network->now_ns, from);
        break;
    case ITEM_DOWN:
        if (strcmp(item.line, NETWORK_ENDED) == 0)
            membership_ended(&node->membership, from);
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
        if (network->nodes[to].count > 0 && !network->nodes[to].held) {
            open[choices].from = -1;
            open[choices++].to = to;
        }
        for (uint32_t from = 0; from < count; from++) {
            if (network_channel(network, from, to)->count == 0)
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

uint64_t network_first_job(const struct network *network)
{
    ck_assert_uint_gt(network->roster_count, 0);
    return network->rosters[0].id;
}

uint32_t network_engine_groups_failed(const struct network *network, uint32_t node)
{
    return network->nodes[node].groups_failed;
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

uint32_t network_engine_segments(const struct network *network, uint32_t node)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < network->nodes[node].job_count; i++)
        sum += network->nodes[node].jobs[i].segments;
    return sum;
}

uint32_t network_segment_descriptors(const struct network *network, uint32_t node)
{
    return network->nodes[node].descriptors;
}

void network_refuse_segments(struct network *network, uint32_t node, int code)
{
    network->nodes[node].segment_refusal = code;
}

uint32_t network_engine_group_ranks_left(const struct network *network, uint32_t node)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < network->nodes[node].job_count; i++)
        sum += network->nodes[node].jobs[i].group_ranks_left;
    return sum;
}

uint32_t network_engine_failed(const struct network *network, uint32_t node)
{
    return network->nodes[node].failed;
}

void network_hold_engine(struct network *network, uint32_t node, bool held)
{
    network->nodes[node].held = held;
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
        ck_assert_uint_eq(network->nodes[i].descriptors, 0);
        ck_assert_uint_eq(network->nodes[i].segment_bytes, 0);
    }
}

const char *network_name_at(struct network *network, uint32_t home)
{
    job_name_with_home(network->name, "train", home, network->count);
    return network->name;
}

void network_join_four(struct network *network, struct network_worker *workers[4], const char *job)
{
    for (int32_t rank = 0; rank < 4; rank++)
        workers[rank] =
            network_join(network, rank < 2 ? 0 : (uint32_t)rank - 1, job, 4, rank, -1, 0);
    network_settle(network);
    for (int rank = 0; rank < 4; rank++)
        ck_assert_int_eq(workers[rank]->state, CLIENT_JOINED);
}

void network_assert_text(const struct network_worker *worker, const char *piece)
{
    ck_assert_msg(strstr(worker->failure.text, piece) != NULL, "'%s' is not in '%s'", piece,
                  worker->failure.text);
}
