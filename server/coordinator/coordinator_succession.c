/* Jobs that have failed and go on: each daemon keeps who of its ranks is gone, the home gathers
 * those that ask for the next generation, and opens it when nobody who lives is awaited. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator_internal.h"

/* For so long after a job's failure its ranks can go on. */
#define SUCCESSION_NS (600000 * COORDINATOR_MS)

struct succession *succession_find(const struct coordinator *c, uint64_t lineage)
{
    struct succession *succession;
    HASH_FIND(hh, c->successions, &lineage, sizeof(lineage), succession);
    return succession;
}

void succession_forget(struct coordinator *c, struct succession *succession)
{
    quota_give_back(coordinator_quota(c, QUOTA_SUCCESSIONS), succession->uid, 1);
    HASH_DEL(c->successions, succession);
    succession_free(succession);
}

/* Forget a request, and say why. */
static void succession_turn_down(struct coordinator *c, struct succession *succession,
                                 uint32_t index, int code, const char *text)
{
    struct gathering_member member = succession->asks[index];
    succession_unask(succession, index);
    home_refuse(c, succession->name, succession->uid, &member, code, text);
}

/* --- the home */

/* Whether all who are awaited are newcomers, whose daemons have not heard of the generation that
 * failed, and who still wait as such. */
static bool succession_lacks_newcomers(const struct coordinator *c,
                                       const struct succession *succession)
{
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->states[rank] == SUCCESSION_AWAY)
            return false;
        if (succession->states[rank] == SUCCESSION_AWAITED &&
            !newcomer_waits(c, succession->rank_nodes[rank], succession->workers[rank]))
            return false;
    }
    return succession->ask_count > 0;
}

/* Whether those that have not asked have been waited for long enough. */
static bool succession_is_settled(const struct coordinator *c, const struct succession *succession)
{
    return succession->ask_count > 0 && !succession_has_away(succession) &&
           (succession->settled || c->now_ns >= succession->settle_ns);
}

/* Until when a number of ranks is waited for. Not before those who have asked are all: of the
 * others one may wish for it, and for longer. */
static uint64_t succession_wish_deadline(const struct coordinator *c,
                                         const struct succession *succession)
{
    bool all = succession_complete(succession) || succession_lacks_newcomers(c, succession);
    return all || succession_is_settled(c, succession) ? wish_deadline(succession) : UINT64_MAX;
}

/* End a succession in which those who have asked had no rank yet, and nobody else is to come: there
 * is nothing to go on from. */
static void succession_end(struct coordinator *c, struct succession *succession)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text), "job '%s' is over: all its ranks are gone", succession->name);
    while (succession->ask_count > 0)
        succession_turn_down(c, succession, 0, ERR_REFUSED, text);
}

/* Turn down those that go on only as they were: it cannot be. Their programs have a say then, and
 * ask again. */
static void succession_turn_down_whole(struct coordinator *c, struct succession *succession,
                                       const char *why)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text), "job '%s' has %s any more", succession->name, why);
    for (uint32_t i = succession->ask_count; i-- > 0;) {
        if (succession->asks[i].whole)
            succession_turn_down(c, succession, i, ERR_AGAIN, text);
    }
}

/* Wait for a server: one may be started again soon, as a daemon with ranks may. The program decides
 * whether to wait for longer. */
static void succession_lack_server(struct coordinator *c, struct succession *succession)
{
    if (c->config->restart_ms == 0 || succession->server_late)
        succession_turn_down_whole(c, succession, "no server");
    else if (succession->server_ns == UINT64_MAX)
        succession->server_ns = c->now_ns + c->config->restart_ms * COORDINATOR_MS;
}

/* Open the next generation, when nobody is awaited or has been for long enough. */
static void succession_try(struct coordinator *c, struct succession *succession)
{
    bool settled = succession_is_settled(c, succession);
    if (succession->formed || succession_home(succession) != c->config->self)
        return;
    if (!succession_may_be_whole(succession) || (settled && !succession_complete(succession)))
        succession_turn_down_whole(c, succession, "not all its ranks");
    bool all = succession_complete(succession) || succession_lacks_newcomers(c, succession);
    if (!(settled || all) || succession->ask_count == 0)
        return;
    if (!succession_has_survivor(succession)) {
        if (all)
            succession_end(c, succession);
        return;
    }
    bool whole = succession->asks[0].whole;
    uint32_t newcomers = wish_newcomers(c, succession);
    if (wish_waits(c, succession, succession->ask_count + newcomers))
        return;
    struct gathering *gathering = succession_gather(succession, newcomers);
    if (gathering)
        newcomers_add(c, gathering);
    int result = gathering ? home_open(c, gathering) : ERR_MEMORY;
    for (uint32_t i = succession->ask_count; result == 0 && i < gathering->count; i++)
        newcomer_remove(c, gathering->members[i].node, gathering->members[i].member);
    bool lacks_server = result == ERR_STATE && whole && !home_has_server(c, gathering);
    if (gathering)
        gathering_free(gathering);
    if (lacks_server)
        succession_lack_server(c, succession);
    if (result == ERR_MEMORY)
        while (succession->ask_count > 0)
            succession_turn_down(c, succession, 0, ERR_MEMORY, "no memory to open the job");
    if (result == 0) {
        succession->formed = true;
        succession->ask_count = 0;
    }
}

/* Set how long the others are waited for, counted from the first that asked. A newcomer whose first
 * generation failed while it opened gives 0: it has no say. */
static void succession_await(const struct coordinator *c, struct succession *succession,
                             uint32_t stragglers_ms)
{
    if (succession->ask_count == 1) {
        succession->settle_ns = UINT64_MAX;
        succession->settled = false;
    }
    uint64_t due_ns = coordinator_deadline(c, stragglers_ms, MESSAGE_TIMEOUT_MAX_MS);
    if (stragglers_ms > 0 && !succession->settled && due_ns < succession->settle_ns)
        succession->settle_ns = due_ns;
}

/* Try the successions that wait for more ranks. Nobody looks here to which of them the newcomer
 * belongs: that is done when newcomers are counted. */
static void successions_newcomer(struct coordinator *c, const char *name)
{
    struct succession *succession, *next;
    HASH_ITER(hh, c->successions, succession, next)
    {
        if (succession->short_ns != UINT64_MAX && strcmp(succession->name, name) == 0)
            succession_try(c, succession);
    }
}

int succession_on_join(struct coordinator *c, uint32_t node, const struct message *message,
                       struct error *error)
{
    int result = home_job_join(c, node, message, error);
    if (result == 0 && message->world_size == 0)
        successions_newcomer(c, message->job);
    return result;
}

int succession_on_rejoin(struct coordinator *c, uint32_t node, const struct message *message,
                         struct error *error)
{
    (void)error;
    struct succession *succession = succession_find(c, message->lineage);
    if (!succession) {
        c->dropped_messages++; /* its daemon's own time ends the wait */
        return 0;
    }
    uint32_t rank = succession_rank(succession, node, message->member);
    struct gathering_member member = coordinator_applicant(c, node, message);
    member.rank = (int32_t)rank;
    struct error refusal = {0};
    if (rank == succession->world_size && member.newcomer) {
        /* The generation that it joined was ready nowhere, and this home has not heard of it. */
        newcomer_add(c, succession->name, succession->uid, &member);
        successions_newcomer(c, succession->name);
        return 0;
    }
    if (succession->formed || rank == succession->world_size)
        error_set(&refusal, ERR_REFUSED, "job '%s' has gone on without rank %d", succession->name,
                  message->rank);
    else
        succession_ask(succession, &member, &refusal);
    if (refusal.code != 0) {
        home_refuse(c, succession->name, succession->uid, &member, refusal.code, refusal.text);
        return 0;
    }
    succession_await(c, succession, message->stragglers_ms);
    if (member.deadline_ns > succession->forget_ns)
        succession->forget_ns = member.deadline_ns;
    succession_try(c, succession);
    return 0;
}

static void succession_note(struct coordinator *c, const struct succession *succession,
                            const struct gathering_member *member)
{
    struct message noted = {.type = MESSAGE_JOB_RETURNED, .member = member->member};
    snprintf(noted.job, sizeof(noted.job), "%s", succession->name);
    coordinator_send(c, member->node, &noted);
}

/* Each that remembers the job hears of it, for each may be the next home. */
int succession_on_return(struct coordinator *c, uint32_t node, const struct message *message,
                         struct error *error)
{
    (void)error;
    struct succession *succession = succession_find(c, message->lineage);
    if (!succession || succession->uid != message->uid ||
        strcmp(succession->name, message->job) != 0) {
        c->dropped_messages++;
        return 0;
    }
    bool home = succession_home(succession) == c->config->self;
    struct gathering_member member = coordinator_applicant(c, node, message);
    struct error refusal = {0};
    uint32_t rank = 0;
    if (succession->formed)
        error_set(&refusal, ERR_STATE, "job '%s' has gone on without rank %d", succession->name,
                  message->rank);
    else
        succession_return(succession, &member, message->generation, message->former, &rank,
                          &refusal);
    if (refusal.code != 0 && home)
        home_refuse(c, succession->name, succession->uid, &member, ERR_REFUSED, refusal.text);
    if (refusal.code != 0)
        return 0;
    coordinator_log(c, LOG_LEVEL_INFO, succession->uid,
                    "rank %u of job '%s' has come back on node %s after %" PRIu64 " ms", rank,
                    succession->name, coordinator_node_name(c, node),
                    (uint64_t)((c->now_ns - succession->away_since_ns[node]) / COORDINATOR_MS));
    if (home)
        succession_note(c, succession, &member);
    succession_await(c, succession, message->stragglers_ms);
    if (member.deadline_ns > succession->forget_ns)
        succession->forget_ns = member.deadline_ns;
    succession_try(c, succession);
    return 0;
}

int succession_on_gone(struct coordinator *c, uint32_t node, const struct message *message,
                       struct error *error)
{
    (void)error;
    struct succession *succession = succession_find(c, message->lineage);
    uint32_t rank = succession ? succession_rank(succession, node, message->member) : 0;
    if (!succession || rank == succession->world_size) {
        c->dropped_messages++;
        return 0;
    }
    succession_set_gone(succession, rank);
    succession_try(c, succession);
    return 0;
}

/* --- every daemon */

static void succession_tell_gone(struct coordinator *c, const struct succession *succession,
                                 uint32_t worker)
{
    struct message gone = {
        .type = MESSAGE_RANK_GONE,
        .uid = succession->uid,
        .lineage = succession->lineage,
        .generation = succession->generation,
        .member = worker,
    };
    coordinator_message_error(&gone, succession->code, succession->text);
    coordinator_send(c, succession_home(succession), &gone);
}

static void succession_rank_gone(struct coordinator *c, struct succession *succession,
                                 uint32_t rank)
{
    if (succession->states[rank] == SUCCESSION_GONE)
        return;
    succession_set_gone(succession, rank);
    succession_tell_gone(c, succession, succession->workers[rank]);
}

static void succession_tell_past(struct coordinator *c, const struct succession *succession)
{
    for (uint32_t i = 0; i < succession->past_count; i++)
        succession_tell_gone(c, succession, succession->past[i]);
}

/* The oldest of the user that has most: mostly nobody asks about it any more. */
static void succession_make_room(struct coordinator *c, uint32_t uid)
{
    const struct quota *quota = coordinator_quota(c, QUOTA_SUCCESSIONS);
    if (!quota_is_short(quota, 1))
        return;
    uint64_t giver = quota_giver(quota, uid, 1);
    struct succession *oldest = c->successions;
    while (oldest && oldest->uid != giver)
        oldest = oldest->hh.next;
    if (oldest)
        succession_forget(c, oldest);
}

void succession_opens(struct coordinator *c, const struct job *job)
{
    struct succession *succession = succession_find(c, job->lineage);
    if (succession && succession->generation < job->generation)
        succession_open(succession, job);
}

/* Its daemon has ended, or cannot be reached. Where the job has recovery, and the machine lives,
 * another one may be started in its place, and the ranks go on with that. */
static void succession_node_lost(struct coordinator *c, struct succession *succession,
                                 uint32_t node)
{
    bool waits = c->config->recovery && succession->recovery != MESSAGE_RECOVERY_OFF &&
                 c->config->restart_ms > 0 && c->others_end[node] != COORDINATOR_DRAINS &&
                 c->membership->peers[node].ended;
    if (!waits) {
        succession_lose_node(succession, node);
        return;
    }
    uint64_t until_ns = c->now_ns + c->config->restart_ms * COORDINATOR_MS;
    if (succession_part_node(succession, node, c->now_ns, until_ns) == 0)
        return;
    char ranks[JOB_RANKS_TEXT_BYTES];
    succession_away_text(succession, node, ranks);
    coordinator_log(c, LOG_LEVEL_WARNING, succession->uid,
                    "job '%s' waits for %s on node %s, whose daemon has ended: until it is started "
                    "again, for %u ms at most (timeouts.restart_ms)",
                    succession->name, ranks, coordinator_node_name(c, node), c->config->restart_ms);
}

/* This daemon was started a moment ago, and has had no connection with the other one yet: that says
 * nothing about it. The other one may be the one who decides. */
static bool succession_unseen(const struct coordinator *c, uint32_t node)
{
    return node != c->config->self && c->membership->peers[node].connection == 0 &&
           c->membership->peers[node].state == MEMBERSHIP_DOWN;
}

void succession_begin(struct coordinator *c, const struct job *job)
{
    if (c->draining)
        return; /* the others do without this node */
    struct succession *before = succession_find(c, job->lineage);
    struct succession *made = succession_create(job, before, c->now_ns + SUCCESSION_NS);
    uint32_t home = before ? succession_home(before) : job->home;
    if (before)
        succession_forget(c, before);
    succession_make_room(c, job->uid);
    bool taken = made && quota_take(coordinator_quota(c, QUOTA_SUCCESSIONS), made->uid, 1) == 0;
    if (taken)
        HASH_ADD(hh, c->successions, lineage, sizeof(made->lineage), made);
    if (!taken || !HASH_IS_ADDED(made)) {
        quota_give_back(coordinator_quota(c, QUOTA_SUCCESSIONS), job->uid, taken);
        if (made)
            succession_free(made);
        log_error(c->log, "no memory: job '%s' cannot go on", job->name);
        return;
    }
    for (uint32_t node = 0; node < job->roster; node++) {
        if (job->roles[node] == 0 || coordinator_stays(c, node))
            continue;
        if (job->was_ready || !succession_unseen(c, node))
            succession_node_lost(c, made, node);
        else
            made->unseen_until_ns = c->now_ns + COORDINATOR_UNSEEN_NS;
    }
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        if (job->rank_nodes[rank] != job->self || job->locals[rank])
            continue;
        /* A rank that has left is told of too: the home may have heard of the failure first. */
        succession_set_gone(made, rank);
        succession_tell_gone(c, made, made->workers[rank]);
    }
    if (succession_home(made) != home)
        succession_tell_past(c, made);
    succession_try(c, made); /* all that it has to hear may have come before */
}

void succession_worker_gone(struct coordinator *c, uint64_t lineage, uint32_t worker)
{
    struct succession *succession = succession_find(c, lineage);
    uint32_t rank = succession ? succession_rank(succession, c->config->self, worker) : 0;
    if (succession && rank < succession->world_size)
        succession_rank_gone(c, succession, rank);
}

void succession_ask_home(struct coordinator *c, struct worker *worker)
{
    const struct succession *succession = succession_find(c, worker->former);
    worker->asked = false;
    if (!succession)
        return;
    worker->home = succession_home(succession);
    struct message message = {
        .type = MESSAGE_JOB_REJOIN,
        .uid = worker->uid,
        .lineage = succession->lineage,
        .generation = succession->generation,
        .rank = (int32_t)worker->rank,
        .world_size = worker->newcomer ? 0 : worker->world_size,
        .local_rank = worker->wished_local_rank,
        .pid = worker->pid,
        .member = worker->id,
        .timeout_ms = coordinator_remaining_ms(c, worker->deadline_ns),
        .stragglers_ms = worker->stragglers_ms,
        .least_ranks = worker->least_ranks,
        .wait_ms = worker->wait_ms,
        .whole = worker->whole,
    };
    coordinator_message_error(&message, succession->code, succession->text);
    worker->asked = true;
    coordinator_send(c, worker->home, &message);
}

/* Another daemon decides from now on, and knows nothing yet of this one's ranks. */
static void succession_move_home(struct coordinator *c, const struct succession *succession)
{
    struct worker *worker, *next;
    HASH_ITER(hh, c->workers, worker, next)
    {
        if (worker->state == WORKER_JOINING && worker->former == succession->lineage)
            succession_ask_home(c, worker);
    }
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->rank_nodes[rank] == succession->self &&
            succession->states[rank] == SUCCESSION_GONE)
            succession_tell_gone(c, succession, succession->workers[rank]);
    }
    succession_tell_past(c, succession);
    for (uint32_t i = 0;
         succession_home(succession) == c->config->self && i < succession->ask_count; i++) {
        if (succession->asks[i].returned)
            succession_note(c, succession, &succession->asks[i]);
    }
}

void successions_peer_down(struct coordinator *c, uint32_t node)
{
    struct succession *succession, *next;
    HASH_ITER(hh, c->successions, succession, next)
    {
        uint32_t home = succession_home(succession);
        bool known = succession->lost[node];
        succession_node_lost(c, succession, node); /* ranks may have come back there */
        if (!known && home == node)
            succession_move_home(c, succession);
        succession_try(c, succession); /* also of one lost before: it was back, and waited for */
    }
}

/* Give up daemons that were never connected: they have had time enough. */
static void succession_end_unseen(struct coordinator *c, struct succession *succession)
{
    uint32_t home = succession_home(succession);
    succession->unseen_until_ns = UINT64_MAX;
    for (uint32_t node = 0; node < succession->roster; node++) {
        if (succession->members[node] && !succession->lost[node] && succession_unseen(c, node))
            succession_node_lost(c, succession, node);
    }
    if (succession_home(succession) != home)
        succession_move_home(c, succession);
    succession_try(c, succession);
}

void successions_drain(struct coordinator *c)
{
    while (c->successions)
        succession_forget(c, c->successions); /* NOLINT(clang-analyzer-unix.Malloc) */
}

void successions_peer_up(struct coordinator *c)
{
    struct succession *succession, *next;
    HASH_ITER(hh, c->successions, succession, next)
    {
        succession_try(c, succession);
    }
}

/* --- time */

/* Give up the ranks that are away and have not come back in time. */
static void succession_end_waits(struct coordinator *c, struct succession *succession)
{
    for (uint32_t node = 0; node < succession->roster; node++) {
        char ranks[JOB_RANKS_TEXT_BYTES];
        succession_away_text(succession, node, ranks);
        if (ranks[0] == '\0' || c->now_ns < succession->away_until_ns[node])
            continue;
        coordinator_log(c, LOG_LEVEL_WARNING, succession->uid,
                        "job '%s' goes on without %s on node %s: not back within %u ms "
                        "(timeouts.restart_ms)",
                        succession->name, ranks, coordinator_node_name(c, node),
                        c->config->restart_ms);
        for (uint32_t rank = 0; rank < succession->world_size; rank++) {
            if (succession->rank_nodes[rank] == node && succession->states[rank] == SUCCESSION_AWAY)
                succession_set_gone(succession, rank);
        }
    }
    succession_try(c, succession);
}

void successions_tick(struct coordinator *c)
{
    struct succession *succession, *next;
    HASH_ITER(hh, c->successions, succession, next)
    {
        if (c->now_ns >= succession_wish_deadline(c, succession)) {
            wish_end(c, succession);
            succession_try(c, succession);
        }
        for (uint32_t i = succession->ask_count; i-- > 0;) {
            char text[ERROR_TEXT_BYTES];
            if (c->now_ns < succession->asks[i].deadline_ns)
                continue;
            succession_awaited_text(succession, text, sizeof(text));
            succession_turn_down(c, succession, i, ERR_TIMEOUT, text);
        }
        if (c->now_ns >= succession->unseen_until_ns)
            succession_end_unseen(c, succession);
        if (c->now_ns >= succession_away_deadline(succession))
            succession_end_waits(c, succession);
        if (c->now_ns >= succession->server_ns) {
            succession->server_late = true;
            succession->server_ns = UINT64_MAX;
            succession_try(c, succession);
        }
        if (c->now_ns >= succession->settle_ns) {
            succession->settled = true;
            succession->settle_ns = UINT64_MAX;
            succession_try(c, succession); /* or when a server comes up */
        }
        if (c->now_ns >= succession->forget_ns)
            succession_forget(c, succession);
    }
}

uint64_t successions_deadline(const struct coordinator *c)
{
    uint64_t deadline_ns = UINT64_MAX;
    for (const struct succession *it = c->successions; it; it = it->hh.next) {
        uint64_t due_ns = it->settle_ns < it->forget_ns ? it->settle_ns : it->forget_ns;
        uint64_t away_ns = succession_away_deadline(it);
        due_ns = away_ns < due_ns ? away_ns : due_ns;
        due_ns = it->unseen_until_ns < due_ns ? it->unseen_until_ns : due_ns;
        due_ns = it->server_ns < due_ns ? it->server_ns : due_ns;
        uint64_t wait_ns = succession_wish_deadline(c, it);
        due_ns = wait_ns < due_ns ? wait_ns : due_ns;
        for (uint32_t i = 0; i < it->ask_count; i++)
            due_ns = it->asks[i].deadline_ns < due_ns ? it->asks[i].deadline_ns : due_ns;
        deadline_ns = due_ns < deadline_ns ? due_ns : deadline_ns;
    }
    return deadline_ns;
}
