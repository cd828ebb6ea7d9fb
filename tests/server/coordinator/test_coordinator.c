/* The coordinator's words and actions, one situation at a time. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

static struct network *network;

static void setup(void)
{
    network = network_create_connected(3);
}

static void teardown(void)
{
    network_free(network);
}

/* Ranks on nodes a and b: the job needs all servers. Rank 0, on node a, is returned. */
static struct network_worker *join_two(const char *job, uint32_t timeout_ms)
{
    struct network_worker *first = network_join(network, 0, job, 2, 0, -1, timeout_ms);
    network_join(network, 1, job, 2, 1, -1, timeout_ms);
    return first;
}

START_TEST(test_join_and_leave)
{
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    ck_assert_uint_eq(workers[0]->joined.local_size, 2);
    ck_assert_int_eq(workers[1]->joined.local_rank, 1);
    ck_assert_uint_eq(workers[3]->joined.node_count, 3);
    ck_assert_uint_eq(workers[3]->joined.node_index, 2);
    ck_assert_uint_eq(workers[0]->weight_count, 3);
    ck_assert_uint_eq(network_engine_attached(network, 0), 2);
    for (int rank = 0; rank < 4; rank++)
        network_leave(network, workers[rank]);
    network_settle(network);
    for (int rank = 0; rank < 4; rank++)
        ck_assert(workers[rank]->left && workers[rank]->closed && !workers[rank]->failed);
    network_assert_empty(network);
}
END_TEST

START_TEST(test_ranks_assigned)
{
    /* By node, then local rank, then arrival; the given rank 1 is kept. */
    const char *job = network_name_at(network, 1);
    struct network_worker *late = network_join(network, 2, job, 5, -1, -1, 0);
    struct network_worker *second = network_join(network, 0, job, 5, -1, 1, 0);
    struct network_worker *first = network_join(network, 0, job, 5, -1, 0, 0);
    struct network_worker *given = network_join(network, 2, job, 5, 1, -1, 0);
    struct network_worker *middle = network_join(network, 1, job, 5, -1, -1, 0);
    network_settle(network);
    ck_assert_int_eq(first->joined.rank, 0);
    ck_assert_int_eq(given->joined.rank, 1);
    ck_assert_int_eq(second->joined.rank, 2);
    ck_assert_int_eq(middle->joined.rank, 3);
    ck_assert_int_eq(late->joined.rank, 4);
    ck_assert_int_eq(first->joined.local_rank, 0);
    ck_assert_int_eq(second->joined.local_rank, 1);
    ck_assert_int_eq(given->joined.local_rank, 0);
    ck_assert_int_eq(late->joined.local_rank, 1);
}
END_TEST

START_TEST(test_local_ranks_kept)
{
    const char *job = network_name_at(network, 0);
    struct network_worker *a = network_join(network, 1, job, 2, 0, 1, 0);
    struct network_worker *b = network_join(network, 1, job, 2, 1, 0, 0);
    network_settle(network);
    ck_assert_int_eq(a->joined.local_rank, 1);
    ck_assert_int_eq(b->joined.local_rank, 0);
    /* All on one node: reduced there. */
    ck_assert_uint_eq(a->weight_count, 1);
    ck_assert_uint_eq(a->joined.node_count, 1);
}
END_TEST

START_TEST(test_refusals)
{
    const char *job = network_name_at(network, 1);
    struct network_worker *first = network_join(network, 0, job, 3, 0, -1, 0);
    network_settle(network);
    struct network_worker *twice = network_join(network, 2, job, 3, 0, -1, 0);
    network_set_uid(network, 1001);
    struct network_worker *user = network_join(network, 2, job, 3, 1, -1, 0);
    struct network_worker *range = network_join(network, 2, job, 3, 3, -1, 0);
    struct network_worker *name = network_join(network, 2, "bad\nname", 3, 0, -1, 0);
    network_settle(network);
    network_assert_text(twice,
                        "given twice: to process 4001 on node a and to process 4002 on node c");
    ck_assert_int_eq(twice->failure.code, ERR_REFUSED);
    network_assert_text(user, "belongs to user 1000; process 4003 on node c runs as user 1001");
    network_assert_text(range, "rank 3");
    ck_assert_int_eq(range->failure.code, ERR_INVALID);
    ck_assert_int_eq(name->failure.code, ERR_INVALID);
    ck_assert_int_eq(first->state, CLIENT_JOINING);
}
END_TEST

START_TEST(test_join_timeouts)
{
    const char *job = network_name_at(network, 1);
    struct network_worker *given[] = {network_join(network, 0, job, 4, 0, -1, 1000),
                                      network_join(network, 2, job, 4, 1, -1, 2000)};
    network_run(network, 1500);
    network_assert_text(given[0], "ranks 2, 3 of job 'train-");
    network_assert_text(given[0], "have not joined");
    ck_assert_int_eq(given[0]->failure.code, ERR_TIMEOUT);
    ck_assert_int_eq(given[1]->state, CLIENT_JOINING);
    network_run(network, 1000);
    network_assert_text(given[1], "ranks 2, 3 of"); /* not 0, which waited for them, too */
    struct network_worker *unknown = network_join(network, 0, job, 2, -1, -1, 1000);
    network_run(network, 1500);
    network_assert_text(unknown, "1 of 2 ranks of job");
    network_assert_empty(network);
}
END_TEST

/* The daemons' own limits (10 s for a job, 5 s for a group) hold, whatever a worker asks for. */
START_TEST(test_configured_timeouts)
{
    struct network_worker *alone =
        network_join(network, 0, network_name_at(network, 1), 2, 0, -1, 86400000);
    network_run(network, 9900);
    ck_assert_int_eq(alone->state, CLIENT_JOINING);
    network_run(network, 200);
    ck_assert_int_eq(alone->failure.code, ERR_TIMEOUT);
    network_assert_text(alone, "rank 1 of job 'train-");

    struct network_worker *workers[4];
    static const uint32_t both[] = {0, 3};
    network_join_four(network, workers, network_name_at(network, 1));
    network_group_open(network, workers[0], both, 2, 0, 86400000);
    network_run(network, 4900);
    ck_assert(!workers[0]->group_refused);
    network_run(network, 200);
    ck_assert(workers[0]->group_refused);
    network_assert_text(workers[0], "rank 3 of job");
}
END_TEST

START_TEST(test_join_twice_of_one_name)
{
    struct network_worker *workers[4];
    const char *job = network_name_at(network, 0);
    network_join_four(network, workers, job);
    struct network_worker *more = network_join(network, 1, job, 4, 2, -1, 1000);
    network_run(network, 2000);
    network_assert_text(more, "ranks 0, 1, 3");
    network_assert_text(more, "a job of that name is running with all its ranks");
    ck_assert_int_eq(workers[2]->state, CLIENT_JOINED);
}
END_TEST

START_TEST(test_home_not_connected)
{
    network_cut(network, 0, 1, "connection refused");
    network_settle(network);
    struct network_worker *worker =
        network_join(network, 0, network_name_at(network, 1), 1, 0, -1, 1000);
    network_run(network, 1100);
    network_assert_text(worker, "server b (10.0.0.1:7001) is not connected: connection refused");
    /* The next rank waits for the home to come. */
    worker = network_join(network, 0, network_name_at(network, 1), 1, 0, -1, 5000);
    network_run(network, 1000);
    ck_assert_int_eq(worker->state, CLIENT_JOINING);
    network_connect(network, 0, 1);
    network_settle(network);
    ck_assert_int_eq(worker->state, CLIENT_JOINED);
}
END_TEST

START_TEST(test_server_not_connected)
{
    /* Node c has no rank of the job, but shards. */
    network_cut(network, 1, 2, "no route to host");
    network_settle(network);
    struct network_worker *worker = join_two(network_name_at(network, 1), 1000);
    const struct coordinator *home = network_coordinator(network, 1);
    char cause[600];
    network_settle(network);
    ck_assert(
        coordinator_gathering_waits(home, coordinator_gatherings(home), cause, sizeof(cause)));
    ck_assert_str_eq(cause, "server c (10.0.0.2:7002) is not connected: no route to host");
    network_run(network, 1100);
    network_assert_text(worker,
                        "has all its ranks, but server c (10.0.0.2:7002) is not connected: no "
                        "route to host");
    /* The home reaches c, but a does not: a finds out when it opens the job. */
    network_connect(network, 1, 2);
    network_cut(network, 0, 2, "cable gone");
    network_settle(network);
    worker = join_two(network_name_at(network, 1), 3000);
    network_run(network, 5000);
    network_assert_text(worker, "server c (10.0.0.2:7002) is not connected: cable gone");
    network_assert_empty(network);
}
END_TEST

/* A server for which a job waits is logged once on each node, when the job comes to wait for it. */
START_TEST(test_each_missing_server_is_logged)
{
    network_keep_log(network);
    network_cut(network, 0, 1, "cable gone");
    network_cut(network, 0, 2, "no route to host");
    network_settle(network);
    network_connect_without_fabric(network, 0, 1);
    struct network_worker *worker = join_two(network_name_at(network, 0), 60000);
    network_run(network, 2000);
    ck_assert_uint_eq(network_log_count(network, "waits to open: server b"), 1);
    ck_assert_uint_eq(network_log_count(network, "waits to open: server c"), 0);
    network_connect_fabric(network, 0, 1);
    network_run(network, 2000);
    ck_assert_uint_eq(network_log_count(network, "waits to open: server c"), 1);
    /* Server c comes by half, goes and comes: there is nothing new to say. */
    network_connect_without_fabric(network, 0, 2);
    network_run(network, 2000);
    network_cut(network, 0, 2, "no route to host");
    network_run(network, 2000);
    network_connect(network, 0, 2);
    network_run(network, 2000);
    ck_assert_int_eq(worker->state, CLIENT_JOINED);
    ck_assert_uint_eq(network_log_count(network, "waits to open"), 2);
}
END_TEST

/* Whoever gives up waiting is not what the others have waited for. */
START_TEST(test_all_are_told_what_was_missing)
{
    const char *job = network_name_at(network, 1);
    network_cut(network, 1, 2, "no route to host");
    network_settle(network);
    struct network_worker *first = network_join(network, 0, job, 2, 0, -1, 1000);
    struct network_worker *second = network_join(network, 1, job, 2, 1, -1, 1500);
    network_run(network, 1600);
    network_assert_text(first, "has all its ranks, but server c (10.0.0.2:7002) is not connected");
    network_assert_text(second, "has all its ranks, but server c (10.0.0.2:7002) is not connected");
    network_connect(network, 1, 2);
    network_settle(network);

    job = network_name_at(network, 0);
    network_join(network, 0, job, 4, 0, -1, 1000);
    second = network_join(network, 1, job, 4, 1, -1, 1500);
    struct network_worker *third = network_join(network, 1, job, 4, 2, -1, 2500);
    network_run(network, 1600);
    network_assert_text(second, "rank 3 of job");
    /* Rank 3 comes after two have gone: they are what is missing now. */
    network_join(network, 2, job, 4, 3, -1, 5000);
    network_run(network, 1000);
    network_assert_text(third, "ranks 0, 1 of job");
}
END_TEST

START_TEST(test_server_without_fabric)
{
    /* Node c answers on the control connection; the fabric does not come about. */
    network_cut(network, 0, 2, "cable gone");
    network_cut(network, 1, 2, "cable gone");
    network_settle(network);
    for (uint32_t node = 0; node < 2; node++)
        network_connect_without_fabric(network, node, 2);
    network_settle(network);
    struct network_worker *worker = join_two(network_name_at(network, 1), 1000);
    network_run(network, 3000);
    network_assert_text(worker,
                        "server c (10.0.0.2:7002) is connected, but not yet over the fabric "
                        "(last error: cable gone)");
}
END_TEST

START_TEST(test_engine_refuses)
{
    network_refuse_job_open(network, 2, "over the memory limit");
    struct network_worker *worker = join_two(network_name_at(network, 1), 1000);
    network_settle(network);
    network_assert_text(worker, "node c cannot open job");
    network_assert_text(worker, "over the memory limit");
    ck_assert_int_eq(worker->failure.code, ERR_MEMORY);
    network_assert_empty(network);
}
END_TEST

START_TEST(test_limits)
{
    network_config(network, 0)->workers = 1;
    struct network_worker *one = network_join(network, 0, network_name_at(network, 1), 2, 0, -1, 0);
    struct network_worker *two = network_join(network, 0, network_name_at(network, 1), 2, 1, -1, 0);
    network_settle(network);
    network_assert_text(two, "limits.workers");
    network_kill(network, one);
    network_settle(network);
    network_config(network, 2)->jobs = 0;
    one = join_two(network_name_at(network, 1), 0);
    network_settle(network);
    network_assert_text(one, "there may be 0 jobs on node c (limits.jobs)");
    ck_assert_int_eq(one->failure.code, ERR_MEMORY);
}
END_TEST

START_TEST(test_worker_dies)
{
    struct network_worker *workers[4], *other;
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    other = network_join(network, 1, "other", 1, 0, -1, 0);
    network_settle(network);
    network_kill(network, workers[3]);
    network_settle(network);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(workers[rank]->failed_count, 1);
        ck_assert_int_eq(workers[rank]->failure.group, -1);
        ck_assert_int_eq(workers[rank]->failure.code, ERR_LOST);
        network_assert_text(workers[rank], "rank 3 on node c is gone: its process 4004 ended");
    }
    ck_assert_int_eq(other->state, CLIENT_JOINED);
    ck_assert_uint_eq(network_engine_failed(network, 0), 1);
    /* Leaving a failed job and closing both free it. */
    network_leave(network, workers[0]);
    ck_assert(workers[0]->left);
    network_kill(network, workers[1]);
    network_kill(network, workers[2]);
    network_leave(network, other);
    network_settle(network);
    network_assert_empty(network);
}
END_TEST

START_TEST(test_node_dies)
{
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    network_crash(network, 1);
    network_settle(network);
    ck_assert(workers[2]->closed);
    network_assert_text(workers[0], "node b (rank 2) is gone: connection reset");
    network_assert_text(workers[3], "node b (rank 2) is gone: connection reset");
    /* A new job of the same name, after the node is back. */
    network_connect_all(network);
    network_settle(network);
    network_kill(network, workers[0]);
    network_kill(network, workers[1]);
    network_kill(network, workers[3]);
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
}
END_TEST

START_TEST(test_server_without_ranks_dies)
{
    struct network_worker *worker = join_two(network_name_at(network, 0), 0);
    network_settle(network);
    network_cut(network, 0, 2, "no heartbeat for 3000 ms");
    network_settle(network);
    network_assert_text(worker, "node c is gone: no heartbeat for 3000 ms");
}
END_TEST

/* Its ranks are summed on their node: it neither waits for other servers nor ends with them. */
START_TEST(test_job_on_one_node_needs_no_other)
{
    struct network_worker *workers[2];
    network_cut(network, 0, 2, "no route to host");
    network_settle(network);
    for (int rank = 0; rank < 2; rank++)
        workers[rank] = network_join(network, 0, network_name_at(network, 0), 2, rank, -1, 1000);
    network_settle(network);
    network_cut(network, 0, 1, "cable gone");
    network_settle(network);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(workers[rank]->state, CLIENT_JOINED);
        ck_assert_str_eq(workers[rank]->failure.text, "");
        network_leave(network, workers[rank]);
    }
    network_settle(network);
    network_assert_empty(network);
}
END_TEST

START_TEST(test_withdrawn)
{
    /* The worker goes before the job is open; another takes its rank. */
    const char *job = network_name_at(network, 1);
    struct network_worker *first = network_join(network, 0, job, 2, 0, -1, 0);
    network_settle(network);
    network_kill(network, first);
    network_settle(network);
    struct network_worker *again = network_join(network, 2, job, 2, 0, -1, 0);
    struct network_worker *other = network_join(network, 1, job, 2, 1, -1, 0);
    network_settle(network);
    ck_assert_int_eq(again->state, CLIENT_JOINED);
    ck_assert_int_eq(other->state, CLIENT_JOINED);
}
END_TEST

START_TEST(test_arena_nonsense)
{
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 2));
    network_engine_says(network, 0,
                        (struct engine_event){.type = ENGINE_WORKER_FAILED,
                                              .job = workers[1]->joined.job_id,
                                              .rank = 1,
                                              .code = ERR_PROTOCOL,
                                              .text = "chunk 9 of 4"});
    network_settle(network);
    ck_assert(workers[1]->closed);
    ck_assert_int_eq(workers[1]->failure.code, ERR_PROTOCOL);
    network_assert_text(workers[1], "chunk 9 of 4");
    network_assert_text(workers[3],
                        "rank 1 on node a is gone: the arena of process 4002 holds nonsense");
}
END_TEST

/* --- groups */

START_TEST(test_group)
{
    struct network_worker *workers[4];
    static const uint32_t ranks[] = {3, 0};
    network_join_four(network, workers, network_name_at(network, (uint32_t)_i));
    network_group_open(network, workers[0], ranks, 2, 0, 0);
    network_settle(network);
    ck_assert(!workers[0]->group_opened);
    network_group_open(network, workers[3], ranks, 2, 0, 0);
    network_settle(network);
    ck_assert(workers[0]->group_opened && workers[3]->group_opened);
    ck_assert_int_eq(workers[0]->group, 1);
    ck_assert_int_eq(workers[3]->group, 1);
    /* All daemons have it: each may own shards of it. */
    for (uint32_t node = 0; node < 3; node++)
        ck_assert_uint_eq(network_engine_groups(network, node), 1);
    struct message close = {.type = MESSAGE_WORKER_GROUP_CLOSE, .group = 1};
    ck_assert_int_eq(network_say(network, workers[0], &close), 0);
    network_settle(network);
    ck_assert_uint_eq(network_engine_groups(network, 1), 1);
    network_leave(network, workers[3]); /* leaving the job leaves the group */
    network_settle(network);
    for (uint32_t node = 0; node < 3; node++)
        ck_assert_uint_eq(network_engine_groups(network, node), 0);
}
END_TEST

START_TEST(test_group_refusals)
{
    struct network_worker *workers[4];
    static const uint32_t both[] = {0, 3}, repeated[] = {0, 0}, others[] = {1, 2};
    network_join_four(network, workers, network_name_at(network, 1));
    network_group_open(network, workers[0], repeated, 2, 0, 0);
    ck_assert_int_eq(workers[0]->failure.code, ERR_INVALID);
    network_group_open(network, workers[0], others, 2, 0, 0);
    network_assert_text(workers[0], "rank 0 among them");
    workers[0]->group_refused = false;
    network_group_open(network, workers[0], both, 2, 0, 1000);
    network_run(network, 1500);
    ck_assert(workers[0]->group_refused);
    network_assert_text(workers[0], "rank 3 of job");
    network_assert_text(workers[0], "has not asked for the group");
    workers[0]->group_refused = false;
    network_group_open(network, workers[0], both, 2, 1, 0);
    network_leave(network, workers[3]);
    network_settle(network);
    ck_assert(workers[0]->group_refused);
    network_assert_text(workers[0], "rank 3 of the group has left");
    network_config(network, 0)->groups_per_job = 0;
    network_group_open(network, workers[0], both, 2, 2, 0);
    network_assert_text(workers[0], "limits.groups_per_job");
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINED);
}
END_TEST

/* One rank asks for groups, before others have answered anything. */
START_TEST(test_groups_that_a_rank_waits_for)
{
    struct network_worker *workers[4];
    static const uint32_t both[] = {0, 3};
    network_join_four(network, workers, network_name_at(network, 2));
    network_config(network, 0)->groups_per_job = 4;
    for (uint32_t nth = 0; nth < 4; nth++)
        network_group_open(network, workers[0], both, 2, nth, 0);
    ck_assert(!workers[0]->group_refused);
    network_group_open(network, workers[0], both, 2, 4, 0);
    ck_assert(workers[0]->group_refused);
    network_assert_text(workers[0], "waits for 4 groups, which have 10 ranks with this one");
    ck_assert_int_eq(workers[0]->state, CLIENT_JOINED);
}
END_TEST

START_TEST(test_group_failed)
{
    struct network_worker *workers[4];
    static const uint32_t ranks[] = {0, 3};
    network_join_four(network, workers, network_name_at(network, 1));
    network_group_open(network, workers[0], ranks, 2, 0, 0);
    network_group_open(network, workers[3], ranks, 2, 0, 0);
    network_settle(network);
    for (int i = 0; i < 2; i++) {
        network_engine_says(network, 0,
                            (struct engine_event){.type = ENGINE_GROUP_FAILED,
                                                  .job = workers[0]->joined.job_id,
                                                  .group = 1,
                                                  .code = ERR_MISMATCH,
                                                  .text = "rank 3 asked for f64"});
        network_settle(network);
    }
    ck_assert_uint_eq(workers[0]->failed_count, 1);
    ck_assert_uint_eq(workers[3]->failed_count, 1);
    ck_assert_uint_eq(workers[1]->failed_count, 0);
    ck_assert_int_eq(workers[3]->failure.group, 1);
    ck_assert_int_eq(workers[3]->failure.code, ERR_MISMATCH);
}
END_TEST

START_TEST(test_engine_events)
{
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 1));
    struct coordinator *coordinator = network_coordinator(network, 0);
    struct engine_event event = {.type = ENGINE_PEER_UP, .node = 1};
    ck_assert(!coordinator_engine_event(coordinator, network_now(network), &event));
    event.type = ENGINE_PEER_DOWN;
    ck_assert(!coordinator_engine_event(coordinator, network_now(network), &event));
    network_settle(network);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(workers[i]->state, CLIENT_JOINED);
    event = (struct engine_event){.type = ENGINE_GROUP_FAILED,
                                  .job = workers[0]->joined.job_id,
                                  .code = ERR_MISMATCH,
                                  .text = "rank 3 asked for f64"};
    ck_assert(coordinator_engine_event(coordinator, network_now(network), &event));
    network_settle(network);
    ck_assert_int_eq(workers[3]->failure.code, ERR_MISMATCH);
    network_assert_text(workers[3], "rank 3 asked for f64");
    event = (struct engine_event){.type = ENGINE_WORKER_FAILED,
                                  .job = event.job,
                                  .rank = 1,
                                  .code = ERR_MEMORY, /* it has done nothing wrong */
                                  .text = "no memory for a chunk"};
    ck_assert(coordinator_engine_event(coordinator, network_now(network), &event));
    network_settle(network);
    ck_assert_int_eq(workers[0]->failure.code, ERR_LOST);
    network_assert_text(workers[0],
                        "gone: the daemon cannot serve process 4002: no memory for a chunk");
    ck_assert_int_eq(workers[1]->failure.code, ERR_MEMORY);
}
END_TEST

/* --- nonsense */

START_TEST(test_nonsense_of_workers)
{
    struct message message = {.type = MESSAGE_LEAVE};
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 1));
    struct network_worker *early = network_join(network, 0, "alone", 2, 0, -1, 0);
    ck_assert_int_eq(network_say(network, early, &message), ERR_PROTOCOL);
    message.type = MESSAGE_JOIN;
    ck_assert_int_eq(network_say(network, workers[0], &message), ERR_PROTOCOL);
    network_settle(network);
    network_assert_text(workers[3],
                        "rank 0 on node a is gone: its process 4001 sent nonsense: it did");
    message = (struct message){.type = MESSAGE_WORKER_GROUP_CLOSE, .group = 0};
    struct network_worker *alone = network_join(network, 1, "solo", 1, 0, -1, 0);
    network_settle(network);
    ck_assert_int_eq(network_say(network, alone, &message), ERR_PROTOCOL);
}
END_TEST

static int peer_says(uint32_t node, const struct message *message)
{
    struct error error = {0};
    int result = coordinator_peer_message(network_coordinator(network, 0), network_now(network),
                                          node, message, &error);
    ck_assert_int_eq(result == 0, error.text[0] == '\0');
    network_settle(network);
    return result;
}

START_TEST(test_nonsense_of_peers)
{
    struct network_worker *workers[4];
    network_join_four(network, workers, network_name_at(network, 1));
    uint64_t job = workers[0]->joined.job_id;
    struct message wrong[] = {
        {.type = MESSAGE_HELLO},
        {.type = MESSAGE_JOB_READY, .job_id = job},
        {.type = MESSAGE_JOB_CLOSE, .job_id = job},
        {.type = MESSAGE_JOB_OPENED, .job_id = job},
        {.type = MESSAGE_RANK_LEFT, .job_id = job, .rank = 0},
        {.type = MESSAGE_RANK_LEFT, .job_id = job, .rank = 9},
        {.type = MESSAGE_GROUP_OPEN, .job_id = job, .group = 1},
        {.type = MESSAGE_GROUP_READY, .job_id = job, .group = 1},
        {.type = MESSAGE_GROUP_JOIN, .job_id = job, .rank = 3},
        {.type = MESSAGE_GROUP_LEAVE, .job_id = job, .rank = 9},
        {.type = MESSAGE_GROUP_CLOSE, .job_id = job, .group = 0},
        {.type = MESSAGE_GROUP_REFUSED, .job_id = job, .rank = 9},
        {.type = MESSAGE_JOB_OPEN, .job = "nobody"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_msg(peer_says(2, &wrong[i]) == ERR_PROTOCOL, "%zu: %s", i,
                      message_type_name(wrong[i].type));
    struct message join = {.type = MESSAGE_JOB_JOIN, .world_size = 1};
    snprintf(join.job, sizeof(join.job), "%s", network_name_at(network, 2));
    ck_assert_int_eq(peer_says(2, &join), ERR_PROTOCOL);
    for (int rank = 0; rank < 4; rank++)
        ck_assert(workers[rank]->state == CLIENT_JOINED && !workers[rank]->failed);
}
END_TEST

START_TEST(test_unknown_jobs_are_dropped)
{
    static const enum message_type types[] = {
        MESSAGE_JOB_OPENED,  MESSAGE_JOB_READY,    MESSAGE_JOB_FAILED,  MESSAGE_JOB_CLOSE,
        MESSAGE_GROUP_JOIN,  MESSAGE_GROUP_OPENED, MESSAGE_GROUP_READY, MESSAGE_GROUP_LEAVE,
        MESSAGE_GROUP_CLOSE, MESSAGE_GROUP_FAILED, MESSAGE_RANK_LEFT,   MESSAGE_LATE_QUERY,
        MESSAGE_LATE_REPLY,  MESSAGE_JOB_WITHDRAW, MESSAGE_JOB_REFUSED, MESSAGE_GROUP_REFUSED,
    };
    uint64_t count = sizeof(types) / sizeof(types[0]);
    for (size_t i = 0; i < count; i++) {
        struct message message = {.type = types[i], .job_id = 99, .job = "none", .member = 77};
        ck_assert_int_eq(peer_says(1, &message), 0);
    }
    ck_assert_uint_eq(coordinator_dropped_messages(network_coordinator(network, 0)), count);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator");
    TCase *cases = tcase_create("coordinator");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, test_join_and_leave, 0, 3);
    tcase_add_test(cases, test_ranks_assigned);
    tcase_add_test(cases, test_local_ranks_kept);
    tcase_add_test(cases, test_refusals);
    tcase_add_test(cases, test_join_timeouts);
    tcase_add_test(cases, test_configured_timeouts);
    tcase_add_test(cases, test_join_twice_of_one_name);
    tcase_add_test(cases, test_home_not_connected);
    tcase_add_test(cases, test_server_not_connected);
    tcase_add_test(cases, test_each_missing_server_is_logged);
    tcase_add_test(cases, test_all_are_told_what_was_missing);
    tcase_add_test(cases, test_server_without_fabric);
    tcase_add_test(cases, test_engine_refuses);
    tcase_add_test(cases, test_limits);
    tcase_add_loop_test(cases, test_worker_dies, 0, 3);
    tcase_add_loop_test(cases, test_node_dies, 0, 3);
    tcase_add_test(cases, test_server_without_ranks_dies);
    tcase_add_test(cases, test_job_on_one_node_needs_no_other);
    tcase_add_test(cases, test_withdrawn);
    tcase_add_test(cases, test_arena_nonsense);
    tcase_add_loop_test(cases, test_group, 0, 3);
    tcase_add_test(cases, test_group_refusals);
    tcase_add_test(cases, test_groups_that_a_rank_waits_for);
    tcase_add_test(cases, test_group_failed);
    tcase_add_test(cases, test_engine_events);
    tcase_add_test(cases, test_nonsense_of_workers);
    tcase_add_test(cases, test_nonsense_of_peers);
    tcase_add_test(cases, test_unknown_jobs_are_dropped);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
