/* Jobs that have ended: for how long they are kept, and whose make room. */
#include "server/jobs/ended.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/suite.h"

enum { GREEDY = 1000, OTHER };
#define S 1000000000ull

static struct ended_jobs ended;

static void setup(void)
{
    ended_init(&ended);
}

static void teardown(void)
{
    ended_clear(&ended);
}

static void end_at(uint32_t uid, uint64_t lineage, const char *failure, uint64_t now_ns)
{
    struct job job = {.lineage = lineage,
                      .uid = uid,
                      .world_size = 4,
                      .state = failure ? JOB_FAILED : JOB_READY,
                      .began_ns = S};
    snprintf(job.name, sizeof(job.name), "job%u", (unsigned)lineage);
    snprintf(job.text, sizeof(job.text), "%s", failure ? failure : "of its opening");
    ended_note(&ended, &job, now_ns);
}

static uint32_t of_user(uint32_t uid)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ended.places.used; i++)
        count += ended.jobs[i].uid == uid;
    return count;
}

START_TEST(it_says_how_a_job_ended)
{
    end_at(GREEDY, 1, NULL, 5 * S);
    end_at(OTHER, 2, "rank 1 is gone", 6 * S);
    ck_assert_uint_eq(ended.places.used, 2);
    ck_assert(!ended.jobs[0].failed);
    ck_assert_str_eq(ended.jobs[0].text, "");
    ck_assert_str_eq(ended.jobs[0].name, "job1");
    ck_assert(ended.jobs[1].failed);
    ck_assert_str_eq(ended.jobs[1].text, "rank 1 is gone");
    ck_assert_uint_eq(ended.jobs[1].ended_ns - ended.jobs[1].began_ns, 5 * S);
    ck_assert_uint_eq(ended.jobs[1].world_size, 4);
}
END_TEST

/* A job that has gone on is noted once, with how its last generation ended. */
START_TEST(a_job_ends_once)
{
    end_at(GREEDY, 1, "rank 1 is gone", 5 * S);
    end_at(GREEDY, 2, NULL, 6 * S);
    end_at(GREEDY, 1, NULL, 7 * S);
    ck_assert_uint_eq(ended.places.used, 2);
    ck_assert_str_eq(ended.jobs[0].name, "job2");
    ck_assert_str_eq(ended.jobs[1].name, "job1");
    ck_assert(!ended.jobs[1].failed);
    ck_assert_uint_eq(quota_used(&ended.places, GREEDY), 2);
}
END_TEST

START_TEST(what_is_old_goes)
{
    end_at(GREEDY, 1, NULL, 5 * S);
    ck_assert(!ended_is_old(&ended.jobs[0], 5 * S + ENDED_NS));
    ck_assert(ended_is_old(&ended.jobs[0], 6 * S + ENDED_NS));
    end_at(GREEDY, 2, NULL, 6 * S + ENDED_NS);
    ck_assert_uint_eq(ended.places.used, 1);
    ck_assert_str_eq(ended.jobs[0].name, "job2");
}
END_TEST

START_TEST(who_has_most_makes_room)
{
    for (uint64_t i = 0; i < 3 * ENDED_MAX; i++)
        end_at(GREEDY, i, NULL, i * S);
    ck_assert_uint_eq(of_user(GREEDY), ENDED_MAX);
    ck_assert_uint_eq(ended.jobs[0].lineage, 2 * ENDED_MAX); /* his newest */
    for (uint64_t i = 0; i < ENDED_MAX / 2; i++)
        end_at(OTHER, 1000 + i, NULL, 1000 * S);
    ck_assert_uint_eq(of_user(OTHER), ENDED_MAX / 2);
    for (uint64_t i = 0; i < ENDED_MAX; i++)
        end_at(GREEDY, 2000 + i, NULL, 1000 * S);
    ck_assert_uint_eq(of_user(OTHER), ENDED_MAX / 2);
    ck_assert_uint_eq(of_user(GREEDY), ENDED_MAX / 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ended");
    TCase *cases = tcase_create("ended");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, it_says_how_a_job_ended);
    tcase_add_test(cases, a_job_ends_once);
    tcase_add_test(cases, what_is_old_goes);
    tcase_add_test(cases, who_has_most_makes_room);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
