/* The script that makes a Debian 13 root, with a stand-in for debootstrap: whose folder it removes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

/* What makes no root that anything could run in. */
#define STAND_IN "#!/bin/sh\nmkdir -p \"$3/etc\"\n"

static char *in(const char *folder, const char *name)
{
    char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/%s", folder, name), 0);
    return path;
}

static void file_make(const char *folder, const char *name, const char *text)
{
    char *path = in(folder, name);
    FILE *file = fopen(path, "wxe");
    ck_assert_msg(file != NULL, "%s cannot be made", path);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0755), 0);
    free(path);
}

/* Let the script make a root in a folder that has a file "theirs", and a mark if it is the
 * script's. Whether the file is still there; *code is how the script ended. */
static bool kept(const char *mark, const char *expected, int *code)
{
    char *directory = suite_make_directory(), *root = in(directory, "root");
    char *file = in(root, "theirs"), *path = NULL;
    ck_assert_int_eq(mkdir(root, 0755), 0);
    file_make(root, "theirs", "");
    file_make(directory, "debootstrap", STAND_IN);
    if (mark)
        file_make(root, mark, "");
    ck_assert_int_gt(asprintf(&path, "%s:%s", directory, getenv("PATH")), 0);
    setenv("PATH", path, 1);
    const char *argv[] = {TEST_SOURCE_DIR "/scripts/debian13-root.sh", root, NULL};
    struct process *process = process_run(argv);
    *code = process_wait(process, 100000);
    ck_assert_msg(strstr(process_errors(process), expected) != NULL, "%s", process_errors(process));
    process_free(process);
    bool there = access(file, F_OK) == 0;
    free(path);
    free(file);
    free(root);
    suite_remove_directory(directory);
    return there;
}

START_TEST(test_a_folder_of_others)
{
    int code = 0;
    ck_assert(kept(NULL, "root is there and was not made by this script", &code));
    ck_assert_int_eq(code, 1);
}
END_TEST

/* It is made anew; that nothing runs in it is this machine's fault. */
START_TEST(test_a_root_that_was_not_completed)
{
    int code = 0;
    if (geteuid() != 0) {
        ck_assert(kept(".shoal-root", "must be root", &code));
    } else {
        ck_assert(!kept(".shoal-root", "mounts are not allowed here", &code));
    }
    ck_assert_int_eq(code, 77);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("debian13_root");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_test(core, test_a_folder_of_others);
    tcase_add_test(core, test_a_root_that_was_not_completed);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
