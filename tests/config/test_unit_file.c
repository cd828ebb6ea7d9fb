/* config/shoald.service.in, as systemd itself reads it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define TEXT_BYTES 65536

static char *file_read(const char *path)
{
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    char *text = calloc(1, TEXT_BYTES);
    ck_assert_ptr_nonnull(text);
    size_t bytes = fread(text, 1, TEXT_BYTES - 1, file);
    ck_assert_uint_lt(bytes, TEXT_BYTES - 1);
    fclose(file);
    return text;
}

static char *unit_template(void)
{
    return file_read(TEST_SOURCE_DIR "/config/shoald.service.in");
}

/* The unit as `make install` writes it, with `prefix` and some lines more, and a program for its
 * ExecStart to find. */
static void unit_install(const char *prefix, const char *more)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/bin", prefix);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/bin/shoald", prefix);
    FILE *program = fopen(path, "w");
    ck_assert_ptr_nonnull(program);
    fputs("#!/bin/sh\n", program);
    fclose(program);
    ck_assert_int_eq(chmod(path, 0755), 0);

    snprintf(path, sizeof(path), "%s/shoald.service", prefix);
    FILE *unit = fopen(path, "w");
    ck_assert_ptr_nonnull(unit);
    char *text = unit_template(), *rest = text, *mark;
    while ((mark = strstr(rest, "@PREFIX@")) != NULL) {
        fprintf(unit, "%.*s%s", (int)(mark - rest), rest, prefix);
        rest = mark + strlen("@PREFIX@");
    }
    fprintf(unit, "%s%s", rest, more);
    fclose(unit);
    free(text);
}

/* Run a command of the shell; its output, both streams, is the caller's to free. */
static char *command_run(const char *command, int *status)
{
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    char *text = calloc(1, TEXT_BYTES);
    ck_assert_ptr_nonnull(text);
    size_t bytes = fread(text, 1, TEXT_BYTES - 1, pipe);
    text[bytes] = '\0';
    int ended = pclose(pipe);
    ck_assert(WIFEXITED(ended));
    *status = WEXITSTATUS(ended);
    return text;
}

/* Whether systemd accepts the unit without a word; what it said goes to stdout otherwise. systemd
 * only warns of a key that it does not know, so silence counts as well as the status. */
static int unit_accepted(const char *prefix)
{
    char command[400];
    int status;
    /* The manual pages that it names need not be installed. */
    snprintf(command, sizeof(command), "systemd-analyze --man=no verify %s/shoald.service 2>&1",
             prefix);
    char *text = command_run(command, &status);
    int accepted = status == 0 && !strstr(text, "shoald.service");
    if (!accepted)
        printf("status %d: %s\n", status, text);
    free(text);
    return accepted;
}

static int systemd_missing(const char *test)
{
    int status;
    free(command_run("systemd-analyze --version 2>&1", &status));
    if (status != 0)
        suite_skip(test, "no systemd-analyze here");
    return status != 0;
}

START_TEST(accepted_by_systemd)
{
    if (systemd_missing("accepted_by_systemd"))
        return;
    char *prefix = suite_make_directory();
    unit_install(prefix, "");
    ck_assert(unit_accepted(prefix));
    suite_remove_directory(prefix);
}
END_TEST

START_TEST(mistakes_are_seen)
{
    static const char *const mistakes[] = {
        "[Service]\nWatchdogSecs=10\n",
        "[Service]\nType=notifies\n",
        "[Service]\nExecStart=/nowhere/shoald\n",
        "[Service]\nRestrictAddressFamilies=AF_NONSENSE\n",
    };
    if (systemd_missing("mistakes_are_seen"))
        return;
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        char *prefix = suite_make_directory();
        unit_install(prefix, mistakes[i]);
        ck_assert_msg(!unit_accepted(prefix), "accepted: %s", mistakes[i]);
        suite_remove_directory(prefix);
    }
}
END_TEST

/* systemd's own measure of what a service could do if it were taken over: 0 nothing, 10 all. */
START_TEST(exposure_is_low)
{
    if (systemd_missing("exposure_is_low"))
        return;
    char *prefix = suite_make_directory();
    unit_install(prefix, "");
    char command[400];
    int status;
    snprintf(command, sizeof(command),
             "systemd-analyze security --no-pager --offline=true --threshold=12 %s/shoald.service "
             "2>&1",
             prefix);
    char *text = command_run(command, &status);
    if (status != 0 && !strstr(text, "exposure level"))
        suite_skip("exposure_is_low", "this systemd-analyze does not judge files");
    else
        ck_assert_msg(status == 0, "%s", text);
    free(text);
    suite_remove_directory(prefix);
}
END_TEST

/* The daemon's own code counts on these lines. */
START_TEST(daemon_contract)
{
    static const char *const lines[] = {
        "\nType=notify\n",
        "\nWatchdogSec=",
        "\nExecStart=@PREFIX@/bin/shoald --config /etc/shoal/shoald.json\n",
        "\nRestartPreventExitStatus=2 3\n",
        "\nKillSignal=SIGTERM\n",
        "\nRuntimeDirectory=shoal\n",
        "\nLimitMEMLOCK=infinity\n",
        "\nEnvironment=IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1\n",
        "\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n",
        "\nSystemCallFilter=@system-service\nSystemCallFilter=~@privileged @resources\n",
        "\nSystemCallFilter=seccomp\n",
        "\nUMask=0077\n",
        "\nProcSubset=pid\n",
        "\nLimitCORE=0\n",
    };
    char *text = unit_template();
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        ck_assert_msg(strstr(text, lines[i]) != NULL, "missing: %s", lines[i]);

    /* A drain takes 30 s at most by default; systemd must not kill what is still draining. */
    const char *stop = strstr(text, "\nTimeoutStopSec=");
    ck_assert_ptr_nonnull(stop);
    ck_assert_int_gt(atoi(stop + strlen("\nTimeoutStopSec=")), 30);

    /* Below all that a worker may set for itself without being root. */
    const char *score = strstr(text, "\nOOMScoreAdjust=");
    ck_assert_ptr_nonnull(score);
    ck_assert_int_lt(atoi(score + strlen("\nOOMScoreAdjust=")), 0);
    /* The kernel would show all users of the socket as one. */
    ck_assert_ptr_null(strstr(text, "\nPrivateUsers="));
    free(text);
}
END_TEST

/* The drop-in for RDMA devices fits the unit. */
START_TEST(drop_in_accepted)
{
    if (systemd_missing("drop_in_accepted"))
        return;
    char *prefix = suite_make_directory();
    char *text = file_read(TEST_SOURCE_DIR "/config/shoald-rdma.conf");
    unit_install(prefix, text);
    ck_assert(unit_accepted(prefix));
    free(text);
    suite_remove_directory(prefix);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unit file");
    TCase *unit = tcase_create("unit");
    tcase_add_test(unit, accepted_by_systemd);
    tcase_add_test(unit, mistakes_are_seen);
    tcase_add_test(unit, exposure_is_low);
    tcase_add_test(unit, daemon_contract);
    tcase_add_test(unit, drop_in_accepted);
    suite_add_tcase(suite, unit);
    return suite_main(suite);
}
