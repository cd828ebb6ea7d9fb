/* Limits of what one user of the Unix socket may have the daemon keep, beside another one. The
 * daemon's own user and root have no limits, so that the clients connect as others: a thread may do
 * that. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/format/arena.h"
#include "server/control/ground/control_internal.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define ALICE 61001u
#define BOB 61002u
#define WORKERS 16u
#define DESCRIPTORS (unsigned)CONTROL_USER_DESCRIPTORS(WORKERS) /* of one user */

static char *directory;
static struct control_daemon *daemon_under_test;

static bool is_root(void)
{
    return geteuid() == 0;
}

static struct unmapped unmapped; /* of the daemon */

static void begin(bool keep_arenas, uint64_t arenas)
{
    struct error error = {0};
    uint16_t port = 0;
    directory = suite_make_directory();
    ck_assert_int_eq(chmod(directory, 0755), 0);
    daemon_under_test = control_daemon_create(directory, 1, 0, &port);
    daemon_under_test->config.socket_mode = 0666;
    daemon_under_test->config.workers = WORKERS;
    daemon_under_test->options.unmapped = unmapped;
    daemon_under_test->config.user_bytes = arenas * ARENA_LEAST_BYTES;
    if (keep_arenas)
        control_daemon_keep_arenas(daemon_under_test);
    ck_assert_msg(control_daemon_start(daemon_under_test, &error) == 0, "%s", error.text);
}

static void setup(void)
{
    begin(false, 2);
}

static void setup_keeping(void)
{
    begin(true, 2);
}

static void setup_two_ranks(void)
{
    begin(false, 3);
}

static void setup_unmapped(void)
{
    unmapped = (struct unmapped){.any = true, .uid = ALICE};
    begin(false, 2);
}

static void setup_unmapped_root(void)
{
    unmapped = (struct unmapped){.any = true, .uid = 0};
    begin(false, 2);
}

static void teardown(void)
{
    control_daemon_free(daemon_under_test);
    suite_remove_directory(directory);
}

static void open_as(struct control_client *client, uint32_t uid)
{
    control_client_open_as(client, daemon_under_test, uid);
    control_client_hello(client);
}

static void joins(struct control_client *client, uint32_t uid, const char *job)
{
    struct message message;
    open_as(client, uid);
    control_client_join(client, job, 1, 0);
    control_client_expect(client, MESSAGE_JOINED, &message);
    message_clear(&message);
}

static void is_refused(struct control_client *client, uint32_t uid, const char *words)
{
    struct message message;
    open_as(client, uid);
    control_client_join(client, "refused", 1, 0);
    control_client_expect(client, MESSAGE_ERROR, &message);
    ck_assert_int_eq(message.code, ERR_MEMORY);
    ck_assert_msg(strstr(message.text, words) != NULL, "%s", message.text);
    ck_assert_ptr_null(control_client_line(client));
    control_client_close(client);
}

static void leaves(struct control_client *client)
{
    struct message message;
    control_client_write(client, "{\"type\":\"leave\"}\n");
    control_client_expect(client, MESSAGE_LEFT, &message);
    ck_assert_ptr_null(control_client_line(client));
    control_client_close(client);
}

static void send_with(int socket, const char *bytes, const int *fds, size_t count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } ancillary = {0};
    struct iovec part = {(char *)(uintptr_t)bytes, strlen(bytes)};
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

/* A user may have as many arenas as fit, and one more when one is gone, whatever another user
 * has. */
START_TEST(test_arenas)
{
    struct control_client alice[3], bob[2], refused;
    if (!is_root()) {
        suite_skip("test_arenas", "connecting as another user takes root");
        return;
    }
    joins(&alice[0], ALICE, "alice0");
    joins(&alice[1], ALICE, "alice1");
    is_refused(&refused, ALICE,
               "user 61001 may have 2097152 bytes of arenas and shared memory "
               "(limits.user_bytes) on node a, has 2097152");
    joins(&bob[0], BOB, "bob0");
    leaves(&alice[0]);
    joins(&alice[2], ALICE, "alice2");
    is_refused(&refused, ALICE, "limits.user_bytes");
    control_client_close(&alice[1]); /* without a word */
    joins(&bob[1], BOB, "bob1");
    leaves(&alice[2]);
    leaves(&bob[0]);
    leaves(&bob[1]);
}
END_TEST

/* Arenas that have been left behind may be as much again, and no more. */
START_TEST(test_arenas_that_are_left)
{
    struct control_client client, refused;
    if (!is_root()) {
        suite_skip("test_arenas_that_are_left", "connecting as another user takes root");
        return;
    }
    for (int i = 0; i < 3; i++) {
        joins(&client, ALICE, "alice");
        leaves(&client);
    }
    is_refused(&refused, ALICE,
               "user 61001 has 3145728 bytes of arenas on node a that its earlier "
               "jobs have not let go of");
    joins(&client, BOB, "bob");
    leaves(&client);
}
END_TEST

static void asks_for_shared(struct control_client *client, unsigned nth, unsigned bytes,
                            const char *refusal)
{
    struct message message;
    char line[256];
    snprintf(line, sizeof(line),
             "{\"type\":\"shared_open\",\"request\":%u,\"group\":0,\"nth\":%u,\"bytes\":%u}\n", nth,
             nth, bytes);
    control_client_write(client, line);
    control_client_expect(client, refusal ? MESSAGE_ERROR : MESSAGE_SHARED_OPENED, &message);
    if (refusal)
        ck_assert_msg(strstr(message.text, refusal) != NULL, "%s", message.text);
    else
        ck_assert_uint_eq(message.request, nth);
    message_clear(&message);
}

/* Shared memory counts with arenas, until it is given back. */
START_TEST(test_shared_memory)
{
    struct control_client alice, refused;
    if (!is_root()) {
        suite_skip("test_shared_memory", "connecting as another user takes root");
        return;
    }
    joins(&alice, ALICE, "alice");
    asks_for_shared(&alice, 0, 1 << 19, NULL);
    asks_for_shared(&alice, 1, 1 << 20, "limits.user_bytes) on node a, has 1572864");
    asks_for_shared(&alice, 1, 1 << 19, NULL);
    is_refused(&refused, ALICE, "has 2097152");
    control_client_write(&alice, "{\"type\":\"shared_close\",\"group\":0,\"segment\":0}\n");
    asks_for_shared(&alice, 2, 1 << 19, NULL);
    leaves(&alice);
    joins(&alice, ALICE, "alice");
    leaves(&alice);
}
END_TEST

/* Lines that do not end, with descriptors: the daemon keeps those of so many. */
START_TEST(test_descriptors_that_wait)
{
    enum { CLIENTS = DESCRIPTORS / 2 + 1 };
    struct control_client clients[CLIENTS], bob;
    const int fds[2] = {0, 1};
    if (!is_root()) {
        suite_skip("test_descriptors_that_wait", "connecting as another user takes root");
        return;
    }
    for (int i = 0; i < CLIENTS; i++) {
        open_as(&clients[i], ALICE);
        send_with(clients[i].fd, "{\"type\":\"ping\"", fds, 2);
    }
    ck_assert_ptr_null(control_client_line(&clients[CLIENTS - 1]));
    joins(&bob, BOB, "bob");
    control_client_close(&clients[CLIENTS - 1]);
    struct message message;
    for (int i = 0; i < CLIENTS - 1; i++) {
        control_client_write(&clients[i], "}\n");
        control_client_expect(&clients[i], MESSAGE_PONG, &message);
        control_client_close(&clients[i]);
    }
    leaves(&bob);
}
END_TEST

/* A rank that asks for more pieces of shared memory than it takes. */
START_TEST(test_descriptors_that_are_not_taken)
{
    struct control_client alice, bob;
    char line[128];
    if (!is_root()) {
        suite_skip("test_descriptors_that_are_not_taken", "connecting as another user takes root");
        return;
    }
    joins(&alice, ALICE, "alice");
    for (unsigned nth = 0; nth <= DESCRIPTORS; nth++) {
        snprintf(line, sizeof(line),
                 "{\"type\":\"shared_open\",\"request\":%u,\"group\":0,\"nth\":%u,\"bytes\":64}\n",
                 nth, nth);
        control_client_write(&alice, line);
    }
    joins(&bob, BOB, "bob");
    for (unsigned nth = 0; nth < 2 * DESCRIPTORS; nth++) /* who takes them may have any number */
        asks_for_shared(&bob, nth, 64, NULL);
    unsigned got = 0;
    for (unsigned nth = 0; nth <= DESCRIPTORS; nth++) {
        const char *said = control_client_line(&alice);
        ck_assert_ptr_nonnull(said);
        got += strstr(said, "shared_opened") != NULL;
    }
    ck_assert_uint_le(got, DESCRIPTORS / 2);
    leaves(&alice);
    joins(&alice, ALICE, "again");
    asks_for_shared(&alice, 0, 64, NULL);
    leaves(&alice);
    leaves(&bob);
}
END_TEST

/* Not read before the next is asked for: a rank that asks and another that does not. */
static bool has_segment(struct control_client *client, unsigned nth)
{
    struct message message;
    char line[128];
    snprintf(line, sizeof(line),
             "{\"type\":\"shared_open\",\"request\":%u,\"group\":0,\"nth\":%u,\"bytes\":64}\n", nth,
             nth);
    control_client_write(client, line);
    struct error error;
    const char *answer = control_client_line(client);
    ck_assert_ptr_nonnull(answer);
    char *text = strdup(answer);
    ck_assert_int_eq(message_decode(&message, MESSAGE_TO_WORKER, text, strlen(text), &error), 0);
    bool has = message.type == MESSAGE_SHARED_OPENED;
    if (!has)
        ck_assert_msg(strstr(message.text, "descriptors") != NULL, "%s", message.text);
    message_clear(&message);
    free(text);
    return has;
}

/* The daemon keeps the descriptor of shared memory until all ranks of the group have it. */
START_TEST(test_descriptors_of_shared_memory)
{
    struct control_client alice[2], bob;
    struct message message;
    unsigned count = 0;
    if (!is_root()) {
        suite_skip("test_descriptors_of_shared_memory", "connecting as another user takes root");
        return;
    }
    for (int rank = 0; rank < 2; rank++) {
        open_as(&alice[rank], ALICE);
        control_client_join(&alice[rank], "alice", 2, rank);
    }
    for (int rank = 0; rank < 2; rank++)
        control_client_expect(&alice[rank], MESSAGE_JOINED, &message);
    while (count <= DESCRIPTORS && has_segment(&alice[0], count))
        count++;
    ck_assert_uint_le(count, DESCRIPTORS / 2);
    ck_assert_uint_gt(count, DESCRIPTORS / 4);
    joins(&bob, BOB, "bob"); /* whose are his own */
    asks_for_shared(&bob, 0, 64, NULL);
    leaves(&bob);
    for (unsigned nth = 0; nth < count; nth++)
        ck_assert(has_segment(&alice[1], nth));
    ck_assert(has_segment(&alice[0], count));
    for (int rank = 0; rank < 2; rank++)
        leaves(&alice[rank]);
    joins(&alice[0], ALICE, "again");
    leaves(&alice[0]);
}
END_TEST

/* The daemon's own. */
START_TEST(test_no_limit_for_root)
{
    struct control_client clients[4];
    char name[8] = "job0";
    for (int i = 0; i < 4; i++) {
        name[3] = (char)('0' + i);
        joins(&clients[i], geteuid(), name);
    }
    for (int i = 0; i < 4; i++)
        leaves(&clients[i]);
}
END_TEST

static void expect_refused(uint32_t uid, const char *line)
{
    struct control_client client;
    struct message message;
    control_client_open_as(&client, daemon_under_test, uid);
    ssize_t sent = send(client.fd, line, strlen(line), MSG_NOSIGNAL);
    (void)sent; /* the end may have come before */
    control_client_expect(&client, MESSAGE_ERROR, &message);
    ck_assert_int_eq(message.code, ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(message.text, "cannot tell who this is"));
    message_clear(&message);
    ck_assert_ptr_null(control_client_line(&client));
    control_client_close(&client);
}

/* Where one number stands for many users, whoever has it gets nothing, whatever he asks for. */
START_TEST(test_nobody_knows_him)
{
    static const char *const lines[] = {
        "{\"type\":\"hello\",\"protocol\":3,\"software\":\"test\",\"pid\":1}\n",
        "{\"type\":\"status\"}\n", "{\"type\":\"drain\"}\n",
        "{\"type\":\"trace\",\"job\":\"a\",\"seconds\":1}\n"};
    struct control_client client;
    if (!is_root()) {
        suite_skip("test_nobody_knows_him", "only root can connect as others");
        return;
    }
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        expect_refused(ALICE, lines[i]);
    open_as(&client, BOB);
    control_client_close(&client);
}
END_TEST

/* Not even if the number is one that may do more. */
START_TEST(test_nobody_knows_root)
{
    struct control_client client;
    if (!is_root()) {
        suite_skip("test_nobody_knows_root", "only root can connect as others");
        return;
    }
    expect_refused(0, "{\"type\":\"drain\"}\n");
    open_as(&client, BOB);
    control_client_close(&client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_users");
    TCase *cases = tcase_create("users");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_arenas);
    tcase_add_test(cases, test_shared_memory);
    tcase_add_test(cases, test_descriptors_that_wait);
    tcase_add_test(cases, test_descriptors_that_are_not_taken);
    tcase_add_test(cases, test_no_limit_for_root);
    suite_add_tcase(suite, cases);
    TCase *two_ranks = tcase_create("two ranks");
    tcase_set_timeout(two_ranks, 60);
    tcase_add_checked_fixture(two_ranks, setup_two_ranks, teardown);
    tcase_add_test(two_ranks, test_descriptors_of_shared_memory);
    suite_add_tcase(suite, two_ranks);
    TCase *keeping = tcase_create("keeping");
    tcase_set_timeout(keeping, 60);
    tcase_add_checked_fixture(keeping, setup_keeping, teardown);
    tcase_add_test(keeping, test_arenas_that_are_left);
    suite_add_tcase(suite, keeping);
    TCase *nobody = tcase_create("a number of many users");
    tcase_add_checked_fixture(nobody, setup_unmapped, teardown);
    tcase_add_test(nobody, test_nobody_knows_him);
    suite_add_tcase(suite, nobody);
    TCase *nobody_root = tcase_create("root's number of many users");
    tcase_add_checked_fixture(nobody_root, setup_unmapped_root, teardown);
    tcase_add_test(nobody_root, test_nobody_knows_root);
    suite_add_tcase(suite, nobody_root);
    return suite_main(suite);
}
