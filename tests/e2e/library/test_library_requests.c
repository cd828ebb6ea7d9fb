/* The library's requests, jobs and errors against real daemons. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define REQUESTS 200

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* --- many in flight ------------------------------------------------------------------------ */

enum how { BY_TEST, BY_WAIT, BY_CALLBACK, BY_DESCRIPTOR, HOWS };

struct flight {
    shoal_request *requests[REQUESTS];
    float *data[REQUESTS];
    size_t counts[REQUESTS];
    int order[REQUESTS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int asked, called, failed; /* callbacks */
};

/* Maybe after shoal_wait has returned, as it is another thread's. */
static void called(void *argument, int result)
{
    struct flight *flight = argument;
    pthread_mutex_lock(&flight->lock);
    flight->called++;
    flight->failed += result != SHOAL_OK;
    pthread_cond_signal(&flight->changed);
    pthread_mutex_unlock(&flight->lock);
}

/* Sums of small integers are exact in any order. */
static float value_of(int request, size_t element, int rank)
{
    return (float)((request * 7 + (int)(element % 1000) + rank * 3) % 2048);
}

static void flight_start(struct flight *flight, struct library_rank *self, int i, bool priorities)
{
    shoal_group *world = shoal_world(self->job);
    flight->counts[i] = i % 10 == 0 ? 50021 : (size_t)(i * 13 % 999);
    size_t count = flight->counts[i];
    flight->data[i] = malloc((count + 1) * sizeof(float));
    ck_assert_ptr_nonnull(flight->data[i]);
    for (size_t k = 0; k < count; k++)
        flight->data[i][k] = value_of(i, k, self->rank);
    if (priorities)
        GOOD(shoal_group_set_priority(world, (uint32_t)(REQUESTS - i) % 5));
    GOOD(shoal_all_reduce(world, flight->data[i], flight->data[i], count, SHOAL_F32, SHOAL_SUM,
                          &flight->requests[i]));
}

static void flight_check(struct flight *flight, struct library_rank *self, int i)
{
    for (size_t k = 0; k < flight->counts[i]; k++) {
        float sum = 0;
        for (int rank = 0; rank < self->of->size; rank++)
            sum += value_of(i, k, rank);
        if (flight->data[i][k] != sum)
            ck_abort_msg("request %d element %zu: %g, not %g", i, k, (double)flight->data[i][k],
                         (double)sum);
    }
    free(flight->data[i]);
}

static void await_completion(shoal_job *job)
{
    struct pollfd poll_fd = {.fd = shoal_completions_descriptor(job), .events = POLLIN};
    ck_assert_int_eq(poll(&poll_fd, 1, CLUSTER_PATIENCE_MS), 1);
    GOOD(shoal_completions_clear(job));
}

/* Until it is complete, in one of the ways that there are. */
static void flight_finish(struct flight *flight, struct library_rank *self, int i, enum how how)
{
    shoal_request *request = flight->requests[i];
    if (how == BY_CALLBACK) {
        GOOD(shoal_request_on_complete(request, called, flight));
        BAD(shoal_request_on_complete(request, called, flight), SHOAL_ESTATE, "");
        flight->asked++;
    }
    if (how == BY_DESCRIPTOR)
        while (shoal_test(request) == SHOAL_EAGAIN)
            await_completion(self->job);
    if (how == BY_TEST) {
        int result = shoal_test(request);
        ck_assert(result == SHOAL_OK || result == SHOAL_EAGAIN);
        if (result == SHOAL_OK)
            GOOD(shoal_test(request)); /* does not free */
    }
    GOOD(shoal_wait(request, -1));
    flight_check(flight, self, i);
}

static void many_in_flight(struct library_rank *self)
{
    struct flight *flight = calloc(1, sizeof(*flight));
    uint64_t seed = 977 + (uint64_t)self->rank; /* every rank looks in an order of its own */
    bool priorities = self->of->argument != NULL;
    ck_assert_ptr_nonnull(flight);
    int *order = flight->order;
    pthread_mutex_init(&flight->lock, NULL);
    pthread_cond_init(&flight->changed, NULL);
    ck_assert_int_ge(shoal_completions_descriptor(self->job), 0);
    for (int i = 0; i < REQUESTS; i++) {
        flight_start(flight, self, i, priorities);
        order[i] = i;
    }
    for (int i = REQUESTS - 1; i > 0; i--) {
        int other = (int)(random_next(&seed) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (int i = 0; i < REQUESTS; i++)
        flight_finish(flight, self, order[i], (enum how)(random_next(&seed) % HOWS));
    pthread_mutex_lock(&flight->lock);
    while (flight->called < flight->asked)
        pthread_cond_wait(&flight->changed, &flight->lock);
    pthread_mutex_unlock(&flight->lock);
    ck_assert_int_gt(flight->asked, 0);
    GOOD(shoal_close(self->job)); /* after which nothing can call */
    self->job = NULL;
    ck_assert_int_eq(flight->called, flight->asked);
    ck_assert_int_eq(flight->failed, 0);
    pthread_cond_destroy(&flight->changed);
    pthread_mutex_destroy(&flight->lock);
    free(flight);
}

START_TEST(requests_complete_in_any_order)
{
    library_cluster_run((uint32_t)_i, NULL, 2, many_in_flight, NULL);
}
END_TEST

START_TEST(priorities_change_nothing_but_the_order)
{
    int yes = 1;
    library_cluster_run((uint32_t)_i, NULL, 2, many_in_flight, &yes);
}
END_TEST

/* A wait that times out leaves the request alive, and a group cannot be closed under it. */
static void patience(struct library_rank *self)
{
    static const int ranks[] = {1, 0};
    shoal_group *group;
    shoal_request *request;
    int64_t value = 1 + self->rank;
    GOOD(shoal_group_open(self->job, ranks, 2, -1, &group));
    if (self->rank == 0) {
        GOOD(shoal_all_reduce(group, &value, &value, 1, SHOAL_I64, SHOAL_SUM, &request));
        BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT, "20 ms");
        ck_assert_int_eq(shoal_test(request), SHOAL_EAGAIN);
        BAD(shoal_group_close(group), SHOAL_ESTATE, "under way");
    }
    library_meet(self);
    if (self->rank == 1)
        GOOD(shoal_all_reduce(group, &value, &value, 1, SHOAL_I64, SHOAL_SUM, &request));
    GOOD(shoal_wait(request, -1));
    ck_assert_int_eq(value, 3);
    GOOD(shoal_group_close(group));
}

START_TEST(a_wait_that_timed_out_is_resumed)
{
    library_cluster_run((uint32_t)_i, NULL, 2 / _i, patience, NULL);
}
END_TEST

/* --- jobs ---------------------------------------------------------------------------------- */

static void count_up(struct library_rank *self)
{
    int factor = *(int *)self->of->argument;
    for (int round = 0; round < 30; round++) {
        int32_t data[257], size = self->of->size;
        for (int i = 0; i < 257; i++)
            data[i] = factor * (i + round + self->rank);
        GOOD(shoal_all_reduce(shoal_world(self->job), data, data, 257, SHOAL_I32, SHOAL_SUM, NULL));
        for (int i = 0; i < 257; i++)
            if (data[i] != factor * (size * (i + round) + size * (size - 1) / 2))
                ck_abort_msg("round %d element %d: %d", round, i, data[i]);
    }
    ck_assert_int_eq(shoal_node_count(self->job), (int)self->of->cluster->count);
    ck_assert_int_eq(shoal_local_size(self->job), self->of->ranks_per_node);
    ck_assert_int_eq(shoal_local_rank(self->job), self->rank % self->of->ranks_per_node);
}

START_TEST(two_jobs_at_once_and_a_name_used_again)
{
    struct cluster *cluster = cluster_start((uint32_t)_i, NULL);
    int factors[] = {1, -1000};
    for (int round = 0; round < 3; round++) {
        struct library_job *one = library_job_start(cluster, "one", 2, count_up, &factors[0]);
        struct library_job *two = library_job_start(cluster, "two", 3, count_up, &factors[1]);
        library_job_finish(one);
        library_job_finish(two);
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

START_TEST(a_world_of_one)
{
    int factor = 5;
    library_cluster_run(1, NULL, 1, count_up, &factor);
}
END_TEST

/* Opens one rank from a thread of its own. */
struct opening {
    struct shoal_options options;
    shoal_job *job;
    int code, rank;
    char text[1024];
    pthread_t thread;
};

static void *opening_main(void *argument)
{
    struct opening *opening = argument;
    opening->code = shoal_open(&opening->options, &opening->job);
    if (opening->code != SHOAL_OK)
        snprintf(opening->text, sizeof(opening->text), "%s", shoal_error_text());
    else
        opening->rank = shoal_rank(opening->job);
    return NULL;
}

static void openings_run(struct opening *openings, int count)
{
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(pthread_create(&openings[i].thread, NULL, opening_main, &openings[i]), 0);
    for (int i = 0; i < count; i++)
        pthread_join(openings[i].thread, NULL);
}

START_TEST(unknown_ranks_are_assigned)
{
    struct cluster *cluster = cluster_start(2, NULL);
    struct opening openings[4] = {0};
    bool seen[4] = {false};
    for (int i = 0; i < 4; i++)
        openings[i].options = library_options(cluster, (uint32_t)i % 2, "assigned", 4);
    openings[3].options.rank_plus_1 = _i; /* one may know its own */
    openings_run(openings, 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_msg(openings[i].code == SHOAL_OK, "%s", openings[i].text);
        ck_assert(openings[i].rank >= 0 && openings[i].rank < 4 && !seen[openings[i].rank]);
        seen[openings[i].rank] = true;
    }
    if (_i > 0)
        ck_assert_int_eq(openings[3].rank, _i - 1);
    for (int i = 0; i < 4; i++)
        GOOD(shoal_close(openings[i].job));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* --- joins that fail ----------------------------------------------------------------------- */

static void nothing(struct library_rank *self)
{
    (void)self;
}

/* A cluster whose daemons have found each other: the time that follows is the ranks' alone. */
static struct cluster *connected_cluster(uint32_t nodes)
{
    struct cluster *cluster = cluster_start(nodes, NULL);
    library_job_run(cluster, "first", 1, nothing, NULL);
    return cluster;
}

START_TEST(a_rank_that_does_not_come_is_named)
{
    struct cluster *cluster = connected_cluster((uint32_t)_i);
    struct opening openings[2] = {0};
    for (int i = 0; i < 2; i++) {
        openings[i].options = library_options(cluster, (uint32_t)(i % _i), "waiting", 4);
        openings[i].options.rank_plus_1 = i == 0 ? 1 : 3;
        openings[i].options.timeout_ms = 1000;
    }
    openings_run(openings, 2);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(openings[i].code, SHOAL_ETIMEOUT);
        ck_assert_msg(strstr(openings[i].text, "'waiting'") && strstr(openings[i].text, "joined") &&
                          strstr(openings[i].text, i == 0 ? "1" : "3"),
                      "%s", openings[i].text);
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* Two that cannot both be right: one is refused with the reason, the other waits for the rest, or
 * is refused with it. */
static void one_is_refused(const struct shoal_options *a, const struct shoal_options *b,
                           const char *reason, int others_code)
{
    struct opening openings[2] = {{.options = *a}, {.options = *b}};
    openings_run(openings, 2);
    bool first = openings[0].code == SHOAL_EREFUSED;
    const struct opening *refused = &openings[first ? 0 : 1], *waited = &openings[first ? 1 : 0];
    ck_assert_int_eq(refused->code, SHOAL_EREFUSED);
    ck_assert_msg(strstr(refused->text, reason) != NULL, "%s", refused->text);
    ck_assert_int_eq(waited->code, others_code);
}

START_TEST(ranks_that_contradict_each_other)
{
    struct cluster *cluster = connected_cluster((uint32_t)_i);
    struct shoal_options a = library_options(cluster, 0, "contrary", 3), b;
    a.timeout_ms = 2000;
    a.rank_plus_1 = 2;
    b = a;
    b.socket_path = cluster->nodes[_i - 1].socket_path;
    one_is_refused(&a, &b, "rank 1 of job 'contrary' is given twice", SHOAL_ETIMEOUT);
    b.rank_plus_1 = 1;
    b.world_size = 4;
    one_is_refused(&a, &b, "world size of", SHOAL_EREFUSED);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

START_TEST(options_that_cannot_be)
{
    struct cluster *cluster = cluster_start(1, NULL);
    shoal_job *job;
    char name[65];
    memset(name, 'n', 64);
    name[64] = '\0';
    struct shoal_options good = library_options(cluster, 0, name + 1, 1), bad = good;
    bad.job = name;
    BAD(shoal_open(&bad, &job), SHOAL_EINVALID, "64 bytes");
    bad = good;
    bad.rank_plus_1 = 2;
    BAD(shoal_open(&bad, &job), SHOAL_EINVALID, "rank_plus_1");
    bad = good;
    bad.world_size = -1;
    BAD(shoal_open(&bad, &job), SHOAL_EINVALID, "world_size");
    bad = good;
    bad.arena_bytes = 1;
    BAD(shoal_open(&bad, &job), SHOAL_EINVALID, "arena_bytes");
    bad = good;
    bad.socket_path = "/nowhere/shoald.sock";
    BAD(shoal_open(&bad, &job), SHOAL_EDISCONNECTED, "/nowhere/shoald.sock");
    bad = good;
    bad.recovery = 2;
    BAD(shoal_open(&bad, &job), SHOAL_EINVALID, "recovery");
    bad.recovery = 1; /* these daemons have none */
    BAD(shoal_open(&bad, &job), SHOAL_EUNSUPPORTED, "has not configured (recovery)");
    good.recovery = -1;
    bad = good;
    bad.job = "a\nb";
    BAD(shoal_open(&bad, &job), SHOAL_EINVALID, "printable");
    GOOD(shoal_open(&good, &job)); /* the longest name */
    GOOD(shoal_close(job));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* Two processes that nobody has launched have nothing to do with each other. */
START_TEST(alone)
{
    static const char *const variables[] = {"WORLD_SIZE",           "RANK",     "SHOAL_JOB",
                                            "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_ID"};
    struct cluster *cluster = cluster_start(1, NULL);
    struct shoal_options options = library_options(cluster, 0, NULL, 0);
    shoal_job *jobs[2];
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    for (int i = 0; i < 2; i++)
        GOOD(shoal_open(&options, &jobs[i]));
    for (int i = 0; i < 2; i++) {
        int32_t value = 5 + i, sum = 0;
        ck_assert_int_eq(shoal_rank(jobs[i]), 0);
        ck_assert_int_eq(shoal_world_size(jobs[i]), 1);
        GOOD(shoal_all_reduce(shoal_world(jobs[i]), &value, &sum, 1, SHOAL_I32, SHOAL_SUM, NULL));
        ck_assert_int_eq(sum, 5 + i);
        GOOD(shoal_close(jobs[i]));
    }
    options.rank_plus_1 = 1;
    BAD(shoal_open(&options, &jobs[0]), SHOAL_EINVALID, "the world size is not known");
    options.rank_plus_1 = 0;
    setenv("RANK", "0", 1);
    BAD(shoal_open(&options, &jobs[0]), SHOAL_EINVALID, "the world size is not known");
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_requests");
    TCase *requests = tcase_create("requests"); /* _i: nodes */
    tcase_set_timeout(requests, 300);
    tcase_add_loop_test(requests, requests_complete_in_any_order, 1, 3);
    tcase_add_loop_test(requests, priorities_change_nothing_but_the_order, 1, 3);
    tcase_add_loop_test(requests, a_wait_that_timed_out_is_resumed, 1, 3);
    suite_add_tcase(suite, requests);
    TCase *jobs = tcase_create("jobs");
    tcase_set_timeout(jobs, 300);
    tcase_add_loop_test(jobs, two_jobs_at_once_and_a_name_used_again, 1, 3);
    tcase_add_test(jobs, a_world_of_one);
    tcase_add_loop_test(jobs, unknown_ranks_are_assigned, 0, 5);
    tcase_add_loop_test(jobs, a_rank_that_does_not_come_is_named, 1, 3);
    tcase_add_loop_test(jobs, ranks_that_contradict_each_other, 1, 3);
    tcase_add_test(jobs, options_that_cannot_be);
    tcase_add_test(jobs, alone);
    suite_add_tcase(suite, jobs);
    return suite_main(suite);
}
