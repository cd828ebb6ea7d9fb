/* Feeding the job's account of whom it waits for (server/waits/waits.h) with what ranks of this
 * node do; the account itself is part of the job and of its workers.
 *
 * Layer: may call server/exchange/model/.
 */
#ifndef SERVER_EXCHANGE_GROUND_WAITING_H
#define SERVER_EXCHANGE_GROUND_WAITING_H

#include "server/exchange/model/model.h"
#include "server/waits/waits.h"

/* A rank has submitted the collective, or handed over the last of its part. */
void waiting_rank_moved(struct collective *collective);
/* All ranks here have submitted it. */
void waiting_began(struct collective *collective);
/* The collective is about to be freed: nobody waits for ranks in it any more. */
void waiting_collective_over(struct collective *collective);

/* The owner with this index, another node, has a chunk of it; its result has come, or the chunk is
 * freed. */
void waiting_chunk_begin(const struct collective *collective, uint32_t owner);
void waiting_chunk_over(const struct collective *collective, uint32_t owner);

/* Every 100 ms or so. */
void waiting_tick(struct exchange_job *job);
void waiting_tell(const struct exchange_job *job, struct waits_figures *figures);

#endif
