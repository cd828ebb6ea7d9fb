/* Memory for results that the ranks of a node share. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "worker/api/group.h"
#include "worker/job/error_text.h"
#include "worker/job/forking.h"
#include "worker/job/job.h"
#include "worker/job/shared.h"
#include "worker/shoal.h"

/* --- asking for it ------------------------------------------------------------------------- */

/* Map the memory of an answered opening, and take its descriptor. Lock held. */
static int map_shared(struct shoal_group *group, const struct group_opening *opening,
                      uint64_t bytes, struct shared_memory *made, struct error *error)
{
    struct stat status;
    int fd = opening->descriptor;
    if (fd < 0)
        return error_set(error, ERR_PROTOCOL, "the daemon opened shared memory without giving it");
    int code = 0;
    void *base = MAP_FAILED;
    if (fstat(fd, &status) < 0 || (uint64_t)status.st_size < bytes)
        code = error_set(error, ERR_PROTOCOL,
                         "the daemon gave less than %" PRIu64 " bytes of shared memory", bytes);
    if (code == 0) {
        base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
            code = error_set(error, ERR_MEMORY, "cannot map %" PRIu64 " bytes of shared memory: %s",
                             bytes, strerror(errno));
    }
    close(fd); /* the mapping holds it */
    if (code == 0) {
        forking_keep_memory(base, bytes);
        *made = (struct shared_memory){
            .group = group, .number = opening->answer.segment, .base = base, .bytes = bytes};
    }
    return code;
}

/* Tell the daemon that this rank is done with a piece, of this generation. Lock held, and let go of
 * meanwhile. */
static void give_back(struct shoal_job *job, uint32_t group, uint32_t number)
{
    struct message message = {
        .type = MESSAGE_SHARED_CLOSE, .group = (int32_t)group, .segment = number};
    job_begin_saying(job);
    pthread_mutex_unlock(&job->lock);
    job_send(job, &message, job_deadline_ns(job, -1), NULL);
    pthread_mutex_lock(&job->lock);
    job_end_saying(job);
}

/* Drop an answer about the last generation: its memory is nobody's any more. Lock held. */
static int refuse_old(struct group_opening *opening, struct error *error)
{
    if (opening->descriptor >= 0)
        close(opening->descriptor);
    return error_set(error, ERR_AGAIN, "the job went on while shared memory was being opened");
}

/* ERR_AGAIN: the job has gone on meanwhile. Lock held, and let go of meanwhile. */
static int ask_once(struct shoal_group *group, uint64_t bytes, struct shared_memory *made,
                    struct error *error)
{
    struct shoal_job *job = group->job;
    struct progress_group *core = &group->core;
    uint32_t losses = job->losses;
    if (core->failed)
        return error_set(error, core->failure.code, "%s", core->failure.text);
    struct group_opening opening = {.wanted = MESSAGE_SHARED_OPENED};
    struct message message = {.type = MESSAGE_SHARED_OPEN,
                              .group = (int32_t)core->number,
                              .nth = group->shared_count++,
                              .bytes = bytes};
    char what[64];
    snprintf(what, sizeof(what), "%" PRIu64 " bytes of shared memory", bytes);
    int code = group_opening_ask(job, &opening, &message, job->timeout_ms, what, error);
    bool refused = code == 0 && opening.error.code < 0;
    if (refused) {
        *error = opening.error;
        code = error->code;
    }
    if (code == 0 && job->losses != losses)
        code = refuse_old(&opening, error);
    /* The memory may be asked for again under the same number, by ranks that have asked and by
     * those that have not yet. */
    if ((refused || code == ERR_AGAIN) && group->shared_count == message.nth + 1)
        group->shared_count = message.nth;
    if (code == 0) {
        code = map_shared(group, &opening, bytes, made, error);
        if (code < 0)
            give_back(job, core->number, opening.answer.segment);
    }
    message_clear(&opening.answer);
    return code;
}

/* Ask for the memory as ask_once does, until the answer is about this generation. */
static int ask_for_shared(struct shoal_group *group, uint64_t bytes, struct shared_memory *made,
                          struct error *error)
{
    int code;
    do {
        code = group_await(group->job, -1, error);
        if (code == 0)
            code = ask_once(group, bytes, made, error);
    } while (code == ERR_AGAIN);
    return code;
}

const void *shoal_shared_alloc(shoal_group *group, size_t bytes)
{
    struct error error;
    int code = group_check(group, &error);
    if (code == 0 && (bytes == 0 || bytes > INT64_MAX))
        code = error_set(&error, ERR_INVALID, "shoal_shared_alloc: %zu bytes", bytes);
    struct shared_memory *made = code == 0 ? calloc(1, sizeof(*made)) : NULL;
    if (code == 0 && !made)
        code = error_set(&error, ERR_MEMORY, "out of memory for shared memory");
    if (code == 0)
        code = job_enter(group->job, &error);
    if (code < 0 || !made) {
        free(made);
        error_text_keep(&error);
        return NULL;
    }
    struct shoal_job *job = group->job;
    const void *base = NULL;
    pthread_mutex_lock(&job->lock);
    code = ask_for_shared(group, bytes, made, &error);
    if (code == 0) {
        DL_APPEND(job->shared, made);
        base = made->base;
    }
    pthread_mutex_unlock(&job->lock);
    job_leave(job);
    if (!base) {
        free(made);
        error_text_keep(&error);
    }
    return base;
}

/* --- giving it back ------------------------------------------------------------------------ */

int shoal_shared_free(shoal_group *group, const void *memory)
{
    struct error error;
    if (!memory)
        return SHOAL_OK;
    int code = group_check(group, &error);
    if (code == 0)
        code = job_enter(group->job, &error);
    if (code < 0)
        return error_text_keep(&error);
    struct shoal_job *job = group->job;
    struct shared_memory *shared;
    pthread_mutex_lock(&job->lock);
    DL_FOREACH(job->shared, shared)
    {
        if (shared->group == group && shared->base == memory)
            break;
    }
    uint32_t number = shared ? shared->number : 0;
    if (!shared)
        code =
            error_set(&error, ERR_INVALID, "shoal_shared_free: not shared memory of group %" PRIu32,
                      group->core.number);
    else if (shared_in_use(shared))
        code = error_set(&error, ERR_STATE,
                         "an all_reduce into the shared memory is under way: wait for it");
    else
        shared_unmap(job, shared);
    if (code == 0 && !job->daemon_gone)
        give_back(job, group->core.number, number);
    pthread_mutex_unlock(&job->lock);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}
