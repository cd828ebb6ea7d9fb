/* The first agreement of the ranks in a later generation. */
#ifndef WORKER_API_RECONFIGURE_H
#define WORKER_API_RECONFIGURE_H

#include "common/base/error.h"
#include "worker/shoal.h"

/* How many collectives of the old generation every survivor has, into job->settled_collectives. A
 * newcomer takes part, and has none to tell. */
int reconfigure_agree(shoal_job *job, int timeout_ms, struct error *error);

#endif
