/* How users share a daemon: turns of what is to be issued, and what one can make it keep. */
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#define MANY_JOB 11ull
#define OTHER_JOB 12ull
#define MANY 0u /* the rank of a user who submits much, and the rank of another */
#define OTHER 1u

/* Two jobs of two users on one node, and a group of the one rank that is here of each. */
static struct fixture *two_users_with(uint32_t groups, uint64_t kept_bytes)
{
    static const uint32_t many = MANY, other = OTHER;
    struct fixture_options options = {.nodes = 1,
                                      .ranks = 2,
                                      .weights = {1},
                                      .leave_closed = true,
                                      .user = 1000,
                                      .kept_bytes = kept_bytes};
    struct fixture *fixture = fixture_create(&options);
    EXPECT(fixture_open_job(fixture, MANY_JOB) == 0);
    EXPECT(fixture_attach(fixture, MANY_JOB, MANY) == 0);
    for (uint32_t i = 0; i < groups; i++)
        EXPECT(exchange_group_open(fixture->exchange, MANY_JOB, 1 + i, &many, 1, NULL) == 0);
    fixture->options.user = 1001;
    EXPECT(fixture_open_job(fixture, OTHER_JOB) == 0);
    EXPECT(fixture_attach(fixture, OTHER_JOB, OTHER) == 0);
    EXPECT(exchange_group_open(fixture->exchange, OTHER_JOB, 1, &other, 1, NULL) == 0);
    return fixture;
}

static struct fixture *two_users(uint32_t groups)
{
    return two_users_with(groups, 0);
}

static void submit_barrier(struct fixture *fixture, uint32_t rank, uint32_t group,
                           uint64_t sequence)
{
    struct arena_submission it = fixture_ask(fixture, rank, sequence, 0);
    it.kind = COLLECTIVE_BARRIER;
    it.group = group;
    struct error error = {0};
    EXPECT_MSG(exchange_submit(fixture->exchange, &fixture->workers[rank], &it, 1, &error) == 0,
               "%s", error.text);
}

static uint32_t completions_of(const struct fixture *fixture, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fixture->completion_count; i++)
        count += fixture->completions[i].rank == rank;
    return count;
}

START_TEST(users_take_turns_however_many_groups_one_has)
{
    enum { GROUPS = 40 };
    struct fixture *fixture = two_users(GROUPS);
    for (uint32_t i = 0; i < GROUPS; i++)
        submit_barrier(fixture, MANY, 1 + i, 0);
    submit_barrier(fixture, OTHER, 1, 0);
    ck_assert(exchange_run_some(fixture->exchange, 2));
    ck_assert_uint_eq(completions_of(fixture, MANY), 1);
    ck_assert_uint_eq(completions_of(fixture, OTHER), 1);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(completions_of(fixture, MANY), GROUPS);
    ck_assert(!exchange_run_some(fixture->exchange, 1));
    fixture_destroy(fixture);
}
END_TEST

/* Collectives that are done as soon as they are issued have no window that ends the group's turn:
 * the turn has an end of its own. */
START_TEST(a_turn_of_a_group_has_an_end)
{
    enum { BARRIERS = 300 };
    struct fixture *fixture = two_users(1);
    for (uint64_t i = 0; i < BARRIERS; i++)
        submit_barrier(fixture, MANY, 1, i);
    submit_barrier(fixture, OTHER, 1, 0);
    ck_assert(exchange_run_some(fixture->exchange, 2));
    ck_assert_uint_gt(completions_of(fixture, MANY), 0);
    ck_assert_uint_lt(completions_of(fixture, MANY), BARRIERS / 2);
    ck_assert_uint_eq(completions_of(fixture, OTHER), 1);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(completions_of(fixture, MANY), BARRIERS);
    fixture_destroy(fixture);
}
END_TEST

/* A turn of sends has an end too, though each send has a window of its own. */
START_TEST(a_turn_of_sends_has_an_end)
{
    enum { SENDS = 200 };
    struct fixture_options options = {.nodes = 1, .ranks = 2, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    for (uint64_t i = 0; i < SENDS; i++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct arena_submission it = fixture_ask(fixture, rank, 0, 0);
            it.kind = COLLECTIVE_SEND;
            it.op = 0;
            it.root = 0;
            it.block = 2; /* from rank 0 to rank 1 */
            it.sequence = WIRE_SEND_SEQUENCE | i;
            struct error error = {0};
            EXPECT_MSG(
                exchange_submit(fixture->exchange, &fixture->workers[rank], &it, 1, &error) == 0,
                "%s", error.text);
        }
    }
    ck_assert(exchange_run_some(fixture->exchange, 1));
    ck_assert_uint_gt(completions_of(fixture, 0), 0);
    ck_assert_uint_lt(completions_of(fixture, 0), SENDS);
    exchange_check(fixture->exchange);
    exchange_run(fixture->exchange);
    exchange_check(fixture->exchange);
    ck_assert_uint_eq(completions_of(fixture, 0), SENDS);
    ck_assert_uint_eq(completions_of(fixture, 1), SENDS);
    fixture_destroy(fixture);
}
END_TEST

/* A job that ends with much under way is freed in turns, too. */
START_TEST(a_job_that_ends_is_freed_in_turns)
{
    enum { BARRIERS = 2000 };
    struct fixture *fixture = two_users(1);
    for (uint64_t i = 0; i < BARRIERS; i++)
        submit_barrier(fixture, MANY, 0, i); /* which waits for the job's other rank */
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(completions_of(fixture, MANY), 0);
    submit_barrier(fixture, OTHER, 1, 0);
    exchange_job_close(fixture->exchange, MANY_JOB);
    ck_assert_uint_gt(fixture->workers[MANY].requests, 0);
    ck_assert_uint_lt(fixture->workers[MANY].requests, BARRIERS);
    ck_assert(exchange_run_some(fixture->exchange, 2));
    ck_assert_uint_eq(completions_of(fixture, OTHER), 1);
    ck_assert(fixture->attached[MANY]);
    exchange_run(fixture->exchange);
    ck_assert(!fixture->attached[MANY]);
    fixture_destroy(fixture);
}
END_TEST

/* The memory that requests take is counted for their user, and has a limit; it comes back with
 * them. */
START_TEST(what_requests_take_is_counted_and_limited)
{
    struct fixture *fixture = two_users_with(1, 100000);
    struct engine_job_status jobs[2];
    struct error error = {0};
    int result = 0;
    uint64_t sequence = 0;
    for (; result == 0 && sequence < 2000; sequence++) {
        struct arena_submission it = fixture_ask(fixture, MANY, sequence, 100 * FIXTURE_CHUNK);
        it.flags = ARENA_FLAG_STAGED;
        result = exchange_submit(fixture->exchange, &fixture->workers[MANY], &it, 1, &error);
    }
    fixture->error = error;
    fixture_expect_error(fixture, result, ERR_MEMORY,
                         "the requests of user 1000 on node a take more than 100000 bytes");
    ck_assert_uint_gt(sequence, 10);
    ck_assert_uint_lt(sequence, 125); /* with 8 bytes for each chunk at least */
    submit_barrier(fixture, OTHER, 1, 0);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(completions_of(fixture, OTHER), 1);
    ck_assert_uint_eq(exchange_job_totals(fixture->exchange, jobs, 2), 2);
    ck_assert_uint_gt(jobs[0].kept_bytes + jobs[1].kept_bytes, 50000);
    exchange_job_fail(fixture->exchange, MANY_JOB);
    exchange_run(fixture->exchange);
    exchange_job_totals(fixture->exchange, jobs, 2);
    ck_assert_uint_eq(jobs[0].kept_bytes + jobs[1].kept_bytes, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Chunks count too, which an arena has room for many of. */
START_TEST(so_are_their_chunks)
{
    struct fixture *fixture = two_users_with(1, 4000);
    struct arena_submission it = fixture_ask(fixture, MANY, 0, 50 * FIXTURE_CHUNK);
    it.flags = ARENA_FLAG_STAGED;
    int result = fixture_submit(fixture, MANY, &it);
    EXPECT_MSG(result == 0, "%s", fixture->error.text);
    uint32_t chunk = 0;
    for (; result == 0 && chunk < 50; chunk++)
        result = fixture_hand_over(fixture, MANY, 0, chunk, fixture_offset(fixture, MANY, chunk));
    fixture_expect_error(fixture, result, ERR_MEMORY, "take more than 4000 bytes");
    ck_assert_uint_gt(chunk, 1);
    fixture_destroy(fixture);
}
END_TEST

/* Whatever order their priorities come in, they go by them; and of equal ones the older first. */
START_TEST(the_smallest_priority_goes_first)
{
    enum { COUNT = 60, WINDOW = 2 };
    struct fixture_options options = {.nodes = 1, .ranks = 2, .weights = {1}, .window = WINDOW};
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint64_t i = 0; i < COUNT; i++) {
            struct arena_submission it = fixture_ask(fixture, rank, i, 1);
            it.priority = _i ? (uint32_t)(i * 7 % COUNT / 2) : COUNT - (uint32_t)i;
            EXPECT(exchange_submit(fixture->exchange, &fixture->workers[rank], &it, 1, NULL) == 0);
        }
    }
    exchange_run(fixture->exchange);
    exchange_check(fixture->exchange);
    uint64_t done[COUNT] = {0};
    uint32_t count = 0;
    while (fixture->task_count > 0) {
        fixture_reduce(fixture, 0);
        for (uint32_t i = 0; i < fixture->completion_count; i++) {
            if (fixture->completions[i].rank == 0)
                done[count++] = fixture->completions[i].it.request - 100;
        }
        fixture->completion_count = 0;
    }
    ck_assert_uint_eq(count, COUNT);
    /* The last place of the window is the oldest one's: of the others each has a greater key. */
    uint64_t last = 0, oldest = 0;
    bool gone[COUNT] = {false};
    for (uint32_t i = 0; i < COUNT; i++) {
        uint64_t sequence = done[i];
        uint64_t priority = _i ? sequence * 7 % COUNT / 2 : COUNT - sequence;
        uint64_t key = priority * COUNT + sequence;
        while (oldest < COUNT && gone[oldest])
            oldest++;
        gone[sequence] = true;
        if (sequence == oldest)
            continue;
        ck_assert_msg(key > last, "%lu, %lu after a later one", (unsigned long)sequence,
                      (unsigned long)priority);
        last = key;
    }
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_shares");
    TCase *tests = tcase_create("exchange_shares");
    tcase_add_test(tests, users_take_turns_however_many_groups_one_has);
    tcase_add_test(tests, a_turn_of_a_group_has_an_end);
    tcase_add_test(tests, a_turn_of_sends_has_an_end);
    tcase_add_test(tests, what_requests_take_is_counted_and_limited);
    tcase_add_test(tests, so_are_their_chunks);
    tcase_add_test(tests, a_job_that_ends_is_freed_in_turns);
    tcase_add_loop_test(tests, the_smallest_priority_goes_first, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
