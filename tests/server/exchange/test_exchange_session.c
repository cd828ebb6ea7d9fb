/* Messages that are kept because a peer may lack them, and what becomes of them when the connection
 * breaks. */
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#include "common/base/error.h"
#include "server/exchange/model/model.h"

#define COUNT FIXTURE_CHUNK /* of a buffer: a chunk for either owner, if there are two */

/* This node (0) and node 1 have a rank each, and only node 1 is a server. */
static struct fixture *two_nodes_as(bool no_recovery)
{
    struct fixture_options options = {.nodes = 2,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {0, 1},
                                      .late_ns = 1ull << 40,
                                      .silence_ns = 8000,
                                      .recovery = true,
                                      .no_recovery = no_recovery};
    return fixture_create(&options);
}

static struct fixture *two_nodes(void)
{
    return two_nodes_as(false);
}

static void break_connection(struct fixture *fixture)
{
    ck_assert(exchange_peer_away(fixture->exchange, 1));
    fixture_all_sent(fixture);
    while (fixture->posted_count > 0)
        exchange_receive_returned(fixture->exchange, 1, fixture->posted[--fixture->posted_count]);
}

static void connect_again(struct fixture *fixture)
{
    struct error error;
    ck_assert(exchange_peer_session(fixture->exchange, 1, true));
    exchange_peer_up(fixture->exchange, 1, fixture_receive_token(1), fixture_send_token(1));
    ck_assert_int_eq(exchange_peer_ready(fixture->exchange, 1, &error), 0);
}

static int hear(struct fixture *fixture, uint64_t number, uint64_t received)
{
    struct wire_header header = fixture_header(1, WIRE_ALIVE, 0, 0, 0);
    header.job = 0;
    header.ask = (struct wire_ask){0};
    header.number = number;
    header.received = received;
    return fixture_message(fixture, 1, header, NULL, 0);
}

START_TEST(test_what_is_lacking_goes_again)
{
    struct fixture *fixture = two_nodes();
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        fixture_fill(fixture, 0, (uint32_t)sequence, COUNT, (float)sequence);
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    }
    ck_assert_uint_eq(fixture->send_count, 2);
    for (uint32_t n = 0; n < 2; n++)
        ck_assert_uint_eq(fixture_sending(fixture, n).number, n + 1);
    break_connection(fixture);
    /* A new message is only kept, and is over for those who sent it. */
    fixture_submit_sum(fixture, 0, 2, COUNT);
    ck_assert_uint_eq(fixture->send_count, 0);
    connect_again(fixture);
    ck_assert_uint_eq(fixture->send_count, 1); /* a sign: what has come here */
    ck_assert_uint_eq(fixture_sending(fixture, 0).number, 0);
    fixture_all_sent(fixture);
    ck_assert_int_eq(hear(fixture, 0, 1), 0);
    ck_assert_uint_eq(fixture->send_count, 2);
    ck_assert_uint_eq(fixture_sending(fixture, 0).number, 2);
    ck_assert_uint_eq(fixture_sending(fixture, 0).sequence, 1);
    ck_assert_float_eq(((const float *)fixture->sends[0]->payload)[0], 1);
    ck_assert_uint_eq(fixture_sending(fixture, 1).number, 3);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_numbers_that_cannot_be)
{
    struct fixture *fixture = two_nodes();
    ck_assert_int_eq(hear(fixture, 1, 0), 0);
    ck_assert_int_eq(hear(fixture, 1, 0), 0); /* a second time: dropped */
    ck_assert_int_eq(hear(fixture, 2, 0), 0);
    fixture_expect_error(fixture, hear(fixture, 4, 0), ERR_PROTOCOL, "4 came after message 2");
    fixture_expect_error(fixture, hear(fixture, 3, 1), ERR_PROTOCOL, "of 0 that were sent");
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Its numbers go on, or the peer would miss them; its memory does not wait for the peer. */
START_TEST(test_a_group_that_ends_leaves_numbers)
{
    struct fixture *fixture = two_nodes();
    fixture_submit_sum(fixture, 0, 0, COUNT);
    break_connection(fixture);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 0);
    fixture_destroy(fixture);
}
END_TEST

/* The peer has not had the message: its number goes again, with nothing behind it, and in order. */
START_TEST(test_the_number_of_an_ended_group_goes_again)
{
    struct fixture *fixture = two_nodes();
    fixture_submit_sum(fixture, 0, 0, COUNT);
    break_connection(fixture);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    exchange_run(fixture->exchange);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB + 1), 0);
    connect_again(fixture);
    fixture_all_sent(fixture);
    ck_assert_int_eq(hear(fixture, 0, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 0).type, WIRE_ALIVE);
    ck_assert_uint_eq(fixture_sending(fixture, 0).number, 1);
    ck_assert_uint_eq(fixture->sends[0]->payload_bytes, 0);
    fixture_all_sent(fixture);
    exchange_job_close(fixture->exchange, FIXTURE_JOB + 1);
    exchange_run(fixture->exchange);
    fixture_destroy(fixture);
}
END_TEST

/* A message that comes again is dropped, though it is a contribution: it is summed once. */
START_TEST(test_a_contribution_that_comes_again)
{
    struct fixture_options options = {.nodes = 2,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {1, 0},
                                      .late_ns = 1ull << 40,
                                      .recovery = true};
    struct fixture *fixture = fixture_create(&options);
    float values[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        values[i] = 2;
    struct wire_header header = fixture_header(1, WIRE_CONTRIBUTION, 0, 0, COUNT);
    header.number = 1;
    ck_assert_int_eq(fixture_message(fixture, 1, header, values, sizeof(values)), 0);
    ck_assert_int_eq(fixture_message(fixture, 1, header, values, sizeof(values)), 0);
    fixture_fill(fixture, 0, 0, COUNT, 1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    fixture_run(fixture);
    ck_assert_float_eq(fixture_data(fixture, 0, 0)[0], 3);
    fixture_destroy(fixture);
}
END_TEST

/* There is no buffer for a copy: the messages wait, in order, until a tick finds one. */
START_TEST(test_copies_wait_for_memory)
{
    struct fixture *fixture = two_nodes();
    struct buffer *taken[1000];
    uint32_t count = 0;
    fixture->refuse_slabs = true;
    while ((taken[count] = buffer_get(fixture->pool)) != NULL)
        count++;
    ck_assert_uint_gt(count, 2);
    for (uint64_t sequence = 0; sequence < 2; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    ck_assert_uint_eq(fixture->send_count, 0);
    if (_i == 1)
        break_connection(fixture);
    for (uint32_t sent = 1; sent <= 2; sent++) {
        buffer_release(taken[--count]);
        exchange_tick(fixture->exchange, sent);
        fixture_run(fixture);
        ck_assert_uint_eq(fixture->send_count, _i == 0 ? sent : 0);
    }
    for (uint32_t n = 0; n < fixture->send_count; n++) {
        ck_assert_uint_eq(fixture_sending(fixture, n).sequence, n);
        ck_assert_uint_eq(fixture_sending(fixture, n).number, n + 1);
    }
    while (count > 0)
        buffer_release(taken[--count]);
    fixture->refuse_slabs = false;
    if (_i == 1) { /* away all the time: they were kept, and go now */
        connect_again(fixture);
        fixture_all_sent(fixture);
        ck_assert_int_eq(hear(fixture, 0, 0), 0);
        ck_assert_uint_eq(fixture->send_count, 2);
    }
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Nothing of its messages is kept but their numbers, which go again with nothing behind them. */
START_TEST(test_a_job_that_refuses_recovery)
{
    struct fixture *fixture = two_nodes_as(true);
    const struct exchange_session *session = &fixture->exchange->peers[1].session;
    fixture_submit_sum(fixture, 0, 0, COUNT);
    ck_assert_uint_eq(fixture_sending(fixture, 0).type, WIRE_CONTRIBUTION);
    ck_assert_uint_eq(fixture_sending(fixture, 0).number, 1);
    ck_assert_uint_eq(session->kept, 1);
    ck_assert_uint_eq(session->copies, 0);
    ck_assert_uint_eq(session->promised, 0);
    break_connection(fixture);
    connect_again(fixture);
    fixture_all_sent(fixture);
    ck_assert_int_eq(hear(fixture, 0, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 0).type, WIRE_ALIVE);
    ck_assert_uint_eq(fixture_sending(fixture, 0).number, 1);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

static bool breaks_again(struct fixture *fixture)
{
    connect_again(fixture);
    ck_assert_int_eq(hear(fixture, 0, 0), 0);
    fixture_all_sent(fixture);
    bool goes_on = exchange_peer_away(fixture->exchange, 1);
    while (fixture->posted_count > 0)
        exchange_receive_returned(fixture->exchange, 1, fixture->posted[--fixture->posted_count]);
    return goes_on;
}

/* Messages that the peer lacks break each connection: there is an end to that, unless something
 * comes through. */
START_TEST(test_barren_connections)
{
    struct fixture *fixture = two_nodes();
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 0, 1, COUNT);
    break_connection(fixture);
    for (int i = 0; i < 5; i++)
        ck_assert(breaks_again(fixture));
    connect_again(fixture);
    ck_assert_int_eq(hear(fixture, 0, 1), 0);
    fixture_all_sent(fixture);
    break_connection(fixture);
    int times = 1;
    while (breaks_again(fixture))
        ck_assert_int_lt(++times, 20);
    ck_assert_int_gt(times, 5);
    ck_assert(exchange_peer_is_barren(fixture->exchange, 1));
    ck_assert(!exchange_peer_session(fixture->exchange, 1, true));
    exchange_peer_down(fixture->exchange, 1);
    ck_assert(!exchange_peer_is_barren(fixture->exchange, 1));
    ck_assert(exchange_peer_session(fixture->exchange, 1, false)); /* another one may begin */
    ck_assert(exchange_peer_away(fixture->exchange, 1));
    fixture_destroy(fixture);
}
END_TEST

/* Nothing is kept: such connections cost nobody anything. */
START_TEST(test_connections_without_work_are_not_barren)
{
    struct fixture *fixture = two_nodes();
    break_connection(fixture);
    for (int i = 0; i < 30; i++)
        ck_assert(breaks_again(fixture));
    fixture_destroy(fixture);
}
END_TEST

/* A barrier, or a sum, whose result comes from a peer that acknowledges nothing. */
static void without_acknowledgement(struct fixture *fixture, uint64_t sequence, bool barrier)
{
    struct arena_submission ask = fixture_ask(fixture, 0, sequence, COUNT);
    struct wire_header header = fixture_header(1, WIRE_RESULT, sequence, 0, COUNT);
    float values[COUNT] = {0};
    if (barrier) {
        ask.kind = header.ask.kind = COLLECTIVE_BARRIER;
        ask.dtype = header.ask.dtype = 0;
        ask.op = header.ask.op = 0;
        ask.count = header.ask.count = 0;
        ask.in_offset = ask.out_offset = 0;
    }
    header.number = sequence + 1;
    ck_assert_int_eq(fixture_submit(fixture, 0, &ask), 0);
    fixture_all_sent(fixture);
    if (fixture->exchange->peers[1].session.waiting)
        return;
    int result =
        fixture_message(fixture, 1, header, values, barrier ? 0 : (uint32_t)sizeof(values));
    ck_assert_msg(result == 0, "%d: %s", (int)sequence, fixture->error.text);
    fixture_all_reduced(fixture);
    fixture_run(fixture);
    fixture->completion_count = 0;
}

/* The memory kept for such a peer has a bound, and the peer is lost when silence_ns has passed in
 * this state. */
START_TEST(test_a_peer_that_acknowledges_nothing)
{
    struct fixture *fixture = two_nodes();
    struct exchange_session *session = &fixture->exchange->peers[1].session;
    uint64_t sequence = 0, now_ns = 1000;
    while (!session->waiting && sequence < 10000)
        without_acknowledgement(fixture, sequence++, _i == 1);
    ck_assert(session->waiting != NULL);
    ck_assert_uint_le(session->kept, 5000);
    for (int tick = 0; tick < 20 && fixture->silent[1] == 0; tick++, now_ns += 1000) {
        ck_assert_int_eq(hear(fixture, 0, 0), 0);
        exchange_tick(fixture->exchange, now_ns);
        fixture_all_sent(fixture);
        ck_assert(tick > 6 || fixture->silent[1] == 0);
    }
    ck_assert_uint_eq(fixture->silent[1], 1);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Its group has failed, maybe for the peer too, which then acknowledges nothing of it. */
START_TEST(test_what_waits_ends_with_its_group)
{
    struct fixture *fixture = two_nodes();
    struct buffer *taken[1000];
    uint32_t count = 0;
    fixture->refuse_slabs = true;
    while ((taken[count] = buffer_get(fixture->pool)) != NULL)
        count++;
    for (uint64_t sequence = 0; sequence < 2; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    ck_assert_uint_eq(fixture->send_count, 0);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    exchange_run(fixture->exchange);
    ck_assert_ptr_null(fixture->exchange->peers[1].session.waiting);
    ck_assert(!fixture->attached[0]);
    while (count > 0)
        buffer_release(taken[--count]);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
    fixture->refuse_slabs = false;
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_down_is_the_end_of_it)
{
    struct fixture *fixture = two_nodes();
    fixture_submit_sum(fixture, 0, 0, COUNT);
    break_connection(fixture);
    exchange_peer_down(fixture->exchange, 1);
    ck_assert(!exchange_peer_session(fixture->exchange, 1, true));
    ck_assert(!exchange_peer_away(fixture->exchange, 1));
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_session");
    TCase *all = tcase_create("all");
    tcase_add_test(all, test_what_is_lacking_goes_again);
    tcase_add_test(all, test_numbers_that_cannot_be);
    tcase_add_test(all, test_a_group_that_ends_leaves_numbers);
    tcase_add_test(all, test_the_number_of_an_ended_group_goes_again);
    tcase_add_test(all, test_a_contribution_that_comes_again);
    tcase_add_loop_test(all, test_copies_wait_for_memory, 0, 2);
    tcase_add_test(all, test_a_job_that_refuses_recovery);
    tcase_add_test(all, test_barren_connections);
    tcase_add_test(all, test_connections_without_work_are_not_barren);
    tcase_add_loop_test(all, test_a_peer_that_acknowledges_nothing, 0, 2);
    tcase_add_test(all, test_what_waits_ends_with_its_group);
    tcase_add_test(all, test_down_is_the_end_of_it);
    suite_add_tcase(suite, all);
    return suite_main(suite);
}
