/* What the accounts of a job's daemons come to: whom the job waits for, why, and what a step would
 * take without that.
 *
 *   a rank is late      its node's other ranks had come, and its node's own part was all that its
 *                       node's shard lacked
 *   a rank drains       it begins in time, and hands its data over, or takes results, slowly
 *   a node's ranks      the node is late, and none of its ranks is later than the others
 *   a link is slow      what a node sends comes late, though it was not late itself
 *   a receiver is slow  one node has that from all others, and the others do not from each other
 *   a server is slow    its sums take longer than those of the other nodes, or it is not run
 *
 * What all nodes have alike is nobody's: the lower median of the others is taken off. Nobody is
 * named whom chance may have put behind the others: a rank stands out from the next one, a link
 * from the way in which links differ, and from what its daemons stand still.
 *
 * Pure. Calls server/waits/waits.h.
 */
#ifndef SERVER_WAITS_VERDICT_H
#define SERVER_WAITS_VERDICT_H

#include <stddef.h>

#include "server/waits/waits.h"

enum verdict_kind {
    VERDICT_UNKNOWN, /* too few collectives */
    VERDICT_NOBODY,
    VERDICT_RANK_LATE,
    VERDICT_RANK_DRAINS,
    VERDICT_NODE_LATE,
    VERDICT_LINK_SLOW,
    VERDICT_RECEIVER_SLOW,
    VERDICT_SERVER_SLOW,
};

struct verdict {
    enum verdict_kind kind;
    uint32_t rank;  /* WAITS_NOBODY: it is not one rank */
    uint32_t node;  /* whose rank, sending, receiving or sums; WAITS_NOBODY: nobody's */
    uint32_t to;    /* of a slow link: the node that it leads to; WAITS_NOBODY: all of the node's */
    uint32_t times; /* how often it was last, of `collectives` */
    uint32_t collectives; /* in the window */
    uint32_t step;        /* collectives in what follows: of a step, or 1 */
    double window_s;
    double step_ms;
    double lost_ms;    /* of a step, for the culprit alone */
    double without_ms; /* what it would take without that */
    bool sure;         /* false: of what is lost a part alone was counted, so both are rough */
};

/* Of one report of each daemon, in any order; count > 0. */
void verdict_find(struct verdict *verdict, const struct waits_figures *reports, size_t count);

/* "rank late": as in documents and metrics. */
const char *verdict_kind_name(enum verdict_kind kind);

#endif
