/* Whom a node serves next: the servers of its chunks, and the nodes that wait for a result. */
#include "tests/lib/exchange_fixture.h"
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
    tcase_add_test(tests, results_of_neighbouring_chunks_go_to_different_nodes_first);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
