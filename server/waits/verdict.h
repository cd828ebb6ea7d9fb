/* A verdict on the accounts of a job's daemons: whom the job waits for, why, and how long a step
 * would take without that.
 *
 *   a rank is late      its node's other ranks had come, and its node's own part was all that its
 *                       node's shard lacked
 *   a rank drains       it begins in time, and hands its data over, or takes results, slowly
 *   a node's ranks      the node is late, and none of its ranks is later than the others
 *   a link is slow      what a node sends comes late, and it begins before the others
 *   a receiver is slow  the same, and it begins behind them: it has its results late
 *   a server is slow    its sums take longer than those of the other nodes, or it is not run
 *
 * The verdict names the one for which alone the others wait longest. He has to stand out from the
 * next one, or chance may have put him behind the others. The time of a step without him comes from
 * the job's own past, if there is one.
 *
 * Results are not told apart where there are two nodes, or where buffers are so small that not all
 * nodes own a part of them. There only the waits for data count, less the lower median of the
 * others.
 *
 * Pure. Calls server/waits/waits.h.
 */
#ifndef SERVER_WAITS_VERDICT_H
#define SERVER_WAITS_VERDICT_H

#include <stddef.h>

#include "server/waits/finding.h"
#include "server/waits/waits.h"

/* Find the verdict from one report of each daemon, in any order; count > 0. */
void verdict_find(struct verdict *verdict, const struct waits_figures *reports, size_t count);

/* "rank late": as in documents and metrics. */
const char *verdict_kind_name(enum verdict_kind kind);

#endif
