/* Where a job with recovery cannot go on by itself: it fails by name, in time, and its program may
 * go on. And what lies beside collectives when it can: transfers that are over, groups that some
 * have closed. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/resume_run.h"

#define COUNT 20011u
#define SOON_MS 20000
#define KILLS 30

static void check_sum(shoal_job *job, uint64_t seed)
{
    int size = shoal_world_size(job);
    int64_t *data = malloc(COUNT * sizeof(*data));
    for (size_t i = 0; i < COUNT; i++)
        data[i] = (int64_t)(i * seed) + shoal_rank(job);
    GOOD(shoal_all_reduce(shoal_world(job), data, data, COUNT, SHOAL_I64, SHOAL_SUM, NULL));
    for (size_t i = 0; i < COUNT; i++)
        if (data[i] != (int64_t)(i * seed) * size + size * (size - 1) / 2)
            ck_abort_msg("element %zu: %ld", i, (long)data[i]);
    free(data);
}

/* Sums until one fails. */
static int sum_until_lost(struct resume_run *run, shoal_job *job, int rank)
{
    int code = SHOAL_OK;
    while (code == SHOAL_OK) {
        int32_t one = 1;
        code = shoal_all_reduce(shoal_world(job), &one, &one, 1, SHOAL_I32, SHOAL_SUM, NULL);
        if (code == SHOAL_OK)
            ck_assert_int_eq(one, run->size);
        if (code == SHOAL_OK && rank == 0)
            atomic_fetch_add(&run->steps, 1);
    }
    return code;
}

static void reconfigure(shoal_job *job, const struct resume_run *run)
{
    struct shoal_reconfigure_options options = {.struct_size = sizeof(options)};
    GOOD(shoal_job_reconfigure(job, &options));
    ck_assert_int_eq(shoal_world_size(job), run->size);
    check_sum(job, 3);
}

/* --- transfers */

static void exchange(shoal_job *job, int rank, int32_t value)
{
    int32_t got[3] = {0};
    int source = -1;
    shoal_group *world = shoal_world(job);
    if (rank == 0) {
        for (int i = 0; i < 3; i++) {
            int32_t sent = value + i;
            GOOD(shoal_send(world, &sent, 1, SHOAL_I32, 1, i / 2, NULL));
        }
        return;
    }
    GOOD(shoal_recv(world, &got[0], 1, SHOAL_I32, 0, 0, NULL));
    GOOD(shoal_recv_any(world, &got[1], 1, SHOAL_I32, 0, &source, NULL));
    GOOD(shoal_recv(world, &got[2], 1, SHOAL_I32, 0, 1, NULL));
    ck_assert_int_eq(source, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(got[i], value + i);
}

static void transfers_before_and_after(struct resume_run *run, shoal_job *job, int rank)
{
    int left = run->steps_after;
    for (int i = 0; i < 5; i++)
        exchange(job, rank, 10 * i);
    while (resume_goes_on(run, job, rank, &left))
        check_sum(job, 5);
    ck_assert_int_eq(shoal_generation(job), 2);
    for (int i = 0; i < 5; i++)
        exchange(job, rank, 100 * i);
}

START_TEST(test_transfers_before_and_after)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 1,
                             .body = transfers_before_and_after,
                             .disturb = resume_kill_all,
                             .steps_after = 4};
    resume_run(&run);
}
END_TEST

/* Rank 1 waits for what rank 0 has not sent. */
static void transfer_under_way(struct resume_run *run, shoal_job *job, int rank)
{
    int32_t got = -7;
    shoal_request *receive = NULL;
    if (rank == 1)
        GOOD(shoal_recv(shoal_world(job), &got, 1, SHOAL_I32, 0, 4, &receive));
    ck_assert_int_eq(sum_until_lost(run, job, rank), SHOAL_ELOST);
    ck_assert_msg(strstr(shoal_error_text(), "node2") != NULL, "%s", shoal_error_text());
    if (rank == 1) {
        BAD(shoal_wait(receive, SOON_MS), SHOAL_ELOST, "node2");
        ck_assert_int_eq(got, -7);
    }
    reconfigure(job, run);
    exchange(job, rank, 1000);
}

static int64_t killed_ms;

static void kill_timed(struct resume_run *run)
{
    resume_wait_steps(run, 3);
    killed_ms = process_now_ms();
    resume_kill(run, 0);
}

START_TEST(test_transfer_under_way)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 1,
                             .body = transfer_under_way,
                             .disturb = kill_timed};
    resume_run(&run);
    ck_assert_int_lt(process_now_ms() - killed_ms, 2 * SOON_MS);
}
END_TEST

/* --- servers */

static void last_server(struct resume_run *run, shoal_job *job, int rank)
{
    ck_assert_int_eq(sum_until_lost(run, job, rank), SHOAL_ELOST);
    ck_assert_msg(strstr(shoal_error_text(), "cpu1") != NULL, "%s", shoal_error_text());
    ck_assert_int_eq(shoal_generation(job), 2); /* without cpu0 */
    if (pthread_barrier_wait(&run->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
        atomic_store(&run->steps, -1);
    reconfigure(job, run); /* waits for the server */
}

static void kill_both(struct resume_run *run)
{
    for (uint32_t i = 0; i < 2; i++) {
        resume_wait_steps(run, 5);
        killed_ms = process_now_ms();
        cluster_kill(run->cluster, resume_server(run, i));
    }
    while (atomic_load(&run->steps) >= 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_lt(process_now_ms() - killed_ms, SOON_MS);
    cluster_restart(run->cluster, resume_server(run, 1));
}

START_TEST(test_the_last_server)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 2,
                             .apart = true,
                             .extra = "{\"recovery\": true, \"timeouts\": {\"restart_ms\": 500}}",
                             .body = last_server,
                             .disturb = kill_both};
    resume_run(&run);
}
END_TEST

/* Sum while both servers are gone at once, and one is started again soon: this costs nothing but
 * time. */
static void sums(struct resume_run *run, shoal_job *job, int rank)
{
    int left = run->steps_after;
    for (uint64_t step = 0; resume_goes_on(run, job, rank, &left); step++)
        check_sum(job, step);
    ck_assert_int_ge(shoal_generation(job), 2);
}

static void kill_and_restart(struct resume_run *run)
{
    resume_wait_steps(run, 3);
    for (uint32_t i = 0; i < run->servers; i++)
        cluster_kill(run->cluster, resume_server(run, i));
    cluster_restart(run->cluster, resume_server(run, 1));
}

START_TEST(test_the_last_server_comes_back)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 2,
                             .apart = true,
                             .extra = "{\"recovery\": true, \"timeouts\": {\"restart_ms\": 60000}}",
                             .body = sums,
                             .disturb = kill_and_restart,
                             .steps_after = 3};
    resume_run(&run);
}
END_TEST

/* --- while the next generation forms */

/* Take newcomers in, whom nobody sends, for as long as the daemons are killed. The counts that the
 * ranks are told of each generation add up to what there was since the beginning. */
static void reconfigure_on(struct resume_run *run, shoal_job *job, int rank)
{
    uint64_t collectives = 0, together = 0, number = 0;
    struct shoal_reconfigure_options options = {.struct_size = sizeof(options),
                                                .collectives = &collectives};
    for (int32_t more = 1; more;) {
        int code = SHOAL_ELOST; /* its peer's daemon was killed meanwhile */
        while (code == SHOAL_ELOST)
            code = shoal_job_reconfigure(job, &options);
        ck_assert_msg(code == SHOAL_OK, "%s", shoal_error_text());
        ck_assert_int_eq(shoal_world_size(job), run->size);
        together += collectives;
        GOOD(shoal_position(job, &number));
        ck_assert_uint_eq(number, together);
        int32_t word = rank != 0 || !atomic_load(&run->over);
        code = shoal_broadcast(shoal_world(job), &word, 1, SHOAL_I32, 0, NULL);
        if (code == SHOAL_OK)
            more = word;
        else /* the other one goes on again */
            ck_assert_msg(code == SHOAL_ELOST || code == SHOAL_EDISCONNECTED, "%s",
                          shoal_error_text());
        if (rank == 0)
            atomic_fetch_add(&run->steps, 1);
    }
}

static void kill_daemons(struct resume_run *run)
{
    for (uint32_t i = 0; i < KILLS; i++) {
        resume_wait_steps(run, 2);
        /* Somewhere else in the next step each time. */
        nanosleep(&(struct timespec){.tv_nsec = i * 250000}, NULL);
        cluster_kill(run->cluster, i % 2);
        cluster_restart(run->cluster, i % 2);
    }
}

START_TEST(test_daemons_are_killed_while_ranks_agree)
{
    struct resume_run run = {
        .size = 2, .ranks_per_node = 1, .body = reconfigure_on, .disturb = kill_daemons};
    resume_run(&run);
}
END_TEST

/* --- groups */

static const int both[] = {0, 1};

/* Rank 0 has closed the first group when the server is lost, and rank 1 has not: the second gets
 * the first one's number. */
static void half_closed(struct resume_run *run, shoal_job *job, int rank)
{
    shoal_group *groups[2];
    int left = run->steps_after;
    for (int i = 0; i < 2; i++)
        GOOD(shoal_group_open(job, both, 2, -1, &groups[i]));
    for (int i = 0; i < 2; i++)
        GOOD(shoal_barrier(groups[i], NULL));
    if (rank == 0)
        GOOD(shoal_group_close(groups[0]));
    while (resume_goes_on(run, job, rank, &left)) {
        int32_t one = rank + 1;
        GOOD(shoal_all_reduce(groups[1], &one, &one, 1, SHOAL_I32, SHOAL_SUM, NULL));
        ck_assert_int_eq(one, 3);
    }
    if (rank == 1) {
        BAD(shoal_barrier(groups[0], NULL), SHOAL_ESTATE, "closed");
        GOOD(shoal_group_close(groups[0]));
    }
    int32_t one = rank + 1;
    GOOD(shoal_all_reduce(groups[1], &one, &one, 1, SHOAL_I32, SHOAL_SUM, NULL));
    ck_assert_int_eq(one, 3);
    GOOD(shoal_group_close(groups[1]));
    shoal_group *again;
    GOOD(shoal_group_open(job, both, 2, -1, &again));
    GOOD(shoal_barrier(again, NULL));
    GOOD(shoal_group_close(again));
}

START_TEST(test_a_group_is_half_closed)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 2,
                             .body = half_closed,
                             .disturb = resume_kill_all,
                             .steps_after = 4};
    resume_run(&run);
}
END_TEST

/* More groups than a rank may ask for at once. */
#define MANY_GROUPS 40

static void many_groups(struct resume_run *run, shoal_job *job, int rank)
{
    shoal_group *groups[MANY_GROUPS];
    int left = run->steps_after;
    for (int i = 0; i < MANY_GROUPS; i++)
        GOOD(shoal_group_open(job, both, 2, -1, &groups[i]));
    while (resume_goes_on(run, job, rank, &left)) {
        for (int i = 0; i < MANY_GROUPS; i++) {
            int32_t value = 100 * i + rank;
            GOOD(shoal_all_reduce(groups[i], &value, &value, 1, SHOAL_I32, SHOAL_SUM, NULL));
            ck_assert_int_eq(value, 200 * i + 1);
        }
    }
    ck_assert_int_ge(shoal_generation(job), 2);
    for (int i = 0; i < MANY_GROUPS; i++)
        GOOD(shoal_group_close(groups[i]));
}

START_TEST(test_many_groups)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 1,
                             .body = many_groups,
                             .disturb = resume_kill_all,
                             .steps_after = 2};
    resume_run(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_resume_limits");
    TCase *tcase = tcase_create("limits");
    tcase_set_timeout(tcase, 200);
    tcase_add_test(tcase, test_transfers_before_and_after);
    tcase_add_test(tcase, test_transfer_under_way);
    tcase_add_test(tcase, test_the_last_server);
    tcase_add_test(tcase, test_the_last_server_comes_back);
    tcase_add_test(tcase, test_daemons_are_killed_while_ranks_agree);
    tcase_add_test(tcase, test_a_group_is_half_closed);
    tcase_add_test(tcase, test_many_groups);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
