/* Memory that the ranks of a group on one node share: asked for, given to each, given back. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/server/coordinator_network.h"
#include "tests/lib/suite.h"

static struct network *network;
static struct network_worker *workers[4];

/* Ranks 0, 1, 2 on node a, 3 on node b. */
static void setup(void)
{
    network = network_create_connected(2);
    for (int32_t rank = 0; rank < 4; rank++)
        workers[rank] = network_join(network, rank == 3, "train", 4, rank, -1, 0);
    network_settle(network);
    for (int rank = 0; rank < 4; rank++)
        ck_assert_int_eq(workers[rank]->state, CLIENT_JOINED);
}

/* Everybody who is there leaves, and nothing is left. */
static void teardown(void)
{
    for (int rank = 0; rank < 4; rank++) {
        if (workers[rank]->state == CLIENT_JOINED)
            network_leave(network, workers[rank]);
    }
    network_settle(network);
    network_assert_empty(network);
    network_free(network);
}

static int ask(int rank, int32_t group, uint32_t nth, uint64_t bytes)
{
    struct message message = {.type = MESSAGE_SHARED_OPEN,
                              .request = 50 + nth,
                              .group = group,
                              .nth = nth,
                              .bytes = bytes};
    return network_say(network, workers[rank], &message);
}

static int give_back(int rank, int32_t group, uint32_t segment)
{
    struct message message = {.type = MESSAGE_SHARED_CLOSE, .group = group, .segment = segment};
    return network_say(network, workers[rank], &message);
}

static void has(int rank, uint32_t answers, uint32_t segment)
{
    ck_assert_uint_eq(workers[rank]->shared_count, answers);
    ck_assert_uint_eq(workers[rank]->segment, segment);
    ck_assert_int_eq(workers[rank]->state, CLIENT_JOINED);
}

static void refused(int rank, int code, const char *words)
{
    const struct message *failure = &workers[rank]->failure;
    ck_assert_int_eq(failure->type, MESSAGE_ERROR);
    ck_assert_int_eq(failure->code, code);
    ck_assert_msg(strstr(failure->text, words) != NULL, "%s", failure->text);
    ck_assert_int_eq(workers[rank]->state, CLIENT_JOINED);
}

static void kept(uint32_t segments, uint32_t descriptors)
{
    network_settle(network);
    ck_assert_uint_eq(network_engine_segments(network, 0), segments);
    ck_assert_uint_eq(network_segment_descriptors(network, 0), descriptors);
}

START_TEST(one_piece_for_all)
{
    ck_assert_int_eq(ask(0, 0, 0, 4096), 0);
    ck_assert_uint_eq(workers[0]->shared_count, 0); /* not before the engine has it */
    ck_assert_int_eq(ask(1, 0, 0, 4096), 0);
    kept(1, 1);
    has(0, 1, 0);
    has(1, 1, 0);
    ck_assert_int_eq(ask(2, 0, 0, 4096), 0); /* at once */
    has(2, 1, 0);
    kept(1, 0);
    ck_assert_uint_eq(network_engine_segments(network, 1), 0); /* the other node has its own */
    ck_assert_int_eq(ask(3, 0, 0, 64), 0);
    network_settle(network);
    has(3, 1, 0);
    for (int rank = 0; rank < 3; rank++) {
        kept(1, 0);
        ck_assert_int_eq(give_back(rank, 0, 0), 0);
    }
    kept(0, 0);
    ck_assert_uint_eq(network_engine_segments(network, 1), 1);
}
END_TEST

START_TEST(several_pieces_have_their_numbers)
{
    for (uint32_t nth = 0; nth < 5; nth++)
        ck_assert_int_eq(ask(0, 0, nth, 100 + nth), 0);
    kept(5, 5);
    has(0, 5, 4);
    for (uint32_t nth = 5; nth-- > 0;) {
        ck_assert_int_eq(ask(1, 0, nth, 100 + nth), 0);
        has(1, 5 - nth, nth);
    }
    kept(5, 5);
    /* A rank that is done with one before another has it. */
    ck_assert_int_eq(give_back(0, 0, 3), 0);
    kept(5, 5);
    ck_assert_int_eq(ask(2, 0, 3, 103), 0);
    has(2, 1, 3);
    kept(5, 4);
}
END_TEST

START_TEST(other_bytes)
{
    ck_assert_int_eq(ask(1, 0, 0, 4096), 0);
    ck_assert_int_eq(ask(0, 0, 0, 8192), 0);
    refused(0, ERR_MISMATCH, "rank 1 asked for 4096 bytes, rank 0 for 8192");
    kept(1, 1);
    ck_assert_int_eq(ask(0, 0, 0, 4096), 0);
    has(0, 1, 0);
}
END_TEST

START_TEST(limits)
{
    ck_assert_int_eq(ask(0, 0, 0, (1 << 20) + 1), 0);
    refused(0, ERR_MEMORY,
            "1048577 bytes of shared memory asked for, the limit "
            "limits.memory_bytes of node a is 1048576");
    ck_assert_int_eq(ask(0, 0, 0, 1), 0);
    refused(0, ERR_SYSTEM, "one byte is not made");
    network_refuse_segments(network, 0, ERR_MEMORY);
    ck_assert_int_eq(ask(0, 0, 0, 4096), 0);
    ck_assert_int_eq(ask(1, 0, 0, 4096), 0);
    kept(0, 0);
    refused(0, ERR_MEMORY, "the engine says no");
    refused(1, ERR_MEMORY, "the engine says no");
    network_refuse_segments(network, 0, 0);
    ck_assert_int_eq(ask(1, 0, 0, 4096), 0); /* the same number again */
    kept(1, 1);
    for (uint32_t nth = 1; nth < SEGMENTS_PER_JOB_MAX; nth++) {
        ck_assert_int_eq(ask(0, 0, nth, 64), 0);
        network_settle(network);
    }
    ck_assert_int_eq(ask(0, 0, SEGMENTS_PER_JOB_MAX, 64), 0);
    refused(0, ERR_MEMORY, "job 'train' has 256 pieces of shared memory on node a");
    ck_assert_int_eq(ask(1, 0, 1, 64), 0); /* one that is there */
    kept(256, 256);
}
END_TEST

/* Ranks that do not ask any more have nothing to give back. */
START_TEST(ranks_leave)
{
    ck_assert_int_eq(ask(0, 0, 0, 4096), 0);
    ck_assert_int_eq(ask(1, 0, 0, 4096), 0);
    kept(1, 1);
    network_leave(network, workers[2]);
    kept(1, 0);
    network_leave(network, workers[1]);
    kept(1, 0);
    ck_assert_int_eq(give_back(0, 0, 0), 0);
    kept(0, 0);
}
END_TEST

START_TEST(a_rank_leaves_while_it_waits)
{
    network_hold_engine(network, 0, true);
    ck_assert_int_eq(ask(0, 0, 0, 4096), 0);
    ck_assert_int_eq(ask(1, 0, 0, 4096), 0);
    network_leave(network, workers[0]);
    network_settle(network);
    network_hold_engine(network, 0, false);
    kept(1, 1);
    has(1, 1, 0);
}
END_TEST

START_TEST(a_rank_dies)
{
    ck_assert_int_eq(ask(0, 0, 0, 4096), 0);
    kept(1, 1);
    if (_i == 0)
        network_hold_engine(network, 0, true);
    ck_assert_int_eq(ask(1, 0, 1, 4096), 0);
    network_kill(network, workers[2]);
    network_settle(network);
    ck_assert(workers[0]->failed && workers[1]->failed && workers[3]->failed);
    if (_i == 0)
        network_hold_engine(network, 0, false);
    network_settle(network);
    /* Pieces that the ranks have stay theirs until they go. */
    ck_assert_int_eq(ask(0, 0, 2, 4096), 0);
    refused(0, ERR_LOST, "rank 2 on node a is gone");
    ck_assert_int_eq(give_back(0, 0, 0), 0);
    network_settle(network);
}
END_TEST

START_TEST(groups)
{
    static const uint32_t ranks[] = {2, 3, 0};
    for (int i = 0; i < 3; i++)
        network_group_open(network, workers[ranks[i]], ranks, 3, 0, 0);
    network_settle(network);
    int32_t group = workers[0]->group;
    ck_assert(workers[0]->group_opened && workers[2]->group_opened && group > 0);
    ck_assert_int_eq(ask(0, 0, 0, 64), 0);
    ck_assert_int_eq(ask(0, group, 0, 128), 0);
    ck_assert_int_eq(ask(2, group, 0, 128), 0);
    kept(2, 1);
    has(0, 2, 1);
    has(2, 1, 1);
    struct message close = {.type = MESSAGE_WORKER_GROUP_CLOSE, .group = group};
    ck_assert_int_eq(network_say(network, workers[0], &close), 0);
    ck_assert_int_eq(give_back(0, group, 1), 0); /* too late to mean anything */
    kept(2, 1);
    ck_assert_int_eq(network_say(network, workers[2], &close), 0);
    ck_assert_int_eq(give_back(2, group, 1), 0);
    kept(1, 1);
    ck_assert_int_eq(give_back(0, 0, 0), 0);
    ck_assert_int_eq(give_back(0, 0, 0), 0); /* again */
}
END_TEST

static void ask_place(int rank, int32_t group, uint64_t bytes)
{
    struct message message = {
        .type = MESSAGE_MEETING_OPEN, .request = 90, .group = group, .bytes = bytes};
    ck_assert_int_eq(network_say(network, workers[rank], &message), 0);
}

/* Where ranks meet takes an eighth of the memory at most, so that the rest is the program's. */
START_TEST(places)
{
    static const uint32_t ranks[2][2] = {{0, 2}, {2, 0}};
    int32_t pairs[2];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++)
            network_group_open(network, workers[ranks[i][k]], ranks[i], 2, 0, 0);
        network_settle(network);
        pairs[i] = workers[0]->group;
    }
    ask_place(0, 0, 64);
    refused(0, ERR_UNSUPPORTED, "has ranks on other nodes");
    ask_place(0, pairs[0], (1 << 17) + 1);
    refused(0, ERR_MEMORY, "has 0 meeting places of 0 bytes on node a, which is the limit");
    ask_place(0, pairs[0], 100000);
    kept(1, 1);
    ask_place(0, pairs[1], 100000);
    refused(0, ERR_MEMORY, "has 1 meeting places of 100000 bytes");
    struct message close = {.type = MESSAGE_WORKER_GROUP_CLOSE, .group = pairs[0]};
    ck_assert_int_eq(network_say(network, workers[0], &close), 0);
    ck_assert_int_eq(network_say(network, workers[2], &close), 0);
    kept(0, 0);
    ask_place(0, pairs[1], 100000);
    kept(1, 1);
}
END_TEST

/* A request that makes no sense ends the connection. */
START_TEST(nonsense)
{
    ck_assert_int_eq(ask(0, 0, 0, 64), 0);
    network_settle(network);
    int result = 0;
    switch (_i) {
    case 0:
        result = ask(0, 0, 0, 64); /* has it */
        break;
    case 1:
        result = ask(1, 9, 0, 64);
        break;
    case 2:
        result = give_back(1, 0, 0); /* has not asked */
        break;
    case 3:
        result = give_back(0, 0, 1);
        break;
    }
    ck_assert_int_eq(result, ERR_PROTOCOL);
    network_settle(network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_segment");
    TCase *cases = tcase_create("cases");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, one_piece_for_all);
    tcase_add_test(cases, places);
    tcase_add_test(cases, several_pieces_have_their_numbers);
    tcase_add_test(cases, other_bytes);
    tcase_add_test(cases, limits);
    tcase_add_test(cases, ranks_leave);
    tcase_add_test(cases, a_rank_leaves_while_it_waits);
    tcase_add_loop_test(cases, a_rank_dies, 0, 2);
    tcase_add_test(cases, groups);
    tcase_add_loop_test(cases, nonsense, 0, 4);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
