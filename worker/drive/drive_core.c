#include "worker/drive/drive_core.h"

#include <sched.h>

#include "common/base/clock.h"

/* A rank that shares its core looks for a better one after so many milliseconds, each time after
 * twice as many, and when it has not looked for long as at first. */
#define LOOK_MS 1u
#define LOOK_MS_MAX 64u
#define FORGET_MS 1000u

int drive_core_now(void)
{
    return sched_getcpu();
}

void drive_core_say(const struct meeting *meeting)
{
    int core = drive_core_now();
    if (core >= 0)
        meeting_say_core(meeting, (uint32_t)core);
}

/* How many of the ranks from `first` on were last seen on the core, this one not counted. */
static uint32_t others_on(const struct meeting *meeting, int core, uint32_t first)
{
    uint32_t count = 0;
    for (uint32_t i = first; i < meeting->size; i++)
        count += i != meeting->rank && meeting_core_of(meeting, i) == core;
    return count;
}

bool drive_core_is_left(struct shoal_job *job, const struct meeting *meeting, int core)
{
    if (core < 0 || job->cores < 2 || others_on(meeting, core, 0) == 0 ||
        others_on(meeting, core, meeting->rank) > 0) {
        job->shared_ns = 0;
        return false;
    }
    uint64_t now_ns = clock_now_ns();
    if (job->look_after_ms == 0 || now_ns > job->looked_ns + FORGET_MS * NS_PER_MS)
        job->look_after_ms = LOOK_MS;
    if (job->shared_ns == 0)
        job->shared_ns = now_ns;
    if (now_ns < job->shared_ns + job->look_after_ms * NS_PER_MS)
        return false;
    job->shared_ns = job->looked_ns = now_ns;
    job->look_after_ms = 2 * job->look_after_ms;
    if (job->look_after_ms > LOOK_MS_MAX)
        job->look_after_ms = LOOK_MS_MAX;
    return true;
}

bool drive_core_better(const struct meeting *meeting, int core, const cpu_set_t *may,
                       cpu_set_t *better)
{
    uint32_t here = others_on(meeting, core, 0);
    CPU_ZERO(better);
    for (int i = 0; i < CPU_SETSIZE && here > 0; i++) {
        if (i != core && CPU_ISSET((size_t)i, may) && others_on(meeting, i, 0) < here)
            CPU_SET((size_t)i, better);
    }
    return CPU_COUNT(better) > 0;
}

void drive_core_leave(const struct meeting *meeting, int core)
{
    cpu_set_t may, better;
    if (sched_getaffinity(0, sizeof(may), &may) < 0 ||
        !drive_core_better(meeting, core, &may, &better))
        return;
    /* The system moves it at once, and leaves it there when it may run anywhere again. */
    if (sched_setaffinity(0, sizeof(better), &better) == 0)
        sched_setaffinity(0, sizeof(may), &may);
}
