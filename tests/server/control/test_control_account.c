/* Bytes and descriptors that wait in the streams of a user, and when they are too much. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/suite.h"

#define KIB ((size_t)1024)
#define ALICE 1000u
#define BOB 1001u
#define STREAMS 4
#define LIMIT (1024 * KIB)
#define DESCRIPTORS 6

struct end {
    struct control_stream *stream;
    int other;
    int code; /* of its end */
};

static struct control control;
static struct log silent;
static struct end ends[STREAMS];

static void handle_line(void *context, char *line, size_t length)
{
    (void)context, (void)line, (void)length;
}

static void handle_end(void *context, int code, const char *reason)
{
    struct end *end = context;
    ck_assert_str_eq(reason, "it does not read what it is sent");
    end->code = code;
    control_stream_free(end->stream);
    end->stream = NULL;
}

static void on_update(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what, (void)argument;
}

/* All but the last are Alice's. */
static void setup(void)
{
    static const struct control_stream_handlers handlers = {handle_line, handle_end};
    control = (struct control){0};
    control.accounts.own_uid = 900;
    control.accounts.limits[ACCOUNT_OUTPUT] = LIMIT;
    control.accounts.limits[ACCOUNT_DESCRIPTORS] = DESCRIPTORS;
    log_init(&silent, "test", LOG_LEVEL_ERROR, -1, false);
    control.log = &silent;
    ck_assert_int_eq(control_turn_init(&control), 0);
    control.update_event = event_new(control.base, -1, 0, on_update, NULL);
    for (int i = 0; i < STREAMS; i++) {
        int pair[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                         0);
        ends[i] = (struct end){.other = pair[1]};
        ends[i].stream = control_stream_create(&control, pair[0], true,
                                               i < STREAMS - 1 ? ALICE : BOB, &handlers, &ends[i]);
        ck_assert_ptr_nonnull(ends[i].stream);
    }
}

static void teardown(void)
{
    for (int i = 0; i < STREAMS; i++) {
        if (ends[i].stream)
            control_stream_free(ends[i].stream);
        close(ends[i].other);
    }
    control_closer_clear(&control);
    ck_assert_ptr_null(control.accounts.accounts);
    event_free(control.update_event);
    control_turn_clear(&control);
}

static void some_rounds(void)
{
    for (int i = 0; i < 20; i++)
        ck_assert_int_ge(event_base_loop(control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
}

static void send_bytes(int i, size_t count)
{
    char *bytes = calloc(1, count);
    ck_assert_ptr_nonnull(bytes);
    control_stream_send(ends[i].stream, bytes, count);
    free(bytes);
}

/* Until nothing comes any more. */
static void read_all(int i)
{
    static char bytes[1 << 16];
    for (int idle = 0; idle < 3;) {
        ssize_t count = recv(ends[i].other, bytes, sizeof(bytes), 0);
        idle = count > 0 ? 0 : idle + 1;
        some_rounds();
    }
}

static bool is_cut_off(int i)
{
    some_rounds();
    ck_assert(ends[i].stream || ends[i].code == ERR_PROTOCOL);
    return !ends[i].stream;
}

START_TEST(test_output_of_all_streams)
{
    send_bytes(0, LIMIT + 32 * KIB);
    ck_assert(!is_cut_off(0)); /* its socket has taken some */
    send_bytes(0, 100 * KIB);
    ck_assert(!is_cut_off(0));
    /* Each may have a little. */
    send_bytes(1, 60 * KIB);
    send_bytes(2, 60 * KIB);
    ck_assert(!is_cut_off(1) && !is_cut_off(2));
    /* Each may have no more than that. */
    send_bytes(1, LIMIT);
    ck_assert(is_cut_off(1));
    ck_assert(!is_cut_off(0) && !is_cut_off(2));
    send_bytes(3, LIMIT); /* another user's */
    ck_assert(!is_cut_off(3));
    read_all(0);
    send_bytes(2, LIMIT);
    ck_assert(!is_cut_off(2));
    ck_assert_uint_gt(account_used(&control.accounts, ALICE, ACCOUNT_OUTPUT), 0);
    ck_assert_uint_gt(account_used(&control.accounts, BOB, ACCOUNT_OUTPUT), 0);
    read_all(2);
    read_all(3);
    ck_assert_ptr_null(control.accounts.accounts);
}
END_TEST

/* An answer that is larger than all that a user may have waiting, when nothing else does. */
START_TEST(test_one_large_answer)
{
    char *answer = calloc(1, 3 * LIMIT);
    ck_assert_ptr_nonnull(answer);
    control_stream_hold(ends[0].stream);
    control_stream_answer(ends[0].stream, answer, 3 * LIMIT);
    ck_assert(!is_cut_off(0));
    control_stream_hold(ends[1].stream);
    control_stream_answer(ends[1].stream, answer, 3 * LIMIT);
    ck_assert(is_cut_off(1));
    read_all(0);
    control_stream_hold(ends[2].stream);
    control_stream_answer(ends[2].stream, answer, 3 * LIMIT);
    ck_assert(!is_cut_off(2));
    read_all(2);
    free(answer);
}
END_TEST

static void send_descriptor(int i)
{
    control_stream_send_descriptor(ends[i].stream, &(struct message){.type = MESSAGE_PONG}, 0);
    some_rounds();
}

/* Descriptors count until they are read, of all streams of the user; the daemon looks when it
 * must. */
START_TEST(test_descriptors_that_are_sent)
{
    for (int i = 0; i < DESCRIPTORS; i++)
        send_descriptor(i % 2);
    ck_assert(!is_cut_off(0) && !is_cut_off(1));
    ck_assert_uint_eq(account_used(&control.accounts, ALICE, ACCOUNT_DESCRIPTORS), DESCRIPTORS);
    send_descriptor(2);
    ck_assert(is_cut_off(2));
    send_descriptor(3);
    ck_assert(!is_cut_off(3));
    read_all(1);
    for (int i = 0; i < DESCRIPTORS / 2; i++)
        send_descriptor(0);
    ck_assert(!is_cut_off(0));
    send_descriptor(1);
    ck_assert(is_cut_off(1));
}
END_TEST

/* Whoever reads may be sent any number. */
START_TEST(test_descriptors_that_are_read)
{
    for (int i = 0; i < 10 * DESCRIPTORS; i++) {
        send_descriptor(i % 3);
        read_all(i % 3);
    }
    for (int i = 0; i < STREAMS; i++)
        ck_assert(!is_cut_off(i));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_account");
    TCase *cases = tcase_create("account");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_output_of_all_streams);
    tcase_add_test(cases, test_one_large_answer);
    tcase_add_test(cases, test_descriptors_that_are_sent);
    tcase_add_test(cases, test_descriptors_that_are_read);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
