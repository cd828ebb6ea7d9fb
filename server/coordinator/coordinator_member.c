/* The workers of this node as members of jobs: joining, leaving, going, and being waited for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "server/coordinator/coordinator_internal.h"

static void member_ask_all(struct coordinator *c, struct worker *worker)
{
    worker->asked = true;
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (coordinator_reaches(c, node))
            newcomer_tell(c, worker, node);
    }
}

bool member_gathers(const struct worker *worker)
{
    return worker->state == WORKER_JOINING && worker->former == 0 && worker->world_size > 0;
}

/* Return the daemon that the job's name stands for, or, when that one has been away for too long,
 * the first that is there. */
static uint32_t member_home(const struct coordinator *c, const struct worker *worker)
{
    return c->now_ns >= worker->elsewhere_ns
               ? coordinator_first_home(c, worker->name)
               : auth_home_of_job(worker->name, c->config->server_count);
}

static void member_tell_waiting(struct coordinator *c, struct worker *worker, const char *text)
{
    struct message message = {.type = MESSAGE_WAITING};
    worker->told_ns = UINT64_MAX;
    snprintf(message.text, sizeof(message.text), "%s", text);
    worker_send(c, worker, &message);
}

int member_on_waiting(struct coordinator *c, uint32_t node, const struct message *message,
                      struct error *error)
{
    (void)error;
    struct worker *worker = coordinator_worker(c, message->member);
    if (worker && member_gathers(worker) && worker->asked && worker->home == node &&
        strcmp(worker->name, message->job) == 0)
        member_tell_waiting(c, worker, message->text);
    else
        c->dropped_messages++; /* it has joined meanwhile, or gone */
    return 0;
}

int member_on_rank_waiting(struct coordinator *c, uint32_t node, const struct message *message,
                           struct error *error)
{
    const struct job *job = coordinator_ready_job(c, message);
    if (!job)
        return 0;
    uint32_t rank = (uint32_t)message->rank;
    if (rank >= job->world_size || job->rank_nodes[rank] != job->self || job->roles[node] == 0)
        return error_set(error, ERR_PROTOCOL, "rank_waiting of rank %u of job '%s'", rank,
                         job->name);
    struct worker *worker = job->locals[rank];
    if (worker && worker->state == WORKER_JOINED)
        member_tell_waiting(c, worker, message->text);
    else
        c->dropped_messages++; /* it has left meanwhile */
    return 0;
}

void member_home_lost(struct coordinator *c, struct worker *worker)
{
    worker->asked = false;
    worker->say_ns = c->now_ns + COORDINATOR_SAY_NS;
    worker->told_ns = c->now_ns + COORDINATOR_WAITING_NS;
    worker->elsewhere_ns = coordinator_recovers(c, worker->recovery)
                               ? c->now_ns + c->config->peer_ms * COORDINATOR_MS
                               : UINT64_MAX;
}

bool member_ask_home(struct coordinator *c, struct worker *worker)
{
    struct error why;
    worker->home = member_home(c, worker);
    if (!coordinator_reaches(c, worker->home)) {
        if (coordinator_recovers(c, worker->recovery) || !unable_node(c, worker->home, &why))
            return true;
        worker_refuse(c, worker, why.code, why.text);
        return false;
    }
    struct message message = {
        .type = MESSAGE_JOB_JOIN,
        .uid = worker->uid,
        .pid = worker->pid,
        .world_size = worker->world_size,
        .rank = worker->wished_rank,
        .local_rank = worker->wished_local_rank,
        .member = worker->id,
        .timeout_ms = coordinator_remaining_ms(c, worker->deadline_ns),
        .recovery = worker->recovery,
        .age_ms = worker->age_ms,
        .mark = worker->mark,
    };
    snprintf(message.job, sizeof(message.job), "%s", worker->name);
    worker->asked = true;
    coordinator_send(c, worker->home, &message);
    return true;
}

void member_refuse_unable(struct coordinator *c)
{
    struct worker *worker, *next;
    HASH_ITER(hh, c->workers, worker, next)
    {
        if (member_gathers(worker) && !worker->asked)
            member_ask_home(c, worker);
    }
}

static bool member_name_valid(const char *name)
{
    if (name[0] == '\0')
        return false;
    for (const unsigned char *s = (const unsigned char *)name; *s; s++) {
        if (*s < ' ' || *s == 0x7f)
            return false;
    }
    return true;
}

/* Why a join cannot even be tried; 0 when it can. */
static int member_join_check(struct coordinator *c, uint32_t uid, const struct message *message,
                             struct error *error)
{
    const char *node = coordinator_node_name(c, c->config->self);
    if (c->draining)
        return coordinator_drain_error(c, error);
    if (!member_name_valid(message->job))
        return error_set(error, ERR_INVALID, "a job's name must be 1 to 63 printable bytes");
    if (message->world_size > 0 && message->rank >= (int64_t)message->world_size)
        return error_set(error, ERR_INVALID, "rank %d of job '%s' with a world size of %u",
                         message->rank, message->job, message->world_size);
    if (message->recovery == MESSAGE_RECOVERY_ON && !c->config->recovery)
        return error_set(error, ERR_UNSUPPORTED,
                         "job '%s' asks for recovery, which node %s has not configured (recovery)",
                         message->job, node);
    uint32_t home = auth_home_of_job(message->job, c->config->server_count);
    int result = coordinator_may_say(c, home, uid, error);
    return result == 0 ? quota_check(coordinator_quota(c, QUOTA_WORKERS), uid, 1, error) : result;
}

/* NULL, with the error: it has one already, or there is no memory. */
static struct worker *member_create(struct coordinator *c, uint32_t id,
                                    const struct coordinator_credentials *credentials,
                                    const struct message *message, struct error *error)
{
    if (coordinator_worker(c, id)) {
        error_set(error, ERR_PROTOCOL, "a second join");
        return NULL;
    }
    struct worker *worker = calloc(1, sizeof(*worker));
    bool taken =
        worker && quota_take(coordinator_quota(c, QUOTA_WORKERS), credentials->uid, 1) == 0;
    if (taken) {
        worker->id = id;
        HASH_ADD(hh, c->workers, id, sizeof(worker->id), worker);
    }
    if (!taken || !HASH_IS_ADDED(worker)) {
        quota_give_back(coordinator_quota(c, QUOTA_WORKERS), credentials->uid, taken);
        free(worker);
        error_set(error, ERR_MEMORY, "no memory for a worker");
        return NULL;
    }
    worker->uid = credentials->uid;
    worker->pid = credentials->pid;
    snprintf(worker->name, sizeof(worker->name), "%s", message->job);
    worker->world_size = message->world_size;
    worker->wished_rank = message->rank;
    worker->wished_local_rank = message->local_rank;
    worker->deadline_ns = coordinator_deadline(c, message->timeout_ms, c->config->join_ms);
    return worker;
}

void member_refuse(struct coordinator *c, struct worker *worker, int code, const char *text)
{
    struct unable_rank who = {.uid = worker->uid,
                              .pid = worker->pid,
                              .world_size = worker->world_size,
                              .rank = worker->wished_rank};
    snprintf(who.job, sizeof(who.job), "%s", worker->name);
    int64_t home = worker->asked ? (int64_t)worker->home : unable_home(c, worker->name);
    bool gathers =
        member_gathers(worker) && member_name_valid(who.job) && who.rank < (int64_t)who.world_size;
    worker_refuse(c, worker, code, text);
    if (gathers)
        unable_tell(c, &who, home, code, text);
}

int member_join(struct coordinator *c, uint32_t id,
                const struct coordinator_credentials *credentials, const struct message *message,
                struct error *error)
{
    struct error refusal = {0};
    member_join_check(c, credentials->uid, message, &refusal);
    struct worker *worker = member_create(c, id, credentials, message, error);
    if (!worker)
        return error->code;
    worker->newcomer = message->world_size == 0;
    worker->recovery = message->recovery;
    worker->age_ms = message->age_ms;
    worker->mark = message->mark;
    worker->home = c->config->self;
    member_home_lost(c, worker); /* until it has been told */
    if (refusal.code != 0)
        member_refuse(c, worker, refusal.code, refusal.text);
    else if (worker->world_size == 0)
        member_ask_all(c, worker);
    else
        member_ask_home(c, worker);
    return 0;
}

/* This daemon knows nothing of the job: who remembers it decides, and compares the user. */
int member_return(struct coordinator *c, uint32_t id,
                  const struct coordinator_credentials *credentials, const struct message *message,
                  struct error *error)
{
    struct error refusal = {0};
    member_join_check(c, credentials->uid, message, &refusal);
    struct worker *worker = member_create(c, id, credentials, message, error);
    if (!worker)
        return error->code;
    worker->rank = (uint32_t)message->rank;
    worker->home = c->config->self;
    worker->former = message->lineage;
    worker->former_generation = message->generation;
    worker->former_member = message->former;
    worker->whole = message->whole != 0;
    worker->stragglers_ms = message->stragglers_ms;
    worker->least_ranks = message->least_ranks;
    worker->wait_ms = message->wait_ms;
    worker->returned = true;
    if (refusal.code == 0 && message->lineage == 0)
        error_set(&refusal, ERR_INVALID, "job '%s' has had no generation", message->job);
    else if (refusal.code == 0 && !c->config->recovery)
        error_set(&refusal, ERR_UNSUPPORTED, "node %s has not configured recovery",
                  coordinator_node_name(c, c->config->self));
    if (refusal.code != 0)
        worker_refuse(c, worker, refusal.code, refusal.text);
    else
        return_ask(c, worker);
    return 0;
}

static void member_detach(struct coordinator *c, const struct worker *worker)
{
    coordinator_command(c, &(struct engine_command){.kind = COMMAND_WORKER_DETACH,
                                                    .job = worker->job->id,
                                                    .rank = worker->rank});
}

int member_leave(struct coordinator *c, struct worker *worker, struct error *error)
{
    struct job *job = worker->job;
    if (worker->state == WORKER_APART) {
        if (worker->returned)
            return_withdraw(c, worker);
        succession_worker_gone(c, worker->former, worker->id);
        worker_end_departed(c, worker);
        return 0;
    }
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "leave before it has joined");
    if (job->state == JOB_FAILED) {
        succession_worker_gone(c, job->lineage, worker->id);
        member_detach(c, worker);
        worker_end_departed(c, worker);
        job_worker_removed(c, job);
        return 0;
    }
    while (worker->requests)
        worker_request_free(worker, worker->requests);
    worker->state = WORKER_LEAVING;
    member_detach(c, worker);
    return 0;
}

int member_release(struct coordinator *c, struct worker *worker, struct error *error)
{
    struct job *job = worker->job;
    if (worker->state != WORKER_JOINED)
        return error_set(error, ERR_PROTOCOL, "release before it has joined");
    if (job->state == JOB_READY) /* to take newcomers in, or to go on with fewer */
        job_fail(c, job, ERR_LOST, "rank %u on node %s goes on to the next generation",
                 worker->rank, coordinator_node_name(c, c->config->self));
    /* Not when the last one here has asked: one that is stopped must not hold the others up. */
    segments_leave(c, worker, NULL);
    job_close_in_engine(c, job);
    worker->state = WORKER_RELEASING;
    worker->former = job->lineage;
    worker->job = NULL;
    job->locals[worker->rank] = NULL;
    job->local_count--;
    job_worker_removed(c, job);
    if (worker->released)
        member_released(c, worker);
    return 0;
}

void member_released(struct coordinator *c, struct worker *worker)
{
    worker->released = true;
    if (worker->state != WORKER_RELEASING)
        return;
    worker->state = WORKER_APART;
    worker_send(c, worker, &(struct message){.type = MESSAGE_RELEASED});
}

int member_rejoin(struct coordinator *c, struct worker *worker, const struct message *message,
                  struct error *error)
{
    if (worker->state != WORKER_APART)
        return error_set(error, ERR_PROTOCOL, "rejoin before its arena is released");
    worker->state = WORKER_JOINING;
    worker->released = false;
    worker->deadline_ns = coordinator_deadline(c, message->timeout_ms, c->config->join_ms);
    worker->stragglers_ms = message->stragglers_ms;
    worker->least_ranks = message->least_ranks;
    worker->wait_ms = message->wait_ms;
    worker->whole = message->whole != 0;
    struct error refusal = {0};
    if (c->draining)
        coordinator_drain_error(c, &refusal);
    else if (!worker->returned && !succession_find(c, worker->former))
        error_set(&refusal, ERR_STATE, "job '%s' has failed too long ago to go on", worker->name);
    if (refusal.code != 0)
        worker_refuse(c, worker, refusal.code, refusal.text);
    else if (worker->returned)
        return_ask(c, worker);
    else
        succession_ask_home(c, worker);
    return 0;
}

int member_ending(struct worker *worker, const struct message *message, struct error *error)
{
    if (message->text[0] == '\0')
        return error_set(error, ERR_PROTOCOL, "ending without a reason");
    free(worker->ending);
    worker->ending = strdup(message->text); /* NULL: no memory, and it counts as not said */
    return 0;
}

/* "its process 4711 ended: out of memory for a request", its last words if it had any. */
static void member_end_text(const struct worker *worker, const char *how, char *text, size_t bytes)
{
    snprintf(text, bytes, "its process %u %s%s%.700s", worker->pid, how, worker->ending ? ": " : "",
             worker->ending ? worker->ending : "");
}

void member_gone(struct coordinator *c, struct worker *worker, const char *how)
{
    struct job *job = worker->job;
    worker->gone = true;
    if (worker->returned || (worker->former == 0 && worker->state == WORKER_JOINING)) {
        char reason[ERROR_TEXT_BYTES];
        member_end_text(worker, how, reason, sizeof(reason));
        member_refuse(c, worker, ERR_LOST, reason);
    } else if (worker->former != 0) {
        succession_worker_gone(c, worker->former, worker->id);
        worker_forget(c, worker);
    } else if (job->state == JOB_FAILED) {
        succession_worker_gone(c, job->lineage, worker->id);
        member_detach(c, worker);
        worker_forget(c, worker);
        job_worker_removed(c, job);
    } else if (worker->state != WORKER_LEAVING) {
        uint32_t rank = worker->rank;
        char reason[ERROR_TEXT_BYTES];
        member_end_text(worker, how, reason, sizeof(reason));
        worker_forget(c, worker);
        job_fail(c, job, ERR_LOST, "rank %u on node %s is gone: %.900s", rank,
                 coordinator_node_name(c, c->config->self), reason);
    }
}

/* Whether the refusal is of what the worker asks now. One that asks to go on whatever is lost is
 * never told to ask again: it was, when it asked otherwise. */
static bool member_is_meant(const struct worker *worker, uint32_t node,
                            const struct message *message)
{
    bool asks = worker && worker->state == WORKER_JOINING &&
                (worker->home == node || worker->returned) &&
                strcmp(worker->name, message->job) == 0;
    return asks && (worker->former == 0 || worker->whole || message->code != ERR_AGAIN);
}

int member_on_refused(struct coordinator *c, uint32_t node, const struct message *message,
                      struct error *error)
{
    (void)error;
    struct worker *worker = coordinator_worker(c, message->member);
    if (!member_is_meant(worker, node, message)) {
        c->dropped_messages++;
        return 0;
    }
    worker->asked = false; /* home has forgotten it */
    if (member_gathers(worker) && message->code == ERR_AGAIN) {
        /* The job gathers at a daemon that another one reaches; this daemon may reach it soon. */
        worker->elsewhere_ns = c->now_ns;
        if (member_home(c, worker) == node)
            worker->elsewhere_ns += COORDINATOR_TELL_NS;
        else
            member_ask_home(c, worker);
        return 0;
    }
    if (worker->former != 0 && message->code == ERR_AGAIN) {
        worker->state = WORKER_APART; /* its program decides how to go on */
        worker_send_error(c, worker, 0, message->code, message->text);
        return 0;
    }
    if (worker->former != 0)
        succession_worker_gone(c, worker->former, worker->id);
    worker_refuse(c, worker, message->code < 0 ? message->code : ERR_REFUSED, message->text);
    return 0;
}

/* The worker that the engine means, while it is one. */
static struct worker *member_of_event(const struct coordinator *c, const struct engine_event *event)
{
    const struct job *job = coordinator_job(c, event->job);
    return job && event->rank < job->world_size ? job->locals[event->rank] : NULL;
}

static void member_fail(struct coordinator *c, struct worker *worker, int code, const char *text)
{
    struct job *job = worker->job;
    uint32_t rank = worker->rank;
    char reason[ERROR_TEXT_BYTES];
    bool nonsense = code == 0 || code == ERR_PROTOCOL || code == ERR_INVALID;
    snprintf(reason, sizeof(reason), "%s process %u%s: %s",
             nonsense ? "the arena of" : "the daemon cannot serve", worker->pid,
             nonsense ? " holds nonsense" : "", text);
    worker_send_failed(c, worker, -1, nonsense ? ERR_PROTOCOL : code, reason);
    if (job->state == JOB_FAILED)
        succession_worker_gone(c, job->lineage, worker->id);
    worker_end(c, worker);
    if (job->state == JOB_FAILED)
        job_worker_removed(c, job);
    else
        job_fail(c, job, ERR_LOST, "rank %u on node %s is gone: %s", rank,
                 coordinator_node_name(c, c->config->self), reason);
}

void member_engine_failed(struct coordinator *c, const struct engine_event *event)
{
    struct worker *worker = member_of_event(c, event);
    if (worker)
        member_fail(c, worker, event->code, event->text);
}

void member_engine_detached(struct coordinator *c, const struct engine_event *event)
{
    struct worker *worker = member_of_event(c, event);
    struct message_position *positions = calloc(event->position_count + 1, sizeof(*positions));
    if (worker && (!positions || event->code < 0)) {
        /* The others could wait for collectives that the rank will not take part in. */
        member_fail(c, worker, ERR_MEMORY, "no memory for how far it has got");
    } else if (worker && worker->state == WORKER_LEAVING) {
        for (uint32_t i = 0; i < event->position_count; i++)
            positions[i] =
                (struct message_position){event->positions[i].group, event->positions[i].sequences};
        struct message message = coordinator_job_message(MESSAGE_RANK_LEFT, worker->job);
        message.rank = (int32_t)event->rank;
        message.positions = positions; /* lent, not cleared */
        message.position_count = event->position_count;
        coordinator_send_job(c, worker->job, &message, true);
        worker_end_departed(c, worker);
    }
    free(positions);
}

/* Whether another rank on this node, which waits with it, stands at the same: then that was logged.
 */
static bool member_follows(const struct coordinator *c, const struct worker *worker)
{
    for (const struct worker *other = c->workers; other; other = other->hh.next) {
        if (other != worker && member_gathers(other) && strcmp(other->name, worker->name) == 0 &&
            other->asked == worker->asked && other->home == worker->home &&
            other->say_ns == UINT64_MAX)
            return true;
    }
    return false;
}

static void member_tick_gathering(struct coordinator *c, struct worker *worker)
{
    uint32_t absent = auth_home_of_job(worker->name, c->config->server_count);
    char text[512];
    if (worker->asked)
        return;
    coordinator_unreachable_text(c, absent, text, sizeof(text));
    if (c->now_ns >= worker->say_ns) {
        worker->say_ns = UINT64_MAX;
        if (!member_follows(c, worker))
            coordinator_log(c, LOG_LEVEL_WARNING, worker->uid,
                            "job '%s' cannot gather at its home: %s", worker->name, text);
    }
    if (c->now_ns >= worker->told_ns) {
        char waits[ERROR_TEXT_BYTES];
        snprintf(waits, sizeof(waits), "job '%s' cannot gather at its home: %s", worker->name,
                 text);
        member_tell_waiting(c, worker, waits);
    }
    if (c->now_ns < worker->elsewhere_ns)
        return;
    uint32_t before = worker->home;
    member_ask_home(c, worker);
    if (worker->home != before && worker->home != absent && !member_follows(c, worker))
        coordinator_log(c, LOG_LEVEL_WARNING, worker->uid, "job '%s' gathers at node %s: %s",
                        worker->name, coordinator_node_name(c, worker->home), text);
}

void member_tick(struct coordinator *c, struct worker *worker)
{
    struct worker_group_request *request, *next;
    DL_FOREACH_SAFE(worker->requests, request, next)
    {
        if (c->now_ns < request->deadline_ns + COORDINATOR_GRACE_NS)
            continue;
        worker_send_error(c, worker, request->request, ERR_TIMEOUT,
                          "the group has not been opened in time");
        worker_request_free(worker, request);
    }
    if (worker->state != WORKER_JOINING)
        return;
    if (member_gathers(worker))
        member_tick_gathering(c, worker);
    if (worker->returned && !worker->asked && c->now_ns >= worker->noted_by_ns) {
        char reason[ERROR_TEXT_BYTES];
        snprintf(reason, sizeof(reason),
                 "rank %u of job '%s' cannot come back: no daemon that is left remembers the job",
                 worker->rank, worker->name);
        worker_refuse(c, worker, ERR_REFUSED, reason);
        return;
    }
    if (worker->returned && !worker->asked && c->now_ns >= worker->tell_again_ns)
        return_tell_all(c, worker);
    if (c->now_ns < worker->deadline_ns + (worker->asked ? COORDINATOR_GRACE_NS : 0))
        return;
    char text[ERROR_TEXT_BYTES], home[512];
    if (worker->world_size == 0) {
        snprintf(text, sizeof(text), "no job '%s' of user %u has begun a next generation",
                 worker->name, worker->uid);
        worker_refuse(c, worker, ERR_TIMEOUT, text);
        return;
    }
    if (worker->former != 0)
        succession_worker_gone(c, worker->former, worker->id);
    uint32_t absent = member_gathers(worker)
                          ? auth_home_of_job(worker->name, c->config->server_count)
                          : worker->home;
    if (worker->asked)
        snprintf(home, sizeof(home), "server %s has not answered",
                 coordinator_node_name(c, worker->home));
    else
        coordinator_unreachable_text(c, absent, home, sizeof(home));
    snprintf(text, sizeof(text), "job '%s' cannot gather at its home: %s", worker->name, home);
    worker_refuse(c, worker, ERR_TIMEOUT, text);
}
