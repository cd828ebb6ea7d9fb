#include "server/waits/verdict.h"

#include <assert.h>
#include <stdlib.h>

#define US_PER_S 1e6
#define MS_PER_S 1e3
/* Parts of the time below which nobody is named; sums differ more, by the nature of nodes. */
#define LEAST_PART 0.03
#define LEAST_SUM_PART 0.15
#define LEAST_COLLECTIVES 4u

struct court {
    const struct waits_figures *reports;
    size_t count;
    uint32_t collectives; /* of the job, in a window */
    bool several;         /* some node owns parts: there is more than one */
    struct verdict *verdict;
    double part; /* of the time: the worst so far */
};

static double court_part(const struct waits_figures *it, double us)
{
    return it->window_us > 0 ? us / it->window_us : 0;
}

/* The same of an owner's waits. Of small buffers it owns a part now and then, and of the others'
 * waits it knows nothing: they are taken to be as long. */
static double court_owner_part(const struct court *court, const struct waits_figures *it, double us)
{
    double part = court_part(it, us);
    if (it->gathered > 0 && it->gathered < court->collectives)
        part *= (double)court->collectives / it->gathered;
    return part < 1 ? part : 1;
}

static const struct waits_figures *court_report(const struct court *court, uint32_t node)
{
    for (size_t i = 0; i < court->count; i++) {
        if (court->reports[i].own == node)
            return &court->reports[i];
    }
    return NULL;
}

static void court_accuse(struct court *court, double part, double least, struct verdict accused)
{
    if (part < least || part <= court->part)
        return;
    court->part = part;
    court->verdict->kind = accused.kind;
    court->verdict->rank = accused.rank;
    court->verdict->node = accused.node;
    court->verdict->to = accused.to;
    court->verdict->times = accused.times;
}

/* --- nodes ------------------------------------------------------------------------------------ */

/* Part of the time in which the owner waited for the node. */
static double court_seen(const struct court *court, const struct waits_figures *owner,
                         uint32_t node, uint32_t *times)
{
    for (uint32_t i = 0; i < WAITS_NODES && owner->node[i].node != WAITS_NOBODY; i++) {
        if (owner->node[i].node != node)
            continue;
        *times = owner->node[i].times;
        return court_owner_part(court, owner,
                                (double)owner->node[i].start_us + owner->node[i].flow_us);
    }
    *times = 0;
    return 0;
}

/* The same until the first of it came, the most that any owner has seen. */
static double court_seen_start(const struct court *court, uint32_t node, uint32_t *times)
{
    double most = 0;
    *times = 0;
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        for (uint32_t k = 0; k < WAITS_NODES && it->node[k].node != WAITS_NOBODY; k++) {
            double part = court_owner_part(court, it, it->node[k].start_us);
            if (it->node[k].node == node && part > most) {
                most = part;
                *times = it->node[k].times;
            }
        }
    }
    return most;
}

/* The least that any other owner has waited for the node, and how many others there are. */
static double court_seen_least(const struct court *court, uint32_t node, uint32_t *owners)
{
    double least = 1;
    *owners = 0;
    for (size_t i = 0; i < court->count; i++) {
        uint32_t ignored;
        if (court->reports[i].own == node || court->reports[i].gathered == 0)
            continue;
        double part = court_seen(court, &court->reports[i], node, &ignored);
        least = part < least ? part : least;
        ++*owners;
    }
    return *owners > 0 ? least : 0;
}

/* For how long the node's own ranks were what was lacking. An owner knows it of itself: no link
 * lies between. But it counts from when the others' data had come, a way later than they were
 * there. What these have seen has that way in it, where there are several of them, for all alike;
 * and one of two nodes has it added, so that it is the mean. Nodes without a part are known by the
 * others alone. */
static double court_node_late(const struct court *court, uint32_t node, uint32_t *times)
{
    const struct waits_figures *own = court_report(court, node);
    uint32_t owners;
    if (!own || own->gathered == 0)
        return court_seen_start(court, node, times);
    *times = own->self_times;
    double self = court_owner_part(court, own, own->self_us),
           seen = court_seen_least(court, node, &owners);
    if (owners == 1)
        seen = (self + seen) / 2;
    if (seen > 2 * self)
        seen = 2 * self; /* the rest is the link's */
    return seen > self ? seen : self;
}

/* --- ranks ------------------------------------------------------------------------------------ */

static void court_hear_rank(struct court *court, const struct waits_figures *it, uint32_t i,
                            double node_part, uint32_t node_times)
{
    bool alone = it->ranks == 1;
    double start = alone ? node_part : court_part(it, it->rank[i].start_us);
    double give = court_part(it, it->rank[i].give_us);
    uint32_t times = alone ? node_times : it->rank[i].times;
    uint32_t gives = it->rank[i].gives;
    if (alone && !court->several)
        return;
    if (court->several && start > node_part)
        start = node_part; /* another node is as late */
    if (court->several && give > node_part)
        give = node_part;
    struct verdict accused = {.kind = VERDICT_RANK_LATE,
                              .rank = it->rank[i].rank,
                              .node = it->own,
                              .to = WAITS_NOBODY,
                              .times = times};
    court_accuse(court, start, LEAST_PART, accused);
    accused.kind = VERDICT_RANK_DRAINS;
    accused.times = gives;
    court_accuse(court, give, LEAST_PART, accused);
}

static void court_hear_ranks(struct court *court, const struct waits_figures *it)
{
    uint32_t times;
    double node_part = court_node_late(court, it->own, &times);
    double ranks_part = 0;
    for (uint32_t i = 0; i < WAITS_RANKS && it->rank[i].rank != WAITS_NOBODY; i++) {
        court_hear_rank(court, it, i, node_part, times);
        ranks_part += court_part(it, (double)it->rank[i].start_us + it->rank[i].give_us);
    }
    /* Late as a whole: what no rank of it explains. */
    if (court->several && it->ranks > 1 && node_part > 2 * ranks_part)
        court_accuse(court, node_part, LEAST_PART,
                     (struct verdict){.kind = VERDICT_NODE_LATE,
                                      .rank = WAITS_NOBODY,
                                      .node = it->own,
                                      .to = WAITS_NOBODY,
                                      .times = times});
}

/* --- links ------------------------------------------------------------------------------------ */

/* Part of the time in which one node's bytes were under way to another, and lacked there. */
static double court_link(const struct court *court, const struct waits_figures *to, uint32_t from,
                         uint32_t *times)
{
    uint32_t ignored;
    double part = court_seen(court, to, from, times) - court_node_late(court, from, &ignored);
    return part > 0 ? part : 0;
}

static int court_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Whether the two lists of links are asked of one node: how many others are at least half as slow.
 */
static uint32_t court_count_links(const struct court *court, uint32_t from, uint32_t to,
                                  double part, bool of_sender)
{
    uint32_t count = 0, ignored;
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it->own == from || it->own == to)
            continue;
        const struct waits_figures *owner = of_sender ? it : court_report(court, to);
        uint32_t sender = of_sender ? from : it->own;
        count += owner && court_link(court, owner, sender, &ignored) >= part / 2;
    }
    return count;
}

struct court_pair {
    double part, median;
    uint32_t from, to, times;
};

/* The slowest link, and what links take otherwise. False: there are none. */
static bool court_slowest_link(const struct court *court, struct court_pair *slowest)
{
    size_t count = 0;
    double *parts = calloc(court->count * court->count, sizeof(*parts));
    *slowest = (struct court_pair){.part = -1};
    for (size_t i = 0; parts && i < court->count; i++) {
        for (size_t k = 0; k < court->count; k++) {
            const struct waits_figures *to = &court->reports[i], *from = &court->reports[k];
            if (i == k || to->gathered == 0 || from->ranks == 0)
                continue;
            uint32_t times;
            double part = court_link(court, to, from->own, &times);
            parts[count++] = part;
            if (part > slowest->part)
                *slowest = (struct court_pair){part, 0, from->own, to->own, times};
        }
    }
    if (count > 0) {
        qsort(parts, count, sizeof(*parts), court_compare);
        slowest->median = parts[(count - 1) / 2];
    }
    free(parts);
    return count > 0;
}

/* Part of the time that the node's sums and its standing still take beyond those of the others. */
static double court_server(const struct court *court, const struct waits_figures *server)
{
    size_t count = 0;
    double *parts = calloc(court->count, sizeof(*parts));
    double own = court_part(server, (double)server->tasks_us + server->still_us), median = 0;
    for (size_t i = 0; parts && i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it->gathered > 0 && it != server)
            parts[count++] = court_part(it, (double)it->tasks_us + it->still_us);
    }
    if (count > 0) {
        qsort(parts, count, sizeof(*parts), court_compare);
        median = parts[(count - 1) / 2];
    }
    free(parts);
    return count > 0 && own > 2 * median ? own - median : 0;
}

static double court_node_server(const struct court *court, uint32_t node)
{
    const struct waits_figures *it = court_report(court, node);
    return it && it->gathered > 0 ? court_server(court, it) : 0;
}

static void court_hear_links(struct court *court)
{
    struct court_pair pair;
    if (!court_slowest_link(court, &pair))
        return;
    double part = pair.part - pair.median;
    uint32_t outwards = court_count_links(court, pair.from, pair.to, pair.part, true);
    uint32_t inwards = court_count_links(court, pair.from, pair.to, pair.part, false);
    struct verdict accused = {.kind = VERDICT_LINK_SLOW,
                              .rank = WAITS_NOBODY,
                              .node = pair.from,
                              .to = outwards > 0 ? WAITS_NOBODY : pair.to,
                              .times = pair.times};
    if (inwards > outwards) {
        accused.kind = VERDICT_RECEIVER_SLOW;
        accused.node = pair.to;
        accused.to = WAITS_NOBODY;
    }
    /* A daemon that does not get to run sends and takes late, too. */
    uint32_t suspects[] = {accused.node, pair.from, pair.to};
    for (size_t i = 0; i < sizeof(suspects) / sizeof(suspects[0]); i++) {
        if (accused.kind != VERDICT_SERVER_SLOW &&
            court_node_server(court, suspects[i]) >= part / 2 &&
            court_node_server(court, suspects[i]) >= LEAST_PART) {
            accused.kind = VERDICT_SERVER_SLOW;
            accused.node = suspects[i];
            accused.to = WAITS_NOBODY;
        }
    }
    court_accuse(court, part, LEAST_PART, accused);
}

static void court_hear_server(struct court *court, const struct waits_figures *it)
{
    if (it->gathered > 0)
        court_accuse(court, court_server(court, it), LEAST_SUM_PART,
                     (struct verdict){.kind = VERDICT_SERVER_SLOW,
                                      .rank = WAITS_NOBODY,
                                      .node = it->own,
                                      .to = WAITS_NOBODY});
}

/* --- the verdict ------------------------------------------------------------------------------ */

/* The report by which steps are counted: of a node with ranks, the one with most collectives. */
static const struct waits_figures *court_measure(const struct court *court)
{
    const struct waits_figures *best = &court->reports[0];
    for (size_t i = 1; i < court->count; i++) {
        if (court->reports[i].collectives > best->collectives)
            best = &court->reports[i];
    }
    return best;
}

void verdict_find(struct verdict *verdict, const struct waits_figures *reports, size_t count)
{
    assert(count > 0);
    struct court court = {.reports = reports, .count = count, .verdict = verdict};
    const struct waits_figures *measure = court_measure(&court);
    *verdict = (struct verdict){.kind = VERDICT_UNKNOWN,
                                .rank = WAITS_NOBODY,
                                .node = WAITS_NOBODY,
                                .to = WAITS_NOBODY,
                                .collectives = measure->collectives,
                                .step = measure->step > 0 ? measure->step : 1,
                                .window_s = measure->window_us / US_PER_S};
    if (measure->collectives < LEAST_COLLECTIVES || measure->window_us == 0)
        return;
    verdict->kind = VERDICT_NOBODY;
    court.collectives = measure->collectives;
    for (size_t i = 0; i < count; i++)
        court.several |= reports[i].gathered > 0;
    for (size_t i = 0; i < count; i++) {
        court_hear_ranks(&court, &reports[i]);
        court_hear_server(&court, &reports[i]);
    }
    court_hear_links(&court);
    if (verdict->times > verdict->collectives) /* of one that has not ended */
        verdict->times = verdict->collectives;
    if (court.part > 1)
        court.part = 1;
    verdict->step_ms = verdict->window_s * MS_PER_S * verdict->step / measure->collectives;
    verdict->lost_ms = verdict->step_ms * court.part;
    verdict->without_ms = verdict->step_ms - verdict->lost_ms;
}

const char *verdict_kind_name(enum verdict_kind kind)
{
    static const char *const names[] = {
        [VERDICT_UNKNOWN] = "unknown",
        [VERDICT_NOBODY] = "nobody",
        [VERDICT_RANK_LATE] = "rank late",
        [VERDICT_RANK_DRAINS] = "rank drains slowly",
        [VERDICT_NODE_LATE] = "node late",
        [VERDICT_LINK_SLOW] = "link slow",
        [VERDICT_RECEIVER_SLOW] = "receiver slow",
        [VERDICT_SERVER_SLOW] = "server slow",
    };
    return names[kind];
}
