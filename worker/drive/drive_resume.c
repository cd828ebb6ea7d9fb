#include "worker/drive/drive_resume.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/drive/drive_sleep.h"
#include "worker/drive/drive_socket.h"
#include "worker/drive/drive_step.h"
#include "worker/drive/drive_tell.h"
#include "worker/job/rejoin.h"

/* For so long the others are waited for when they live and do not ask: they are stopped. */
#define STRAGGLERS_MS 5000
/* Number of a group that is not open in this generation; no daemon gives it. */
#define NO_NUMBER UINT32_MAX

/* A collective of the library's own, and what it is about. */
struct resume_collective {
    struct request request;
    struct shoal_group *group;
    /* Results that this rank has without a gap, minus those it has told, minus its open groups. */
    int64_t least[3];
};

struct resume {
    struct shoal_job *job;
    uint64_t deadline_ns;
    uint32_t losses; /* when this try began */
    int64_t *open;   /* [world_size][open_count]: the identities of each rank's groups; 0: none */
    uint64_t open_count;
    struct resume_collective counting;
    struct resume_collective *asks; /* [group_count], the group of all ranks first */
    struct group_opening *openings; /* [group_count]; the first is not used */
    uint32_t group_count;
};

/* --- collectives of the library's own */

static int resume_begin(struct resume *resume, struct resume_collective *one, enum dtype dtype,
                        enum reduce_op op, void *data, uint64_t count, struct error *error)
{
    struct shoal_job *job = resume->job;
    struct request_ask ask = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = dtype,
                              .op = op,
                              .count = count,
                              .send = data,
                              .recv = data,
                              .internal = true};
    memset(&one->request, 0, sizeof(one->request));
    int code = progress_submit(&job->progress, &one->group->core, &ask, NULL, 0, one->group->rank,
                               &one->request, error);
    if (code < 0)
        one->request.state = REQUEST_COMPLETE;
    drive_ring_daemon(job);
    return code;
}

static int resume_stopped(const struct resume *resume, struct error *error)
{
    const struct shoal_job *job = resume->job;
    if (job->closing)
        return error_set(error, ERR_STATE, "the job is being closed");
    if (job->progress.failed)
        return error_set(error, job->progress.failure.code, "%s", job->progress.failure.text);
    if (job->losses != resume->losses)
        return error_set(error, ERR_LOST, "%s", job->resume_cause.text);
    if (clock_now_ns() >= resume->deadline_ns)
        return error_set(error, ERR_TIMEOUT, "the time to go on has passed after: %s",
                         job->resume_cause.text);
    return 0;
}

/* Drive until done(argument). */
static int resume_drive(struct resume *resume, bool (*done)(const void *argument),
                        const void *argument, struct error *error)
{
    struct shoal_job *job = resume->job;
    int code;
    while ((code = resume_stopped(resume, error)) == 0 && !done(argument)) {
        if (!drive_step(job) && !done(argument))
            drive_sleep(job, resume->deadline_ns);
    }
    return code;
}

static bool resume_is_over(const void *argument)
{
    const struct resume_collective *one = argument;
    return one->request.state == REQUEST_COMPLETE;
}

/* Wait for one that has begun. */
static int resume_end(struct resume *resume, struct resume_collective *one, struct error *error)
{
    int code = resume_drive(resume, resume_is_over, one, error);
    if (code == 0 && one->request.result < 0)
        code = error_set(error, one->request.result, "%s",
                         one->request.error_text ? one->request.error_text : "");
    return code;
}

/* Count the groups that are used on, but for that of all ranks. */
static uint64_t resume_own_groups(const struct shoal_job *job)
{
    uint64_t count = 0;
    for (const struct shoal_group *group = job->groups->next; group; group = group->next)
        count += !group->core.failed;
    return count;
}

static int resume_begin_position(struct resume *resume, struct resume_collective *one,
                                 struct error *error)
{
    uint64_t done, told;
    progress_position(&one->group->core, &done, &told);
    one->least[0] = (int64_t)done;
    one->least[1] = -(int64_t)told;
    one->least[2] = -(int64_t)resume_own_groups(resume->job);
    return resume_begin(resume, one, DTYPE_I64, REDUCE_MIN, one->least, 3, error);
}

/* Whether what somebody has been told everybody has. */
static int resume_check_position(const struct resume *resume, const struct resume_collective *one,
                                 struct error *error)
{
    if (one->least[0] >= -one->least[1])
        return 0;
    return error_set(error, ERR_AGAIN, "%s; a rank lacks results that another one has",
                     resume->job->resume_cause.text);
}

/* --- groups */

/* All ranks learn of each other's groups. The numbers that these have are of different generations
 * where the last try came further on some ranks than on others: what counts is the identity. */
static int resume_gather_groups(struct resume *resume, struct error *error)
{
    struct shoal_job *job = resume->job;
    uint64_t most = (uint64_t)-resume->asks[0].least[2], own = 0;
    if (most == 0)
        return 0;
    if (most > PROGRESS_GROUPS_MOST || resume_own_groups(job) > most)
        return error_set(error, ERR_PROTOCOL, "a rank says that it has %" PRIu64 " groups", most);
    resume->open = calloc((uint64_t)job->world_size * most, sizeof(*resume->open));
    if (!resume->open)
        return error_set(error, ERR_MEMORY, "out of memory to go on");
    resume->open_count = most;
    for (const struct shoal_group *group = job->groups->next; group; group = group->next) {
        if (!group->core.failed)
            resume->open[(uint64_t)job->rank * most + own++] = (int64_t)group->identity;
    }
    int code = resume_begin(resume, &resume->counting, DTYPE_I64, REDUCE_SUM, resume->open,
                            (uint64_t)job->world_size * most, error);
    return code < 0 ? code : resume_end(resume, &resume->counting, error);
}

static bool resume_rank_has(const struct resume *resume, int rank, uint64_t identity)
{
    for (uint64_t i = 0; i < resume->open_count; i++) {
        if (resume->open[(uint64_t)rank * resume->open_count + i] == (int64_t)identity)
            return true;
    }
    return false;
}

static bool resume_all_have(const struct resume *resume, const struct shoal_group *group)
{
    for (uint32_t i = 0; i < group->size; i++) {
        if (!resume_rank_has(resume, group->ranks[i], group->identity))
            return false;
    }
    return true;
}

/* Some rank of it has closed it: all that others have is stable, and nobody uses it any more. */
static void resume_bury(struct shoal_job *job, struct shoal_group *group)
{
    struct error error;
    uint64_t done, told, now_ns = clock_now_ns();
    progress_position(&group->core, &done, &told);
    error_set(&error, ERR_STATE, "another rank has closed the group, or has not opened it: %s",
              job->resume_cause.text);
    progress_tell_results(&job->progress, &group->core, done, now_ns);
    progress_fail_group(&job->progress, &group->core, &error, now_ns);
}

static int resume_by_identity(const void *a, const void *b)
{
    const struct resume_collective *one = a, *other = b;
    uint64_t first = one->group->identity, second = other->group->identity;
    return first < second ? -1 : first > second;
}

/* List the groups that all their ranks have open, in the order in which they were opened, and bury
 * the others. A group forgets its number, which may be another's now. */
static void resume_list_groups(struct resume *resume)
{
    struct shoal_job *job = resume->job;
    struct shoal_group *group;
    uint32_t count = 1;
    for (group = job->groups->next; group; group = group->next) {
        group->core.number = NO_NUMBER;
        if (group->core.failed)
            continue;
        if (resume_all_have(resume, group))
            resume->asks[count++].group = group;
        else
            resume_bury(job, group);
    }
    resume->group_count = count;
    qsort(&resume->asks[1], count - 1, sizeof(resume->asks[0]), resume_by_identity);
}

static int resume_send_opening(struct resume *resume, uint32_t index, struct error *error)
{
    struct shoal_job *job = resume->job;
    struct shoal_group *group = resume->asks[index].group;
    struct group_opening *opening = &resume->openings[index];
    uint32_t nth = 0;
    int code = resume_stopped(resume, error);
    if (code < 0)
        return code;
    code = job_count_list(job, group->ranks, (int)group->size, &nth, error);
    uint32_t *values = calloc(group->size, sizeof(*values));
    if (code < 0 || !values) {
        free(values);
        return code < 0 ? code : error_set(error, ERR_MEMORY, "out of memory for a group");
    }
    for (uint32_t i = 0; i < group->size; i++)
        values[i] = (uint32_t)group->ranks[i];
    *opening = (struct group_opening){
        .request = ++job->next_opening, .wanted = MESSAGE_WORKER_GROUP_OPENED, .descriptor = -1};
    DL_APPEND(job->openings, opening);
    uint64_t now_ns = clock_now_ns();
    uint64_t left_ns = resume->deadline_ns > now_ns ? resume->deadline_ns - now_ns : 0;
    struct message message = {
        .type = MESSAGE_WORKER_GROUP_OPEN,
        .request = opening->request,
        .nth = nth,
        .timeout_ms = (uint32_t)(left_ns / NS_PER_MS + 1),
        .ranks = {.values = values, .count = group->size},
    };
    pthread_mutex_unlock(&job->lock);
    code = job_send(job, &message, resume->deadline_ns, error);
    pthread_mutex_lock(&job->lock);
    free(values);
    return code;
}

static bool resume_is_answered(const void *argument)
{
    const struct group_opening *opening = argument;
    return opening->answered;
}

static int resume_take_group(struct resume *resume, uint32_t index, struct error *error)
{
    struct group_opening *opening = &resume->openings[index];
    int code = resume_drive(resume, resume_is_answered, opening, error);
    if (code == 0 && opening->error.code < 0) {
        *error = opening->error;
        return error->code;
    }
    return code < 0 ? code : job_renew_rule(resume->asks[index].group, &opening->answer, error);
}

/* Whether the daemon lets one more group be asked for while those from `taken` on are. */
static bool resume_has_room(const struct resume *resume, uint32_t taken, uint32_t sent)
{
    uint64_t ranks = 0;
    for (uint32_t i = taken; i <= sent; i++)
        ranks += resume->asks[i].group->size;
    return sent == taken ||
           (sent - taken < MESSAGE_GROUPS_WAITED_FOR_MAX && ranks <= MESSAGE_RANKS_WAITED_FOR_MAX);
}

/* Open the listed groups, as many at once as the daemon lets a rank wait for. All ranks have them
 * in the same order, so all ranks of the first group that is not open yet ask for it. */
static int resume_open_groups(struct resume *resume, struct error *error)
{
    struct shoal_job *job = resume->job;
    int code = 0;
    uint32_t sent = 1;
    job_forget_lists(job);
    for (uint32_t taken = 1; taken < resume->group_count && code == 0; taken++) {
        while (code == 0 && sent < resume->group_count && resume_has_room(resume, taken, sent))
            code = resume_send_opening(resume, sent++, error);
        if (code == 0)
            code = resume_take_group(resume, taken, error);
    }
    for (uint32_t i = 1; i < sent; i++) {
        struct group_opening *opening = &resume->openings[i];
        if (!opening->request)
            continue;
        DL_DELETE(job->openings, opening); /* NOLINT(clang-analyzer-core.NullDereference): it is */
        message_clear(&opening->answer);
    }
    return code;
}

/* --- a try */

static bool resume_make_lists(struct resume *resume)
{
    const struct shoal_group *group;
    uint32_t count = 1; /* the first is that of all ranks, and always there */
    for (group = resume->job->groups->next; group; group = group->next)
        count++;
    resume->asks = calloc(count, sizeof(*resume->asks));
    resume->openings = calloc(count, sizeof(*resume->openings));
    if (!resume->asks || !resume->openings)
        return false;
    resume->asks[0].group = resume->counting.group = resume->job->groups;
    resume->group_count = 1;
    return true;
}

static void resume_free_lists(struct resume *resume)
{
    request_clear(&resume->counting.request);
    for (uint32_t i = 0; resume->asks && i < resume->group_count; i++)
        request_clear(&resume->asks[i].request);
    free(resume->open);
    free(resume->asks);
    free(resume->openings);
    resume->open = NULL;
    resume->asks = NULL;
    resume->openings = NULL;
    resume->open_count = 0;
    resume->group_count = 0;
    memset(&resume->counting, 0, sizeof(resume->counting));
}

/* In the next generation: which groups there are, and how far each is. */
static int resume_agree(struct resume *resume, struct error *error)
{
    struct resume_collective *world = &resume->asks[0];
    int code = resume_begin_position(resume, world, error);
    if (code == 0)
        code = resume_end(resume, world, error);
    if (code == 0)
        code = resume_check_position(resume, world, error);
    if (code == 0)
        code = resume_gather_groups(resume, error);
    if (code < 0)
        return code;
    resume_list_groups(resume);
    code = resume_open_groups(resume, error);
    for (uint32_t i = 1; i < resume->group_count && code == 0; i++)
        code = resume_begin_position(resume, &resume->asks[i], error);
    for (uint32_t i = 1; i < resume->group_count && code == 0; i++) {
        code = resume_end(resume, &resume->asks[i], error);
        if (code == 0)
            code = resume_check_position(resume, &resume->asks[i], error);
    }
    return code;
}

/* Restore the data of collectives that are begun anew: they send what they sent before. Only the
 * driver takes requests out of the list, so the list stays while the lock is let go of. */
static void resume_restore(struct shoal_job *job, const struct resume_collective *one)
{
    const struct request *whole = one->group->core.kept;
    while (whole) {
        if (whole->index >= (uint64_t)one->least[0]) {
            pthread_mutex_unlock(&job->lock);
            request_restore(whole);
            pthread_mutex_lock(&job->lock);
        }
        whole = whole->kept_next;
    }
}

/* The daemons learn which numbers the collectives have that are begun anew. */
static void resume_number(struct resume *resume)
{
    struct shoal_job *job = resume->job;
    const struct resume_collective *world = &resume->asks[0];
    uint64_t sequence = world->group->core.next_sequence, done = (uint64_t)world->least[0];
    uint64_t own = job->agreed ? JOB_AGREEING : 0;
    if (done < own)
        progress_number(&job->progress, sequence + (own - done), job->first_number);
    else
        progress_number(&job->progress, sequence, job->first_number + (done - own));
}

static void resume_go_on(struct resume *resume)
{
    struct shoal_job *job = resume->job;
    uint64_t now_ns = clock_now_ns();
    for (uint32_t i = 0; i < resume->group_count; i++)
        resume_restore(job, &resume->asks[i]);
    resume_number(resume);
    for (uint32_t i = 0; i < resume->group_count; i++) {
        struct shoal_group *group = resume->asks[i].group;
        progress_go_on(&job->progress, &group->core, (uint64_t)resume->asks[i].least[0],
                       group->rank, now_ns);
    }
    progress_release(&job->progress);
}

/* The lock is held, and let go of meanwhile. */
static int resume_rejoin(struct resume *resume, struct error *error)
{
    struct shoal_job *job = resume->job;
    job_await_sayings(job); /* each has its own end: they would be said to the next generation */
    pthread_mutex_unlock(&job->lock);
    int code = job_release(job, -1, error);
    pthread_mutex_lock(&job->lock);
    if (code < 0)
        return code;
    while (drive_step(job)) /* all that is in the ring counts */
        ;
    progress_take_back(&job->progress);
    resume_free_lists(resume); /* of the last try: nobody writes there any more */
    pthread_mutex_unlock(&job->lock);
    code = job_rejoin(job,
                      &(struct rejoin_ask){.timeout_ms = job->timeout_ms,
                                           .stragglers_ms = STRAGGLERS_MS,
                                           .whole = true},
                      error);
    pthread_mutex_lock(&job->lock);
    job->socket_read = false; /* more may have come along */
    return code;
}

static int resume_try(struct resume *resume, struct error *error)
{
    struct shoal_job *job = resume->job;
    resume->losses = job->losses;
    int code = resume_rejoin(resume, error);
    if (code == 0 && !resume_make_lists(resume))
        code = error_set(error, ERR_MEMORY, "out of memory to go on");
    if (code == 0)
        code = resume_agree(resume, error);
    if (code == 0)
        resume_go_on(resume);
    return code;
}

/* The daemon thinks that this rank goes on, and so do the others: who releases a job that has not
 * failed ends it for all. */
static void resume_give_up(struct shoal_job *job)
{
    struct error error;
    if (job->apart || job->daemon_gone || job->closing || job->progress.failed)
        return;
    pthread_mutex_unlock(&job->lock);
    job_release(job, -1, &error);
    pthread_mutex_lock(&job->lock);
}

/* Set *error to what the requests fail with. While the daemon listens the program may ask for
 * another generation, whatever this rank lacked for this one. */
static void resume_explain(const struct shoal_job *job, int code, struct error *error)
{
    if (code == ERR_AGAIN || code == ERR_LOST) {
        *error = job->resume_cause;
    } else if (code != ERR_STATE && code != ERR_PROTOCOL && !job->daemon_gone) {
        error_prefix(error, "%s; the job did not go on by itself", job->resume_cause.text);
        error->code = job->resume_cause.code;
    }
}

void drive_resume(struct shoal_job *job)
{
    struct error error;
    struct resume resume = {.job = job, .deadline_ns = job_deadline_ns(job, -1)};
    int code;
    do
        code = resume_try(&resume, &error);
    while (code == ERR_LOST && job->losses != resume.losses && !job->closing &&
           (!job->daemon_gone || job->restart_ms > 0) && !job->progress.failed);
    if (code < 0)
        resume_give_up(job);
    job->resuming = false;
    if (code == 0) {
        struct shoal_request *request;
        DL_FOREACH(job->requests, request)
        {
            drive_adopt(job, request); /* nobody may wait for it, and it is to be handed over */
        }
    } else {
        job->progress.held = false;
        resume_explain(job, code, &error);
        drive_fail(job, &error);
    }
    resume_free_lists(&resume); /* the library's own requests are over */
    drive_tell(job);
    drive_ring_daemon(job);
    pthread_cond_broadcast(&job->changed);
}
