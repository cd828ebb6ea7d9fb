/* The daemon's side of some arenas, done naively and in one thread: what the library's tests reduce
 * with. All ranks are on one node. The order in which chunks complete is drawn from a seed. */
#ifndef TESTS_LIB_WORKER_FAKE_EXCHANGE_H
#define TESTS_LIB_WORKER_FAKE_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/format/arena.h"
#include "common/format/layout.h"

#define FAKE_RANKS_MAX 8
#define FAKE_GROUPS_MAX 64
#define FAKE_SERVERS_MAX 1024

struct fake_exchange;

struct fake_exchange_io {
    void *context;
    /* The rank sleeps: its completion doorbell is to be rung. May be NULL. */
    void (*ring)(void *context, uint32_t rank);
    /* The ranks of a collective disagree. May be NULL: then the test fails. */
    void (*disagree)(void *context, uint32_t group, uint64_t sequence);
};

struct fake_exchange *fake_exchange_create(uint64_t seed, const struct fake_exchange_io *io);
void fake_exchange_destroy(struct fake_exchange *exchange);

/* Attach a rank. The arena's view is copied; unmapping it stays the caller's, after detach.
 * Collectives in which a detached rank takes part do not complete any more; the others go on with
 * the rest. */
void fake_exchange_attach(struct fake_exchange *exchange, uint32_t rank, const struct arena *arena);
void fake_exchange_detach(struct fake_exchange *exchange, uint32_t rank);

/* weights of the rule are copied. */
void fake_exchange_open_group(struct fake_exchange *exchange, uint32_t group, const uint32_t *ranks,
                              uint32_t rank_count, const struct layout_rule *rule);
/* Nothing of the group completes any more. */
void fake_exchange_fail_group(struct fake_exchange *exchange, uint32_t group);

/* Read submissions, complete what can be, some of it perhaps later. True: call again. */
bool fake_exchange_step(struct fake_exchange *exchange);
/* While held, submissions are read and nothing completes. */
void fake_exchange_hold(struct fake_exchange *exchange, bool hold);

/* For tests of sleeping: announce sleep in all arenas; false: something has come after all. */
bool fake_exchange_prepare_sleep(struct fake_exchange *exchange);
void fake_exchange_cancel_sleep(struct fake_exchange *exchange);

/* The next generation: no group is open, no rank attached. */
void fake_exchange_restart(struct fake_exchange *exchange);
/* From now on all ranks are told what is stable as soon as it is. */
void fake_exchange_keep(struct fake_exchange *exchange);
/* Tell a rank what is stable, true or not. */
void fake_exchange_tell_stable(struct fake_exchange *exchange, uint32_t rank, uint32_t group,
                               uint64_t sequence);
/* Collectives completed, and chunks handed over through staging slots. */
uint64_t fake_exchange_completed(const struct fake_exchange *exchange);
uint64_t fake_exchange_staged_chunks(const struct fake_exchange *exchange);

#endif
