/* Attacks by group openings: one user's ranks ask much of the home of their job, over the
 * connection between two daemons, which all jobs share. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/auth/auth.h"
#include "tests/lib/looping_job.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/hostile_rank.h"

#define NODES 2
#define RANKS 300
/* Groups that each rank asks for; to refuse them took 23 MB in one turn, and 16 MB may wait. */
#define GROUPS 60

static struct cluster *cluster;
static struct looping_job job;

static void setup(void)
{
    cluster = cluster_start(NODES, "{}");
    ck_assert_int_eq(chmod(cluster->directory, 0755), 0);
    ck_assert_int_eq(chmod(cluster->nodes[0].socket_path, 0666), 0);
    looping_job_start(&job, cluster, 1);
}

static void teardown(void)
{
    looping_job_end(&job);
    for (uint32_t node = 0; node < NODES; node++)
        ck_assert_ptr_null(strstr(cluster_log(cluster, node), "is over"));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

static void hostile_say(struct hostile_rank *rank, const char *line)
{
    ck_assert_int_eq(send(rank->fd, line, strlen(line), MSG_NOSIGNAL), (ssize_t)strlen(line));
}

/* All but one ask for groups of all ranks, as many as they like and for as long as it takes. Then
 * the last one leaves, so that no group will ever be. */
START_TEST(test_many_refused_at_once)
{
    char name[32], line[4096];
    uint32_t number = 0;
    do
        snprintf(name, sizeof(name), "asks-%" PRIu32, number++);
    while (auth_home_of_job(name, NODES) != 1);
    struct hostile_rank *ranks = hostile_job_start(cluster, name, RANKS);
    for (int nth = 0; nth < GROUPS; nth++) {
        size_t used =
            (size_t)snprintf(line, sizeof(line),
                             "{\"type\":\"group_open\",\"request\":%d,\"nth\":%d,", nth + 1, nth);
        used += (size_t)snprintf(line + used, sizeof(line) - used, "\"timeout_ms\":0,\"ranks\":[");
        for (int i = 0; i < RANKS; i++)
            used += (size_t)snprintf(line + used, sizeof(line) - used, "%d,", i);
        snprintf(line + used - 1, sizeof(line) - used + 1, "]}\n");
        for (int i = 0; i < RANKS - 1; i++)
            hostile_say(&ranks[i], line);
    }
    for (int i = 0; i < RANKS - 1; i++) {
        hostile_say(&ranks[i], "{\"type\":\"ping\"}\n");
        hostile_hears(&ranks[i], "\"pong\"", "\"failed\"");
    }
    hostile_leave(&ranks[RANKS - 1]);
    const char *answer = hostile_hears(&ranks[0], "has left job", "\"failed\"");
    ck_assert_msg(strstr(answer, "has left job") != NULL, "%s", answer);
    hostile_job_end(ranks, RANKS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_groups");
    TCase *tests = tcase_create("attack_groups");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, test_many_refused_at_once);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
