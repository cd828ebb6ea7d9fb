/* A job whose CPU servers are killed goes on by itself: its ranks see nothing but time. */
#include <stdlib.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/resume_run.h"

#define COUNT 300007u

static float element(int rank, int step, size_t i)
{
    return (float)((i * 7 + (size_t)step * 13) % 31) + (float)rank;
}

static void fill(float *data, int rank, int step)
{
    for (size_t i = 0; i < COUNT; i++)
        data[i] = element(rank, step, i);
}

static void check(const float *data, int step)
{
    for (size_t i = 0; i < COUNT; i++)
        if (data[i] != element(0, step, i) + element(1, step, i)) /* ck_assert writes to a pipe */
            ck_abort_msg("step %d, element %zu: %g", step, i, (double)data[i]);
}

/* Private buffers and such of the arena, in place and not. */
static void sums(struct resume_run *run, shoal_job *job, int rank)
{
    size_t bytes = COUNT * sizeof(float);
    float *own = malloc(bytes), *other = malloc(bytes);
    float *arena = shoal_alloc(job, bytes), *arena_other = shoal_alloc(job, bytes);
    float *const sends[] = {own, own, arena, arena}, *const results[] = {own, other, arena,
                                                                         arena_other};
    int left = run->steps_after;
    for (int step = 0; resume_goes_on(run, job, rank, &left); step++) {
        float *send = sends[step % 4], *result = results[step % 4];
        fill(send, rank, step);
        GOOD(shoal_all_reduce(shoal_world(job), send, result, COUNT, SHOAL_F32, SHOAL_SUM, NULL));
        check(result, step);
        if (send != result)
            for (size_t i = 0; i < COUNT; i++)
                if (send[i] != element(rank, step, i))
                    ck_abort_msg("step %d: what is sent has changed", step);
    }
    ck_assert_int_eq(shoal_rank(job), rank);
    shoal_free(job, arena);
    shoal_free(job, arena_other);
    free(own);
    free(other);
}

static void sums_and_generation(struct resume_run *run, shoal_job *job, int rank)
{
    sums(run, job, rank);
    ck_assert_int_eq(shoal_generation(job), 2);
}

START_TEST(test_a_server_is_killed)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 1,
                             .body = sums_and_generation,
                             .disturb = resume_kill_all,
                             .steps_after = 8};
    resume_run(&run);
}
END_TEST

START_TEST(test_servers_are_killed)
{
    struct resume_run run = {.size = 2,
                             .ranks_per_node = 1,
                             .servers = 3,
                             .body = sums,
                             .disturb = resume_kill_all,
                             .steps_after = 8};
    resume_run(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_resume");
    TCase *tcase = tcase_create("resume");
    tcase_set_timeout(tcase, 300);
    tcase_add_test(tcase, test_a_server_is_killed);
    tcase_add_test(tcase, test_servers_are_killed);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
