/* The daemon's threads are all in the sandbox while it serves a job. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

/* A line of /proc/PID/task/TID/status has this value. */
static bool thread_says(const char *path, const char *key, const char *value)
{
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "r");
    ck_assert_msg(file, "%s", path);
    while (!found && fgets(line, sizeof(line), file)) {
        if (strncmp(line, key, strlen(key)) == 0)
            found = strncmp(line + strlen(key), value, strlen(value)) == 0;
    }
    fclose(file);
    return found;
}

START_TEST(test_every_thread)
{
    struct cluster *cluster = cluster_start(1, NULL);
    if (!cluster_wait_log(cluster, 0, "shoald 0.1.0 on node", CLUSTER_PATIENCE_MS))
        ck_abort_msg("%s", cluster_log(cluster, 0));
    if (strstr(cluster_log(cluster, 0), "keeps all system calls")) {
        suite_skip("test_every_thread", "this kernel does not filter system calls");
    } else {
        char folder[64], path[600];
        snprintf(folder, sizeof(folder), "/proc/%d/task", (int)cluster->nodes[0].daemon->pid);
        DIR *tasks = opendir(folder);
        ck_assert_ptr_nonnull(tasks);
        int threads = 0;
        for (struct dirent *it; (it = readdir(tasks)) != NULL;) {
            if (it->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s/status", folder, it->d_name);
            ck_assert_msg(thread_says(path, "Seccomp:", "\t2"), "thread %s", it->d_name);
            ck_assert_msg(thread_says(path, "NoNewPrivs:", "\t1"), "thread %s", it->d_name);
            threads++;
        }
        closedir(tasks);
        ck_assert_int_ge(threads, 2);
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoald_sandbox");
    TCase *cases = tcase_create("shoald_sandbox");
    tcase_set_timeout(cases, 180);
    tcase_add_test(cases, test_every_thread);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
