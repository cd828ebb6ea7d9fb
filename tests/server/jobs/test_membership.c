#include "server/jobs/membership.h"

#include <string.h>

#include "tests/lib/suite.h"

#define MS 1000000ull

static struct membership membership;

static void setup(void)
{
    /* Node 1 of 3: it connects to 2, and 0 connects to it. */
    ck_assert_int_eq(membership_init(&membership, 3, 1, 500, 3000, 1000 * MS), 0);
}

static void teardown(void)
{
    membership_clear(&membership);
}

static void expect(uint64_t now_ms, enum membership_action wanted, uint32_t wanted_node)
{
    enum membership_action action;
    uint32_t node;
    ck_assert(membership_next_action(&membership, now_ms * MS, &action, &node));
    ck_assert_int_eq(action, wanted);
    ck_assert_uint_eq(node, wanted_node);
}

static void expect_nothing(uint64_t now_ms)
{
    enum membership_action action;
    uint32_t node;
    ck_assert(!membership_next_action(&membership, now_ms * MS, &action, &node));
}

START_TEST(test_connects_upwards_only)
{
    ck_assert_uint_eq(membership_deadline(&membership), 1000 * MS);
    expect(1000, MEMBERSHIP_CONNECT, 2);
    expect_nothing(1000);
    /* The attempt is under way: nothing until it ends. */
    ck_assert_uint_eq(membership_deadline(&membership), UINT64_MAX);
}
END_TEST

START_TEST(test_attempts_back_off)
{
    uint64_t now_ns = 1000 * MS, before_ns = 0;
    for (int i = 0; i < 12; i++) {
        expect(now_ns / MS, MEMBERSHIP_CONNECT, 2);
        membership_lost(&membership, 2, now_ns, "refused");
        uint64_t wait_ns = membership_deadline(&membership) - now_ns;
        ck_assert_uint_ge(wait_ns, before_ns);
        ck_assert_uint_ge(wait_ns, MEMBERSHIP_RETRY_LEAST_NS);
        ck_assert_uint_le(wait_ns, MEMBERSHIP_RETRY_MOST_NS);
        before_ns = wait_ns;
        expect_nothing((now_ns + wait_ns) / MS - 1);
        now_ns += wait_ns;
    }
    ck_assert_uint_eq(before_ns, MEMBERSHIP_RETRY_MOST_NS);
    ck_assert_str_eq(membership.peers[2].reason, "refused");
    /* Success makes the next attempt quick again. */
    expect(now_ns / MS, MEMBERSHIP_CONNECT, 2);
    membership_connected(&membership, 2, 7, now_ns);
    membership_up(&membership, 2, 1000 * MS);
    ck_assert_str_eq(membership.peers[2].reason, "");
    membership_lost(&membership, 2, now_ns, "reset");
    ck_assert_uint_eq(membership_deadline(&membership) - now_ns, MEMBERSHIP_RETRY_LEAST_NS);
}
END_TEST

START_TEST(test_accepting_side_waits)
{
    expect(1000, MEMBERSHIP_CONNECT, 2);
    membership_connected(&membership, 0, 7, 1000 * MS);
    membership_lost(&membership, 0, 1100 * MS, "reset");
    expect_nothing(100000);
    ck_assert_int_eq(membership.peers[0].state, MEMBERSHIP_DOWN);
}
END_TEST

START_TEST(test_heartbeats)
{
    expect(1000, MEMBERSHIP_CONNECT, 2);
    membership_connected(&membership, 2, 7, 1000 * MS);
    ck_assert_int_eq(membership.peers[2].state, MEMBERSHIP_CONNECTED);
    ck_assert_uint_eq(membership_deadline(&membership), 1500 * MS);
    expect_nothing(1499);
    for (uint64_t now_ms = 1500; now_ms < 10000; now_ms += 500) {
        membership_heard(&membership, 2, now_ms * MS);
        expect(now_ms, MEMBERSHIP_PING, 2);
        expect_nothing(now_ms);
    }
}
END_TEST

START_TEST(test_silence)
{
    expect(1000, MEMBERSHIP_CONNECT, 2);
    membership_connected(&membership, 2, 7, 1000 * MS);
    membership_connected(&membership, 0, 7, 1000 * MS);
    membership_up(&membership, 2, 1000 * MS);
    membership_heard(&membership, 0, 3000 * MS);
    for (uint64_t now_ms = 1500; now_ms < 4000; now_ms += 500) {
        expect(now_ms, MEMBERSHIP_PING, 0);
        expect(now_ms, MEMBERSHIP_PING, 2);
        expect_nothing(now_ms);
    }
    expect(4000, MEMBERSHIP_PING, 0);
    expect(4000, MEMBERSHIP_SILENT, 2);
    membership_lost(&membership, 2, 4000 * MS, "no heartbeat for 3000 ms");
    expect_nothing(4000);
    ck_assert_int_eq(membership.peers[2].state, MEMBERSHIP_DOWN);
    ck_assert_int_eq(membership.peers[0].state, MEMBERSHIP_CONNECTED);
}
END_TEST

START_TEST(test_up_needs_a_connection)
{
    membership_up(&membership, 0, 1000 * MS);
    ck_assert_int_eq(membership.peers[0].state, MEMBERSHIP_DOWN);
    ck_assert_str_eq(membership_state_name(MEMBERSHIP_DOWN), "down");
    ck_assert_str_eq(membership_state_name(MEMBERSHIP_UP), "up");
}
END_TEST

START_TEST(test_long_reasons_are_cut)
{
    char reason[2 * MEMBERSHIP_REASON_BYTES];
    memset(reason, 'x', sizeof(reason));
    reason[sizeof(reason) - 1] = '\0';
    membership_lost(&membership, 2, 1000 * MS, reason);
    ck_assert_uint_eq(strlen(membership.peers[2].reason), MEMBERSHIP_REASON_BYTES - 1);
}
END_TEST

/* Events of a connection that is over, or of one before it, do not count. */
START_TEST(test_connections_are_told_apart)
{
    ck_assert(!membership_has(&membership, 2, 0));
    membership_connected(&membership, 2, 7, 1000 * MS);
    uint32_t first = membership.peers[2].connection;
    ck_assert(membership_has(&membership, 2, first));
    membership_up(&membership, 2, 1000 * MS);
    ck_assert(membership_has(&membership, 2, first));
    membership_lost(&membership, 2, 2000 * MS, "reset");
    ck_assert(!membership_has(&membership, 2, first));
    membership_connected(&membership, 2, 7, 3000 * MS);
    ck_assert(!membership_has(&membership, 2, first));
    ck_assert(membership_has(&membership, 2, membership.peers[2].connection));
}
END_TEST

/* Node 0 connects to this one. */
static enum membership_claim settle(uint64_t since_ms)
{
    return membership_settle(&membership, 0, since_ms * MS);
}

START_TEST(test_a_daemon_that_connects_again_is_taken)
{
    ck_assert_int_eq(membership_claim(&membership, 0, 7), MEMBERSHIP_TAKE);
    membership_connected(&membership, 0, 7, 1000 * MS);
    ck_assert_int_eq(membership_claim(&membership, 0, 7), MEMBERSHIP_TAKE);
    membership_lost(&membership, 0, 2000 * MS, "reset");
    ck_assert_int_eq(membership_claim(&membership, 0, 8), MEMBERSHIP_TAKE);
}
END_TEST

START_TEST(test_another_daemon_waits_for_the_end_of_the_older)
{
    membership_connected(&membership, 0, 7, 1000 * MS);
    membership_heard(&membership, 0, 1500 * MS);
    ck_assert_int_eq(membership_claim(&membership, 0, 8), MEMBERSHIP_WAIT);
    ck_assert_int_eq(settle(1500), MEMBERSHIP_WAIT);
    membership_lost(&membership, 0, 2000 * MS, "reset");
    ck_assert_int_eq(settle(1500), MEMBERSHIP_TAKE);
}
END_TEST

START_TEST(test_another_daemon_is_refused_while_the_older_lives)
{
    membership_connected(&membership, 0, 7, 1000 * MS);
    ck_assert_int_eq(membership_claim(&membership, 0, 8), MEMBERSHIP_WAIT);
    membership_heard(&membership, 0, 1501 * MS);
    ck_assert_int_eq(settle(1500), MEMBERSHIP_REFUSE);
    /* The older daemon also counts as alive when its fabric is up. */
    membership_up(&membership, 0, 1000 * MS);
    ck_assert_int_eq(membership_claim(&membership, 0, 8), MEMBERSHIP_WAIT);
    ck_assert_int_eq(settle(1500), MEMBERSHIP_REFUSE);
}
END_TEST

static void lose_two(uint64_t now_ms)
{
    membership_lost(&membership, 2, now_ms * MS, "reset");
}

START_TEST(test_away_for_so_long_only)
{
    membership_connected(&membership, 2, 7, 1000 * MS);
    membership_begin_session(&membership, 2, 99);
    ck_assert(!membership.peers[2].ended);
    ck_assert(!membership_away(&membership, 2, 1000 * MS)); /* it was never up */
    ck_assert(membership.peers[2].ended); /* started again, and killed again soon: its ranks live */
    membership_connected(&membership, 2, 7, 1000 * MS);
    membership_up(&membership, 2, 1000 * MS);
    ck_assert(membership_away(&membership, 2, 1000 * MS));
    ck_assert(!membership.peers[2].ended); /* a link may be cut as well */
    lose_two(1000);
    ck_assert(membership_is_away(&membership, 2));
    ck_assert_uint_eq(membership_attempt_ns(&membership, 2, 5000 * MS), 500 * MS);
    ck_assert_uint_eq(membership_attempt_ns(&membership, 0, 5000 * MS), 5000 * MS);
    expect(1050, MEMBERSHIP_CONNECT, 2);
    /* A connection that does not get as far as the fabric gives no further time. */
    membership_connected(&membership, 2, 7, 2000 * MS);
    ck_assert(membership_away(&membership, 2, 2500 * MS));
    lose_two(2500);
    ck_assert_uint_le(membership_deadline(&membership), 4000 * MS);
    expect(4000, MEMBERSHIP_GONE, 2);
    membership_forget(&membership, 2);
    ck_assert(!membership_is_away(&membership, 2));
    expect(4000, MEMBERSHIP_CONNECT, 2);
    expect_nothing(4000);
}
END_TEST

/* A connection that stays without the fabric gives no further time either, beyond the time that an
 * attempt has. */
START_TEST(test_away_without_the_fabric)
{
    membership_connected(&membership, 2, 7, 1000 * MS);
    membership_begin_session(&membership, 2, 99);
    membership_up(&membership, 2, 1000 * MS);
    ck_assert(membership_away(&membership, 2, 1000 * MS));
    lose_two(1000);
    membership_connected(&membership, 2, 7, 3900 * MS);
    membership_heard(&membership, 2, 4300 * MS);
    membership.peers[2].ping_ns = 9000 * MS;
    expect_nothing(4499);
    ck_assert_uint_eq(membership_deadline(&membership), 4500 * MS);
    expect(4500, MEMBERSHIP_GONE, 2);
    expect_nothing(4500);
}
END_TEST

/* Node 0 connects to this one, which can only look whether it is there. */
START_TEST(test_knocks_while_away)
{
    membership.peers[2].connect_ns = UINT64_MAX;
    membership_lost(&membership, 0, 900 * MS, "reset"); /* it was never there */
    expect_nothing(60000);
    membership_connected(&membership, 0, 7, 1000 * MS);
    membership_begin_session(&membership, 0, 99);
    membership_up(&membership, 0, 1000 * MS);
    ck_assert(membership_away(&membership, 0, 1000 * MS));
    membership_lost(&membership, 0, 1000 * MS, "reset");
    for (uint64_t now_ms = 1100; now_ms < 4000; now_ms += 100) {
        ck_assert_uint_eq(membership_deadline(&membership), now_ms * MS);
        expect_nothing(now_ms - 1);
        expect(now_ms, MEMBERSHIP_KNOCK, 0);
        expect_nothing(now_ms); /* the knock is under way */
        membership_knocked(&membership, 0, now_ms * MS);
    }
    expect(4000, MEMBERSHIP_GONE, 0);
    membership_forget(&membership, 0);
    expect_nothing(60000);
    /* The peer has come back: the knock that is under way says nothing of it. */
    membership_connected(&membership, 0, 7, 61000 * MS);
    membership_knocked(&membership, 0, 61000 * MS);
    ck_assert_uint_eq(membership.peers[0].connect_ns, UINT64_MAX);
}
END_TEST

START_TEST(test_back_in_time)
{
    membership_connected(&membership, 2, 7, 1000 * MS);
    membership_begin_session(&membership, 2, 99);
    membership_up(&membership, 2, 1000 * MS);
    ck_assert(membership_away(&membership, 2, 1000 * MS));
    lose_two(1000);
    membership_connected(&membership, 2, 7, 1100 * MS);
    ck_assert(membership_is_away(&membership, 2));
    ck_assert_uint_eq(membership.peers[2].recovered, 0);
    membership_up(&membership, 2, 1150 * MS);
    ck_assert(!membership_is_away(&membership, 2));
    ck_assert_uint_eq(membership.peers[2].recovered, 1);
    ck_assert_uint_eq(membership.peers[2].recovered_ns, 150 * MS);
    ck_assert_uint_eq(membership.peers[2].session, 99);
    /* From then on it has all of the time again. */
    ck_assert(membership_away(&membership, 2, 9000 * MS));
    lose_two(9000);
    expect(9050, MEMBERSHIP_CONNECT, 2);
    expect_nothing(11999);
    expect(12000, MEMBERSHIP_GONE, 2);
}
END_TEST

/* However often it was tried: else the last wait is longer than what is left of the time. */
START_TEST(test_attempts_while_away_are_close)
{
    membership_connected(&membership, 2, 7, 1000 * MS);
    membership_begin_session(&membership, 2, 99);
    membership_up(&membership, 2, 1000 * MS);
    ck_assert(membership_away(&membership, 2, 1000 * MS));
    lose_two(1000);
    uint64_t now_ms = 1050;
    for (; now_ms < 3900; now_ms += 100) {
        expect(now_ms, MEMBERSHIP_CONNECT, 2);
        lose_two(now_ms);
        expect_nothing(now_ms + (now_ms > 1050 ? 99 : 49));
    }
    expect(4000, MEMBERSHIP_GONE, 2);
    membership_forget(&membership, 2);
    expect(4000, MEMBERSHIP_CONNECT, 2);
    lose_two(4000); /* and now at leisure */
    expect_nothing(5999);
    expect(6000, MEMBERSHIP_CONNECT, 2);
}
END_TEST

START_TEST(test_what_cannot_recover_is_gone_at_once)
{
    membership_connected(&membership, 2, 7, 1000 * MS);
    membership_begin_session(&membership, 2, 99);
    membership_up(&membership, 2, 1000 * MS);
    membership_cannot_recover(&membership, 2, 1000 * MS);
    ck_assert(!membership_away(&membership, 2, 1000 * MS));
    membership_begin_session(&membership, 2, 99);
    ck_assert(membership_away(&membership, 2, 1000 * MS));
    lose_two(1000);
    membership_cannot_recover(&membership, 2, 1001 * MS);
    expect(1001, MEMBERSHIP_GONE, 2);
}
END_TEST

/* Until the next one is connected. */
START_TEST(test_a_daemon_that_has_ended)
{
    membership_connected(&membership, 2, 7, 10);
    membership_lost(&membership, 2, 20, "cut");
    ck_assert(!membership.peers[2].ended);
    membership_ended(&membership, 2);
    ck_assert(membership.peers[2].ended && !membership.peers[0].ended);
    membership_connected(&membership, 2, 8, 30);
    ck_assert(!membership.peers[2].ended);
}
END_TEST

START_TEST(test_alone)
{
    struct membership alone;
    enum membership_action action;
    uint32_t node;
    ck_assert_int_eq(membership_init(&alone, 1, 0, 500, 3000, 0), 0);
    ck_assert(!membership_next_action(&alone, 1000 * MS, &action, &node));
    ck_assert_uint_eq(membership_deadline(&alone), UINT64_MAX);
    membership_clear(&alone);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("membership");
    TCase *cases = tcase_create("membership");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_connects_upwards_only);
    tcase_add_test(cases, test_attempts_back_off);
    tcase_add_test(cases, test_accepting_side_waits);
    tcase_add_test(cases, test_heartbeats);
    tcase_add_test(cases, test_silence);
    tcase_add_test(cases, test_up_needs_a_connection);
    tcase_add_test(cases, test_long_reasons_are_cut);
    tcase_add_test(cases, test_connections_are_told_apart);
    tcase_add_test(cases, test_a_daemon_that_connects_again_is_taken);
    tcase_add_test(cases, test_another_daemon_waits_for_the_end_of_the_older);
    tcase_add_test(cases, test_another_daemon_is_refused_while_the_older_lives);
    tcase_add_test(cases, test_away_for_so_long_only);
    tcase_add_test(cases, test_away_without_the_fabric);
    tcase_add_test(cases, test_knocks_while_away);
    tcase_add_test(cases, test_back_in_time);
    tcase_add_test(cases, test_attempts_while_away_are_close);
    tcase_add_test(cases, test_what_cannot_recover_is_gone_at_once);
    tcase_add_test(cases, test_a_daemon_that_has_ended);
    tcase_add_test(cases, test_alone);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
