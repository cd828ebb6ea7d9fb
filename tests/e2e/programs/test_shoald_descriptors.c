/* How many descriptors the daemon may have, and what it does with few. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define STARTED "shoald 0.1.0 on node"
#define FEW 1100u

/* Limit the descriptors of this process, and of what it starts. */
static void limit_descriptors(rlim_t soft, rlim_t hard)
{
    const struct rlimit limit = {soft, hard};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void starts(const char *keys, const char *said)
{
    struct cluster *cluster = cluster_start(1, keys);
    ck_assert_msg(cluster_wait_log(cluster, 0, STARTED, CLUSTER_PATIENCE_MS), "%s",
                  cluster_log(cluster, 0));
    ck_assert_msg(strstr(cluster_log(cluster, 0), said), "no \"%s\" in: %s", said,
                  cluster_log(cluster, 0));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

static void is_refused(const char *keys, const char *said)
{
    struct cluster *cluster = cluster_start(1, keys);
    ck_assert_int_eq(process_wait(cluster->nodes[0].daemon, CLUSTER_PATIENCE_MS), 3);
    ck_assert_msg(strstr(cluster_log(cluster, 0), said), "no \"%s\" in: %s", said,
                  cluster_log(cluster, 0));
    cluster_free(cluster);
}

/* A soft limit is taken for what it is: the daemon may have as many as the hard one says. */
START_TEST(test_soft_limit)
{
    struct rlimit own, of_daemon;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &own), 0);
    limit_descriptors(100, own.rlim_max);
    struct cluster *cluster = cluster_start(1, NULL);
    struct cluster_node *node = &cluster->nodes[0];
    ck_assert(cluster_wait_log(cluster, 0, STARTED, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(prlimit(node->daemon->pid, RLIMIT_NOFILE, NULL, &of_daemon), 0);
    ck_assert_uint_eq(of_daemon.rlim_cur, own.rlim_max);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

START_TEST(test_limits_that_were_asked_for)
{
    limit_descriptors(FEW, FEW);
    is_refused("{\"limits\":{\"workers\":1024,\"connections\":4095}}",
               "this process may have 1100: lower them");
    starts("{\"limits\":{\"workers\":50,\"connections\":60}}", STARTED);
}
END_TEST

/* The defaults become what fits. */
START_TEST(test_defaults)
{
    limit_descriptors(FEW, FEW);
    starts(NULL, "limits.workers is 32 here, and limits.connections 128: this process may have "
                 "1100 descriptors");
    limit_descriptors(400, 400);
    is_refused(NULL, "limits.connections 64 with limits.workers 16 takes ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoald_descriptors");
    TCase *cases = tcase_create("shoald_descriptors");
    tcase_set_timeout(cases, 180);
    tcase_add_test(cases, test_soft_limit);
    tcase_add_test(cases, test_limits_that_were_asked_for);
    tcase_add_test(cases, test_defaults);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
