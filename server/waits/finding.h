/* A verdict's findings: whom a job waits for, why, how often and for how long.
 *
 * Pure. Calls nothing. */
#ifndef SERVER_WAITS_FINDING_H
#define SERVER_WAITS_FINDING_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
