/* Ranks that cannot join, or wait for others: those that have joined and those that come later are
 * told why. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/job_name.h"
#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

#define REASON "cannot map an arena of 268435456 bytes: Cannot allocate memory"
#define WORDS "rank 1 on node b cannot join job 'train-2': " REASON

static struct network *network;
static const char *job;

static void setup(void)
{
    network = network_create_connected(3);
    job = network_name_at(network, 2);
    ck_assert_str_eq(job, "train-2");
}

static void teardown(void)
{
    network_free(network);
}

/* Join on the node. A rank of -1 is not known. A process of age_ms > 0 was there before any note
 * that was made just now. */
static struct network_worker *join_aged(uint32_t node, uint32_t world_size, int32_t rank,
                                        uint32_t age_ms)
{
    network_set_age(network, age_ms);
    struct network_worker *worker = network_join(network, node, job, world_size, rank, -1, 0);
    network_settle(network);
    return worker;
}

static struct network_worker *join(uint32_t node, uint32_t world_size, int32_t rank)
{
    return join_aged(node, world_size, rank, 30000);
}

static int say_unable(uint32_t node, uint32_t world_size, int32_t rank, int code)
{
    struct network_worker caller = {.node = node, .id = 900}; /* which has not joined */
    struct message unable = {
        .type = MESSAGE_UNABLE, .world_size = world_size, .rank = rank, .code = code};
    snprintf(unable.job, sizeof(unable.job), "%s", job);
    snprintf(unable.text, sizeof(unable.text), "%s", REASON);
    int result = network_say(network, &caller, &unable);
    network_settle(network);
    return result;
}

static void refused(const struct network_worker *worker, int code, const char *words)
{
    ck_assert_int_eq(worker->state, CLIENT_OVER);
    ck_assert_int_eq(worker->failure.code, code);
    network_assert_text(worker, words);
}

/* The culprit comes before, between and after the others. */
START_TEST(all_are_told)
{
    struct network_worker *others[3];
    int told = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank == (uint32_t)_i)
            ck_assert_int_eq(say_unable(1, 4, 1, ERR_MEMORY), 0);
        if (rank < 3)
            others[told++] = join(rank, 4, rank == 0 ? 0 : (int32_t)rank + 1);
    }
    for (int i = 0; i < 3; i++)
        refused(others[i], ERR_MEMORY, WORDS);
    network_assert_empty(network);
    /* All know it: who comes now is of another attempt. */
    ck_assert_int_eq(join(0, 4, 0)->state, CLIENT_JOINING);
}
END_TEST

START_TEST(of_a_rank_that_is_not_known)
{
    struct network_worker *other = join(0, 2, -1);
    ck_assert_int_eq(say_unable(1, 2, -1, ERR_SYSTEM), 0);
    refused(other, ERR_SYSTEM, "process ");
    network_assert_text(other, "on node b cannot join job 'train-2': " REASON);
}
END_TEST

static const struct {
    uint32_t wait_ms; /* after the note */
    uint32_t uid, world_size;
    int32_t rank;
    uint32_t age_ms;
    enum network_worker_state state;
} attempts[] = {
    {0, 1000, 3, 0, 1, CLIENT_OVER},          /* it was there */
    {5000, 1000, 3, 0, 5001, CLIENT_OVER},    /* likewise */
    {5000, 1000, 4, 0, 5001, CLIENT_OVER},    /* likewise, of a world that differs */
    {5000, 1000, 3, 0, 2001, CLIENT_OVER},    /* it began soon after */
    {5000, 1000, 3, 0, 2000, CLIENT_JOINING}, /* it began later: another attempt */
    {5000, 1000, 3, 0, 0, CLIENT_JOINING},    /* not known */
    {0, 1000, 3, 1, 1000, CLIENT_JOINING},    /* the rank that could not */
    {60001, 1000, 3, 0, 90000, CLIENT_JOINING},
    {0, 1001, 3, 0, 1000, CLIENT_JOINING}, /* another user, whose business it is not */
};

/* The home tells ranks that come later from ranks of another attempt. */
START_TEST(what_ends_the_note)
{
    ck_assert_int_eq(say_unable(1, 3, 1, ERR_MEMORY), 0);
    network_run(network, attempts[_i].wait_ms);
    network_set_uid(network, attempts[_i].uid);
    struct network_worker *worker =
        join_aged(0, attempts[_i].world_size, attempts[_i].rank, attempts[_i].age_ms);
    ck_assert_int_eq(worker->state, attempts[_i].state);
    /* A rank that has heard it and asks again is of another attempt. */
    if (worker->state == CLIENT_OVER && attempts[_i].world_size == 3)
        ck_assert_int_eq(join(0, 3, 0)->state, CLIENT_JOINING);
}
END_TEST

/* A process that could not join asks again, and now can. Its rank is not known; the daemon knows
 * the process. */
START_TEST(a_process_asks_again)
{
    network_config(network, 1)->workers = 1;
    struct network_worker *before = network_join(network, 1, "other", 2, 0, -1, 0);
    struct network_worker *over = join(1, 2, -1);
    network_assert_text(over, "limits.workers");
    network_kill(network, before);
    network_settle(network);
    struct message again = {
        .type = MESSAGE_JOIN, .world_size = 2, .rank = -1, .local_rank = -1, .age_ms = 9000};
    snprintf(again.job, sizeof(again.job), "%s", job);
    over->state = CLIENT_JOINING;
    over->closed = false;
    ck_assert_int_eq(network_say(network, over, &again), 0);
    network_settle(network);
    ck_assert_int_eq(over->state, CLIENT_JOINING);
}
END_TEST

/* Another user's gathering of the same name goes on: a stranger can tell it nothing. */
START_TEST(another_user_says_it)
{
    struct network_worker *first = join(0, 2, 0);
    network_set_uid(network, 1001);
    ck_assert_int_eq(say_unable(1, 2, 1, ERR_MEMORY), 0);
    ck_assert_int_eq(first->state, CLIENT_JOINING);
    network_set_uid(network, 1000);
    ck_assert_int_eq(join(1, 2, 1)->state, CLIENT_JOINED);
}
END_TEST

/* A node refuses a rank by its own limit, and the ranks on other nodes are told. */
START_TEST(a_limit_of_a_node)
{
    network_config(network, 1)->workers = 1;
    network_join(network, 1, "other", 2, 0, -1, 0);
    struct network_worker *first = join(0, 2, 0);
    struct network_worker *over = join(1, 2, 1);
    network_assert_text(over, "limits.workers");
    refused(first, ERR_MEMORY,
            "rank 1 on node b cannot join job 'train-2': there may be 1 workers on node b "
            "(limits.workers)");
}
END_TEST

START_TEST(a_process_that_ends_while_it_gathers)
{
    struct network_worker *first = join(0, 3, 0), *second = join(1, 3, 1);
    network_kill(network, second);
    network_settle(network);
    refused(first, ERR_LOST, "rank 1 on node b cannot join job 'train-2': its process 4002 ");
    /* The home keeps no note: the launcher may have ended the rest of the attempt too. */
    ck_assert_int_eq(join(0, 3, 0)->state, CLIENT_JOINING);
}
END_TEST

/* The ranks of one user that do not ask for the same job: none of them can begin, in whatever order
 * they come. */
START_TEST(worlds_that_differ)
{
    static const uint32_t orders[][4] = {
        {0, 1, 2, 3}, {1, 0, 2, 3}, {2, 3, 0, 1}, {0, 2, 3, 1}, {1, 3, 2, 0}};
    struct network_worker *ranks[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t rank = orders[_i][i];
        ranks[i] = join(rank % 3, rank == 1 ? 5 : 4, (int32_t)rank);
    }
    for (uint32_t i = 0; i < 4; i++)
        refused(ranks[i], ERR_REFUSED, " by its first rank; process 400");
    network_assert_empty(network);
}
END_TEST

/* The home is not there, and with recovery the job gathers at the next one. */
START_TEST(where_the_job_gathers)
{
    for (uint32_t node = 0; node < 3; node++)
        network_config(network, node)->recovery = true;
    for (uint32_t node = 0; node < 2; node++)
        network_cut(network, node, 2, "cable gone");
    struct network_worker *first = network_join(network, 1, job, 2, 0, -1, 60000);
    network_run(network, network_config(network, 1)->peer_ms + 1000);
    ck_assert_int_eq(say_unable(1, 2, 1, ERR_MEMORY), 0);
    refused(first, ERR_MEMORY, WORDS);
}
END_TEST

START_TEST(a_drain_while_it_gathers)
{
    struct network_worker *first = join(0, 3, 0);
    join(1, 3, 1);
    coordinator_drain(network_coordinator(network, 1), network_now(network), 1000);
    network_settle(network);
    refused(first, ERR_REFUSED, "rank 1 on node b cannot join job 'train-2': ");
}
END_TEST

#define NODE_WORDS "the daemon of node b cannot start: no provider"

static void node_unable(uint32_t node)
{
    coordinator_node_unable(network_coordinator(network, node), network_now(network), 1,
                            "no provider");
    network_settle(network);
}

/* Node b's daemon tells the other two that it cannot start. In a run each node has ranks, so that
 * all ranks of a job that gathers on these, or will, are refused. Another job is refused only if it
 * has all its ranks, needs node b as a server, and has no recovery. */
static const struct {
    bool of_run, before, recovery;
    uint32_t ranks; /* of two that have come */
    bool refused;
} unable_nodes[] = {
    {true, true, false, 1, true},  {true, false, false, 1, true},  {false, true, false, 1, false},
    {false, true, false, 2, true}, {false, false, false, 2, true}, {false, true, true, 2, false},
    {true, true, true, 1, true},
};

START_TEST(a_daemon_that_cannot_start)
{
    struct network_worker *ranks[2];
    for (uint32_t node = 0; node < 3; node++) {
        network_config(network, node)->recovery = unable_nodes[_i].recovery;
        if (unable_nodes[_i].of_run)
            coordinator_set_run(network_coordinator(network, node));
    }
    network_cut(network, 0, 1, "connection refused");
    network_cut(network, 2, 1, "connection refused");
    if (!unable_nodes[_i].before)
        for (uint32_t node = 0; node < 3; node += 2)
            node_unable(node);
    for (uint32_t i = 0; i < unable_nodes[_i].ranks; i++)
        ranks[i] = join(2 * i, 2, (int32_t)i);
    if (unable_nodes[_i].before)
        for (uint32_t node = 0; node < 3; node += 2)
            node_unable(node);
    for (uint32_t i = 0; i < unable_nodes[_i].ranks; i++) {
        ck_assert_int_eq(ranks[i]->state == CLIENT_OVER, unable_nodes[_i].refused);
        if (unable_nodes[_i].refused)
            refused(ranks[i], ERR_REFUSED, NODE_WORDS);
    }
}
END_TEST

/* Node b is the home: who waits for it is told, and who comes while it says so; not who comes
 * later, or when it has started. */
START_TEST(a_home_that_cannot_start)
{
    char name[MESSAGE_NAME_BYTES];
    job_name_with_home(name, "train", 1, 3);
    job = name;
    network_cut(network, 0, 1, "connection refused");
    struct network_worker *waits = join(0, 2, 0);
    ck_assert_int_eq(waits->state, CLIENT_JOINING);
    node_unable(0);
    refused(waits, ERR_REFUSED, NODE_WORDS);
    refused(join(0, 2, 0), ERR_REFUSED, NODE_WORDS);
    if (_i == 0)
        network_run(network, 11000);
    else
        network_connect(network, 0, 1);
    network_settle(network);
    struct network_worker *later = join(0, 2, 0);
    ck_assert_msg(later->state == CLIENT_JOINING, "%s", later->failure.text);
}
END_TEST

/* The daemon itself refuses with the reason, and is not over before the others know it. */
START_TEST(it_refuses_with_the_reason)
{
    coordinator_fail(network_coordinator(network, 1), "no provider");
    refused(join(1, 2, 0), ERR_REFUSED, NODE_WORDS);
    ck_assert(!coordinator_stopped(network_coordinator(network, 1)));
}
END_TEST

/* A user's oldest notes make room for its newest ones, and another user's notes stay. */
START_TEST(notes_are_few)
{
    char names[10][MESSAGE_NAME_BYTES];
    snprintf(names[0], sizeof(names[0]), "%s", job);
    for (int i = 1; i < 10; i++) {
        char stem[24];
        snprintf(stem, sizeof(stem), "train%d", i);
        job_name_with_home(names[i], stem, 2, 3);
    }
    for (int i = 0; i < 10; i++) {
        job = names[i];
        network_set_uid(network, i == 0 ? 1001 : 1000);
        ck_assert_int_eq(say_unable(1, 4, 1, ERR_MEMORY), 0);
    }
    for (int i = 0; i < 10; i++) {
        job = names[i];
        network_set_uid(network, i == 0 ? 1001 : 1000);
        ck_assert_int_eq(join(0, 4, 0)->state, i == 1 ? CLIENT_JOINING : CLIENT_OVER);
    }
}
END_TEST

static const struct {
    uint32_t world_size;
    int32_t rank;
    int code;
    const char *name;
} nonsense[] = {{2, 0, 0, "train-2"}, {2, 2, ERR_MEMORY, "train-2"}, {2, 0, ERR_MEMORY, ""}};

START_TEST(what_makes_no_sense)
{
    job = nonsense[_i].name;
    ck_assert_int_eq(say_unable(0, nonsense[_i].world_size, nonsense[_i].rank, nonsense[_i].code),
                     ERR_PROTOCOL);
}
END_TEST

/* All ranks read a process's last words behind how it ended. */
START_TEST(last_words)
{
    struct network_worker *first = join(0, 2, 0), *second = join(1, 2, 1);
    struct message ending = {.type = MESSAGE_ENDING, .text = "ValueError: a bad sample"};
    ck_assert_int_eq(network_say(network, second, &ending), 0);
    ck_assert_int_eq(first->state, CLIENT_JOINED);
    ck_assert(!first->failed);
    network_kill(network, second);
    network_settle(network);
    ck_assert(first->failed);
    network_assert_text(first, "rank 1 on node b is gone: its process 4002 ");
    network_assert_text(first, ": ValueError: a bad sample");
    struct message none = {.type = MESSAGE_ENDING};
    ck_assert_int_eq(network_say(network, first, &none), ERR_PROTOCOL);
}
END_TEST

static const struct {
    uint32_t cut, from; /* nodes without a connection */
    uint32_t ranks;     /* that come */
    const char *text;
} waits[] = {
    {0, 0, 1, "rank 1 of job 'train-0' has not joined"},
    {1, 2, 2,
     "job 'train-0' has all its ranks, but server c (10.0.0.2:7002) is not connected: cut"},
    {0, 1, 1,
     "job 'train-0' cannot gather at its home: server b (10.0.0.1:7001) is not connected: cut"},
};

/* A rank that has waited for 10 s is told once what its job waits for. */
START_TEST(told_what_it_waits_for)
{
    job = network_name_at(network, 1);
    ck_assert_str_eq(job, "train-0");
    for (uint32_t node = 0; node < 3; node++)
        network_config(network, node)->join_ms = 60000;
    if (waits[_i].text[0] != 'r')
        network_cut(network, waits[_i].cut, waits[_i].from, "cut");
    network_settle(network);
    struct network_worker *worker = network_join(network, 0, job, 2, 0, -1, 100000);
    if (waits[_i].ranks == 2)
        network_join(network, 1, job, 2, 1, -1, 100000);
    network_run(network, 9900);
    ck_assert_uint_eq(worker->waiting_count, 0);
    network_run(network, 200);
    ck_assert_uint_eq(worker->waiting_count, 1);
    ck_assert_msg(strstr(worker->waiting, waits[_i].text) != NULL, "%s", worker->waiting);
    ck_assert_int_eq(worker->state, CLIENT_JOINING);
    network_run(network, 20000);
    ck_assert_uint_eq(worker->waiting_count, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_unable");
    TCase *cases = tcase_create("cases");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, all_are_told, 0, 4);
    tcase_add_test(cases, of_a_rank_that_is_not_known);
    tcase_add_loop_test(cases, what_ends_the_note, 0,
                        (int)(sizeof(attempts) / sizeof(attempts[0])));
    tcase_add_test(cases, a_process_asks_again);
    tcase_add_test(cases, another_user_says_it);
    tcase_add_test(cases, a_limit_of_a_node);
    tcase_add_test(cases, a_process_that_ends_while_it_gathers);
    tcase_add_loop_test(cases, worlds_that_differ, 0, 5);
    tcase_add_test(cases, where_the_job_gathers);
    tcase_add_test(cases, a_drain_while_it_gathers);
    tcase_add_loop_test(cases, a_daemon_that_cannot_start, 0,
                        sizeof(unable_nodes) / sizeof(unable_nodes[0]));
    tcase_add_loop_test(cases, a_home_that_cannot_start, 0, 2);
    tcase_add_test(cases, it_refuses_with_the_reason);
    tcase_add_test(cases, notes_are_few);
    tcase_add_loop_test(cases, what_makes_no_sense, 0,
                        (int)(sizeof(nonsense) / sizeof(nonsense[0])));
    tcase_add_test(cases, last_words);
    tcase_add_loop_test(cases, told_what_it_waits_for, 0, 3);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
