/* Lines over one socket, a round of the loop at a time. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/suite.h"

#define LINES 1000u

static struct control control;
static struct control_stream *stream;
static int other; /* the other end of its socket */
static uint32_t lines;
static int end_code;
static char end_reason[256];
static void (*on_line)(uint32_t number);

static void handle_line(void *context, char *line, size_t length)
{
    (void)context;
    char expected[32];
    ck_assert_uint_eq(length, (size_t)snprintf(expected, sizeof(expected), "line %u", lines));
    ck_assert_str_eq(line, expected);
    lines++;
    if (on_line)
        on_line(lines - 1);
}

static void handle_end(void *context, int code, const char *reason)
{
    (void)context;
    end_code = code;
    snprintf(end_reason, sizeof(end_reason), "%s", reason);
    control_stream_free(stream);
    stream = NULL;
}

/* There is nothing but a stream that could have something due. */
static void on_update(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what, (void)argument;
}

static void setup(void)
{
    static const struct control_stream_handlers handlers = {handle_line, handle_end};
    int ends[2];
    control = (struct control){0};
    control.accounts.limits[ACCOUNT_OUTPUT] = CONTROL_USER_OUTPUT_MAX_BYTES;
    ck_assert_int_eq(control_turn_init(&control), 0);
    control.update_event = event_new(control.base, -1, 0, on_update, NULL);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    stream = control_stream_create(&control, ends[0], true, 1000, &handlers, NULL);
    ck_assert_ptr_nonnull(stream);
    other = ends[1];
    lines = 0;
    end_code = 0;
    on_line = NULL;
}

static void teardown(void)
{
    if (stream)
        control_stream_free(stream);
    if (other >= 0)
        close(other);
    control_closer_clear(&control);
    event_free(control.update_event);
    control_turn_clear(&control);
    ck_assert_ptr_null(control.shares);
    ck_assert_ptr_null(control.accounts.accounts);
}

static void round_of_loop(void)
{
    ck_assert_int_ge(event_base_loop(control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
}

static void write_lines(uint32_t first, uint32_t count)
{
    char *text = malloc(count * 16), *end = text;
    for (uint32_t i = 0; i < count; i++)
        end += sprintf(end, "line %u\n", first + i);
    ck_assert_int_eq(send(other, text, (size_t)(end - text), 0), end - text);
    free(text);
}

/* Reads what is there; how many bytes. */
static size_t read_all(void)
{
    static char bytes[1 << 20];
    size_t sum = 0;
    ssize_t count;
    while ((count = recv(other, bytes, sizeof(bytes), 0)) > 0)
        sum += (size_t)count;
    return sum;
}

/* However many lines come at once: a few each round, in their order, none lost. */
START_TEST(test_a_few_lines_each_round)
{
    write_lines(0, LINES);
    for (uint32_t round = 0; lines < LINES; round++) {
        uint32_t before = lines;
        ck_assert_uint_lt(round, LINES);
        round_of_loop();
        ck_assert_uint_le(lines - before, 64);
    }
    write_lines(LINES, 1);
    for (int i = 0; i < 3; i++)
        round_of_loop();
    ck_assert_uint_eq(lines, LINES + 1);
    ck_assert_int_eq(end_code, 0);
}
END_TEST

/* Lines that came before the end are heard before it. */
START_TEST(test_end_after_the_lines)
{
    write_lines(0, LINES);
    close(other);
    other = -1;
    for (uint32_t round = 0; stream && round < LINES; round++)
        round_of_loop();
    ck_assert_uint_eq(lines, LINES);
    ck_assert_int_eq(end_code, ERR_DISCONNECTED);
    ck_assert_str_eq(end_reason, "connection closed");
}
END_TEST

static void hold_at_ten(uint32_t number)
{
    if (number == 10)
        control_stream_hold(stream);
}

/* A held stream gives no lines until its answer has been written, however long that is. */
START_TEST(test_hold)
{
    size_t bytes = CONTROL_OUTPUT_MAX_BYTES + (4 << 20);
    char *answer = malloc(bytes);
    memset(answer, 'x', bytes);
    on_line = hold_at_ten;
    write_lines(0, 50);
    for (int i = 0; i < 10; i++)
        round_of_loop();
    write_lines(50, 50);
    ck_assert_uint_eq(lines, 11);
    ck_assert_int_eq(event_pending(stream->read_event, EV_READ, NULL), 0);
    control_stream_answer(stream, answer, bytes);
    free(answer);
    size_t read = 0;
    for (uint32_t round = 0; read < bytes; round++) {
        ck_assert_uint_lt(round, 100000);
        ck_assert_ptr_nonnull(stream);
        ck_assert_uint_eq(lines, 11);
        round_of_loop();
        read += read_all();
    }
    for (int i = 0; i < 20; i++)
        round_of_loop();
    ck_assert_uint_eq(lines, 100);
    ck_assert_uint_eq(read, bytes);
}
END_TEST

static void send_a_mebibyte(uint32_t number)
{
    (void)number;
    static char bytes[1 << 20];
    control_stream_send(stream, bytes, sizeof(bytes));
}

/* A client that does not read is cut off, and not listened to any more. */
START_TEST(test_reader_that_is_behind)
{
    on_line = send_a_mebibyte;
    write_lines(0, LINES);
    for (uint32_t round = 0; stream && round < LINES; round++)
        round_of_loop();
    ck_assert_ptr_null(stream);
    ck_assert_int_eq(end_code, ERR_PROTOCOL);
    ck_assert_str_eq(end_reason, "it does not read what it is sent");
    ck_assert_uint_ge(lines, 16);
    ck_assert_uint_le(lines, 18);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_stream");
    TCase *cases = tcase_create("stream");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_a_few_lines_each_round);
    tcase_add_test(cases, test_end_after_the_lines);
    tcase_add_test(cases, test_hold);
    tcase_add_test(cases, test_reader_that_is_behind);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
