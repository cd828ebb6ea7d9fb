#include "worker/drive/drive_meet.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/drive/drive_tell.h"

/* A rank that waits offers its core to those that have not come, and looks again: a switch to one
 * that is ready costs less than to be woken. Where every rank of the node has a core to itself it
 * looks for a moment first, and goes on for longer. Then it sleeps. */
#define PAUSES 64u
#define SPIN_NS 20000u
#define YIELDS 8u
/* How often the background thread looks after requests that nobody waits for, and for how long
 * after the last of them began: waking it for each would cost more than the collective. */
#define KEEP_MS 10u
#define KEEP_FOR_MS 100u

static void wake(const struct meeting *meeting)
{
    if (meeting_sleepers(meeting))
        syscall(SYS_futex, meeting_gate(meeting), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t next_round(const struct shoal_group *group)
{
    return group->core.next_sequence + group->core.met + 1;
}

static struct meeting_ask meeting_ask_of(const struct request_ask *ask)
{
    return (struct meeting_ask){.kind = ask->kind,
                                .dtype = ask->dtype,
                                .op = ask->op,
                                .root = ask->root,
                                .count = ask->count};
}

bool drive_meet_may(const struct shoal_group *group, const struct request_ask *ask)
{
    const struct shoal_job *job = group->job;
    struct meeting_ask wanted = meeting_ask_of(ask);
    return group->place.state == PLACE_OPEN && meeting_complete(&group->place.meeting) &&
           meeting_fits(&wanted, group->size) && !group->core.requests && !group->core.meeting &&
           !group->core.failed && !job->progress.failed && !job->completions_used &&
           !ask->on_device && !ask->shared && !arena_tracing(&job->arena);
}

int drive_meet_begin(struct shoal_group *group, const struct request_ask *ask,
                     struct shoal_request *request, bool waiting, struct error *error)
{
    struct shoal_job *job = group->job;
    struct place *place = &group->place;
    struct request *core = &request->core;
    uint64_t round = next_round(group);
    int code = progress_meet(&job->progress, &group->core, ask, group->rank, core, error);
    if (code < 0)
        return code;
    place->ask = meeting_ask_of(&core->ask);
    place->round = round;
    place->since_ns = clock_now_ns();
    enum meeting_verdict verdict =
        meeting_arrive(&place->meeting, round, &place->ask, core->copy_in ? core->ask.send : NULL);
    if (verdict != MEETING_OPEN)
        wake(&place->meeting);
    request->job = job;
    request->references = 2; /* the caller's, and progress's until it is complete */
    DL_APPEND(job->requests, request);
    if (verdict != MEETING_OPEN) {
        drive_meet_settle(group, false);
    } else if (!waiting) {
        bool keeps = place->since_ns < job->keep_until_ns;
        job->keep_until_ns = place->since_ns + KEEP_FOR_MS * NS_PER_MS;
        if (!keeps) {
            pthread_cond_signal(&job->background);
            drive_wake(job);
        }
    }
    return 0;
}

void drive_meet_decline(struct shoal_group *group)
{
    if (group->place.state != PLACE_OPEN)
        return;
    if (meeting_void(&group->place.meeting, next_round(group)) == MEETING_VOID)
        wake(&group->place.meeting);
}

/* The ranks have not met: the request is one as others are. */
static void submit(struct shoal_group *group, struct shoal_request *request, uint64_t now_ns)
{
    struct shoal_job *job = group->job;
    progress_submit_unmet(&job->progress, &group->core, group->rank, now_ns);
    if (request->core.state == REQUEST_QUEUED || request_has_chunk(&request->core) ||
        job->completions_used || request->callback)
        drive_adopt(job, request);
    drive_notify(job);
}

bool drive_meet_settle(struct shoal_group *group, bool now)
{
    struct shoal_job *job = group->job;
    struct place *place = &group->place;
    struct request *core = group->core.meeting;
    if (!core)
        return true;
    struct shoal_request *request = (struct shoal_request *)core;
    enum meeting_verdict verdict = meeting_look(&place->meeting, place->round);
    if (verdict == MEETING_OPEN && !now && clock_now_ns() < place->since_ns + MEET_MS * NS_PER_MS)
        return false;
    if (verdict == MEETING_OPEN) {
        verdict = meeting_void(&place->meeting, place->round);
        if (verdict == MEETING_OPEN)
            return false; /* all have come, and the last one reduces */
        wake(&place->meeting);
    }
    uint64_t now_ns = clock_now_ns();
    if (verdict == MEETING_MET) {
        meeting_take(&place->meeting, &place->ask, core->copy_out ? core->ask.recv : NULL);
        progress_met(&job->progress, &group->core, now_ns);
    } else {
        submit(group, request, now_ns);
    }
    drive_tell(job);
    drive_wake(job); /* for whoever waits for this one: no word of the daemon will come */
    return true;
}

/* --- waiting ------------------------------------------------------------------------------- */

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Until the gate has changed, or the time. Lock not held. */
static void pause_at(const struct meeting *meeting, uint32_t gate, bool own_core, uint64_t until_ns)
{
    _Atomic uint32_t *word = meeting_gate(meeting);
    for (unsigned i = 0; own_core && i < PAUSES; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != gate)
            return;
        relax();
    }
    uint64_t now_ns = clock_now_ns(), spin_ns = now_ns + SPIN_NS;
    for (unsigned i = 0; i < YIELDS || (own_core && now_ns < spin_ns); i++) {
        sched_yield();
        if (atomic_load_explicit(word, memory_order_acquire) != gate)
            return;
        now_ns = own_core ? clock_now_ns() : now_ns;
    }
    now_ns = clock_now_ns();
    if (now_ns >= until_ns)
        return;
    uint64_t left_ns = until_ns - now_ns;
    struct timespec left = {.tv_sec = (time_t)(left_ns / NS_PER_S),
                            .tv_nsec = (long)(left_ns % NS_PER_S)};
    meeting_sleep(meeting, true);
    if (atomic_load(word) == gate)
        syscall(SYS_futex, word, FUTEX_WAIT, gate, &left, NULL, 0);
    meeting_sleep(meeting, false);
}

void drive_meet_pause(struct shoal_group *group, uint64_t deadline_ns)
{
    struct shoal_job *job = group->job;
    uint64_t until_ns = clock_now_ns() + MEET_MS * NS_PER_MS;
    uint32_t gate = atomic_load(meeting_gate(&group->place.meeting));
    if (meeting_look(&group->place.meeting, group->place.round) != MEETING_OPEN)
        return;
    struct meeting meeting = group->place.meeting;
    group->place.visitors++;
    pthread_mutex_unlock(&job->lock);
    pause_at(&meeting, gate, job->cores >= job->local_size,
             until_ns < deadline_ns ? until_ns : deadline_ns);
    pthread_mutex_lock(&job->lock);
    group->place.visitors--;
}

uint64_t drive_meet_keep(struct shoal_job *job)
{
    struct shoal_group *group = job->groups;
    bool any = false;
    uint64_t now_ns = clock_now_ns();
    while (group) {
        bool had = group->core.meeting != NULL;
        bool left = !drive_meet_settle(group, false);
        any |= left;
        group = had && !left ? job->groups : group->next; /* callbacks may have closed some */
    }
    return any || now_ns < job->keep_until_ns ? now_ns + KEEP_MS * NS_PER_MS : 0;
}
