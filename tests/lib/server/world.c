#include "tests/lib/server/world.h"

#include <sched.h>
#include <stdio.h>

#include "worker/job/job.h"

#define ARENA_BYTES (8u << 20)

struct shoal_options world_options(const struct fake_daemon *daemon, int size)
{
    return (struct shoal_options){.struct_size = sizeof(struct shoal_options),
                                  .socket_path = fake_daemon_path(daemon),
                                  .world_size = size,
                                  .timeout_ms = 60000,
                                  .arena_bytes = ARENA_BYTES};
}

static void *member_run(void *argument)
{
    struct member *member = argument;
    struct shoal_options options = world_options(member->world->daemon, member->world->size);
    options.rank_plus_1 = member->rank + 1;
    options.arena_bytes = member->world->arena_bytes;
    GOOD(shoal_open(&options, &member->job));
    ck_assert_int_eq(shoal_rank(member->job), member->rank);
    member->body(member);
    GOOD(shoal_close(member->job));
    return NULL;
}

static void run(const struct fake_daemon_options *options, uint64_t arena_bytes,
                void (*body)(struct member *))
{
    struct world world = {.size = (int)options->world_size, .arena_bytes = arena_bytes};
    world.daemon = fake_daemon_start(options);
    for (int i = 0; i < world.size; i++) {
        world.members[i] = (struct member){.world = &world, .rank = i, .body = body};
        ck_assert_int_eq(
            pthread_create(&world.members[i].thread, NULL, member_run, &world.members[i]), 0);
    }
    for (int i = 0; i < world.size; i++)
        pthread_join(world.members[i].thread, NULL);
    fake_daemon_stop(world.daemon);
}

void world_run(const struct fake_daemon_options *options, void (*body)(struct member *))
{
    run(options, ARENA_BYTES, body);
}

void world_run_large(const struct fake_daemon_options *options, void (*body)(struct member *))
{
    run(options, 0, body);
}

void note_call(void *argument, int result)
{
    struct notes *notes = argument;
    pthread_mutex_lock(&notes->lock);
    notes->calls++;
    notes->last_result = result;
    if (result < 0)
        snprintf(notes->text, sizeof(notes->text), "%s", shoal_error_text());
    pthread_cond_signal(&notes->called);
    pthread_mutex_unlock(&notes->lock);
}

void notes_wait(struct notes *notes, int calls)
{
    pthread_mutex_lock(&notes->lock);
    while (notes->calls < calls)
        pthread_cond_wait(&notes->called, &notes->lock);
    pthread_mutex_unlock(&notes->lock);
}

void *world_wait_well(void *request)
{
    GOOD(shoal_wait(request, -1));
    return NULL;
}

void world_lock_sleeping(shoal_job *job)
{
    for (bool sleeping = false; !sleeping; sched_yield()) {
        pthread_mutex_lock(&job->lock);
        sleeping = job->driver_sleeping && !(job->device && device_queue_busy(job->device));
        if (!sleeping)
            pthread_mutex_unlock(&job->lock);
    }
}
