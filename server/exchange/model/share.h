/* Turns of users. Groups that are to be pumped wait in a list of the user who owns their job, and
 * users take turns: however many groups one user has, a group of another user waits for one of them
 * only.
 *
 * Layer: calls nothing else of the exchange.
 */
#ifndef SERVER_EXCHANGE_MODEL_SHARE_H
#define SERVER_EXCHANGE_MODEL_SHARE_H

#include "server/exchange/model/model.h"

/* The jobs of one user on this node. */
struct share {
    struct share *next, *prev; /* of the exchange */
    uint32_t user;
    uint32_t jobs;
    uint64_t kept_bytes;                   /* what their requests take, chunks and all */
    struct exchange_group *dirty;          /* oldest first */
    struct share *next_dirty, *prev_dirty; /* while there are such; whose turn is next, first */
};

/* One job more of the user. NULL: no memory. */
struct share *share_join(struct exchange *exchange, uint32_t user);
/* None of the job's groups is dirty. */
void share_leave(struct exchange *exchange, struct share *share);

/* A request of the group, or a chunk of one, takes so much memory of the daemon; no more. */
void share_keep(struct exchange_group *group, uint64_t bytes);
void share_let_go(struct exchange_group *group, uint64_t bytes);
/* Whether the user may have so much more: 0, ERR_MEMORY. */
int share_check(const struct exchange_group *group, uint64_t bytes, struct error *error);

/* Memory of the pool, to be asked for as well: half of it at most. `any`: where the user has none
 * it may be all, for any one group of the roster is to have room. ERR_MEMORY. */
int share_promise(struct exchange *exchange, const struct share *share, uint64_t bytes, bool any,
                  struct error *error);
void share_return(struct exchange *exchange, const struct share *share, uint64_t bytes);

/* Put the group on the list of those that exchange_run pumps, or take it off. */
void group_mark_dirty(struct exchange_group *group);
void group_unmark_dirty(struct exchange_group *group);
/* Take off the one whose turn it is; NULL: there is none. */
struct exchange_group *share_take_group(struct exchange *exchange);

#endif
