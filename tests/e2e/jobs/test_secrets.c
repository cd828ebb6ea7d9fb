/* Secrets that are changed while a job runs. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define OLD "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
#define NEW "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210\n"

static char *directory;
static char secret_path[300], stop_path[300], extra[700];

static void setup(void)
{
    directory = suite_make_directory();
    snprintf(secret_path, sizeof(secret_path), "%.250s/secret", directory);
    snprintf(stop_path, sizeof(stop_path), "%.250s/stop", directory);
    snprintf(extra, sizeof(extra), "{\"secret_file\":\"%s\"}", secret_path);
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static void write_secret(const char *text)
{
    FILE *file = fopen(secret_path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(chmod(secret_path, 0600), 0);
    fputs(text, file);
    fclose(file);
}

static uint32_t count(const char *text, const char *piece)
{
    uint32_t found = 0;
    for (const char *at = text; (at = strstr(at, piece)); at++)
        found++;
    return found;
}

/* The file has changed: both are told, and both say so once more than before. */
static void tell(struct cluster *cluster, const char *text, const char *said, uint32_t times)
{
    write_secret(text);
    for (uint32_t node = 0; node < 2; node++) {
        process_signal(cluster->nodes[node].daemon, SIGHUP);
        int64_t until = process_now_ms() + CLUSTER_PATIENCE_MS;
        while (count(cluster_log(cluster, node), said) < times) {
            ck_assert_msg(process_now_ms() < until, "%u", node);
            poll(NULL, 0, 20); /* between two looks */
        }
    }
}

START_TEST(test_change)
{
    static const char again[] = "SIGHUP: secrets are read anew";
    const char *argv[] = {CLUSTER_HELPER, "loop", stop_path, NULL};
    struct process *workers[4];
    write_secret(OLD);
    struct cluster *cluster = cluster_start(2, extra);
    cluster_job(cluster, "goes on", 2, argv, workers);
    for (int i = 0; i < 4; i++)
        ck_assert(process_wait_text(workers[i], "running", CLUSTER_PATIENCE_MS));
    tell(cluster, OLD NEW, again, 1);
    tell(cluster, NEW OLD, again, 2);
    tell(cluster, "too short\n", "SIGHUP: the old secrets and certificates stay: secret file", 1);
    tell(cluster, NEW, again, 3);
    fclose(fopen(stop_path, "w"));
    ck_assert_int_eq(cluster_job_end(workers, 4), 0);
    for (uint32_t node = 0; node < 2; node++) {
        const char *log = cluster_log(cluster, node);
        ck_assert_uint_eq(count(log, "is connected, encrypted by secret "), 1);
        ck_assert_ptr_null(strstr(log, "0123456789abcdef0123"));
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("secrets");
    TCase *tests = tcase_create("secrets");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_change);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
