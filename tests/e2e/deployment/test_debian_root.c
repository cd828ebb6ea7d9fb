/* The script that makes Debian roots, with a stand-in for debootstrap: whose folder it removes, and
 * what a copy of a root has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

#define SCRIPT TEST_SOURCE_DIR "/scripts/debian-root.sh"
/* A stand-in for debootstrap that makes no root in which anything could run. */
#define STAND_IN "#!/bin/sh\nmkdir -p \"$3/etc\"\n"
/* The words that the script writes of a root for the first of the suites when it is complete. */
#define READY "make ca-certificates\n"

static const char *const suites[] = {"bookworm", "trixie", "trixie-bare"};
#define SUITES (int)(sizeof(suites) / sizeof(suites[0]))

static char *in(const char *folder, const char *name)
{
    char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/%s", folder, name), 0);
    return path;
}

static bool has(const char *folder, const char *name)
{
    char *path = in(folder, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
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

static char *folder_make(const char *folder, const char *name)
{
    char *path = in(folder, name);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    return path;
}

/* Its exit code, after it has said what is expected. */
static int run(const char *const *argv, const char *expected)
{
    struct process *process = process_run(argv);
    int code = process_wait(process, 100000);
    ck_assert_msg(strstr(process_errors(process), expected) != NULL, "%s", process_errors(process));
    process_free(process);
    return code;
}

/* Let the script make a root in a folder that has a file "theirs", and a mark if it is the
 * script's. Whether the file is still there; *code is how the script ended. */
static bool kept(const char *suite, const char *mark, const char *expected, int *code)
{
    char *directory = suite_make_directory(), *root = folder_make(directory, "root"), *path = NULL;
    file_make(root, "theirs", "");
    file_make(directory, "debootstrap", STAND_IN);
    if (mark)
        file_make(root, mark, "");
    ck_assert_int_gt(asprintf(&path, "%s:%s", directory, getenv("PATH")), 0);
    setenv("PATH", path, 1);
    const char *argv[] = {SCRIPT, suite, root, NULL};
    *code = run(argv, expected);
    bool there = has(root, "theirs");
    free(path);
    free(root);
    suite_remove_directory(directory);
    return there;
}

START_TEST(test_a_folder_of_others)
{
    int code = 0;
    ck_assert(kept(suites[_i], NULL, "root is there and was not made by this script", &code));
    ck_assert_int_eq(code, 1);
}
END_TEST

/* A chroot is no place for mounts, and many containers have not the right. */
static bool mounts_allowed(void)
{
    struct process *process = process_run_words("unshare --mount true");
    int code = process_wait(process, 100000);
    process_free(process);
    return code == 0;
}

/* The root is made anew where that can be; that nothing runs in it is this machine's fault. */
START_TEST(test_a_root_that_was_not_completed)
{
    const char *expected = geteuid() == 0 ? "mounts are not allowed here" : "must be root";
    int code = 0;
    ck_assert_int_ne(kept(suites[_i], ".shoal-root", expected, &code),
                     geteuid() == 0 && mounts_allowed());
    ck_assert_int_eq(code, 77);
}
END_TEST

START_TEST(test_other_words)
{
    char *directory = suite_make_directory(), *root = in(directory, "root");
    const char *no_suite[] = {SCRIPT, "sid", root, NULL};
    ck_assert_int_eq(run(no_suite, "sid is not one of bookworm, trixie,"), 1);
    const char *no_root[] = {SCRIPT, "bookworm", NULL};
    ck_assert_int_eq(run(no_root, "usage:"), 1);
    ck_assert(!has(directory, "root"));
    free(root);
    suite_remove_directory(directory);
}
END_TEST

/* A copy has the tree without what was built, and nothing of the copy before it. */
START_TEST(test_a_copy)
{
    char *directory = suite_make_directory(), *root = folder_make(directory, "root");
    char *copy = in(directory, "copy"), *others = folder_make(directory, "others");
    file_make(root, ".shoal-root", "");
    file_make(root, ".shoal-ready", READY);
    file_make(root, "base", "");
    file_make(others, "theirs", "");
    const char *fresh[] = {SCRIPT, "bookworm", root, "--copy", copy, NULL};
    const char *over[] = {SCRIPT, "bookworm", root, "--copy", others, NULL};
    bool allowed = geteuid() == 0;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run(fresh, allowed ? "" : "must be root"), allowed ? 0 : 77);
        ck_assert_int_eq(has(copy, "base"), allowed);
        ck_assert_int_eq(has(copy, "shoal/scripts/debian-root.sh"), allowed);
        ck_assert(!has(copy, "shoal/build"));
        ck_assert(!has(copy, "left"));
        if (allowed)
            file_make(copy, "left", "");
    }
    ck_assert_int_eq(run(over, allowed ? "others is there" : "must be root"), allowed ? 1 : 77);
    ck_assert(has(others, "theirs"));
    free(others);
    free(copy);
    free(root);
    suite_remove_directory(directory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("debian_root");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_loop_test(core, test_a_folder_of_others, 0, SUITES);
    tcase_add_loop_test(core, test_a_root_that_was_not_completed, 0, SUITES);
    tcase_add_test(core, test_other_words);
    tcase_add_test(core, test_a_copy);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
