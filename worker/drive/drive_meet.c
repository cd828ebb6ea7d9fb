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
        syscall(SYS_futex, meeting_gate(meeting), FUTEX_WAKE, most, NULL, NULL, 0);
}

static uint64_t next_round(const struct shoal_group *group)
{
    return group->core.next_sequence + group->core.met + 1;
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
           !group->core.requests && !group->core.meeting && !group->core.failed &&
           !job->progress.failed && !job->completions_used && !arena_tracing(&job->arena) &&
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

int drive_meet_begin(struct shoal_group *group, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count,
                     struct shoal_request *request, bool waiting, struct error *error)
{
    const void *send[MEETING_RANKS_MAX];
    struct shoal_job *job = group->job;
    struct place *place = &group->place;
    struct request *core = &request->core;
    uint64_t round = next_round(group);
    int code = progress_meet(&job->progress, &group->core, ask, blocks, block_count, group->rank,
                             core, error);
    if (code < 0)
        return code;
    place->ask = meeting_ask_of(&core->ask, core->asked, core->asked_count);
    collect_sends(group, core, send);
    place->round = round;
    place->since_ns = clock_now_ns();
    int cpu = sched_getcpu();
    if (cpu >= 0)
        meeting_say_core(&place->meeting, (uint32_t)cpu);
    enum meeting_verdict verdict = meeting_arrive(&place->meeting, round, &place->ask, send);
    if (verdict == MEETING_SUMS) /* as many help as there are cores; each may be bound to its own */
        wake(&place->meeting, (job->cores > 1 ? job->cores : job->local_size) - 1);
    else if (verdict != MEETING_OPEN)
        wake(&place->meeting, INT_MAX);
    request->job = job;
    request->references = 2; /* the caller's, and progress's until it is complete */
    DL_APPEND(job->requests, request);
    bool over = verdict != MEETING_OPEN && drive_meet_settle(group, false);
    if (!over && !waiting) {
        bool keeps = place->since_ns < job->keep_until_ns;
        job->keep_until_ns = place->since_ns + KEEP_FOR_MS * NS_PER_MS;
        if (!keeps) {
            drive_call_background(job);
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
        wake(&group->place.meeting, INT_MAX);
}

/* The ranks have not met: the request is one as others are. */
static void submit(struct shoal_group *group, struct shoal_request *request, uint64_t now_ns)
{
    struct shoal_job *job = group->job;
    progress_submit_unmet(&job->progress, &group->core, group->rank, now_ns);
    if (request->core.state == REQUEST_QUEUED || request_has_chunk(&request->core) ||
        request->core.block_count > 0 || job->completions_used || request->callback)
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
    if (verdict == MEETING_SUMS) {
        verdict = meeting_help(&place->meeting, place->round, &place->ask);
        if (verdict == MEETING_MET)
            wake(&place->meeting, INT_MAX);
    }
    if (verdict == MEETING_OPEN && !now && clock_now_ns() < place->since_ns + MEET_MS * NS_PER_MS)
        return false;
    if (verdict == MEETING_OPEN) {
        verdict = meeting_void(&place->meeting, place->round);
        if (verdict == MEETING_OPEN)
            return false; /* all have come, and some reduce */
        wake(&place->meeting, INT_MAX);
    }
    uint64_t now_ns = clock_now_ns();
    if (verdict == MEETING_MET) {
        void *recv[MEETING_RANKS_MAX];
        collect_recvs(group, core, recv);
        meeting_take(&place->meeting, &place->ask, recv);
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
    int cpu = sched_getcpu();
    bool own_core =
        job->cores >= job->local_size && (cpu < 0 || !meeting_shares_core(&meeting, (uint32_t)cpu));
    group->place.visitors++;
    pthread_mutex_unlock(&job->lock);
    pause_at(&meeting, gate, own_core, until_ns < deadline_ns ? until_ns : deadline_ns);
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
