/* Groups of ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "common/format/wire.h"
#include "worker/api/group.h"
#include "worker/drive/drive.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/job/shared.h"
#include "worker/shoal.h"

shoal_group *shoal_world(shoal_job *job)
{
    return job ? job->groups : NULL;
}

static int group_check_given(const struct shoal_group *group)
{
    struct error error;
    return group_check(group, &error) < 0 ? error_text_keep(&error) : SHOAL_OK;
}

int shoal_group_rank(const shoal_group *group)
{
    int code = group_check_given(group);
    return code < 0 ? code : (int)group->rank;
}

int shoal_group_size(const shoal_group *group)
{
    int code = group_check_given(group);
    return code < 0 ? code : (int)group->size;
}

/* *index: this process's position in the list. */
static int check_ranks(const struct shoal_job *job, const int *ranks, int count, uint32_t *index,
                       struct error *error)
{
    if (!ranks || count < 1 || count > job->world_size)
        return error_set(error, ERR_INVALID, "a group of %d ranks: must be 1 to the world size %d",
                         count, job->world_size);
    int *positions = calloc((size_t)job->world_size, sizeof(*positions)); /* from 1; 0: none */
    if (!positions)
        return error_set(error, ERR_MEMORY, "out of memory for a group");
    int code = 0;
    for (int i = 0; i < count && code == 0; i++) {
        if (ranks[i] < 0 || ranks[i] >= job->world_size)
            code = error_set(error, ERR_INVALID, "rank %d (number %d of the group) is not 0 to %d",
                             ranks[i], i, job->world_size - 1);
        else if (positions[ranks[i]])
            code = error_set(error, ERR_INVALID, "rank %d is in the group twice, at %d and %d",
                             ranks[i], positions[ranks[i]] - 1, i);
        else
            positions[ranks[i]] = i + 1;
    }
    if (code == 0 && !positions[job->rank])
        code = error_set(error, ERR_INVALID, "this rank, %d, is not in the group", job->rank);
    if (code == 0)
        *index = (uint32_t)positions[job->rank] - 1;
    free(positions);
    return code;
}

static bool opening_answered(const void *argument)
{
    const struct group_opening *opening = argument;
    return opening->answered;
}

static bool group_job_goes(const void *argument)
{
    return !((const struct shoal_job *)argument)->resuming;
}

int group_await(struct shoal_job *job, int timeout_ms, struct error *error)
{
    enum drive_end end = drive_wait(job, group_job_goes, job, job_deadline_ns(job, timeout_ms));
    if (end == DRIVE_CLOSING)
        return error_set(error, ERR_STATE, "the job was closed while it went on");
    if (end == DRIVE_TIMEOUT)
        return error_set(error, ERR_TIMEOUT,
                         "the job goes on after a loss, and has not in time: %s",
                         job->resume_cause.text);
    return 0;
}

int group_opening_ask(struct shoal_job *job, struct group_opening *opening, struct message *message,
                      int timeout_ms, const char *what, struct error *error)
{
    message->request = opening->request = ++job->next_opening;
    opening->descriptor = -1;
    DL_APPEND(job->openings, opening);
    job_begin_saying(job);
    pthread_mutex_unlock(&job->lock);
    int code = job_send(job, message, job_deadline_ns(job, timeout_ms), error);
    pthread_mutex_lock(&job->lock);
    job_end_saying(job);
    if (code == 0) {
        uint64_t deadline_ns = job_deadline_ns(job, timeout_ms) + JOB_GRACE_MS * NS_PER_MS;
        enum drive_end end = drive_wait(job, opening_answered, opening, deadline_ns);
        if (end == DRIVE_TIMEOUT)
            code = error_set(error, ERR_TIMEOUT, "the daemon has not opened %s in %d ms", what,
                             timeout_ms);
        else if (end == DRIVE_CLOSING)
            code =
                error_set(error, ERR_STATE, "the job was closed while %s was being opened", what);
    }
    DL_DELETE(job->openings, opening); /* NOLINT(clang-analyzer-core.NullDereference) */
    return code;
}

static int send_opening(struct shoal_job *job, struct group_opening *opening, const int *ranks,
                        int count, uint32_t nth, int timeout_ms, struct error *error)
{
    struct message message = {
        .type = MESSAGE_WORKER_GROUP_OPEN,
        .nth = nth,
        .timeout_ms = (uint32_t)timeout_ms,
    };
    uint32_t *values = calloc((size_t)count, sizeof(*values));
    if (!values)
        return error_set(error, ERR_MEMORY, "out of memory for a group");
    for (int i = 0; i < count; i++)
        values[i] = (uint32_t)ranks[i];
    message.ranks = (struct message_list){.values = values, .count = (uint32_t)count};
    char what[64];
    snprintf(what, sizeof(what), "a group of %d ranks", count);
    int code = group_opening_ask(job, opening, &message, timeout_ms, what, error);
    free(values);
    return code;
}

/* Ask the daemon once and wait for its answer. On success *answer is the caller's. ERR_AGAIN: the
 * job has gone on meanwhile, and the answer was about its last generation. Lock held, and let go of
 * meanwhile. */
static int group_ask_once(struct shoal_job *job, const int *ranks, int count, int timeout_ms,
                          struct message *answer, struct error *error)
{
    struct group_opening opening = {.wanted = MESSAGE_WORKER_GROUP_OPENED};
    uint32_t nth = 0, losses = job->losses;
    int code = job->progress.failed
                   ? error_set(error, job->progress.failure.code, "%s", job->progress.failure.text)
                   : job_count_list(job, ranks, count, &nth, error);
    if (code < 0)
        return code;
    code = send_opening(job, &opening, ranks, count, nth, timeout_ms, error);
    if (code == 0 && opening.error.code < 0) {
        *error = opening.error;
        code = error->code;
    }
    if (code == 0 && job->losses != losses)
        code = error_set(error, ERR_AGAIN, "the job went on while a group was being opened");
    if (code < 0 && job->losses == losses && opening.answered)
        job_uncount_list(job, ranks, count, nth);
    if (code == 0)
        *answer = opening.answer;
    else
        message_clear(&opening.answer);
    return code;
}

/* Ask the daemon as group_ask_once does, until the answer is about this generation. */
static int group_ask(struct shoal_job *job, const int *ranks, int count, int timeout_ms,
                     struct message *answer, struct error *error)
{
    int code;
    do {
        code = group_await(job, timeout_ms, error);
        if (code == 0)
            code = group_ask_once(job, ranks, count, timeout_ms, answer, error);
    } while (code == ERR_AGAIN);
    return code;
}

/* Tell the daemon that a group of this generation is closed; the job does not go on meanwhile. Lock
 * held, and let go of meanwhile. */
static void group_say_closed(struct shoal_job *job, int32_t number)
{
    struct message message = {.type = MESSAGE_WORKER_GROUP_CLOSE, .group = number};
    if (number < 0 || job->daemon_gone)
        return; /* of an earlier generation, and not opened again */
    job_begin_saying(job);
    pthread_mutex_unlock(&job->lock);
    job_send(job, &message, job_deadline_ns(job, -1), NULL);
    pthread_mutex_lock(&job->lock);
    job_end_saying(job);
}

static int group_open(struct shoal_job *job, const int *ranks, int count, int timeout_ms,
                      struct shoal_group **group, struct error *error)
{
    uint32_t rank = 0;
    int code = check_ranks(job, ranks, count, &rank, error);
    if (code < 0)
        return code;
    if (timeout_ms < 0)
        timeout_ms = job->timeout_ms;
    else if (timeout_ms == 0)
        timeout_ms = 1; /* 0 would be the daemon's own */
    struct message answer;
    int *kept = calloc((size_t)count, sizeof(*kept));
    if (!kept)
        return error_set(error, ERR_MEMORY, "out of memory for a group");
    memcpy(kept, ranks, (size_t)count * sizeof(*kept));
    pthread_mutex_lock(&job->lock);
    code = group_ask(job, ranks, count, timeout_ms, &answer, error);
    bool answered = code == 0;
    if (answered)
        code = job_add_group(job, &answer, rank, (uint32_t)count, group, error);
    if (code == 0)
        (*group)->ranks = kept;
    else
        free(kept);
    if (code < 0 && answered)
        group_say_closed(job, answer.group);
    pthread_mutex_unlock(&job->lock);
    if (answered)
        message_clear(&answer);
    return code;
}

int shoal_group_open(shoal_job *job, const int *ranks, int count, int timeout_ms,
                     shoal_group **group)
{
    struct error error;
    if (!group || timeout_ms < -1) {
        error_set(&error, ERR_INVALID, "shoal_group_open: %s",
                  group ? "timeout_ms is less than -1" : "group is NULL");
        return error_text_keep(&error);
    }
    int code = job_enter(job, &error);
    if (code < 0)
        return error_text_keep(&error);
    code = group_open(job, ranks, count, timeout_ms, group, &error);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

int shoal_group_close(shoal_group *group)
{
    struct error error;
    if (!group)
        return SHOAL_OK;
    struct shoal_job *job = group->job;
    int code = job_enter(job, &error);
    if (code < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    if (job->resuming)
        code = group_await(job, -1, &error);
    int32_t number = (int32_t)group->core.number;
    if (code < 0)
        ;
    else if (group == job->groups)
        code = error_set(&error, ERR_INVALID, "the group of all ranks is closed with the job only");
    else if (group->core.request_count > 0)
        code = error_set(&error, ERR_STATE,
                         "group %" PRIu32 " has %" PRIu32 " collectives under way: wait for them",
                         group->core.number, group->core.request_count);
    else if (group->fusion_count > 0)
        code = error_set(&error, ERR_STATE,
                         "group %" PRIu32 " has %" PRIu32 " fusions: free them first",
                         group->core.number, group->fusion_count);
    if (code == 0) {
        shared_free_all(job, group);
        job_remove_group(job, group);
        group_say_closed(job, number);
    }
    pthread_mutex_unlock(&job->lock);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

struct group_settings group_settings_read(const struct shoal_group *group)
{
    pthread_t thread = pthread_self();
    for (size_t i = 0; i < group->settings_count; i++)
        if (pthread_equal(group->settings[i].thread, thread) &&
            group->settings[i].mark == error_text_thread())
            return group->settings[i];
    return (struct group_settings){0};
}

/* Whether nothing is set; another thread may then have the entry. */
static bool settings_unset(const struct group_settings *settings)
{
    return settings->priority == 0 && settings->identity == 0 && !settings->on_device;
}

struct group_settings *group_settings_write(struct shoal_group *group)
{
    pthread_t thread = pthread_self();
    struct group_settings *unset = NULL;
    for (size_t i = 0; i < group->settings_count; i++) {
        if (pthread_equal(group->settings[i].thread, thread)) {
            /* Another thread that had its name may have set something. */
            if (group->settings[i].mark != error_text_thread())
                group->settings[i] =
                    (struct group_settings){.thread = thread, .mark = error_text_thread()};
            return &group->settings[i];
        }
        if (settings_unset(&group->settings[i]))
            unset = &group->settings[i];
    }
    if (!unset) {
        struct group_settings *settings =
            realloc(group->settings, (group->settings_count + 1) * sizeof(*settings));
        if (!settings)
            return NULL;
        group->settings = settings;
        unset = &settings[group->settings_count++];
    }
    *unset = (struct group_settings){.thread = thread, .mark = error_text_thread()};
    return unset;
}

/* Sets what is not NULL. */
static int group_set(shoal_group *group, const uint32_t *priority, const uint32_t *identity)
{
    struct error error;
    int code = group_check(group, &error);
    if (code == 0)
        code = job_check(group->job, &error);
    if (code < 0)
        return error_text_keep(&error);
    struct shoal_job *job = group->job;
    pthread_mutex_lock(&job->lock);
    struct group_settings *settings = group_settings_write(group);
    if (settings && priority)
        settings->priority = *priority;
    if (settings && identity)
        settings->identity = *identity;
    if (!settings)
        code = error_set(&error, ERR_MEMORY, "out of memory for a group's settings");
    pthread_mutex_unlock(&job->lock);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

int shoal_group_set_priority(shoal_group *group, uint32_t priority)
{
    return group_set(group, &priority, NULL);
}

int shoal_group_set_identity(shoal_group *group, uint32_t identity)
{
    if (identity < WIRE_IDENTITY_FUSION)
        return group_set(group, NULL, &identity);
    struct error error;
    error_set(&error, ERR_INVALID, "shoal_group_set_identity: got %" PRIu32 ", must be below 2^31",
              identity);
    return error_text_keep(&error);
}
