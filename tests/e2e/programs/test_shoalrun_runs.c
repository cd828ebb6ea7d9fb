/* Several runs of shoalrun that have one daemon. */
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

#define RUN(...)                                                                                   \
    process_run((const char *[]){CLUSTER_BIN "shoalrun", "--socket", path, __VA_ARGS__, NULL})

static bool gathers(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    const char *state = json_string_value(json_object_get(job, "state"));
    return state && strcmp(state, "gathering") == 0;
}

/* The second run of one name on one daemon is refused. */
START_TEST(test_two_runs_of_one_name)
{
    struct cluster *cluster = cluster_start(1, NULL);
    const char *path = cluster->nodes[0].socket_path;
    struct stop_file stop;
    stop_file_create(&stop);
    struct process *first =
        RUN("--job", "train", "-n", "2", "--", "sh", "-c",
            "[ $RANK = 0 ] || until [ -e \"$1\" ]; do sleep 0.05; done; exec \"$0\" once",
            CLUSTER_HELPER, stop.path);
    ck_assert(cluster_wait_status(cluster, 0, gathers, CLUSTER_PATIENCE_MS));
    struct process *second = RUN("--job", "train", "-n", "2", "--", CLUSTER_BIN "shoal-first");
    ck_assert_int_ne(process_wait(second, CLUSTER_PATIENCE_MS), 0);
    ck_assert_msg(strstr(process_errors(second), "job 'train' gathers the ranks of another run"),
                  "%s", process_errors(second));
    process_free(second);
    stop_file_raise(&stop);
    ck_assert_int_eq(process_wait(first, CLUSTER_PATIENCE_MS), 0);
    process_free(first);
    stop_file_free(&stop);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalrun_runs");
    TCase *tests = tcase_create("shoalrun_runs");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, test_two_runs_of_one_name);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
