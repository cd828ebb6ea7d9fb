/* The pairing of sends with receives, by number. Sends from one rank of a group to another with one
 * tag are counted on both sides, and so are receives: send number n meets receive number n.
 *
 * A receive from any rank has no number before a sender has been found. The daemon is told how many
 * this rank has received from each, and finds who has sent more. The job's lock is held around all
 * calls. Calls worker/progress and common/format only.
 */
#ifndef WORKER_JOB_PAIRING_H
#define WORKER_JOB_PAIRING_H

#include "worker/job/job.h"

/* The sequence of a send or receive (common/format/wire.h). */
uint64_t pairing_sequence(uint32_t tag, uint32_t number);

/* The counter of sends to the peer, or of receives from it, with the tag; a new one is at 0.
 * ERR_MEMORY. */
int pairing_counter(struct shoal_group *group, uint32_t peer, uint32_t tag, bool receive,
                    struct transfer_counter **counter, struct error *error);

/* How many this rank has received with the tag, from each rank of the group, as u32 to the offset
 * of the arena. */
void pairing_write_numbers(const struct shoal_group *group, uint32_t tag, uint64_t offset);

/* The driver: receives from any rank, for which there is a sender, go on. ERR_PROTOCOL, ERR_MEMORY:
 * the job is to be failed with that. */
int pairing_match(struct shoal_job *job, struct error *error);

#endif
