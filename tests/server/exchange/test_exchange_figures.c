/* Figures that an exchange tells of itself and of its jobs. */
#include "common/base/clock.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#define COUNT FIXTURE_CHUNK

/* Ranks 0 and 3 here, which is the server. */
static struct fixture *two_ranks_here(void)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 4, .rank_nodes = {0, 2, 1, 0}, .weights = {1}};
    return fixture_create(&options);
}

START_TEST(figures_are_kept)
{
    struct fixture *fixture = two_ranks_here();
    fixture_submit_sum(fixture, 0, 0, COUNT);
    struct engine_job_status job;
    ck_assert_uint_eq(exchange_job_totals(fixture->exchange, &job, 1), 1);
    ck_assert_uint_eq(job.slowest_rank, UINT32_MAX);
    ck_assert_uint_eq(job.bytes_submitted, 256);
    ck_assert(!exchange_idle(fixture->exchange));
    fixture_submit_sum(fixture, 3, 0, COUNT);
    fixture_reduce(fixture, 0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    ck_assert_int_eq(fixture_contribute(fixture, 2, 0, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert(!exchange_idle(fixture->exchange)); /* results are under way */
    fixture_all_sent(fixture);
    ck_assert(exchange_idle(fixture->exchange));
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.bytes_reduced, 2 * 256 + 3 * 256);
    ck_assert_uint_eq(totals.collectives, 1);
    ck_assert_uint_eq(totals.workers, 2);
    ck_assert_uint_eq(totals.jobs, 1);
    ck_assert_uint_eq(totals.slots, 0);
    ck_assert_uint_eq(exchange_job_totals(fixture->exchange, &job, 1), 1);
    ck_assert_uint_eq(job.job, FIXTURE_JOB);
    ck_assert_uint_eq(job.bytes_submitted, 512);
    ck_assert_uint_eq(job.collectives, 1);
    ck_assert_uint_eq(job.groups, 1);
    ck_assert_uint_eq(job.slowest_rank, 3);
    ck_assert_uint_eq(job.slowest_times, 1);
    ck_assert(!job.failed);
    fixture_destroy(fixture);
}
END_TEST

static struct overlap_figures split_at(struct fixture *fixture, uint64_t now_ns)
{
    struct engine_job_status job;
    fixture->now_ns = now_ns;
    exchange_time(fixture->exchange, now_ns, 0);
    exchange_job_totals(fixture->exchange, &job, 1);
    return job.overlap;
}

/* Two collectives, the second 3 ms behind the first, both over 4 ms after that; a rank that comes
 * late is still computing, and a receive that nobody sends to is nobody's communication. */
START_TEST(the_time_of_a_job_is_split)
{
    struct fixture *fixture = two_ranks_here();
    struct overlap_figures told = split_at(fixture, 10 * NS_PER_MS);
    uint32_t before_us = told.window_us;
    ck_assert_uint_eq(told.hidden_us + told.exposed_us, 0);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    struct arena_submission receive = fixture_ask(fixture, 3, 0, COUNT);
    receive.kind = COLLECTIVE_SEND;
    receive.request = 7;
    receive.sequence = WIRE_SEND_SEQUENCE;
    receive.block = 1 + 1 * 4 + 3; /* from rank 1 to rank 3 of 4 */
    ck_assert_msg(fixture_submit(fixture, 3, &receive) == 0, "%s", fixture->error.text);
    split_at(fixture, 12 * NS_PER_MS);
    fixture_submit_sum(fixture, 3, 0, COUNT);
    split_at(fixture, 15 * NS_PER_MS);
    fixture_submit_sum(fixture, 0, 1, COUNT);
    fixture_submit_sum(fixture, 3, 1, COUNT);
    told = split_at(fixture, 16 * NS_PER_MS);
    ck_assert_uint_eq(told.hidden_us, 3000);
    ck_assert_uint_eq(told.exposed_us, 1000);
    split_at(fixture, 19 * NS_PER_MS);
    fixture_all_reduced(fixture);
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        for (uint32_t node = 1; node <= 2; node++)
            ck_assert_int_eq(fixture_contribute(fixture, node, sequence, 0, COUNT, 1), 0);
        fixture_all_reduced(fixture);
    }
    fixture_all_sent(fixture);
    told = split_at(fixture, 30 * NS_PER_MS);
    ck_assert_uint_eq(told.window_us, before_us + 20000);
    ck_assert_uint_eq(told.hidden_us, 3000);
    ck_assert_uint_eq(told.exposed_us, 4000);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_figures");
    TCase *tests = tcase_create("figures");
    tcase_add_test(tests, figures_are_kept);
    tcase_add_test(tests, the_time_of_a_job_is_split);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
