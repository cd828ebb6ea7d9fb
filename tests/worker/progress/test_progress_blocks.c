/* Progress of collectives that travel in blocks. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/progress_fixture.h"
#include "worker/request/parts.h"

static const enum collective_kind kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                             COLLECTIVE_GATHER, COLLECTIVE_SCATTER,
                                             COLLECTIVE_ALL_TO_ALL};
#define KINDS 5

static bool sends_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER;
}

static bool receives_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER;
}

/* --- data ---------------------------------------------------------------------------------- */

static int64_t value(uint64_t seed, uint32_t from, uint32_t to, uint64_t element)
{
    return (int64_t)(seed * 1000003 + from * 10007 + to * 101 + element);
}

/* Room for `ranks` parts of `count`, and a canary. */
static int64_t *buffer(uint32_t ranks, uint64_t count)
{
    int64_t *made = calloc(ranks * count + 1, sizeof(*made));
    ck_assert_ptr_nonnull(made);
    made[ranks * count] = -77;
    return made;
}

static struct parts_ask ask_of(const struct progress_fixture *fixture, enum collective_kind kind,
                               uint32_t rank, uint64_t count, uint64_t seed, int64_t *send,
                               int64_t *recv)
{
    for (uint32_t to = 0; to < fixture->rank_count; to++)
        for (uint64_t j = 0; j < count; j++)
            send[to * count + j] = value(seed, rank, to, j);
    return (struct parts_ask){.kind = kind,
                              .dtype = DTYPE_I64,
                              .root = (uint32_t)seed % fixture->rank_count,
                              .rank = rank,
                              .size = fixture->rank_count,
                              .priority = (uint32_t)seed % 3,
                              .send = {.base = send, .count = count},
                              .recv = {.base = recv, .count = count}};
}

/* Start the blocks as shoal_parts.c does. */
static struct rank_request *start(struct progress_fixture *fixture, uint32_t group,
                                  const struct parts_ask *ask)
{
    struct error error;
    struct request_ask blocks[2 * RANKS], whole = parts_whole(ask);
    ck_assert_msg(parts_check(ask, &error) == 0, "%s", error.text);
    parts_blocks(ask, blocks);
    struct parts_copy copy = parts_own_copy(ask);
    struct rank_request *made =
        ranks_submit_blocks(fixture, ask->rank, group, &whole, blocks, parts_block_count(ask));
    if (copy.bytes > 0)
        memcpy(copy.to, copy.from, copy.bytes);
    made->send = (int64_t *)(uintptr_t)ask->send.base;
    made->recv = (int64_t *)(uintptr_t)ask->recv.base;
    return made;
}

static struct rank_request *start_new(struct progress_fixture *fixture, uint32_t group,
                                      enum collective_kind kind, uint32_t rank, uint64_t count,
                                      uint64_t seed)
{
    uint32_t ranks = fixture->rank_count;
    struct parts_ask ask =
        ask_of(fixture, kind, rank, count, seed, buffer(ranks, count), buffer(ranks, count));
    return start(fixture, group, &ask);
}

static void check_result(const struct progress_fixture *fixture, enum collective_kind kind,
                         uint64_t count, uint64_t seed, const struct rank_request *made)
{
    uint32_t ranks = fixture->rank_count, rank = made->rank, root = (uint32_t)seed % ranks;
    bool gets = kind != COLLECTIVE_GATHER || rank == root;
    for (uint32_t i = 0; i < (receives_one(kind) ? 1 : ranks); i++)
        for (uint64_t j = 0; j < count; j++) {
            int64_t expected = value(seed, i, sends_one(kind) ? 0 : rank, j);
            if (kind == COLLECTIVE_SCATTER)
                expected = value(seed, root, rank, j);
            for (uint32_t r = 1; kind == COLLECTIVE_REDUCE_SCATTER && r < ranks; r++)
                expected += value(seed, r, rank, j);
            EXPECT(made->recv[i * count + j] == (gets ? expected : 0));
        }
    EXPECT(made->recv[ranks * count] == -77);
    EXPECT(made->send[ranks * count] == -77);
}

static void free_data(const struct rank_request *made)
{
    free(made->send);
    free(made->recv);
}

/* --- all of it right ----------------------------------------------------------------------- */

static void check_kind(enum collective_kind kind, uint32_t ranks, uint32_t slots, uint64_t count,
                       uint64_t seed)
{
    struct progress_fixture fixture;
    struct rank_request *made[RANKS];
    ranks_open(&fixture, ranks, slots, seed);
    ranks_group(&fixture, 0, 2);
    for (uint32_t rank = 0; rank < ranks; rank++)
        made[rank] = start_new(&fixture, 0, kind, rank, count, seed);
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        ck_assert_msg(made[rank]->request.state == REQUEST_COMPLETE,
                      "%s of %u ranks, %u slots, rank %u: hangs", collective_name(kind), ranks,
                      slots, rank);
        check_result(&fixture, kind, count, seed, made[rank]);
        free_data(made[rank]);
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 1);
        ck_assert_uint_eq(fixture.workers[rank].progress.submitted, 0);
        ck_assert_uint_eq(fixture.workers[rank].groups[0].request_count, 0);
        ck_assert(!progress_has_work(&fixture.workers[rank].progress));
    }
    ranks_close(&fixture);
}

START_TEST(test_every_kind_and_size)
{
    static const uint64_t counts[] = {0, 1, 7, 128, 1000, 5003};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (uint32_t ranks = 1; ranks <= RANKS; ranks++)
            for (uint32_t slots = 0; slots <= 8; slots += 4)
                check_kind(kinds[_i], ranks, slots, counts[i], 11 * i + ranks + slots);
}
END_TEST

START_TEST(test_arena_memory_is_not_copied)
{
    struct progress_fixture fixture;
    struct rank_request *made[RANKS];
    enum { COUNT = 2048 };
    ranks_open(&fixture, RANKS, 4, 5);
    ranks_group(&fixture, 0, 2);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct rank_worker *worker = &fixture.workers[rank];
        uint64_t bytes = (RANKS * COUNT + 1) * sizeof(int64_t);
        int64_t *send = (int64_t *)(void *)(worker->arena.base + ranks_memory(worker, bytes));
        int64_t *recv = (int64_t *)(void *)(worker->arena.base + ranks_memory(worker, bytes));
        send[RANKS * COUNT] = recv[RANKS * COUNT] = -77;
        struct parts_ask ask = ask_of(&fixture, kinds[_i], rank, COUNT, 3, send, recv);
        made[rank] = start(&fixture, 0, &ask);
        for (uint32_t i = 0; i < made[rank]->request.block_count; i++)
            ck_assert(!made[rank]->request.blocks[i].staged);
    }
    ranks_run(&fixture);
    ck_assert_uint_eq(fake_exchange_staged_chunks(fixture.exchange), 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        check_result(&fixture, kinds[_i], COUNT, 3, made[rank]);
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 1);
    }
    ranks_close(&fixture);
}
END_TEST

/* All kinds and all_reduces together, in three groups that the ranks go through in different
 * orders, with different priorities. */
START_TEST(test_all_kinds_together)
{
    enum { EACH = 12, USED = 3 };
    struct progress_fixture fixture;
    static struct rank_request *made[RANKS][USED][EACH];
    static int64_t ones[RANKS][USED][EACH][300];
    uint64_t seed = (uint64_t)_i;
    ranks_open(&fixture, RANKS, (uint32_t)_i % 4, seed);
    for (uint32_t g = 0; g < USED; g++)
        ranks_group(&fixture, g, 1 + g % 2);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        for (uint32_t k = 0; k < USED; k++)
            for (uint32_t n = 0; n < EACH; n++) {
                uint32_t g = (k + rank) % USED;
                if (n % 3 == 0) {
                    int64_t *data = ones[rank][g][n];
                    for (int j = 0; j < 300; j++)
                        data[j] = j + rank;
                    ranks_submit(&fixture, rank, g,
                                 (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                      .dtype = DTYPE_I64,
                                                      .count = 300,
                                                      .priority = n % 4,
                                                      .send = data,
                                                      .recv = data});
                } else {
                    made[rank][g][n] = start_new(&fixture, g, kinds[(n + g) % KINDS], rank,
                                                 n * 37 % 400, seed + n);
                }
                if (ranks_draw(&fixture, 3) == 0)
                    ranks_step(&fixture.workers[rank]);
                if (ranks_draw(&fixture, 3) == 0)
                    fake_exchange_step(fixture.exchange);
            }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t g = 0; g < USED; g++)
            for (uint32_t n = 0; n < EACH; n++) {
                if (n % 3 == 0) {
                    for (int j = 0; j < 300; j++)
                        EXPECT(ones[rank][g][n][j] == (int64_t)RANKS * j + 6);
                    continue;
                }
                EXPECT(made[rank][g][n]->request.state == REQUEST_COMPLETE);
                check_result(&fixture, kinds[(n + g) % KINDS], n * 37 % 400, seed + n,
                             made[rank][g][n]);
                free_data(made[rank][g][n]);
            }
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), USED * EACH);
    }
    ranks_close(&fixture);
}
END_TEST

/* --- the whole and its blocks --------------------------------------------------------------- */

/* Until nothing moves; complete is what has nothing left, and that is said once. */
static void run_and_watch(struct progress_fixture *fixture, const struct rank_request *watched,
                          bool *seen_over)
{
    const struct request *whole = &watched->request;
    for (unsigned idle = 0; idle < 3;) {
        bool moved = false;
        for (uint32_t rank = 0; rank < fixture->rank_count; rank++) {
            moved |= ranks_step(&fixture->workers[rank]);
            uint32_t open = whole->state == REQUEST_SUBMITTED || whole->state == REQUEST_QUEUED;
            for (uint32_t i = 0; i < whole->block_count; i++) {
                open += whole->blocks[i].state != REQUEST_OVER;
                EXPECT(whole->blocks[i].state != REQUEST_COMPLETE);
            }
            EXPECT(open == whole->incomplete);
            EXPECT((whole->state == REQUEST_COMPLETE) == (open == 0));
            *seen_over |= whole->state == REQUEST_OVER;
        }
        moved |= fake_exchange_step(fixture->exchange);
        idle = moved ? 0 : idle + 1;
    }
}

/* True: the whole was over before its blocks were. */
static bool check_rank_that_comes_later(uint64_t seed)
{
    struct progress_fixture fixture;
    struct rank_request *made[3];
    enum { COUNT = 100 }; /* a chunk, or slots would wait for rank 2 */
    bool seen_over = false;
    char text[256];
    ranks_open(&fixture, 3, 4, seed);
    ranks_group(&fixture, 0, 1);
    for (uint32_t rank = 0; rank < 2; rank++)
        made[rank] = start_new(&fixture, 0, COLLECTIVE_ALL_TO_ALL, rank, COUNT, 1);
    run_and_watch(&fixture, made[0], &seen_over);
    /* Between ranks 0 and 1 it is over; rank 2 has not come. */
    ck_assert_uint_eq(made[0]->request.block_count, 4);
    ck_assert_uint_eq(made[0]->request.incomplete, 3);
    ck_assert(!seen_over);
    ck_assert_ptr_null(progress_next_completed(&fixture.workers[0].progress));
    request_describe(&made[0]->request, 0, text, sizeof(text));
    ck_assert_str_eq(text, "all_to_all of int64, collective 0 of group 0: 2 of 5 parts complete");
    made[2] = start_new(&fixture, 0, COLLECTIVE_ALL_TO_ALL, 2, COUNT, 1);
    run_and_watch(&fixture, made[0], &seen_over);
    for (uint32_t rank = 0; rank < 3; rank++) {
        check_result(&fixture, COLLECTIVE_ALL_TO_ALL, COUNT, 1, made[rank]);
        free_data(made[rank]);
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 1);
    }
    ranks_close(&fixture);
    return seen_over;
}

START_TEST(test_complete_when_all_blocks_are)
{
    int seen = 0;
    for (uint64_t seed = 1; seed <= 16; seed++)
        seen += check_rank_that_comes_later(seed);
    ck_assert_int_gt(seen, 0);
}
END_TEST

START_TEST(test_blocks_are_staged_in_turn)
{
    struct progress_fixture fixture;
    enum { COUNT = 20000, SLOTS = 8 };
    ranks_open(&fixture, RANKS, SLOTS, 2);
    ranks_group(&fixture, 0, 1);
    fake_exchange_hold(fixture.exchange, true);
    const struct rank_request *made =
        start_new(&fixture, 0, COLLECTIVE_REDUCE_SCATTER, 0, COUNT, 1);
    while (ranks_step(&fixture.workers[0]))
        ;
    ck_assert_uint_eq(made->request.block_count, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        ck_assert_uint_eq(made->request.blocks[i].chunks_given, SLOTS / RANKS);
    for (uint32_t rank = 1; rank < RANKS; rank++)
        free_data(start_new(&fixture, 0, COLLECTIVE_REDUCE_SCATTER, rank, COUNT, 1));
    struct error error;
    error_set(&error, ERR_STATE, "enough");
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (rank == 0)
            free_data(made);
        progress_fail(&fixture.workers[rank].progress, &error, 1);
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], ERR_STATE), 1);
    }
    ranks_close(&fixture);
}
END_TEST

/* --- failure -------------------------------------------------------------------------------- */

/* The group fails at any moment: each collective is over once, and its slots are nobody's. */
START_TEST(test_failure_in_the_middle)
{
    struct progress_fixture fixture;
    enum { EACH = 3, COUNT = 3000, SLOTS = 3 };
    struct error error;
    error_set(&error, ERR_LOST, "rank 7 on node b is gone");
    ranks_open(&fixture, 3, SLOTS, (uint64_t)_i);
    ranks_group(&fixture, 0, 1);
    static struct rank_request *made[3][EACH];
    for (uint32_t rank = 0; rank < 3; rank++)
        for (uint32_t n = 0; n < EACH; n++)
            made[rank][n] =
                start_new(&fixture, 0, kinds[((uint32_t)_i + n) % KINDS], rank, COUNT, n);
    for (uint64_t n = ranks_draw(&fixture, 120); n > 0; n--) {
        ranks_step(&fixture.workers[n % 3]);
        if (ranks_draw(&fixture, 2) == 0)
            fake_exchange_step(fixture.exchange);
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct rank_worker *worker = &fixture.workers[rank];
        if (worker->copying)
            ranks_step(worker);
        progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
        ck_assert_ptr_null(worker->groups[0].requests);
        ck_assert_uint_eq(worker->groups[0].request_count, 0);
        ck_assert_uint_eq(worker->progress.submitted, 0);
        ck_assert_ptr_null(worker->progress.to_submit);
        ck_assert_ptr_null(worker->progress.to_stage);
        uint32_t completed = 0;
        struct request *request;
        while ((request = progress_next_completed(&worker->progress))) {
            ck_assert_uint_eq(request->incomplete, 0);
            ck_assert(request->result == 0 || request->result == ERR_LOST);
            if (request->result)
                ck_assert_str_eq(request->error_text, error.text);
            completed++;
        }
        ck_assert_uint_eq(completed, EACH);
        for (uint32_t n = 0; n < EACH; n++) {
            ck_assert_int_eq(made[rank][n]->request.state, REQUEST_COMPLETE);
            free_data(made[rank][n]);
            request_clear(&made[rank][n]->request);
            free(made[rank][n]);
        }
    }
    /* Reports that the daemons still make find nobody; slots that they keep belong to nobody. */
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 3; rank++) {
        const struct staging *staging = &fixture.workers[rank].progress.staging;
        for (uint32_t i = 0; i < staging->slot_count; i++) {
            ck_assert_ptr_null(staging->slots[i].request);
            ck_assert(staging->slots[i].state == STAGING_FREE ||
                      staging->slots[i].state == STAGING_GIVEN);
        }
        ck_assert(!fixture.workers[rank].progress.failed);
        ck_assert_ptr_null(progress_next_completed(&fixture.workers[rank].progress));
    }
    ranks_close(&fixture);
}
END_TEST

/* A later part that cannot be cut up: nothing of it has been started. */
START_TEST(test_refused_as_a_whole)
{
    struct progress_fixture fixture;
    struct error error;
    int64_t data[8] = {0};
    ranks_open(&fixture, 1, 2, 1);
    ranks_group(&fixture, 0, 1);
    struct request_ask whole = {.kind = COLLECTIVE_SCATTER, .dtype = DTYPE_I64};
    struct request_ask blocks[2] = {
        {.kind = COLLECTIVE_SCATTER, .dtype = DTYPE_I64, .block = 2, .count = 8},
        {.kind = COLLECTIVE_SCATTER, .dtype = DTYPE_I64, .block = 3, .count = 1ull << 55}};
    for (uint32_t i = 0; i < 2; i++) {
        blocks[i].route = route_find(COLLECTIVE_SCATTER, 0, blocks[i].block, 3);
        blocks[i].send = data;
    }
    struct rank_worker *worker = &fixture.workers[0];
    struct request request = {.age = 99};
    ck_assert_int_eq(progress_submit(&worker->progress, &worker->groups[0], &whole, blocks, 2, 0,
                                     &request, &error),
                     ERR_INVALID);
    ck_assert_str_eq(error.text,
                     "scatter: 36028797018963968 elements are too many: one collective has "
                     "at most 4194304 chunks of up to 1024 bytes (data.chunk_bytes); split it");
    ck_assert_uint_eq(worker->groups[0].next_sequence, 0);
    ck_assert_uint_eq(worker->groups[0].request_count, 0);
    ck_assert(!progress_has_work(&worker->progress));
    ranks_close(&fixture);
}
END_TEST

/* --- credits -------------------------------------------------------------------------------- */

/* One collective with more blocks than may be out: they follow each other. */
START_TEST(test_more_blocks_than_credits)
{
    struct progress_fixture fixture;
    enum { BLOCKS = PROGRESS_SUBMITTED_MAX + 100 };
    static struct request_ask blocks[BLOCKS];
    struct request_ask whole = {.kind = COLLECTIVE_SCATTER, .dtype = DTYPE_I64};
    struct error error;
    int64_t data = 1;
    ranks_open(&fixture, 1, 2, 1);
    ranks_group(&fixture, 0, 1);
    fake_exchange_detach(fixture.exchange, 0); /* which has no group of so many ranks */
    for (uint32_t i = 0; i < BLOCKS; i++) {
        blocks[i] = whole;
        blocks[i].block = i + 2;
        blocks[i].count = 1;
        blocks[i].send = &data;
        blocks[i].route = route_find(COLLECTIVE_SCATTER, 0, i + 2, BLOCKS + 1);
    }
    const struct rank_request *made = ranks_submit_blocks(&fixture, 0, 0, &whole, blocks, BLOCKS);
    struct rank_worker *worker = &fixture.workers[0];
    ck_assert_uint_eq(worker->progress.submitted, PROGRESS_SUBMITTED_MAX);
    ck_assert_uint_eq(made->request.incomplete, BLOCKS + 1);
    ck_assert_int_eq(made->request.blocks[PROGRESS_SUBMITTED_MAX - 2].state, REQUEST_SUBMITTED);
    ck_assert_int_eq(made->request.blocks[PROGRESS_SUBMITTED_MAX - 1].state, REQUEST_QUEUED);
    /* Every answer makes room for another. */
    struct arena_submission submission;
    uint32_t seen = 0;
    ck_assert_int_gt(arena_pop_submission(&worker->daemon_view, &submission), 0);
    ck_assert_uint_eq(submission.block, 0);
    ck_assert(arena_push_completion(
        &worker->daemon_view,
        &(struct arena_completion){.type = ARENA_REQUEST_DONE, .request = submission.request}));
    while (ranks_step(worker))
        ;
    ck_assert_int_eq(made->request.state, REQUEST_OVER);
    ck_assert_int_eq(made->request.blocks[PROGRESS_SUBMITTED_MAX - 1].state, REQUEST_SUBMITTED);
    while (arena_pop_submission(&worker->daemon_view, &submission) > 0)
        seen += submission.type == ARENA_SUBMIT;
    ck_assert_uint_eq(seen, PROGRESS_SUBMITTED_MAX);
    error_set(&error, ERR_LOST, "gone");
    progress_fail(&worker->progress, &error, 1);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), 1);
    ranks_close(&fixture);
}
END_TEST

/* Two groups, which the ranks fill their credits with in different order. */
START_TEST(test_more_collectives_than_credits)
{
    struct progress_fixture fixture;
    enum { EACH = 200, COUNT = 3 };
    static struct rank_request *made[RANKS][2][EACH];
    ranks_open(&fixture, RANKS, 2, 77);
    ranks_group(&fixture, 0, 1);
    ranks_group(&fixture, 1, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t turn = 0; turn < 2; turn++)
            for (uint32_t n = 0; n < EACH; n++) {
                uint32_t g = (rank ^ turn) & 1;
                made[rank][g][n] =
                    start_new(&fixture, g, COLLECTIVE_ALL_TO_ALL, rank, COUNT, n * 2 + g);
            }
        ck_assert_uint_le(fixture.workers[rank].progress.submitted, PROGRESS_SUBMITTED_MAX + 2);
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t g = 0; g < 2; g++)
            for (uint32_t n = 0; n < EACH; n++) {
                check_result(&fixture, COLLECTIVE_ALL_TO_ALL, COUNT, n * 2 + g, made[rank][g][n]);
                free_data(made[rank][g][n]);
            }
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 2 * EACH);
    }
    ranks_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress_blocks");
    TCase *right = tcase_create("right");
    tcase_set_timeout(right, 120);
    tcase_add_loop_test(right, test_every_kind_and_size, 0, KINDS);
    tcase_add_loop_test(right, test_arena_memory_is_not_copied, 0, KINDS);
    tcase_add_loop_test(right, test_all_kinds_together, 0, 12);
    suite_add_tcase(suite, right);
    TCase *whole = tcase_create("whole");
    tcase_add_test(whole, test_complete_when_all_blocks_are);
    tcase_add_test(whole, test_blocks_are_staged_in_turn);
    tcase_add_loop_test(whole, test_failure_in_the_middle, 0, 40);
    tcase_add_test(whole, test_refused_as_a_whole);
    suite_add_tcase(suite, whole);
    TCase *credits = tcase_create("credits");
    tcase_set_timeout(credits, 120);
    tcase_add_test(credits, test_more_blocks_than_credits);
    tcase_add_test(credits, test_more_collectives_than_credits);
    suite_add_tcase(suite, credits);
    return suite_main(suite);
}
