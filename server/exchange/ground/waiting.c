#include "server/exchange/ground/waiting.h"

#include "server/exchange/model/ask.h"
#include "server/exchange/model/roster.h"

/* --- who is the only one ---------------------------------------------------------------------- */

static bool part_is_given(const struct collective *collective, uint32_t local)
{
    const struct part *part = &collective->parts[local];
    return part->submitted && part->handed >= collective->layout.chunks;
}

/* The account of the one rank that has not submitted, or not given all. NULL: it is not here. */
static struct waits_rank *waiting_find(const struct collective *collective, bool given,
                                       uint32_t *local)
{
    const struct exchange_group *group = collective->group;
    for (*local = 0; *local < group->members.local_count; ++*local) {
        bool has = given ? part_is_given(collective, *local) : collective->parts[*local].submitted;
        if (!has &&
            route_takes_part(&collective->route, group->members.locals[*local].group_rank)) {
            struct exchange_worker *worker = group_local_worker(group, *local);
            return worker ? &worker->waits : NULL;
        }
    }
    return NULL;
}

static uint64_t waiting_now_ns(const struct collective *collective)
{
    return collective->group->job->exchange->now_ns;
}

/* Local index + 1, as in struct collective. */
static uint32_t waiting_begin(const struct collective *collective, bool given)
{
    uint32_t local;
    struct waits_rank *rank = waiting_find(collective, given, &local);
    if (!rank)
        return 0;
    wait_begin(given ? &rank->give : &rank->start, waiting_now_ns(collective));
    return local + 1;
}

static void waiting_end(const struct collective *collective, uint32_t *lacks, bool given)
{
    if (*lacks == 0)
        return;
    struct waits_rank *rank = &group_local_worker(collective->group, *lacks - 1)->waits;
    wait_end(given ? &rank->give : &rank->start, waiting_now_ns(collective));
    *lacks = 0;
}

/* --- events ----------------------------------------------------------------------------------- */

void waiting_rank_moved(struct collective *collective)
{
    uint32_t needed = collective->needed;
    if (needed < 2)
        return;
    if (collective->submitted + 1 == needed && collective->lacks_start == 0)
        collective->lacks_start = waiting_begin(collective, false);
    if (collective->submitted < needed)
        return;
    waiting_end(collective, &collective->lacks_start, false);
    if (collective->given == needed)
        waiting_end(collective, &collective->lacks_give, true);
    else if (collective->given + 1 == needed && collective->lacks_give == 0)
        collective->lacks_give = waiting_begin(collective, true);
}

void waiting_began(struct collective *collective)
{
    const struct wire_ask *ask = &collective->ask;
    /* A receive may wait for a program to come to its send: that is no communication. */
    if (!ask_is_transfer(ask)) {
        overlap_begin(&collective->group->job->overlap, waiting_now_ns(collective));
        collective->overlaps = true;
    }
    if (ask->block > 0)
        return;
    uint64_t words[] = {ask->count, collective->group->id, ask->kind, ask->dtype, ask->root};
    uint32_t hash = 2166136261u; /* FNV-1a, of words */
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        hash = (hash ^ (uint32_t)(words[i] ^ words[i] >> 32)) * 16777619u;
    waits_collective(&collective->group->job->waits, hash);
}

void waiting_collective_over(struct collective *collective)
{
    waiting_end(collective, &collective->lacks_start, false);
    waiting_end(collective, &collective->lacks_give, true);
    if (collective->overlaps)
        overlap_end(&collective->group->job->overlap, waiting_now_ns(collective));
}

void waiting_chunk_begin(const struct collective *collective, uint32_t owner)
{
    const struct exchange_group *group = collective->group;
    if (!ask_is_transfer(&collective->ask))
        waits_result_lacks(&group->job->waits, group->owners.nodes[owner],
                           waiting_now_ns(collective));
}

void waiting_chunk_over(const struct collective *collective, uint32_t owner)
{
    const struct exchange_group *group = collective->group;
    if (!ask_is_transfer(&collective->ask))
        waits_result_done(&group->job->waits, group->owners.nodes[owner],
                          waiting_now_ns(collective));
}

/* --- the window, and what is told ------------------------------------------------------------- */

void waiting_tick(struct exchange_job *job)
{
    const struct exchange *exchange = job->exchange;
    if (!waits_half_over(&job->waits, exchange->now_ns))
        return;
    waits_turn(&job->waits, exchange->now_ns, exchange->still_ns);
    overlap_turn(&job->overlap, exchange->now_ns);
    waits_remember(&job->waits, job->overlap.hidden_ns[1] + job->overlap.exposed_ns[1]);
    for (struct exchange_worker *it = job->workers; it; it = it->next)
        waits_rank_turn(&it->waits, exchange->now_ns);
}

void waiting_tell(const struct exchange_job *job, struct waits_figures *figures)
{
    const struct exchange *exchange = job->exchange;
    struct overlap_figures overlap;
    waits_tell(&job->waits, exchange->options.self, exchange->now_ns, exchange->still_ns, figures);
    overlap_tell(&job->overlap, exchange->now_ns, &overlap);
    figures->opened_us = overlap.hidden_us + overlap.exposed_us;
    for (const struct exchange_worker *it = job->workers; it; it = it->next) {
        if (!it->detached)
            waits_tell_rank(&it->waits, it->rank, exchange->now_ns, figures);
    }
}
