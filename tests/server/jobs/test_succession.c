/* What is left of a job that has failed. Four ranks on nodes 0, 1 and 2; node 3 is a server. */
#include <stdlib.h>

#include "server/jobs/succession.h"
#include "tests/lib/suite.h"

static struct succession *succession;

static void setup(void)
{
    uint32_t ranks[] = {0, 1, 1, 2}, members[] = {7, 8, 9, 10}, servers[] = {0, 1, 2, 3};
    uint32_t weights[] = {1, 1, 1, 1};
    struct message message = {.type = MESSAGE_JOB_OPEN,
                              .job = "train",
                              .job_id = 5,
                              .generation = 3,
                              .uid = 1000,
                              .ranks = {ranks, 4},
                              .members = {members, 4},
                              .servers = {servers, 4},
                              .weights = {weights, 4}};
    struct job *job;
    struct error error;
    ck_assert_int_eq(job_create(&job, &message, 2, 0, 5, &error), 0);
    succession = succession_create(job, 100);
    ck_assert_ptr_nonnull(succession);
    job_free(job);
}

static void teardown(void)
{
    succession_free(succession);
}

static int ask(int32_t rank)
{
    struct error error;
    struct gathering_member member = {
        .node = succession->rank_nodes[rank], .member = 20 + (uint32_t)rank, .rank = rank};
    return succession_ask(succession, &member, &error);
}

START_TEST(test_those_who_are_left)
{
    ck_assert_int_eq(ask(3), 0);
    ck_assert_int_eq(ask(0), 0);
    ck_assert_int_eq(ask(0), ERR_STATE);
    ck_assert(!succession_complete(succession));
    succession_set_gone(succession, 1);
    ck_assert_int_eq(ask(1), ERR_STATE);
    char text[300];
    succession_awaited_text(succession, text, sizeof(text));
    ck_assert_str_eq(text, "rank 2 has not asked for the next generation of job 'train'");
    ck_assert_int_eq(ask(2), 0);
    ck_assert(succession_complete(succession));
    struct gathering *gathering = succession_gather(succession);
    ck_assert(gathering_complete(gathering));
    ck_assert_uint_eq(gathering->generation, 4);
    ck_assert_uint_eq(gathering->world_size, 3);
    uint32_t nodes[3], members[3];
    gathering_assign(gathering, nodes, members);
    static const uint32_t expected_nodes[] = {0, 1, 2}, expected_members[] = {20, 22, 23};
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(nodes[rank], expected_nodes[rank]);
        ck_assert_uint_eq(members[rank], expected_members[rank]);
    }
    gathering_free(gathering);
}
END_TEST

START_TEST(test_who_asked_and_went)
{
    for (int32_t rank = 0; rank < 4; rank++)
        ck_assert_int_eq(ask(rank), 0);
    succession_set_gone(succession, 0);
    succession_lose_node(succession, 1);
    ck_assert_uint_eq(succession->ask_count, 1);
    ck_assert_int_eq(succession->asks[0].rank, 3);
    ck_assert(succession_complete(succession));
    succession_unask(succession, 0);
    ck_assert(!succession_complete(succession));
    succession_set_gone(succession, 3);
    ck_assert(!succession_complete(succession)); /* nobody is left to go on */
}
END_TEST

/* From the job's home on, around, and over node 4, which has no part in the job. */
START_TEST(test_home)
{
    ck_assert_uint_eq(succession_home(succession), 2);
    succession_lose_node(succession, 2);
    ck_assert_uint_eq(succession_home(succession), 3);
    succession_lose_node(succession, 3);
    ck_assert_uint_eq(succession_home(succession), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("succession");
    TCase *tests = tcase_create("succession");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_those_who_are_left);
    tcase_add_test(tests, test_who_asked_and_went);
    tcase_add_test(tests, test_home);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
