/* Results that the ranks of a node share: every place is checked, each chunk is written once, and
 * the memory stays as long as anything may write to it. */
#include <stdlib.h>

#include "common/format/place.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#define COUNT 192u /* three chunks */
#define COUNT_BYTES 768u
#define SEGMENT_BYTES 4096u

/* The memory is the test's, so that it can be looked at after the exchange has let go of it. */
struct shared {
    _Alignas(64) uint8_t memory[SEGMENT_BYTES];
    struct exchange_segment it;
};

static struct fixture *create(uint32_t nodes, uint32_t ranks_per_node)
{
    struct fixture_options options = {.nodes = nodes, .ranks = nodes * ranks_per_node};
    for (uint32_t i = 0; i < nodes; i++)
        options.weights[i] = 1;
    for (uint32_t i = 0; i < options.ranks; i++)
        options.rank_nodes[i] = i / ranks_per_node;
    return fixture_create(&options);
}

static int open_it(struct fixture *fixture, struct shared *shared, uint32_t group, uint32_t number)
{
    *shared = (struct shared){.it = {.number = number, .bytes = SEGMENT_BYTES}};
    shared->it.base = shared->memory;
    return exchange_segment_open(fixture->exchange, FIXTURE_JOB, group, &shared->it,
                                 &fixture->error);
}

/* With shared memory of the group of all. */
static struct fixture *create_with(uint32_t nodes, uint32_t ranks_per_node, struct shared *shared,
                                   uint32_t number)
{
    struct fixture *fixture = create(nodes, ranks_per_node);
    ck_assert_int_eq(open_it(fixture, shared, 0, number), 0);
    return fixture;
}

static void close_it(struct fixture *fixture, uint32_t number)
{
    exchange_segment_close(fixture->exchange, FIXTURE_JOB, 0, number);
}

static struct arena_submission ask(const struct fixture *fixture, uint32_t rank, uint64_t sequence,
                                   uint32_t number, uint64_t offset)
{
    struct arena_submission it = fixture_ask(fixture, rank, sequence, COUNT);
    it.flags |= ARENA_FLAG_SHARED;
    it.segment = number;
    it.out_offset = offset;
    return it;
}

static void submit(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint32_t number,
                   uint64_t offset)
{
    struct arena_submission it = ask(fixture, rank, sequence, number, offset);
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
}

/* Both ranks have heard that the first collective is done. */
static void expect_completed(struct fixture *fixture)
{
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 1, 100));
}

static const float *result(const struct shared *shared, uint64_t offset)
{
    return (const float *)(const void *)(shared->memory + offset);
}

static bool untouched(const struct shared *shared, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (shared->memory[i] != 0)
            return false;
    }
    return true;
}

START_TEST(one_result_for_all_ranks)
{
    struct shared shared;
    struct fixture *fixture = create_with(1, 3, &shared, 4);
    for (uint32_t rank = 0; rank < 3; rank++) {
        fixture_fill(fixture, rank, 0, COUNT, (float)(100 * rank));
        submit(fixture, rank, 0, 4, 128);
        ck_assert_uint_eq(fixture->task_count, rank < 2 ? 0 : 3);
    }
    for (uint32_t i = 0; i < fixture->task_count; i++)
        ck_assert_uint_eq(fixture->tasks[i]->reduction.outputs, 1);
    fixture_all_reduced(fixture);
    for (uint32_t rank = 0; rank < 3; rank++) {
        EXPECT(fixture_completed(fixture, rank, 100));
        for (uint32_t i = 0; i < COUNT; i++)
            EXPECT(fixture_data(fixture, rank, 0)[i] == (float)(100 * rank) + (float)i);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT(result(&shared, 128)[i] == 300.0f + 3 * (float)i);
    ck_assert(untouched(&shared, 0, 128));
    ck_assert(untouched(&shared, 128 + COUNT_BYTES, SEGMENT_BYTES));
    ck_assert_uint_eq(shared.it.users, 0);
    ck_assert_uint_eq(fixture->released_segments, 0);
    close_it(fixture, 4);
    ck_assert_uint_eq(fixture->released_segments, 1);
    fixture_destroy(fixture);
}
END_TEST

/* Chunks that some hand over through slots come back without a result. */
START_TEST(staged_data_and_a_shared_result)
{
    struct shared shared;
    struct fixture *fixture = create_with(1, 2, &shared, 0);
    fixture_fill(fixture, 0, 0, COUNT, 1);
    submit(fixture, 0, 0, 0, 0);
    struct arena_submission it = ask(fixture, 1, 0, 0, 0);
    it.flags |= ARENA_FLAG_STAGED;
    it.in_offset = UINT64_MAX; /* not looked at */
    ck_assert_int_eq(fixture_submit(fixture, 1, &it), 0);
    for (uint32_t chunk = 0; chunk < 3; chunk++) {
        ck_assert_uint_eq(fixture->task_count, 0); /* nothing is written before */
        fixture_fill(fixture, 1, chunk, FIXTURE_CHUNK, 1000);
        ck_assert_int_eq(fixture_hand_over(fixture, 1, 0, chunk, fixture_offset(fixture, 1, chunk)),
                         0);
        ck_assert_uint_eq(fixture->task_count, 1);
        fixture_all_reduced(fixture);
        for (uint32_t i = 0; i < FIXTURE_CHUNK; i++) {
            uint32_t at = chunk * FIXTURE_CHUNK + i;
            EXPECT(result(&shared, 0)[at] == 1001.0f + (float)(at + i));
            EXPECT(fixture_data(fixture, 1, chunk)[i] == 1000.0f + (float)i);
        }
    }
    expect_completed(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Over two nodes: what this one owns, and what it gets from the other. */
START_TEST(one_result_from_two_nodes)
{
    struct shared shared;
    struct fixture *fixture = create_with(2, 2, &shared, 0);
    uint64_t count = (uint64_t)2 * FIXTURE_CHUNK;
    for (uint32_t rank = 0; rank < 2; rank++) {
        fixture_fill(fixture, rank, 0, (uint32_t)count, 0);
        struct arena_submission it = ask(fixture, rank, 0, 0, 64);
        it.count = count;
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
    }
    fixture_all_reduced(fixture); /* the node's sums */
    ck_assert(untouched(&shared, 0, SEGMENT_BYTES));
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, count, 7), 0);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 1, count, 5), 0);
    fixture_all_reduced(fixture);
    for (uint32_t i = 0; i < FIXTURE_CHUNK; i++) {
        EXPECT(result(&shared, 64)[i] == 7.0f + 2 * (float)i);
        EXPECT(result(&shared, 64)[FIXTURE_CHUNK + i] == 5.0f);
    }
    expect_completed(fixture);
    ck_assert(untouched(&shared, 64 + count * 4, SEGMENT_BYTES));
    fixture_destroy(fixture);
    ck_assert_uint_eq(shared.it.users, 0);
}
END_TEST

static const struct {
    const char *words;
    uint32_t number, kind;
    uint64_t offset, count;
} wrongs[] = {
    {"shared memory 5, which group 0 does not have", 5, COLLECTIVE_ALL_REDUCE, 0, COUNT},
    {"shared memory 4294967295, which", UINT32_MAX, COLLECTIVE_ALL_REDUCE, 0, COUNT},
    {"reduce with a shared result", 4, COLLECTIVE_REDUCE, 0, COUNT},
    {"broadcast with a shared result", 4, COLLECTIVE_BROADCAST, 0, COUNT},
    {"barrier with a shared result", 4, COLLECTIVE_BARRIER, 0, 0},
    {"offset 4 of shared memory 4", 4, COLLECTIVE_ALL_REDUCE, 4, COUNT},
    {"has 4096 bytes", 4, COLLECTIVE_ALL_REDUCE, 4096 - 64, COUNT},
    {"offset 4096 of", 4, COLLECTIVE_ALL_REDUCE, 4096, 1},
    {"not inside", 4, COLLECTIVE_ALL_REDUCE, UINT64_MAX - 63, COUNT},
    {"not inside", 4, COLLECTIVE_ALL_REDUCE, 0, 1025},
};

START_TEST(places_that_make_no_sense)
{
    struct shared shared;
    struct fixture *fixture = create_with(1, 2, &shared, 4);
    struct arena_submission it = ask(fixture, 0, 0, wrongs[_i].number, wrongs[_i].offset);
    it.kind = (uint8_t)wrongs[_i].kind;
    it.count = wrongs[_i].count;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, wrongs[_i].words);
    ck_assert_uint_eq(shared.it.users, 0);
    submit(fixture, 0, 0, 4, 0);
    submit(fixture, 1, 0, 4, 0);
    fixture_all_reduced(fixture);
    expect_completed(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* The ranks of the node give 0, 0 and then: */
START_TEST(places_that_differ)
{
    static const char *const words[] = {
        ": ranks 0, 1 gave shared memory 0 at offset 0; rank 2 gave shared memory 0 at offset 64",
        ": ranks 0, 1 gave shared memory 0 at offset 0; rank 2 gave shared memory 1 at offset 0",
        ": ranks 0, 1 gave shared memory 0 at offset 0; rank 2 gave memory of its own",
    };
    struct fixture *fixture = create(1, 3);
    struct shared shared[2];
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_int_eq(open_it(fixture, &shared[i], 0, i), 0);
    submit(fixture, 0, 0, 0, 0);
    submit(fixture, 1, 0, 0, 0);
    if (_i < 2)
        submit(fixture, 2, 0, _i == 1, _i == 0 ? 64 : 0);
    else
        fixture_submit_sum(fixture, 2, 0, COUNT);
    ck_assert_uint_eq(fixture->task_count, 0);
    fixture_expect_failure(fixture, ERR_MISMATCH, words[_i]);
    for (uint32_t i = 0; i < 2; i++)
        ck_assert(untouched(&shared[i], 0, SEGMENT_BYTES));
    ck_assert_uint_eq(shared[0].it.users + shared[1].it.users, 0);
    fixture_destroy(fixture);
    ck_assert_uint_eq(shared[0].it.users, 0);
}
END_TEST

/* With many ranks and places the text says how many more there are. */
START_TEST(many_places_that_differ)
{
    struct shared shared;
    struct fixture *fixture = create_with(1, 16, &shared, 0);
    for (uint32_t rank = 0; rank < 15; rank++)
        submit(fixture, rank, 0, 0, rank < 10 ? 0 : 64 * rank);
    fixture_submit_sum(fixture, 15, 0, COUNT);
    fixture_expect_failure(fixture, ERR_MISMATCH,
                           "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more gave shared memory 0 at offset "
                           "0; rank 10 gave shared memory 0 at offset 640; rank 11 gave");
    fixture_destroy(fixture);
}
END_TEST

/* A difference between the ranks' asks is said first. */
START_TEST(other_asks_and_other_places)
{
    struct shared shared;
    struct fixture *fixture = create_with(1, 2, &shared, 0);
    submit(fixture, 0, 0, 0, 0);
    struct arena_submission it = ask(fixture, 1, 0, 0, 64);
    it.op = REDUCE_MAX;
    ck_assert_int_eq(fixture_submit(fixture, 1, &it), 0);
    fixture_expect_failure(fixture, ERR_MISMATCH, "rank 1 asked for all_reduce max");
    fixture_destroy(fixture);
}
END_TEST

/* Closed while a sum is made: it goes when the collective is over, and takes no new one. */
START_TEST(it_stays_as_long_as_it_is_written_to)
{
    struct shared shared;
    struct fixture *fixture = create_with(1, 2, &shared, 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        submit(fixture, rank, 0, 0, 0);
    ck_assert_uint_eq(fixture->task_count, 3);
    close_it(fixture, 0);
    close_it(fixture, 0);  /* again: nothing */
    close_it(fixture, 77); /* nor is there this one */
    ck_assert_uint_eq(fixture->released_segments, 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), SEGMENT_BYTES);
    struct arena_submission it = ask(fixture, 0, 1, 0, 0);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, "does not have");
    fixture_reduce(fixture, 0);
    fixture_reduce(fixture, 0);
    ck_assert_uint_eq(fixture->released_segments, 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->released_segments, 1);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
    expect_completed(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* The group, or the job, ends while a sum is made. */
START_TEST(it_goes_with_its_group)
{
    struct shared shared, idle;
    struct fixture *fixture = create_with(1, 2, &shared, 0);
    ck_assert_int_eq(open_it(fixture, &idle, 0, 1), 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        submit(fixture, rank, 0, 0, 0);
    if (_i == 0)
        exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    else
        exchange_job_close(fixture->exchange, FIXTURE_JOB);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(fixture->released_segments, 0);
    if (_i == 0) {
        /* A failed group keeps what its ranks read, until they give it back. */
        fixture_all_reduced(fixture);
        ck_assert_uint_eq(fixture->released_segments, 0);
        close_it(fixture, 1);
        ck_assert_uint_eq(fixture->released_segments, 1);
        struct shared late;
        ck_assert_int_eq(open_it(fixture, &late, 0, 2), ERR_STATE);
    }
    fixture_destroy(fixture);
    ck_assert_uint_eq(shared.it.users, 0);
}
END_TEST

/* The daemon counts what the ranks write into a place, whatever it is, and believes nothing of
 * it. */
START_TEST(what_met_is_counted)
{
    struct shared shared = {0};
    struct fixture *fixture = create(1, 2);
    struct place_counts *counts = (void *)(shared.memory + PLACE_COUNTS_OFFSET);
    struct engine_job_status job;
    shared.it = (struct exchange_segment){
        .number = 7, .base = shared.memory, .bytes = SEGMENT_BYTES, .meeting = true};
    ck_assert_int_eq(
        exchange_segment_open(fixture->exchange, FIXTURE_JOB, 0, &shared.it, &fixture->error), 0);
    struct arena_submission it = ask(fixture, 0, 0, 7, 0);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, "does not have");
    atomic_store(&counts->collectives, 5);
    atomic_store(&counts->bytes, 100);
    exchange_tick(fixture->exchange, 1);
    exchange_tick(fixture->exchange, 2);
    exchange_job_totals(fixture->exchange, &job, 1);
    ck_assert_uint_eq(job.collectives, 5);
    ck_assert_uint_eq(job.met_collectives, 5);
    ck_assert_uint_eq(job.met_bytes, 100);
    ck_assert_uint_eq(job.bytes_submitted, 100);
    atomic_store(&counts->collectives, 2); /* nonsense */
    atomic_store(&counts->bytes, UINT64_MAX);
    exchange_tick(fixture->exchange, 3);
    exchange_job_totals(fixture->exchange, &job, 1);
    ck_assert_uint_eq(job.met_collectives, 5);
    ck_assert_uint_eq(job.met_bytes, 100 + (UINT64_C(1) << 40));
    atomic_store(&counts->collectives, 4); /* since the last look, and never looked at again */
    close_it(fixture, 7);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.collectives, 7);
    ck_assert_uint_eq(totals.met_collectives, 7);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_place_too_small_for_counts)
{
    struct shared shared = {0};
    struct fixture *fixture = create(1, 2);
    memset(shared.memory, 0x11, sizeof(shared.memory));
    shared.it = (struct exchange_segment){
        .number = 7, .base = shared.memory, .bytes = PLACE_COUNTS_OFFSET + 8, .meeting = true};
    ck_assert_int_eq(
        exchange_segment_open(fixture->exchange, FIXTURE_JOB, 0, &shared.it, &fixture->error), 0);
    exchange_tick(fixture->exchange, 1);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.met_collectives, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(the_limit_is_the_buffers)
{
    struct fixture_options options = {.nodes = 1, .ranks = 2, .weights = {1}, .buffers = 30};
    struct fixture *fixture = fixture_create(&options);
    uint64_t limit = buffer_pool_limit_bytes(fixture->pool);
    struct shared shared[3];
    uint32_t fit = (uint32_t)(limit / SEGMENT_BYTES);
    ck_assert_uint_eq(fit, 2);
    ck_assert_int_eq(open_it(fixture, &shared[0], 0, 0), 0);
    ck_assert_int_eq(open_it(fixture, &shared[1], 0, 0), ERR_STATE); /* the number is taken */
    ck_assert_int_eq(open_it(fixture, &shared[1], 7, 1), ERR_STATE); /* no such group */
    ck_assert_int_eq(open_it(fixture, &shared[1], 0, 1), 0);
    ck_assert_int_eq(open_it(fixture, &shared[2], 0, 2), ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(fixture->error.text, "user 0 has 8192 and asks for 4096 more"));
    close_it(fixture, 0);
    ck_assert_int_eq(open_it(fixture, &shared[2], 0, 2), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 2 * SEGMENT_BYTES);
    fixture_destroy(fixture);
}
END_TEST

/* The first piece of shared memory may not be more than half either: no group of the roster needs
 * so much. */
START_TEST(a_user_leaves_half_for_others)
{
    struct fixture_options options = {
        .nodes = 1, .ranks = 2, .weights = {1}, .buffers = 30, .user = 1000};
    struct fixture *fixture = fixture_create(&options);
    uint64_t limit = buffer_pool_limit_bytes(fixture->pool);
    struct shared shared[2];
    ck_assert_int_eq(open_it(fixture, &shared[0], 0, 0), 0);
    ck_assert_int_eq(open_it(fixture, &shared[1], 0, 1), ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(fixture->error.text, "user 1000 has 4096 and asks for 4096 more; "
                                                      "end some of them first"));
    close_it(fixture, 0);
    shared[1] = (struct shared){.it = {.number = 1, .base = shared[1].memory}};
    shared[1].it.bytes = limit / 2 + 1;
    ck_assert_int_eq(
        exchange_segment_open(fixture->exchange, FIXTURE_JOB, 0, &shared[1].it, &fixture->error),
        ERR_MEMORY);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_segment");
    TCase *cases = tcase_create("cases");
    tcase_add_test(cases, one_result_for_all_ranks);
    tcase_add_test(cases, staged_data_and_a_shared_result);
    tcase_add_test(cases, one_result_from_two_nodes);
    tcase_add_loop_test(cases, places_that_make_no_sense, 0,
                        (int)(sizeof(wrongs) / sizeof(wrongs[0])));
    tcase_add_loop_test(cases, places_that_differ, 0, 3);
    tcase_add_test(cases, many_places_that_differ);
    tcase_add_test(cases, other_asks_and_other_places);
    tcase_add_test(cases, it_stays_as_long_as_it_is_written_to);
    tcase_add_loop_test(cases, it_goes_with_its_group, 0, 2);
    tcase_add_test(cases, what_met_is_counted);
    tcase_add_test(cases, a_place_too_small_for_counts);
    tcase_add_test(cases, the_limit_is_the_buffers);
    tcase_add_test(cases, a_user_leaves_half_for_others);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
