/* The socket side of opening a job, against a daemon that misbehaves in every way. */
#include "worker/job/client.h"

#include "common/base/clock.h"
#include "tests/lib/suite.h"
#include "worker/shoal.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define GOOD(call) ck_assert_msg((call) == SHOAL_OK, "%s: %s", #call, shoal_error_text())
#define HELLO                                                                                      \
    "{\"type\":\"hello\",\"protocol\":3,\"software\":\"shoald 9\",\"node\":\"a\",\"member\":5}\n"
#define JOINED(rank, world, weights, chunk)                                                        \
    "{\"type\":\"joined\",\"job_id\":\"1f\",\"generation\":1,\"rank\":" #rank                      \
    ",\"world_size\":" #world ",\"local_rank\":0,\"local_size\":1,\"node_index\":0,"               \
    "\"node_count\":1,\"group\":0,\"weights\":" weights ",\"chunk_bytes\":" #chunk                 \
    ",\"least_shard_bytes\":64,\"pinned_bytes\":4096,\"timeout_ms\":0,"                            \
    "\"lineage\":\"1f\",\"restart_ms\":0}\n"

/* A daemon that answers each line it gets with the next of its own, whatever was asked. */
struct script {
    const char *answers[4]; /* NULL: close the connection */
    char *directory;
    char path[128];
    int listener;
    pthread_t thread;
    char got[4][512]; /* what the library said */
    int descriptors;  /* that came along */
    bool without;     /* `joined` comes without its doorbell */
};

/* The client that a test closes, or NULL. While it closes, no number that is closed may still be
 * the client's: another thread may have that number by then, and a fork closes in the child what is
 * the client's. */
static const struct client *closing;
static int closed;

int close(int fd)
{
    if (closing) {
        ck_assert_int_ne(closing->fd, fd);
        for (uint32_t i = 0; i < closing->descriptor_count; i++)
            ck_assert_int_ne(closing->descriptors[i], fd);
        closed++;
    }
    return (int)syscall(SYS_close, fd);
}

/* Send a line; with a doorbell, where it is `joined`. Returns whether somebody hears it. */
static bool script_answer(const struct script *script, int fd, const char *line)
{
    size_t length = strlen(line);
    int bell[2];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {(char *)(uintptr_t)line, length};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    ck_assert_int_eq(pipe(bell), 0);
    if (strstr(line, "joined") && !script->without) {
        header.msg_control = control;
        header.msg_controllen = sizeof(control);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &bell[0], sizeof(int));
    }
    ssize_t sent = sendmsg(fd, &header, MSG_NOSIGNAL);
    close(bell[0]);
    close(bell[1]);
    return sent == (ssize_t)length;
}

static void *script_run(void *argument)
{
    struct script *script = argument;
    int fd = accept(script->listener, NULL, NULL);
    ck_assert_int_ge(fd, 0);
    for (int i = 0; i < 4; i++) {
        size_t used = 0;
        while (used == 0 || script->got[i][used - 1] != '\n') {
            _Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
            struct iovec part = {script->got[i] + used, sizeof(script->got[i]) - used - 1};
            struct msghdr header = {.msg_iov = &part,
                                    .msg_iovlen = 1,
                                    .msg_control = control,
                                    .msg_controllen = sizeof(control)};
            ssize_t got = recvmsg(fd, &header, 0);
            if (got <= 0)
                goto end;
            used += (size_t)got;
            struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
            if (rights) {
                script->descriptors = (int)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                for (int j = 0; j < script->descriptors; j++) {
                    int received;
                    memcpy(&received, CMSG_DATA(rights) + (size_t)j * sizeof(int), sizeof(int));
                    close(received);
                }
            }
        }
        if (!script->answers[i])
            break;
        if (!script_answer(script, fd, script->answers[i]))
            break;
    }
end:
    close(fd);
    return NULL;
}

static void script_start(struct script *script)
{
    script->directory = suite_make_directory();
    snprintf(script->path, sizeof(script->path), "%s/socket", script->directory);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(script->path), sizeof(address.sun_path));
    strcpy(address.sun_path, script->path);
    script->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(script->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(script->listener, 1), 0);
    ck_assert_int_eq(pthread_create(&script->thread, NULL, script_run, script), 0);
}

static void script_stop(struct script *script)
{
    pthread_join(script->thread, NULL);
    close(script->listener);
    suite_remove_directory(script->directory);
}

/* shoal_open against the script: *result and the error's text. */
static int open_against(struct script *script, int timeout_ms, shoal_job **job)
{
    script_start(script);
    struct shoal_options options = {.struct_size = sizeof(options),
                                    .job = "test",
                                    .socket_path = script->path,
                                    .world_size = 2,
                                    .rank_plus_1 = 2,
                                    .timeout_ms = timeout_ms,
                                    .arena_bytes = 4 << 20};
    return shoal_open(&options, job);
}

static void refused(const char *first, const char *second, int code, const char *words)
{
    struct script script = {.answers = {first, second, NULL}};
    shoal_job *job = NULL;
    ck_assert_int_eq(open_against(&script, 20000, &job), code);
    ck_assert_msg(strstr(shoal_error_text(), words) != NULL, "%s", shoal_error_text());
    ck_assert_ptr_null(job);
    script_stop(&script);
}

START_TEST(test_hello_refused)
{
    refused(NULL, NULL, SHOAL_EDISCONNECTED, "went away");
    refused("garbage\n", NULL, SHOAL_EPROTOCOL, "makes no sense");
    refused("\n", NULL, SHOAL_EPROTOCOL, "makes no sense");
    refused("{\"type\":\"hello\"}\n", NULL, SHOAL_EPROTOCOL, "protocol");
    refused("{\"type\":\"hello\",\"protocol\":9,\"software\":\"shoald "
            "9\",\"node\":\"a\",\"member\":5}\n",
            NULL, SHOAL_EPROTOCOL, "shoald 9) speaks protocol 9");
    refused("{\"type\":\"left\"}\n", NULL, SHOAL_EPROTOCOL, "not hello");
    refused("{\"type\":\"error\",\"request\":0,\"code\":-8,\"text\":\"the daemon drains\"}\n", NULL,
            SHOAL_EREFUSED, "the daemon drains");
    refused("{\"type\":\"error\",\"request\":0,\"code\":0,\"text\":\"strange\"}\n", NULL,
            SHOAL_EPROTOCOL, "strange");
    refused("{\"type\":\"error\",\"request\":0,\"code\":-13,\"text\":\"its own\"}\n", NULL,
            SHOAL_EPROTOCOL, "its own");
}
END_TEST

START_TEST(test_join_refused)
{
    refused(HELLO, NULL, SHOAL_EDISCONNECTED, "cannot join job test");
    refused(HELLO, HELLO, SHOAL_EPROTOCOL, "answered join with \"hello\"");
    refused(HELLO,
            "{\"type\":\"error\",\"request\":0,\"code\":-3,\"text\":\"rank 0 is missing\"}\n",
            SHOAL_ETIMEOUT, "rank 0 is missing");
    refused(HELLO, "{\"type\":\"failed\",\"group\":-1,\"code\":-5,\"text\":\"rank 0 died\"}\n",
            SHOAL_ELOST, "rank 0 died");
    refused(HELLO, JOINED(0, 2, "[1]", 4096), SHOAL_EPROTOCOL, "rank 0 of 2");
    refused(HELLO, JOINED(1, 3, "[1]", 4096), SHOAL_EPROTOCOL, "rank 1 of 3");
    refused(HELLO, JOINED(5, 2, "[1]", 4096), SHOAL_EPROTOCOL, "rank 5 of 2");
    refused(HELLO, JOINED(1, 2, "[]", 4096), SHOAL_EPROTOCOL, "");
    refused(HELLO, JOINED(1, 2, "[1,0]", 4096), SHOAL_EPROTOCOL, "makes no sense");
    refused(HELLO, JOINED(1, 2, "[1]", 4100), SHOAL_EPROTOCOL, "4100");
    refused(HELLO, JOINED(1, 2, "[1]", 8388608), SHOAL_EMEMORY, "8388608");
}
END_TEST

/* Nothing would wake the driver. */
START_TEST(test_joined_without_a_doorbell)
{
    struct script script = {.answers = {HELLO, JOINED(1, 2, "[1]", 4096), NULL}, .without = true};
    shoal_job *job = NULL;
    ck_assert_int_eq(open_against(&script, 20000, &job), SHOAL_EPROTOCOL);
    ck_assert_ptr_nonnull(strstr(shoal_error_text(), "without a doorbell"));
    script_stop(&script);
}
END_TEST

START_TEST(test_what_is_said)
{
    struct script script = {
        .answers = {HELLO, JOINED(1, 2, "[1,3]", 4096), "{\"type\":\"left\"}\n", NULL}};
    shoal_job *job = NULL;
    GOOD(open_against(&script, 20000, &job));
    ck_assert_int_eq(shoal_rank(job), 1);
    ck_assert_int_eq(shoal_world_size(job), 2);
    ck_assert_int_eq(shoal_group_size(shoal_world(job)), 2);
    GOOD(shoal_close(job));
    script_stop(&script);
    ck_assert_int_eq(script.descriptors, 2);
    char expected[128];
    ck_assert_ptr_nonnull(strstr(script.got[0], "\"type\":\"hello\""));
    ck_assert_ptr_nonnull(strstr(script.got[0], "\"protocol\":3"));
    ck_assert_ptr_nonnull(strstr(script.got[0], "libshoal " SHOAL_VERSION));
    snprintf(expected, sizeof(expected), "\"pid\":%d", (int)getpid());
    ck_assert_ptr_nonnull(strstr(script.got[0], expected));
    ck_assert_ptr_nonnull(strstr(script.got[1], "\"type\":\"join\""));
    ck_assert_ptr_nonnull(strstr(script.got[1], "\"job\":\"test\""));
    ck_assert_ptr_nonnull(strstr(script.got[1], "\"rank\":1"));
    ck_assert_ptr_nonnull(strstr(script.got[1], "\"local_rank\":-1"));
    const char *time = strstr(script.got[1], "\"timeout_ms\":");
    ck_assert_ptr_nonnull(time);
    long left_ms = strtol(time + strlen("\"timeout_ms\":"), NULL, 10);
    ck_assert_int_le(left_ms, 20000); /* what is left of it */
    ck_assert_int_gt(left_ms, 10000);
    ck_assert_ptr_nonnull(strstr(script.got[2], "\"type\":\"leave\""));
}
END_TEST

/* News that arrives with the answer to join must not lie unread. */
START_TEST(test_failure_with_joined)
{
    struct script script = {
        .answers = {
            HELLO,
            JOINED(
                1, 2, "[1]",
                4096) "{\"type\":\"failed\",\"group\":-1,\"code\":-5,\"text\":\"rank 0 died\"}\n",
            "{\"type\":\"left\"}\n", NULL}};
    shoal_job *job = NULL;
    GOOD(open_against(&script, 20000, &job));
    ck_assert_int_eq(shoal_barrier(shoal_world(job), NULL), SHOAL_ELOST);
    ck_assert_str_eq(shoal_error_text(), "rank 0 died");
    GOOD(shoal_close(job));
    script_stop(&script);
}
END_TEST

/* A daemon that takes the connection and says nothing. */
START_TEST(test_silence)
{
    struct script script = {.answers = {"", HELLO}};
    shoal_job *job = NULL;
    ck_assert_int_eq(open_against(&script, 30, &job), SHOAL_ETIMEOUT);
    ck_assert_ptr_nonnull(strstr(shoal_error_text(), script.path));
    script_stop(&script);
}
END_TEST

START_TEST(test_nobody_listens)
{
    struct client client;
    struct error error;
    uint64_t deadline_ns = clock_now_ns() + NS_PER_S;
    ck_assert_int_eq(client_connect(&client, "/nonexistent/x", deadline_ns, &error),
                     ERR_DISCONNECTED);
    ck_assert_ptr_nonnull(strstr(error.text, "/nonexistent/x"));
    ck_assert_int_eq(client_connect(&client, "", deadline_ns, &error), ERR_INVALID);
    char path[200];
    memset(path, 'p', sizeof(path));
    path[199] = '\0';
    ck_assert_int_eq(client_connect(&client, path, deadline_ns, &error), ERR_INVALID);
}
END_TEST

static struct client client_of(int fd)
{
    return (struct client){.fd = fd, .path = "here"};
}

START_TEST(test_lines_in_any_pieces)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    struct client client = client_of(ends[0]);
    struct message message;
    struct error error;
    const char *text = "{\"type\":\"left\"}\n{\"type\":\"failed\",\"group\":3,\"code\":-6,"
                       "\"text\":\"no\",\"unknown\":[1,{}]}\n{\"type\":\"left\"}\n";
    size_t length = strlen(text);
    ck_assert_int_eq(client_receive(&client, &message, &error), 0);
    for (size_t piece = 1; piece <= length; piece += 7) {
        int seen = 0;
        for (size_t sent = 0; sent < length; sent += piece) {
            size_t bytes = length - sent < piece ? length - sent : piece;
            ck_assert_int_eq(write(ends[1], text + sent, bytes), (ssize_t)bytes);
            int got;
            while ((got = client_receive(&client, &message, &error)) > 0) {
                ck_assert_int_eq(message.type, seen == 1 ? MESSAGE_FAILED : MESSAGE_LEFT);
                if (seen == 1) {
                    ck_assert_int_eq(message.group, 3);
                    ck_assert_str_eq(message.text, "no");
                }
                message_clear(&message);
                seen++;
            }
            ck_assert_int_eq(got, 0);
        }
        ck_assert_int_eq(seen, 3);
    }
    /* The client still hears what was sent before the end. */
    ck_assert_int_eq(write(ends[1], "{\"type\":\"left\"}\n{\"ty", 20), 20);
    close(ends[1]);
    ck_assert_int_eq(client_receive(&client, &message, &error), 1);
    message_clear(&message);
    ck_assert_int_eq(client_receive(&client, &message, &error), ERR_DISCONNECTED);
    ck_assert_ptr_nonnull(strstr(error.text, "here"));
    client_close(&client);
}
END_TEST

static void *send_endless_line(void *argument)
{
    int fd = *(int *)argument;
    char data[4096];
    memset(data, ' ', sizeof(data));
    while (send(fd, data, sizeof(data), MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

START_TEST(test_endless_line)
{
    int ends[2];
    pthread_t thread;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, send_endless_line, &ends[1]), 0);
    struct client client = client_of(ends[0]);
    struct message message;
    struct error error;
    ck_assert_int_eq(client_wait(&client, &message, clock_now_ns() + 60 * NS_PER_S, &error),
                     ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(error.text, "more than 1048576 bytes"));
    client_close(&client);
    pthread_join(thread, NULL);
    close(ends[1]);
}
END_TEST

START_TEST(test_full_socket)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    struct client client = client_of(ends[0]);
    struct message leave = {.type = MESSAGE_LEAVE};
    struct error error;
    int code;
    do
        code = client_send(&client, &leave, NULL, 0, 0, &error);
    while (code == 0);
    ck_assert_int_eq(code, ERR_TIMEOUT);
    close(ends[1]);
    ck_assert_int_eq(client_send(&client, &leave, NULL, 0, 0, &error), ERR_DISCONNECTED);
    client_close(&client);
    ck_assert_int_eq(client.fd, -1);
    client_close(&client);
}
END_TEST

/* The client sends nothing after half a line, for it would be nonsense to the daemon. */
START_TEST(test_half_a_line)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    struct client client = client_of(ends[0]);
    struct message leave = {.type = MESSAGE_LEAVE}, answer;
    struct message open = {.type = MESSAGE_WORKER_GROUP_OPEN, .timeout_ms = 1};
    struct error error;
    open.ranks.count = 100000;
    open.ranks.values = calloc(open.ranks.count, sizeof(*open.ranks.values));
    for (uint32_t i = 0; i < open.ranks.count; i++)
        open.ranks.values[i] = i;
    ck_assert_int_eq(client_send(&client, &open, NULL, 0, 0, &error), ERR_TIMEOUT);
    free(open.ranks.values);
    ck_assert_int_eq(client_receive(&client, &answer, &error), ERR_DISCONNECTED);
    ck_assert_int_eq(client_send(&client, &leave, NULL, 0, 0, &error), ERR_DISCONNECTED);
    char text[4096];
    ssize_t got, all = 0;
    while ((got = read(ends[1], text, sizeof(text))) > 0) {
        ck_assert_ptr_null(memchr(text, '\n', (size_t)got));
        all += got;
    }
    ck_assert_int_eq(got, 0);
    ck_assert_int_gt(all, 0);
    client_close(&client);
    close(ends[1]);
}
END_TEST

/* The end is the end, too, whoever has a copy: a child that was forked while the number was
 * forgotten. */
START_TEST(test_closed_numbers)
{
    int ends[2];
    char byte;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    struct client client = client_of(ends[0]);
    int copy = dup(ends[0]);
    for (int i = 0; i < 3; i++)
        client.descriptors[client.descriptor_count++] = dup(ends[0]);
    closing = &client;
    client_close(&client);
    closing = NULL;
    ck_assert_int_eq(closed, 4);
    ck_assert_int_eq(client.fd, -1);
    ck_assert_uint_eq(client.descriptor_count, 0);
    ck_assert_int_eq(recv(ends[1], &byte, 1, 0), 0);
    close(copy);
    close(ends[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client");
    TCase *cases = tcase_create("client");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_hello_refused);
    tcase_add_test(cases, test_join_refused);
    tcase_add_test(cases, test_joined_without_a_doorbell);
    tcase_add_test(cases, test_what_is_said);
    tcase_add_test(cases, test_failure_with_joined);
    tcase_add_test(cases, test_silence);
    tcase_add_test(cases, test_nobody_listens);
    tcase_add_test(cases, test_lines_in_any_pieces);
    tcase_add_test(cases, test_endless_line);
    tcase_add_test(cases, test_full_socket);
    tcase_add_test(cases, test_half_a_line);
    tcase_add_test(cases, test_closed_numbers);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
