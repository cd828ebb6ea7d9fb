/* Whether what a rank puts into its ring, and what another node contributes, can be: honest ones
 * never get a refusal from here.
 *
 * Layer: may call server/exchange/ground/delivery.h, segments.h and server/exchange/model/ask.h.
 */
#ifndef SERVER_EXCHANGE_GROUND_SUBMISSION_H
#define SERVER_EXCHANGE_GROUND_SUBMISSION_H

#include "server/exchange/ground/delivery.h"
#include "server/exchange/model/model.h"

/* With LAYOUT_MAX_CHUNKS for the chunks of a group, these bound what workers can make the daemon
 * keep, and how much of it one turn of the engine may have to look through: collectives of a group;
 * requests of a rank in all its groups, which are at most as many as entries of the largest ring
 * (worker/progress/progress.h). */
#define SUBMISSION_COLLECTIVES_MAX 65536u
#define SUBMISSION_REQUESTS_MAX 32768u
/* Sends and receives of a rank in all its groups; the library has fewer under way. */
#define SUBMISSION_TRANSFERS_MAX 1024u

/* Each returns 0, or ERR_PROTOCOL with the reason. */

/* Its flags, where its data lies, and how many requests the worker has. The ask is checked. */
int submission_check(const struct exchange_group *group, const struct exchange_worker *worker,
                     const struct arena_submission *submission, const struct wire_ask *ask,
                     struct error *error);
/* A collective has the rank's next number; its blocks have the same, and come in their order before
 * the next collective. */
int submission_check_order(const struct exchange_group *group, const struct local_rank *rank,
                           uint64_t sequence, const struct wire_ask *ask, struct error *error);
int submission_check_transfers(const struct exchange_worker *worker, struct error *error);
/* Whether a rank that hands the piece over can have so much under way. */
int submission_check_room(const struct exchange_worker *worker, const struct piece *piece,
                          struct error *error);

/* A CONTRIBUTION or DISAGREE of the node with this index, whose header has been decoded. */
int submission_check_contribution(const struct exchange_group *group, uint32_t node_index,
                                  const struct wire_header *header, struct error *error);

#endif
