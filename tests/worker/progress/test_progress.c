#include "worker/progress/progress.h"

#include "tests/lib/suite.h"
#include "tests/lib/worker/progress_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

static const uint32_t two_weights[2] = {1, 2};

/* --- one request at a time ----------------------------------------------------------------- */

static void check_all_reduce(uint32_t ranks, uint32_t slots, uint32_t servers, uint64_t count,
                             uint64_t seed)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, ranks, slots, seed);
    ranks_group(&fixture, 0, servers);
    int64_t *send[RANKS], *recv[RANKS];
    for (uint32_t i = 0; i < ranks; i++) {
        send[i] = calloc(count + 1, sizeof(int64_t));
        recv[i] = seed % 2 ? send[i] : calloc(count + 1, sizeof(int64_t));
        for (uint64_t j = 0; j < count; j++)
            send[i][j] = (int64_t)(j * (i + 1));
        send[i][count] = recv[i][count] = -77;
        ranks_submit(&fixture, i, 0,
                     (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                          .dtype = DTYPE_I64,
                                          .count = count,
                                          .send = send[i],
                                          .recv = recv[i]});
    }
    ranks_run(&fixture);
    for (uint32_t i = 0; i < ranks; i++) {
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[i], 0), 1);
        for (uint64_t j = 0; j < count; j++)
            EXPECT(recv[i][j] == ((int64_t)(j * ranks * (ranks + 1) / 2)));
        ck_assert_int_eq(recv[i][count], -77);
        ck_assert(!progress_has_work(&fixture.workers[i].progress));
        if (recv[i] != send[i])
            free(recv[i]);
        free(send[i]);
    }
    ck_assert_uint_eq(fake_exchange_completed(fixture.exchange), 1);
    ranks_close(&fixture);
}

START_TEST(test_all_reduce_of_many_sizes)
{
    const uint64_t counts[] = {0, 1, 2, 7, 8, 9, 63, 128, 129, 1000, 9001, 30011};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (uint32_t slots = 0; slots <= 8; slots += 4)
            for (uint32_t servers = 1; servers <= 2; servers++)
                check_all_reduce(1 + (uint32_t)i % RANKS, slots, servers, counts[i], 5 * i + slots);
}
END_TEST

START_TEST(test_reduce_broadcast_and_barrier)
{
    for (uint32_t root = 0; root < 3; root++) {
        struct progress_fixture fixture;
        ranks_open(&fixture, 3, 2, root + 40);
        ranks_group(&fixture, 0, 2);
        enum { COUNT = 3000 };
        static int64_t send[3][COUNT], recv[3][COUNT], data[3][COUNT];
        for (uint32_t i = 0; i < 3; i++) {
            for (int j = 0; j < COUNT; j++) {
                send[i][j] = j + i;
                recv[i][j] = -5;
                data[i][j] = i == root ? j * 3 : -6;
            }
            ranks_submit(&fixture, i, 0,
                         (struct request_ask){.kind = COLLECTIVE_REDUCE,
                                              .dtype = DTYPE_I64,
                                              .op = REDUCE_MAX,
                                              .root = root,
                                              .count = COUNT,
                                              .send = send[i],
                                              .recv = i == root ? recv[i] : NULL});
            ranks_submit(&fixture, i, 0, (struct request_ask){.kind = COLLECTIVE_BARRIER});
            ranks_submit(&fixture, i, 0,
                         (struct request_ask){.kind = COLLECTIVE_BROADCAST,
                                              .dtype = DTYPE_I64,
                                              .root = root,
                                              .count = COUNT,
                                              .send = data[i],
                                              .recv = data[i]});
        }
        ranks_run(&fixture);
        for (uint32_t i = 0; i < 3; i++) {
            ck_assert_uint_eq(ranks_free_completed(&fixture.workers[i], 0), 3);
            for (int j = 0; j < COUNT; j++) {
                EXPECT(send[i][j] == ((int64_t)(j + i)));
                EXPECT(recv[i][j] == (i == root ? j + 2 : -5));
                EXPECT(data[i][j] == (j * 3));
            }
        }
        ranks_close(&fixture);
    }
}
END_TEST

START_TEST(test_arena_memory_is_not_copied)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 2, 4, 3);
    ranks_group(&fixture, 0, 2);
    enum { COUNT = 5000 };
    int64_t *data[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct rank_worker *worker = &fixture.workers[i];
        data[i] =
            (int64_t *)(void *)(worker->arena.base + ranks_memory(worker, COUNT * sizeof(int64_t)));
        for (int j = 0; j < COUNT; j++)
            data[i][j] = j;
        struct rank_request *made = ranks_submit(&fixture, i, 0,
                                                 (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                                      .dtype = DTYPE_I64,
                                                                      .count = COUNT,
                                                                      .send = data[i],
                                                                      .recv = data[i]});
        ck_assert(!made->request.staged);
    }
    ranks_run(&fixture);
    ck_assert_uint_eq(fake_exchange_staged_chunks(fixture.exchange), 0);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[i], 0), 1);
        for (int j = 0; j < COUNT; j++)
            EXPECT(data[i][j] == (2 * j));
    }
    ranks_close(&fixture);
}
END_TEST

START_TEST(test_small_request_is_handed_over_by_the_caller)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 4, 3);
    ranks_group(&fixture, 0, 1);
    int64_t data[16] = {1, 2, 3};
    struct rank_worker *worker = &fixture.workers[0];
    struct rank_request *small = ranks_submit(&fixture, 0, 0,
                                              (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                                   .dtype = DTYPE_I64,
                                                                   .count = 16,
                                                                   .send = data,
                                                                   .recv = data});
    ck_assert_int_eq(small->request.state, REQUEST_SUBMITTED);
    ck_assert(!request_has_chunk(&small->request));
    ck_assert(!progress_has_work(&worker->progress));
    /* Not when something is ahead: it takes its turn then. */
    static int64_t large[1 << 16];
    struct rank_request *first = ranks_submit(&fixture, 0, 0,
                                              (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                                   .dtype = DTYPE_I64,
                                                                   .count = 1 << 16,
                                                                   .send = large,
                                                                   .recv = large});
    ck_assert(request_has_chunk(&first->request));
    struct rank_request *second = ranks_submit(&fixture, 0, 0,
                                               (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                                    .dtype = DTYPE_I64,
                                                                    .count = 16,
                                                                    .send = data,
                                                                    .recv = data});
    ck_assert(request_has_chunk(&second->request));
    ranks_run(&fixture);
    ck_assert_uint_eq(ranks_free_completed(worker, 0), 3);
    ranks_close(&fixture);
}
END_TEST

/* --- many at once -------------------------------------------------------------------------- */

/* Ranks start collectives of several groups in orders and priorities of their own. */
static void check_many(uint64_t seed, uint32_t slots)
{
    struct progress_fixture fixture;
    enum { EACH = 12 };
    ranks_open(&fixture, RANKS, slots, seed);
    for (uint32_t g = 0; g < GROUPS; g++)
        ranks_group(&fixture, g, 1 + g % 2);
    struct rank_request *made[RANKS][GROUPS][EACH];
    uint64_t counts[GROUPS][EACH];
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t n = 0; n < EACH; n++)
            counts[g][n] = ranks_draw(&fixture, 1500);
    uint32_t started[RANKS][GROUPS] = {0};
    for (uint32_t left = RANKS * GROUPS * EACH; left > 0;) {
        uint32_t rank = (uint32_t)ranks_draw(&fixture, RANKS),
                 g = (uint32_t)ranks_draw(&fixture, GROUPS);
        if (rank % 2) /* these hurry through one group after the other */
            for (g = rank == 1 ? 0 : GROUPS - 1; started[rank][g] == EACH;) {
                g = rank == 1 ? g + 1 : g - 1;
                if (g >= GROUPS)
                    break;
            }
        if (g >= GROUPS || started[rank][g] == EACH)
            continue;
        uint32_t n = started[rank][g]++;
        uint64_t count = counts[g][n];
        int64_t *send = calloc(count + 1, sizeof(*send)), *recv = calloc(count + 1, sizeof(*recv));
        for (uint64_t j = 0; j < count; j++)
            send[j] = (int64_t)(j ^ (g * 100 + n)) + rank;
        made[rank][g][n] = ranks_submit(&fixture, rank, g,
                                        (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                             .dtype = DTYPE_I64,
                                                             .count = count,
                                                             .priority = (g * 7 + n * 5) % 4,
                                                             .send = send,
                                                             .recv = recv});
        made[rank][g][n]->send = send;
        made[rank][g][n]->recv = recv;
        left--;
        if (ranks_draw(&fixture, 3) == 0)
            for (uint64_t k = ranks_draw(&fixture, 6); k > 0; k--)
                ranks_step(&fixture.workers[rank]);
        if (ranks_draw(&fixture, 3) == 0)
            fake_exchange_step(fixture.exchange);
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t g = 0; g < GROUPS; g++) {
            for (uint32_t n = 0; n < EACH; n++) {
                struct rank_request *request = made[rank][g][n];
                ck_assert_msg(request->request.state == REQUEST_COMPLETE,
                              "seed %llu: rank %u, group %u, number %u hangs",
                              (unsigned long long)seed, rank, g, n);
                for (uint64_t j = 0; j < counts[g][n]; j++)
                    EXPECT(request->recv[j] == ((int64_t)(RANKS * (j ^ (g * 100 + n)) + 6)));
                free(request->send);
                free(request->recv);
            }
        }
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), GROUPS * EACH);
        ck_assert(!progress_has_work(&fixture.workers[rank].progress));
    }
    ranks_close(&fixture);
}

START_TEST(test_groups_in_any_order_never_block_each_other)
{
    for (uint64_t seed = 1; seed <= 12; seed++)
        check_many(seed, (uint32_t)(seed % 4));
}
END_TEST

START_TEST(test_more_requests_than_credits)
{
    struct progress_fixture fixture;
    enum { COUNT = 3 * PROGRESS_RING_ENTRIES_LEAST };
    ranks_open(&fixture, 2, 2, 77);
    ranks_group(&fixture, 0, 1);
    ranks_group(&fixture, 1, 1);
    static int64_t data[2][2][COUNT];
    /* Rank 0 fills its credits with group 0, rank 1 with group 1. */
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t turn = 0; turn < 2; turn++) {
            uint32_t g = rank ^ turn;
            for (uint32_t n = 0; n < COUNT; n++) {
                data[rank][g][n] = n + rank;
                ranks_submit(&fixture, rank, g,
                             (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                  .dtype = DTYPE_I64,
                                                  .count = 1,
                                                  .send = &data[rank][g][n],
                                                  .recv = &data[rank][g][n]});
            }
        }
        ck_assert_uint_le(fixture.workers[rank].progress.submitted, PROGRESS_SUBMITTED_MAX + 2);
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 2 * COUNT);
        for (uint32_t g = 0; g < 2; g++)
            for (int64_t n = 0; n < COUNT; n++)
                EXPECT(data[rank][g][n] == (2 * n + 1));
    }
    ranks_close(&fixture);
}
END_TEST

START_TEST(test_smaller_priority_goes_first)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 4, 9);
    ranks_group(&fixture, 0, 1);
    static int64_t data[4][1024];
    const uint32_t priorities[4] = {5, 7, 1, 5};
    struct request *expected[4];
    const int places[4] = {1, 3, 0, 2};
    for (int i = 0; i < 4; i++) {
        /* Too large to be handed over at once. */
        static int64_t large[4][1 << 14];
        struct rank_request *made = ranks_submit(&fixture, 0, 0,
                                                 (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                                      .dtype = DTYPE_I64,
                                                                      .priority = priorities[i],
                                                                      .count = 1 << 14,
                                                                      .send = large[i],
                                                                      .recv = large[i]});
        expected[places[i]] = &made->request;
    }
    (void)data;
    struct request *request;
    int i = 0;
    DL_FOREACH2(fixture.workers[0].progress.to_stage, request, queue_next)
    {
        ck_assert_ptr_eq(request, expected[i]);
        i++;
    }
    ck_assert_int_eq(i, 4);
    ranks_run(&fixture);
    ck_assert_uint_eq(ranks_free_completed(&fixture.workers[0], 0), 4);
    ranks_close(&fixture);
}
END_TEST

static uint32_t slots_of(const struct progress_fixture *fixture, const struct request *request)
{
    const struct staging *staging = &fixture->workers[0].progress.staging;
    uint32_t count = 0;
    for (uint32_t i = 0; i < staging->slot_count; i++)
        count += staging->slots[i].state != STAGING_FREE && staging->slots[i].request == request;
    return count;
}

/* The daemon gives nothing back: another rank has not begun the request that goes first. Requests
 * before it keep half of the slots; the oldest of them that has chunks left keeps all of that
 * half. */
START_TEST(test_older_ones_keep_slots)
{
    enum { SLOTS = 8, LARGE = 1 << 14, SHORT = 2 * CHUNK_BYTES / 8 };
    static int64_t data[3][LARGE];
    const uint32_t priorities[3] = {7, 5, 1};
    struct request *requests[3];
    struct progress_fixture fixture;
    for (int many = 0; many < 2; many++) {
        ranks_open(&fixture, 1, SLOTS, 9);
        ranks_group(&fixture, 0, 1);
        fake_exchange_hold(fixture.exchange, true);
        for (int i = 0; i < 3; i++)
            requests[i] = &ranks_submit(&fixture, 0, 0,
                                        (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                             .dtype = DTYPE_I64,
                                                             .priority = priorities[i],
                                                             .count = i || many ? LARGE : SHORT,
                                                             .send = data[i],
                                                             .recv = data[i]})
                               ->request;
        ranks_run(&fixture);
        ck_assert_uint_eq(slots_of(&fixture, requests[2]), SLOTS / 2);
        ck_assert_uint_eq(slots_of(&fixture, requests[1]), many ? 0 : SLOTS / 2 - 2);
        ck_assert_uint_eq(slots_of(&fixture, requests[0]), many ? SLOTS / 2 : 2);
        fake_exchange_hold(fixture.exchange, false);
        ranks_run(&fixture);
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[0], 0), 3);
        ranks_close(&fixture);
    }
}
END_TEST

/* --- failure ------------------------------------------------------------------------------- */

static void submit_large(struct progress_fixture *fixture, uint32_t rank, uint32_t group,
                         int64_t *data)
{
    ranks_submit(fixture, rank, group,
                 (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                      .dtype = DTYPE_I64,
                                      .count = 4096,
                                      .send = data,
                                      .recv = data});
}

START_TEST(test_failed_group_leaves_the_others_alone)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct progress_fixture fixture;
        ranks_open(&fixture, 2, 3, seed);
        ranks_group(&fixture, 0, 1);
        ranks_group(&fixture, 1, 1);
        static int64_t data[2][2][4096];
        memset(data, 0, sizeof(data));
        for (uint32_t rank = 0; rank < 2; rank++)
            for (uint32_t g = 0; g < 2; g++)
                submit_large(&fixture, rank, g, data[rank][g]);
        for (uint64_t n = ranks_draw(&fixture, 40); n > 0; n--) {
            ranks_step(&fixture.workers[n % 2]);
            fake_exchange_step(fixture.exchange);
        }
        fake_exchange_fail_group(fixture.exchange, 0);
        struct error error;
        error_set(&error, ERR_LOST, "rank 7 on node b is gone");
        uint32_t completed[2];
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct rank_worker *worker = &fixture.workers[rank];
            if (worker->copying) /* the driver fails nothing while it copies */
                ranks_step(worker);
            progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
            ck_assert_ptr_null(worker->groups[0].requests);
        }
        ranks_run(&fixture);
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct rank_worker *worker = &fixture.workers[rank];
            completed[rank] = 0;
            struct request *request;
            while ((request = progress_next_completed(&worker->progress))) {
                if (request->group == &worker->groups[1])
                    ck_assert_int_eq(request->result, 0);
                else if (request->result != 0) {
                    ck_assert_int_eq(request->result, ERR_LOST);
                    ck_assert_str_eq(request->error_text, error.text);
                }
                request_clear(request);
                free(request);
                completed[rank]++;
            }
            ck_assert_uint_eq(completed[rank], 2);
            struct request later;
            struct request_ask ask = {.kind = COLLECTIVE_BARRIER};
            struct error text;
            ck_assert_int_eq(progress_submit(&worker->progress, &worker->groups[0], &ask, NULL, 0,
                                             rank, &later, &text),
                             ERR_LOST);
            ck_assert_str_eq(text.text, error.text);
            progress_group_remove(&worker->progress, &worker->groups[0]);
        }
        ranks_close(&fixture);
    }
}
END_TEST

START_TEST(test_too_large_is_refused_with_the_limit)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 8, 5);
    ranks_group(&fixture, 0, 1);
    struct rank_worker *worker = &fixture.workers[0];
    struct request_ask ask = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = DTYPE_U8,
                              .count = (uint64_t)LAYOUT_MAX_CHUNKS * CHUNK_BYTES + 1,
                              .send = &fixture,
                              .recv = &fixture};
    struct request request;
    struct error error;
    ck_assert_int_eq(
        progress_submit(&worker->progress, &worker->groups[0], &ask, NULL, 0, 0, &request, &error),
        ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "at most 4194304 chunks of up to 1024 bytes"));
    ranks_close(&fixture);
}
END_TEST

START_TEST(test_failed_job_fails_everything)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 2, 4);
    ranks_group(&fixture, 0, 1);
    ranks_group(&fixture, 1, 1);
    static int64_t data[4][4096];
    fake_exchange_hold(fixture.exchange, true);
    for (int i = 0; i < 4; i++)
        submit_large(&fixture, 0, (uint32_t)i % 2, data[i]);
    ranks_run(&fixture);
    struct error error, second;
    error_set(&error, ERR_DISCONNECTED, "the daemon went away");
    error_set(&second, ERR_STATE, "something else");
    struct rank_worker *worker = &fixture.workers[0];
    progress_fail(&worker->progress, &error, 1);
    progress_fail(&worker->progress, &second, 1);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_DISCONNECTED), 4);
    ck_assert(!progress_has_work(&worker->progress));
    struct request later;
    struct request_ask ask = {.kind = COLLECTIVE_BARRIER};
    ck_assert_int_eq(
        progress_submit(&worker->progress, &worker->groups[1], &ask, NULL, 0, 0, &later, NULL),
        ERR_DISCONNECTED);
    struct progress_group group = {.number = 9, .rule = worker->groups[0].rule};
    ck_assert_int_eq(
        progress_group_add(&worker->progress, &group, ranks_memory(worker, CHUNK_BYTES), NULL), 0);
    ck_assert(group.failed);
    ranks_close(&fixture);
}
END_TEST

START_TEST(test_abandoned_slots_come_back)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 2, 4);
    ranks_group(&fixture, 0, 1);
    static int64_t data[4096];
    fake_exchange_hold(fixture.exchange, true);
    submit_large(&fixture, 0, 0, data);
    ranks_run(&fixture);
    struct rank_worker *worker = &fixture.workers[0];
    ck_assert_ptr_null(worker->progress.staging.free_slots);
    struct error error;
    error_set(&error, ERR_LOST, "gone");
    progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), 1);
    ck_assert_ptr_null(worker->progress.staging.free_slots);
    /* The daemon finishes after all. */
    fake_exchange_hold(fixture.exchange, false);
    ranks_run(&fixture);
    ck_assert_ptr_nonnull(worker->progress.staging.free_slots);
    ck_assert_int_eq(worker->groups[0].own.state, STAGING_FREE);
    ck_assert(!worker->progress.failed);
    ck_assert(progress_group_remove(&worker->progress, &worker->groups[0]));
    ranks_close(&fixture);
}
END_TEST

/* The group is gone when the daemon reports the chunk in the slot that was the group's own. */
START_TEST(test_orphaned_slot_comes_back)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 0, 4);
    ranks_group(&fixture, 0, 1);
    ranks_group(&fixture, 1, 1);
    static int64_t data[2][4096];
    fake_exchange_hold(fixture.exchange, true);
    submit_large(&fixture, 0, 0, data[0]);
    submit_large(&fixture, 0, 1, data[1]);
    ranks_run(&fixture);
    struct rank_worker *worker = &fixture.workers[0];
    uint64_t offset = worker->groups[0].own.offset, freed = 0;
    struct error error;
    error_set(&error, ERR_MISMATCH, "the ranks disagree");
    progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_MISMATCH), 1);
    ck_assert(!progress_group_remove(&worker->progress, &worker->groups[0]));
    memset(&worker->groups[0], 0xee, sizeof(worker->groups[0])); /* freed, as it may be */
    ck_assert(!staging_next_free(&worker->progress.staging, &freed));
    fake_exchange_hold(fixture.exchange, false);
    ranks_run(&fixture);
    ck_assert_uint_eq(ranks_free_completed(worker, 0), 1);
    ck_assert(!worker->progress.failed);
    ck_assert(staging_next_free(&worker->progress.staging, &freed));
    ck_assert_uint_eq(freed, offset);
    ck_assert(!staging_next_free(&worker->progress.staging, &freed));
    ranks_close(&fixture);
}
END_TEST

/* Completions that make no sense end the job, and nothing worse. */
START_TEST(test_nonsense_from_the_daemon)
{
    const struct arena_completion nonsense[] = {
        {.type = 0},
        {.type = 77, .request = 0},
        {.type = ARENA_REQUEST_DONE, .request = 5ull << 40},
        {.type = ARENA_REQUEST_DONE, .request = 0}, /* before its chunks */
        {.type = ARENA_CHUNK_DONE, .request = 0, .chunk = 0, .offset = 12345},
        {.type = ARENA_CHUNK_DONE, .request = 0, .chunk = 0, .offset = UINT64_MAX},
        {.type = ARENA_CHUNK_DONE, .request = 0, .chunk = 9, .offset = 1},
        {.type = ARENA_CHUNK_DONE, .request = 1, .chunk = 0, .offset = 1},
        {.type = ARENA_STABLE, .group = 0, .sequence = 2}, /* one collective was submitted */
    };
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        struct progress_fixture fixture;
        ranks_open(&fixture, 1, 2, 4);
        ranks_group(&fixture, 0, 1);
        static int64_t data[4096];
        fake_exchange_hold(fixture.exchange, true);
        submit_large(&fixture, 0, 0, data);
        ranks_run(&fixture);
        struct rank_worker *worker = &fixture.workers[0];
        struct arena_completion completion = nonsense[i];
        if (completion.offset == 1)
            completion.offset = worker->progress.staging.first_offset;
        struct arena daemon = worker->daemon_view;
        ck_assert(arena_push_completion(&daemon, &completion));
        while (ranks_step(worker))
            ;
        ck_assert_uint_eq(ranks_free_completed(worker, ERR_PROTOCOL), 1);
        ck_assert(worker->progress.failed);
        ranks_close(&fixture);
    }
}
END_TEST

/* News of what is stable disturbs nothing, that of a group which is gone least of all. */
START_TEST(test_news_of_what_is_stable)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 2, 4);
    ranks_group(&fixture, 0, 1);
    static int64_t data[4096];
    submit_large(&fixture, 0, 0, data);
    ranks_run(&fixture);
    struct rank_worker *worker = &fixture.workers[0];
    fake_exchange_tell_stable(fixture.exchange, 0, 0, 0);
    fake_exchange_tell_stable(fixture.exchange, 0, 0, 1);
    fake_exchange_tell_stable(fixture.exchange, 0, 5, 1000);
    ranks_run(&fixture);
    ck_assert(!worker->progress.failed);
    ck_assert_uint_eq(ranks_free_completed(worker, 0), 1);
    ranks_close(&fixture);
}
END_TEST

enum { GROUPS_LEAST = PROGRESS_GROUPS_OF(PROGRESS_RING_ENTRIES_LEAST) };

/* A larger arena has room for the slots of more groups, and its ring for their requests. */
START_TEST(test_rings_of_arenas)
{
    static const struct {
        uint64_t arena_bytes;
        uint32_t entries;
    } arenas[] = {{1 << 20, 2048},     {50 << 20, 2048},    {51 << 20, 4096},   {256 << 20, 4096},
                  {1ull << 30, 16384}, {4ull << 30, 32768}, {1ull << 40, 32768}};
    ck_assert_uint_eq(GROUPS_LEAST, 200);
    for (unsigned i = 0; i < sizeof(arenas) / sizeof(arenas[0]); i++) {
        uint32_t entries = progress_ring_entries(arenas[i].arena_bytes);
        ck_assert_uint_eq(entries, arenas[i].entries);
        ck_assert_uint_ge(entries, PROGRESS_OUT_MAX + 2 * PROGRESS_GROUPS_OF(entries));
    }
}
END_TEST

START_TEST(test_too_many_groups)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 1, 2, 4);
    struct rank_worker *worker = &fixture.workers[0];
    static struct progress_group groups[GROUPS_LEAST + 1];
    for (uint32_t i = 0; i <= GROUPS_LEAST; i++) {
        groups[i] = (struct progress_group){.number = i, .rule = {1, two_weights, CHUNK_BYTES, 64}};
        ck_assert_int_eq(progress_group_add(&worker->progress, &groups[i],
                                            ranks_memory(worker, CHUNK_BYTES), NULL),
                         i < GROUPS_LEAST ? 0 : ERR_MEMORY);
    }
    ranks_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress");
    TCase *cases = tcase_create("progress");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_all_reduce_of_many_sizes);
    tcase_add_test(cases, test_reduce_broadcast_and_barrier);
    tcase_add_test(cases, test_arena_memory_is_not_copied);
    tcase_add_test(cases, test_small_request_is_handed_over_by_the_caller);
    tcase_add_test(cases, test_groups_in_any_order_never_block_each_other);
    tcase_add_test(cases, test_more_requests_than_credits);
    tcase_add_test(cases, test_smaller_priority_goes_first);
    tcase_add_test(cases, test_older_ones_keep_slots);
    tcase_add_test(cases, test_failed_group_leaves_the_others_alone);
    tcase_add_test(cases, test_too_large_is_refused_with_the_limit);
    tcase_add_test(cases, test_failed_job_fails_everything);
    tcase_add_test(cases, test_abandoned_slots_come_back);
    tcase_add_test(cases, test_orphaned_slot_comes_back);
    tcase_add_test(cases, test_nonsense_from_the_daemon);
    tcase_add_test(cases, test_news_of_what_is_stable);
    tcase_add_test(cases, test_too_many_groups);
    tcase_add_test(cases, test_rings_of_arenas);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
