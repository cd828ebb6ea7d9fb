/* Results that a rank has missed. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/format/wire.h"
#include "worker/api/collective.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/job/shared.h"
#include "worker/shoal.h"

/* Numbers that the daemon of a rank answers with when it is asked what it keeps: as many i64, in
 * this order (doc/protocol/worker.md). */
enum replay_answer {
    REPLAY_FIRST,
    REPLAY_END,
    REPLAY_HAS,
    REPLAY_COUNT,
    REPLAY_DTYPE,
    REPLAY_OP,
    REPLAY_STEPS,
    REPLAY_ANSWERS = 8
};

struct replay {
    struct shoal_group *group;
    enum route_replay what;
    uint32_t from; /* the rank whose daemon is asked */
    uint64_t number;
    void *out;
    uint64_t count;
    enum dtype dtype;
};

static uint64_t position(const struct shoal_job *job)
{
    const struct progress_group *world = &job->groups->core;
    uint64_t begun = job->progress.keeps ? world->next_index : world->next_sequence + world->met;
    uint64_t own = job->agreed ? JOB_AGREEING : 0;
    return job->first_number + (begun > own ? begun - own : 0);
}

int shoal_position(shoal_job *job, uint64_t *number)
{
    struct error error;
    if (!number) {
        error_set(&error, ERR_INVALID, "shoal_position: number is NULL");
        return error_text_keep(&error);
    }
    if (job_enter(job, &error) < 0)
        return error_text_keep(&error);
    pthread_mutex_lock(&job->lock);
    *number = position(job);
    pthread_mutex_unlock(&job->lock);
    job_leave(job);
    return SHOAL_OK;
}

/* --- asking a daemon -------------------------------------------------------------------------- */

/* Lock held. */
static int replay_submit(const struct replay *replay, struct shoal_request *made,
                         enum start_mode mode, struct error *error)
{
    struct shoal_group *group = replay->group;
    struct shoal_job *job = group->job;
    uint64_t bytes = replay->count * dtype_bytes(replay->dtype);
    struct request_ask ask = {.kind = COLLECTIVE_SEND,
                              .dtype = replay->dtype,
                              .count = replay->count,
                              .recv = replay->out,
                              .replay = true};
    if (job->closing)
        return error_set(error, ERR_STATE, "the job is being closed");
    int code = shared_refuse(job, "replay", replay->out, bytes, error);
    bool bounces = bytes > 0 && !request_in_arena(&job->progress.memory, replay->out, bytes);
    if (code == 0 && bounces) {
        code = job_allocate(job, bytes, &made->bounce_offset, error);
        ask.recv = job->arena.base + made->bounce_offset;
    }
    ask.block = route_replay_block(replay->what, replay->from, group->rank, group->size);
    ask.route = route_find(COLLECTIVE_SEND, 0, ask.block, group->size);
    if (code == 0)
        code = progress_transfer(&job->progress, &group->core, &ask,
                                 WIRE_SEND_SEQUENCE | replay->number, group->rank,
                                 bounces ? replay->out : NULL, &made->core, error);
    if (code == 0)
        collective_started(job, made, mode);
    else if (made->bounce_offset)
        arena_heap_free(&job->heap, made->bounce_offset);
    return code;
}

static int replay_start(const struct replay *replay, enum start_mode mode,
                        struct shoal_request **request, struct error *error)
{
    struct shoal_job *job = replay->group->job;
    struct shoal_request *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for a request");
    pthread_mutex_lock(&job->lock);
    int code = replay_submit(replay, made, mode, error);
    pthread_mutex_unlock(&job->lock);
    if (code < 0)
        free(made);
    else
        *request = made;
    return code;
}

/* Ask the daemon of rank `from` what it keeps, into answers. */
static int replay_ask(struct shoal_group *group, uint32_t from, uint64_t number,
                      int64_t answers[REPLAY_ANSWERS], struct error *error)
{
    struct shoal_request *request = NULL;
    int64_t *got = calloc(REPLAY_ANSWERS, sizeof(*got));
    if (!got)
        return error_set(error, ERR_MEMORY, "out of memory to ask for results");
    struct replay replay = {.group = group,
                            .what = ROUTE_REPLAY_ASKS,
                            .from = from,
                            .number = number,
                            .out = got,
                            .count = REPLAY_ANSWERS,
                            .dtype = DTYPE_I64};
    int code = replay_start(&replay, START_WAITING, &request, error);
    if (code < 0) {
        free(got);
        return code;
    }
    code = collective_wait(request, error);
    for (int i = 0; i < REPLAY_ANSWERS && code == 0; i++)
        answers[i] = got[i];
    if (code != ERR_TIMEOUT)
        free(got);
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): after a time-out the answer may still come */
    return code;
}

/* --- finding a daemon ------------------------------------------------------------------------- */

/* The answers of all daemons that were asked, together. */
struct replay_finding {
    bool any, found;
    uint32_t from;
    uint64_t first, end; /* any */
    int64_t steps;
    int64_t answers[REPLAY_ANSWERS]; /* found: of `from` */
};

static int replay_look(struct shoal_group *group, uint32_t from, uint64_t number,
                       struct replay_finding *finding, struct error *error)
{
    int64_t answers[REPLAY_ANSWERS] = {0};
    if (from == group->rank)
        return 0;
    int code = replay_ask(group, from, number, answers, error);
    if (code < 0)
        return code;
    uint64_t first = (uint64_t)answers[REPLAY_FIRST], end = (uint64_t)answers[REPLAY_END];
    if (first < end) {
        finding->first = finding->any && finding->first < first ? finding->first : first;
        finding->end = finding->any && finding->end > end ? finding->end : end;
        finding->any = true;
    }
    finding->steps =
        answers[REPLAY_STEPS] > finding->steps ? answers[REPLAY_STEPS] : finding->steps;
    if (answers[REPLAY_HAS] != 1)
        return 0;
    finding->found = true;
    finding->from = from;
    for (int i = 0; i < REPLAY_ANSWERS; i++)
        finding->answers[i] = answers[i];
    return 0;
}

/* Ask the daemons of the other ranks, first the one that had a result the last time: until one has
 * that number, or with `all` every one. */
static int replay_find(struct shoal_group *group, uint64_t number, bool all,
                       struct replay_finding *finding, struct error *error)
{
    struct shoal_job *job = group->job;
    *finding = (struct replay_finding){0};
    pthread_mutex_lock(&job->lock);
    uint32_t first = job->replay_from < (int)group->size ? (uint32_t)job->replay_from : 0;
    pthread_mutex_unlock(&job->lock);
    int code = 0;
    for (uint32_t i = 0; i < group->size && code == 0 && (all || !finding->found); i++)
        code = replay_look(group, (first + i) % group->size, number, finding, error);
    if (code == 0 && finding->found) {
        pthread_mutex_lock(&job->lock);
        job->replay_from = (int)finding->from;
        pthread_mutex_unlock(&job->lock);
    }
    return code;
}

static int replay_missing(const struct replay_finding *finding, uint64_t number,
                          struct error *error)
{
    if (finding->steps == 0)
        return error_set(error, ERR_UNSUPPORTED,
                         "replay of result %" PRIu64
                         ": no daemon of another rank keeps results (replay.keep_steps)",
                         number);
    if (!finding->any)
        return error_set(error, ERR_STATE,
                         "replay of result %" PRIu64 ": the other ranks' daemons have none yet",
                         number);
    return error_set(error, ERR_STATE,
                     "replay of result %" PRIu64 ": it is not kept; kept are all-reduces of the "
                     "numbers %" PRIu64 " to %" PRIu64,
                     number, finding->first, finding->end - 1);
}

/* --- the calls -------------------------------------------------------------------------------- */

static int replay_check_group(const struct shoal_group *group, struct error *error)
{
    int code = group_check(group, error);
    if (code == 0 && group != group->job->groups)
        code = error_set(error, ERR_INVALID, "replay: results of the group of all ranks are kept");
    if (code == 0 && route_replay_block(ROUTE_REPLAY_ASKS, 0, 0, group->size) == 0)
        code =
            error_set(error, ERR_INVALID, "replay: a group of %u ranks is too large", group->size);
    return code;
}

static int replay_check(const struct replay *replay, struct error *error)
{
    size_t element_bytes = dtype_bytes(replay->dtype);
    if (element_bytes == 0)
        return error_set(error, ERR_INVALID, "replay: %d is no element type (0 to %d)",
                         (int)replay->dtype, DTYPE_COUNT - 1);
    if (replay->count > 0 && !replay->out)
        return error_set(error, ERR_INVALID, "replay: out is NULL");
    if (replay->count > (1ull << 62) / element_bytes)
        return error_set(error, ERR_INVALID, "replay: %" PRIu64 " elements are too many",
                         replay->count);
    if (replay->number > INT64_MAX)
        return error_set(error, ERR_INVALID, "replay: no result has the number %" PRIu64,
                         replay->number);
    return 0;
}

static int replay_call(struct replay *replay, struct shoal_request **request, struct error *error)
{
    struct replay_finding finding = {0};
    struct shoal_request *made = NULL;
    int code = replay_check(replay, error);
    if (code == 0)
        code = replay_find(replay->group, replay->number, false, &finding, error);
    if (code == 0 && !finding.found)
        code = replay_missing(&finding, replay->number, error);
    if (code < 0)
        return code;
    if ((uint64_t)finding.answers[REPLAY_COUNT] != replay->count ||
        finding.answers[REPLAY_DTYPE] != (int64_t)replay->dtype)
        return error_set(error, ERR_INVALID,
                         "replay of result %" PRIu64 ": it has %" PRId64 " %s, not %" PRIu64 " %s",
                         replay->number, finding.answers[REPLAY_COUNT],
                         dtype_name((unsigned)finding.answers[REPLAY_DTYPE]), replay->count,
                         dtype_name(replay->dtype));
    replay->from = finding.from;
    code = replay_start(replay, request ? START_ASYNC : START_WAITING, &made, error);
    if (code < 0)
        return code;
    if (!request)
        return collective_wait(made, error);
    *request = made;
    return 0;
}

int shoal_replay(shoal_group *group, uint64_t number, void *out, size_t count,
                 enum shoal_dtype dtype, shoal_request **request)
{
    struct error error;
    struct replay replay = {.group = group,
                            .what = ROUTE_REPLAY,
                            .number = number,
                            .out = out,
                            .count = count,
                            .dtype = (enum dtype)dtype};
    if (replay_check_group(group, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = group->job;
    if (job_enter(job, &error) < 0)
        return error_text_keep(&error);
    int code = replay_call(&replay, request, &error);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

int shoal_replay_kept(shoal_group *group, uint64_t *first, uint64_t *end)
{
    struct error error;
    struct replay_finding finding;
    if (replay_check_group(group, &error) < 0)
        return error_text_keep(&error);
    if (!first || !end) {
        error_set(&error, ERR_INVALID, "shoal_replay_kept: first or end is NULL");
        return error_text_keep(&error);
    }
    struct shoal_job *job = group->job;
    if (job_enter(job, &error) < 0)
        return error_text_keep(&error);
    int code = replay_find(group, 0, true, &finding, &error);
    job_leave(job);
    if (code < 0)
        return error_text_keep(&error);
    *first = finding.any ? finding.first : 0;
    *end = finding.any ? finding.end : 0;
    return SHOAL_OK;
}
