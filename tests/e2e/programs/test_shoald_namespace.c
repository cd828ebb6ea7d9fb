/* The daemon in a user namespace that has a number for one user only: all others look the same
 * there, so it refuses them, says so when it starts, and serves the one. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

/* Two users without a number there: neither is served as the other. */
static const char *const strangers[] = {"61001", "65534"};

static bool has_namespaces(void)
{
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void expect_code(struct process *process, int code)
{
    ck_assert_msg(process_wait(process, CLUSTER_PATIENCE_MS) == code, "%s",
                  process_errors(process));
}

START_TEST(test_who_has_no_number)
{
    char socket_path[108], config_path[256];
    char *directory = suite_make_directory();
    if (geteuid() != 0 || !has_namespaces()) {
        suite_skip("test_who_has_no_number", "it takes root and user namespaces");
        suite_remove_directory(directory);
        return;
    }
    snprintf(socket_path, sizeof(socket_path), "%.80s/shoald.sock", directory);
    snprintf(config_path, sizeof(config_path), "%s/shoald.json", directory);
    ck_assert_int_eq(chmod(directory, 0755), 0);
    FILE *file = fopen(config_path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"socket\": {\"path\": \"%s\", \"mode\": \"0666\"}, "
            "\"fabric\": {\"provider\": \"tcp\"}}",
            socket_path);
    ck_assert_int_eq(fclose(file), 0);
    struct process *daemon =
        process_run((const char *const[]){"unshare", "--user", "--map-root-user",
                                          CLUSTER_BIN "shoald", "--config", config_path, NULL});
    ck_assert_msg(process_wait_text(daemon, "shoald 0.1.0 on node", CLUSTER_PATIENCE_MS), "%s",
                  process_errors(daemon));
    ck_assert_ptr_nonnull(strstr(process_errors(daemon), "whoever is user 65534 here may be "
                                                         "anybody, and is refused"));
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++) {
        struct process *stranger = process_run(
            (const char *const[]){"setpriv", "--reuid", strangers[i], "--clear-groups",
                                  CLUSTER_BIN "shoalctl", "--socket", socket_path, "status", NULL});
        expect_code(stranger, 1);
        ck_assert_msg(strstr(process_errors(stranger), "cannot tell who this is"), "%s",
                      process_errors(stranger));
        ck_assert_str_eq(process_output(stranger), "");
        process_free(stranger);
    }
    struct process *known = process_run(
        (const char *const[]){CLUSTER_BIN "shoalctl", "--socket", socket_path, "status", NULL});
    expect_code(known, 0);
    process_free(known);
    process_signal(daemon, SIGTERM);
    expect_code(daemon, 0);
    process_free(daemon);
    suite_remove_directory(directory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoald_namespace");
    TCase *cases = tcase_create("shoald_namespace");
    tcase_set_timeout(cases, 180);
    tcase_add_test(cases, test_who_has_no_number);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
