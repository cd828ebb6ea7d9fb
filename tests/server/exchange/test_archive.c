/* Results that are kept for ranks which come later: which, how many, how much memory, for how long;
 * and what is answered to those who ask. */
#include "server/exchange/ground/archive.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#include "common/format/route.h"

#define COUNT FIXTURE_CHUNK
#define BYTES (COUNT * sizeof(float))
#define LINEAGE 0x77ull
#define PLACE 7u /* of what is asked for; results lie in those before */

static const struct fixture_options alone = {.nodes = 2,
                                             .ranks = 3,
                                             .rank_nodes = {0, 0, 0},
                                             .weights = {1},
                                             .recovery = true,
                                             .keep_steps = 3,
                                             .keep_bytes = 1 << 16,
                                             .lineage = LINEAGE};

/* Ranks 0 and 1 are here, rank 2 on node 1. */
static struct fixture_options apart(void)
{
    struct fixture_options options = alone;
    options.rank_nodes[2] = 1;
    options.weights[1] = 1;
    return options;
}

/* The sum with this sequence, whose first element is 3 first, on ranks that are all here. */
static void add_up(struct fixture *fixture, uint64_t sequence, uint32_t count, float first)
{
    for (uint32_t rank = 0; rank < 3; rank++) {
        fixture_fill(fixture, rank, (uint32_t)sequence, count, first);
        fixture_submit_sum(fixture, rank, sequence, count);
    }
    fixture_all_reduced(fixture);
    fixture->completion_count = 0;
}

static struct arena_submission replay(const struct fixture *fixture, enum route_replay what,
                                      uint32_t from, uint32_t to, uint64_t number, uint64_t count)
{
    return (struct arena_submission){.type = ARENA_SUBMIT,
                                     .kind = COLLECTIVE_SEND,
                                     .dtype = what == ROUTE_REPLAY_ASKS ? DTYPE_I64 : DTYPE_F32,
                                     .request = 900 + number,
                                     .sequence = WIRE_SEND_SEQUENCE | number,
                                     .count = what == ROUTE_REPLAY_ASKS ? (uint64_t)ARCHIVE_ANSWERS
                                                                        : count,
                                     .in_offset = fixture_offset(fixture, to, PLACE),
                                     .out_offset = fixture_offset(fixture, to, PLACE),
                                     .block = route_replay_block(what, from, to, 3)};
}

/* Return what rank 1 is told when its request is done: 1 if it is refused. */
static uint32_t done(struct fixture *fixture)
{
    ck_assert_uint_eq(fixture->completion_count, 1);
    ck_assert_uint_eq(fixture->completions[0].rank, 1);
    ck_assert_int_eq(fixture->completions[0].it.type, ARENA_REQUEST_DONE);
    fixture->completion_count = 0;
    return fixture->completions[0].it.chunk;
}

static bool gets(struct fixture *fixture, uint64_t number, uint32_t count, float first)
{
    struct arena_submission ask = replay(fixture, ROUTE_REPLAY, 0, 1, number, count);
    const float *data = fixture_data(fixture, 1, PLACE);
    memset(fixture_data(fixture, 1, PLACE), 0, count * sizeof(float));
    ck_assert_int_eq(fixture_submit(fixture, 1, &ask), 0);
    fixture_all_reduced(fixture);
    if (done(fixture) != 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        EXPECT_MSG(data[i] == 3 * (first + (float)i), "element %u: %f", i, (double)data[i]);
    return true;
}

/* The least number that is kept, and one more than the greatest. */
static void expect_kept(struct fixture *fixture, int64_t first, int64_t end)
{
    struct arena_submission ask = replay(fixture, ROUTE_REPLAY_ASKS, 0, 1, 1, 0);
    ck_assert_int_eq(fixture_submit(fixture, 1, &ask), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(done(fixture), 0);
    const int64_t *answers = (const int64_t *)(const void *)fixture_data(fixture, 1, PLACE);
    ck_assert_int_eq(answers[ARCHIVE_FIRST], first);
    ck_assert_int_eq(answers[ARCHIVE_END], end);
    ck_assert_int_eq(answers[ARCHIVE_HAS], first <= 1 && end > 1);
    ck_assert_int_eq(answers[ARCHIVE_STEPS], fixture->options.keep_steps);
    if (answers[ARCHIVE_HAS]) {
        ck_assert_int_eq(answers[ARCHIVE_COUNT], COUNT);
        ck_assert_int_eq(answers[ARCHIVE_DTYPE], DTYPE_F32);
        ck_assert_int_eq(answers[ARCHIVE_OP], REDUCE_SUM);
    }
}

static uint64_t kept_bytes(const struct fixture *fixture)
{
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    return totals.archived_bytes;
}

/* --- which are kept --------------------------------------------------------------------------- */

START_TEST(test_the_last_are_kept)
{
    struct fixture *fixture = fixture_create(&alone);
    expect_kept(fixture, 0, 0);
    ck_assert(!gets(fixture, 0, COUNT, 1));
    for (uint32_t i = 0; i < 5; i++) {
        add_up(fixture, i, COUNT, (float)(10 * i));
        expect_kept(fixture, i < 3 ? 0 : i - 2, i + 1);
        ck_assert(gets(fixture, i, COUNT, (float)(10 * i)));
    }
    ck_assert(!gets(fixture, 1, COUNT, 10)); /* forgotten */
    ck_assert(gets(fixture, 2, COUNT, 20));
    ck_assert(gets(fixture, 3, COUNT, 30));
    ck_assert(!gets(fixture, 5, COUNT, 50));           /* not made yet */
    ck_assert(!gets(fixture, 3, COUNT - 1, 0));        /* another one */
    ck_assert_uint_le(kept_bytes(fixture), 4 * BYTES); /* and one to be used again */
    struct engine_job_status status;
    ck_assert_uint_eq(exchange_job_totals(fixture->exchange, &status, 1), 1);
    ck_assert_uint_eq(status.archived_first, 2);
    ck_assert_uint_eq(status.archived_end, 5);
    fixture_destroy(fixture);
}
END_TEST

/* Numbers are those of all collectives, and sums alone are kept. */
START_TEST(test_only_sums_are_kept)
{
    struct fixture *fixture = fixture_create(&alone);
    add_up(fixture, 0, COUNT, 1);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct arena_submission barrier = fixture_ask(fixture, rank, 1, 0);
        barrier.kind = COLLECTIVE_BARRIER;
        ck_assert_int_eq(fixture_submit(fixture, rank, &barrier), 0);
    }
    fixture->completion_count = 0;
    add_up(fixture, 2, 0, 1);
    add_up(fixture, 3, COUNT, 4);
    ck_assert(gets(fixture, 0, COUNT, 1));
    ck_assert(!gets(fixture, 1, COUNT, 1));
    ck_assert(gets(fixture, 2, 0, 1));
    ck_assert(gets(fixture, 3, COUNT, 4));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_where_nothing_is_kept)
{
    struct fixture_options options = alone;
    if (_i == 0)
        options.keep_steps = 0;
    else if (_i == 1)
        options.no_recovery = true;
    else
        options.keep_bytes = BYTES - 1;
    struct fixture *fixture = fixture_create(&options);
    add_up(fixture, 0, COUNT, 1);
    ck_assert(!gets(fixture, 0, COUNT, 1));
    ck_assert_uint_eq(kept_bytes(fixture), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool),
                      _i == 0 ? 0 : options.keep_bytes); /* all of a pool's is promised first */
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_bytes_bound)
{
    struct fixture_options options = alone;
    options.keep_steps = 100;
    options.keep_bytes = 2 * BYTES + 8;
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t i = 0; i < 4; i++) {
        add_up(fixture, i, COUNT, (float)i);
        ck_assert_uint_le(kept_bytes(fixture), options.keep_bytes);
    }
    expect_kept(fixture, 2, 4);
    add_up(fixture, 4, 3 * COUNT, 4); /* never fits: the others stay */
    expect_kept(fixture, 2, 4);
    add_up(fixture, 5, 2 * COUNT, 5); /* takes all */
    expect_kept(fixture, 5, 6);
    ck_assert(gets(fixture, 5, 2 * COUNT, 5));
    fixture_destroy(fixture);
}
END_TEST

/* Two jobs share the bytes: the one that has more gives way. */
START_TEST(test_jobs_share_the_bytes)
{
    struct fixture_options options = alone;
    options.keep_steps = 100;
    options.keep_bytes = 4 * BYTES;
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t i = 0; i < 4; i++)
        add_up(fixture, i, COUNT, (float)i);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB); /* it may go on */
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    fixture_run(fixture);
    ck_assert_uint_eq(kept_bytes(fixture), 4 * BYTES);
    fixture->options.lineage = LINEAGE + 1;
    ck_assert_int_eq(fixture_open_job(fixture, 5), 0);
    for (uint32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(fixture_attach(fixture, 5, rank), 0);
    for (uint32_t i = 0; i < 2; i++)
        add_up(fixture, i, COUNT, (float)i);
    expect_kept(fixture, 0, 2);
    for (uint32_t i = 2; i < 6; i++)
        add_up(fixture, i, COUNT, (float)i);
    expect_kept(fixture, 4, 6); /* the other one has two of the four still */
    ck_assert_uint_eq(kept_bytes(fixture), 4 * BYTES);
    fixture_destroy(fixture);
}
END_TEST

static void open_of(struct fixture *fixture, uint32_t user, uint64_t job)
{
    fixture->options.user = user;
    fixture->options.lineage = job;
    ck_assert_int_eq(fixture_open_job(fixture, job), 0);
    for (uint32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(fixture_attach(fixture, job, rank), 0);
}

static void fail_job(struct fixture *fixture, uint64_t job)
{
    exchange_job_fail(fixture->exchange, job); /* what it has stays, for it may go on */
    exchange_job_close(fixture->exchange, job);
    fixture_run(fixture);
}

/* Memory for 120 results. One user has as much as there is while no other asks; then he has half,
 * of however many jobs, and the other one may not have more either. */
START_TEST(test_memory_is_shared_by_users)
{
    enum { RESULTS = 120, JOBS = 30, EACH = 20 };
    struct fixture_options options = alone;
    options.keep_steps = RESULTS;
    options.keep_bytes = RESULTS * BYTES;
    options.user = 1000;
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t i = 0; i < RESULTS; i++)
        add_up(fixture, i, COUNT, (float)i);
    expect_kept(fixture, 0, RESULTS);
    fail_job(fixture, FIXTURE_JOB);
    for (uint64_t job = 500; job < 500 + JOBS; job++) {
        open_of(fixture, 1001, job);
        for (uint32_t i = 0; i < EACH; i++)
            add_up(fixture, i, COUNT, (float)i);
        fail_job(fixture, job);
    }
    ck_assert_uint_eq(quota_used(&fixture->exchange->archived, 1000), RESULTS / 2 * BYTES);
    ck_assert_uint_eq(quota_used(&fixture->exchange->archived, 1001), RESULTS / 2 * BYTES);
    /* The first goes on, and finds the half that it had last. */
    fixture->options.generation = 2;
    open_of(fixture, 1000, LINEAGE);
    expect_kept(fixture, RESULTS / 2, RESULTS);
    fixture_destroy(fixture);
}
END_TEST

/* Collectives that have begun and do not end keep what theirs is to be: of a user's no more than
 * half of all, so that the other half is there for others. */
START_TEST(test_what_is_under_way_is_shared_by_users)
{
    enum { RESULTS = 8, STUCK = 12 };
    static const struct {
        uint32_t user;
        uint64_t most; /* that it may have under way */
    } cases[] = {{1000, RESULTS / 2}, {0, RESULTS} /* root is trusted */};
    struct fixture_options options = alone;
    options.keep_steps = RESULTS;
    options.keep_bytes = RESULTS * BYTES;
    options.user = cases[_i].user;
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t i = 0; i < STUCK; i++)
        fixture_submit_sum(fixture, 0, i, COUNT); /* the other ranks do not come */
    ck_assert_uint_eq(kept_bytes(fixture), cases[_i].most * BYTES);
    ck_assert_uint_eq(fixture->exchange->archiving.used, cases[_i].most * BYTES);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_eq(fixture->exchange->archiving.used, 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- generations ------------------------------------------------------------------------------ */

static int number(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint64_t number)
{
    return fixture_submit(
        fixture, rank,
        &(struct arena_submission){.type = ARENA_NUMBER, .sequence = sequence, .count = number});
}

static void next_generation(struct fixture *fixture, uint64_t job, bool fails)
{
    if (fails)
        exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    fixture_run(fixture);
    fixture->options.generation = 2;
    ck_assert_int_eq(fixture_open_job(fixture, job), 0);
    for (uint32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(fixture_attach(fixture, job, rank), 0);
}

START_TEST(test_numbers_go_on)
{
    struct fixture *fixture = fixture_create(&alone);
    for (uint32_t i = 0; i < 4; i++)
        add_up(fixture, i, COUNT, (float)(10 * i));
    next_generation(fixture, 6, true);
    add_up(fixture, 0, COUNT, 1000); /* the ranks agree: it has no number */
    expect_kept(fixture, 1, 4);
    for (uint32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(number(fixture, rank, 1, 3), 0);
    expect_kept(fixture, 1, 3); /* number 3 not all had */
    add_up(fixture, 1, COUNT, 33);
    expect_kept(fixture, 1, 4);
    ck_assert(gets(fixture, 3, COUNT, 33));
    ck_assert(gets(fixture, 1, COUNT, 10));
    ck_assert_int_eq(number(fixture, 0, 1, 4), ERR_PROTOCOL);
    fixture_expect_error(fixture, ERR_PROTOCOL, ERR_PROTOCOL, "is number 4");
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_numbers_that_cannot_be)
{
    struct fixture *fixture = fixture_create(&alone);
    ck_assert_int_eq(number(fixture, 0, 0, 0), 0); /* what the first generation has anyway */
    ck_assert_int_eq(number(fixture, 0, 0, 1), ERR_PROTOCOL);
    next_generation(fixture, 6, true);
    ck_assert_int_eq(number(fixture, 0, 0, UINT64_MAX), ERR_PROTOCOL);
    ck_assert_int_eq(number(fixture, 0, UINT64_MAX, 0), ERR_PROTOCOL);
    fixture_destroy(fixture);
}
END_TEST

/* A job that is over has no next generation; one that has failed may have for ten minutes. */
START_TEST(test_how_long_it_lasts)
{
    struct fixture *fixture = fixture_create(&alone);
    add_up(fixture, 0, COUNT, 1);
    if (_i == 1)
        exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    fixture_run(fixture);
    ck_assert_uint_eq(kept_bytes(fixture), _i == 1 ? BYTES : 0);
    exchange_tick(fixture->exchange, 599ull * 1000000000);
    ck_assert_uint_eq(kept_bytes(fixture), _i == 1 ? BYTES : 0);
    exchange_tick(fixture->exchange, 601ull * 1000000000);
    ck_assert_uint_eq(kept_bytes(fixture), 0);
    fixture_destroy(fixture);
}
END_TEST

/* A result that is being read stays until it has been, and counts as long. */
START_TEST(test_read_while_it_goes)
{
    struct fixture *fixture = fixture_create(&alone);
    for (uint32_t i = 0; i < 3; i++)
        add_up(fixture, i, COUNT, (float)(10 * i));
    struct arena_submission ask = replay(fixture, ROUTE_REPLAY, 0, 1, 0, COUNT);
    ck_assert_int_eq(fixture_submit(fixture, 1, &ask), 0);
    ck_assert_uint_eq(fixture->task_count, 1); /* the copy */
    for (uint32_t rank = 0; rank < 3; rank++)
        fixture_submit_sum(fixture, rank, 3, COUNT);
    fixture_reduce(fixture, 1);
    ck_assert_uint_eq(kept_bytes(fixture), 4 * BYTES);
    fixture_all_reduced(fixture);
    ck_assert_float_eq(fixture_data(fixture, 1, PLACE)[5], 15);
    fixture->completion_count = 0;
    ck_assert_uint_eq(kept_bytes(fixture), 3 * BYTES);
    expect_kept(fixture, 1, 4);
    fixture_destroy(fixture);
}
END_TEST

/* A collective that fails leaves nothing. */
START_TEST(test_failed_is_not_kept)
{
    struct fixture *fixture = fixture_create(&alone);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    ck_assert_uint_eq(kept_bytes(fixture), BYTES);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_eq(kept_bytes(fixture), 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- over the fabric -------------------------------------------------------------------------- */

static struct wire_header asks(uint64_t number, uint32_t from, uint32_t to, uint64_t count)
{
    struct wire_header header =
        fixture_header(1, WIRE_CONTRIBUTION, WIRE_SEND_SEQUENCE | number, 0, count);
    header.ask = (struct wire_ask){.kind = COLLECTIVE_SEND,
                                   .dtype = DTYPE_F32,
                                   .count = count,
                                   .block = route_replay_block(ROUTE_REPLAY, from, to, 3)};
    return header;
}

/* The first sum of both nodes; its owner is the only server. */
static void sum_of_both(struct fixture *fixture, bool here)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        fixture_fill(fixture, rank, 0, COUNT, 1);
        fixture_submit_sum(fixture, rank, 0, COUNT);
    }
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    int result = here ? fixture_contribute(fixture, 1, 0, 0, COUNT, 2)
                      : fixture_result(fixture, 1, 0, 0, COUNT, 7);
    ck_assert_int_eq(result, 0);
    for (int i = 0; i < 2; i++) { /* HELD or STABLE follows */
        fixture_run(fixture);
        fixture_all_reduced(fixture);
        fixture_all_sent(fixture);
    }
    fixture->completion_count = 0;
}

START_TEST(test_another_node_asks)
{
    struct fixture_options options = apart();
    options.weights[_i] = 0;
    struct fixture *fixture = fixture_create(&options);
    sum_of_both(fixture, _i == 1);
    ck_assert_int_eq(fixture_message(fixture, 1, asks(0, 0, 2, COUNT), NULL, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header sent = fixture_sending(fixture, 0);
    ck_assert_int_eq(sent.type, WIRE_RESULT);
    ck_assert_uint_eq(sent.payload_bytes, BYTES);
    const float *payload = fixture->sends[0]->payload;
    ck_assert_float_eq(payload[0], _i == 1 ? 4 : 7); /* 1 + 1 + 2 */
    ck_assert_float_eq(payload[1], _i == 1 ? 6 : 7);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_message(fixture, 1, asks(1, 0, 2, COUNT), NULL, 0), 0);
    ck_assert_uint_eq(fixture_sending(fixture, 0).payload_bytes, 0); /* it is not kept */
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_asked_for_what_cannot_be)
{
    struct fixture_options options = apart();
    struct fixture *fixture = fixture_create(&options);
    float data[COUNT] = {0};
    struct wire_header header = asks(0, 0, 2, COUNT);
    if (_i == 0)
        header = asks(0, 0, 1, COUNT); /* for a rank that is not its own */
    else if (_i == 1)
        header = asks(0, 2, 1, COUNT); /* of a rank that is not of this node */
    else if (_i == 2)
        header.chunk = 1;
    else if (_i == 3)
        header.sequence = 0;
    else if (_i == 4)
        header.type = WIRE_DISAGREE;
    uint32_t bytes = _i == 5 ? sizeof(data) : 0;
    ck_assert_int_eq(fixture_message(fixture, 1, header, data, bytes), ERR_PROTOCOL);
    fixture_destroy(fixture);
}
END_TEST

/* Rank 1 asks rank 2, which is on node 1. */
START_TEST(test_this_node_asks)
{
    struct fixture_options options = apart();
    struct fixture *fixture = fixture_create(&options);
    struct arena_submission ask = replay(fixture, ROUTE_REPLAY, 2, 1, 4, COUNT);
    float payload[COUNT] = {8, 9};
    ck_assert_int_eq(fixture_submit(fixture, 1, &ask), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header header = fixture_sending(fixture, 0);
    ck_assert_int_eq(header.type, WIRE_CONTRIBUTION);
    ck_assert_uint_eq(header.payload_bytes, 0);
    fixture_all_sent(fixture);
    header.type = WIRE_RESULT;
    header.token = fixture_receive_token(1);
    ck_assert_int_eq(fixture_message(fixture, 1, header, payload, _i == 0 ? BYTES : 0), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(done(fixture), (uint32_t)_i);
    if (_i == 0)
        ck_assert_float_eq(fixture_data(fixture, 1, PLACE)[1], 9);
    ck_assert_uint_eq(fixture->send_count, 0); /* nobody is told that it has come */
    header.number++;
    ck_assert_int_eq(fixture_message(fixture, 1, header, payload, BYTES), ERR_PROTOCOL);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_ranks_that_ask_wrongly)
{
    struct fixture *fixture = fixture_create(&alone);
    struct arena_submission ask = replay(fixture, ROUTE_REPLAY, 0, 1, 0, COUNT);
    ck_assert_int_eq(fixture_submit(fixture, 0, &ask), ERR_PROTOCOL);
    fixture_expect_error(fixture, ERR_PROTOCOL, ERR_PROTOCOL, "by the rank that it asks");
    ask.block = 1 + 3 * 9;
    ck_assert_int_ne(fixture_submit(fixture, 1, &ask), 0);
    struct arena_submission numbers = {.type = ARENA_NUMBER, .group = 1};
    ck_assert_int_eq(fixture_submit(fixture, 1, &numbers), ERR_PROTOCOL);
    fixture_destroy(fixture);
}
END_TEST

/* Ranks that have left are no reason to fail: their daemon answers. */
START_TEST(test_of_a_rank_that_has_left)
{
    struct fixture *fixture = fixture_create(&alone);
    add_up(fixture, 0, COUNT, 1);
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 0, 1);
    fixture_run(fixture);
    ck_assert(gets(fixture, 0, COUNT, 1));
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("archive");
    TCase *tests = tcase_create("archive");
    tcase_add_test(tests, test_the_last_are_kept);
    tcase_add_test(tests, test_only_sums_are_kept);
    tcase_add_loop_test(tests, test_where_nothing_is_kept, 0, 3);
    tcase_add_test(tests, test_bytes_bound);
    tcase_add_test(tests, test_jobs_share_the_bytes);
    tcase_add_test(tests, test_memory_is_shared_by_users);
    tcase_add_loop_test(tests, test_what_is_under_way_is_shared_by_users, 0, 2);
    tcase_add_test(tests, test_numbers_go_on);
    tcase_add_test(tests, test_numbers_that_cannot_be);
    tcase_add_loop_test(tests, test_how_long_it_lasts, 0, 2);
    tcase_add_test(tests, test_read_while_it_goes);
    tcase_add_test(tests, test_failed_is_not_kept);
    tcase_add_loop_test(tests, test_another_node_asks, 0, 2);
    tcase_add_loop_test(tests, test_asked_for_what_cannot_be, 0, 6);
    tcase_add_loop_test(tests, test_this_node_asks, 0, 2);
    tcase_add_test(tests, test_ranks_that_ask_wrongly);
    tcase_add_test(tests, test_of_a_rank_that_has_left);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
