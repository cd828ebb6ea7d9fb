/* Collectives of a job that goes on by itself: told when they are stable, begun anew in the next
 * generation. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/progress_fixture.h"

#define COUNT 1000u
#define FIRST 0  /* the group of the first generation */
#define SECOND 1 /* it has this number in the second one */

static struct progress_fixture fixture;
static struct kept_memory memory;

static void setup(void)
{
    ranks_open(&fixture, 2, 4, 7);
    ranks_group(&fixture, FIRST, 2);
    for (uint32_t i = 0; i < 2; i++)
        fixture.workers[i].progress.keeps = true;
}

static void teardown(void)
{
    ranks_close(&fixture);
    kept_memory_clear(&memory); /* all of it has been given back */
}

static int64_t value(uint32_t rank, uint64_t seed, uint64_t j)
{
    return (int64_t)(j * (rank + 1) + seed * 17);
}

static struct rank_request *start_sized(uint32_t rank, uint64_t seed, bool in_place, uint64_t count)
{
    int64_t *send = calloc(count, sizeof(*send)), *recv = calloc(count, sizeof(*recv));
    struct error error;
    for (uint64_t j = 0; j < count; j++)
        send[j] = value(rank, seed, j);
    struct request_ask ask = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = DTYPE_I64,
                              .count = count,
                              .send = send,
                              .recv = in_place ? send : recv};
    ck_assert_int_eq(request_keep_sent(&memory, &ask, NULL, 0, rank, &error), 0);
    request_copy_sent(&ask, NULL, 0);
    ck_assert((ask.kept != NULL) == in_place);
    struct rank_request *made = ranks_submit(&fixture, rank, FIRST, ask);
    made->send = send;
    made->recv = recv;
    return made;
}

static struct rank_request *start(uint32_t rank, uint64_t seed, bool in_place)
{
    return start_sized(rank, seed, in_place, COUNT);
}

static void check(const struct rank_request *made, uint64_t seed)
{
    const int64_t *result = made->request.ask.recv;
    for (uint64_t j = 0; j < COUNT; j++)
        EXPECT(result[j] == value(0, seed, j) + value(1, seed, j));
}

static void end(struct rank_request *made)
{
    free(made->send);
    free(made->recv);
    request_clear(&made->request);
    free(made);
}

static struct progress_group *group_of(uint32_t rank)
{
    return &fixture.workers[rank].groups[FIRST];
}

static struct request *next_told(uint32_t rank)
{
    return progress_next_completed(&fixture.workers[rank].progress);
}

static void tell_stable(uint32_t rank, uint32_t number, uint64_t sequence)
{
    fake_exchange_tell_stable(fixture.exchange, rank, number, sequence);
    ranks_run(&fixture);
}

START_TEST(test_told_when_stable)
{
    struct rank_request *made[2][2];
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint64_t i = 0; i < 2; i++)
            made[rank][i] = start(rank, i, i == 1);
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        uint64_t done, told;
        ck_assert_ptr_null(next_told(rank));
        progress_position(group_of(rank), &done, &told);
        ck_assert_uint_eq(done, 2);
        ck_assert_uint_eq(told, 0);
        ck_assert_ptr_nonnull(made[rank][1]->request.ask.kept);
        tell_stable(rank, FIRST, 1);
        ck_assert_ptr_eq(next_told(rank), &made[rank][0]->request);
        ck_assert_ptr_null(next_told(rank));
        tell_stable(rank, FIRST, 2);
        ck_assert_ptr_eq(next_told(rank), &made[rank][1]->request);
        ck_assert_ptr_null(made[rank][1]->request.ask.kept);
        ck_assert_uint_eq(group_of(rank)->request_count, 0);
        for (uint64_t i = 0; i < 2; i++) {
            check(made[rank][i], i);
            end(made[rank][i]);
        }
    }
}
END_TEST

/* The next generation of both ranks: the group has another number in it. */
static void open_second(void)
{
    uint32_t ranks[] = {0, 1};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct progress *progress = &fixture.workers[rank].progress;
        ck_assert(progress_stop(progress));
        ranks_run(&fixture);
        progress_take_back(progress);
        ck_assert_uint_eq(progress->submitted, 0);
        ck_assert_uint_eq(group_of(rank)->chunks, 0);
        progress_open_again(progress);
        group_of(rank)->number = SECOND;
    }
    fake_exchange_open_group(fixture.exchange, SECOND, ranks, 2, &group_of(0)->rule);
}

static void go_on(uint32_t rank, uint64_t base)
{
    for (struct request *it = group_of(rank)->kept; it; it = it->kept_next)
        if (it->index >= base)
            request_restore(it);
    progress_go_on(&fixture.workers[rank].progress, group_of(rank), base, rank, 1);
    progress_release(&fixture.workers[rank].progress);
}

/* The library's own collective, as when ranks agree how far they are. */
static void agree(int64_t data[2])
{
    struct request own[2] = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct request_ask ask = {.kind = COLLECTIVE_ALL_REDUCE,
                                  .dtype = DTYPE_I64,
                                  .count = 1,
                                  .send = &data[rank],
                                  .recv = &data[rank],
                                  .internal = true};
        ck_assert_int_eq(progress_submit(&fixture.workers[rank].progress, group_of(rank), &ask,
                                         NULL, 0, rank, &own[rank], NULL),
                         0);
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_ptr_eq(next_told(rank), &own[rank]);
        ck_assert_int_eq(own[rank].result, 0);
        request_clear(&own[rank]);
    }
}

/* All have all results, none is stable, and one more has been asked for meanwhile. Loop variable:
 * how many results count. */
START_TEST(test_begun_anew)
{
    struct rank_request *made[2][3];
    uint64_t base = (uint64_t)_i;
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint64_t i = 0; i < 2; i++)
            made[rank][i] = start(rank, i, i == 1);
    ranks_run(&fixture);
    open_second();
    int64_t data[2] = {5, 6};
    for (uint32_t rank = 0; rank < 2; rank++)
        made[rank][2] = start(rank, 2, true);
    ranks_run(&fixture);
    agree(data);
    ck_assert_int_eq(data[0], 11);
    for (uint32_t rank = 0; rank < 2; rank++) {
        go_on(rank, base);
        for (uint64_t i = 0; i < base; i++)
            ck_assert_ptr_eq(next_told(rank), &made[rank][i]->request);
        ck_assert_ptr_null(next_told(rank));
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_ptr_null(next_told(rank));
        tell_stable(rank, SECOND, 1 + 3 - base);
        for (uint64_t i = base; i < 3; i++)
            ck_assert_ptr_eq(next_told(rank), &made[rank][i]->request);
        ck_assert_uint_eq(group_of(rank)->request_count, 0);
        ck_assert(!progress_has_work(&fixture.workers[rank].progress));
        for (uint64_t i = 0; i < 3; i++) {
            check(made[rank][i], i);
            end(made[rank][i]);
        }
    }
}
END_TEST

/* Numbers of the next generation say nothing about requests that have such of the last. */
START_TEST(test_stable_of_the_next_generation)
{
    struct rank_request *made[2];
    for (uint32_t rank = 0; rank < 2; rank++)
        made[rank] = start(rank, 3, true);
    ranks_run(&fixture);
    open_second();
    int64_t data[2] = {1, 2};
    agree(data);
    for (uint32_t rank = 0; rank < 2; rank++) {
        tell_stable(rank, SECOND, 1);
        ck_assert_ptr_null(next_told(rank));
        go_on(rank, 0);
        ck_assert_ptr_null(next_told(rank));
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        tell_stable(rank, SECOND, 2);
        ck_assert_ptr_eq(next_told(rank), &made[rank]->request);
        check(made[rank], 3);
        end(made[rank]);
    }
}
END_TEST

/* On one server out of many nearly all of it is: each of the others counts as many chunks. It fails
 * by name, on all ranks, and what is behind it goes on. */
START_TEST(test_too_large_for_the_servers)
{
    static uint32_t weights[FAKE_SERVERS_MAX];
    uint32_t ranks[] = {0, 1};
    struct rank_request *made[2][3];
    for (uint32_t i = 0; i < FAKE_SERVERS_MAX; i++)
        weights[i] = i == 0 ? 1000000 : 1;
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint64_t i = 0; i < 3; i++)
            made[rank][i] = start_sized(rank, i, i == 1, i == 1 ? 1u << 20 : COUNT);
    open_second();
    for (uint32_t rank = 0; rank < 2; rank++)
        group_of(rank)->rule = (struct layout_rule){.servers = FAKE_SERVERS_MAX,
                                                    .weights = weights,
                                                    .chunk_bytes = CHUNK_BYTES,
                                                    .least_shard_bytes = COUNT * sizeof(int64_t)};
    fake_exchange_open_group(fixture.exchange, SECOND, ranks, 2, &group_of(0)->rule);
    for (uint32_t rank = 0; rank < 2; rank++) {
        go_on(rank, 0);
        ck_assert_ptr_eq(next_told(rank), &made[rank][1]->request);
        ck_assert_int_eq(made[rank][1]->request.result, ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(made[rank][1]->request.error_text, "1048576 elements"));
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        tell_stable(rank, SECOND, 2);
        for (uint64_t i = 0; i < 3; i += 2) {
            ck_assert_ptr_eq(next_told(rank), &made[rank][i]->request);
            check(made[rank][i], i);
        }
        ck_assert_uint_eq(group_of(rank)->request_count, 0);
        for (uint64_t i = 0; i < 3; i++)
            end(made[rank][i]);
    }
}
END_TEST

/* One rank has been stopped in mid-request: slots and credits are there again. */
START_TEST(test_slots_and_credits_come_back)
{
    struct rank_request *made[2][8];
    for (uint64_t i = 0; i < 8; i++)
        made[0][i] = start(0, i, i % 2);
    ranks_run(&fixture); /* rank 1 has handed nothing over: rank 0's slots are full */
    open_second();
    for (uint64_t i = 0; i < 8; i++)
        made[1][i] = start(1, i, i % 2);
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++)
        go_on(rank, 0);
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        tell_stable(rank, SECOND, 8);
        for (uint64_t i = 0; i < 8; i++) {
            ck_assert_ptr_eq(next_told(rank), &made[rank][i]->request);
            check(made[rank][i], i);
            end(made[rank][i]);
        }
    }
}
END_TEST

/* The job cannot go on: requests fail that have a result, that wait for one, or that were asked for
 * while the job did not go on. */
START_TEST(test_cannot_go_on)
{
    struct rank_request *made[3] = {start(0, 0, true), NULL, NULL}, *other = start(1, 0, true);
    struct error error;
    ranks_run(&fixture);
    made[1] = start(0, 1, true);
    ranks_run(&fixture);
    ck_assert(progress_stop(&fixture.workers[0].progress));
    made[2] = start(0, 2, false);
    error_set(&error, ERR_LOST, "node a is gone");
    progress_fail(&fixture.workers[0].progress, &error, 1);
    for (int told = 0; told < 3; told++) {
        struct request *request = next_told(0);
        ck_assert_ptr_nonnull(request);
        ck_assert_int_eq(request->result, ERR_LOST);
        ck_assert_str_eq(request->error_text, "node a is gone");
        ck_assert_ptr_null(request->ask.kept);
    }
    ck_assert_ptr_null(next_told(0));
    ck_assert_uint_eq(group_of(0)->request_count, 0);
    progress_fail(&fixture.workers[1].progress, &error, 1);
    ck_assert_ptr_eq(next_told(1), &other->request);
    for (int i = 0; i < 3; i++)
        end(made[i]);
    end(other);
}
END_TEST

/* A device copies its result when it fails: it is told once, when the copy has ended. */
START_TEST(test_fails_while_a_device_copies)
{
    struct rank_worker *worker = &fixture.workers[0];
    static int64_t data[2];
    struct progress_copy copy, none;
    struct error error;
    struct rank_request *made = ranks_submit(&fixture, 0, FIRST,
                                             (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                                                  .dtype = DTYPE_I64,
                                                                  .count = 1,
                                                                  .send = &data[0],
                                                                  .recv = &data[1],
                                                                  .on_device = true});
    progress_ready(&worker->progress, &made->request, &none);
    ck_assert_int_eq(progress_work(&worker->progress, 1, &copy), PROGRESS_COPY);
    progress_copying(&worker->progress, &copy);
    error_set(&error, ERR_LOST, "node a is gone");
    progress_fail(&worker->progress, &error, 1);
    ck_assert_ptr_null(next_told(0));
    progress_copied(&worker->progress, &copy, 1);
    ck_assert_ptr_eq(next_told(0), &made->request);
    ck_assert_ptr_null(next_told(0));
    ck_assert_uint_eq(group_of(0)->request_count, 0);
    ck_assert_ptr_null(group_of(0)->kept);
    end(made);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress_again");
    TCase *tcase = tcase_create("again");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_told_when_stable);
    tcase_add_loop_test(tcase, test_begun_anew, 0, 3);
    tcase_add_test(tcase, test_stable_of_the_next_generation);
    tcase_add_test(tcase, test_too_large_for_the_servers);
    tcase_add_test(tcase, test_slots_and_credits_come_back);
    tcase_add_test(tcase, test_cannot_go_on);
    tcase_add_test(tcase, test_fails_while_a_device_copies);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
