/* A forked child of a process with open jobs inherits the contents of shoal_alloc's memory, and
 * nothing else of them. */
#include "worker/shoal.h"

#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

/* A job has its socket, its arena, its doorbell and the daemon's, what wakes the driver and the
 * background thread, and what the caller polls. */
#define JOB_DESCRIPTORS 7

static int descriptor_count(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Whether the child that runs `body` ends well. */
static bool in_child(bool (*body)(const void *argument), const void *argument)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(body(argument) ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool has_descriptors(const void *count)
{
    return descriptor_count() == *(const int *)count;
}

/* The child reads what was there, and keeps what it writes there to itself. */
static bool has_a_copy(const void *memory)
{
    volatile float *copy = (float *)(uintptr_t)memory;
    bool same = *copy == 1;
    *copy = 2;
    return same && *copy == 2;
}

struct own_job {
    struct shoal_options options;
    shoal_job *parents;
};

static bool opens_its_own(const void *argument)
{
    const struct own_job *own = argument;
    shoal_job *job;
    float value = 1;
    bool good = shoal_open(&own->options, &job) == SHOAL_OK &&
                shoal_all_reduce(shoal_world(job), &value, &value, 1, SHOAL_F32, SHOAL_SUM, NULL) ==
                    SHOAL_OK &&
                in_child(has_descriptors, &(int){descriptor_count() - JOB_DESCRIPTORS}) &&
                shoal_close(job) == SHOAL_OK;
    return good && shoal_close(own->parents) == SHOAL_ESTATE;
}

/* The child of a process with open jobs has none of their descriptors. */
START_TEST(test_forked_child_inherits_contents)
{
    struct fake_daemon *daemons[2];
    shoal_job *jobs[2];
    int none = descriptor_count();
    for (int i = 0; i < 2; i++)
        daemons[i] = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    int before = descriptor_count();
    for (int i = 0; i < 2; i++) {
        struct shoal_options options = world_options(daemons[i], 1);
        GOOD(shoal_open(&options, &jobs[i]));
        GOOD(shoal_barrier(shoal_world(jobs[i]), NULL));
    }
    /* The fake daemon is this process, and has its ends of the sockets, and doorbells. */
    int with = descriptor_count();
    ck_assert_int_gt(with, before + 2 * JOB_DESCRIPTORS);
    ck_assert(in_child(has_descriptors, &(int){with - 2 * JOB_DESCRIPTORS}));
    float *memory = shoal_alloc(jobs[1], sizeof(float));
    *memory = 1;
    ck_assert(in_child(has_a_copy, memory));
    ck_assert(*memory == 1);
    GOOD(shoal_close(jobs[0])); /* is forgotten */
    ck_assert(in_child(has_descriptors, &(int){descriptor_count() - JOB_DESCRIPTORS}));
    GOOD(shoal_all_reduce(shoal_world(jobs[1]), memory, memory, 1, SHOAL_F32, SHOAL_SUM, NULL));
    ck_assert(*memory == 1);
    shoal_free(jobs[1], memory);
    struct own_job own = {world_options(daemons[0], 1), jobs[1]};
    fake_daemon_stop(daemons[0]);
    daemons[0] = fake_daemon_start(&(struct fake_daemon_options){.world_size = 1});
    own.options = world_options(daemons[0], 1);
#ifndef __SANITIZE_THREAD__ /* which takes no threads of a child of threads */
    ck_assert(in_child(opens_its_own, &own));
#else
    (void)own, (void)opens_its_own;
#endif
    GOOD(shoal_close(jobs[1]));
    for (int i = 0; i < 2; i++)
        fake_daemon_stop(daemons[i]);
    ck_assert_int_eq(descriptor_count(), none);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api_fork");
    TCase *cases = tcase_create("fork");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_forked_child_inherits_contents);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
