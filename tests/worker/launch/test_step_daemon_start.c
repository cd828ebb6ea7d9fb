/* What the first task of a node makes of a shoalrun that fails, and what the others hear: a
 * stand-in in PATH says what it was given. */
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"
#include "worker/launch/step_daemon.h"

static const char shoalrun[] = "#!/bin/sh\n"
                               "echo \"shoalrun: it had $SHOAL_TIMEOUT_MS ms\" >&2\n"
                               "exit 1\n";

static char *directory;
static char folder[128];

static void set(const char *name, const char *value)
{
    ck_assert_int_eq(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void setup(void)
{
    char file[PATH_MAX], job[32];
    directory = suite_make_directory();
    snprintf(file, sizeof(file), "%s/shoalrun", directory);
    FILE *out = fopen(file, "w");
    ck_assert_ptr_nonnull(out);
    fputs(shoalrun, out);
    fclose(out);
    ck_assert_int_eq(chmod(file, 0755), 0);
    snprintf(job, sizeof(job), "%d", (int)getpid());
    snprintf(file, sizeof(file), "%s:%s", directory, getenv("PATH"));
    set("PATH", file);
    set("SLURM_JOB_ID", job);
    set("SLURM_STEP_ID", "3");
    set("SLURM_STEP_NUM_NODES", "1");
    set("SLURM_STEP_NUM_TASKS", "2");
    set("SLURM_PROCID", "0");
    set("SLURM_NODEID", "0");
    set("SLURM_LOCALID", "0");
    set("SHOAL_TIMEOUT_MS", "77");
    snprintf(folder, sizeof(folder), "/tmp/shoal-step-%u-%s.3.0-0", (unsigned)geteuid(), job);
}

static void teardown(void)
{
    char file[PATH_MAX];
    snprintf(file, sizeof(file), "%s/failed", folder);
    unlink(file);
    rmdir(folder);
    suite_remove_directory(directory);
}

static int find(int limit_ms, struct error *error)
{
    struct step_daemon daemon;
    return step_daemon_find("/tmp/shoal-no-such-socket",
                            clock_now_ns() + (uint64_t)limit_ms * NS_PER_MS, &daemon, error);
}

/* The job's time, not what the environment has; and the others need not wait for theirs. */
START_TEST(test_failure)
{
    struct error error;
    int had = 0;
    if (_i)
        signal(SIGCHLD, SIG_IGN); /* then there is no exit status */
    ck_assert_int_eq(find(50000, &error), ERR_DISCONNECTED);
    const char *at = strstr(error.text, "it had ");
    ck_assert_msg(at && sscanf(at, "it had %d", &had) == 1, "%s", error.text);
    ck_assert_int_gt(had, 77);
    ck_assert_int_le(had, 50000);
    set("SLURM_LOCALID", "1");
    set("SLURM_PROCID", "1");
    ck_assert_int_eq(find(50000, &error), ERR_DISCONNECTED);
    ck_assert_msg(strstr(error.text, "the first task of this node has failed") &&
                      strstr(error.text, "it had "),
                  "%s", error.text);
}
END_TEST

/* --- somebody else has made something of the folder's name -------------------------------------
 */

#define STRANGER 61001

static void make_directory(void)
{
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    ck_assert_int_eq(chown(folder, STRANGER, STRANGER), 0);
}

static void make_open_directory(void)
{
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(chmod(folder, 0777), 0);
}

static void make_file(void)
{
    FILE *file = fopen(folder, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
}

static void make_link(void)
{
    ck_assert_int_eq(symlink(directory, folder), 0);
}

static void make_others(void)
{
    static const char *const suffixes[] = {"-aaaaaa", "-zzzzzz"};
    char path[160];
    make_directory();
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s%s", folder, suffixes[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
        ck_assert_int_eq(chown(path, STRANGER, STRANGER), 0);
    }
}

static const struct {
    void (*make)(void);
    bool as_root;
} taken[] = {{make_directory, true},
             {make_open_directory, false},
             {make_file, false},
             {make_link, false},
             {make_others, true}};

/* Everything of the name, or with another behind it. */
static void remove_taken(void)
{
    char pattern[160];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s*", folder);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char file[160];
        snprintf(file, sizeof(file), "%s/failed", found.gl_pathv[i]);
        unlink(file);
        ck_assert_int_eq(remove(found.gl_pathv[i]), 0);
    }
    globfree(&found);
}

/* It holds up nobody: the step has a folder of another name, which all tasks find. */
START_TEST(test_name_is_taken)
{
    struct error error;
    if (taken[_i].as_root && geteuid() != 0) {
        suite_skip("test_name_is_taken", "only root can make what is another user's");
        return;
    }
    taken[_i].make();
    ck_assert_int_eq(find(50000, &error), ERR_DISCONNECTED);
    ck_assert_msg(strstr(error.text, "it had ") != NULL, "%s", error.text);
    set("SLURM_LOCALID", "1");
    set("SLURM_PROCID", "1");
    ck_assert_int_eq(find(50000, &error), ERR_DISCONNECTED);
    ck_assert_msg(strstr(error.text, "the first task of this node has failed") != NULL, "%s",
                  error.text);
    /* Also when that name has become free. */
    remove(folder);
    ck_assert_int_eq(find(50000, &error), ERR_DISCONNECTED);
    ck_assert_msg(strstr(error.text, "the first task of this node has failed") != NULL, "%s",
                  error.text);
    remove_taken();
}
END_TEST

/* srun --mpi=pmi2 says everything twice; another launcher inside of a step says something else. */
START_TEST(test_pmi)
{
    struct error error;
    set("PMI_RANK", "0");
    set("PMI_SIZE", "2");
    ck_assert_int_eq(find(50000, &error), ERR_DISCONNECTED);
    set("PMI_SIZE", "4");
    ck_assert_int_eq(find(50000, &error), 0);
    set("PMI_SIZE", "2");
    set("PMI_RANK", "1");
    ck_assert_int_eq(find(50000, &error), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("step_daemon_start");
    TCase *tests = tcase_create("start");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_failure, 0, 2);
    tcase_add_test(tests, test_pmi);
    tcase_add_loop_test(tests, test_name_is_taken, 0, sizeof(taken) / sizeof(taken[0]));
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
