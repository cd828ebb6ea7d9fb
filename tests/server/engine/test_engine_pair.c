/* Two engines in one process, with libfabric's tcp between them. */
#include <string.h>

#include "tests/lib/server/engine_fixture.h"
#include "tests/lib/suite.h"

/* A chunk of this size gives the reduce threads messages to seal and to open. */
#define LARGE_CHUNK_BYTES 262144u

struct both {
    struct node nodes[2];
    struct worker workers[4];
    int descriptors;
};

static const uint32_t crossed[] = {0, 1, 1, 0};

static bool both_begin_as(struct both *both, const char *name, uint32_t threads, bool sealed,
                          bool recovery)
{
    if (!transport_fabric_available("tcp", true, "127.0.0.1")) {
        suite_skip(name, "libfabric has no tcp here");
        return false;
    }
    *both = (struct both){.descriptors = descriptor_count()};
    for (uint32_t i = 0; i < 2; i++) {
        node_configure(&both->nodes[i], i, 2, threads);
        both->nodes[i].sealed = sealed;
        both->nodes[i].config.recovery = recovery;
        if (sealed)
            both->nodes[i].config.chunk_bytes = LARGE_CHUNK_BYTES;
        node_start(&both->nodes[i]);
    }
    nodes_connect(both->nodes);
    open_job(both->nodes, 2, crossed, 4);
    for (uint32_t rank = 0; rank < 4; rank++)
        worker_attach(&both->workers[rank], &both->nodes[crossed[rank]], rank);
    return true;
}

static bool both_begin(struct both *both, const char *name, uint32_t threads, bool sealed)
{
    return both_begin_as(both, name, threads, sealed, false);
}

static bool both_start(struct both *both, const char *name, uint32_t threads)
{
    return both_begin(both, name, threads, false);
}

static void both_stop(struct both *both)
{
    for (uint32_t i = 0; i < 2; i++)
        engine_stop(both->nodes[i].engine);
    for (uint32_t rank = 0; rank < 4; rank++)
        worker_release(&both->workers[rank]);
}

START_TEST(ranks_of_two_nodes_reduce)
{
    struct both both;
    if (!both_begin(&both, "ranks_of_two_nodes_reduce", (uint32_t)_i % 3, _i >= 3))
        return;
    static const uint64_t sizes[] = {1, 0, 64, 1000, 2048, 30000, 300000, 13};
    for (uint64_t i = 0; i < 8; i++)
        reduce_once(both.workers, 4, i, sizes[i]);
    struct engine_status status[2];
    for (uint32_t i = 0; i < 2; i++) {
        status[i] = node_status(&both.nodes[i], 8);
        ck_assert_uint_eq(status[i].workers, 2);
        ck_assert_uint_gt(status[i].buffer_bytes_reserved, 0);
        ck_assert_uint_eq(status[i].peer_count, 2);
        ck_assert(status[i].peers[1 - i].up);
        ck_assert_int_eq(status[i].peers[1 - i].sealed, _i >= 3);
        ck_assert(!status[i].peers[i].up);
        ck_assert_uint_eq(status[i].peers[i].messages_in + status[i].peers[i].bytes_out, 0);
        ck_assert_uint_eq(status[i].bytes_in, status[i].peers[1 - i].bytes_in);
        ck_assert_uint_eq(status[i].bytes_out, status[i].peers[1 - i].bytes_out);
    }
    ck_assert_uint_eq(status[0].bytes_out, status[1].bytes_in);
    ck_assert_uint_eq(status[1].bytes_out, status[0].bytes_in);
    ck_assert_uint_eq(status[0].peers[1].messages_out, status[1].peers[0].messages_in);
    ck_assert_uint_gt(status[0].bytes_out, 331126ull * 4); /* about half out, half back */
    for (uint32_t i = 0; i < 2; i++)
        engine_status_clear(&status[i]);
    both_stop(&both);
}
END_TEST

/* With recovery each rank is told that all have the result, once it has it itself, and soon: before
 * anything else is submitted. */
START_TEST(all_ranks_hold_what_was_reduced)
{
    struct both both;
    if (!both_begin_as(&both, "all_ranks_hold_what_was_reduced", 1, _i == 1, true))
        return;
    for (uint64_t sequence = 0; sequence < 20; sequence++) {
        reduce_once(both.workers, 4, sequence, 1 + 3000 * (sequence % 3));
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct arena_completion news = worker_next(&both.workers[rank]);
            ck_assert_uint_eq(news.type, ARENA_STABLE);
            ck_assert_uint_eq(news.group, 0);
            ck_assert_uint_eq(news.sequence, sequence + 1);
        }
    }
    both_stop(&both);
}
END_TEST

START_TEST(disagreeing_nodes_learn_it)
{
    struct both both;
    if (!both_start(&both, "disagreeing_nodes_learn_it", 0))
        return;
    for (uint32_t rank = 0; rank < 4; rank++)
        worker_submit(&both.workers[rank], 0, crossed[rank] == 0 ? 100 : 200);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_event *event = node_event(&both.nodes[i], ENGINE_GROUP_FAILED);
        ck_assert_int_eq(event->code, ERR_MISMATCH);
        ck_assert_str_eq(event->text, "collective 0 of group 0 differs between ranks: ranks 0, 3 "
                                      "asked for all_reduce sum float count 100; ranks 1, 2 asked "
                                      "for all_reduce sum float count 200");
        engine_event_free(event);
    }
    both_stop(&both);
}
END_TEST

START_TEST(a_peer_that_goes_is_reported)
{
    struct both both;
    if (!both_begin(&both, "a_peer_that_goes_is_reported", 1, _i >= 2))
        return;
    reduce_once(both.workers, 4, 0, 10000);
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (crossed[rank] == 0)
            worker_submit(&both.workers[rank], 1, 100000); /* under way when it happens */
    }
    if (_i % 2 == 0) {
        engine_stop(both.nodes[1].engine);
        both.nodes[1].engine = NULL;
    } else {
        give(both.nodes[1].engine, .kind = COMMAND_PEER_DISCONNECT, .peer = 0);
    }
    struct engine_event *event = node_event(&both.nodes[0], ENGINE_PEER_DOWN);
    ck_assert_uint_eq(event->node, 1);
    ck_assert_uint_eq(event->connection, both.nodes[0].connections);
    ck_assert_uint_gt(strlen(event->text), 0);
    engine_event_free(event);
    give(both.nodes[0].engine, .kind = COMMAND_JOB_FAIL, .job = JOB);
    node_settle(&both.nodes[0]);
    give(both.nodes[0].engine, .kind = COMMAND_JOB_CLOSE, .job = JOB);
    node_settle(&both.nodes[0]);
    both_stop(&both);
}
END_TEST

/* The first message already tells that the two do not have the same keys. */
START_TEST(sealed_with_different_keys_nothing_passes)
{
    struct both both;
    if (!both_begin(&both, "sealed_with_different_keys_nothing_passes", 1, true))
        return;
    for (uint32_t i = 0; i < 2; i++) {
        give(both.nodes[i].engine, .kind = COMMAND_JOB_CLOSE, .job = JOB);
        node_settle(&both.nodes[i]);
    }
    give(both.nodes[0].engine, .kind = COMMAND_PEER_DISCONNECT, .peer = 1);
    node_expect(&both.nodes[1], ENGINE_PEER_DOWN, 0);
    both.nodes[1].wrong_key = true;
    nodes_connect(both.nodes);
    open_job(both.nodes, 2, crossed, 4);
    for (uint32_t rank = 0; rank < 4; rank++) {
        worker_release(&both.workers[rank]);
        worker_attach(&both.workers[rank], &both.nodes[crossed[rank]], rank);
        worker_submit(&both.workers[rank], 0, 1000);
    }
    struct engine_event *event = node_event(&both.nodes[0], ENGINE_PEER_DOWN);
    ck_assert_msg(strstr(event->text, "sealed with another key") != NULL, "%s", event->text);
    engine_event_free(event);
    both_stop(&both);
}
END_TEST

/* After a disconnection the pair connects anew, and other jobs go on over it. */
START_TEST(a_pair_connects_again)
{
    struct both both;
    if (!both_begin(&both, "a_pair_connects_again", 1, _i == 1))
        return;
    reduce_once(both.workers, 4, 0, 5000);
    for (uint32_t i = 0; i < 2; i++) {
        give(both.nodes[i].engine, .kind = COMMAND_JOB_CLOSE, .job = JOB);
        node_settle(&both.nodes[i]);
    }
    give(both.nodes[0].engine, .kind = COMMAND_PEER_DISCONNECT, .peer = 1);
    node_expect(&both.nodes[1], ENGINE_PEER_DOWN, 0);
    nodes_connect(both.nodes);
    open_job(both.nodes, 2, crossed, 4);
    for (uint32_t rank = 0; rank < 4; rank++) {
        worker_release(&both.workers[rank]);
        worker_attach(&both.workers[rank], &both.nodes[crossed[rank]], rank);
    }
    reduce_once(both.workers, 4, 0, 50000);
    both_stop(&both);
}
END_TEST

/* Stopping takes what is in progress along: the sanitizers see what it forgets. */
START_TEST(stopping_in_the_midst_of_it)
{
    struct both both;
    if (!both_begin(&both, "stopping_in_the_midst_of_it", (uint32_t)_i % 3, _i >= 3))
        return;
    for (uint64_t sequence = 0; sequence < 6; sequence++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (rank != 2 || sequence < 3)
                worker_submit(&both.workers[rank], sequence, 200000);
        }
    }
    both_stop(&both);
    ck_assert_int_le(descriptor_count(), both.descriptors + 1);
}
END_TEST

static TCase *two_engines(void)
{
    TCase *tests = tcase_create("two engines");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, ranks_of_two_nodes_reduce, 0, 6);
    tcase_add_loop_test(tests, all_ranks_hold_what_was_reduced, 0, 2);
    tcase_add_test(tests, disagreeing_nodes_learn_it);
    tcase_add_loop_test(tests, a_peer_that_goes_is_reported, 0, 4);
    tcase_add_test(tests, sealed_with_different_keys_nothing_passes);
    tcase_add_loop_test(tests, a_pair_connects_again, 0, 2);
    tcase_add_loop_test(tests, stopping_in_the_midst_of_it, 0, 6);
    return tests;
}

int main(void)
{
    transport_prepare_environment();
    Suite *suite = suite_create("engine_pair");
    suite_add_tcase(suite, two_engines());
    return suite_main(suite);
}
