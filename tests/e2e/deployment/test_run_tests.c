/* The script that runs the tests: it lets a program that failed run once more, but for a crash.
 * Here Check, tests/lib/process.c and tests/python/suite.py say how something ended, and the script
 * reads it. Its own self-test has the rest. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

#define SCRIPT TEST_SOURCE_DIR "/scripts/run-tests.sh"
#define LIMIT_MS 100000

/* Run a command as the Python tests do. */
#define PYTHON                                                                                     \
    "import sys; sys.path.insert(0, '" TEST_SOURCE_DIR "/tests/python'); import suite; "           \
    "suite.run(sys.argv[1:])"

static const struct {
    int signal, code; /* how it ends: by a signal, or with a code */
    bool crash;
} ends[] = {
    {.signal = SIGSEGV, .crash = true},
    {.signal = SIGABRT, .crash = true},
    {.signal = SIGBUS, .crash = true},
    {.signal = SIGFPE, .crash = true},
    {.signal = SIGILL, .crash = true},
    {.signal = SIGSYS, .crash = true},
    {.code = 128 + SIGABRT, .crash = true}, /* as a shell whose command crashed */
    {.code = 66, .crash = true},
    {.code = 97, .crash = true},
    {.code = 98, .crash = true},
    {.code = 99, .crash = true},
    {.signal = SIGKILL},
    {.signal = SIGTERM},
    {.code = 1},
    {.code = 96},
};
#define ENDS (int)(sizeof(ends) / sizeof(ends[0]))

/* Return what a program prints that has failed and says so: a test, or a test's child. */
static char *said_of(const char *const *argv)
{
    struct process *process = process_run(argv);
    char *said = NULL;
    ck_assert_int_ge(process_wait(process, LIMIT_MS), 0);
    ck_assert_int_ge(asprintf(&said, "%s%s", process_output(process), process_errors(process)), 0);
    process_free(process);
    return said;
}

/* Let the script run a program that says this and fails, and passes when it runs again. */
static bool runs_again(const char *said)
{
    char *directory = suite_make_directory(), *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/program", directory), 0);
    FILE *program = fopen(path, "wxe");
    ck_assert_ptr_nonnull(program);
    fprintf(program,
            "#!/bin/sh\nif test -e $0.ran; then\n"
            "    echo '100%%: Checks: 1, Failures: 0, Errors: 0'; exit 0\nfi\n"
            "touch $0.ran\ncat <<'END'\n%s\nEND\nexit 1\n",
            said);
    fclose(program);
    ck_assert_int_eq(chmod(path, 0755), 0);
    const char *argv[] = {"env", "-u", "TEST_RERUN", SCRIPT, directory, path, NULL};
    struct process *process = process_run(argv);
    int code = process_wait(process, LIMIT_MS);
    bool listed = strstr(process_output(process), "\nunsteady:\n  program: ") != NULL;
    ck_assert_msg(code == !listed, "%d: %s%s", code, process_output(process),
                  process_errors(process));
    process_free(process);
    free(path);
    suite_remove_directory(directory);
    return code == 0;
}

static void check_said(const char *const *argv, int end)
{
    char *said = said_of(argv);
    ck_assert_msg(runs_again(said) == !ends[end].crash, "signal %d, code %d: %s", ends[end].signal,
                  ends[end].code, said);
    free(said);
}

/* No test ends as a shell does. */
START_TEST(test_a_test)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", _i);
    if (ends[_i].code < 128)
        check_said((const char *[]){"/proc/self/exe", "test", number, NULL}, _i);
}
END_TEST

START_TEST(test_a_child_of_a_test)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", _i);
    check_said((const char *[]){"/proc/self/exe", "child", number, NULL}, _i);
}
END_TEST

static const char *shell_line(int end)
{
    static char line[64];
    if (ends[end].signal)
        snprintf(line, sizeof(line), "kill -%d $$", ends[end].signal);
    else
        snprintf(line, sizeof(line), "exit %d", ends[end].code);
    return line;
}

/* No sanitizer is in what those of Python start. */
START_TEST(test_a_child_of_python)
{
    const char *line = shell_line(_i);
    if (ends[_i].code < 60 || ends[_i].code > 100)
        check_said((const char *[]){"python3", "-B", "-c", PYTHON, "sh", "-c", line, NULL}, _i);
}
END_TEST

static int end_asked;

START_TEST(ends_itself)
{
    if (ends[end_asked].signal)
        raise(ends[end_asked].signal);
    _exit(ends[end_asked].code);
}
END_TEST

START_TEST(starts_a_child)
{
    const char *argv[] = {"sh", "-c", shell_line(end_asked), NULL};
    process_wait(process_run(argv), LIMIT_MS);
    ck_abort_msg("failed");
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("run_tests");
    TCase *tests = tcase_create("run_tests");
    tcase_set_timeout(tests, 120);
    if (argc == 3) { /* as one of those that fail */
        end_asked = atoi(argv[2]) % ENDS;
        if (strcmp(argv[1], "child") == 0)
            tcase_add_test(tests, starts_a_child);
        else
            tcase_add_test(tests, ends_itself);
    } else {
        tcase_add_loop_test(tests, test_a_test, 0, ENDS);
        tcase_add_loop_test(tests, test_a_child_of_a_test, 0, ENDS);
        tcase_add_loop_test(tests, test_a_child_of_python, 0, ENDS);
    }
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
