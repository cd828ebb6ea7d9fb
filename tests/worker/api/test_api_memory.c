/* Memory of the arena: shoal_alloc and shoal_free, while the job is open and after it. */
#include "worker/shoal.h"

#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 100000 };

static void check_alloc(struct member *member)
{
    void *all = shoal_alloc(member->job, 100 << 20);
    ck_assert_ptr_null(all);
    ck_assert_ptr_nonnull(strstr(shoal_error_text(), "104857600"));
    ck_assert_ptr_nonnull(strstr(shoal_error_text(), "8388608"));
    void *some[64];
    int count = 0;
    while (count < 64 && (some[count] = shoal_alloc(member->job, 500000)))
        count++;
    ck_assert_int_gt(count, 4);
    for (int i = 0; i < count; i++) {
        memset(some[i], i, 500000);
        shoal_free(member->job, some[i]);
    }
    void *one = shoal_alloc(member->job, 4 << 20);
    ck_assert_ptr_nonnull(one);
    shoal_free(member->job, (char *)one + 64); /* not a block's start: ignored */
    shoal_free(member->job, one);
    shoal_free(member->job, one);
}

START_TEST(test_alloc)
{
    world_run(&(struct fake_daemon_options){.world_size = 1}, check_alloc);
}
END_TEST

/* How many arenas this process has mapped. The fake daemon is in it, and maps them too. */
static int arenas_mapped(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "shoal-arena") != NULL;
    fclose(maps);
    return count;
}

static float *filled(shoal_job *job, float value)
{
    float *data = shoal_alloc(job, COUNT * sizeof(*data));
    ck_assert_ptr_nonnull(data);
    for (int i = 0; i < COUNT; i++)
        data[i] = value;
    return data;
}

static bool holds(const float *data, float value)
{
    for (int i = 0; i < COUNT; i++)
        if (data[i] != value)
            return false;
    return true;
}

/* A child that is forked after the job was closed has a copy, as of all other memory. */
static bool child_has_a_copy(float *data)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        bool same = holds(data, 3);
        data[0] = 4;
        _exit(same ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 && data[0] == 3;
}

static void *free_in_thread(void *argument)
{
    void **call = argument;
    shoal_free(call[0], call[1]);
    return NULL;
}

START_TEST(test_memory_outlives_the_job)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    int before = arenas_mapped();
    GOOD(shoal_open(&options, &job));
    float *freed = filled(job, 1), *first = filled(job, 2), *last = filled(job, 3);
    GOOD(shoal_all_reduce(shoal_world(job), first, first, COUNT, SHOAL_F32, SHOAL_SUM, NULL));
    shoal_free(job, freed);
    GOOD(shoal_close(job));
    ck_assert_uint_eq(fake_daemon_workers_left(daemon), 1); /* it waits for nobody's memory */
    fake_daemon_stop(daemon);
    ck_assert_int_eq(arenas_mapped(), before + 1);
    ck_assert(holds(first, 2) && holds(last, 3));
    ck_assert(child_has_a_copy(last));
    shoal_free(job, first);
    shoal_free(job, NULL);
    ck_assert(holds(last, 3));
    last[COUNT - 1] = 5;
    pthread_t thread;
    pthread_create(&thread, NULL, free_in_thread, (void *[]){job, last});
    pthread_join(thread, NULL);
    ck_assert_int_eq(arenas_mapped(), before);
}
END_TEST

/* The mapping goes with the job where all of its memory has been given back, also in a job that
 * has never had any. */
START_TEST(test_the_mapping_goes_with_the_job)
{
    int before = arenas_mapped();
    for (int allocations = 0; allocations < 3; allocations++) {
        struct fake_daemon *daemon =
            fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
        struct shoal_options options = world_options(daemon, 1);
        shoal_job *job;
        GOOD(shoal_open(&options, &job));
        for (int i = 0; i < allocations; i++) {
            float *data = filled(job, 1);
            shoal_free(job, data);
            shoal_free(job, data); /* none any more: counts for no other */
        }
        GOOD(shoal_close(job));
        fake_daemon_stop(daemon);
        ck_assert_int_eq(arenas_mapped(), before);
    }
}
END_TEST

/* A second free of one piece does not free the mapping under the others. */
START_TEST(test_no_piece_counts_twice)
{
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    struct shoal_options options = world_options(daemon, 1);
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    float *first = filled(job, 1), *last = filled(job, 3);
    shoal_free(job, first);
    shoal_free(job, first);
    GOOD(shoal_close(job));
    shoal_free(job, first);
    shoal_free(job, last + 16);
    fake_daemon_stop(daemon);
    ck_assert(holds(last, 3));
    shoal_free(job, last);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api_memory");
    TCase *cases = tcase_create("memory");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_alloc);
    tcase_add_test(cases, test_memory_outlives_the_job);
    tcase_add_test(cases, test_the_mapping_goes_with_the_job);
    tcase_add_test(cases, test_no_piece_counts_twice);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
