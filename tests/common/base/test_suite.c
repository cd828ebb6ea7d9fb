/* The functions that tests share: folders of tests that fail are removed all the same. */
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

START_TEST(fails_with_a_folder)
{
    char *directory = suite_make_directory(), path[512];
    snprintf(path, sizeof(path), "%s/inner", directory);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_abort_msg("on purpose");
}
END_TEST

START_TEST(crashes_with_a_folder)
{
    suite_make_directory();
    raise(SIGKILL);
}
END_TEST

/* Run this program once more, with those above as its tests, and its folders in one of ours. */
START_TEST(test_folders_of_failed_tests)
{
    char *directory = suite_make_directory(), pattern[512], self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    ck_assert_int_gt(length, 0);
    self[length] = '\0';
    setenv("TMPDIR", directory, 1);
    const char *argv[] = {self, "fail", NULL};
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, 100000), EXIT_FAILURE);
    ck_assert_msg(strstr(process_output(process), "Checks: 2, Failures: 1, Errors: 1") != NULL,
                  "%s", process_output(process));
    process_free(process);
    glob_t left;
    snprintf(pattern, sizeof(pattern), "%s/*", directory);
    ck_assert_int_eq(glob(pattern, 0, NULL, &left), GLOB_NOMATCH);
    globfree(&left);
    suite_remove_directory(directory);
}
END_TEST

START_TEST(test_a_folder)
{
    char *directory = suite_make_directory(), *other = suite_make_directory(), path[512];
    ck_assert_str_ne(directory, other);
    snprintf(path, sizeof(path), "%s/file", directory);
    FILE *file = fopen(path, "wxe");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    char *name = strdup(directory);
    suite_remove_directory(directory);
    ck_assert_int_ne(access(name, F_OK), 0);
    ck_assert_int_eq(access(other, F_OK), 0);
    suite_remove_directory(other);
    free(name);
}
END_TEST

int main(int count, char **words)
{
    (void)words;
    Suite *suite = suite_create("suite");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    if (count > 1) {
        tcase_add_test(core, fails_with_a_folder);
        tcase_add_test(core, crashes_with_a_folder);
    } else {
        tcase_add_test(core, test_folders_of_failed_tests);
        tcase_add_test(core, test_a_folder);
    }
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
