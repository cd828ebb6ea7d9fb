/* The home daemon of a job: its ranks gather here, and it opens and closes the job everywhere. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "server/coordinator/coordinator_internal.h"

void home_refuse(struct coordinator *c, const char *name, uint32_t uid,
                 const struct gathering_member *member, int code, const char *text)
{
    struct message message = {.type = MESSAGE_JOB_REFUSED, .uid = uid, .member = member->member};
    snprintf(message.job, sizeof(message.job), "%s", name);
    coordinator_message_error(&message, code, text);
    coordinator_send(c, member->node, &message);
}

static struct gathering *home_gathering(const struct coordinator *c, const char *name)
{
    struct gathering *gathering;
    HASH_FIND_STR(c->gatherings, name, gathering);
    return gathering;
}

static void home_end_gathering(struct coordinator *c, struct gathering *gathering)
{
    /* Takes each item of a table with several for its only one. */
    quota_give_back(coordinator_quota(c, QUOTA_GATHERINGS), gathering->uid, 1);
    HASH_DEL(c->gatherings, gathering); /* NOLINT(clang-analyzer-core.NullDereference) */
    gathering_free(gathering);
}

/* Refuse everybody. */
static void home_refuse_all(struct coordinator *c, struct gathering *gathering, int code,
                            const char *text)
{
    for (uint32_t i = 0; i < gathering->count; i++)
        home_refuse(c, gathering->name, gathering->uid, &gathering->members[i], code, text);
    home_end_gathering(c, gathering);
}

/* NULL: out of memory. */
static struct gathering *home_begin_gathering(struct coordinator *c, const struct message *message)
{
    struct gathering *gathering = gathering_create(message->job, message->uid, message->world_size);
    if (!gathering)
        return NULL;
    bool taken = quota_take(coordinator_quota(c, QUOTA_GATHERINGS), gathering->uid, 1) == 0;
    if (taken)
        HASH_ADD_STR(c->gatherings, name, gathering);
    if (taken && HASH_IS_ADDED(gathering))
        return gathering;
    quota_give_back(coordinator_quota(c, QUOTA_GATHERINGS), gathering->uid, taken);
    gathering_free(gathering);
    return NULL;
}

/* Refuse those that are here, and those that come later. */
static void home_end_for_all(struct coordinator *c, struct gathering *gathering, int code,
                             const char *text)
{
    struct unable_rank who = {
        .uid = gathering->uid, .world_size = gathering->world_size, .rank = -1};
    snprintf(who.job, sizeof(who.job), "%s", gathering->name);
    unable_note(c, &who, code, text, gathering);
    home_refuse_all(c, gathering, code, text);
}

/* The newest gathering of the user who has most makes room for one of this user. ERR_MEMORY: that
 * is this user himself. */
static int home_make_room(struct coordinator *c, uint32_t uid, struct error *error)
{
    const struct quota *quota = coordinator_quota(c, QUOTA_GATHERINGS);
    if (!quota_is_short(quota, 1))
        return 0;
    uint64_t giver = quota_giver(quota, uid, 1);
    struct gathering *newest = NULL;
    for (struct gathering *it = c->gatherings; it && giver != uid; it = it->hh.next)
        newest = it->uid == giver ? it : newest;
    if (!newest)
        return quota_refuse(quota, uid, 1, error);
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text),
             "job '%s' gives its place to a job of user %u: %" PRIu64
             " jobs may gather their ranks "
             "at node %s (limits.jobs), and user %" PRIu64 " has most of them, %" PRIu64 "; start "
             "it again when others of them run, or raise the limit",
             newest->name, uid, quota->limit, coordinator_node_name(c, c->config->self), giver,
             quota_used(quota, giver));
    home_end_for_all(c, newest, ERR_MEMORY, text);
    return 0;
}

/* Return the daemon that is to gather the job sooner than this one. -1: none is. */
static int64_t home_before(const struct coordinator *c, const char *job)
{
    uint32_t home = coordinator_first_home(c, job);
    return home == c->config->self ? -1 : (int64_t)home;
}

/* Whether the user's own ranks ask for different jobs of one name: none of them can begin. */
static bool home_differs(const struct gathering *gathering, const struct message *message)
{
    return message->uid == gathering->uid && !gathering_is_of_another(gathering, message->mark) &&
           (message->world_size != gathering->world_size ||
            message->recovery != gathering->recovery);
}

/* ERR_REFUSED: a job of this name runs, of another run of this user, and none of its ranks has left
 * it. Where one has, the next run may begin on its node. */
static int home_runs_otherwise(const struct coordinator *c, const struct message *message,
                               struct error *error)
{
    for (const struct job *job = c->jobs; job && message->mark != 0; job = job->hh.next)
        if ((job->state == JOB_OPENING || job->state == JOB_READY) && job->departed_count == 0 &&
            job->uid == message->uid && job->mark != 0 && job->mark != message->mark &&
            strcmp(job->name, message->job) == 0)
            return error_set(error, ERR_REFUSED,
                             "job '%s' is running with all its %u ranks, in another run: give each "
                             "run a name of its own (SHOAL_JOB, shoalrun --job)",
                             job->name, job->world_size);
    return 0;
}

int home_job_join(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error)
{
    if (message->world_size == 0 && message->job[0] != '\0')
        return newcomer_on_join(c, node, message);
    bool elsewhere = auth_home_of_job(message->job, c->config->server_count) != c->config->self;
    if (message->job[0] == '\0' || (elsewhere && !coordinator_recovers(c, message->recovery)))
        return error_set(error, ERR_PROTOCOL, "job '%s' does not gather here", message->job);
    if (message->rank >= (int64_t)message->world_size)
        return error_set(error, ERR_PROTOCOL, "rank %d of a world size of %u", message->rank,
                         message->world_size);
    struct gathering_member member = coordinator_applicant(c, node, message);
    struct error refusal = {0};
    struct gathering *gathering = home_gathering(c, message->job);
    int64_t before = home_before(c, message->job);
    if (before >= 0) {
        error_set(&refusal, ERR_AGAIN, "job '%s' gathers at node %s", message->job,
                  coordinator_node_name(c, (uint32_t)before));
    } else if (c->draining) {
        coordinator_drain_error(c, &refusal);
    } else if (home_runs_otherwise(c, message, &refusal) < 0 ||
               (!gathering && unable_refuses(c, node, message, &refusal))) {
        /* this rank waits for nobody, or one of its ranks cannot join */
    } else if (!gathering && home_make_room(c, message->uid, &refusal) == 0) {
        gathering = home_begin_gathering(c, message);
        if (!gathering)
            error_set(&refusal, ERR_MEMORY, "no memory for job '%s'", message->job);
    } else if (gathering && gathering_complete(gathering)) {
        error_set(&refusal, ERR_REFUSED, "job '%s' has all its %u ranks", message->job,
                  gathering->world_size);
    }
    if (refusal.code == 0) {
        assert(gathering);
        gathering_add(gathering, &member, message->uid, message->world_size, c->config, &refusal);
        if (refusal.code != 0 && home_differs(gathering, message))
            home_end_for_all(c, gathering, refusal.code, refusal.text);
    }
    if (refusal.code != 0)
        home_refuse(c, message->job, message->uid, &member, refusal.code, refusal.text);
    else if (gathering_complete(gathering))
        home_try_open(c, gathering);
    home_refuse_unable(c);
    return 0;
}

int home_job_withdraw(struct coordinator *c, uint32_t node, const struct message *message,
                      struct error *error)
{
    (void)error;
    struct gathering *gathering = home_gathering(c, message->job);
    if (newcomer_remove(c, node, message->member))
        return 0;
    if (!gathering || !gathering_remove(gathering, node, message->member)) {
        c->dropped_messages++; /* it crossed job_open, which its daemon answers */
        return 0;
    }
    if (gathering->count == 0)
        home_end_gathering(c, gathering);
    return 0;
}

int home_job_unable(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error)
{
    if (message->job[0] == '\0' || message->rank >= (int64_t)message->world_size)
        return error_set(error, ERR_PROTOCOL, "job_unable makes no sense");
    struct gathering *gathering = home_gathering(c, message->job);
    if (gathering && gathering->uid != message->uid)
        return 0; /* which would have been refused */
    struct unable_rank who = {.uid = message->uid,
                              .pid = message->pid,
                              .node = node,
                              .world_size = message->world_size,
                              .rank = message->rank};
    snprintf(who.job, sizeof(who.job), "%s", message->job);
    struct error why = {.code = message->code < 0 ? message->code : ERR_REFUSED};
    unable_text(c, node, message, why.text, sizeof(why.text));
    coordinator_log(c, LOG_LEVEL_WARNING, message->uid, "%s", why.text);
    /* A launcher may have ended this process together with the others of its attempt, so no note
     * is kept. */
    if (why.code != ERR_LOST)
        unable_note(c, &who, why.code, why.text, gathering);
    if (gathering)
        home_refuse_all(c, gathering, why.code, why.text);
    return 0;
}

/* Return the weight with which the node serves the job; 0: it does not. A job whose ranks are all
 * on one node is summed there, so it neither waits for other servers nor ends with them. */
static uint32_t home_server_weight(const struct coordinator *c, const struct gathering *gathering,
                                   uint32_t node)
{
    uint32_t only = gathering->members[0].node, weight = c->config->servers[node].weight;
    /* A job that goes on does so without those that are not there, or cannot; one with recovery
     * also begins so. One that is away is waited for: it comes back, or is gone soon. */
    bool there = coordinator_is_up(c, node) || membership_is_away(c->membership, node);
    bool without = gathering->without || gathering->generation > 1;
    if (without &&
        (!there || !coordinator_stays(c, node) || (gathering->unable && gathering->unable[node])))
        return 0;
    for (uint32_t i = 1; i < gathering->count; i++) {
        if (gathering->members[i].node != only)
            return weight;
    }
    if (node != only)
        return 0;
    return weight > 0 ? weight : 1;
}

bool home_has_server(const struct coordinator *c, const struct gathering *gathering)
{
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (home_server_weight(c, gathering, node) > 0)
            return true;
    }
    return false;
}

/* A daemon that the job needs and that is not up; -1 when all are. */
static int64_t home_missing_node(const struct coordinator *c, const struct gathering *gathering)
{
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (!coordinator_is_up(c, gathering->members[i].node))
            return gathering->members[i].node;
    }
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (home_server_weight(c, gathering, node) > 0 && !coordinator_is_up(c, node))
            return node;
    }
    return -1;
}

static int home_build_open(struct coordinator *c, const struct gathering *gathering,
                           struct message *message)
{
    uint32_t nodes = c->config->server_count;
    *message = (struct message){.type = MESSAGE_JOB_OPEN,
                                .generation = gathering->generation,
                                .lineage = gathering->lineage,
                                .uid = gathering->uid,
                                .recovery = gathering->recovery,
                                .mark = gathering->mark};
    snprintf(message->job, sizeof(message->job), "%s", gathering->name);
    do
        message->job_id = c->io.random(c->io.context);
    while (message->job_id == 0 || coordinator_job(c, message->job_id));
    uint32_t least_ms = MESSAGE_TIMEOUT_MAX_MS;
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (gathering->members[i].newcomer)
            continue;
        uint32_t remaining_ms = coordinator_remaining_ms(c, gathering->members[i].deadline_ns);
        least_ms = remaining_ms < least_ms ? remaining_ms : least_ms;
    }
    message->timeout_ms =
        least_ms > COORDINATOR_OPEN_LEAST_MS ? least_ms : COORDINATOR_OPEN_LEAST_MS;
    message->ranks.values = calloc(gathering->world_size, sizeof(uint32_t));
    message->members.values = calloc(gathering->world_size, sizeof(uint32_t));
    message->servers.values = calloc(nodes, sizeof(uint32_t));
    message->weights.values = calloc(nodes, sizeof(uint32_t));
    if (!message->ranks.values || !message->members.values || !message->servers.values ||
        !message->weights.values) {
        message_clear(message);
        return ERR_MEMORY;
    }
    if (gathering->elder_count > 0 &&
        message_list_set(&message->elders, gathering->elders, gathering->elder_count) < 0) {
        message_clear(message);
        return ERR_MEMORY;
    }
    message->ranks.count = message->members.count = gathering->world_size;
    gathering_assign(gathering, message->ranks.values, message->members.values);
    for (uint32_t node = 0; node < nodes; node++) {
        uint32_t weight = home_server_weight(c, gathering, node);
        if (weight == 0)
            continue;
        message->servers.values[message->servers.count++] = node;
        message->weights.values[message->weights.count++] = weight;
    }
    return 0;
}

int home_open(struct coordinator *c, const struct gathering *gathering)
{
    if (!gathering_complete(gathering) || home_missing_node(c, gathering) >= 0)
        return ERR_STATE;
    struct message message;
    bool *told = calloc(c->config->server_count, sizeof(*told));
    if (!told || home_build_open(c, gathering, &message) < 0) {
        free(told);
        return ERR_MEMORY;
    }
    if (message.servers.count == 0) { /* of a job that goes on: the last server is gone */
        free(told);
        message_clear(&message);
        return ERR_STATE;
    }
    coordinator_log(c, LOG_LEVEL_INFO, gathering->uid,
                    "job '%s' has all its %u ranks: opening it as %016llx", gathering->name,
                    gathering->world_size, (unsigned long long)message.job_id);
    told[c->config->self] = true;
    for (uint32_t rank = 0; rank < message.ranks.count; rank++)
        told[message.ranks.values[rank]] = true;
    for (uint32_t i = 0; i < message.servers.count; i++)
        told[message.servers.values[i]] = true;
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (told[node])
            coordinator_send(c, node, &message);
    }
    free(told);
    message_clear(&message);
    return 0;
}

/* Somebody came or went: what the gathering waits for may be another. */
static void home_say_soon(struct coordinator *c, struct gathering *gathering)
{
    if (gathering_complete(gathering) && gathering->say_ns == UINT64_MAX)
        gathering->say_ns = c->now_ns + COORDINATOR_SAY_NS;
    if (gathering_complete(gathering) && gathering->without_ns == UINT64_MAX &&
        coordinator_recovers(c, gathering->recovery))
        gathering->without_ns = c->now_ns + c->config->peer_ms * COORDINATOR_MS;
}

/* Whether the gathering needs a daemon that cannot start: each of a run is needed, of others those
 * without which a job that has all its ranks cannot open. One with recovery opens without them. */
static bool home_needs_unable(const struct coordinator *c, const struct gathering *gathering,
                              struct error *why)
{
    if (c->of_run)
        return unable_node(c, -1, why);
    int64_t missing = gathering_complete(gathering) ? home_missing_node(c, gathering) : -1;
    return missing >= 0 && !coordinator_recovers(c, gathering->recovery) &&
           unable_node(c, missing, why);
}

void home_refuse_unable(struct coordinator *c)
{
    struct gathering *gathering, *next;
    struct error why;
    HASH_ITER(hh, c->gatherings, gathering, next)
    {
        if (home_needs_unable(c, gathering, &why))
            home_refuse_all(c, gathering, why.code, why.text);
    }
}

void home_try_open(struct coordinator *c, struct gathering *gathering)
{
    int result = home_open(c, gathering);
    if (result == 0)
        home_end_gathering(c, gathering);
    else if (result == ERR_MEMORY)
        home_refuse_all(c, gathering, ERR_MEMORY, "no memory to open the job");
    else
        home_say_soon(c, gathering);
}

int home_job_opened(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error)
{
    struct job *job = coordinator_job(c, message->job_id);
    if (!job || job->state == JOB_FAILED) {
        c->dropped_messages++;
        return 0;
    }
    if (job->home != c->config->self || job->roles[node] == 0 || job->opened[node])
        return error_set(error, ERR_PROTOCOL, "job_opened of job '%s' was not to come", job->name);
    job->opened[node] = true;
    for (uint32_t other = 0; other < job->roster; other++) {
        if (job->roles[other] != 0 && !job->opened[other])
            return 0;
    }
    struct message ready = coordinator_job_message(MESSAGE_JOB_READY, job);
    coordinator_send_job(c, job, &ready, true);
    return 0;
}

bool home_waits_text(const struct coordinator *c, const struct gathering *gathering, char *text,
                     size_t bytes)
{
    int64_t node = gathering_complete(gathering) ? home_missing_node(c, gathering) : -1;
    if (node < 0)
        return false;
    coordinator_unreachable_text(c, (uint32_t)node, text, bytes);
    return true;
}

/* Write what the members wait for. */
static void home_members_wait_text(const struct coordinator *c, const struct gathering *gathering,
                                   char *text, size_t bytes)
{
    char cause[600];
    if (home_waits_text(c, gathering, cause, sizeof(cause))) {
        snprintf(text, bytes, "job '%s' has all its ranks, but %s", gathering->name, cause);
        return;
    }
    const char *more = "";
    for (const struct job *job = c->jobs; job; job = job->hh.next) {
        if (strcmp(job->name, gathering->name) == 0)
            more = "; a job of that name is running with all its ranks";
    }
    gathering_missing_text(gathering, cause, sizeof(cause));
    snprintf(text, bytes, "%s%s", cause, more);
}

/* Once, and again when it is another node; long before its members' time is over. */
static void home_say_what_it_waits_for(struct coordinator *c, struct gathering *gathering)
{
    char cause[600];
    gathering->say_ns = UINT64_MAX;
    int64_t node = home_missing_node(c, gathering);
    if (node == gathering->said_node)
        return;
    gathering->said_node = node;
    if (home_waits_text(c, gathering, cause, sizeof(cause)))
        coordinator_log(c, LOG_LEVEL_WARNING, gathering->uid,
                        "job '%s' has all its %u ranks and waits to open: %s", gathering->name,
                        gathering->world_size, cause);
}

/* Open the job without the servers that are not there: they have had the time of a lost one to
 * come. Servers that come later are given shards in the next generation. True: the gathering is
 * over. */
static bool home_open_without(struct coordinator *c, struct gathering *gathering)
{
    gathering->without_ns = UINT64_MAX;
    char cause[600];
    bool waits = home_waits_text(c, gathering, cause, sizeof(cause));
    gathering->without = true;
    if (!waits || !home_has_server(c, gathering) || home_missing_node(c, gathering) >= 0) {
        gathering->without = false;
        return false;
    }
    coordinator_log(c, LOG_LEVEL_WARNING, gathering->uid, "job '%s' begins without: %s",
                    gathering->name, cause);
    home_try_open(c, gathering);
    return true;
}

static void home_tell_waiting(struct coordinator *c, const struct gathering *gathering,
                              struct gathering_member *member)
{
    member->told_ns = UINT64_MAX;
    for (uint32_t i = 0; i < gathering->count; i++) {
        const struct gathering_member *other = &gathering->members[i];
        if (other != member && other->node == member->node && other->told_ns == UINT64_MAX)
            return; /* one of each node says it */
    }
    struct message message = {
        .type = MESSAGE_JOB_WAITING, .uid = gathering->uid, .member = member->member};
    snprintf(message.job, sizeof(message.job), "%s", gathering->name);
    home_members_wait_text(c, gathering, message.text, sizeof(message.text));
    coordinator_send(c, member->node, &message);
}

void home_tick(struct coordinator *c, struct gathering *gathering)
{
    if (c->now_ns >= gathering->say_ns)
        home_say_what_it_waits_for(c, gathering);
    if (c->now_ns >= gathering->without_ns && home_open_without(c, gathering))
        return;
    for (uint32_t i = gathering->count; i-- > 0;) {
        if (c->now_ns >= gathering->members[i].told_ns)
            home_tell_waiting(c, gathering, &gathering->members[i]);
        struct gathering_member member = gathering->members[i];
        if (c->now_ns < member.deadline_ns)
            continue;
        if (gathering->timeout_text[0] == '\0')
            home_members_wait_text(c, gathering, gathering->timeout_text,
                                   sizeof(gathering->timeout_text));
        gathering_remove_at(gathering, i);
        home_refuse(c, gathering->name, gathering->uid, &member, ERR_TIMEOUT,
                    gathering->timeout_text);
    }
    if (gathering->count == 0)
        home_end_gathering(c, gathering);
}

void home_peer_connected(struct coordinator *c)
{
    struct gathering *gathering, *next;
    HASH_ITER(hh, c->gatherings, gathering, next)
    {
        int64_t before = home_before(c, gathering->name);
        char text[ERROR_TEXT_BYTES];
        if (before < 0)
            continue;
        snprintf(text, sizeof(text), "job '%s' gathers at node %s", gathering->name,
                 coordinator_node_name(c, (uint32_t)before));
        home_refuse_all(c, gathering, ERR_AGAIN, text);
    }
}

void home_peer_down(struct coordinator *c, uint32_t node)
{
    struct gathering *gathering, *next;
    HASH_ITER(hh, c->gatherings, gathering, next)
    {
        for (uint32_t i = gathering->count; i-- > 0;) {
            if (gathering->members[i].node == node)
                gathering_remove_at(gathering, i);
        }
        if (gathering->count == 0)
            home_end_gathering(c, gathering);
        else
            home_say_soon(c, gathering);
    }
}

void home_drain(struct coordinator *c)
{
    struct error refusal;
    coordinator_drain_error(c, &refusal);
    struct gathering *gathering, *next;
    HASH_ITER(hh, c->gatherings, gathering, next)
    {
        home_refuse_all(c, gathering, refusal.code, refusal.text);
    }
}

uint64_t home_deadline(const struct coordinator *c)
{
    uint64_t deadline_ns = UINT64_MAX;
    for (const struct gathering *gathering = c->gatherings; gathering;
         gathering = gathering->hh.next) {
        uint64_t due_ns =
            gathering->say_ns < gathering->without_ns ? gathering->say_ns : gathering->without_ns;
        if (due_ns < deadline_ns)
            deadline_ns = due_ns;
        for (uint32_t i = 0; i < gathering->count; i++) {
            const struct gathering_member *member = &gathering->members[i];
            uint64_t member_ns =
                member->told_ns < member->deadline_ns ? member->told_ns : member->deadline_ns;
            if (member_ns < deadline_ns)
                deadline_ns = member_ns;
        }
    }
    return deadline_ns;
}
