#include "server/waits/court_links.h"

#include <stdlib.h>

/* A slow link stands out from the other links so many times as they differ. */
#define SPREADS 3.0

/* --- links ------------------------------------------------------------------------------------ */

/* A way from one node to another over which something lacked: numbers of reports. */
struct court_link {
    double part; /* of the time, in which bytes were under way */
    size_t from, to;
    uint32_t times;
};

/* Links of all nodes on which something was late. A node tells of a few others, so that most links
 * are not in it. */
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
/* A daemon that does not get to run sends and takes late, too. */
static void court_hear_ends(const struct court *court, const struct court_link *link, double part,
                            struct verdict *accused)
{
    bool receiver = accused->kind == VERDICT_RECEIVER_SLOW;
    size_t suspects[] = {receiver ? link->to : link->from, receiver ? link->from : link->to};
    for (size_t i = 0; i < sizeof(suspects) / sizeof(suspects[0]); i++) {
        const struct waits_figures *it = &court->reports[suspects[i]];
        double busy = it->gathered > 0 ? court_server(court, it, COURT_BUSY_TIMES) : 0;
        if (busy < part / 2 || busy < LEAST_PART)
            continue;
        accused->kind = VERDICT_SERVER_SLOW;
        accused->node = it->own;
        accused->to = WAITS_NOBODY;
        accused->sure = true;
        return;
    }
}

/* Return the part of the time that the slowest link must take to be named. Where links differ, as
 * on a machine that others use, or where a daemon does not get to run, chance makes one the
 * slowest. */
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

/* A link's figure is about the way to the owner. Results come back over links too, and are not
 * counted, so the figure is sure only where there are none. */
static bool court_link_is_sure(const struct court *court, const struct court_link *link)
{
    return court->reports[link->from].gathered == 0 || court->reports[link->to].ranks == 0;
}

/* Turn the accused link round where two nodes both own parts of all collectives. There the node to
 * which a link is slow has its results late, and is late with its data: the other waits for it,
 * over the link that is not slow. */
static void court_turn_link(const struct court *court, struct verdict *accused)
{
    uint32_t from = accused->node;
    if (accused->kind != VERDICT_LINK_SLOW || court->count != 2 ||
        !court_sees_all(court, &court->reports[0]) || !court_sees_all(court, &court->reports[1]))
        return;
    accused->node = accused->to;
    accused->to = from;
}

void court_hear_links(struct court *court)
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
        court_turn_link(court, &accused);
        bool link = accused.kind != VERDICT_SERVER_SLOW;
        if (!link || court->collectives >= LEAST_LINK_COLLECTIVES)
            court_accuse(court, part, link ? court_least_link(court, &links) : LEAST_LINK_PART,
                         accused);
    }
    free(links.links);
}
