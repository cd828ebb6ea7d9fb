/* Two runs of one user that call their jobs the same: their ranks do not make a job together. */
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

static struct network_worker *join_of_run(uint32_t mark, uint32_t node, uint32_t world_size,
                                          int32_t rank)
{
    network_set_mark(network, mark);
    struct network_worker *worker =
        network_join(network, node, network_name_at(network, (uint32_t)1), world_size, rank, -1, 0);
    network_settle(network);
    return worker;
}

/* The second run is refused, and the first one does not hear of it; while one ends, the next one
 * may gather. */
START_TEST(test_two_runs_of_one_name)
{
    struct network_worker *first[] = {join_of_run(7, 0, 2, 0), NULL};
    network_assert_text(join_of_run(8, 1, 2, 1), "gathers the ranks of another run");
    network_assert_text(join_of_run(8, 2, 3, 1), "gathers the ranks of another run");
    first[1] = join_of_run(7, 1, 2, 1);
    ck_assert(first[0]->state == CLIENT_JOINED && first[1]->state == CLIENT_JOINED);
    struct network_worker *second = join_of_run(8, 0, 1, 0);
    network_assert_text(second, "is running with all its 2 ranks, in another run");
    ck_assert_int_eq(second->failure.code, ERR_REFUSED);
    ck_assert_int_eq(join_of_run(7, 2, 1, 0)->state, CLIENT_JOINED);
    ck_assert_int_eq(join_of_run(0, 2, 1, 0)->state, CLIENT_JOINED);
    network_leave(network, first[0]);
    network_settle(network);
    ck_assert_uint_eq(first[1]->failed_count, 0);
    ck_assert(!first[1]->closed);
}
END_TEST

/* A rank of the run before may be there still, on another node. */
START_TEST(test_the_next_run)
{
    struct network_worker *first[] = {join_of_run(7, 0, 2, 0), join_of_run(7, 1, 2, 1)};
    network_leave(network, first[0]);
    network_settle(network);
    struct network_worker *next = join_of_run(8, 0, 2, 0);
    network_leave(network, first[1]);
    network_settle(network);
    ck_assert_int_eq(join_of_run(8, 1, 2, 1)->state, CLIENT_JOINED);
    ck_assert_int_eq(next->state, CLIENT_JOINED);
}
END_TEST

int main(void)
{
    TCase *cases = tcase_create("runs");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_two_runs_of_one_name);
    tcase_add_test(cases, test_the_next_run);
    Suite *suite = suite_create("coordinator_runs");
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
