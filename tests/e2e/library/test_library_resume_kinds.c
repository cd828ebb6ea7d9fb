/* All that may be under way when a CPU server is killed or stopped: every kind of collective, in
 * numbers, in several groups, and fusion buffers. Results have the bits that they always have. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/resume_run.h"

#define REQUESTS 20
#define KINDS 8
#define ELEMENTS_MAX 60013u

/* --- one request, by its number: all ranks make the same choices */

enum kind {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    BARRIER,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    ROOTED
};

struct one {
    enum kind kind;
    bool in_place, scatter; /* scatter: else gather */
    size_t count;
    int root, size, index; /* of the group, and this rank in it */
    uint64_t seed;
    const int *ranks;
    float *send, *recv;
    shoal_request *request;
};

static size_t draw_count(uint64_t seed)
{
    static const size_t counts[] = {1, 7, 1000, 4099, 20011, ELEMENTS_MAX};
    return counts[seed * 7 / 3 % 6];
}

static struct one one_make(const int *ranks, int size, int index, uint64_t seed)
{
    struct one one = {.kind = (enum kind)(seed % KINDS),
                      .in_place = seed / KINDS % 2,
                      .scatter = seed / 16 % 2,
                      .count = draw_count(seed),
                      .root = (int)(seed / 3 % (uint64_t)size),
                      .size = size,
                      .index = index,
                      .seed = seed,
                      .ranks = ranks};
    size_t bytes = one.count * (size_t)size * sizeof(float);
    one.send = malloc(bytes);
    one.recv = malloc(bytes);
    ck_assert(one.send && one.recv);
    memset(one.recv, 0, bytes);
    library_fill(SHOAL_F32, one.send, one.count * (size_t)size, ranks[index], seed);
    return one;
}

static void one_free(struct one *one)
{
    free(one->send);
    free(one->recv);
}

/* Return what rank `index` of the group sends; the caller frees it. */
static float *one_sent(const struct one *one, int index)
{
    size_t count = one->count * (size_t)one->size;
    float *data = malloc(count * sizeof(float));
    ck_assert_ptr_nonnull(data);
    library_fill(SHOAL_F32, data, count, one->ranks[index], one->seed);
    return data;
}

static void one_submit(struct one *one, shoal_group *group)
{
    size_t n = one->count, own = n * (size_t)one->index;
    float *send = one->send, *recv = one->recv;
    bool root = one->index == one->root;
    shoal_request **request = &one->request;
    switch (one->kind) {
    case ALL_REDUCE:
        GOOD(shoal_all_reduce(group, send, one->in_place ? send : recv, n, SHOAL_F32, SHOAL_SUM,
                              request));
        return;
    case REDUCE:
        GOOD(shoal_reduce(group, send, one->in_place ? send : recv, n, SHOAL_F32, SHOAL_AVG,
                          one->root, request));
        return;
    case BROADCAST:
        GOOD(shoal_broadcast(group, send, n, SHOAL_F32, one->root, request));
        return;
    case BARRIER:
        GOOD(shoal_barrier(group, request));
        return;
    case ALL_GATHER:
        if (one->in_place)
            memcpy(recv + own, send, n * sizeof(float));
        GOOD(shoal_all_gather(group, one->in_place ? recv + own : send, recv, n, SHOAL_F32,
                              request));
        return;
    case REDUCE_SCATTER:
        GOOD(shoal_reduce_scatter(group, send, one->in_place ? send + own : recv, n, SHOAL_F32,
                                  SHOAL_SUM, request));
        return;
    case ALL_TO_ALL:
        GOOD(shoal_all_to_all(group, send, recv, n, SHOAL_F32, request));
        return;
    case ROOTED:
        if (one->scatter)
            GOOD(shoal_scatter(group, send, one->in_place && root ? send + own : recv, n, SHOAL_F32,
                               one->root, request));
        else if (one->in_place && root) {
            memcpy(recv + own, send, n * sizeof(float));
            GOOD(shoal_gather(group, recv + own, recv, n, SHOAL_F32, one->root, request));
        } else
            GOOD(shoal_gather(group, send, recv, n, SHOAL_F32, one->root, request));
        return;
    }
}

static void one_same(const struct one *one, const float *got, const float *wanted)
{
    ck_assert_msg(memcmp(got, wanted, one->count * sizeof(float)) == 0,
                  "request %lu of kind %d on rank %d: other bits", (unsigned long)one->seed,
                  one->kind, one->ranks[one->index]);
}

static void one_check_sum(const struct one *one, const struct library_job *shape, enum shoal_op op,
                          size_t part, const float *got)
{
    /* The sum is that of the whole buffer: each element is summed alone. */
    size_t count = one->count * (size_t)one->size;
    float *sum = malloc(count * sizeof(float));
    ck_assert_ptr_nonnull(sum);
    library_expect(shape, one->ranks, one->size, SHOAL_F32, op, count, one->seed, sum);
    one_same(one, got, sum + part * one->count);
    free(sum);
}

/* Part `to` of what `from` has sent. */
static void one_check_part(const struct one *one, int from, int to, const float *got)
{
    float *sent = one_sent(one, from);
    one_same(one, got, sent + (size_t)to * one->count);
    free(sent);
}

static void one_check(const struct one *one, const struct library_job *shape)
{
    size_t n = one->count, own = n * (size_t)one->index;
    bool root = one->index == one->root, in_place = one->in_place;
    switch (one->kind) {
    case ALL_REDUCE:
        one_check_sum(one, shape, SHOAL_SUM, 0, in_place ? one->send : one->recv);
        return;
    case REDUCE:
        if (root)
            one_check_sum(one, shape, SHOAL_AVG, 0, in_place ? one->send : one->recv);
        return;
    case BROADCAST:
        one_check_part(one, one->root, 0, one->send);
        return;
    case BARRIER:
        return;
    case ALL_GATHER:
        for (int i = 0; i < one->size; i++)
            one_check_part(one, i, 0, one->recv + n * (size_t)i);
        return;
    case REDUCE_SCATTER:
        one_check_sum(one, shape, SHOAL_SUM, (size_t)one->index,
                      in_place ? one->send + own : one->recv);
        return;
    case ALL_TO_ALL:
        for (int i = 0; i < one->size; i++)
            one_check_part(one, i, one->index, one->recv + n * (size_t)i);
        return;
    case ROOTED:
        if (one->scatter)
            one_check_part(one, one->root, one->index,
                           in_place && root ? one->send + own : one->recv);
        else if (root)
            for (int i = 0; i < one->size; i++)
                one_check_part(one, i, 0, one->recv + n * (size_t)i);
        return;
    }
}

static struct library_job shape_of(const struct resume_run *run)
{
    return (struct library_job){
        .cluster = run->cluster, .size = run->size, .ranks_per_node = run->ranks_per_node};
}

static const int everybody[] = {0, 1, 2, 3};

/* --- bodies */

static void do_many(struct resume_run *run, shoal_group *group, const int *ranks, int size,
                    uint64_t seed)
{
    const struct library_job shape = shape_of(run);
    struct one all[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        all[i] = one_make(ranks, size, shoal_group_rank(group), seed + (uint64_t)i);
        one_submit(&all[i], group);
    }
    for (int i = 0; i < REQUESTS; i++) {
        GOOD(shoal_wait(all[i].request, -1));
        one_check(&all[i], &shape);
        one_free(&all[i]);
    }
}

static void in_numbers(struct resume_run *run, shoal_job *job, int rank)
{
    int left = run->steps_after;
    for (uint64_t step = 0; resume_goes_on(run, job, rank, &left); step++)
        do_many(run, shoal_world(job), everybody, run->size, step * REQUESTS);
}

/* One after the other, so that nothing but the one is under way. */
static void one_by_one(struct resume_run *run, shoal_job *job, int rank)
{
    const struct library_job shape = shape_of(run);
    int left = run->steps_after;
    for (uint64_t step = 0; resume_goes_on(run, job, rank, &left); step++) {
        struct one one = one_make(everybody, run->size, rank, step);
        one_submit(&one, shoal_world(job));
        GOOD(shoal_wait(one.request, -1));
        one_check(&one, &shape);
        one_free(&one);
    }
}

/* Groups: of some, of all in another order, twice of the same ranks. */
#define GROUPS 5
static const struct {
    int size, ranks[RESUME_RANKS_MAX];
} lists[GROUPS] = {
    {2, {0, 2}}, {2, {1, 3}}, {4, {3, 1, 0, 2}}, {2, {0, 2}}, {3, {2, 3, 1}},
};

static bool list_has(int list, int rank)
{
    for (int i = 0; i < lists[list].size; i++)
        if (lists[list].ranks[i] == rank)
            return true;
    return false;
}

static shoal_group *list_open(shoal_job *job, int list)
{
    shoal_group *group = NULL;
    if (list_has(list, shoal_rank(job)))
        GOOD(shoal_group_open(job, lists[list].ranks, lists[list].size, -1, &group));
    return group;
}

/* Some requests are under way in every group at once; one group is closed and opened meanwhile. */
static void in_groups(struct resume_run *run, shoal_job *job, int rank)
{
    const struct library_job shape = shape_of(run);
    shoal_group *groups[GROUPS];
    int left = run->steps_after;
    for (int i = 0; i < GROUPS; i++)
        groups[i] = list_open(job, i);
    for (uint64_t step = 0; resume_goes_on(run, job, rank, &left); step++) {
        struct one all[GROUPS][4];
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < GROUPS; i++) {
                if (!groups[i])
                    continue;
                all[i][j] = one_make(lists[i].ranks, lists[i].size, shoal_group_rank(groups[i]),
                                     step * 13 + (uint64_t)(i * 4 + j));
                one_submit(&all[i][j], groups[i]);
            }
        for (int i = 0; i < GROUPS; i++)
            for (int j = 0; j < 4 && groups[i]; j++) {
                GOOD(shoal_wait(all[i][j].request, -1));
                one_check(&all[i][j], &shape);
                one_free(&all[i][j]);
            }
    }
    for (int i = 0; i < GROUPS; i++)
        if (groups[i])
            GOOD(shoal_group_close(groups[i]));
}

#define PARAMETERS 9

/* Gradients of the caller's and of the library's. */
static void in_fusion(struct resume_run *run, shoal_job *job, int rank)
{
    const struct library_job shape = shape_of(run);
    struct shoal_parameter parameters[PARAMETERS];
    struct shoal_fusion_options options = {
        .struct_size = sizeof(options), .threshold_bytes = 1 << 17, .op = SHOAL_AVG};
    shoal_fusion *fusion;
    float *sum = malloc(ELEMENTS_MAX * sizeof(float));
    int left = run->steps_after;
    for (int i = 0; i < PARAMETERS; i++) {
        size_t count = draw_count((uint64_t)i);
        parameters[i] =
            (struct shoal_parameter){.gradient = i % 3 ? malloc(count * sizeof(float)) : NULL,
                                     .count = count,
                                     .dtype = SHOAL_F32};
    }
    GOOD(shoal_fusion_create(shoal_world(job), parameters, PARAMETERS, &options, &fusion));
    for (uint64_t step = 0; resume_goes_on(run, job, rank, &left); step++) {
        for (int i = PARAMETERS - 1; i >= 0; i--) {
            library_fill(SHOAL_F32, shoal_fusion_gradient(fusion, (size_t)i), parameters[i].count,
                         rank, step * PARAMETERS + (uint64_t)i);
            GOOD(shoal_fusion_ready(fusion, (size_t)i));
        }
        GOOD(shoal_fusion_wait(fusion, -1));
        for (int i = 0; i < PARAMETERS; i++) {
            library_expect(&shape, everybody, run->size, SHOAL_F32, SHOAL_AVG, parameters[i].count,
                           step * PARAMETERS + (uint64_t)i, sum);
            ck_assert_msg(memcmp(sum, shoal_fusion_gradient(fusion, (size_t)i),
                                 parameters[i].count * sizeof(float)) == 0,
                          "step %lu, parameter %d: other bits", (unsigned long)step, i);
        }
    }
    shoal_fusion_free(fusion);
    for (int i = 0; i < PARAMETERS; i++)
        free(parameters[i].gradient);
    free(sum);
}

/* --- disturbances */

/* The second is killed while the job goes on from the first: at another moment in each run. */
static void kill_in_a_row(struct resume_run *run)
{
    static const long pauses_us[] = {0, 1000, 4000, 15000};
    for (uint32_t i = 0; i + 1 < run->servers; i += 2) {
        resume_wait_steps(run, 2);
        resume_kill(run, i);
        nanosleep(&(struct timespec){.tv_nsec = pauses_us[i / 2 % 4] * 1000}, NULL);
        resume_kill(run, i + 1);
    }
}

/* Silent for longer than timeouts.peer_ms, and then there again. */
static void stop_and_continue(struct resume_run *run)
{
    const struct process *daemon = run->cluster->nodes[resume_server(run, 0)].daemon;
    resume_wait_steps(run, 3);
    process_signal(daemon, SIGSTOP);
    resume_wait_steps(run, 3);
    process_signal(daemon, SIGCONT);
    resume_wait_steps(run, 3);
}

static void run_as(void (*body)(struct resume_run *run, shoal_job *job, int rank),
                   void (*disturb)(struct resume_run *run), uint32_t servers, const char *extra)
{
    struct resume_run run = {.size = 4,
                             .ranks_per_node = 2,
                             .servers = servers,
                             .extra = extra,
                             .body = body,
                             .disturb = disturb,
                             .steps_after = 4};
    resume_run(&run);
}

START_TEST(test_every_kind_in_numbers)
{
    run_as(in_numbers, resume_kill_all, 3, NULL);
}
END_TEST

START_TEST(test_every_kind_alone)
{
    run_as(one_by_one, resume_kill_all, 4, NULL);
}
END_TEST

START_TEST(test_groups_are_opened_again)
{
    run_as(in_groups, resume_kill_all, 3, NULL);
}
END_TEST

START_TEST(test_fusion_buffers_go_on)
{
    run_as(in_fusion, resume_kill_all, 3, NULL);
}
END_TEST

START_TEST(test_a_loss_while_the_job_goes_on)
{
    run_as(in_numbers, kill_in_a_row, 5, NULL);
}
END_TEST

START_TEST(test_a_loss_while_groups_are_opened_again)
{
    run_as(in_groups, kill_in_a_row, 5, NULL);
}
END_TEST

#define PEER_MS "{\"recovery\": true, \"timeouts\": {\"peer_ms\": 1000}}"

START_TEST(test_a_server_is_silent)
{
    run_as(in_numbers, stop_and_continue, 2, PEER_MS);
}
END_TEST

START_TEST(test_a_server_is_silent_for_groups)
{
    run_as(in_groups, stop_and_continue, 2, PEER_MS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_resume_kinds");
    TCase *tcase = tcase_create("kinds");
    tcase_set_timeout(tcase, 300);
    tcase_add_test(tcase, test_every_kind_in_numbers);
    tcase_add_test(tcase, test_every_kind_alone);
    tcase_add_test(tcase, test_groups_are_opened_again);
    tcase_add_test(tcase, test_fusion_buffers_go_on);
    tcase_add_test(tcase, test_a_loss_while_the_job_goes_on);
    tcase_add_test(tcase, test_a_loss_while_groups_are_opened_again);
    tcase_add_test(tcase, test_a_server_is_silent);
    tcase_add_test(tcase, test_a_server_is_silent_for_groups);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
