/* What the accounts of a job's daemons come to: whom the job waits for, why, and what a step would
 * take without that.
 *
 *   a rank is late      its node's other ranks had come, and its node's own part was all that its
 *                       node's shard lacked
 *   a rank drains       it begins in time, and hands its data over, or takes results, slowly
 *   a node's ranks      the node is late, and none of its ranks is later than the others
 *   a link is slow      what a node sends comes late, and it begins before the others
 *   a receiver is slow  the same, and it begins behind them: it has its results late
 *   a server is slow    its sums take longer than those of the other nodes, or it is not run
 *
 * Who is named is the one for which the others wait alone longest. Nobody is named whom chance may
 * have put behind the others: he stands out from the next one. What a step takes without him is
 * what the job's own past says, if there is one.
 *
 * Of two nodes, and of buffers that not all nodes own a part of, results are not told apart: there
 * the waits for data alone are looked at, less the lower median of the others.
 *
 * Pure. Calls server/waits/waits.h.
 */
#ifndef SERVER_WAITS_VERDICT_H
#define SERVER_WAITS_VERDICT_H

#include <stddef.h>

#include "server/waits/finding.h"
#include "server/waits/waits.h"

/* Of one report of each daemon, in any order; count > 0. */
void verdict_find(struct verdict *verdict, const struct waits_figures *reports, size_t count);

/* "rank late": as in documents and metrics. */
const char *verdict_kind_name(enum verdict_kind kind);

#endif
