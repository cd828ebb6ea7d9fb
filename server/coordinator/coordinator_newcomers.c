/* Processes that want to become ranks of a job that runs, in its next generation. Nobody knows
 * beforehand which daemon will open that, so each knows all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

static void newcomer_free(struct coordinator *c, struct newcomer *newcomer)
{
    HASH_DEL(c->newcomers, newcomer); /* NOLINT(clang-analyzer-unix.Malloc) */
    free(newcomer);
}

static struct newcomer *newcomer_find(const struct coordinator *c, uint32_t node, uint32_t member)
{
    struct newcomer_key key = {node, member};
    struct newcomer *newcomer;
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): it has all 8 bytes */
    HASH_FIND(hh, c->newcomers, &key, sizeof(key), newcomer);
    return newcomer;
}

static uint32_t newcomers_of(const struct coordinator *c, uint32_t node)
{
    const struct newcomer *it, *after;
    uint32_t count = 0;
    HASH_ITER(hh, c->newcomers, it, after)
    {
        count += it->member.node == node;
    }
    return count;
}

void newcomer_add(struct coordinator *c, const char *name, uint32_t uid,
                  const struct gathering_member *member)
{
    newcomer_remove(c, member->node, member->member);
    /* Newcomers of one node do not keep out those of others. */
    if (newcomers_of(c, member->node) >= c->config->workers) {
        coordinator_log(c, LOG_LEVEL_WARNING, uid,
                        "a newcomer to job '%s' is not heard: of node %s %u wait (limits.workers)",
                        name, c->config->servers[member->node].name, c->config->workers);
        return;
    }
    struct newcomer *newcomer = calloc(1, sizeof(*newcomer));
    if (newcomer) {
        newcomer->key = (struct newcomer_key){member->node, member->member};
        snprintf(newcomer->name, sizeof(newcomer->name), "%s", name);
        newcomer->uid = uid;
        newcomer->member = *member;
        HASH_ADD(hh, c->newcomers, key, sizeof(newcomer->key), newcomer);
        if (HASH_IS_ADDED(newcomer))
            return;
        free(newcomer);
    }
    log_error(c->log, "no memory for a newcomer to job '%s'", name);
}

int newcomer_on_join(struct coordinator *c, uint32_t node, const struct message *message)
{
    struct gathering_member member = coordinator_applicant(c, node, message);
    newcomer_add(c, message->job, message->uid, &member);
    return 0;
}

bool newcomer_waits(const struct coordinator *c, uint32_t node, uint32_t member)
{
    return newcomer_find(c, node, member) != NULL;
}

bool newcomer_remove(struct coordinator *c, uint32_t node, uint32_t member)
{
    struct newcomer *newcomer = newcomer_find(c, node, member);
    if (newcomer)
        newcomer_free(c, newcomer);
    return newcomer != NULL;
}

void newcomers_forget_node(struct coordinator *c, uint32_t node)
{
    struct newcomer *newcomer, *next;
    HASH_ITER(hh, c->newcomers, newcomer, next)
    {
        if (newcomer->member.node == node)
            newcomer_free(c, newcomer);
    }
}

static bool newcomer_fits(const struct coordinator *c, const struct newcomer *newcomer,
                          const char *name, uint32_t uid)
{
    return newcomer->uid == uid && strcmp(newcomer->name, name) == 0 &&
           coordinator_is_up(c, newcomer->member.node) &&
           coordinator_stays(c, newcomer->member.node);
}

uint32_t newcomers_count(const struct coordinator *c, const char *name, uint32_t uid)
{
    uint32_t count = 0;
    for (const struct newcomer *newcomer = c->newcomers; newcomer; newcomer = newcomer->hh.next)
        count += newcomer_fits(c, newcomer, name, uid);
    return count;
}

/* Newcomers have the numbers that they have asked for, so far as there are such and no other has
 * one: with them a rank that is started again has its own. The rest, old ones first, have those
 * that are left, in order. */
static void newcomers_number(struct gathering *gathering, uint32_t old)
{
    struct gathering_member *members = gathering->members;
    bool *taken = calloc(gathering->world_size, sizeof(*taken));
    for (uint32_t i = old; i < gathering->count; i++) {
        int32_t wish = members[i].rank;
        bool has = taken && wish >= 0 && (uint32_t)wish < gathering->count && !taken[wish];
        if (has)
            taken[wish] = true;
        else
            members[i].rank = -1;
    }
    int32_t next = 0;
    for (uint32_t i = 0; i < gathering->count; i++) {
        if (i >= old && members[i].rank >= 0)
            continue;
        while (taken && taken[next])
            next++;
        members[i].rank = next++;
    }
    free(taken);
}

void newcomers_add(const struct coordinator *c, struct gathering *gathering)
{
    uint32_t old = gathering->count;
    for (const struct newcomer *newcomer = c->newcomers; newcomer; newcomer = newcomer->hh.next) {
        if (gathering->count == gathering->world_size ||
            !newcomer_fits(c, newcomer, gathering->name, gathering->uid))
            continue;
        gathering->members[gathering->count++] = newcomer->member;
    }
    newcomers_number(gathering, old);
}

void newcomer_tell(struct coordinator *c, const struct worker *worker, uint32_t node)
{
    struct error away;
    if (coordinator_may_say(c, node, worker->uid, &away) != 0)
        return; /* other daemons are told of it */
    struct message message = {
        .type = MESSAGE_JOB_JOIN,
        .uid = worker->uid,
        .pid = worker->pid,
        .rank = worker->wished_rank,
        .local_rank = worker->wished_local_rank,
        .member = worker->id,
        .timeout_ms = coordinator_remaining_ms(c, worker->deadline_ns),
    };
    snprintf(message.job, sizeof(message.job), "%s", worker->name);
    coordinator_send(c, node, &message);
}

void newcomer_withdraw(struct coordinator *c, const struct worker *worker)
{
    struct message message = {
        .type = MESSAGE_JOB_WITHDRAW, .uid = worker->uid, .member = worker->id};
    snprintf(message.job, sizeof(message.job), "%s", worker->name);
    for (uint32_t node = 0; node < c->config->server_count; node++) {
        if (coordinator_reaches(c, node))
            coordinator_send(c, node, &message);
    }
}
