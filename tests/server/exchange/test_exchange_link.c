/* Signs of life: when they are sent, to whom, and who is found to be silent. */
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#include "common/base/error.h"
#include "server/exchange/model/model.h"

#define SILENCE_NS 8000u
#define STEP_NS (SILENCE_NS / 8)
#define COUNT FIXTURE_CHUNK

/* Nodes a and b with a rank each, a server, b too where it has a weight. */
static struct fixture *nodes_with(uint32_t weight)
{
    struct fixture_options options = {.nodes = 2,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {1, weight},
                                      .late_ns = 1ull << 40,
                                      .silence_ns = SILENCE_NS};
    return fixture_create(&options);
}

static struct fixture *two_nodes(void)
{
    return nodes_with(1);
}

static void tick(struct fixture *fixture, uint64_t ns)
{
    fixture->now_ns += ns;
    exchange_tick(fixture->exchange, fixture->now_ns);
    fixture_run(fixture);
}

static bool is_sign(const struct fixture *fixture, uint32_t n)
{
    uint8_t type = fixture_sending(fixture, n).type;
    return type == WIRE_KEEPALIVE || type == WIRE_ALIVE;
}

/* Gives the signs of life back that wait to be sent; how many there were of the type. */
static uint32_t take_signs(struct fixture *fixture, uint8_t type)
{
    uint32_t count = 0;
    for (uint32_t n = fixture->send_count; n-- > 0;) {
        if (!is_sign(fixture, n))
            continue;
        EXPECT(fixture->sends[n]->payload_bytes == 0 && !fixture->sends[n]->buffer);
        EXPECT(fixture_sending(fixture, n).token == fixture_send_token(fixture->sends[n]->node));
        count += fixture_sending(fixture, n).type == type;
        fixture_sent(fixture, n);
    }
    return count;
}

/* Ticks for so long; the signs of the type that were sent meanwhile. */
static uint32_t pass(struct fixture *fixture, uint64_t ns, uint8_t type)
{
    uint32_t count = 0;
    for (uint64_t passed = 0; passed < ns; passed += STEP_NS) {
        tick(fixture, STEP_NS);
        count += take_signs(fixture, type);
    }
    return count;
}

static int hear(struct fixture *fixture, uint32_t node, uint8_t type)
{
    struct wire_header header = {.type = type, .token = fixture_receive_token(node)};
    return fixture_message(fixture, node, header, NULL, 0);
}

/* Rank 0 waits for rank 1. */
static void wait_for_b(struct fixture *fixture)
{
    tick(fixture, STEP_NS);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_all_sent(fixture);
}

START_TEST(without_work_nothing_is_sent_and_nobody_silent)
{
    struct fixture *fixture = two_nodes();
    for (int i = 0; i < 100; i++)
        tick(fixture, STEP_NS);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_uint_eq(fixture->silent[1], 0);
    fixture_destroy(fixture);
}
END_TEST

static uint32_t stirred(const struct fixture *fixture)
{
    uint32_t count = 0, nodes = fixture->exchange->options.node_count;
    for (uint32_t node = 0; (node = peer_stirred_from(fixture->exchange, node)) < nodes; node++)
        count++;
    return count;
}

/* A tick looks at the peer of whom something may be due, and at no other. */
START_TEST(idle_peers_are_not_looked_at)
{
    struct fixture_options options = {.nodes = 12,
                                      .ranks = 12,
                                      .rank_nodes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                                      .weights = {1},
                                      .late_ns = 1ull << 40,
                                      .silence_ns = SILENCE_NS};
    struct fixture *fixture = fixture_create(&options);
    ck_assert_uint_eq(stirred(fixture), 11); /* new connections */
    pass(fixture, SILENCE_NS, WIRE_ALIVE);
    ck_assert_uint_eq(stirred(fixture), 0);
    ck_assert_int_eq(hear(fixture, 3, WIRE_KEEPALIVE), 0);
    ck_assert_uint_eq(peer_stirred_from(fixture->exchange, 0), 3);
    ck_assert_uint_eq(stirred(fixture), 1);
    ck_assert_uint_ge(pass(fixture, SILENCE_NS, WIRE_ALIVE), 1); /* it is answered, alone */
    pass(fixture, SILENCE_NS, WIRE_ALIVE);
    ck_assert_uint_eq(stirred(fixture), 0);
    fixture_submit_sum(fixture, 0, 0, COUNT); /* the owner waits for all */
    tick(fixture, STEP_NS);
    ck_assert_uint_ge(stirred(fixture), 11);
    ck_assert_uint_eq(take_signs(fixture, WIRE_KEEPALIVE), 11);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(who_is_waited_for_and_silent_is_reported)
{
    struct fixture *fixture = two_nodes();
    wait_for_b(fixture);
    uint32_t signs = pass(fixture, SILENCE_NS - STEP_NS, WIRE_KEEPALIVE);
    ck_assert_uint_ge(signs, 2);
    ck_assert_uint_le(signs, 4);
    ck_assert_uint_eq(fixture->silent[1], 0);
    pass(fixture, STEP_NS, WIRE_KEEPALIVE);
    ck_assert_uint_eq(fixture->silent[1], 1);
    ck_assert_uint_eq(pass(fixture, 4 * SILENCE_NS, WIRE_KEEPALIVE), 0);
    ck_assert_uint_eq(fixture->silent[1], 1);
    fixture_destroy(fixture);
}
END_TEST

/* Connected again it begins anew. */
START_TEST(after_a_new_connection_silence_counts_from_nothing)
{
    struct fixture *fixture = two_nodes();
    wait_for_b(fixture);
    pass(fixture, SILENCE_NS, WIRE_KEEPALIVE);
    ck_assert_uint_eq(fixture->silent[1], 1);
    exchange_peer_up(fixture->exchange, 1, fixture_receive_token(1), fixture_send_token(1));
    pass(fixture, SILENCE_NS - STEP_NS, WIRE_KEEPALIVE);
    ck_assert_uint_eq(fixture->silent[1], 1);
    pass(fixture, STEP_NS, WIRE_KEEPALIVE);
    ck_assert_uint_eq(fixture->silent[1], 2);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(any_message_is_a_sign)
{
    struct fixture *fixture = nodes_with(0);
    wait_for_b(fixture);
    for (uint32_t i = 0; i < 12; i++) {
        pass(fixture, SILENCE_NS - STEP_NS, WIRE_KEEPALIVE);
        if (i < 3) /* of collectives that rank 0 has not come to */
            ck_assert_int_eq(fixture_contribute(fixture, 1, i + 1, 0, COUNT, 1), 0);
        else
            ck_assert_int_eq(hear(fixture, 1, i % 2 ? WIRE_ALIVE : WIRE_KEEPALIVE), 0);
    }
    ck_assert_uint_eq(fixture->silent[1], 0);
    fixture_destroy(fixture);
}
END_TEST

/* Only a KEEPALIVE and data ask for signs, and for so long as silence may last. */
START_TEST(who_waits_is_answered_by_who_does_not)
{
    struct fixture *fixture = two_nodes();
    ck_assert_int_eq(hear(fixture, 1, WIRE_ALIVE), 0);
    ck_assert_uint_eq(pass(fixture, 4 * SILENCE_NS, WIRE_ALIVE), 0);
    ck_assert_int_eq(hear(fixture, 1, WIRE_KEEPALIVE), 0);
    uint32_t signs = pass(fixture, 4 * SILENCE_NS, WIRE_ALIVE);
    ck_assert_uint_ge(signs, 3);
    ck_assert_uint_le(signs, 5);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(hear(fixture, 1, WIRE_KEEPALIVE), 0);
        ck_assert_uint_ge(pass(fixture, SILENCE_NS / 4 + STEP_NS, WIRE_ALIVE), 1);
    }
    ck_assert_uint_eq(fixture->silent[1], 0);
    fixture_destroy(fixture);
}
END_TEST

/* A message for each step leaves no room for signs. */
START_TEST(where_data_flows_no_sign_is_sent)
{
    struct fixture *fixture = nodes_with(0);
    for (uint64_t sequence = 0; sequence < 64; sequence++) {
        fixture_submit_sum(fixture, 0, sequence, COUNT);
        ck_assert_int_eq(fixture_contribute(fixture, 1, sequence, 0, COUNT, 1), 0);
        fixture_all_reduced(fixture);
        ck_assert_uint_eq(fixture->send_count, 1);
        ck_assert(!is_sign(fixture, 0));
        fixture_all_sent(fixture);
        tick(fixture, STEP_NS);
        ck_assert_uint_eq(fixture->send_count, 0);
    }
    fixture_destroy(fixture);
}
END_TEST

/* A sign that has not left yet is not joined by others. */
START_TEST(one_sign_at_a_time)
{
    struct fixture *fixture = two_nodes();
    wait_for_b(fixture);
    for (uint32_t i = 0; i < 7; i++)
        tick(fixture, STEP_NS);
    ck_assert_uint_eq(fixture->send_count, 1);
    exchange_send_failed(fixture->exchange, fixture->sends[0], ERR_SYSTEM);
    ck_assert_uint_eq(take_signs(fixture, WIRE_KEEPALIVE), 1);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* After a pause of the process there is time to read what has come. */
START_TEST(a_pause_counts_as_one_step)
{
    struct fixture *fixture = two_nodes();
    wait_for_b(fixture);
    for (int i = 0; i < 7; i++) {
        tick(fixture, 1000 * SILENCE_NS);
        take_signs(fixture, WIRE_KEEPALIVE);
    }
    ck_assert_uint_eq(fixture->silent[1], 0);
    tick(fixture, STEP_NS);
    take_signs(fixture, WIRE_KEEPALIVE);
    ck_assert_uint_eq(fixture->silent[1], 1);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_sign_says_nothing_else)
{
    struct fixture *fixture = two_nodes();
    struct wire_header right = {.type = WIRE_ALIVE, .token = fixture_receive_token(1)};
    struct wire_header wrong[4] = {right, right, right, right};
    wrong[0].job = FIXTURE_JOB;
    wrong[1].group = 1;
    wrong[2].sequence = 1;
    wrong[3].chunk = 1;
    for (int i = 0; i < 4; i++)
        fixture_expect_error(fixture, fixture_message(fixture, 1, wrong[i], NULL, 0), ERR_PROTOCOL,
                             "a sign of life");
    fixture_expect_error(fixture, fixture_message(fixture, 1, right, "x", 1), ERR_PROTOCOL,
                         "a sign of life");
    right.token++;
    fixture_expect_error(fixture, fixture_message(fixture, 1, right, NULL, 0), ERR_PROTOCOL,
                         "token");
    fixture_destroy(fixture);
}
END_TEST

/* Node c is a server, nodes a and b have ranks, node d has nothing to do with the job. */
START_TEST(only_those_who_exchange_messages_are_waited_for)
{
    struct fixture_options options = {.nodes = 4,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {0, 0, 1, 0},
                                      .late_ns = 1ull << 40,
                                      .silence_ns = SILENCE_NS,
                                      .shared_receives = _i};
    struct fixture *fixture = fixture_create(&options);
    wait_for_b(fixture);
    pass(fixture, 2 * SILENCE_NS, WIRE_KEEPALIVE);
    ck_assert_uint_eq(fixture->silent[1], 1); /* an owner of blocks */
    ck_assert_uint_eq(fixture->silent[2], 1);
    ck_assert_uint_eq(fixture->silent[3], 0);
    fixture_destroy(fixture);
    options.self = 3;
    fixture = fixture_create(&options);
    ck_assert_int_eq(pass(fixture, 2 * SILENCE_NS, WIRE_KEEPALIVE), 0);
    fixture_destroy(fixture);
}
END_TEST

/* A server waits for nobody until somebody has contributed, and then for the others. */
START_TEST(an_owner_waits_for_contributions)
{
    struct fixture_options options = {.self = 2,
                                      .nodes = 3,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {0, 0, 1},
                                      .late_ns = 1ull << 40,
                                      .silence_ns = SILENCE_NS};
    struct fixture *fixture = fixture_create(&options);
    ck_assert_uint_eq(pass(fixture, 2 * SILENCE_NS, WIRE_KEEPALIVE), 0);
    ck_assert_int_eq(fixture_contribute(fixture, 0, 0, 0, COUNT, 1), 0);
    for (int i = 0; i < 20; i++) {
        pass(fixture, SILENCE_NS / 2, WIRE_KEEPALIVE);
        ck_assert_int_eq(hear(fixture, 0, WIRE_KEEPALIVE), 0);
    }
    ck_assert_uint_eq(fixture->silent[0], 0);
    ck_assert_uint_eq(fixture->silent[1], 1);
    fixture_destroy(fixture);
}
END_TEST

/* No receives are there for it, on either side. */
START_TEST(without_an_open_group_nobody_is_answered)
{
    struct fixture *fixture = two_nodes();
    ck_assert_int_eq(hear(fixture, 1, WIRE_KEEPALIVE), 0);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_eq(pass(fixture, 2 * SILENCE_NS, WIRE_ALIVE), 0);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_link");
    TCase *tests = tcase_create("link");
    tcase_add_test(tests, without_work_nothing_is_sent_and_nobody_silent);
    tcase_add_test(tests, idle_peers_are_not_looked_at);
    tcase_add_test(tests, who_is_waited_for_and_silent_is_reported);
    tcase_add_test(tests, after_a_new_connection_silence_counts_from_nothing);
    tcase_add_test(tests, any_message_is_a_sign);
    tcase_add_test(tests, who_waits_is_answered_by_who_does_not);
    tcase_add_test(tests, where_data_flows_no_sign_is_sent);
    tcase_add_test(tests, one_sign_at_a_time);
    tcase_add_test(tests, a_pause_counts_as_one_step);
    tcase_add_test(tests, a_sign_says_nothing_else);
    tcase_add_loop_test(tests, only_those_who_exchange_messages_are_waited_for, 0, 2);
    tcase_add_test(tests, an_owner_waits_for_contributions);
    tcase_add_test(tests, without_an_open_group_nobody_is_answered);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
