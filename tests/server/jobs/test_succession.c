/* The rest of a job that has failed. Four ranks on nodes 0, 1 and 2; node 3 is a server. */
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

static void wish(int32_t rank, uint32_t least_ranks, uint32_t wait_ms, uint64_t deadline_ns)
{
    struct error error;
    struct gathering_member member = {.node = succession->rank_nodes[rank],
                                      .member = 20 + (uint32_t)rank,
                                      .rank = rank,
                                      .least_ranks = least_ranks,
                                      .wait_ms = wait_ms,
                                      .deadline_ns = deadline_ns};
    ck_assert_int_eq(succession_ask(succession, &member, &error), 0);
}

#define MS UINT64_C(1000000)

/* The greatest number and the longest time of those that are there and have a say. */
START_TEST(test_wishes)
{
    ck_assert_uint_eq(succession_least_ranks(succession), 0);
    wish(0, 3, 40, 900 * MS);
    wish(1, 5, 20, 800 * MS);
    wish(2, 0, 77, 700 * MS); /* no wish */
    wish(3, 9, 99, 1 * MS);
    succession->asks[3].newcomer = true;
    ck_assert_uint_eq(succession_least_ranks(succession), 5);
    ck_assert_uint_eq(succession_wait_end(succession, 0), UINT64_MAX); /* not begun */
    succession->short_ns = 100 * MS;
    ck_assert_uint_eq(succession_wait_end(succession, 100 * MS), 140 * MS);
    ck_assert_uint_eq(succession_wait_end(succession, 590 * MS), 110 * MS);
    ck_assert_uint_eq(succession_wait_end(succession, 701 * MS), 0);
    succession_set_gone(succession, 1);
    ck_assert_uint_eq(succession_least_ranks(succession), 3);
    succession->waited = true;
    ck_assert_uint_eq(succession_wait_end(succession, 0), UINT64_MAX);
    succession->waited = false;
    succession->formed = true;
    ck_assert_uint_eq(succession_wait_end(succession, 0), UINT64_MAX);
    succession->formed = false;
    for (uint32_t rank = 0; rank < 3; rank++)
        succession_set_gone(succession, rank);
    ck_assert_uint_eq(succession_least_ranks(succession), 0); /* a newcomer has no say */
    ck_assert_uint_eq(succession_wait_end(succession, 0), UINT64_MAX);
}
END_TEST

/* A wait goes on where a generation fails while it opens, and begins anew where one was ready. */
START_TEST(test_wait_and_generations)
{
    uint32_t elders[] = {0, 1, 2, 3};
    ck_assert_uint_eq(succession->short_ns, UINT64_MAX);
    succession->short_ns = 100;
    succession->waited = true;
    for (int ready = 0; ready < 2; ready++) {
        struct job *job = make_job(4, 2, ready, elders, 4);
        struct succession *next = succession_create(job, succession, 200);
        job_free(job);
        ck_assert_uint_eq(next->short_ns, ready ? UINT64_MAX : 100);
        ck_assert_int_eq(next->waited, !ready);
        succession_free(next);
    }
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

static void part(uint32_t node, uint32_t expected)
{
    ck_assert_uint_eq(succession_part_node(succession, node, 10, 50), expected);
}

/* Ranks 1 and 2 are away with node 1. Rank 1 comes back as another worker of that node. */
START_TEST(test_away_and_back)
{
    char text[JOB_RANKS_TEXT_BYTES];
    struct error error;
    uint32_t rank = 99;
    struct gathering_member back = {.node = 1, .member = 70, .rank = 1};
    ck_assert_int_eq(succession_return(succession, &back, 3, 21, &rank, &error), ERR_STATE);
    ck_assert_str_eq(error.text, "rank 1 of job 'train' is not without a daemon");
    ck_assert(!succession_has_away(succession));
    ck_assert(succession_away_deadline(succession) == UINT64_MAX);
    ask(0);
    ask(3);
    ask(2);
    part(1, 2);
    part(1, 0); /* they are away already, and no longer */
    ck_assert_uint_eq(succession->ask_count, 2);
    ck_assert(succession->lost[1]);
    ck_assert(succession_has_away(succession) && !succession_complete(succession));
    ck_assert(succession_away_deadline(succession) == 50);
    succession_away_text(succession, 1, text);
    ck_assert_str_eq(text, "ranks 1, 2");
    back.node = 2;
    ck_assert_int_eq(succession_return(succession, &back, 3, 21, &rank, &error), ERR_STATE);
    back.node = 1;
    back.rank = 4;
    ck_assert_int_eq(succession_return(succession, &back, 3, 21, &rank, &error), ERR_STATE);
    back.rank = 1;
    ck_assert_int_eq(succession_return(succession, &back, 3, 0, &rank, &error), 0);
    ck_assert_uint_eq(rank, 1);
    ck_assert_uint_eq(succession->workers[1], 70);
    ck_assert_int_eq(succession_return(succession, &back, 3, 0, &rank, &error), 0); /* again */
    succession_away_text(succession, 1, text);
    ck_assert_str_eq(text, "rank 2");
    /* A process of an older generation, in which it had another rank, is known by what its daemon
     * called it. */
    back = (struct gathering_member){.node = 1, .member = 71, .rank = 0};
    ck_assert_int_eq(succession_return(succession, &back, 2, 9, &rank, &error), ERR_STATE);
    ck_assert_int_eq(succession_return(succession, &back, 2, 22, &rank, &error), 0);
    ck_assert_uint_eq(rank, 2);
    ck_assert(succession_complete(succession));
    part(1, 2); /* once more */
    back.member = 72;
    succession_set_gone(succession, 2);
    ck_assert_int_eq(succession_return(succession, &back, 2, 71, &rank, &error), ERR_STATE);
}
END_TEST

/* A generation with those who have come back is open: they do not ask any more. */
START_TEST(test_back_and_open)
{
    struct error error;
    uint32_t rank;
    struct gathering_member back = {.node = 2, .member = 23, .rank = 3};
    part(2, 1);
    ck_assert_int_eq(succession_return(succession, &back, 3, 23, &rank, &error), 0);
    ask(0);
    uint32_t elders[] = {0, 1};
    struct job *job = make_job(4, 1, false, elders, 2);
    succession_open(succession, job);
    ck_assert_uint_eq(succession->ask_count, 1);
    ck_assert_int_eq(succession->asks[0].rank, 0);
    job_free(job);
}
END_TEST

/* The home alone had heard that they were back. */
START_TEST(test_back_unheard)
{
    uint32_t elders[] = {0, 1};
    part(1, 2);
    part(2, 1);
    struct job *job = make_job(4, 1, true, elders, 2);
    succession_open(succession, job); /* none of its ranks is one that has come back */
    ck_assert(succession_has_away(succession));
    job->members[1] = 97;
    job->rank_nodes[2] = 0; /* rank 2 is not back */
    job->members[3] = 99;
    succession_open(succession, job);
    ck_assert_uint_eq(succession->workers[1], 97);
    ck_assert_uint_eq(succession->states[1], SUCCESSION_AWAITED);
    ck_assert_uint_eq(succession->states[2], SUCCESSION_AWAY);
    ck_assert_uint_eq(succession->workers[3], 99);
    job->rank_nodes[2] = 1;
    job->members[2] = 98;
    succession_open(succession, job);
    ck_assert_uint_eq(succession->workers[2], 98);
    ck_assert(!succession_has_away(succession));
    job_free(job);
}
END_TEST

START_TEST(test_kind_unheard)
{
    uint32_t elders[] = {0, 1};
    part(2, 1);
    struct job *next = make_job(4, 1, true, elders, 2);
    next->members[3] = 99;
    succession_open(succession, next);
    ck_assert_int_eq(succession_kind(succession, next), RECOVERY_DAEMON);
    job_free(next);
}
END_TEST

/* The kind says what the next generation, with all ranks or some, has gone on from. */
START_TEST(test_kind)
{
    uint32_t elders[] = {0, 1};
    struct job *next = make_job(4, 1, true, elders, 2);
    ck_assert_int_eq(succession_kind(succession, next), RECOVERY_GENERATION); /* nobody is lost */
    succession_lose_node(succession, 4);                                      /* that had no part */
    ck_assert_int_eq(succession_kind(succession, next), RECOVERY_GENERATION);
    succession_lose_node(succession, 3);
    ck_assert_int_eq(succession_kind(succession, next), RECOVERY_SERVER);
    next->members[3] = 99; /* another process */
    ck_assert_int_eq(succession_kind(succession, next), RECOVERY_GENERATION);
    struct error error;
    uint32_t rank;
    struct gathering_member back = {.node = 2, .member = 99, .rank = 3};
    part(2, 1);
    ck_assert_int_eq(succession_return(succession, &back, 3, 23, &rank, &error), 0);
    ck_assert_int_eq(succession_kind(succession, next), RECOVERY_DAEMON);
    next->world_size--;
    ck_assert_int_eq(succession_kind(succession, next), RECOVERY_GENERATION);
    job_free(next);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("succession");
    TCase *tests = tcase_create("succession");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_those_who_are_left);
    tcase_add_test(tests, test_who_asked_and_went);
    tcase_add_test(tests, test_wishes);
    tcase_add_test(tests, test_wait_and_generations);
    tcase_add_test(tests, test_home);
    tcase_add_test(tests, test_taken_over);
    tcase_add_test(tests, test_was_ready);
    tcase_add_test(tests, test_rank_of_a_worker);
    tcase_add_test(tests, test_away_and_back);
    tcase_add_test(tests, test_back_and_open);
    tcase_add_test(tests, test_back_unheard);
    tcase_add_test(tests, test_kind_unheard);
    tcase_add_test(tests, test_kind);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
