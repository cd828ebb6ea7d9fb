/* Descriptors of kinds whose closing waits: whatever a user of the socket does with them, the
 * control thread does not wait with it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/format/arena.h"
#include "server/control/ground/control_internal.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define LINGER_S 600 /* tests end before */
#define ALICE 61001u
#define WORKERS 16u

static char *directory;
static struct control_daemon *daemon_under_test;
static struct control_client good;
static int listener;        /* takes what lingers, and does not read it */
static const int least = 1; /* of memory for a socket: what lingers takes little */

static void setup(void)
{
    struct error error = {0};
    uint16_t port = 0;
    directory = suite_make_directory();
    daemon_under_test = control_daemon_create(directory, 1, 0, &port);
    ck_assert_int_eq(chmod(directory, 0755), 0);
    daemon_under_test->config.socket_mode = 0666;
    daemon_under_test->config.workers = WORKERS;
    ck_assert_msg(control_daemon_start(daemon_under_test, &error) == 0, "%s", error.text);
    control_client_open(&good, daemon_under_test);
    control_client_hello(&good);
    listener = control_daemon_bind(&port);
    ck_assert_int_eq(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &least, sizeof(least)), 0);
    ck_assert_int_eq(listen(listener, 512), 0);
}

static void teardown(void)
{
    control_client_close(&good);
    control_daemon_free(daemon_under_test);
    close(listener);
    suite_remove_directory(directory);
}

/* A TCP socket with data that nobody will read: its last close waits for LINGER_S. */
static int lingering_socket(void)
{
    static char bytes[65536];
    const struct linger linger = {1, LINGER_S};
    struct sockaddr_in address;
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    while (send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0) {
    }
    ck_assert_int_eq(errno, EAGAIN);
    return fd;
}

/* Bytes with descriptors. */
static void send_with(int socket, const char *line, const int *fds, size_t count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(CONTROL_DESCRIPTORS_SENT * sizeof(int))];
    } ancillary = {0};
    struct iovec part = {(char *)(uintptr_t)line, strlen(line)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = ancillary.bytes,
                            .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    ck_assert_int_eq(sendmsg(socket, &header, MSG_NOSIGNAL), (ssize_t)part.iov_len);
}

/* A line with descriptors of which the daemon has the last reference when it gets to know the whole
 * line. */
static void give(struct control_client *client, const char *line, const int *fds, size_t count)
{
    send_with(client->fd, line, fds, count);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    /* The daemon may have refused the descriptors by now, and closed. */
    ssize_t ended = send(client->fd, "\n", 1, MSG_NOSIGNAL);
    (void)ended;
}

/* A Unix socket in which a message lies that has a lingering socket: closing it lets go of that,
 * and its own SO_LINGER says nothing. */
static int stuffed_socket(void)
{
    int ends[2], inside = lingering_socket();
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    send_with(ends[0], "x", &inside, 1);
    close(inside);
    close(ends[0]);
    return ends[1];
}

/* Read up to the line `joined`, and return the descriptor that came with it. */
static int bell_of_joined(int socket)
{
    char bytes[4096];
    int bell = -1;
    while (bell < 0) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } ancillary = {0};
        struct iovec part = {bytes, sizeof(bytes) - 1};
        struct msghdr header = {.msg_iov = &part,
                                .msg_iovlen = 1,
                                .msg_control = ancillary.bytes,
                                .msg_controllen = sizeof(ancillary.bytes)};
        ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
        ck_assert_int_gt(got, 0);
        bytes[got] = '\0';
        if (!CMSG_FIRSTHDR(&header))
            continue;
        ck_assert_ptr_nonnull(strstr(bytes, "\"joined\""));
        memcpy(&bell, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(bell));
    }
    return bell;
}

static void ping(struct control_client *client)
{
    struct message message;
    control_client_write(client, "{\"type\":\"ping\"}\n");
    control_client_expect(client, MESSAGE_PONG, &message);
}

/* The control thread has seen to the end of a connection, and answers. */
static void expect_alive(void)
{
    for (int i = 0; i < 20; i++)
        ping(&good);
}

/* Sent along with a line that wants none, and left there. */
START_TEST(test_sent_for_nothing)
{
    struct control_client client;
    int fd = _i ? stuffed_socket() : lingering_socket();
    control_client_open(&client, daemon_under_test);
    control_client_hello(&client);
    give(&client, "{\"type\":\"ping\"}", &fd, 1);
    struct message message;
    control_client_expect(&client, MESSAGE_PONG, &message);
    control_client_close(&client);
    expect_alive();
}
END_TEST

/* More than a join has, at once: the connection ends. The daemon lets go of them at once, so that
 * their last close may be here: in a thread as well. */
START_TEST(test_too_many)
{
    struct control control = {.log = &daemon_under_test->log};
    struct control_client client;
    int fds[12];
    for (int i = 0; i < 12; i++)
        fds[i] = stuffed_socket();
    control_client_open(&client, daemon_under_test);
    control_client_hello(&client);
    send_with(client.fd, "{\"type\":\"ping\"}\n", fds, 12);
    for (int i = 0; i < 12; i++)
        control_close_foreign(&control, 0, &fds[i], 1);
    control_closer_clear(&control);
    ck_assert_ptr_null(control_client_line(&client));
    control_client_close(&client);
    expect_alive();
}
END_TEST

/* In a message that the daemon has not read when the connection ends. */
START_TEST(test_not_yet_read)
{
    enum { REQUESTS = 3600 };
    static const char request[] = "{\"type\":\"status\"}\n";
    struct control_client client;
    int fd = lingering_socket();
    control_client_open(&client, daemon_under_test);
    control_client_hello(&client);
    /* A client that does not take its answers is not listened to. */
    char *text = calloc(REQUESTS, sizeof(request));
    for (int i = 0; i < REQUESTS; i++)
        memcpy(text + (size_t)i * strlen(request), request, strlen(request));
    control_client_write(&client, text);
    free(text);
    expect_alive();
    send_with(client.fd, "{\"type\":\"ping\"}\n", &fd, 1);
    close(fd);
    control_client_close(&client);
    expect_alive();
}
END_TEST

/* A join brings one of these among its two descriptors. */
START_TEST(test_in_a_join)
{
    static const char join[] = "{\"type\":\"join\",\"job\":\"x\",\"world_size\":1,\"rank\":0,"
                               "\"local_rank\":-1,\"timeout_ms\":15000}";
    struct control_client client;
    struct arena arena;
    struct error error = {0};
    int fds[2];
    ck_assert_int_eq(arena_create(&arena, ARENA_LEAST_BYTES, 64, &fds[0], &error), 0);
    arena_unmap(&arena);
    fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    close(fds[_i / 2]);
    fds[_i / 2] = _i % 2 ? stuffed_socket() : lingering_socket();
    control_client_open(&client, daemon_under_test);
    control_client_hello(&client);
    give(&client, join, fds, 2);
    ck_assert_ptr_null(control_client_line(&client));
    control_client_close(&client);
    expect_alive();
}
END_TEST

/* A daemon that rang a socket which a worker gives would speak there as its own user: to any
 * service that asks a Unix socket for its clients' credentials. For this reason it makes the pair
 * itself, and takes no socket. */
START_TEST(test_doorbell_is_the_daemons)
{
    static const char join[] = "{\"type\":\"join\",\"job\":\"x\",\"world_size\":1,\"rank\":0,"
                               "\"local_rank\":-1,\"timeout_ms\":15000}";
    struct control_client client;
    struct arena arena;
    struct error error = {0};
    int fds[3], ends[2];
    ck_assert_int_eq(arena_create(&arena, ARENA_LEAST_BYTES, 64, &fds[0], &error), 0);
    arena_unmap(&arena);
    fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    fds[2] = ends[1];
    control_client_open(&client, daemon_under_test);
    control_client_hello(&client);
    if (_i == 0) { /* a third one, which nobody has asked for */
        give(&client, join, fds, 3);
        ck_assert_ptr_null(control_client_line(&client));
    } else if (_i == 1) { /* in place of what the worker is to ring */
        fds[1] = dup(fds[2]);
        give(&client, join, fds, 2);
        ck_assert_ptr_null(control_client_line(&client));
        close(fds[2]);
    } else {
        struct stat status;
        give(&client, join, fds, 2);
        int bell = bell_of_joined(client.fd);
        ck_assert_int_eq(fstat(bell, &status), 0);
        ck_assert(S_ISSOCK(status.st_mode)); /* a reader of a pipe can hold its lock */
        ck_assert_int_eq(send(bell, "x", 1, MSG_NOSIGNAL), -1);
        close(bell);
        close(fds[2]);
    }
    close(ends[0]);
    control_client_close(&client);
    expect_alive();
}
END_TEST

/* Descriptors that are still being closed count as a connection of their user. */
START_TEST(test_what_is_being_closed_counts)
{
    struct control control = {.log = &daemon_under_test->log};
    for (int i = 0; i < 3; i++) {
        int fds[2] = {stuffed_socket(), stuffed_socket()};
        control_close_foreign(&control, i == 0 ? 1000 : 1001, fds, 2);
    }
    control_closer_sweep(&control);
    ck_assert_uint_eq(control_closing_count(&control, 1000), 1);
    ck_assert_uint_eq(control_closing_count(&control, 1001), 2);
    ck_assert_uint_eq(control_closing_count(&control, 1002), 0);
    ck_assert_uint_eq(control_closing_count(&control, CONTROL_ANY_USER), 3);
    ck_assert_uint_eq(account_used(&control.accounts, 1000, ACCOUNT_DESCRIPTORS), 2);
    ck_assert_uint_eq(account_used(&control.accounts, 1001, ACCOUNT_DESCRIPTORS), 4);
    control_closer_clear(&control);
    /* A close that need not wait is over soon. */
    int fd = lingering_socket();
    control_close_foreign(&control, 1000, &fd, 1);
    while (control.closings) {
        ping(&good);
        control_closer_sweep(&control);
    }
    ck_assert_int_lt(fcntl(fd, F_GETFD), 0);
    ck_assert_ptr_null(control.accounts.accounts);
}
END_TEST

/* Count the descriptors of this process, the daemon's among them. */
static uint32_t count_descriptors(void)
{
    uint32_t sum = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder))
        sum++;
    closedir(folder);
    return sum;
}

static void open_as_alice(struct control_client *client)
{
    control_client_open_as(client, daemon_under_test, ALICE);
}

static const char *last_words(struct control_client *client)
{
    static char words[512];
    const char *line;
    words[0] = '\0';
    while ((line = control_client_line(client)) != NULL)
        snprintf(words, sizeof(words), "%s", line);
    control_client_close(client);
    return words;
}

/* Alice sends more than a join has, one of them a socket whose closing waits, where the daemon is
 * the last to let go of it: mostly. Whether she was told that she has sent too many before. */
static bool take_hostages(struct control *control, int harmless)
{
    int fds[CONTROL_DESCRIPTORS_SENT];
    struct control_client client;
    for (int i = 0; i < CONTROL_DESCRIPTORS_SENT; i++)
        fds[i] = harmless;
    fds[CONTROL_DESCRIPTORS] = stuffed_socket();
    open_as_alice(&client);
    send_with(client.fd, "{", fds, CONTROL_DESCRIPTORS_SENT);
    control_close_foreign(control, 0, &fds[CONTROL_DESCRIPTORS], 1); /* maybe the last */
    return strstr(last_words(&client), "are still being closed") != NULL;
}

/* A descriptor whose closing waits holds up the ones behind it, for as long as its owner likes. A
 * user who ends many connections in this way holds no more descriptors than he may have, and those
 * of two messages. */
START_TEST(test_hostages)
{
    enum { SENT = CONTROL_DESCRIPTORS_SENT };
    struct control control = {.log = &daemon_under_test->log};
    struct control_client client;
    int harmless = eventfd(0, EFD_CLOEXEC);
    if (geteuid() != 0) {
        suite_skip("test_hostages", "connecting as another user takes root");
        return;
    }
    uint32_t before = count_descriptors(), kept = 1; /* by this test */
    /* In a row: where the test was the last, the daemon closes the others and has room again. */
    for (int refused = 0; refused < 4; kept++)
        refused = take_hostages(&control, harmless) ? refused + 1 : 0;
    expect_alive();
    ck_assert_uint_le(count_descriptors(),
                      before + CONTROL_USER_DESCRIPTORS(WORKERS) + 2 * SENT + kept);
    /* When they are closed he gets in again. */
    ck_assert_int_eq(shutdown(listener, SHUT_RDWR), 0);
    const char *words;
    do {
        open_as_alice(&client);
        send_with(client.fd, "{\"type\":\"hello\",\"protocol\":3,\"software\":\"x\",\"pid\":1}\n",
                  &harmless, 1);
        shutdown(client.fd, SHUT_WR);
        words = last_words(&client);
    } while (!strstr(words, "\"hello\""));
    close(harmless);
    control_closer_clear(&control);
}
END_TEST

/* One user's hostages leave half of the closing threads to others, whose descriptors are closed. */
START_TEST(test_hostages_of_one_user)
{
    enum { GREEDY = 4242, OTHER = 4243, HOSTAGES = 300 };
    struct control control = {.log = &daemon_under_test->log};
    int harmless = eventfd(0, EFD_CLOEXEC);
    for (int i = 0; i < HOSTAGES; i++) {
        int hostage = stuffed_socket();
        control_close_foreign(&control, GREEDY, &hostage, 1);
    }
    ck_assert_uint_eq(control_closing_count(&control, GREEDY), HOSTAGES);
    control_close_foreign(&control, OTHER, &harmless, 1);
    while (control_closing_count(&control, OTHER) > 0) { /* or the case's time is over */
        poll(NULL, 0, 5);
        control_closer_sweep(&control);
    }
    ck_assert_int_eq(shutdown(listener, SHUT_RDWR), 0);
    control_closer_clear(&control);
    account_book_clear(&control.accounts);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_foreign");
    TCase *cases = tcase_create("foreign");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, test_sent_for_nothing, 0, 2);
    tcase_add_test(cases, test_too_many);
    tcase_add_test(cases, test_not_yet_read);
    tcase_add_loop_test(cases, test_in_a_join, 0, 4);
    tcase_add_loop_test(cases, test_doorbell_is_the_daemons, 0, 3);
    tcase_add_test(cases, test_what_is_being_closed_counts);
    tcase_add_test(cases, test_hostages);
    tcase_add_test(cases, test_hostages_of_one_user);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
