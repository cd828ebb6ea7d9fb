/* Progress of some ranks against a fake exchange, one step at a time, in an order drawn from a
 * seed. */
#ifndef TESTS_LIB_WORKER_PROGRESS_FIXTURE_H
#define TESTS_LIB_WORKER_PROGRESS_FIXTURE_H

#include <check.h>

#include "tests/lib/worker/fake_exchange.h"
#include "worker/progress/progress.h"

#define FIXTURE_ARENA_BYTES (4u << 20)
#define CHUNK_BYTES 1024u
#define RANKS 4u
#define GROUPS 6u

/* An assertion for single elements: it is cheap, where ck_assert writes to a pipe each time. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

struct rank_worker {
    struct arena arena, daemon_view;
    int fd;
    struct progress progress;
    struct progress_group groups[GROUPS];
    uint64_t next_offset;
    struct progress_copy copy;
    bool copying;
};

struct progress_fixture {
    struct rank_worker workers[RANKS];
    uint32_t rank_count;
    struct fake_exchange *exchange;
    uint64_t random;
};

struct rank_request {
    struct request request; /* first */
    uint32_t rank;
    int64_t *send, *recv;
};

/* Below `below`, from the seed. */
uint64_t ranks_draw(struct progress_fixture *fixture, uint64_t below);

/* slots: shared staging slots of each rank. */
void ranks_open(struct progress_fixture *fixture, uint32_t ranks, uint32_t slots, uint64_t seed);
void ranks_close(struct progress_fixture *fixture);
/* Group `number` on all ranks, its shards on one or two servers. */
void ranks_group(struct progress_fixture *fixture, uint32_t number, uint32_t servers);
/* Until nothing moves any more. */
void ranks_run(struct progress_fixture *fixture);

/* Arena memory: its offset. */
uint64_t ranks_memory(struct rank_worker *worker, uint64_t bytes);
/* One thing for one rank: make its copy, or take the next step. False: nothing to do. */
bool ranks_step(struct rank_worker *worker);

/* Start a collective that travels whole, or this rank's part of one in blocks. */
struct rank_request *ranks_submit(struct progress_fixture *fixture, uint32_t rank, uint32_t group,
                                  struct request_ask ask);
struct rank_request *ranks_submit_blocks(struct progress_fixture *fixture, uint32_t rank,
                                         uint32_t group, const struct request_ask *whole,
                                         const struct request_ask *blocks, uint32_t block_count);
/* How many are complete; all must have this result. They are freed. */
uint32_t ranks_free_completed(struct rank_worker *worker, int result);

#endif
