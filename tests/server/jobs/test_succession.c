/* What is left of a job that has failed. Four ranks on nodes 0, 1 and 2; node 3 is a server. */
#include <stdlib.h>

#include "server/jobs/succession.h"
#include "tests/lib/suite.h"

static struct succession *succession;

/* Workers 20, 21 ... of its ranks; home: the daemon that opened it. */
static struct job *make_job(uint32_t generation, uint32_t home, bool was_ready, uint32_t *elders,
                            uint32_t elders_count)
{
    uint32_t ranks[] = {0, 1, 1, 2}, members[] = {20, 21, 22, 23}, servers[] = {0, 1, 2, 3};
    uint32_t weights[] = {1, 1, 1, 1};
    struct message message = {.type = MESSAGE_JOB_OPEN,
                              .job = "train",
                              .job_id = 5 + generation,
                              .generation = generation,
                              .lineage = 5,
                              .uid = 1000,
                              .ranks = {ranks, 4},
                              .members = {members, 4},
                              .servers = {servers, 4},
                              .weights = {weights, 4},
                              .elders = {elders, elders_count}};
    struct job *job;
    struct error error;
    ck_assert_int_eq(job_create(&job, &message, home, 0, 5, &error), 0);
    job->was_ready = was_ready;
    return job;
}

static void setup(void)
{
    uint32_t elders[] = {0, 1, 2, 3, 4};
    struct job *job = make_job(3, 2, true, elders, 5);
    succession = succession_create(job, NULL, 100);
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
    ck_assert_int_eq(ask(0), 0); /* again */
    ck_assert_uint_eq(succession->ask_count, 2);
    ck_assert(!succession_complete(succession));
    succession_set_gone(succession, 1);
    ck_assert_int_eq(ask(1), ERR_STATE);
    char text[300];
    succession_awaited_text(succession, text, sizeof(text));
    ck_assert_str_eq(text, "rank 2 has not asked for the next generation of job 'train'");
    ck_assert_int_eq(ask(2), 0);
    ck_assert(succession_complete(succession));
    struct gathering *gathering = succession_gather(succession, 0);
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

/* The generation after it fails while it opens: who has asked already has asked for the one after
 * that, and the daemons decide in the same order. */
START_TEST(test_taken_over)
{
    ck_assert_int_eq(ask(2), 0);
    succession->settle_ns = 77;
    succession_set_gone(succession, 0); /* of this node */
    succession_lose_node(succession, 2);
    uint32_t elders[] = {0, 1, 3};
    struct job *job = make_job(4, 3, false, elders, 3);
    struct succession *next = succession_create(job, succession, 200);
    job_free(job);
    ck_assert_ptr_nonnull(next);
    ck_assert_uint_eq(next->lineage, 5);
    ck_assert_uint_eq(next->ask_count, 1);
    ck_assert_uint_eq(next->states[2], SUCCESSION_ASKED);
    ck_assert_uint_eq(next->settle_ns, 77);
    ck_assert_uint_eq(next->past_count, 1);
    ck_assert_uint_eq(next->past[0], 20);
    ck_assert_uint_eq(succession_home(next), 3); /* 2 is here again, and knows nothing of before */
    succession_lose_node(next, 3);
    succession_lose_node(next, 0);
    ck_assert_uint_eq(succession_home(next), 1);
    succession_lose_node(next, 1);
    ck_assert_uint_eq(succession_home(next), 2); /* better than nobody */
    struct gathering *gathering = succession_gather(next, 0);
    ck_assert_uint_eq(gathering->elder_count, 1);
    ck_assert_uint_eq(gathering->elders[0], 2);
    gathering_free(gathering);
    succession_free(next);
}
END_TEST

/* All daemons have heard of a generation that was ready: what was before it is of no use. A daemon
 * that this one lost meanwhile, and the home did not, is an elder as the home said. */
START_TEST(test_was_ready)
{
    succession_set_gone(succession, 0);
    succession_lose_node(succession, 3);
    uint32_t elders[] = {2, 3};
    struct job *job = make_job(4, 2, true, elders, 2);
    struct succession *next = succession_create(job, succession, 200);
    job_free(job);
    ck_assert_ptr_nonnull(next);
    ck_assert_uint_eq(next->past_count, 0);
    succession_lose_node(next, 2);
    ck_assert_uint_eq(succession_home(next), 3);
    succession_free(next);
}
END_TEST

START_TEST(test_rank_of_a_worker)
{
    ck_assert_uint_eq(succession_rank(succession, 1, 22), 2);
    ck_assert_uint_eq(succession_rank(succession, 0, 22), 4);
    ck_assert_uint_eq(succession_rank(succession, 1, 7), 4);
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
    tcase_add_test(tests, test_taken_over);
    tcase_add_test(tests, test_was_ready);
    tcase_add_test(tests, test_rank_of_a_worker);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
