/* Users share the places of a daemon's jobs: gatherings, open jobs, workers, questions about late
 * ranks. No user takes them from the others. */
#include <stdio.h>

#include "tests/lib/job_name.h"
#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

enum { GREEDY = 1000, OTHER, THIRD };

static struct network *network;
static uint32_t names;

static void setup(void)
{
    network = network_create_connected(2);
    names = 0;
    for (uint32_t node = 0; node < 2; node++)
        network_config(network, node)->jobs = 4;
}

static void teardown(void)
{
    network_free(network);
}

/* Join the user's rank 0 of a job with a new name, whose home is node 1. */
static struct network_worker *come(uint32_t uid, uint32_t node, uint32_t world_size)
{
    char begin[24], name[64];
    snprintf(begin, sizeof(begin), "job%u", names++);
    job_name_with_home(name, begin, 1, 2);
    network_set_uid(network, uid);
    struct network_worker *worker = network_join(network, node, name, world_size, 0, -1, 0);
    network_settle(network);
    return worker;
}

static uint32_t gathering_of(uint32_t uid)
{
    uint32_t count = 0;
    for (const struct gathering *it = coordinator_gatherings(network_coordinator(network, 1)); it;
         it = it->hh.next)
        count += it->uid == uid;
    return count;
}

/* All places are one user's while nobody else asks; then he has half, and less where more ask. */
START_TEST(test_gatherings)
{
    struct network_worker *greedy[5];
    for (int i = 0; i < 5; i++)
        greedy[i] = come(GREEDY, 0, 2);
    ck_assert_uint_eq(gathering_of(GREEDY), 4);
    ck_assert_int_eq(greedy[3]->state, CLIENT_JOINING);
    network_assert_text(greedy[4], "there may be 4 jobs that gather their ranks on node b "
                                   "(limits.jobs), 2 of them one user's: there are 4, user 1000 "
                                   "has 4 and asks for 1 more; end some of them first");
    struct network_worker *first = come(OTHER, 1, 2), *second = come(OTHER, 0, 2);
    ck_assert_int_eq(first->state, CLIENT_JOINING);
    ck_assert_int_eq(second->state, CLIENT_JOINING);
    /* The newest went: who waits for longest is nearest to its other ranks. */
    ck_assert_int_eq(greedy[1]->state, CLIENT_JOINING);
    network_assert_text(greedy[2], "gives its place to a job of user 1001: 4 jobs may gather their "
                                   "ranks at node b (limits.jobs), and user 1000 has most");
    network_assert_text(greedy[3], "gives its place");
    ck_assert_int_eq(greedy[3]->failure.code, ERR_MEMORY);
    network_assert_text(come(OTHER, 0, 2), "user 1001 has 2 and asks for 1 more; end some of them");
    ck_assert_int_eq(come(THIRD, 0, 2)->state, CLIENT_JOINING);
    ck_assert_uint_eq(gathering_of(GREEDY) + gathering_of(OTHER), 3);
    ck_assert_uint_eq(gathering_of(THIRD), 1);
}
END_TEST

/* 128 connections of one user of one node, with nothing to come after them. */
START_TEST(test_idle_connections)
{
    for (uint32_t node = 0; node < 2; node++) {
        network_config(network, node)->jobs = 64;
        network_config(network, node)->workers = 1024;
    }
    for (uint32_t i = 0; i < 128; i++) {
        char begin[24], name[64];
        snprintf(begin, sizeof(begin), "idle%u", i);
        job_name_with_home(name, begin, i % 2, 2);
        network_set_uid(network, GREEDY);
        network_join(network, 0, name, 2, 0, -1, 0);
    }
    network_settle(network);
    network_set_uid(network, OTHER);
    for (uint32_t home = 0; home < 2; home++) {
        char name[64];
        job_name_with_home(name, "real", home, 2);
        struct network_worker *one = network_join(network, 0, name, 2, 0, -1, 0);
        struct network_worker *two = network_join(network, 1, name, 2, 1, -1, 0);
        network_settle(network);
        ck_assert_int_eq(one->state, CLIENT_JOINED);
        ck_assert_int_eq(two->state, CLIENT_JOINED);
    }
}
END_TEST

/* A user for whom too much waits for a node begins nothing new there: no join, no refusal of one,
 * no group. All that was begun ends, and other users and other nodes see nothing of it. */
START_TEST(test_what_waits_for_a_node)
{
    char name[64], here[64];
    const uint32_t ranks[2] = {0, 1};
    job_name_with_home(name, "train", 1, 2);
    job_name_with_home(here, "here", 0, 2);
    network_set_uid(network, GREEDY);
    struct network_worker *one = network_join(network, 0, name, 2, 0, -1, 0);
    struct network_worker *two = network_join(network, 1, name, 2, 1, -1, 0);
    network_settle(network);
    ck_assert_int_eq(one->state, CLIENT_JOINED);
    struct network_worker *waits = come(GREEDY, 0, 2);
    network_set_unheard(network, GREEDY);
    struct network_worker *late = come(GREEDY, 0, 2);
    network_assert_text(late, "node b has yet to hear as much of user 1000 as may wait for it on "
                              "node a: try again when it is back");
    ck_assert_int_eq(late->failure.code, ERR_MEMORY);
    network_group_open(network, one, ranks, 2, 0, 500);
    network_settle(network);
    ck_assert(one->group_refused);
    network_group_open(network, two, ranks, 2, 0, 500); /* at its own node */
    network_settle(network);
    ck_assert(!two->group_refused);
    uint32_t gatherings = gathering_of(GREEDY);
    network_kill(network, waits); /* which is told */
    network_settle(network);
    ck_assert_uint_eq(gathering_of(GREEDY), gatherings - 1);
    ck_assert_int_eq(network_join(network, 0, here, 2, 0, -1, 0)->state, CLIENT_JOINING);
    ck_assert_int_eq(come(OTHER, 0, 2)->state, CLIENT_JOINING);
    network_set_unheard(network, 0);
    ck_assert_int_eq(come(GREEDY, 0, 2)->state, CLIENT_JOINING);
}
END_TEST

/* A user has at most half of the open jobs, since a job that runs is not taken away again. */
START_TEST(test_jobs)
{
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(come(GREEDY, 1, 1)->state, CLIENT_JOINED);
    network_assert_text(come(GREEDY, 1, 1),
                        "there may be 4 jobs on node b (limits.jobs), 2 of them one user's: there "
                        "are 2, user 1000 has 2 and asks for 1 more; end some of them first, or "
                        "raise the limit");
    struct network_worker *last = NULL;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq((last = come(OTHER, 1, 1))->state, CLIENT_JOINED);
    network_assert_text(come(THIRD, 1, 1),
                        "user 1002 has 0 and asks for 1 more; end some of others, or wait");
    network_leave(network, last);
    network_settle(network);
    ck_assert_int_eq(come(THIRD, 1, 1)->state, CLIENT_JOINED);
}
END_TEST

/* Root has all of them, if nobody else has. */
START_TEST(test_jobs_of_root)
{
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(come(0, 1, 1)->state, CLIENT_JOINED);
    network_assert_text(come(0, 1, 1), "4 of them one user's: there are 4, user 0 has 4");
}
END_TEST

/* A job that was refused or has ended holds no place. */
START_TEST(test_jobs_that_end_give_back)
{
    for (int i = 0; i < 20; i++) {
        struct network_worker *one = come(GREEDY, 0, 1), *two = come(GREEDY, 1, 1);
        struct network_worker *waits = come(GREEDY, 1, 2), *refused = come(GREEDY, 1, 1);
        ck_assert_int_eq(one->state, CLIENT_JOINED);
        ck_assert_int_eq(two->state, CLIENT_JOINED);
        ck_assert_int_eq(refused->failure.code, ERR_MEMORY);
        network_kill(network, waits);
        network_leave(network, one);
        network_kill(network, two);
        network_settle(network);
    }
    network_assert_empty(network);
}
END_TEST

START_TEST(test_workers)
{
    network_config(network, 0)->workers = 4;
    struct network_worker *three[3];
    for (int i = 0; i < 3; i++)
        three[i] = come(GREEDY, 0, 2); /* of a job of its own */
    ck_assert_int_eq(three[1]->state, CLIENT_JOINING);
    network_assert_text(three[2],
                        "there may be 4 workers on node a (limits.workers), 2 of them one "
                        "user's: there are 2, user 1000 has 2 and asks for 1 more; end some");
    ck_assert_int_eq(come(OTHER, 0, 1)->state, CLIENT_JOINED);
    ck_assert_int_eq(come(OTHER, 0, 1)->state, CLIENT_JOINED);
    network_assert_text(come(0, 0, 1), "there may be 4 workers on node a (limits.workers)");
    network_kill(network, three[0]);
    ck_assert_int_eq(come(0, 0, 1)->state, CLIENT_JOINED);
}
END_TEST

static void ask(uint32_t count, uint64_t job, uint64_t first)
{
    for (uint32_t i = 0; i < count; i++) {
        struct error error;
        struct message query = {.type = MESSAGE_LATE_QUERY, .job_id = job, .sequence = first + i};
        ck_assert_int_eq(coordinator_peer_message(network_coordinator(network, 1),
                                                  network_now(network), 0, &query, &error),
                         0);
    }
}

/* Another daemon asks about one user's job without end while the engine does not answer. Its
 * questions about another user's job are heard. */
START_TEST(test_questions_for_late_ranks)
{
    static const uint32_t rank_1[] = {1};
    uint32_t nodes[] = {1};
    uint64_t jobs[2];
    for (uint32_t i = 0; i < 2; i++) {
        char begin[24], name[64];
        snprintf(begin, sizeof(begin), "late%u", i);
        job_name_with_home(name, begin, 1, 2);
        network_set_uid(network, i == 0 ? GREEDY : OTHER);
        struct network_worker *one = network_join(network, 0, name, 2, 0, -1, 0);
        network_join(network, 1, name, 2, 1, -1, 0);
        network_settle(network);
        ck_assert_int_eq(one->state, CLIENT_JOINED);
        jobs[i] = one->joined.job_id;
    }
    network_hold_engine(network, 1, true);
    network_set_late(network, 1, rank_1, 1);
    ask(4096, jobs[0], 100);
    network_engine_says(
        network, 0,
        (struct engine_event){
            .type = ENGINE_LATE, .job = jobs[1], .sequence = 17, .nodes = nodes, .node_count = 1});
    network_settle(network);
    network_hold_engine(network, 1, false);
    network_settle(network);
    const struct job *job = coordinator_jobs(network_coordinator(network, 0));
    while (job && job->id != jobs[1])
        job = job->hh.next;
    ck_assert_ptr_nonnull(job);
    ck_assert_ptr_nonnull(job->lates);
    ck_assert_uint_eq(job->lates->rank_count, 1);
    ck_assert_uint_eq(job->lates->ranks[0], 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_limits");
    TCase *cases = tcase_create("coordinator_limits");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_gatherings);
    tcase_add_test(cases, test_idle_connections);
    tcase_add_test(cases, test_what_waits_for_a_node);
    tcase_add_test(cases, test_jobs);
    tcase_add_test(cases, test_jobs_of_root);
    tcase_add_test(cases, test_jobs_that_end_give_back);
    tcase_add_test(cases, test_workers);
    tcase_add_test(cases, test_questions_for_late_ranks);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
