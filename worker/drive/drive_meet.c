#include "worker/drive/drive_meet.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/drive/drive_tell.h"

/* A rank that waits offers its core to those that have not come, and looks again: a switch to one
 * that is ready costs less than to be woken. Where every rank of the node has a core to itself, and
 * no other was put on this one all the same, it looks for a moment first, and goes on for longer.
 * Then it sleeps. */
#define PAUSES 64u
#define SPIN_NS 20000u
#define YIELDS 8u
/* How often the background thread looks after requests that nobody waits for, and for how long
 * after the last of them began: waking it for each would cost more than the collective. */
#define KEEP_MS 10u
#define KEEP_FOR_MS 100u

static void wake(const struct meeting *meeting, int most)
{
    if (most > 0 && meeting_sleepers(meeting))
        drive_ring_gate(meeting_gate(meeting), most);
}

static uint64_t next_round(const struct shoal_group *group)
{
    return group->core.next_sequence + group->core.met + 1;
}

/* The round goes to the daemon, unless all have come: MEETING_OPEN, some reduce. */
static enum meeting_verdict give_up(struct shoal_group *group, uint64_t round)
{
    enum meeting_verdict verdict = meeting_void(&group->place.meeting, round);
    if (verdict != MEETING_OPEN)
        wake(&group->place.meeting, INT_MAX);
    return verdict;
}

/* --- what meets ---------------------------------------------------------------------------- */

static struct meeting_ask meeting_ask_of(const struct request_ask *ask,
                                         const struct request_ask *blocks, uint32_t block_count)
{
    return (struct meeting_ask){.kind = ask->kind,
                                .dtype = ask->dtype,
                                .op = ask->op,
                                .root = ask->root,
                                .count = block_count > 0 ? blocks[0].count : ask->count,
                                .identity = ask->identity};
}

bool drive_meet_fits(const struct shoal_group *group, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count)
{
    struct meeting_ask wanted = meeting_ask_of(ask, blocks, block_count);
    for (uint32_t i = 0; i < block_count; i++) {
        if (blocks[i].count != wanted.count || blocks[i].shared)
            return false;
    }
    return meeting_fits(&wanted, group->size) && !ask->on_device && !ask->shared;
}

bool drive_meet_may(const struct shoal_group *group, const struct request_ask *ask,
                    const struct request_ask *blocks, uint32_t block_count)
{
    const struct shoal_job *job = group->job;
    return group->place.state == PLACE_OPEN && meeting_complete(&group->place.meeting) &&
           !group->core.requests && !group->core.failed && !job->progress.failed &&
           !job->completions_used && !arena_tracing(&job->arena) &&
           drive_meet_fits(group, ask, blocks, block_count);
}

/* What the rank sends: by block, or whole. */
static void collect_sends(const struct shoal_group *group, const struct request *core,
                          const void *send[MEETING_RANKS_MAX])
{
    bool parts = meeting_sends_parts(core->ask.kind);
    memset(send, 0, MEETING_RANKS_MAX * sizeof(*send));
    if (core->copy_in)
        send[0] = core->ask.send;
    for (uint32_t i = 0; i < core->asked_count; i++) {
        const struct request_ask *block = &core->asked[i];
        if (route_sends(&block->route, group->rank))
            send[parts ? block->route.to : 0] = block->send;
    }
}

static void collect_recvs(const struct shoal_group *group, const struct request *core,
                          void *recv[MEETING_RANKS_MAX])
{
    bool parts = meeting_receives_parts(core->ask.kind);
    memset(recv, 0, MEETING_RANKS_MAX * sizeof(*recv));
    if (core->copy_out)
        recv[0] = core->ask.recv;
    for (uint32_t i = 0; i < core->asked_count; i++) {
        const struct request_ask *block = &core->asked[i];
        if (route_receives(&block->route, group->rank))
            recv[parts ? block->route.from : 0] = block->recv;
    }
}

/* --- beginning and ending ------------------------------------------------------------------ */

/* The first of those that wait comes to the place. */
static enum meeting_verdict come(struct shoal_group *group)
{
    const void *send[MEETING_RANKS_MAX];
    struct shoal_job *job = group->job;
    struct place *place = &group->place;
    const struct request *core = group->core.meeting;
    place->ask = meeting_ask_of(&core->ask, core->asked, core->asked_count);
    place->round = next_round(group);
    place->since_ns = clock_now_ns();
    collect_sends(group, core, send);
    int cpu = sched_getcpu();
    if (cpu >= 0)
        meeting_say_core(&place->meeting, (uint32_t)cpu);
    enum meeting_verdict verdict = meeting_arrive(&place->meeting, place->round, &place->ask, send);
    /* As many help as there are cores; each may be bound to its own. One may be our own thread. */
    if (verdict == MEETING_SUMS)
        wake(&place->meeting,
             (job->cores > 1 ? job->cores : job->local_size) - 1 + (job->gate ? 1 : 0));
    else if (verdict != MEETING_OPEN)
        wake(&place->meeting, INT_MAX);
    return verdict;
}

/* The ranks have not met: all that wait are requests as others are. */
static void submit_all(struct shoal_group *group, uint64_t now_ns)
{
    struct shoal_job *job = group->job;
    struct request *core;
    unsigned count;
    DL_COUNT(group->core.meeting, core, count);
    if (count > 1)
        give_up(group, next_round(group) + count - 1);
    while ((core = group->core.meeting)) {
        struct shoal_request *request = (struct shoal_request *)core;
        progress_submit_unmet(&job->progress, &group->core, group->rank, now_ns);
        if (core->state == REQUEST_QUEUED || request_has_chunk(core) || core->block_count > 0 ||
            job->completions_used || request->callback)
            drive_adopt(job, request);
    }
    drive_notify(job);
}

static void take(struct shoal_group *group, uint64_t now_ns)
{
    void *recv[MEETING_RANKS_MAX];
    collect_recvs(group, group->core.meeting, recv);
    meeting_take(&group->place.meeting, &group->place.ask, recv);
    progress_met(&group->job->progress, &group->core, now_ns);
}

/* What has become of the first of those that wait. MEETING_OPEN: it still waits. now: no longer
 * than for those that reduce. */
static enum meeting_verdict look(struct shoal_group *group, bool now)
{
    struct place *place = &group->place;
    enum meeting_verdict verdict = meeting_look(&place->meeting, place->round);
    if (verdict == MEETING_SUMS) {
        verdict = meeting_help(&place->meeting, place->round, &place->ask);
        if (verdict == MEETING_MET)
            wake(&place->meeting, INT_MAX);
    }
    if (verdict != MEETING_OPEN || (!now && clock_now_ns() < place->since_ns + MEET_MS * NS_PER_MS))
        return verdict;
    return give_up(group, place->round);
}

/* Those that wait, one after the other, as far as that goes; nobody is told. with_callbacks: else
 * only to the first that has one. */
static bool settle(struct shoal_group *group, bool now, bool with_callbacks)
{
    struct request *core;
    bool any = false;
    while ((core = group->core.meeting) &&
           (with_callbacks || !((struct shoal_request *)core)->callback)) {
        enum meeting_verdict verdict = look(group, now);
        if (verdict == MEETING_OPEN)
            break;
        any = true;
        if (verdict == MEETING_VOID)
            submit_all(group, clock_now_ns());
        else if (verdict == MEETING_MET)
            take(group, clock_now_ns());
        if (verdict == MEETING_MET && group->core.meeting)
            come(group);
    }
    if (any)
        drive_wake(group->job); /* for whoever waits for them: no word of the daemon will come */
    return !group->core.meeting;
}

bool drive_meet_settle(struct shoal_group *group)
{
    bool done = settle(group, false, true);
    if (group->job->progress.completed)
        drive_tell(group->job);
    return done;
}

bool drive_meet_settle_quietly(struct shoal_group *group)
{
    if (!group->core.meeting)
        return true;
    bool done = settle(group, false, false);
    drive_tell_quietly(group->job);
    return done;
}

bool drive_meet_settle_now(struct shoal_group *group)
{
    if (!group->core.meeting)
        return true;
    bool done = settle(group, true, true);
    drive_tell_quietly(group->job);
    return done;
}

int drive_meet_begin(struct shoal_group *group, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count,
                     struct shoal_request *request, bool waiting, struct error *error)
{
    struct shoal_job *job = group->job;
    int code = progress_meet(&job->progress, &group->core, ask, blocks, block_count, group->rank,
                             &request->core, error);
    if (code < 0)
        return code;
    request->job = job;
    request->references = 2; /* the caller's, and progress's until it is complete */
    DL_APPEND(job->requests, request);
    bool over = group->core.meeting == &request->core && come(group) != MEETING_OPEN &&
                drive_meet_settle_quietly(group);
    if (!over && !waiting) {
        uint64_t now_ns = clock_now_ns();
        bool keeps = now_ns < job->keep_until_ns;
        job->keep_until_ns = now_ns + KEEP_FOR_MS * NS_PER_MS;
        if (!keeps) {
            drive_call_background(job);
            drive_wake(job);
        }
    }
    return 0;
}

void drive_meet_decline(struct shoal_group *group)
{
    if (group->place.state == PLACE_OPEN)
        give_up(group, next_round(group));
}

/* --- waiting ------------------------------------------------------------------------------- */

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Until the gate is rung and has changed, or the time. Lock not held. */
static void sleep_at(const struct meeting *meeting, uint32_t gate, uint64_t until_ns)
{
    _Atomic uint32_t *word = meeting_gate(meeting);
    uint64_t now_ns = clock_now_ns();
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
    sleep_at(meeting, gate, until_ns);
}

void drive_meet_pause(struct shoal_group *group, uint64_t deadline_ns)
{
    struct shoal_job *job = group->job;
    uint64_t until_ns = clock_now_ns() + MEET_MS * NS_PER_MS;
    uint32_t gate = atomic_load(meeting_gate(&group->place.meeting));
    if (meeting_look(&group->place.meeting, group->place.round) != MEETING_OPEN)
        return;
    struct meeting meeting = group->place.meeting;
    struct place_memory *memory = group->place.memory;
    int cpu = sched_getcpu();
    bool own_core =
        job->cores >= job->local_size && (cpu < 0 || !meeting_shares_core(&meeting, (uint32_t)cpu));
    job_visit_place(memory);
    pthread_mutex_unlock(&job->lock);
    pause_at(&meeting, gate, own_core, until_ns < deadline_ns ? until_ns : deadline_ns);
    pthread_mutex_lock(&job->lock);
    job_leave_place(memory);
}

bool drive_meet_watch(struct shoal_group *group)
{
    struct shoal_job *job = group->job;
    if (job->background_requests > 0 || job->completions_used ||
        (job->watched && job->watched != group && job->watched->core.meeting))
        return false;
    job->watched = group;
    if (!job->gate)
        drive_call_background(job);
    return true;
}

bool drive_meet_stand_by(struct shoal_job *job)
{
    struct shoal_group *group = job->watched;
    if (!group || !group->core.meeting)
        return false;
    struct meeting meeting = group->place.meeting;
    struct place_memory *memory = group->place.memory;
    uint32_t gate = atomic_load(meeting_gate(&meeting));
    if (job->progress.completed || meeting_look(&meeting, group->place.round) != MEETING_OPEN)
        return true;
    job_visit_place(memory);
    job->gate = meeting_gate(&meeting);
    pthread_mutex_unlock(&job->lock);
    sleep_at(&meeting, gate, clock_now_ns() + MEET_MS * NS_PER_MS);
    pthread_mutex_lock(&job->lock);
    job->gate = NULL;
    job_leave_place(memory);
    return true;
}

uint64_t drive_meet_keep(struct shoal_job *job)
{
    struct shoal_group *group;
    bool any = false;
    uint64_t now_ns = clock_now_ns();
    DL_FOREACH(job->groups, group)
    {
        any |= !settle(group, false, true);
    }
    /* Those, and of which drive_tell_quietly did not tell. */
    if (job->progress.completed)
        drive_tell(job);
    if (job->progress.completed)
        return now_ns;
    return any || now_ns < job->keep_until_ns ? now_ns + KEEP_MS * NS_PER_MS : 0;
}
