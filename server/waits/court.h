/* The evidence for a verdict: the reports of a job's daemons, and what follows from them for each
 * node. All times here are parts of the time, from 0 to 1.
 *
 * Pure. Calls server/waits/waits.h. */
#ifndef SERVER_WAITS_COURT_H
#define SERVER_WAITS_COURT_H

#include <stddef.h>

#include "server/waits/finding.h"
#include "server/waits/waits.h"

/* Parts of the time below which nobody is named. */
#define LEAST_PART 0.05
#define LEAST_LINK_PART 0.08
#define LEAST_LINK_COLLECTIVES 8u

struct court {
    const struct waits_figures *reports;
    size_t count;
    double *late;         /* [count]: how long each node was late */
    uint32_t *late_times; /* [count] */
    double idle;          /* in which no collective was under way: the lower median of the nodes */
    uint32_t collectives; /* of the job, in a window */
    double per_us;        /* of these; windows of nodes differ in length */
    bool several;         /* some node owns parts: there is more than one */
    struct verdict *verdict;
    double part;       /* the worst so far */
    size_t blamed;     /* the report of the node for which the others wait longest */
    double blame;      /* for how long; 0: that is not known */
    double next_blame; /* for the next one */
};

double court_part(const struct waits_figures *it, double us);
/* Sorts the parts. The lower one; 0: there are none. */
double court_median(double *parts, size_t count);
/* NULL: there is none of the node. */
const struct waits_figures *court_report(const struct court *court, uint32_t node);
/* Names the accused if the part is at least so much, and the worst so far. */
void court_accuse(struct court *court, double part, double least, struct verdict accused);

/* Return the part of the time in which the owner waited for the node's data, and in *times for how
 * many collectives. */
double court_seen(const struct court *court, const struct waits_figures *owner, uint32_t node,
                  uint32_t *times);
/* Whether it has ranks and owns parts of all collectives: so it knows what others are waited for.
 */
bool court_sees_all(const struct court *court, const struct waits_figures *it);
/* Return the part of the time in which none of its collectives was under way. */
double court_idle(const struct waits_figures *it);
/* Return the part of the time in which its sums were under way or it stood still; then that part
 * less the median of the others, if it is more than `times` times theirs. */
double court_busy(const struct waits_figures *server);
#define COURT_BUSY_TIMES 2.0
double court_server(const struct court *court, const struct waits_figures *server, double times);

/* Fills in `blamed`, `blame` and `next_blame`; then `late`, `late_times` and `idle`. */
void court_find_blame(struct court *court);
void court_find_late(struct court *court);

#endif
