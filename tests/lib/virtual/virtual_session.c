/* The talk between a virtual worker and its daemon: joining, groups, failures, the end, and what
 * the worker does about a daemon that is gone or does not answer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/lib/virtual/virtual_private.h"

#define PING_SHARE 3u /* as in worker/drive/drive_socket.c */
#define TIMEOUT_MS 60000
#define STRAGGLERS_MS 10000
#define RETRY_NS (20 * NS_PER_MS) /* as in worker/job/rejoin.c */

struct carried_message {
    struct virtual_worker *worker;
    uint64_t incarnation; /* of the daemon that it is for */
    struct message message;
};

static bool worker_has_daemon(const struct virtual_worker *worker)
{
    return worker->node->alive && worker->node->incarnation == worker->incarnation;
}

/* --- to the daemon ---------------------------------------------------------------------------- */

static void daemon_take(struct virtual_worker *worker, const struct message *message)
{
    struct virtual_cluster *cluster = worker->cluster;
    struct coordinator_credentials credentials = {.uid = 1000, .pid = 4000 + worker->handle};
    struct error error;
    if (message->type == MESSAGE_WORKER_PING) { /* as control_dialogue.c */
        virtual_session_message(cluster, worker->handle, &(struct message){.type = MESSAGE_PONG});
        return;
    }
    int result = coordinator_worker_message(worker->node->coordinator, cluster->now_ns,
                                            worker->handle, &credentials, message, &error);
    EXPECT_MSG(result == 0, "to the daemon: %s", error.text);
    virtual_called(worker->node);
}

static void deliver_to_daemon(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct carried_message *carried = what;
    struct virtual_worker *worker = carried->worker;
    if (worker_has_daemon(worker) && worker->incarnation == carried->incarnation &&
        (worker->state != ENDED || carried->message.type == MESSAGE_LEAVE))
        daemon_take(worker, &carried->message);
    message_clear(&carried->message);
    free(carried);
}

/* Takes the lists in the message. */
static void session_send(struct virtual_worker *worker, const struct message *message)
{
    struct carried_message *carried = calloc(1, sizeof(*carried));
    EXPECT(carried);
    carried->worker = worker;
    carried->incarnation = worker->incarnation;
    carried->message = *message;
    virtual_schedule_in(worker->cluster, &worker->to, deliver_to_daemon, carried, 0);
}

static void deliver_gone(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_worker *worker = what;
    if (!worker_has_daemon(worker))
        return;
    coordinator_worker_gone(worker->node->coordinator, cluster->now_ns, worker->handle, "ended");
    virtual_called(worker->node);
}

void virtual_session_end(struct virtual_worker *worker)
{
    if (worker->state == ENDED)
        return;
    worker->state = ENDED;
    virtual_schedule_in(worker->cluster, &worker->to, deliver_gone, worker, 0);
}

void virtual_session_join(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct virtual_worker *worker = what;
    struct message message = {.type = MESSAGE_JOIN,
                              .world_size = worker->run->job.ranks,
                              .rank = (int32_t)worker->rank,
                              .local_rank = -1,
                              .timeout_ms = TIMEOUT_MS,
                              .recovery = worker->run->job.recovery};
    if (worker->newcomer) {
        message.world_size = 0;
        message.rank = -1;
    }
    if (worker->state == ENDED)
        return;
    if (!worker->node->alive) {
        char text[ERROR_TEXT_BYTES];
        snprintf(text, sizeof(text), "no daemon runs on node %s", worker->node->config.node);
        virtual_worker_failed(worker, ERR_DISCONNECTED, text);
        worker->state = ENDED;
        return;
    }
    worker->incarnation = worker->node->incarnation;
    snprintf(message.job, sizeof(message.job), "%s", worker->run->job.name);
    session_send(worker, &message);
}

void virtual_session_leave(struct virtual_worker *worker)
{
    if (worker->state >= LEAVING)
        return;
    worker->state = LEAVING;
    session_send(worker, &(struct message){.type = MESSAGE_LEAVE});
}

/* The next group that this rank is in, or RUNNING. */
static void session_open_next(struct virtual_worker *worker)
{
    const struct virtual_job_run *run = worker->run;
    while (worker->opened <= run->job.groups && script_place(run, worker->opened, worker->rank) < 0)
        worker->opened++;
    if (worker->opened > run->job.groups) {
        worker->state = RUNNING;
        virtual_worker_pump_soon(worker, 0);
        return;
    }
    struct message message = {.type = MESSAGE_WORKER_GROUP_OPEN,
                              .request = worker->opened,
                              .nth = 0,
                              .timeout_ms = TIMEOUT_MS};
    /* Equal lists are told apart by how often they were opened. */
    for (uint32_t g = 1; g < worker->opened; g++) {
        if (run->group_sizes[g] == run->group_sizes[worker->opened] &&
            memcmp(run->group_ranks[g], run->group_ranks[worker->opened],
                   run->group_sizes[g] * sizeof(uint32_t)) == 0)
            message.nth++;
    }
    EXPECT(message_list_set(&message.ranks, run->group_ranks[worker->opened],
                            run->group_sizes[worker->opened]) == 0);
    worker->state = OPENING;
    session_send(worker, &message);
}

/* --- the next generation ---------------------------------------------------------------------- */

/* Decide as job_check_rejoin in worker/job/rejoin.c does. */
static bool session_goes_on(const struct virtual_worker *worker, int code)
{
    return worker->run->job.goes_on && worker->state >= OPENING && worker->state < LEAVING &&
           (code == ERR_LOST || code == ERR_REFUSED);
}

/* The generation that has failed is behind it: nothing of it is under way. */
static void session_apart(struct virtual_worker *worker)
{
    virtual_generation_leave(worker);
    virtual_worker_clear(worker);
    worker->watch++;
    worker->pinged_ns = 0;
}

/* Have the daemon let go of the arena, as job_release does. */
static void session_release(struct virtual_worker *worker)
{
    session_apart(worker);
    worker->state = RELEASING;
    session_send(worker, &(struct message){.type = MESSAGE_RELEASE});
}

/* Ask to rejoin as rejoin_ask does: the daemon has let go of the arena. */
static void session_rejoin(struct virtual_worker *worker)
{
    EXPECT(worker->state == RELEASING && !worker->attached);
    virtual_worker_format(worker);
    worker->state = JOINING;
    session_send(worker, &(struct message){.type = MESSAGE_REJOIN,
                                           .timeout_ms = TIMEOUT_MS,
                                           .stragglers_ms = STRAGGLERS_MS,
                                           .least_ranks = worker->run->job.least_ranks,
                                           .wait_ms = TIMEOUT_MS});
}

/* The daemon's side, as adapter_released in server/control/control_adapter.c. */
static void deliver_released(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct virtual_worker *worker = what;
    if (!worker_has_daemon(worker) || worker->handle != number)
        return;
    coordinator_worker_released(worker->node->coordinator, cluster->now_ns, worker->handle);
    virtual_called(worker->node);
}

void virtual_session_released(struct virtual_worker *worker)
{
    if (worker->node->alive)
        virtual_schedule_in(worker->cluster, &worker->node->events, deliver_released, worker,
                            worker->handle);
}

/* Whether the next daemon of its node is waited for. */
static bool session_returns(const struct virtual_worker *worker)
{
    return worker->run->job.goes_on && worker->lineage != 0 && worker->state != LEAVING &&
           worker->cluster->options.recovery && worker->run->job.recovery != MESSAGE_RECOVERY_OFF &&
           !worker->node->off;
}

/* Look for a daemon, as rejoin_connect and rejoin_return do: the one that is started in place of
 * the last is told which rank this was. */
static void session_look(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct virtual_worker *worker = what;
    if (worker->state == ENDED || number != worker->watch)
        return;
    bool waits = !worker->node->alive || worker_has_daemon(worker); /* which may only be silent */
    if (waits && cluster->now_ns >= worker->restart_ns) {
        virtual_session_end(worker);
        return;
    }
    if (waits) {
        virtual_schedule(cluster, NULL, RETRY_NS, session_look, worker, number);
        return;
    }
    worker->handle = cluster->next_handle++;
    worker->incarnation = worker->node->incarnation;
    virtual_worker_format(worker);
    struct message message = {.type = MESSAGE_RETURN,
                              .lineage = worker->lineage,
                              .generation = worker->run->generation,
                              .world_size = worker->run->job.ranks,
                              .rank = (int32_t)worker->rank,
                              .local_rank = -1,
                              .former = worker->former,
                              .timeout_ms = TIMEOUT_MS,
                              .stragglers_ms = STRAGGLERS_MS,
                              .least_ranks = worker->run->job.least_ranks,
                              .wait_ms = TIMEOUT_MS};
    snprintf(message.job, sizeof(message.job), "%s", worker->run->job.name);
    session_send(worker, &message);
}

static void session_return(struct virtual_worker *worker)
{
    if (worker->state == OPENING || worker->state == RUNNING)
        session_apart(worker);
    worker->state = JOINING;
    worker->restart_ns = worker->cluster->now_ns + worker->node->config.restart_ms * NS_PER_MS;
    virtual_schedule(worker->cluster, NULL, 0, session_look, worker, ++worker->watch);
}

/* --- a daemon that is gone, or does not answer ------------------------------------------------ */

/* Fail as drive_fail in worker/drive does. */
static void session_lost(struct virtual_worker *worker, const char *how)
{
    char text[ERROR_TEXT_BYTES];
    if (worker->state == ENDED)
        return;
    snprintf(text, sizeof(text), "the daemon of this node (%s) %s", worker->node->config.node, how);
    virtual_worker_fail(worker, -1, ERR_DISCONNECTED, text);
    if (session_returns(worker))
        session_return(worker);
    else
        virtual_session_end(worker);
}

/* Watch the daemon as drive_socket_watch in worker/drive/drive_socket.c does. */
static void session_watch(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct virtual_worker *worker = what;
    uint64_t silence_ns = worker->node->config.peer_ms * NS_PER_MS;
    uint64_t now_ns = cluster->now_ns;
    char how[64];
    if (worker->state == ENDED || number != worker->watch)
        return;
    if (worker->pinged_ns != 0 && now_ns >= worker->pinged_ns + silence_ns) {
        snprintf(how, sizeof(how), "has not answered for %" PRIu32 " ms",
                 worker->node->config.peer_ms);
        session_lost(worker, how);
        return;
    }
    if (worker->pinged_ns == 0 && now_ns >= worker->heard_ns + silence_ns / PING_SHARE) {
        worker->pinged_ns = now_ns;
        session_send(worker, &(struct message){.type = MESSAGE_WORKER_PING});
    }
    uint64_t next_ns = worker->pinged_ns != 0 ? worker->pinged_ns + silence_ns
                                              : worker->heard_ns + silence_ns / PING_SHARE;
    virtual_schedule(cluster, NULL, next_ns - now_ns, session_watch, worker, number);
}

static void deliver_loss(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster;
    struct virtual_worker *worker = what;
    if (worker->incarnation == number)
        session_lost(worker, "went away");
}

void virtual_session_lose_all(struct virtual_node *node)
{
    struct virtual_cluster *cluster = node->cluster;
    for (uint32_t j = 0; j < cluster->job_count; j++) {
        for (uint32_t r = 0; r < cluster->jobs[j].job.ranks; r++) {
            struct virtual_worker *worker = virtual_job_present(&cluster->jobs[j], r);
            if (worker && worker->node == node && worker->incarnation == node->incarnation)
                virtual_schedule_in(cluster, &worker->from, deliver_loss, worker,
                                    node->incarnation);
        }
    }
}

/* --- from the daemon -------------------------------------------------------------------------- */

static void session_on_failed(struct virtual_worker *worker, const struct message *message)
{
    if (worker->state < OPENING || worker->state == RELEASING)
        return; /* of the last generation */
    virtual_worker_fail(worker, message->group, message->code, message->text);
    virtual_worker_pump_soon(worker, 0);
    if (message->group >= 0)
        virtual_session_leave(worker);
    else if (session_goes_on(worker, message->code))
        session_release(worker);
    else
        virtual_session_end(worker);
}

static void session_on_opened(struct virtual_worker *worker, const struct message *message)
{
    virtual_worker_add_group(worker, message);
    session_open_next(worker);
}

static void session_on_joined(struct virtual_worker *worker, const struct message *message)
{
    if (message->generation > 1)
        virtual_generation_enter(worker, message);
    EXPECT(message->rank == (int)worker->rank);
    worker->run->job_id = message->job_id;
    worker->newcomer = false;
    worker->former = worker->handle;
    worker->lineage = message->lineage;
    virtual_worker_begin(worker, message);
    session_watch(worker->cluster, worker, ++worker->watch);
    session_on_opened(worker, message);
}

/* A refusal to take it into the next generation, or one of a group. */
static void session_on_error(struct virtual_worker *worker, const struct message *message)
{
    if (worker->state == OPENING && session_goes_on(worker, message->code)) {
        virtual_worker_fail(worker, -1, message->code, message->text);
        session_release(worker);
        return;
    }
    if (worker->state == RELEASING)
        return;
    virtual_worker_failed(worker, message->code, message->text);
    if (worker->state == OPENING)
        virtual_session_leave(worker);
}

static void session_receive(struct virtual_worker *worker, const struct message *message)
{
    if (worker->state == ENDED)
        return;
    worker->heard_ns = worker->cluster->now_ns;
    worker->pinged_ns = 0;
    switch (message->type) {
    case MESSAGE_JOINED:
        session_on_joined(worker, message);
        break;
    case MESSAGE_WORKER_GROUP_OPENED:
        EXPECT(message->request == worker->opened);
        if (worker->state == OPENING)
            session_on_opened(worker, message);
        break;
    case MESSAGE_ERROR:
        session_on_error(worker, message);
        break;
    case MESSAGE_RELEASED:
        session_rejoin(worker);
        break;
    case MESSAGE_FAILED:
        session_on_failed(worker, message);
        break;
    case MESSAGE_LEFT:
    case MESSAGE_PONG:
    case MESSAGE_WAITING:
        break;
    default:
        ck_abort_msg("a worker was sent %s", message_type_name(message->type));
    }
}

static void deliver_to_worker(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct carried_message *carried = what;
    session_receive(carried->worker, &carried->message);
    message_clear(&carried->message);
    free(carried);
}

void virtual_session_message(struct virtual_cluster *cluster, uint32_t handle,
                             const struct message *message)
{
    struct carried_message *carried = calloc(1, sizeof(*carried));
    carried->worker = virtual_job_worker(cluster, handle);
    EXPECT(message_copy(&carried->message, message) == 0);
    virtual_schedule_in(cluster, &carried->worker->from, deliver_to_worker, carried, 0);
}

static void deliver_end(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)cluster, (void)number;
    struct virtual_worker *worker = what;
    if (worker->state < LEAVING)
        virtual_worker_failed(worker, ERR_DISCONNECTED, "the daemon has ended the connection");
    worker->state = ENDED;
}

void virtual_session_end_worker(struct virtual_cluster *cluster, uint32_t handle)
{
    struct virtual_worker *worker = virtual_job_worker(cluster, handle);
    virtual_schedule_in(cluster, &worker->from, deliver_end, worker, 0);
}
