#include "worker/job/job.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/job/forking.h"
#include "worker/job/joining.h"
#include "worker/job/shared.h"

#define ENDING_WAIT_S 1 /* for the thread that is sending */
/* Staging takes at most a quarter of the arena, and no more slots than keep a pipeline full: 32, or
 * as many of a large roster's smaller chunks as take the same memory. */
#define STAGING_SLOTS 32u
#define STAGING_BYTES (8u << 20)
#define STAGING_SHARE 4u
_Static_assert(STAGING_SLOTS <= PROGRESS_SHARED_SLOTS_MAX, "progress has room for the slots");

uint64_t job_deadline_ns(const struct shoal_job *job, int timeout_ms)
{
    return clock_now_ns() + (uint64_t)(timeout_ms < 0 ? job->timeout_ms : timeout_ms) * NS_PER_MS;
}

int job_check(const struct shoal_job *job, struct error *error)
{
    if (!job)
        return error_set(error, ERR_INVALID, "the job is NULL");
    if (!job->forked) /* to ask for the process's number in each call would be a system call */
        return 0;
    return error_set(error, ERR_STATE,
                     "process %d was forked from %d, whose job it cannot use: open one of its own",
                     (int)getpid(), (int)job->pid);
}

int group_check(const struct shoal_group *group, struct error *error)
{
    return group ? 0 : error_set(error, ERR_INVALID, "the group is NULL");
}

int options_read(void *options, size_t bytes, const void *given, size_t least_bytes,
                 const char *name, struct error *error)
{
    size_t given_bytes;
    if (!given)
        return 0;
    memcpy(&given_bytes, given, sizeof(given_bytes));
    if (given_bytes < least_bytes)
        return error_set(error, ERR_INVALID,
                         "options.struct_size is %zu, must be sizeof(struct %s)", given_bytes,
                         name);
    memcpy(options, given, given_bytes < bytes ? given_bytes : bytes);
    return 0;
}

int job_enter(struct shoal_job *job, struct error *error)
{
    int code = job_check(job, error); /* a forked child's copy of the lock may be held for ever */
    if (code < 0)
        return code;
    pthread_mutex_lock(&job->lock);
    if (job->closing)
        code = error_set(error, ERR_STATE, "the job is being closed");
    else
        job->calls++;
    pthread_mutex_unlock(&job->lock);
    return code;
}

void job_leave(struct shoal_job *job)
{
    pthread_mutex_lock(&job->lock);
    if (--job->calls == 0 && job->closing)
        pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

int job_send(struct shoal_job *job, const struct message *message, uint64_t deadline_ns,
             struct error *error)
{
    pthread_mutex_lock(&job->send_lock);
    int code = job->mute ? error_set(error, ERR_AGAIN, "the job goes on just now")
                         : client_send(&job->client, message, NULL, 0, deadline_ns, error);
    pthread_mutex_unlock(&job->send_lock);
    return code;
}

void job_begin_saying(struct shoal_job *job)
{
    job->sayings++;
}

void job_end_saying(struct shoal_job *job)
{
    if (--job->sayings == 0 && job->resuming)
        pthread_cond_broadcast(&job->changed);
}

void job_await_sayings(struct shoal_job *job)
{
    while (job->sayings > 0)
        pthread_cond_wait(&job->changed, &job->lock);
}

/* The send lock is held, and let go of. */
static void send_locked(struct shoal_job *job, const struct message *message)
{
    if (!job->mute)
        client_send(&job->client, message, NULL, 0, 0, NULL);
    pthread_mutex_unlock(&job->send_lock);
}

bool job_send_now(struct shoal_job *job, const struct message *message)
{
    if (pthread_mutex_trylock(&job->send_lock) != 0)
        return false;
    send_locked(job, message);
    return true;
}

void job_say_ending(struct shoal_job *job, const char *why)
{
    struct message ending = {.type = MESSAGE_ENDING};
    snprintf(ending.text, sizeof(ending.text), "%s", why);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ENDING_WAIT_S;
    /* Another thread may be sending, or may have ended with the lock held. */
    if (ending.text[0] != '\0' && pthread_mutex_timedlock(&job->send_lock, &until) == 0)
        send_locked(job, &ending);
}

bool job_request_complete(const void *request)
{
    return ((const struct shoal_request *)request)->core.state == REQUEST_COMPLETE;
}

int job_request_result(const struct shoal_request *request, struct error *error)
{
    const struct request *core = &request->core;
    if (core->result < 0)
        error_set(error, core->result, "%s",
                  core->error_text ? core->error_text : error_name(core->result));
    return core->result;
}

void job_release_request(struct shoal_job *job, struct shoal_request *request)
{
    /* The daemon may still be writing for one that has failed. */
    if (request->bounce_offset && request->core.state == REQUEST_COMPLETE &&
        (request->core.result == 0 || request->core.done_seen)) {
        arena_heap_free(&job->heap, request->bounce_offset);
        request->bounce_offset = 0;
    }
    if (request->core.numbers_offset && request->core.state == REQUEST_COMPLETE) {
        arena_heap_free(&job->heap, request->core.numbers_offset); /* is only read */
        request->core.numbers_offset = 0;
    }
    if (--request->references > 0)
        return;
    DL_DELETE(job->requests, request);
    request_clear(&request->core);
    free(request);
}

int job_allocate(struct shoal_job *job, uint64_t bytes, uint64_t *offset, struct error *error)
{
    int code = arena_heap_allocate(&job->heap, bytes, offset);
    if (code < 0)
        error_set(error, code,
                  "no room for %" PRIu64 " bytes in the arena of %" PRIu64 ": %" PRIu64
                  " free, %" PRIu64 " at most in one piece (options.arena_bytes or "
                  "SHOAL_ARENA_BYTES makes it larger)",
                  bytes, job->arena.total_bytes, arena_heap_free_bytes(&job->heap),
                  arena_heap_largest_bytes(&job->heap));
    return code;
}

static void close_descriptor(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* --- groups -------------------------------------------------------------------------------- */

static int set_rule(struct shoal_group *group, const struct message *answer, struct error *error)
{
    group->weights = calloc(answer->weights.count + 1, sizeof(*group->weights));
    if (!group->weights)
        return error_set(error, ERR_MEMORY, "out of memory for a group");
    for (uint32_t i = 0; i < answer->weights.count; i++)
        group->weights[i] = answer->weights.values[i];
    group->core.rule = (struct layout_rule){
        .servers = answer->weights.count,
        .weights = group->weights,
        .chunk_bytes = answer->chunk_bytes,
        .least_shard_bytes = answer->least_shard_bytes,
        .equal_weights = layout_weights_equal(group->weights, answer->weights.count),
    };
    if (!layout_rule_valid(&group->core.rule))
        return error_set(error, ERR_PROTOCOL,
                         "the daemon's rule for cutting buffers makes no sense: %" PRIu32
                         " servers, chunks of %" PRIu32 " bytes",
                         answer->weights.count, answer->chunk_bytes);
    return 0;
}

static void forget_transfers(struct shoal_group *group)
{
    struct transfer_counter *counter = group->transfer_counters;
    HASH_CLEAR(hh, group->transfer_counters);
    while (counter) {
        struct transfer_counter *next = counter->hh.next;
        free(counter);
        counter = next;
    }
}

void job_visit_place(struct place_memory *memory)
{
    memory->visitors++;
}

static void give_back_place(struct place_memory *memory)
{
    if (!memory->forgotten || memory->visitors > 0)
        return;
    munmap(memory->memory, memory->bytes);
    free(memory);
}

void job_leave_place(struct place_memory *memory)
{
    memory->visitors--;
    give_back_place(memory);
}

void job_forget_place(struct shoal_group *group)
{
    struct place *place = &group->place;
    if (group->job->watched == group)
        group->job->watched = NULL;
    if (place->state == PLACE_OPEN) {
        place->memory->forgotten = true;
        give_back_place(place->memory);
    }
    if (place->state == PLACE_ASKING) {
        DL_DELETE(group->job->openings, &place->opening);
        close_descriptor(place->opening.descriptor);
        message_clear(&place->opening.answer);
    }
    group->place = (struct place){.state = PLACE_UNASKED};
}

static void free_group(struct shoal_group *group)
{
    job_forget_place(group);
    free(group->weights);
    free(group->settings);
    free(group->ranks);
    forget_transfers(group);
    free(group);
}

static struct group_list *find_list(const struct shoal_job *job, const int *ranks, int count)
{
    struct group_list *list;
    LL_FOREACH(job->group_lists, list)
    {
        if (list->count == count && memcmp(list->ranks, ranks, (size_t)count * sizeof(*ranks)) == 0)
            break;
    }
    return list;
}

int job_count_list(struct shoal_job *job, const int *ranks, int count, uint32_t *times,
                   struct error *error)
{
    struct group_list *list = find_list(job, ranks, count);
    if (!list) {
        list = calloc(1, sizeof(*list));
        int *copy = list ? calloc((size_t)count, sizeof(*copy)) : NULL;
        if (!copy) {
            free(list);
            return error_set(error, ERR_MEMORY, "out of memory for a group");
        }
        memcpy(copy, ranks, (size_t)count * sizeof(*copy));
        list->ranks = copy;
        list->count = count;
        LL_PREPEND(job->group_lists, list);
    }
    *times = list->times++;
    return 0;
}

void job_uncount_list(struct shoal_job *job, const int *ranks, int count, uint32_t nth)
{
    struct group_list *list = find_list(job, ranks, count);
    if (list && list->times == nth + 1)
        list->times = nth;
}

void job_forget_lists(struct shoal_job *job)
{
    while (job->group_lists) {
        struct group_list *list = job->group_lists;
        job->group_lists = list->next;
        free(list->ranks);
        free(list);
    }
}

int job_renew_rule(struct shoal_group *group, const struct message *answer, struct error *error)
{
    uint32_t *old = group->weights;
    int code = set_rule(group, answer, error);
    free(old);
    if (code == 0)
        group->core.number = (uint32_t)answer->group;
    return code;
}

int job_renew_world(struct shoal_job *job, const struct message *joined, struct error *error)
{
    struct shoal_group *world = job->groups;
    int code = job_renew_rule(world, joined, error);
    if (code < 0)
        return code;
    world->rank = (uint32_t)joined->rank;
    world->size = joined->world_size;
    world->shared_count = 0;
    job->hold = (struct job_hold){0};
    job_forget_place(world);
    forget_transfers(world);
    job_forget_lists(job);
    return 0;
}

/* Lock held. Not half in the pinned part, if there is other memory: drivers refuse to copy from
 * and to such memory. */
static int allocate_own_slot(struct shoal_job *job, uint64_t bytes, uint64_t *offset)
{
    uint64_t other;
    int code = arena_heap_allocate(&job->heap, bytes, offset);
    if (code < 0 || *offset >= job->progress.pinned_bytes ||
        job->progress.pinned_bytes - *offset >= bytes)
        return code;
    if (arena_heap_allocate(&job->heap, bytes, &other) < 0)
        return 0;
    arena_heap_free(&job->heap, *offset);
    *offset = other;
    return 0;
}

int job_add_group(struct shoal_job *job, const struct message *answer, uint32_t rank, uint32_t size,
                  struct shoal_group **group, struct error *error)
{
    struct shoal_group *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for a group");
    made->job = job;
    made->rank = rank;
    made->size = size;
    made->core.number = (uint32_t)answer->group;
    made->identity = (uint64_t)job->generation << 32 | made->core.number;
    int code = set_rule(made, answer, error);
    uint64_t offset = 0;
    if (code == 0 && allocate_own_slot(job, answer->chunk_bytes, &offset) < 0)
        code = error_set(error, ERR_MEMORY,
                         "no room for a group's staging slot of %" PRIu32 " bytes: %" PRIu64
                         " bytes free in the arena of %" PRIu64
                         " (options.arena_bytes or SHOAL_ARENA_BYTES makes it larger)",
                         answer->chunk_bytes, arena_heap_free_bytes(&job->heap),
                         job->arena.total_bytes);
    if (code == 0) {
        code = progress_group_add(&job->progress, &made->core, offset, error);
        if (code < 0)
            arena_heap_free(&job->heap, offset);
    }
    if (code < 0) {
        free_group(made);
        return code;
    }
    DL_APPEND(job->groups, made);
    *group = made;
    return 0;
}

void job_remove_group(struct shoal_job *job, struct shoal_group *group)
{
    bool lost = job->device && device_copies_lost(job->device->device);
    if (progress_group_remove(&job->progress, &group->core) && !lost)
        arena_heap_free(&job->heap, group->core.own.offset);
    DL_DELETE(job->groups, group);
    free_group(group);
}

/* --- opening ------------------------------------------------------------------------------- */

static int say_hello(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    struct message hello = {
        .type = MESSAGE_WORKER_HELLO, .protocol = MESSAGE_PROTOCOL, .pid = (uint32_t)getpid()};
    snprintf(hello.software, sizeof(hello.software), "libshoal " SHOAL_VERSION);
    return client_send(&job->client, &hello, NULL, 0, deadline_ns, error);
}

int job_take_hello(struct shoal_job *job, struct message *answer, struct error *error)
{
    int code = 0;
    if (answer->type == MESSAGE_ERROR)
        code = error_set(error, answer->code < 0 ? answer->code : ERR_PROTOCOL, "%s", answer->text);
    else if (answer->type != MESSAGE_DAEMON_HELLO)
        code = error_set(error, ERR_PROTOCOL, "the daemon (socket %s) began with \"%s\", not hello",
                         job->client.path, message_type_name(answer->type));
    else if (answer->protocol != MESSAGE_PROTOCOL)
        code = error_set(error, ERR_PROTOCOL,
                         "the daemon (socket %s, %s) speaks protocol %" PRIu32
                         ", this library (" SHOAL_VERSION ") %u",
                         job->client.path, answer->software, answer->protocol, MESSAGE_PROTOCOL);
    if (code == 0)
        job->member = answer->member;
    message_clear(answer);
    return code;
}

static int exchange_hellos(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    struct message answer = {0};
    int code = say_hello(job, deadline_ns, error);
    if (code == 0)
        code = client_wait(&job->client, &answer, deadline_ns, error);
    return code < 0 ? code : job_take_hello(job, &answer, error);
}

int job_connect_anew(struct shoal_job *job, uint64_t deadline_ns, struct error *error)
{
    char path[CLIENT_PATH_BYTES];
    memcpy(path, job->client.path, sizeof(path));
    pthread_mutex_lock(&job->send_lock);
    client_close(&job->client);
    int code = client_connect(&job->client, path, deadline_ns, error);
    memcpy(job->client.path, path, sizeof(path));
    pthread_mutex_unlock(&job->send_lock);
    if (code == 0)
        code = say_hello(job, deadline_ns, error);
    return code;
}

static int make_descriptors(struct shoal_job *job, struct error *error)
{
    int *const fds[] = {&job->submission_doorbell, &job->wake_fd, &job->listen_fd,
                        &job->completions_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        *fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (*fds[i] < 0)
            return error_set_errno(error, errno, "cannot make an eventfd");
    }
    return 0;
}

int job_take_bell(struct shoal_job *job, struct error *error)
{
    close_descriptor(job->completion_doorbell);
    job->completion_doorbell = client_take_descriptor(&job->client);
    return job->completion_doorbell >= 0
               ? 0
               : error_set(error, ERR_PROTOCOL, "the daemon's answer came without a doorbell");
}

static int count_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

void job_set_place(struct shoal_job *job, const struct message *joined)
{
    job->rank = joined->rank;
    job->world_size = (int)joined->world_size;
    job->local_rank = joined->local_rank;
    job->local_size = (int)joined->local_size;
    job->node_count = (int)joined->node_count;
    job->generation = joined->generation;
    job->lineage = joined->lineage;
    job->restart_ms = joined->restart_ms;
    job->silence_ns = joined->timeout_ms * NS_PER_MS;
    job->cores = count_cores();
    job->heard_ns = clock_now_ns();
    job->pinged_ns = 0;
}

static uint32_t staging_slots(uint64_t arena_bytes, uint32_t chunk_bytes)
{
    if (chunk_bytes == 0 || chunk_bytes % 64 != 0)
        return 0;
    uint64_t most = STAGING_BYTES / chunk_bytes;
    if (most < STAGING_SLOTS)
        most = STAGING_SLOTS;
    if (most > PROGRESS_SHARED_SLOTS_MAX)
        most = PROGRESS_SHARED_SLOTS_MAX;
    uint64_t slots = arena_bytes / STAGING_SHARE / chunk_bytes;
    return (uint32_t)(slots < most ? slots : most);
}

/* Staging, the world group and what the daemon said about this rank. */
static int settle(struct shoal_job *job, const struct message *joined, struct error *error)
{
    job_set_place(job, joined);
    job->pinned_most = joined->pinned_bytes;
    if (arena_heap_init(&job->heap, job->arena.data_offset,
                        job->arena.total_bytes - job->arena.data_offset) < 0)
        return error_set(error, ERR_MEMORY, "out of memory for the arena's heap");
    uint64_t slots = staging_slots(job->arena.total_bytes, joined->chunk_bytes);
    uint64_t offset = job->arena.data_offset;
    if (slots > 0 && arena_heap_allocate(&job->heap, slots * joined->chunk_bytes, &offset) < 0)
        slots = 0;
    if (progress_init(&job->progress, &job->arena, offset, joined->chunk_bytes, (uint32_t)slots) <
        0)
        return error_set(error, ERR_MEMORY, "out of memory for the staging slots");
    progress_share(&job->progress, joined->local_size, joined->node_count);
    job->progress.clock_ns = clock_now_ns;
    job->progress.keeps = joined->recovery == MESSAGE_RECOVERY_ON;
    job->agreed = joined->generation > 1;
    job->numbered = joined->generation;
    struct shoal_group *world;
    return job_add_group(job, joined, (uint32_t)job->rank, (uint32_t)job->world_size, &world,
                         error);
}

static struct shoal_job *new_job(const struct job_settings *settings)
{
    struct shoal_job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&job->lock, NULL);
    pthread_mutex_init(&job->send_lock, NULL);
    pthread_cond_init(&job->changed, &attributes);
    pthread_cond_init(&job->background, &attributes);
    pthread_condattr_destroy(&attributes);
    job->pid = getpid();
    job->timeout_ms = settings->timeout_ms;
    snprintf(job->name, sizeof(job->name), "%s", settings->name);
    job->client.fd = -1;
    job->submission_doorbell = job->completion_doorbell = -1;
    job->wake_fd = job->listen_fd = job->completions_fd = job->arena_fd = -1;
    return job;
}

int job_create(struct shoal_job **job, const struct job_settings *settings, struct error *error)
{
    struct shoal_job *made = new_job(settings);
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for a job");
    struct message joined = {0};
    uint64_t deadline_ns = settings->deadline_ns;
    bool greeted = false;
    int code = forking_add(made, error);
    if (code == 0)
        code = client_connect(&made->client, settings->socket_path, deadline_ns, error);
    if (code == 0) {
        code = exchange_hellos(made, deadline_ns, error);
        greeted = code == 0;
    }
    if (code == 0)
        code = arena_create(&made->arena, settings->arena_bytes,
                            progress_ring_entries(settings->arena_bytes), &made->arena_fd, error);
    if (code == 0) {
        forking_keep_memory(made->arena.base, made->arena.total_bytes);
        code = make_descriptors(made, error);
    }
    if (code < 0 && greeted)
        joining_refuse(made, settings, error);
    if (code == 0)
        code = joining_ask(made, settings, &joined, error);
    if (code == 0) {
        code = settle(made, &joined, error);
        message_clear(&joined);
        if (code < 0)
            job_say_ending(made, error->text);
    }
    if (code < 0) {
        job_destroy(made);
        return code;
    }
    *job = made;
    return 0;
}

/* Free what allocations have kept. */
static void free_memory(struct shoal_job *job)
{
    arena_heap_clear(&job->heap);
    if (!job->device_stuck)
        arena_unmap(&job->arena);
    close_descriptor(job->arena_fd);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

void job_free(struct shoal_job *job, const void *memory)
{
    uint64_t offset = (uint64_t)((uintptr_t)memory - (uintptr_t)job->arena.base);
    pthread_mutex_lock(&job->lock);
    if (arena_heap_free(&job->heap, offset) == 0 && job->allocations > 0)
        job->allocations--;
    bool last = job->closed && job->allocations == 0;
    pthread_mutex_unlock(&job->lock);
    if (last)
        free_memory(job);
}

/* The caller's memory becomes like any other of the process: a fork inherits it. */
static void leave_memory(struct shoal_job *job)
{
    pthread_mutex_lock(&job->lock);
    job->closed = true;
    bool kept = job->allocations > 0;
    if (kept && !job->device_stuck)
        arena_make_private(&job->arena, job->arena_fd, true);
    pthread_mutex_unlock(&job->lock);
    if (!kept)
        free_memory(job);
}

void job_destroy(struct shoal_job *job)
{
    forking_remove(job);
    struct shoal_request *request, *next_request;
    DL_FOREACH_SAFE(job->requests, request, next_request)
    {
        request_clear(&request->core);
        free(request);
    }
    struct shoal_group *group, *next_group;
    DL_FOREACH_SAFE(job->groups, group, next_group)
    {
        free_group(group);
    }
    job_forget_lists(job);
    shared_free_all(job, NULL);
    client_close(&job->client);
    progress_clear(&job->progress);
    kept_memory_clear(&job->kept_memory);
    if (job->device && !job->device_stuck)
        device_queue_destroy(job->device);
    close_descriptor(job->submission_doorbell);
    close_descriptor(job->completion_doorbell);
    close_descriptor(job->wake_fd);
    close_descriptor(job->listen_fd);
    close_descriptor(job->completions_fd);
    pthread_cond_destroy(&job->background);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->send_lock);
    leave_memory(job);
}
