/* The order in which a node serves others: the servers of its chunks, how far one may be ahead of
 * another, and the nodes that wait for a result. */
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

START_TEST(nodes_begin_with_servers_of_their_own_and_take_turns)
{
    const uint32_t first_servers[] = {0, 0, 1, 2}; /* self * 3 / 4 */
    uint32_t self = (uint32_t)_i;
    struct fixture_options options = {.self = self,
                                      .nodes = 7,
                                      .ranks = 4,
                                      .rank_nodes = {0, 1, 2, 3},
                                      .weights = {0, 0, 0, 0, 1, 1, 1}};
    struct fixture *fixture = fixture_create(&options);
    fixture_submit_sum(fixture, self, 0, 6 * FIXTURE_CHUNK);
    ck_assert_uint_eq(fixture->send_count, 6);
    for (uint32_t n = 0; n < 6; n++) {
        uint32_t server = (first_servers[self] + n) % 3;
        ck_assert_uint_eq(fixture->sends[n]->node, 4 + server);
        ck_assert_uint_eq(fixture_sending(fixture, n).chunk, n / 3 * 3 + server);
    }
    fixture_destroy(fixture);
}
END_TEST

static uint32_t sends_to(const struct fixture *fixture, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fixture->send_count; i++)
        count += fixture->sends[i]->node == node;
    return count;
}

struct lead {
    uint32_t window, window_bytes;
    uint32_t in_flight; /* for each server, at the most */
    uint32_t lead;
};

/* One server answers at once, the other one chunk at a time: the first one's shard waits for the
 * other, which has all of its window. */
START_TEST(shards_go_side_by_side)
{
    enum {
        PIECES = 40,
        FAST = 1,
        SLOW = 2,
        SHARDS = 2,
        CHUNK_BYTES = FIXTURE_CHUNK * sizeof(float)
    };
    static const struct lead leads[] = {{16, 8 * CHUNK_BYTES, 8, 8},
                                        {16, 1, 4, 8},
                                        {16, 1 << 30, PIECES / 4, PIECES / 4},
                                        {3, 1 << 30, 3, 3},
                                        {2, 1 << 30, 2, 2}};
    const struct lead *expected = &leads[_i];
    const uint64_t count = (uint64_t)SHARDS * PIECES * FIXTURE_CHUNK;
    struct fixture_options options = {.nodes = 3,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {0, 1, 1},
                                      .window = expected->window,
                                      .window_bytes = expected->window_bytes};
    struct fixture *fixture = fixture_create(&options);
    fixture_submit_sum(fixture, 0, 0, count);
    uint32_t answered = 0;
    for (uint32_t slow = 0; slow < PIECES; slow++) {
        uint32_t reached = slow + expected->lead < PIECES ? slow + expected->lead : PIECES;
        ck_assert_uint_eq(sends_to(fixture, SLOW),
                          slow > 0 ? slow + expected->in_flight <= PIECES : expected->in_flight);
        while (answered < reached) {
            fixture_all_sent(fixture);
            ck_assert_int_eq(fixture_result(fixture, FAST, 0, answered++ * SHARDS, count, 1), 0);
            fixture_all_reduced(fixture);
        }
        ck_assert_uint_eq(sends_to(fixture, FAST), 0);
        fixture_all_sent(fixture);
        ck_assert_int_eq(fixture_result(fixture, SLOW, 0, slow * SHARDS + 1, count, 1), 0);
        fixture_all_reduced(fixture);
    }
    ck_assert(fixture_completed(fixture, 0, 100));
    fixture_destroy(fixture);
}
END_TEST

/* A collective behind a shard that waits for another shard does not wait. */
START_TEST(others_pass_a_shard_that_waits)
{
    enum { PIECES = 40, FAST = 1, SHARDS = 2 };
    const uint64_t count = (uint64_t)SHARDS * PIECES * FIXTURE_CHUNK;
    struct fixture_options options = {
        .nodes = 3, .ranks = 2, .rank_nodes = {0, 1}, .weights = {0, 1, 1}, .window = 16};
    struct fixture *fixture = fixture_create(&options);
    fixture_submit_sum(fixture, 0, 0, count);
    fixture_all_sent(fixture);
    for (uint32_t piece = 0; piece < PIECES / 4; piece++)
        ck_assert_int_eq(fixture_result(fixture, FAST, 0, piece * SHARDS, count, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    fixture_submit_sum(fixture, 0, 1, 1); /* the other server's */
    fixture_submit_sum(fixture, 0, 2, 1);
    ck_assert_uint_eq(sends_to(fixture, FAST), 1);
    ck_assert_uint_eq(fixture_sending(fixture, fixture->send_count - 1).sequence, 2);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(results_of_neighbouring_chunks_go_to_different_nodes_first)
{
    struct fixture_options options = {
        .self = 4, .nodes = 5, .ranks = 4, .rank_nodes = {0, 1, 2, 3}, .weights = {0, 0, 0, 0, 1}};
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t chunk = 0; chunk < 4; chunk++) {
        for (uint32_t node = 0; node < 4; node++)
            ck_assert_int_eq(fixture_contribute(fixture, node, 0, chunk, 4 * FIXTURE_CHUNK, 1), 0);
        fixture_all_reduced(fixture);
        /* The one whose contribution the sum is in comes last: that is the chunk's node, too. */
        ck_assert_uint_eq(fixture->send_count, 3);
        for (uint32_t n = 0; n < 3; n++)
            ck_assert_uint_eq(fixture->sends[n]->node, (chunk + 1 + n) % 4);
        fixture_all_sent(fixture);
        fixture_all_sent(fixture);
    }
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_turns");
    TCase *tests = tcase_create("turns");
    tcase_add_loop_test(tests, nodes_begin_with_servers_of_their_own_and_take_turns, 0, 4);
    tcase_add_loop_test(tests, shards_go_side_by_side, 0, 5);
    tcase_add_test(tests, others_pass_a_shard_that_waits);
    tcase_add_test(tests, results_of_neighbouring_chunks_go_to_different_nodes_first);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
