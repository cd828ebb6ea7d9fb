#include "common/base/sd_notify.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/suite.h"

/* A manager's end of the protocol, bound to a path or, with '@', to an abstract name. */
static int manager_bind(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    ck_assert_uint_lt(length, sizeof(address.sun_path));
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, bytes), 0);
    return fd;
}

static void manager_expect(int fd, const char *state)
{
    char text[256] = "";
    ssize_t bytes = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
    ck_assert_int_eq(bytes, (ssize_t)strlen(state));
    ck_assert_str_eq(text, state);
}

static void manager_expect_nothing(int fd)
{
    char text[256];
    ck_assert_int_lt(recv(fd, text, sizeof(text), MSG_DONTWAIT), 0);
}

START_TEST(path_socket)
{
    char *directory = suite_make_directory();
    char path[100];
    snprintf(path, sizeof(path), "%s/notify", directory);
    int manager = manager_bind(path);
    struct error error = {0};

    ck_assert_int_eq(sd_notify_send(path, "READY=1\nSTATUS=2 peers", &error), 0);
    ck_assert_int_eq(sd_notify_send(path, "STOPPING=1", NULL), 0);
    manager_expect(manager, "READY=1\nSTATUS=2 peers");
    manager_expect(manager, "STOPPING=1");
    manager_expect_nothing(manager);
    ck_assert_int_eq(error.code, 0);

    close(manager);
    suite_remove_directory(directory);
}
END_TEST

START_TEST(abstract_socket)
{
    char path[64];
    snprintf(path, sizeof(path), "@shoal-test-notify-%ld", (long)getpid());
    int manager = manager_bind(path);
    ck_assert_int_eq(sd_notify_send(path, "WATCHDOG=1", NULL), 0);
    manager_expect(manager, "WATCHDOG=1");
    close(manager);

    /* A file name of the same letters is another socket. */
    struct error error = {0};
    ck_assert_int_eq(sd_notify_send(path, "WATCHDOG=1", &error), ERR_SYSTEM);
}
END_TEST

START_TEST(no_manager)
{
    struct error error = {0};
    ck_assert_int_eq(sd_notify_send(NULL, "READY=1", &error), 0);
    ck_assert_int_eq(sd_notify_send("", "READY=1", &error), 0);
    ck_assert_int_eq(error.code, 0);
}
END_TEST

START_TEST(nobody_listens)
{
    char *directory = suite_make_directory();
    char path[100];
    snprintf(path, sizeof(path), "%s/notify", directory);
    struct error error = {0};

    ck_assert_int_eq(sd_notify_send(path, "READY=1", &error), ERR_SYSTEM);
    ck_assert_int_eq(error.code, ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_ptr_nonnull(strstr(error.text, "No such file"));

    suite_remove_directory(directory);
}
END_TEST

START_TEST(full_manager_does_not_stop_us)
{
    char *directory = suite_make_directory();
    char path[100];
    snprintf(path, sizeof(path), "%s/notify", directory);
    int manager = manager_bind(path);

    /* The queue of a datagram socket is a few hundred at the most. */
    struct error error = {0};
    int code = 0;
    for (int i = 0; i < 100000 && code == 0; i++)
        code = sd_notify_send(path, "WATCHDOG=1", &error);
    ck_assert_int_eq(code, ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(error.text, "not being read"));

    close(manager);
    suite_remove_directory(directory);
}
END_TEST

START_TEST(bad_path)
{
    char deep[200];
    memset(deep, 'x', sizeof(deep) - 1);
    deep[0] = '/';
    deep[sizeof(deep) - 1] = '\0';
    const char *const paths[] = {"relative/notify", "vsock:2:1", "/", "@", deep};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct error error = {0};
        ck_assert_int_eq(sd_notify_send(paths[i], "READY=1", &error), ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, paths[i]));
    }
}
END_TEST

START_TEST(longest_path)
{
    /* 107 bytes fit with the final NUL, one more does not. */
    char path[109];
    memset(path, 'x', sizeof(path));
    snprintf(path, 32, "@shoal-test-long-%ld", (long)getpid());
    path[strlen(path)] = '-';
    path[107] = '\0';
    int manager = manager_bind(path);
    ck_assert_int_eq(sd_notify_send(path, "READY=1", NULL), 0);
    manager_expect(manager, "READY=1");
    close(manager);
    path[107] = 'x';
    path[108] = '\0';
    ck_assert_int_eq(sd_notify_send(path, "READY=1", NULL), ERR_INVALID);
}
END_TEST

START_TEST(empty_state)
{
    ck_assert_int_eq(sd_notify_send("@shoal-test-nobody", "", NULL), ERR_INVALID);
    ck_assert_int_eq(sd_notify_send("@shoal-test-nobody", NULL, NULL), ERR_INVALID);
}
END_TEST

/* The lowest free descriptor: it moves when something is left open. */
static int descriptor_next(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    close(fd);
    return fd;
}

START_TEST(no_descriptor_left)
{
    int before = descriptor_next();
    for (int i = 0; i < 10; i++)
        sd_notify_send("@shoal-test-nobody", "READY=1", NULL);
    ck_assert_int_eq(descriptor_next(), before);
}
END_TEST

START_TEST(watchdog_interval)
{
    static const struct {
        const char *usec, *pid;
        uint32_t interval_ms;
    } cases[] = {
        {NULL, NULL, 0},
        {"", "", 0},
        {NULL, "42", 0},
        {"10000000", NULL, 5000},
        {"10000000", "", 5000},
        {"10000000", "42", 5000},
        {"10000000", "43", 0}, /* meant for another process, such as our parent */
        {"3000", NULL, 1},
        {"1", NULL, 1},
        {"18446744073709551615", NULL, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t interval_ms = 77;
        ck_assert_int_eq(
            sd_notify_watchdog_parse(cases[i].usec, cases[i].pid, 42, &interval_ms, NULL), 0);
        ck_assert_msg(interval_ms == cases[i].interval_ms, "case %zu: %u", i, interval_ms);
    }
}
END_TEST

START_TEST(watchdog_nonsense)
{
    static const char *const bad[] = {"0",  "-1",    "+5", " 5",
                                      "5s", "0x10x", "ja", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint32_t interval_ms = 77;
        struct error error = {0};
        ck_assert_int_eq(sd_notify_watchdog_parse(bad[i], NULL, 42, &interval_ms, &error),
                         ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, "WATCHDOG_USEC"));
        ck_assert_ptr_nonnull(strstr(error.text, bad[i]));
        ck_assert_int_eq(sd_notify_watchdog_parse("1000", bad[i], 42, &interval_ms, &error),
                         ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, "WATCHDOG_PID"));
        ck_assert_uint_eq(interval_ms, 77); /* outputs only on success */
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sd_notify");
    TCase *send = tcase_create("send");
    tcase_add_test(send, path_socket);
    tcase_add_test(send, abstract_socket);
    tcase_add_test(send, no_manager);
    tcase_add_test(send, nobody_listens);
    tcase_add_test(send, full_manager_does_not_stop_us);
    tcase_add_test(send, bad_path);
    tcase_add_test(send, longest_path);
    tcase_add_test(send, empty_state);
    tcase_add_test(send, no_descriptor_left);
    suite_add_tcase(suite, send);
    TCase *watchdog = tcase_create("watchdog");
    tcase_add_test(watchdog, watchdog_interval);
    tcase_add_test(watchdog, watchdog_nonsense);
    suite_add_tcase(suite, watchdog);
    return suite_main(suite);
}
