/* The memory that ranks share can only be read by who gets its descriptor; descriptors go with the
 * lines that they belong to. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/suite.h"
#include "worker/job/client.h"

#define BYTES 100000u

START_TEST(it_can_only_be_read)
{
    uint8_t *base;
    int fd;
    struct error error = {0};
    struct stat status;
    ck_assert_msg(control_segment_make(BYTES, false, &base, &fd, &error) == 0, "%s", error.text);
    base[BYTES - 1] = 77;
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert_int_eq(status.st_size, BYTES);
    ck_assert_ptr_eq(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_eq(errno, EPERM);
    uint8_t *read_only = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(read_only, MAP_FAILED);
    ck_assert_int_eq(read_only[BYTES - 1], 77);
    ck_assert_int_eq(mprotect(read_only, BYTES, PROT_READ | PROT_WRITE), -1);
    base[0] = 5; /* and what is written later shows */
    ck_assert_int_eq(read_only[0], 5);
    ck_assert_int_eq(pwrite(fd, "x", 1, 0), -1);
    ck_assert_int_eq(ftruncate(fd, 1), -1);
    ck_assert_int_eq(ftruncate(fd, (off_t)2 * BYTES), -1);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    /* Opening the file anew does not help either. */
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0) {
        ck_assert_ptr_eq(mmap(NULL, BYTES, PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
        ck_assert_int_eq(pwrite(again, "x", 1, 0), -1);
        close(again);
    }
    munmap(read_only, BYTES);
    munmap(base, BYTES);
    close(fd);
}
END_TEST

START_TEST(sizes_that_cannot_be)
{
    uint8_t *base;
    int fd;
    struct error error = {0};
    ck_assert_int_eq(control_segment_make(UINT64_MAX, false, &base, &fd, &error), ERR_MEMORY);
    ck_assert_int_lt(control_segment_make(INT64_MAX, false, &base, &fd, &error), 0);
    ck_assert_ptr_nonnull(strstr(error.text, "9223372036854775807 bytes"));
}
END_TEST

/* --- descriptors along with lines ------------------------------------------------------------- */

static struct control control;
static struct control_stream *stream;
static struct client client;
static int end_code;

static void handle_line(void *context, char *line, size_t length)
{
    (void)context, (void)line, (void)length;
}

static void handle_end(void *context, int code, const char *reason)
{
    (void)context, (void)reason;
    end_code = code;
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
    int ends[2], small = 4608;
    control = (struct control){
        .accounts.limits = {[ACCOUNT_OUTPUT] = 1 << 24, [ACCOUNT_DESCRIPTORS] = 1000}};
    ck_assert_int_eq(control_turn_init(&control), 0);
    ck_assert_ptr_nonnull(control.base);
    control.update_event = event_new(control.base, -1, 0, on_update, NULL);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ck_assert_int_eq(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    stream = control_stream_create(&control, ends[0], true, 1000, &handlers, NULL);
    ck_assert_ptr_nonnull(stream);
    client = (struct client){.fd = ends[1]};
    end_code = 0;
}

static void teardown(void)
{
    if (stream)
        control_stream_free(stream);
    client_close(&client);
    control_closer_clear(&control);
    event_free(control.update_event);
    control_turn_clear(&control);
    ck_assert_ptr_null(control.accounts.accounts);
}

static void send_words(uint32_t words)
{
    struct message message = {.type = MESSAGE_FAILED, .code = -1};
    memset(message.text, 'w', words);
    control_stream_send_message(stream, &message);
}

/* A descriptor whose file has the number as its size. */
static void send_descriptor(uint32_t number)
{
    struct message message = {.type = MESSAGE_SHARED_OPENED, .segment = number};
    int fd = memfd_create("number", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, number), 0);
    control_stream_send_descriptor(stream, &message, fd);
    close(fd);
}

/* Reads lines and lets the other side write, until there is one. */
static void next_line(struct message *message)
{
    struct error error = {0};
    int got = 0;
    for (int i = 0; i < 1000 && got == 0; i++) {
        ck_assert_int_ge(event_base_loop(control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
        got = client_receive(&client, message, &error);
        ck_assert_msg(got >= 0, "%s", error.text);
    }
    ck_assert_int_eq(got, 1);
}

START_TEST(each_descriptor_comes_with_its_line)
{
    struct message message;
    struct stat status;
    ck_assert_int_eq(client_take_descriptor(&client), -1);
    for (uint32_t i = 0; i < 40; i++) {
        for (uint32_t words = 0; words < i % 3; words++)
            send_words(i % 4 == 3 ? 900 : 3);
        send_descriptor(100 + i);
    }
    for (uint32_t i = 0; i < 40; i++) {
        for (uint32_t words = 0; words < i % 3; words++) {
            next_line(&message);
            ck_assert_int_eq(message.type, MESSAGE_FAILED);
        }
        next_line(&message);
        ck_assert_int_eq(message.type, MESSAGE_SHARED_OPENED);
        ck_assert_uint_eq(message.segment, 100 + i);
        int fd = client_take_descriptor(&client);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        ck_assert_int_eq(fstat(fd, &status), 0);
        ck_assert_int_eq(status.st_size, 100 + i);
        close(fd);
    }
    ck_assert_int_eq(client_take_descriptor(&client), -1);
    ck_assert_ptr_null(stream->out);
}
END_TEST

/* Descriptors that are not read, and those that are not taken, are closed. */
START_TEST(descriptors_that_nobody_takes)
{
    struct message message;
    int before = dup(client.fd);
    close(before);
    for (uint32_t i = 0; i < CONTROL_DESCRIPTORS_OUT_MAX; i++)
        send_descriptor(i);
    for (uint32_t i = 0; i < 100; i++)
        next_line(&message); /* more than a client keeps */
    ck_assert_uint_eq(client.descriptor_count, CLIENT_DESCRIPTORS_MAX);
    ck_assert_ptr_nonnull(stream->out);
    control_stream_free(stream);
    stream = NULL;
    client_close(&client);
    int after = dup(0);
    ck_assert_int_le(after, before);
    close(after);
}
END_TEST

/* Each one that waits is one of the daemon's. */
START_TEST(more_descriptors_than_may_wait)
{
    for (uint32_t i = 0; i < CONTROL_DESCRIPTORS_OUT_MAX + 2; i++)
        send_descriptor(i);
    ck_assert_uint_eq(stream->out_count, CONTROL_DESCRIPTORS_OUT_MAX);
    ck_assert_int_ge(event_base_loop(control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
    ck_assert_ptr_null(stream);
    ck_assert_int_lt(end_code, 0);
}
END_TEST

/* Without a descriptor for it the connection ends, rather than a line goes alone. */
START_TEST(a_descriptor_that_is_none)
{
    struct message message = {.type = MESSAGE_SHARED_OPENED};
    control_stream_send_descriptor(stream, &message, -1);
    ck_assert_int_ge(event_base_loop(control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
    ck_assert_ptr_null(stream);
    ck_assert_int_lt(end_code, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_segment");
    TCase *memory = tcase_create("memory"), *lines = tcase_create("lines");
    tcase_add_test(memory, it_can_only_be_read);
    tcase_add_test(memory, sizes_that_cannot_be);
    tcase_add_checked_fixture(lines, setup, teardown);
    tcase_add_test(lines, each_descriptor_comes_with_its_line);
    tcase_add_test(lines, descriptors_that_nobody_takes);
    tcase_add_test(lines, more_descriptors_than_may_wait);
    tcase_add_test(lines, a_descriptor_that_is_none);
    suite_add_tcase(suite, memory);
    suite_add_tcase(suite, lines);
    return suite_main(suite);
}
