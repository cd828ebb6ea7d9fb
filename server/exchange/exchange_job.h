/* Jobs, their groups and workers: opening, failing, closing, and when their memory may go.
 *
 * Layer: may call exchange_group.h, exchange_trace.h and all below.
 */
#ifndef SERVER_EXCHANGE_EXCHANGE_JOB_H
#define SERVER_EXCHANGE_EXCHANGE_JOB_H

#include "server/commands/engine_event.h"
#include "server/exchange/model/port.h"

struct exchange;

/* Open the job and its group 0, of all its ranks. ERR_STATE: it is open; ERR_INVALID: it makes no
 * sense; ERR_MEMORY: also when the pool cannot promise the group's buffers. */
int exchange_job_open(struct exchange *exchange, const struct engine_job *job, struct error *error);
/* The job has failed: nothing of it moves any more. Unknown jobs are ignored, here and below. */
void exchange_job_fail(struct exchange *exchange, uint64_t job);
void exchange_job_close(struct exchange *exchange, uint64_t job);
/* Close all jobs. A job with sends or tasks under way is freed when these have come back. */
void exchange_close_jobs(struct exchange *exchange);

/* Open a further group of the job's ranks. Errors: like exchange_job_open. */
int exchange_group_open(struct exchange *exchange, uint64_t job, uint32_t group,
                        const uint32_t *ranks, uint32_t rank_count, struct error *error);
/* The group has failed elsewhere: stop its collectives here, without an event. A group that has
 * failed or closed gives its ranks the memory in their arenas back, as chunks that are done (their
 * content means nothing): at once where nothing is in flight, else when it ends. */
void exchange_group_stop(struct exchange *exchange, uint64_t job, uint32_t group);
void exchange_group_close(struct exchange *exchange, uint64_t job, uint32_t group);
/* The rank has left the job; it has taken part in so many collectives of the group. */
void exchange_rank_left(struct exchange *exchange, uint64_t job, uint32_t group, uint32_t rank,
                        uint64_t sequences);

/* Take the worker into its job. The caller has set worker->rank and arena, and may use `user` for
 * itself. It is given back with io->release_worker when the job is gone and nothing touches its
 * arena. ERR_STATE: no such job, or rank not of this node, or attached already; the caller keeps
 * it. */
int exchange_attach(struct exchange *exchange, uint64_t job, struct exchange_worker *worker,
                    struct error *error);
/* No further submissions or completions; emits ENGINE_WORKER_DETACHED. */
void exchange_detach(struct exchange *exchange, struct exchange_worker *worker);
/* Return the user who owns the job of an attached worker. */
uint32_t exchange_worker_user(const struct exchange_worker *worker);
struct exchange_worker *exchange_find_worker(struct exchange *exchange, uint64_t job,
                                             uint32_t rank);

/* Figures of the jobs for the status. Up to `room`; returns how many jobs there are. */
uint32_t exchange_job_totals(const struct exchange *exchange, struct engine_job_status *jobs,
                             uint32_t room);

/* A task or send of a group of the job that has failed is back, or one of its groups has failed:
 * free what nothing touches any more. The job may be gone afterwards. */
void exchange_job_settle(struct exchange_job *job);

#endif
