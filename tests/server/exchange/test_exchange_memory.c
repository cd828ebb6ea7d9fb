/* Chunk buffers: what groups are promised, receives that stay and return, memory that is lacking.
 */
#include "common/format/window.h"
#include "server/exchange/owner/slots.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#define COUNT FIXTURE_CHUNK

/* Ranks 0 and 1 here, 2 on node 1. */
static struct fixture *two_and_one(uint32_t server)
{
    struct fixture_options options = {.nodes = 2, .ranks = 3, .rank_nodes = {0, 0, 1}};
    options.weights[server] = 1;
    return fixture_create(&options);
}

/* Four nodes; this one owns all shards: window + 1 receives from each of three for contributions,
 * and as many for the results of blocks that they own. */
static struct fixture_options four_nodes(uint64_t buffers)
{
    return (struct fixture_options){.nodes = 4,
                                    .ranks = 5,
                                    .rank_nodes = {0, 0, 1, 2, 3},
                                    .weights = {1},
                                    .buffers = buffers,
                                    .leave_closed = true};
}

START_TEST(a_job_beyond_the_memory_is_refused_and_takes_none)
{
    /* 16 sums (4 for each owner) and 33 receives are wanted */
    for (uint64_t buffers = 0; buffers < 49; buffers++) {
        struct fixture_options options = four_nodes(buffers ? buffers : 1);
        struct fixture *fixture = fixture_create(&options);
        fixture_expect_error(fixture, fixture_open_job(fixture, FIXTURE_JOB), ERR_MEMORY,
                             "the limit limits.memory_bytes is");
        ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
        ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 0);
        ck_assert_uint_eq(fixture->posted_count, 0);
        struct exchange_totals totals;
        exchange_totals(fixture->exchange, &totals);
        ck_assert_uint_eq(totals.jobs, 0);
        exchange_check(fixture->exchange);
        fixture_destroy(fixture);
    }
    struct fixture_options options = four_nodes(49);
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 49 * 384);
    for (uint32_t node = 1; node < 4; node++)
        ck_assert_uint_eq(fixture_posted(fixture, node), 11);
    fixture_expect_error(fixture, fixture_open_job(fixture, 0x777), ERR_MEMORY,
                         "bytes already promised");
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 49 * 384);
    fixture_destroy(fixture);
}
END_TEST

/* One user's jobs leave half of the memory to others, but one job may have all. */
START_TEST(a_user_leaves_memory_for_others)
{
    enum { ALICE = 1000, BOB = 1001, OWN = 0 };
    struct fixture_options options = four_nodes(200);
    options.user = ALICE;
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, 0x1), 0);
    ck_assert_int_eq(fixture_open_job(fixture, 0x2), 0);
    fixture_expect_error(fixture, fixture_open_job(fixture, 0x3), ERR_MEMORY,
                         "there may be 76800 bytes of chunk buffers and shared memory on node a "
                         "(limits.memory_bytes), 38400 of them one user's: there are 37632, user "
                         "1000 has 37632 and asks for 18816 more; end some of them first, or raise "
                         "the limit");
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 98 * 384);
    fixture->options.user = BOB;
    ck_assert_int_eq(fixture_open_job(fixture, 0x4), 0);
    exchange_job_close(fixture->exchange, 0x1);
    fixture->options.user = ALICE;
    ck_assert_int_eq(fixture_open_job(fixture, 0x5), 0);
    fixture_destroy(fixture);

    options = four_nodes(150);
    options.user = OWN;
    fixture = fixture_create(&options);
    for (uint64_t job = 1; job <= 3; job++)
        ck_assert_int_eq(fixture_open_job(fixture, job), 0);
    fixture_destroy(fixture);

    options = four_nodes(49);
    options.user = ALICE;
    fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, 0x1), 0);
    fixture_destroy(fixture);
}
END_TEST

/* Return how many buffers a group with two ranks here and one on each node of `members` is
 * promised. */
static uint64_t promised(uint32_t window, uint32_t nodes, uint32_t servers, uint32_t members)
{
    struct fixture_options options = {.nodes = nodes, .window = window, .leave_closed = true};
    for (uint32_t node = 0; node < nodes; node++) {
        options.weights[node] = servers >> node & 1;
        for (uint32_t i = 0; i < (node == 0 ? 2 : members >> node & 1); i++)
            options.rank_nodes[options.ranks++] = node;
    }
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    uint64_t bytes = buffer_pool_reserved_bytes(fixture->pool);
    fixture_destroy(fixture);
    return bytes / 384;
}

/* The least that the configuration allows is just what the largest group is promised. */
START_TEST(the_check_of_the_configuration_promises_what_holds)
{
    for (uint32_t nodes = 1; nodes <= 5; nodes++) {
        for (uint32_t servers = 1; servers < 1u << nodes; servers++) {
            uint64_t most = 0;
            for (uint32_t members = 1; members < 1u << nodes; members += 2) {
                uint64_t one = promised(4, nodes, servers, members);
                most = one > most ? one : most;
            }
            uint32_t count = (uint32_t)__builtin_popcount(servers);
            ck_assert_uint_eq(window_buffers_most(4, nodes, count, servers & 1), most);
        }
    }
}
END_TEST

/* The check also holds beyond 8 nodes, where windows shrink: to servers without ranks, by another
 * measure. */
START_TEST(the_check_holds_for_larger_rosters)
{
    for (uint32_t nodes = 9; nodes <= FIXTURE_NODES; nodes++) {
        uint64_t most = 0;
        for (uint32_t members = 1; members <= nodes; members++) {
            uint64_t one = promised(8, nodes, (1u << nodes) - 1, (1u << members) - 1);
            most = one > most ? one : most;
        }
        ck_assert_uint_eq(window_buffers_most(8, nodes, nodes, true), most);
    }
    /* of 12 owners: 3 nodes with ranks have windows of 8, the 9 others of 5, as 12 nodes had */
    ck_assert_uint_eq(promised(8, 12, 0xfff, 0x7), 2 * 19 + 9 * 7 + 3 * 8 + 9 * 5);
    /* and 3 servers alone, outside 4 nodes: 7 owners in all */
    ck_assert_uint_eq(promised(8, 12, 0xe00, 0xf), 3 * 19 + 3 * 10 + 7 * 8);
}
END_TEST

/* Receives that were posted cannot be taken back, and serve the next job. */
START_TEST(receives_of_a_closed_job_serve_the_next)
{
    struct fixture_options options = four_nodes(49);
    struct fixture *fixture = fixture_create(&options);
    for (int round = 0; round < 5; round++) {
        ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
        ck_assert_uint_eq(fixture->posted_count, 33);
        ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
        ck_assert_uint_eq(fixture->posted_count, 32); /* one is held */
        exchange_job_close(fixture->exchange, FIXTURE_JOB);
        exchange_check(fixture->exchange);
        ck_assert_uint_le(fixture->posted_count, 33);
    }
    fixture_destroy(fixture);
}
END_TEST

/* A job of two ranks, one here and one on that node; this node owns all shards. */
static int open_pair(struct fixture *fixture, uint64_t job, uint32_t node)
{
    uint32_t rank_nodes[] = {0, node}, server = 0, weight = 1;
    struct engine_job roster = {.job = job,
                                .name = "pair",
                                .world_size = 2,
                                .rank_nodes = rank_nodes,
                                .server_count = 1,
                                .server_nodes = &server,
                                .server_weights = &weight};
    return exchange_job_open(fixture->exchange, &roster, &fixture->error);
}

/* Memory that a closed job was promised is free for jobs with other peers, and its receives serve
 * the next job with the same peer. */
START_TEST(a_closed_job_promises_nothing)
{
    struct fixture_options options = four_nodes(11);
    options.shared_receives = _i == 1;
    struct fixture *fixture = fixture_create(&options);
    for (uint64_t round = 0; round < 12; round++) {
        uint32_t node = 1 + (uint32_t)round % 3;
        uint32_t posted = fixture->posted_count;
        ck_assert_int_eq(open_pair(fixture, 7 + round, node), 0);
        ck_assert_uint_eq(fixture->posted_count, round < 3 && (round == 0 || _i == 0)
                                                     ? posted + 11
                                                     : posted); /* no memory more */
        ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 11 * 384);
        fixture_expect_error(fixture, open_pair(fixture, 100, 3), ERR_MEMORY, "already promised");
        exchange_job_close(fixture->exchange, 7 + round);
        ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
        exchange_check(fixture->exchange);
    }
    /* an idle receive that a late message uses up is not posted again */
    uint32_t posted = fixture->posted_count;
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    ck_assert_uint_eq(fixture->posted_count, posted - 1);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), (posted - 1) * 384);
    fixture_destroy(fixture);
}
END_TEST

/* One process of a failed job may live for long; it must not hold the memory against others. */
START_TEST(a_failed_job_promises_nothing)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 3, .rank_nodes = {0, 0, 1}, .weights = {0, 1}, .buffers = 19};
    struct fixture *fixture = fixture_create(&options);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 19 * 384);
    fixture_expect_error(fixture, fixture_open_job(fixture, 0x777), ERR_MEMORY, "already promised");
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 0, COUNT);
    ck_assert_uint_gt(fixture->task_count, 0);
    if (_i == 0)
        exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    else
        exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    /* not while its memory is being summed or sent */
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 19 * 384);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
    exchange_check(fixture->exchange);
    /* both workers are still there */
    ck_assert(fixture->attached[0] && fixture->attached[1]);
    ck_assert_int_eq(fixture_open_job(fixture, 0x777), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 19 * 384);
    /* and what goes now gives nothing back a second time */
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 19 * 384);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 1), 0); /* late, and dropped */
    exchange_check(fixture->exchange);
    fixture_destroy(fixture);
}
END_TEST

/* Receives are posted for who is up, and for the others once they are. */
START_TEST(receives_come_with_the_peer)
{
    struct fixture_options options = four_nodes(100);
    options.leave_down = true;
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    ck_assert_uint_eq(fixture->posted_count, 0);
    exchange_peer_up(fixture->exchange, 2, fixture_receive_token(2), fixture_send_token(2));
    ck_assert_uint_eq(fixture_posted(fixture, 2), 11);
    ck_assert_uint_eq(fixture->posted_count, 11);
    fixture_peer_down(fixture, 2);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 0);
    exchange_peer_up(fixture->exchange, 2, fixture_receive_token(2), fixture_send_token(2));
    ck_assert_uint_eq(fixture_posted(fixture, 2), 11);
    exchange_check(fixture->exchange);
    fixture_destroy(fixture);
}
END_TEST

/* A buffer that is held while its sender goes away is not posted to it again. */
START_TEST(a_held_buffer_outlives_its_sender)
{
    struct fixture *fixture = two_and_one(0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_peer_down(fixture, 1);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 384);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 0);
    ck_assert_uint_eq(fixture->posted_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Receives that memory lacked for are made up for when a message comes. */
START_TEST(missing_receives_are_made_up_for)
{
    struct fixture_options options = four_nodes(100);
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0); /* 33 of 48 of three slabs */
    uint32_t both[] = {2, 0};
    struct buffer *taken[13];
    for (uint32_t n = 0; n < 13; n++)
        taken[n] = buffer_get(fixture->pool);
    fixture->refuse_slabs = true;
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 1, both, 2, NULL), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 13); /* of 22 */
    fixture->refuse_slabs = false;
    struct wire_header header = fixture_header(1, WIRE_RESULT, 0, 0, COUNT);
    header.job = 1; /* dropped: its buffer is free at once */
    ck_assert_int_eq(fixture_message(fixture, 1, header, NULL, 0), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 22);
    exchange_check(fixture->exchange);
    for (uint32_t n = 0; n < 13; n++)
        buffer_release(taken[n]);
    fixture_destroy(fixture);
}
END_TEST

/* Without anything in flight whose end would bring them on, what lacked memory is tried again with
 * time: receives, sums, and the news of a disagreement. */
START_TEST(what_lacked_memory_is_tried_again)
{
    struct fixture *fixture = two_and_one(1); /* 11 of 16 buffers are posted */
    struct buffer *taken[16];
    uint32_t count = 0;
    for (; count < 5; count++)
        taken[count] = buffer_get(fixture->pool);
    fixture->refuse_slabs = true;
    bool disagree = _i == 1;
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 0, COUNT + (disagree ? rank : 0));
    ck_assert_uint_eq(fixture->task_count + fixture->send_count, 0);
    exchange_tick(fixture->exchange, 1);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->task_count + fixture->send_count, 0);
    buffer_release(taken[--count]);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->task_count + fixture->send_count, 0);
    exchange_tick(fixture->exchange, 2);
    fixture_run(fixture);
    ck_assert_uint_eq(disagree ? fixture->send_count : fixture->task_count, 1);
    while (count > 0)
        buffer_release(taken[--count]);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    uint32_t both[] = {2, 0};
    fixture->refuse_slabs = false;
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 1, both, 2, NULL), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 22);
    for (uint32_t n = 0; n < 12; n++)
        taken[count++] = buffer_get(fixture->pool);
    both[0] = 1;
    both[1] = 2;
    fixture->refuse_receives = fixture->refuse_slabs = true;
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 2, both, 2, NULL), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 22);
    fixture->refuse_receives = fixture->refuse_slabs = false;
    exchange_tick(fixture->exchange, 3);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 33);
    while (count > 0)
        buffer_release(taken[--count]);
    fixture_destroy(fixture);
}
END_TEST

/* Memory that this node lacks is no fault of the peer whose message wants it: the group fails, the
 * connection stays. */
START_TEST(a_message_that_there_is_no_memory_for_fails_its_group)
{
#ifdef SHOAL_SANITIZED
    suite_skip("a_message_that_there_is_no_memory_for_fails_its_group",
               "sanitizers end what malloc refuses");
    return;
#endif
    struct fixture *fixture = two_and_one(0);
    struct slab *slots = &fixture->exchange->jobs->groups->slots->slab;
    struct slab kept = *slots;
    *slots = (struct slab){.object_bytes = SIZE_MAX / 64}; /* more than malloc gives */
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_expect_failure(fixture, ERR_MEMORY, "no memory for a slot");
    ck_assert_uint_eq(fixture_posted(fixture, 1), 11); /* the receive is posted again */
    *slots = kept;
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_memory");
    TCase *tests = tcase_create("exchange_memory");
    tcase_add_test(tests, a_job_beyond_the_memory_is_refused_and_takes_none);
    tcase_add_test(tests, a_user_leaves_memory_for_others);
    tcase_add_test(tests, the_check_of_the_configuration_promises_what_holds);
    tcase_add_test(tests, the_check_holds_for_larger_rosters);
    tcase_add_test(tests, receives_of_a_closed_job_serve_the_next);
    tcase_add_loop_test(tests, a_closed_job_promises_nothing, 0, 2);
    tcase_add_loop_test(tests, a_failed_job_promises_nothing, 0, 2);
    tcase_add_test(tests, receives_come_with_the_peer);
    tcase_add_test(tests, a_held_buffer_outlives_its_sender);
    tcase_add_test(tests, missing_receives_are_made_up_for);
    tcase_add_loop_test(tests, what_lacked_memory_is_tried_again, 0, 2);
    tcase_add_test(tests, a_message_that_there_is_no_memory_for_fails_its_group);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
