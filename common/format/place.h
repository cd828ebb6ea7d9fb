/* The place: memory in which the ranks of a group on one node meet for collectives without their
 * daemon (worker/meeting). The daemon makes it, maps it, and reads these counts there now and
 * then, so that its status tells of what has met; the rest of the memory is the ranks' own. They
 * may write anything: a count is shown, and used for nothing else.
 *
 * Calls nothing.
 */
#ifndef COMMON_FORMAT_PLACE_H
#define COMMON_FORMAT_PLACE_H

#include <stdatomic.h>
#include <stdint.h>

/* Where the counts lie; what is smaller has none. */
#define PLACE_COUNTS_OFFSET 64u

/* Both only grow; 0 at first. */
struct place_counts {
    _Atomic uint64_t collectives; /* that have met */
    _Atomic uint64_t bytes;       /* as the daemon counts those of submissions, of all ranks */
};

#endif
