/* How much the daemon allows to be under way, and that the library keeps to it. */
#include "worker/progress/progress.h"

#include "common/memory/copy.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/progress_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* Check the group on this rank: no more chunks than its share are submitted, or one request
 * alone. */
static void check_chunk_credit(const struct rank_worker *worker, const struct progress_group *group)
{
    const struct request *request;
    uint64_t chunks = 0;
    uint32_t requests = 0;
    DL_FOREACH(group->requests, request)
    {
        if (request->state != REQUEST_SUBMITTED)
            continue;
        requests++;
        chunks += request->layout.chunks;
    }
    EXPECT(chunks == group->chunks);
    EXPECT(chunks <= worker->progress.chunks_max || requests == 1);
}

START_TEST(test_more_chunks_than_credits)
{
    struct progress_fixture fixture;
    enum { REQUESTS = 40, COUNT = 12 * CHUNK_BYTES / sizeof(int64_t) };
    static int64_t data[2][2][REQUESTS][COUNT];
    ranks_open(&fixture, 2, 4, 19);
    for (uint32_t g = 0; g < 2; g++)
        ranks_group(&fixture, g, 1 + g);
    for (uint32_t rank = 0; rank < 2; rank++) {
        fixture.workers[rank].progress.chunks_max = 8;
        for (uint32_t k = 0; k < 2 * REQUESTS; k++) {
            /* Rank 0 goes through one group after the other, rank 1 changes. */
            uint32_t g = rank ? k % 2 : k / REQUESTS, n = rank ? k / 2 : k % REQUESTS;
            int64_t *place = data[rank][g][n];
            for (int j = 0; j < (int)COUNT; j++)
                place[j] = j + (int64_t)n;
            ranks_submit(&fixture, rank, g,
                         (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                              .dtype = DTYPE_I64,
                                              .count = (n * 7 + 1) % 12 * COUNT / 12 + 5,
                                              .priority = n % 3,
                                              .send = place,
                                              .recv = place});
        }
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct rank_worker *worker = &fixture.workers[rank];
            moved |= ranks_step(worker);
            for (uint32_t g = 0; g < 2; g++)
                check_chunk_credit(worker, &worker->groups[g]);
        }
        moved |= fake_exchange_step(fixture.exchange);
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 2 * REQUESTS);
        for (uint32_t k = 0; k < 2 * REQUESTS; k++)
            for (int j = 0; j < 5; j++)
                EXPECT(data[rank][k % 2][k / 2][j] == 2 * (j + k / 2));
        ck_assert_uint_eq(fixture.workers[rank].groups[0].chunks, 0);
    }
    ranks_close(&fixture);
}
END_TEST

/* Each ask alone is within what the daemon allows a group, both are not: the second waits. */
START_TEST(test_daemons_limit_on_chunks_is_kept)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 0, 5);
    struct rank_worker *worker = &fixture.workers[0];
    for (uint32_t share = 1; share <= 2; share++) {
        progress_share(&worker->progress, share, 2);
        ranks_group(&fixture, share, 1);
        struct request_ask ask = {.kind = COLLECTIVE_ALL_REDUCE,
                                  .dtype = DTYPE_U8,
                                  .count = (uint64_t)LAYOUT_MAX_CHUNKS / share * CHUNK_BYTES,
                                  .send = &fixture, /* not looked at yet */
                                  .recv = &fixture};
        struct rank_request *first = ranks_submit(&fixture, 0, share, ask);
        ask.count = 1;
        struct rank_request *second = ranks_submit(&fixture, 0, share, ask);
        ck_assert_int_eq(first->request.state, REQUEST_SUBMITTED);
        ck_assert_int_eq(second->request.state, REQUEST_QUEUED);
        struct error error;
        error_set(&error, ERR_LOST, "gone");
        progress_fail_group(&worker->progress, &worker->groups[share], &error, 1);
        ck_assert_uint_eq(worker->groups[share].chunks, 0);
        ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), 2);
    }
    ranks_close(&fixture);
}
END_TEST

/* Whether the copies into recv, and no others, pass the cache by, as they all should or not. */
static void run_looking_at_copies(struct progress_fixture *fixture, const uint8_t *recv,
                                  uint64_t bytes, bool expected)
{
    struct rank_worker *worker = &fixture->workers[0];
    for (bool moved = true; moved;) {
        moved = ranks_step(worker);
        const uint8_t *to = worker->copy.to;
        bool out = to >= recv && to < recv + bytes;
        if (worker->copying)
            EXPECT(worker->copy.large_result == (out && expected));
        moved |= fake_exchange_step(fixture->exchange);
    }
    ck_assert_uint_eq(ranks_free_completed(worker, 0), 1);
}

START_TEST(test_large_results_pass_the_cache_by)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 8, 5);
    ranks_group(&fixture, 0, 1);
    const uint64_t sizes[] = {COPY_PAST_CACHE_BYTES - 1, COPY_PAST_CACHE_BYTES};
    uint8_t *send = malloc(COPY_PAST_CACHE_BYTES), *recv = malloc(COPY_PAST_CACHE_BYTES);
    memset(send, 3, COPY_PAST_CACHE_BYTES);
    for (unsigned i = 0; i < 2; i++) {
        memset(recv, 0, COPY_PAST_CACHE_BYTES);
        ranks_submit(&fixture, 0, 0,
                     (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                          .dtype = DTYPE_U8,
                                          .count = sizes[i],
                                          .send = send,
                                          .recv = recv});
        run_looking_at_copies(&fixture, recv, sizes[i], i == 1);
        ck_assert_int_eq(memcmp(send, recv, sizes[i]), 0);
    }
    free(send);
    free(recv);
    ranks_close(&fixture);
}
END_TEST

/* Ranks of one node share what may be staged; where there are more nodes, all slots are used. */
START_TEST(test_staged_bytes_are_shared_on_one_node)
{
    enum { SLOTS = 16, CHUNKS = 40, SHARE = PROGRESS_NODE_STAGED_BYTES / (3 * CHUNK_BYTES) };
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        struct progress_fixture fixture;
        ranks_open(&fixture, 1, SLOTS, 5);
        progress_share(&fixture.workers[0].progress, SHARE, nodes);
        ranks_group(&fixture, 0, 1);
        static uint8_t data[CHUNKS * CHUNK_BYTES];
        memset(data, 1, sizeof(data));
        struct rank_request *made = ranks_submit(&fixture, 0, 0,
                                                 (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                                      .dtype = DTYPE_U8,
                                                                      .count = sizeof(data),
                                                                      .send = data,
                                                                      .recv = data});
        while (ranks_step(&fixture.workers[0]))
            continue;
        /* And the group's own. */
        ck_assert_uint_eq(made->request.chunks_given, (nodes == 1 ? 3 : SLOTS) + 1);
        ranks_run(&fixture);
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[0], 0), 1);
        ranks_close(&fixture);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress_credit");
    TCase *cases = tcase_create("progress_credit");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_more_chunks_than_credits);
    tcase_add_test(cases, test_daemons_limit_on_chunks_is_kept);
    tcase_add_test(cases, test_large_results_pass_the_cache_by);
    tcase_add_test(cases, test_staged_bytes_are_shared_on_one_node);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
