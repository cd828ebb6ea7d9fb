/* Daemons that encrypt, over real sockets and with a stand-in engine: among themselves, with others
 * that do not, and while secrets are changed. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/certificates.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define LINE_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
#define LINE_B "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210\n"

static char *directory;
static struct control_daemon *daemons[2];
static uint16_t ports[2];
static int told[2]; /* reading ends of the logs */

static void setup(void)
{
    directory = suite_make_directory();
    int fds[2] = {control_daemon_bind(&ports[0]), control_daemon_bind(&ports[1])};
    for (uint32_t i = 0; i < 2; i++) {
        int ends[2];
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
        told[i] = ends[0];
        daemons[i] = control_daemon_create(directory, 2, i, ports);
        daemons[i]->options.listen_fd = fds[i];
        log_init(&daemons[i]->log, "test", LOG_LEVEL_INFO, ends[1], false);
    }
}

static void end(int i)
{
    int log_fd = daemons[i]->log.fd;
    control_daemon_free(daemons[i]);
    daemons[i] = NULL;
    close(log_fd);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        if (daemons[i])
            end(i);
        close(told[i]);
    }
    suite_remove_directory(directory);
}

static void start(int i)
{
    struct error error = {0};
    ck_assert_msg(control_daemon_start(daemons[i], &error) == 0, "%s", error.text);
}

/* The log of the daemon has this; what comes until then is not looked at again. */
static void wait_told(int i, const char *piece)
{
    char text[65536] = "";
    size_t count = 0;
    for (;;) {
        struct pollfd wait = {told[i], POLLIN, 0};
        ck_assert_msg(poll(&wait, 1, 20000) == 1, "'%s' was never said by %d: %s", piece, i, text);
        ssize_t got = read(told[i], text + count, sizeof(text) - 1 - count);
        ck_assert_int_gt(got, 0);
        count += (size_t)got;
        text[count] = '\0';
        if (strstr(text, piece))
            return;
        ck_assert_uint_lt(count, sizeof(text) - 1);
    }
}

static void run_job(const char *job)
{
    struct control_client workers[2];
    struct message message;
    for (int i = 0; i < 2; i++) {
        control_client_open(&workers[i], daemons[i]);
        control_client_hello(&workers[i]);
        control_client_join(&workers[i], job, 2, -1);
    }
    for (int i = 0; i < 2; i++) {
        control_client_expect(&workers[i], MESSAGE_JOINED, &message);
        ck_assert_uint_eq(message.node_count, 2);
    }
    for (int i = 0; i < 2; i++)
        control_client_write(&workers[i], "{\"type\":\"leave\"}\n");
    for (int i = 0; i < 2; i++) {
        control_client_expect(&workers[i], MESSAGE_LEFT, &message);
        control_client_close(&workers[i]);
    }
}

START_TEST(test_job)
{
    struct engine_peer_connect given[2];
    for (int i = 0; i < 2; i++) {
        control_daemon_set_secrets(daemons[i], 42, 0, true);
        start(i);
    }
    for (int i = 0; i < 2; i++)
        wait_told(i, "is connected, encrypted by secret ");
    run_job("train");
    for (int i = 0; i < 2; i++) {
        control_daemon_signal(daemons[i], SIGTERM);
        control_daemon_join(daemons[i]);
        given[i] = *control_daemon_peer_connect(daemons[i]);
        ck_assert(given[i].sealed);
    }
    ck_assert_mem_eq(given[0].seal_key, given[1].open_key, ENGINE_SEAL_KEY_BYTES);
    ck_assert_mem_eq(given[0].open_key, given[1].seal_key, ENGINE_SEAL_KEY_BYTES);
    ck_assert_mem_ne(given[0].open_key, given[0].seal_key, ENGINE_SEAL_KEY_BYTES);
}
END_TEST

START_TEST(test_in_the_clear)
{
    for (int i = 0; i < 2; i++) {
        control_daemon_set_secrets(daemons[i], 42, 0, false);
        start(i);
    }
    for (int i = 0; i < 2; i++)
        wait_told(i, "is connected\n");
    run_job("train");
    for (int i = 0; i < 2; i++) {
        control_daemon_signal(daemons[i], SIGTERM);
        control_daemon_join(daemons[i]);
        ck_assert(!control_daemon_peer_connect(daemons[i])->sealed);
    }
}
END_TEST

START_TEST(test_other_secret)
{
    for (int i = 0; i < 2; i++) {
        control_daemon_set_secrets(daemons[i], (uint8_t)(i + 1), 0, true);
        start(i);
    }
    for (int i = 0; i < 2; i++)
        wait_told(i, "it does not know the secret");
}
END_TEST

/* Both sides say what is wrong, whichever connects. */
START_TEST(test_other_mode)
{
    static const char *const said[] = {"it speaks TLS, and protect is \"none\" here",
                                       "it speaks in the clear, and protect is \"encrypt\" here"};
    for (int i = 0; i < 2; i++) {
        control_daemon_set_secrets(daemons[i], 42, 0, i == _i);
        start(i);
    }
    for (int i = 0; i < 2; i++)
        wait_told(i, said[i == _i]);
}
END_TEST

/* --- the files */

static void secret_path(char path[CONFIG_PATH_BYTES])
{
    snprintf(path, CONFIG_PATH_BYTES, "%.200s/secret", directory);
}

static void write_secret(const char *text)
{
    char path[CONFIG_PATH_BYTES];
    secret_path(path);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    fputs(text, file);
    fclose(file);
}

static void load(int i)
{
    struct error error = {0};
    snprintf(daemons[i]->config.protect, sizeof(daemons[i]->config.protect), "encrypt");
    ck_assert_msg(credentials_load(&daemons[i]->credentials, &daemons[i]->config, &error) == 0,
                  "%s", error.text);
}

/* SIGHUP on both, then b starts anew, with whatever a has now. */
static void turn(const char *text)
{
    write_secret(text);
    for (int i = 0; i < 2; i++) {
        control_daemon_signal(daemons[i], SIGHUP);
        wait_told(i, "SIGHUP: secrets are read anew");
    }
}

START_TEST(test_rotation)
{
    int again = fcntl(daemons[1]->options.listen_fd, F_DUPFD_CLOEXEC, 0);
    write_secret(LINE_A);
    for (int i = 0; i < 2; i++) {
        secret_path(daemons[i]->config.secret_file);
        load(i);
        start(i);
    }
    wait_told(0, "is connected, encrypted by secret ");
    turn(LINE_A LINE_B);
    turn(LINE_B LINE_A);
    run_job("goes on");
    write_secret("too short\n");
    control_daemon_signal(daemons[0], SIGHUP);
    wait_told(0, "SIGHUP: the old secrets and certificates stay: secret file");
    turn(LINE_B);
    /* Daemon b comes anew, and finds a with the new secret alone. */
    end(1);
    daemons[1] = control_daemon_create(directory, 2, 1, ports);
    daemons[1]->options.listen_fd = again;
    log_init(&daemons[1]->log, "test", LOG_LEVEL_INFO, fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0),
             false);
    secret_path(daemons[1]->config.secret_file);
    load(1);
    start(1);
    wait_told(0, "is connected, encrypted by secret ");
    run_job("new");
}
END_TEST

static void certify(const struct authority *authority, int i, const char *node)
{
    struct config *config = &daemons[i]->config;
    snprintf(config->certificate_file, CONFIG_PATH_BYTES, "%.200s/%d.crt", directory, i);
    snprintf(config->key_file, CONFIG_PATH_BYTES, "%.200s/%d.key", directory, i);
    snprintf(config->authority_file, CONFIG_PATH_BYTES, "%.200s/authority", directory);
    certificate_write(authority, node, 10, config->certificate_file, config->key_file);
}

START_TEST(test_certificates)
{
    char path[300];
    struct authority *authority = authority_make("the authority");
    snprintf(path, sizeof(path), "%s/authority", directory);
    authority_write(authority, path);
    for (int i = 0; i < 2; i++) {
        certify(authority, i, i ? "b" : "a");
        load(i);
    }
    if (_i == 0) {
        for (int i = 0; i < 2; i++)
            start(i);
        for (int i = 0; i < 2; i++)
            wait_told(i, "is connected, encrypted by certificates");
        run_job("train");
    } else {
        /* The daemon `liar` has a certificate of the authority, but of another node: it is not let
         * in. */
        int liar = _i - 1;
        struct config *config = &daemons[liar]->config;
        char own[CONFIG_NAME_BYTES];
        memcpy(own, config->node, sizeof(own));
        snprintf(config->node, sizeof(config->node), "c");
        certify(authority, liar, "c");
        load(liar);
        memcpy(config->node, own, sizeof(own));
        for (int i = 0; i < 2; i++)
            start(i);
        wait_told(1 - liar, liar ? "its certificate does not name node b, which it says it is"
                                 : "its certificate does not name node a, which it says it is");
    }
    authority_free(authority);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_tls");
    TCase *cases = tcase_create("control_tls");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_job);
    tcase_add_test(cases, test_in_the_clear);
    tcase_add_test(cases, test_other_secret);
    tcase_add_loop_test(cases, test_other_mode, 0, 2);
    tcase_add_test(cases, test_rotation);
    tcase_add_loop_test(cases, test_certificates, 0, 3);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
