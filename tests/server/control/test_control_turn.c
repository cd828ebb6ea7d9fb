/* The turns of many streams, of several users and of other daemons, in one loop. A line takes a
 * millisecond here, as if it were expensive to read; the tests count lines, not time. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/format/message.h"
#include "server/control/ground/control_internal.h"
#include "tests/lib/suite.h"

#define STREAMS 110u
#define ROUNDS 100000u
#define SLICE 10u /* lines until the loop looks again: its clock is a coarse one */

struct end {
    struct control_stream *stream;
    int other;
    uint32_t lines;
    uint32_t before; /* lines of all streams when this one's last came */
    int code;
    char reason[128];
};

static struct control control;
static struct end ends[STREAMS];
static uint32_t count, lines, line_us;
static void (*on_line)(struct end *end);

static void handle_line(void *context, char *line, size_t length)
{
    struct end *end = context;
    (void)line, (void)length;
    for (uint64_t until = clock_now_ns() + line_us * 1000ull; clock_now_ns() < until;)
        ;
    end->lines++;
    end->before = lines++;
    if (on_line)
        on_line(end);
}

static void handle_end(void *context, int code, const char *reason)
{
    struct end *end = context;
    end->code = code;
    snprintf(end->reason, sizeof(end->reason), "%s", reason);
    control_stream_free(end->stream);
    end->stream = NULL;
}

static void on_update(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what, (void)argument;
}

static void setup(void)
{
    control = (struct control){.accounts.limits = {[ACCOUNT_OUTPUT] = UINT64_MAX}};
    ck_assert_int_eq(control_turn_init(&control), 0);
    control.update_event = event_new(control.base, -1, 0, on_update, NULL);
    memset(ends, 0, sizeof(ends));
    count = lines = 0;
    line_us = 1000;
    on_line = NULL;
}

static void teardown(void)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ends[i].stream)
            control_stream_free(ends[i].stream);
        close(ends[i].other);
    }
    while (control.streams)
        control_stream_free(control.streams);
    ck_assert_ptr_null(control.shares);
    ck_assert_ptr_null(control.turn_waiters);
    ck_assert_uint_eq(control.strangers.streams, 1);
    ck_assert_uint_eq(control.trusted.streams, 1);
    control_closer_clear(&control);
    event_free(control.update_event);
    control_turn_clear(&control);
    ck_assert_ptr_null(control.accounts.accounts);
}

static struct end *open_end(bool with_descriptors, uint32_t uid)
{
    static const struct control_stream_handlers handlers = {handle_line, handle_end};
    struct end *end = &ends[count++];
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    end->stream = control_stream_create(&control, pair[0], with_descriptors, uid, &handlers, end);
    ck_assert_ptr_nonnull(end->stream);
    end->other = pair[1];
    return end;
}

static void say(const struct end *end, const char *text, size_t bytes)
{
    ck_assert_int_eq(send(end->other, text, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
}

static void say_lines(const struct end *end, uint32_t how_many)
{
    for (uint32_t i = 0; i < how_many; i++)
        say(end, "x\n", 2);
}

static void round_of_loop(void)
{
    ck_assert_int_ge(event_base_loop(control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
}

/* Until nothing happens any more. */
static void rest(void)
{
    for (uint32_t idle = 0, round = 0; idle < 5 && round < ROUNDS; round++) {
        uint32_t before = lines;
        round_of_loop();
        idle = lines == before && !control.turn_waiters ? idle + 1 : 0;
    }
}

/* --- shares */

static struct end *quiet;

static void quiet_speaks_at_twenty(struct end *end)
{
    (void)end;
    if (lines == 20)
        say_lines(quiet, 1);
}

static void flood(uint32_t streams, uint32_t uid, uint32_t each)
{
    for (uint32_t i = 0; i < streams; i++)
        say_lines(open_end(true, uid), each);
}

/* However many connections a user has: another user has to wait for two shares, one that is being
 * used up and one more. A share is two such lines, and the one that goes beyond it. */
START_TEST(test_another_user)
{
    flood(32, 1000, 8);
    quiet = open_end(true, 1001);
    on_line = quiet_speaks_at_twenty;
    rest();
    ck_assert_uint_eq(lines, 32 * 8 + 1);
    ck_assert_uint_eq(quiet->lines, 1);
    ck_assert_uint_ge(quiet->before, 20);
    ck_assert_uint_le(quiet->before, 20 + 6);
}
END_TEST

/* Whoever is many users has many shares, but then a connection has less at a time. Each of these
 * says twelve lines in a callback at most, until 50 ms are over, and then one or two. */
START_TEST(test_many_users)
{
    line_us = 80;
    for (uint32_t uid = 2000; uid < 2100; uid++)
        flood(1, uid, 16);
    quiet = open_end(true, 1001);
    on_line = quiet_speaks_at_twenty;
    rest();
    ck_assert_uint_eq(lines, 100 * 16 + 1);
    ck_assert_uint_le(quiet->before, 20 + 50 * 13 + 100 * 2);
}
END_TEST

/* Strangers have one share together; so a worker goes on. */
START_TEST(test_strangers)
{
    for (uint32_t i = 0; i < 32; i++)
        say_lines(open_end(false, CONTROL_ANY_USER), 8);
    quiet = open_end(true, 1001);
    on_line = quiet_speaks_at_twenty;
    rest();
    ck_assert_uint_eq(lines, 32 * 8 + 1);
    ck_assert_uint_le(quiet->before, 20 + 6);
}
END_TEST

/* A daemon that has authenticated waits for a slice of the loop. */
START_TEST(test_trusted_goes_first)
{
    quiet = open_end(false, CONTROL_ANY_USER);
    control_stream_trust(quiet->stream);
    for (uint32_t uid = 1000; uid < 1100; uid++)
        flood(1, uid, 4);
    on_line = quiet_speaks_at_twenty;
    rest();
    ck_assert_uint_eq(quiet->lines, 1);
    ck_assert_uint_le(quiet->before, 20 + SLICE);
}
END_TEST

static uint32_t rung_at;

static void on_vital(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what, (void)argument;
    rung_at = lines;
}

static void ring_at_twenty(struct end *end)
{
    static const struct timeval at_once = {0, 0};
    (void)end;
    if (lines == 20)
        evtimer_add(control.stop_event, &at_once);
}

/* A heartbeat does not wait for what authenticated daemons say either, however much that is. */
START_TEST(test_vital_goes_before_all)
{
    control.stop_event = evtimer_new(control.base, on_vital, NULL);
    event_priority_set(control.stop_event, CONTROL_VITAL);
    for (uint32_t i = 0; i < 40; i++) {
        struct end *end = open_end(false, CONTROL_ANY_USER);
        control_stream_trust(end->stream);
        say_lines(end, 4);
    }
    for (uint32_t uid = 1000; uid < 1060; uid++)
        flood(1, uid, 4);
    on_line = ring_at_twenty;
    rung_at = 0;
    rest();
    event_free(control.stop_event);
    ck_assert_uint_eq(lines, 100 * 4);
    ck_assert_uint_ge(rung_at, 20);
    ck_assert_uint_le(rung_at, 20 + SLICE);
}
END_TEST

static void trusted_say_more(struct end *end)
{
    if (lines == 20)
        say_lines(quiet, 1);
    if (lines < 2000 && end != quiet)
        say_lines(end, 1);
}

/* Daemons that have ever more to say do not shut out the workers. */
START_TEST(test_trusted_have_a_share_too)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct end *end = open_end(false, CONTROL_ANY_USER);
        control_stream_trust(end->stream);
        say_lines(end, 1);
    }
    quiet = open_end(true, 1001);
    on_line = trusted_say_more;
    rest();
    ck_assert_uint_ge(lines, 2000);
    ck_assert_uint_eq(quiet->lines, 1);
    ck_assert_uint_le(quiet->before, 20 + 20); /* eight milliseconds, twice */
}
END_TEST

/* A stream that waits for its turn may go, or be told to finish. */
START_TEST(test_gone_while_it_waits)
{
    flood(8, 1000, 4);
    uint32_t waiting = 0;
    for (uint32_t round = 0; round < ROUNDS && !control.turn_waiters; round++)
        round_of_loop();
    ck_assert_ptr_nonnull(control.turn_waiters);
    for (uint32_t i = 0; i < 8; i++) {
        if (!ends[i].stream->turn_waits)
            continue;
        if (waiting++ % 2)
            control_stream_free(ends[i].stream);
        else
            control_stream_finish(ends[i].stream);
        ends[i].stream = NULL;
    }
    ck_assert_uint_gt(waiting, 1);
    rest();
    ck_assert_ptr_null(control.turn_waiters);
}
END_TEST

/* --- what is sent */

/* Reads what has come; how much. */
static size_t drain(const struct end *end)
{
    static char bytes[1 << 16];
    size_t sum = 0;
    ssize_t got;
    while ((got = recv(end->other, bytes, sizeof(bytes), 0)) > 0)
        sum += (size_t)got;
    return sum;
}

/* Output is sent in pieces, which count as the user's share; all of it arrives, and his lines too.
 */
START_TEST(test_sending_has_shares)
{
    enum { ANSWER = 3 << 20 };
    char *answer = calloc(1, ANSWER);
    size_t got[8] = {0}, sum = 0;
    line_us = 0;
    for (uint32_t i = 0; i < 8; i++) {
        struct end *end = open_end(true, 1000);
        control_stream_send(end->stream, answer, ANSWER);
        say_lines(end, 100);
    }
    quiet = open_end(true, 1001);
    bool waited = false;
    for (uint32_t round = 0; round < ROUNDS && sum < 8 * (size_t)ANSWER; round++) {
        round_of_loop();
        waited = waited || control.turn_waiters;
        for (uint32_t i = 0; i < 8; i++) {
            size_t more = drain(&ends[i]);
            ck_assert_uint_le(more, 256 << 10); /* what the socket holds, and a piece */
            got[i] += more;
            sum += more;
        }
    }
    rest();
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(got[i], ANSWER);
    ck_assert(waited);
    ck_assert_uint_eq(lines, 800);
    free(answer);
}
END_TEST

/* A heartbeat goes out although daemons have used up their share. */
START_TEST(test_heartbeats_have_no_share)
{
    struct end *end = open_end(false, CONTROL_ANY_USER);
    control_stream_trust(end->stream);
    rest();
    control_share_spend(&control, &control.trusted, UINT64_MAX / 2, 0);
    ck_assert(control_share_is_spent(&control, &control.trusted));
    control_stream_send(end->stream, "ping\n", 5);
    round_of_loop();
    ck_assert_uint_eq(drain(end), 5);
}
END_TEST

/* --- lines with lists */

#define LIST "{\"type\":\"group_open\",\"ranks\":["

/* The line but for its last byte. */
static char *half_list(size_t bytes)
{
    char *line = malloc(bytes + 1);
    memset(line, ' ', bytes);
    memcpy(line, LIST, strlen(LIST));
    line[bytes] = '\0';
    return line;
}

/* A user's halves of long lines are a few at a time; the others wait, and take no memory. */
START_TEST(test_few_lists_at_a_time)
{
    char *half = half_list(60000);
    line_us = 0;
    for (uint32_t i = 0; i < 20; i++) {
        struct end *end = open_end(true, 1000);
        control_stream_allow_lists(end->stream, 64000);
        say(end, half, 60000);
    }
    rest();
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < 20; i++) {
        waiting += ends[i].stream->list_waits;
        ck_assert(ends[i].stream->list_waits || ends[i].stream->list_comes);
        if (ends[i].stream->list_waits)
            ck_assert_uint_le(ends[i].stream->lines.capacity, 20000);
    }
    ck_assert_uint_eq(waiting, 4);
    ck_assert_uint_eq(ends[0].stream->share->lists, 16);
    /* Somebody else's are his own. */
    struct end *other = open_end(true, 1001);
    control_stream_allow_lists(other->stream, 64000);
    say(other, half, 60000);
    say(other, "\n", 1);
    rest();
    ck_assert_uint_eq(other->lines, 1);
    ck_assert_ptr_null(other->stream->lines.data);
    /* A list that ends, however it does, makes room. */
    uint32_t ended = 0;
    for (uint32_t i = 0; i < 20 && ended < 2; i++) {
        if (!ends[i].stream->list_comes)
            continue;
        if (ended++ == 0) {
            say(&ends[i], "\n", 1);
        } else {
            control_stream_free(ends[i].stream);
            ends[i].stream = NULL;
        }
    }
    rest();
    waiting = 0;
    for (uint32_t i = 0; i < 20; i++)
        waiting += ends[i].stream && ends[i].stream->list_waits;
    ck_assert_uint_eq(waiting, 2);
    for (uint32_t i = 0; i < 20; i++) {
        if (ends[i].stream && ends[i].lines == 0)
            say(&ends[i], "\n", 1);
    }
    rest();
    ck_assert_uint_eq(lines, 20);
    free(half);
}
END_TEST

/* Halves of lists of a user on so many streams; the last of them wait. */
static struct control_share *half_lists(uint32_t streams)
{
    char *half = half_list(20000);
    line_us = 0;
    for (uint32_t i = 0; i < streams; i++) {
        struct end *end = open_end(true, 1000);
        control_stream_allow_lists(end->stream, 64000);
        say(end, half, 20000);
    }
    rest();
    free(half);
    return ends[0].stream->share;
}

static uint32_t count_list_waiters(const struct control_share *share)
{
    uint32_t waiters = 0;
    for (const struct control_stream *stream = share->list_waiters; stream && waiters < STREAMS;
         stream = stream->list_next)
        waiters++;
    return waiters;
}

static struct end *end_of(const struct control_stream *stream)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ends[i].stream == stream)
            return &ends[i];
    }
    ck_abort_msg("a stream of nobody");
}

static struct control_stream *answered;

static void answer_at_three(struct end *end)
{
    (void)end;
    if (lines == 3)
        control_stream_send(answered, "pong\n", 5);
}

/* A stream that waits with its list has output when its user's share is spent, and therefore a turn
 * of its own: it waits on in its place. */
START_TEST(test_list_waits_once)
{
    struct control_share *share = half_lists(18);
    answered = share->list_waiters;
    ck_assert_uint_eq(count_list_waiters(share), 2);
    line_us = 1000;
    on_line = answer_at_three;
    flood(8, 1000, 8);
    rest();
    ck_assert_uint_eq(drain(end_of(answered)), 5);
    ck_assert_uint_eq(count_list_waiters(share), 2);
    ck_assert_ptr_eq(share->list_waiters, answered);
}
END_TEST

/* A stream whose turn with its list has come goes before it begins: then the turn is the next
 * stream's. */
START_TEST(test_list_passes_on)
{
    struct control_share *share = half_lists(18);
    struct end *first = end_of(share->list_waiters);
    struct end *second = end_of(share->list_waiters->list_next);
    struct end *going[2] = {NULL, first};
    for (uint32_t i = 0; i < 18 && !going[0]; i++)
        going[0] = ends[i].stream->list_comes ? &ends[i] : NULL;
    for (int i = 0; i < 2; i++) {
        if (_i == 0)
            control_stream_free(going[i]->stream);
        else
            control_stream_finish(going[i]->stream);
        going[i]->stream = NULL;
    }
    say(second, "\n", 1);
    rest();
    ck_assert_uint_eq(second->lines, 1);
    ck_assert_uint_eq(count_list_waiters(share), 0);
    ck_assert_uint_eq(share->lists, 15);
}
END_TEST

/* A list that does not end holds its room for a time. */
START_TEST(test_late_list)
{
    char *half = half_list(5000);
    struct end *end = open_end(true, 1000);
    control_stream_allow_lists(end->stream, 6000);
    say(end, half, 5000);
    rest();
    struct timeval due;
    ck_assert_int_ne(event_pending(end->stream->list_event, EV_TIMEOUT, &due), 0);
    event_active(end->stream->list_event, EV_TIMEOUT, 1);
    rest();
    ck_assert_ptr_null(end->stream);
    ck_assert_int_eq(end->code, ERR_PROTOCOL);
    ck_assert_str_eq(end->reason, "a line of it has not ended in 20 s");
    free(half);
}
END_TEST

static void expect_too_long(struct end *end, const char *line, size_t bytes, const char *reason)
{
    say(end, line, bytes);
    rest();
    ck_assert_ptr_null(end->stream);
    ck_assert_int_eq(end->code, ERR_PROTOCOL);
    ck_assert_str_eq(end->reason, reason);
}

START_TEST(test_limits_of_lines)
{
    char *line = half_list(20000), *other = malloc(20000);
    memset(other, 'x', 20000);
    /* Unknown, whatever it says. */
    expect_too_long(open_end(false, CONTROL_ANY_USER), line, 5000,
                    "a line of more than 4096 bytes");
    expect_too_long(open_end(true, 1000), line, 5000, "a line of more than 4096 bytes");
    /* Other lines, and too long ones, of who may have some. */
    struct end *end = open_end(true, 1000);
    control_stream_allow_lists(end->stream, 6000);
    expect_too_long(end, other, 5000, "a line of more than 4096 bytes");
    end = open_end(true, 1000);
    control_stream_allow_lists(end->stream, 6000);
    expect_too_long(end, line, 7000, "a line of more than 6000 bytes");
    /* A daemon's lines have limits of their own. */
    end = open_end(false, CONTROL_ANY_USER);
    control_stream_trust(end->stream);
    say(end, line, 20000);
    rest();
    ck_assert_ptr_nonnull(end->stream);
    end = open_end(false, CONTROL_ANY_USER);
    control_stream_trust(end->stream);
    expect_too_long(end, other, 9000, "a line of more than 8192 bytes");
    free(line);
    free(other);
}
END_TEST

/* --- what has been heard */

START_TEST(test_heard)
{
    struct end *end = open_end(false, CONTROL_ANY_USER);
    control_stream_trust(end->stream);
    ck_assert_uint_eq(control_stream_heard_ns(end->stream, 77), 0);
    say(end, "half a l", 8);
    ck_assert_uint_eq(control_stream_heard_ns(end->stream, 77), 77); /* it has come */
    rest();
    uint64_t heard_ns = control_stream_heard_ns(end->stream, 77);
    ck_assert_uint_gt(heard_ns, 77);
    ck_assert_uint_le(heard_ns, clock_now_ns());
    ck_assert_uint_eq(end->lines, 0);
}
END_TEST

/* --- the end */

/* A stream that does not read its last words goes, though it says something all the time. */
START_TEST(test_finishing_has_an_end)
{
    struct end *end = open_end(true, 1000);
    size_t bytes = 4 << 20;
    char *words = calloc(1, bytes);
    control_stream_send(end->stream, words, bytes);
    free(words);
    round_of_loop();
    control_stream_finish(end->stream);
    end->stream = NULL;
    for (uint64_t until = clock_now_ns() + 20 * NS_PER_S;
         control.streams && clock_now_ns() < until;) {
        ssize_t sent = send(end->other, "x", 1, MSG_NOSIGNAL);
        (void)sent;
        round_of_loop();
        poll(NULL, 0, 1);
    }
    ck_assert_ptr_null(control.streams);
}
END_TEST

#define LAST_WORDS ((size_t)1 << 20)

static void finish_at_the_last(struct end *end)
{
    static char words[LAST_WORDS];
    if (end->lines < CONTROL_TURN_LINES)
        return;
    control_stream_send(end->stream, words, sizeof(words));
    control_stream_finish(end->stream);
    end->stream = NULL;
}

/* A stream that is told its last words in the last line of its turn has as long for them as any. */
START_TEST(test_finished_at_the_end_of_a_turn)
{
    struct end *end = open_end(true, 1000);
    line_us = 0;
    on_line = finish_at_the_last;
    say_lines(end, CONTROL_TURN_LINES + 1);
    rest();
    ck_assert_uint_eq(end->lines, CONTROL_TURN_LINES);
    size_t heard = 0;
    for (uint32_t round = 0; round < ROUNDS && control.streams; round++) {
        heard += drain(end);
        round_of_loop();
    }
    ck_assert_uint_eq(heard + drain(end), LAST_WORDS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_turn");
    TCase *cases = tcase_create("turn");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_another_user);
    tcase_add_test(cases, test_many_users);
    tcase_add_test(cases, test_strangers);
    tcase_add_test(cases, test_trusted_goes_first);
    tcase_add_test(cases, test_vital_goes_before_all);
    tcase_add_test(cases, test_trusted_have_a_share_too);
    tcase_add_test(cases, test_gone_while_it_waits);
    tcase_add_test(cases, test_sending_has_shares);
    tcase_add_test(cases, test_heartbeats_have_no_share);
    tcase_add_test(cases, test_few_lists_at_a_time);
    tcase_add_test(cases, test_list_waits_once);
    tcase_add_loop_test(cases, test_list_passes_on, 0, 2);
    tcase_add_test(cases, test_late_list);
    tcase_add_test(cases, test_limits_of_lines);
    tcase_add_test(cases, test_heard);
    tcase_add_test(cases, test_finishing_has_an_end);
    tcase_add_test(cases, test_finished_at_the_end_of_a_turn);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
