#include "server/jobs/ended.h"

#include <stdio.h>
#include <string.h>

void ended_init(struct ended_jobs *ended)
{
    *ended = (struct ended_jobs){.places.limit = ENDED_MAX};
}

void ended_clear(struct ended_jobs *ended)
{
    quota_clear(&ended->places);
}

bool ended_is_old(const struct ended_job *it, uint64_t now_ns)
{
    return now_ns > it->ended_ns && now_ns - it->ended_ns > ENDED_NS;
}

static void ended_drop(struct ended_jobs *ended, uint32_t i)
{
    uint32_t count = (uint32_t)ended->places.used;
    quota_give_back(&ended->places, ended->jobs[i].uid, 1);
    memmove(&ended->jobs[i], &ended->jobs[i + 1], (count - i - 1) * sizeof(ended->jobs[0]));
}

/* Drop the oldest job of whoever has most; where all have one, the oldest of all. */
static void ended_make_room(struct ended_jobs *ended, uint32_t uid)
{
    uint64_t giver = quota_giver(&ended->places, uid, 1);
    uint32_t i = 0;
    while (i < ended->places.used && ended->jobs[i].uid != giver)
        i++;
    ended_drop(ended, i < ended->places.used ? i : 0);
}

void ended_note(struct ended_jobs *ended, const struct job *job, uint64_t now_ns)
{
    for (uint32_t i = 0; i < ended->places.used;) {
        if (ended->jobs[i].lineage == job->lineage || ended_is_old(&ended->jobs[i], now_ns))
            ended_drop(ended, i);
        else
            i++;
    }
    if (quota_is_short(&ended->places, 1))
        ended_make_room(ended, job->uid);
    if (quota_take(&ended->places, job->uid, 1) != 0)
        return; /* there is no memory to count it */
    struct ended_job *it = &ended->jobs[ended->places.used - 1];
    *it = (struct ended_job){.lineage = job->lineage,
                             .uid = job->uid,
                             .world_size = job->world_size,
                             .failed = job->state == JOB_FAILED,
                             .began_ns = job->began_ns,
                             .ended_ns = now_ns};
    snprintf(it->name, sizeof(it->name), "%s", job->name);
    if (it->failed)
        snprintf(it->text, sizeof(it->text), "%s", job->text);
}
