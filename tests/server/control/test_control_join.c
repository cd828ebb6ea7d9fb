/* A connection that says a second time what there is to say once, and brings descriptors with it.
 */
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define AGAIN 10

static char *directory;
static struct control_daemon *daemon_under_test;

static void setup(void)
{
    static const uint16_t any_port = 0;
    struct error error = {0};
    directory = suite_make_directory();
    daemon_under_test = control_daemon_create(directory, 1, 0, &any_port);
    ck_assert_msg(control_daemon_start(daemon_under_test, &error) == 0, "%s", error.text);
}

static void teardown(void)
{
    control_daemon_free(daemon_under_test);
    suite_remove_directory(directory);
}

/* Count the descriptors of this process, the daemon's among them. */
static uint32_t count_descriptors(void)
{
    uint32_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Joined when it returns. */
static void open_joined(struct control_client *client, const char *job)
{
    struct message message;
    control_client_open(client, daemon_under_test);
    control_client_hello(client);
    control_client_join(client, job, 1, 0);
    control_client_expect(client, MESSAGE_JOINED, &message);
    message_clear(&message);
}

/* Everything that the second join brings is as it should be, and the job another one or the same.
 */
static void join_again(const char *job)
{
    struct control_client client;
    open_joined(&client, "train");
    int doorbell = client.doorbell;
    control_client_join(&client, job, 1, 0);
    ck_assert_ptr_null(control_client_line(&client));
    close(doorbell);
    control_client_close(&client);
}

/* The control thread is through with what came before. */
static void ping(void)
{
    struct control_client client;
    struct message message;
    control_client_open(&client, daemon_under_test);
    control_client_hello(&client);
    control_client_write(&client, "{\"type\":\"ping\"}\n");
    control_client_expect(&client, MESSAGE_PONG, &message);
    control_client_close(&client);
}

/* A second join ends the connection, and the daemon lets go of what both joins brought. */
START_TEST(test_second_join)
{
    ping();
    uint32_t before = count_descriptors();
    for (int i = 0; i < AGAIN; i++)
        join_again(i % 2 ? "train" : "another");
    for (int waits = 0; count_descriptors() > before && waits < 1000; waits++) {
        ping(); /* threads close what the second ones brought */
        poll(NULL, 0, 1);
    }
    ck_assert_uint_le(count_descriptors(), before);
}
END_TEST

/* The process of the second join ends after its connection: that is nobody else's end. */
START_TEST(test_process_of_a_second_join)
{
    enum { OTHERS = 12 };
    struct control_client others[OTHERS];
    struct message message;
    int told[2], go[2];
    char byte, name[24];
    ck_assert_int_eq(pipe(told), 0);
    ck_assert_int_eq(pipe(go), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        for (int i = 0; i < AGAIN; i++)
            join_again("again");
        bool heard = write(told[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1;
        _exit(heard ? 0 : 1);
    }
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    for (int i = 0; i < OTHERS; i++) {
        snprintf(name, sizeof(name), "other%d", i);
        open_joined(&others[i], name);
    }
    ck_assert_int_eq(write(go[1], "x", 1), 1);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ping();
    for (int i = 0; i < OTHERS; i++) {
        control_client_write(&others[i], "{\"type\":\"ping\"}\n");
        control_client_expect(&others[i], MESSAGE_PONG, &message);
        control_client_close(&others[i]);
    }
    for (int i = 0; i < 2; i++) {
        close(told[i]);
        close(go[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_join");
    TCase *cases = tcase_create("join");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_second_join);
    tcase_add_test(cases, test_process_of_a_second_join);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
