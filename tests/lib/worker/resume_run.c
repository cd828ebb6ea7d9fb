#include "tests/lib/worker/resume_run.h"

#include <signal.h>
#include <time.h>

#include "tests/lib/job_name.h"

/* A daemon is killed and started again, which on a busy machine takes a while. */
#define RECOVERY "{\"recovery\": true, \"timeouts\": {\"restart_ms\": 60000}}"
#define STEPS_BEFORE 3

struct rank {
    struct resume_run *run;
    int number;
    pthread_t thread;
};

static void *rank_main(void *argument)
{
    struct rank *self = argument;
    struct resume_run *run = self->run;
    shoal_job *job;
    struct shoal_options options = library_options(
        run->cluster, (uint32_t)(self->number / run->ranks_per_node), run->name, run->size);
    options.rank_plus_1 = self->number + 1;
    options.recovery = 1;
    GOOD(shoal_open(&options, &job));
    run->body(run, job, self->number);
    GOOD(shoal_close(job));
    return NULL;
}

uint32_t resume_server(const struct resume_run *run, uint32_t index)
{
    return (uint32_t)(run->size / run->ranks_per_node) + index;
}

void resume_wait_steps(struct resume_run *run, int steps)
{
    int from = atomic_load(&run->steps);
    while (atomic_load(&run->steps) < from + steps)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void resume_kill(struct resume_run *run, uint32_t index)
{
    struct process *daemon = run->cluster->nodes[resume_server(run, index)].daemon;
    process_signal(daemon, SIGKILL);
    process_wait(daemon, CLUSTER_PATIENCE_MS);
}

void resume_kill_all(struct resume_run *run)
{
    for (uint32_t i = 0; i < run->servers; i++) {
        resume_wait_steps(run, STEPS_BEFORE);
        resume_kill(run, i);
    }
}

bool resume_goes_on(struct resume_run *run, shoal_job *job, int rank, int *left)
{
    int32_t more = 1;
    if (rank == 0 && atomic_load(&run->over) && --*left < 0)
        more = 0;
    GOOD(shoal_broadcast(shoal_world(job), &more, 1, SHOAL_I32, 0, NULL));
    if (rank == 0)
        atomic_fetch_add(&run->steps, 1);
    return more;
}

void resume_run(struct resume_run *run)
{
    uint32_t nodes = resume_server(run, run->servers);
    struct rank ranks[RESUME_RANKS_MAX];
    run->cluster = cluster_start_with_servers(run->apart ? nodes - run->servers : nodes,
                                              run->apart ? run->servers : 0,
                                              run->extra ? run->extra : RECOVERY);
    job_name_with_home(run->name, "resume", 0, nodes);
    ck_assert_int_eq(pthread_barrier_init(&run->barrier, NULL, (unsigned)run->size), 0);
    for (int i = 0; i < run->size; i++) {
        ranks[i] = (struct rank){.run = run, .number = i};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    run->disturb(run);
    atomic_store(&run->over, true);
    for (int i = 0; i < run->size; i++)
        pthread_join(ranks[i].thread, NULL);
    pthread_barrier_destroy(&run->barrier);
    cluster_stop(run->cluster);
    cluster_free(run->cluster);
}
