#include "server/waits/verdict.h"

#include <assert.h>
#include <stdlib.h>

#define US_PER_S 1e6
#define MS_PER_S 1e3
/* Parts of the time below which nobody is named; sums differ more, by the nature of nodes. */
#define LEAST_PART 0.05
#define LEAST_LINK_PART 0.08
#define LEAST_SUM_PART 0.15
#define LEAST_COLLECTIVES 4u
#define LEAST_LINK_COLLECTIVES 8u
/* What nobody overlooks. A rank below it is named if it is three times as late as the next one. */
#define CLEAR_PART 0.10
#define CLEAR_TIMES 3.0
/* A slow link stands out from the other links so many times as they differ. */
#define SPREADS 3.0

struct court {
    const struct waits_figures *reports;
    size_t count;
    double *late;         /* [count]: how long each node was late, as a part of the time */
    uint32_t *late_times; /* [count] */
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
    court->verdict->sure = accused.sure;
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

/* For how long one of the told ranks of a node was what the job lacked: another node may be as
 * late. */
static double court_rank_part(const struct court *court, size_t report, uint32_t us, bool start)
{
    const struct waits_figures *it = &court->reports[report];
    if (it->ranks == 1 && start)
        return court->several ? court->late[report] : 0;
    double part = it->ranks == 1 && !court->several ? 0 : court_part(it, us);
    return court->several && part > court->late[report] ? court->late[report] : part;
}

/* The two that are most late to begin, or to hand over. Where they are alike, chance decides who is
 * behind, and neither is to blame. */
struct court_ranks {
    struct {
        double part;
        size_t report;
        uint32_t rank, times;
    } most, next;
};

static struct court_ranks court_latest_ranks(const struct court *court, bool start)
{
    struct court_ranks ranks = {.most = {.part = -1}, .next = {.part = 0}};
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        for (uint32_t k = 0; k < WAITS_RANKS && it->rank[k].rank != WAITS_NOBODY; k++) {
            uint32_t us = start ? it->rank[k].start_us : it->rank[k].give_us;
            double part = court_rank_part(court, i, us, start);
            uint32_t times = start ? it->rank[k].times : it->rank[k].gives;
            if (start && it->ranks == 1)
                times = court->late_times[i];
            if (part > ranks.most.part) {
                ranks.next = ranks.most;
                ranks.most.part = part;
                ranks.most.report = i;
                ranks.most.rank = it->rank[k].rank;
                ranks.most.times = times;
            } else if (part > ranks.next.part) {
                ranks.next.part = part;
            }
        }
    }
    return ranks;
}

/* From where on one that is next to another is named. */
static double court_least(double next)
{
    double least = CLEAR_TIMES * next;
    if (least < LEAST_PART)
        return LEAST_PART;
    return least < CLEAR_PART ? least : CLEAR_PART;
}

static void court_hear_ranks(struct court *court, bool start)
{
    struct court_ranks ranks = court_latest_ranks(court, start);
    if (ranks.most.part > 0)
        court_accuse(court, ranks.most.part, court_least(ranks.next.part),
                     (struct verdict){.kind = start ? VERDICT_RANK_LATE : VERDICT_RANK_DRAINS,
                                      .rank = ranks.most.rank,
                                      .node = court->reports[ranks.most.report].own,
                                      .to = WAITS_NOBODY,
                                      .times = ranks.most.times,
                                      .sure = true});
}

/* Late as a whole: what no rank of it explains. */
static void court_hear_nodes(struct court *court)
{
    size_t latest = 0;
    double next = 0;
    for (size_t i = 1; i < court->count; i++) {
        if (court->late[i] > court->late[latest]) {
            next = court->late[latest];
            latest = i;
        } else if (court->late[i] > next) {
            next = court->late[i];
        }
    }
    const struct waits_figures *it = &court->reports[latest];
    double ranks_part = 0;
    for (uint32_t i = 0; i < WAITS_RANKS && it->rank[i].rank != WAITS_NOBODY; i++)
        ranks_part += court_part(it, (double)it->rank[i].start_us + it->rank[i].give_us);
    if (court->several && it->ranks > 1 && court->late[latest] > 2 * ranks_part)
        court_accuse(court, court->late[latest], court_least(next),
                     (struct verdict){.kind = VERDICT_NODE_LATE,
                                      .rank = WAITS_NOBODY,
                                      .node = it->own,
                                      .to = WAITS_NOBODY,
                                      .times = court->late_times[latest],
                                      .sure = true});
}

/* --- links ------------------------------------------------------------------------------------ */

/* A way from one node to another over which something lacked: numbers of reports. */
struct court_link {
    double part; /* of the time, in which bytes were under way */
    size_t from, to;
    uint32_t times;
};

/* Those of all nodes. A node tells of a few others, so that most have nothing. */
struct court_links {
    struct court_link *links; /* the slowest first */
    size_t count;
    double median; /* of all that there are: the lower one */
    double spread; /* from the median to the slowest that shares no end with the first */
};

static int court_compare_links(const void *a, const void *b)
{
    const struct court_link *x = a, *y = b;
    return (x->part < y->part) - (x->part > y->part);
}

static void court_list_links(const struct court *court, struct court_links *links)
{
    for (size_t to = 0; to < court->count; to++) {
        const struct waits_figures *it = &court->reports[to];
        for (uint32_t i = 0; i < WAITS_NODES && it->node[i].node != WAITS_NOBODY; i++) {
            const struct waits_figures *sender = court_report(court, it->node[i].node);
            if (!sender || sender == it || it->gathered == 0 || sender->ranks == 0)
                continue;
            size_t from = (size_t)(sender - court->reports);
            uint32_t times;
            double part = court_seen(court, it, sender->own, &times) - court->late[from];
            if (part > 0)
                links->links[links->count++] = (struct court_link){part, from, to, times};
        }
    }
}

/* How many ways there are from nodes with ranks to owners. */
static size_t court_count_ways(const struct court *court)
{
    size_t owners = 0, senders = 0, both = 0;
    for (size_t i = 0; i < court->count; i++) {
        bool owns = court->reports[i].gathered > 0, sends = court->reports[i].ranks > 0;
        owners += owns;
        senders += sends;
        both += owns && sends;
    }
    return owners * senders - both;
}

static void court_find_links(const struct court *court, struct court_links *links)
{
    *links = (struct court_links){
        .links = calloc(court->count * WAITS_NODES, sizeof(*links->links)),
    };
    if (!links->links)
        return;
    court_list_links(court, links);
    if (links->count == 0)
        return;
    qsort(links->links, links->count, sizeof(*links->links), court_compare_links);
    size_t ways = court_count_ways(court), faster = ways / 2; /* than it are (ways - 1) / 2 */
    links->median = faster < links->count ? links->links[faster].part : 0;
    for (size_t i = links->count; i-- > 1;) {
        const struct court_link *it = &links->links[i];
        if (it->from != links->links[0].from && it->to != links->links[0].to)
            links->spread = it->part > links->median ? it->part - links->median : 0;
    }
}

/* How many others of the same sender, or to the same receiver, are at least half as slow. */
static uint32_t court_count_links(const struct court_links *links, bool of_sender)
{
    const struct court_link *first = &links->links[0];
    uint32_t count = 0;
    for (size_t i = 1; i < links->count && links->links[i].part >= first->part / 2; i++) {
        const struct court_link *it = &links->links[i];
        count += of_sender ? it->from == first->from && it->to != first->from
                           : it->to == first->to && it->from != first->to;
    }
    return count;
}

/* --- servers ---------------------------------------------------------------------------------- */

static int court_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Part of the time that the node's sums and its standing still take. */
static double court_busy(const struct waits_figures *server)
{
    return court_part(server, (double)server->tasks_us + server->still_us);
}

/* The same beyond that of the others. */
static double court_server(const struct court *court, const struct waits_figures *server)
{
    size_t count = 0;
    double *parts = calloc(court->count, sizeof(*parts));
    double own = court_busy(server), median = 0;
    for (size_t i = 0; parts && i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it->gathered > 0 && it != server)
            parts[count++] = court_busy(it);
    }
    if (count > 0) {
        qsort(parts, count, sizeof(*parts), court_compare);
        median = parts[(count - 1) / 2];
    }
    free(parts);
    return count > 0 && own > 2 * median ? own - median : 0;
}

/* A daemon that does not get to run sends and takes late, too. */
static void court_hear_ends(const struct court *court, const struct court_link *link, double part,
                            struct verdict *accused)
{
    bool receiver = accused->kind == VERDICT_RECEIVER_SLOW;
    size_t suspects[] = {receiver ? link->to : link->from, receiver ? link->from : link->to};
    for (size_t i = 0; i < sizeof(suspects) / sizeof(suspects[0]); i++) {
        const struct waits_figures *it = &court->reports[suspects[i]];
        double busy = it->gathered > 0 ? court_server(court, it) : 0;
        if (busy < part / 2 || busy < LEAST_PART)
            continue;
        accused->kind = VERDICT_SERVER_SLOW;
        accused->node = it->own;
        accused->to = WAITS_NOBODY;
        accused->sure = true;
        return;
    }
}

/* Which part of the time the slowest must have to be named: where links differ, as on a machine
 * that others use, or where a daemon does not get to run, chance makes one the slowest. */
static double court_least_link(const struct court *court, const struct court_links *links)
{
    const struct court_link *first = &links->links[0];
    double least = LEAST_LINK_PART;
    if (least < SPREADS * links->spread)
        least = SPREADS * links->spread;
    for (int i = 0; i < 2; i++) {
        const struct waits_figures *it = &court->reports[i ? first->to : first->from];
        double still = 2 * court_part(it, it->still_us);
        least = least < still ? still : least;
    }
    return least;
}

/* What a link takes is told of the way to the owner. Results come back over links too, and are not
 * counted: so the figure is sure only where there are none. */
static bool court_link_is_sure(const struct court *court, const struct court_link *link)
{
    return court->reports[link->from].gathered == 0 || court->reports[link->to].ranks == 0;
}

static void court_hear_links(struct court *court)
{
    struct court_links links;
    court_find_links(court, &links);
    if (links.count > 0) {
        const struct court_link *first = &links.links[0];
        double part = first->part - links.median;
        uint32_t outwards = court_count_links(&links, true);
        bool receiver = court_count_links(&links, false) > outwards;
        uint32_t from = court->reports[first->from].own, to = court->reports[first->to].own;
        struct verdict accused = {.kind = receiver ? VERDICT_RECEIVER_SLOW : VERDICT_LINK_SLOW,
                                  .rank = WAITS_NOBODY,
                                  .node = receiver ? to : from,
                                  .to = receiver || outwards > 0 ? WAITS_NOBODY : to,
                                  .times = first->times,
                                  .sure = court_link_is_sure(court, first)};
        court_hear_ends(court, first, part, &accused);
        bool link = accused.kind != VERDICT_SERVER_SLOW;
        if (!link || court->collectives >= LEAST_LINK_COLLECTIVES)
            court_accuse(court, part, link ? court_least_link(court, &links) : LEAST_LINK_PART,
                         accused);
    }
    free(links.links);
}

/* The busiest alone can be it. */
static void court_hear_servers(struct court *court)
{
    const struct waits_figures *busiest = NULL;
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it->gathered > 0 && (!busiest || court_busy(it) > court_busy(busiest)))
            busiest = it;
    }
    if (busiest)
        court_accuse(court, court_server(court, busiest), LEAST_SUM_PART,
                     (struct verdict){.kind = VERDICT_SERVER_SLOW,
                                      .rank = WAITS_NOBODY,
                                      .node = busiest->own,
                                      .to = WAITS_NOBODY,
                                      .sure = true});
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

/* Without memory nobody is accused. */
static void court_hear_all(struct court *court)
{
    court->late = calloc(court->count, sizeof(*court->late));
    court->late_times = calloc(court->count, sizeof(*court->late_times));
    if (court->late && court->late_times) {
        for (size_t i = 0; i < court->count; i++)
            court->late[i] = court_node_late(court, court->reports[i].own, &court->late_times[i]);
        court_hear_ranks(court, true);
        court_hear_ranks(court, false);
        court_hear_nodes(court);
        court_hear_servers(court);
        court_hear_links(court);
    }
    free(court->late);
    free(court->late_times);
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
                                .sure = true,
                                .collectives = measure->collectives,
                                .step = measure->step > 0 ? measure->step : 1,
                                .window_s = measure->window_us / US_PER_S};
    if (measure->collectives < LEAST_COLLECTIVES || measure->window_us == 0)
        return;
    verdict->kind = VERDICT_NOBODY;
    court.collectives = measure->collectives;
    for (size_t i = 0; i < count; i++)
        court.several |= reports[i].gathered > 0;
    court_hear_all(&court);
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
