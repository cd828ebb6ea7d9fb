#include "server/jobs/succession.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int succession_make_lists(struct succession *made)
{
    made->rank_nodes = calloc(made->world_size, sizeof(*made->rank_nodes));
    made->workers = calloc(made->world_size, sizeof(*made->workers));
    made->states = calloc(made->world_size, sizeof(*made->states));
    made->members = calloc(made->roster, sizeof(*made->members));
    made->lost = calloc(made->roster, sizeof(*made->lost));
    made->away_since_ns = calloc(made->roster, sizeof(*made->away_since_ns));
    made->away_until_ns = calloc(made->roster, sizeof(*made->away_until_ns));
    made->elders = calloc(made->roster, sizeof(*made->elders));
    made->unable = calloc(made->roster, sizeof(*made->unable));
    made->asks = calloc(made->world_size, sizeof(*made->asks));
    return made->rank_nodes && made->workers && made->states && made->members && made->lost &&
                   made->away_since_ns && made->away_until_ns && made->elders && made->unable &&
                   made->asks
               ? 0
               : ERR_MEMORY;
}

/* The generation was not ready here: what was known of the one before it still counts. */
static int succession_take_attempt(struct succession *made, const struct succession *before)
{
    made->past = calloc(before->past_count + before->world_size, sizeof(*made->past));
    if (!made->past)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < before->past_count; i++)
        made->past[made->past_count++] = before->past[i];
    for (uint32_t rank = 0; rank < before->world_size; rank++) {
        if (before->rank_nodes[rank] == before->self && before->states[rank] == SUCCESSION_GONE)
            made->past[made->past_count++] = before->workers[rank];
    }
    memcpy(made->unable, before->unable, made->roster * sizeof(*made->unable));
    made->short_ns = before->short_ns;
    made->waited = before->waited;
    return 0;
}

static void succession_take_asks(struct succession *made, const struct succession *before)
{
    for (uint32_t i = 0; i < before->ask_count; i++) {
        struct gathering_member member = before->asks[i];
        uint32_t rank = succession_rank(made, member.node, member.member);
        member.rank = (int32_t)rank;
        if (rank < made->world_size && made->states[rank] == SUCCESSION_AWAITED)
            succession_ask(made, &member, NULL);
    }
    if (made->ask_count > 0) {
        made->settle_ns = before->settle_ns;
        made->settled = before->settled;
    }
}

struct succession *succession_create(const struct job *job, const struct succession *before,
                                     uint64_t forget_ns)
{
    struct succession *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    made->lineage = job->lineage;
    snprintf(made->name, sizeof(made->name), "%s", job->name);
    made->generation = job->generation;
    made->uid = job->uid;
    made->recovery = job->recovery;
    made->mark = job->mark;
    made->world_size = job->world_size;
    made->roster = job->roster;
    made->self = job->self;
    made->first_home = job->home;
    made->code = job->code;
    snprintf(made->text, sizeof(made->text), "%s", job->text);
    made->settle_ns = UINT64_MAX;
    made->unseen_until_ns = UINT64_MAX;
    made->server_ns = UINT64_MAX;
    made->short_ns = UINT64_MAX;
    made->since_ns = before && !job->was_ready ? before->since_ns : job->failed_ns;
    made->recoveries = job->recoveries;
    made->forget_ns = forget_ns;
    if (succession_make_lists(made) < 0) {
        succession_free(made);
        return NULL;
    }
    for (uint32_t node = 0; node < made->roster; node++) {
        made->members[node] = job->roles[node] != 0;
        /* Had it been started anew before it acknowledged the job, that were not ready. */
        made->elders[node] =
            job->elders[node] && (job->was_ready || !before || !before->lost[node]);
    }
    for (uint32_t rank = 0; rank < made->world_size; rank++) {
        made->rank_nodes[rank] = job->rank_nodes[rank];
        made->workers[rank] = job->members[rank];
        if (job->departed[rank])
            made->states[rank] = SUCCESSION_GONE;
    }
    if (before && !job->was_ready && succession_take_attempt(made, before) < 0) {
        succession_free(made);
        return NULL;
    }
    if (before)
        succession_take_asks(made, before);
    return made;
}

void succession_free(struct succession *succession)
{
    free(succession->rank_nodes);
    free(succession->workers);
    free(succession->states);
    free(succession->members);
    free(succession->lost);
    free(succession->away_since_ns);
    free(succession->away_until_ns);
    free(succession->elders);
    free(succession->unable);
    free(succession->asks);
    free(succession->past);
    free(succession);
}

static bool succession_first(const struct succession *succession, const bool *those, uint32_t *home)
{
    for (uint32_t i = 0; i < succession->roster; i++) {
        uint32_t node = (succession->first_home + i) % succession->roster;
        if (those[node] && !succession->lost[node]) {
            *home = node;
            return true;
        }
    }
    return false;
}

uint32_t succession_home(const struct succession *succession)
{
    uint32_t home = succession->self;
    if (!succession_first(succession, succession->elders, &home))
        succession_first(succession, succession->members, &home);
    return home;
}

uint32_t succession_rank(const struct succession *succession, uint32_t node, uint32_t worker)
{
    uint32_t rank = 0;
    while (rank < succession->world_size &&
           (succession->rank_nodes[rank] != node || succession->workers[rank] != worker))
        rank++;
    return rank;
}

int succession_ask(struct succession *succession, const struct gathering_member *member,
                   struct error *error)
{
    uint32_t rank = (uint32_t)member->rank;
    if (succession->states[rank] == SUCCESSION_GONE)
        return error_set(error, ERR_STATE, "rank %u of job '%s' is gone", rank, succession->name);
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        if (succession->asks[i].rank == member->rank) {
            succession->asks[i] = *member;
            return 0;
        }
    }
    uint32_t at = succession->ask_count++;
    while (at > 0 && succession->asks[at - 1].rank > member->rank) {
        succession->asks[at] = succession->asks[at - 1];
        at--;
    }
    succession->asks[at] = *member;
    succession->states[rank] = SUCCESSION_ASKED;
    return 0;
}

void succession_unask(struct succession *succession, uint32_t index)
{
    succession->states[succession->asks[index].rank] = SUCCESSION_AWAITED;
    succession->ask_count--;
    memmove(&succession->asks[index], &succession->asks[index + 1],
            (succession->ask_count - index) * sizeof(succession->asks[0]));
}

static void succession_set_state(struct succession *succession, uint32_t rank,
                                 enum succession_state state)
{
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        if ((uint32_t)succession->asks[i].rank == rank) {
            succession_unask(succession, i);
            break;
        }
    }
    succession->states[rank] = (uint8_t)state;
}

void succession_set_gone(struct succession *succession, uint32_t rank)
{
    succession_set_state(succession, rank, SUCCESSION_GONE);
}

void succession_lose_node(struct succession *succession, uint32_t node)
{
    succession->lost[node] = true;
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->rank_nodes[rank] == node)
            succession_set_gone(succession, rank);
    }
}

uint32_t succession_part_node(struct succession *succession, uint32_t node, uint64_t now_ns,
                              uint64_t until_ns)
{
    uint32_t parted = 0;
    succession->lost[node] = true;
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        uint8_t state = succession->states[rank];
        if (succession->rank_nodes[rank] != node || state == SUCCESSION_GONE ||
            state == SUCCESSION_AWAY)
            continue;
        succession_set_state(succession, rank, SUCCESSION_AWAY);
        parted++;
    }
    if (parted > 0) {
        succession->away_since_ns[node] = now_ns;
        succession->away_until_ns[node] = until_ns;
    }
    return parted;
}

int succession_return(struct succession *succession, const struct gathering_member *member,
                      uint32_t generation, uint32_t former, uint32_t *rank, struct error *error)
{
    uint32_t found = succession_rank(succession, member->node, member->member);
    bool same = found < succession->world_size; /* the connection: it has asked before */
    if (!same && generation == succession->generation)
        found = (uint32_t)member->rank;
    else if (!same)
        found = succession_rank(succession, member->node, former);
    if (found >= succession->world_size || succession->rank_nodes[found] != member->node ||
        succession->states[found] == SUCCESSION_GONE)
        return error_set(error, ERR_STATE, "job '%s' has gone on without rank %d, or is about to",
                         succession->name, member->rank);
    if (!same && succession->states[found] != SUCCESSION_AWAY)
        return error_set(error, ERR_STATE, "rank %d of job '%s' is not without a daemon",
                         member->rank, succession->name);
    struct gathering_member asks = *member;
    asks.rank = (int32_t)found;
    asks.returned = true;
    succession->workers[found] = member->member;
    *rank = found;
    return succession_ask(succession, &asks, error);
}

/* The first of the job's ranks on the node, by its worker, of which nothing is known here. False:
 * there is none. */
static bool succession_unknown(const struct succession *succession, const struct job *job,
                               uint32_t node, uint32_t *worker)
{
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        *worker = job->members[rank];
        if (job->rank_nodes[rank] == node &&
            succession_rank(succession, node, *worker) == succession->world_size)
            return true;
    }
    return false;
}

void succession_open(struct succession *succession, const struct job *job)
{
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        uint32_t worker, node = succession->rank_nodes[rank];
        if (succession->states[rank] != SUCCESSION_AWAY ||
            !succession_unknown(succession, job, node, &worker))
            continue;
        succession->workers[rank] = worker;
        succession->states[rank] = SUCCESSION_AWAITED;
    }
    for (uint32_t i = succession->ask_count; i-- > 0;) {
        const struct gathering_member *ask = &succession->asks[i];
        bool has = false;
        for (uint32_t rank = 0; ask->returned && rank < job->world_size && !has; rank++)
            has = job->rank_nodes[rank] == ask->node && job->members[rank] == ask->member;
        if (has)
            succession_unask(succession, i);
    }
}

bool succession_has_away(const struct succession *succession)
{
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->states[rank] == SUCCESSION_AWAY)
            return true;
    }
    return false;
}

void succession_away_text(const struct succession *succession, uint32_t node,
                          char text[JOB_RANKS_TEXT_BYTES])
{
    uint32_t count = 0;
    uint32_t *ranks = calloc(succession->world_size, sizeof(*ranks));
    for (uint32_t rank = 0; ranks && rank < succession->world_size; rank++) {
        if (succession->rank_nodes[rank] == node && succession->states[rank] == SUCCESSION_AWAY)
            ranks[count++] = rank;
    }
    text[0] = '\0';
    if (count > 0)
        job_ranks_text(ranks, count, text);
    free(ranks);
}

uint64_t succession_away_deadline(const struct succession *succession)
{
    uint64_t deadline_ns = UINT64_MAX;
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        uint64_t until_ns = succession->away_until_ns[succession->rank_nodes[rank]];
        if (succession->states[rank] == SUCCESSION_AWAY && until_ns < deadline_ns)
            deadline_ns = until_ns;
    }
    return deadline_ns;
}

bool succession_complete(const struct succession *succession)
{
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->states[rank] == SUCCESSION_AWAITED ||
            succession->states[rank] == SUCCESSION_AWAY)
            return false;
    }
    return succession->ask_count > 0;
}

bool succession_may_be_whole(const struct succession *succession)
{
    for (uint32_t rank = 0; rank < succession->world_size; rank++) {
        if (succession->states[rank] == SUCCESSION_GONE)
            return false;
    }
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        if (!succession->asks[i].whole)
            return false;
    }
    return true;
}

bool succession_has_survivor(const struct succession *succession)
{
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        if (!succession->asks[i].newcomer)
            return true;
    }
    return false;
}

uint32_t succession_least_ranks(const struct succession *succession)
{
    uint32_t least_ranks = 0;
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        const struct gathering_member *ask = &succession->asks[i];
        if (!ask->newcomer && ask->least_ranks > least_ranks)
            least_ranks = ask->least_ranks;
    }
    return least_ranks;
}

uint64_t succession_wait_end(const struct succession *succession, uint64_t reserve_ns)
{
    uint64_t end_ns = succession->short_ns, limit_ns = UINT64_MAX;
    if (end_ns == UINT64_MAX || succession->waited || succession->formed ||
        !succession_has_survivor(succession))
        return UINT64_MAX;
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        const struct gathering_member *ask = &succession->asks[i];
        if (ask->newcomer)
            continue;
        uint64_t least_ns = ask->deadline_ns > reserve_ns ? ask->deadline_ns - reserve_ns : 0;
        uint64_t wish_ns = ask->least_ranks > 0 ? ask->wait_ms * UINT64_C(1000000) : 0;
        limit_ns = least_ns < limit_ns ? least_ns : limit_ns;
        if (succession->short_ns + wish_ns > end_ns)
            end_ns = succession->short_ns + wish_ns;
    }
    return end_ns < limit_ns ? end_ns : limit_ns;
}

void succession_awaited_text(const struct succession *succession, char *text, size_t bytes)
{
    char ranks[JOB_RANKS_TEXT_BYTES];
    uint32_t count = 0;
    uint32_t *awaited = calloc(succession->world_size, sizeof(*awaited));
    for (uint32_t rank = 0; awaited && rank < succession->world_size; rank++) {
        if (succession->states[rank] == SUCCESSION_AWAITED ||
            succession->states[rank] == SUCCESSION_AWAY)
            awaited[count++] = rank;
    }
    if (count > 0)
        job_ranks_text(awaited, count, ranks);
    else
        snprintf(ranks, sizeof(ranks), "no rank");
    snprintf(text, bytes, "%s %s not asked for the next generation of job '%s'", ranks,
             count > 1 ? "have" : "has", succession->name);
    free(awaited);
}

enum recovery_kind succession_kind(const struct succession *succession, const struct job *next)
{
    bool whole = next->world_size == succession->world_size, returned = false, lost = false;
    for (uint32_t rank = 0; whole && rank < next->world_size; rank++) {
        uint32_t node = succession->rank_nodes[rank];
        whole = next->rank_nodes[rank] == node && next->members[rank] == succession->workers[rank];
        returned = returned || succession->lost[node];
    }
    for (uint32_t node = 0; node < succession->roster; node++)
        lost = lost || (succession->members[node] && succession->lost[node]);
    if (!whole || !lost)
        return RECOVERY_GENERATION;
    return returned ? RECOVERY_DAEMON : RECOVERY_SERVER;
}

/* Set the elders and the unable nodes of the next generation: the nodes that decide after it, this
 * home being one of them, and the nodes that do not serve it. */
static int succession_set_nodes(const struct succession *succession, struct gathering *gathering)
{
    uint32_t home;
    const bool *those = succession_first(succession, succession->elders, &home)
                            ? succession->elders
                            : succession->members;
    gathering->elders = calloc(succession->roster, sizeof(*gathering->elders));
    gathering->unable = calloc(succession->roster, sizeof(*gathering->unable));
    if (!gathering->elders || !gathering->unable)
        return ERR_MEMORY;
    memcpy(gathering->unable, succession->unable, succession->roster * sizeof(*gathering->unable));
    for (uint32_t node = 0; node < succession->roster; node++) {
        if (those[node] && !succession->lost[node])
            gathering->elders[gathering->elder_count++] = node;
    }
    return 0;
}

struct gathering *succession_gather(const struct succession *succession, uint32_t newcomers)
{
    struct gathering *gathering =
        gathering_create(succession->name, succession->uid, succession->ask_count + newcomers);
    if (!gathering)
        return NULL;
    if (succession_set_nodes(succession, gathering) < 0) {
        gathering_free(gathering);
        return NULL;
    }
    gathering->generation = succession->generation + 1;
    gathering->lineage = succession->lineage;
    gathering->recovery = succession->recovery;
    gathering->mark = succession->mark;
    for (uint32_t i = 0; i < succession->ask_count; i++) {
        gathering->members[i] = succession->asks[i];
        gathering->members[i].rank = (int32_t)i;
    }
    gathering->count = succession->ask_count;
    return gathering;
}
