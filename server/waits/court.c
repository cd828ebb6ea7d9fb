#include "server/waits/court.h"

#include <stdlib.h>

/* Part of the job's collectives of which a node must own chunks to know what others wait for. */
#define SEES_ALL 0.9

double court_part(const struct waits_figures *it, double us)
{
    return it->window_us > 0 ? us / it->window_us : 0;
}

/* Return an owner's waits as a part of the time. An owner of small buffers owns a part of only some
 * collectives, and knows nothing of the waits of the others: those are taken to be as long. */
static double court_owner_part(const struct court *court, const struct waits_figures *it, double us)
{
    double part = court_part(it, us), all = court->per_us * it->window_us;
    if (it->gathered > 0 && it->gathered < SEES_ALL * all)
        part *= all / it->gathered;
    return part < 1 ? part : 1;
}

const struct waits_figures *court_report(const struct court *court, uint32_t node)
{
    for (size_t i = 0; i < court->count; i++) {
        if (court->reports[i].own == node)
            return &court->reports[i];
    }
    return NULL;
}

void court_accuse(struct court *court, double part, double least, struct verdict accused)
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

static int court_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double court_median(double *parts, size_t count)
{
    if (count == 0)
        return 0;
    qsort(parts, count, sizeof(*parts), court_compare);
    return parts[(count - 1) / 2];
}

/* --- nodes ------------------------------------------------------------------------------------ */

/* Part of the time in which the owner waited for the node. */
double court_seen(const struct court *court, const struct waits_figures *owner, uint32_t node,
                  uint32_t *times)
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

/* Return the part of the time in which an owner waited for the first data of the node: the most
 * that any owner has seen. */
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

/* Return the part of the time in which the node's own ranks were what was lacking. An owner knows
 * this of itself: no link lies between. The owner counts only from when the others' data had come,
 * which is one way later than they were there. The figures of other owners contain that way: for
 * all nodes alike where there are several, and for only one of two nodes, so there the mean is
 * taken. A node that owns no part is known by the others alone. */
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
/* --- blame ------------------------------------------------------------------------------------ */

/* Blame of one node as another sees it: the part of the time in which the other waits for that one
 * alone, for its data or for results that it owes. The job would save this time if that node were
 * as fast as the next. A node that both owns parts of all collectives and has ranks sees all of it;
 * the lower median of what these see is the blame. */
struct court_blame {
    size_t report; /* of the one that was waited for */
    double part;
};

bool court_sees_all(const struct court *court, const struct waits_figures *it)
{
    return it->ranks > 0 && it->gathered >= SEES_ALL * court->per_us * it->window_us;
}

static int court_compare_blame(const void *a, const void *b)
{
    const struct court_blame *x = a, *y = b;
    if (x->report != y->report)
        return x->report < y->report ? -1 : 1;
    return (x->part < y->part) - (x->part > y->part);
}

/* All of what was seen, by whom it is about, the most first. */
static size_t court_list_blame(const struct court *court, struct court_blame *seen)
{
    size_t count = 0;
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        for (uint32_t k = 0;
             court_sees_all(court, it) && k < WAITS_NODES && it->node[k].node != WAITS_NOBODY;
             k++) {
            const struct waits_figures *of = court_report(court, it->node[k].node);
            if (of && of != it)
                seen[count++] = (struct court_blame){(size_t)(of - court->reports),
                                                     court_part(it, it->node[k].all_us)};
        }
    }
    qsort(seen, count, sizeof(*seen), court_compare_blame);
    return count;
}

/* Find the node for which others wait alone; at least two others have to see all collectives. */
void court_find_blame(struct court *court)
{
    struct court_blame *seen = calloc(court->count * WAITS_NODES, sizeof(*seen));
    size_t all = 0, count = seen ? court_list_blame(court, seen) : 0;
    for (size_t i = 0; i < court->count; i++)
        all += court_sees_all(court, &court->reports[i]);
    for (size_t i = 0, first = 0; i < count; i++) {
        if (seen[i].report != seen[first].report)
            first = i;
        size_t others = all - court_sees_all(court, &court->reports[seen[i].report]);
        if (others < 2 || i - first != others / 2)
            continue;
        if (seen[i].part > court->blame) {
            court->next_blame = court->blame;
            court->blame = seen[i].part;
            court->blamed = seen[i].report;
        } else if (seen[i].part > court->next_blame) {
            court->next_blame = seen[i].part;
        }
    }
    free(seen);
}
/* --- late ---------------------------------------------------------------------------------------
 */

double court_idle(const struct waits_figures *it)
{
    return 1 - court_part(it, it->opened_us);
}

/* The lower median of the nodes with ranks. */
static double court_idle_median(const struct court *court)
{
    size_t count = 0;
    double *parts = calloc(court->count, sizeof(*parts)), median = 0;
    for (size_t i = 0; parts && i < court->count; i++) {
        if (court->reports[i].ranks > 0)
            parts[count++] = court_idle(&court->reports[i]);
    }
    median = court_median(parts, count);
    free(parts);
    return median;
}

/* A node may be late since its results came late. Therefore, where somebody is blamed, a node with
 * ranks counts as late only for as long as it has been without a collective under way beyond the
 * others, and its ranks took to hand data over. */
void court_find_late(struct court *court)
{
    court->idle = court_idle_median(court);
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        court->late[i] = court_node_late(court, it->own, &court->late_times[i]);
        double most = court_idle(it) - court->idle;
        for (uint32_t k = 0; k < WAITS_RANKS && it->rank[k].rank != WAITS_NOBODY; k++)
            most += it->ranks > 1 ? court_part(it, it->rank[k].give_us) : 0;
        if (court->blame > 0 && it->ranks > 0 && court->late[i] > most)
            court->late[i] = most > 0 ? most : 0;
    }
}
/* --- servers ---------------------------------------------------------------------------------- */

/* Part of the time that the node's sums and its standing still take. */
double court_busy(const struct waits_figures *server)
{
    return court_part(server, (double)server->tasks_us + server->still_us);
}

/* Return that part less the median of the others, if it is more than so many times theirs; else
 * 0. */
double court_server(const struct court *court, const struct waits_figures *server, double times)
{
    size_t count = 0;
    double *parts = calloc(court->count, sizeof(*parts));
    double own = court_busy(server), median = 0;
    for (size_t i = 0; parts && i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it->gathered > 0 && it != server)
            parts[count++] = court_busy(it);
    }
    median = court_median(parts, count);
    free(parts);
    return count > 0 && own > times * median ? own - median : 0;
}
