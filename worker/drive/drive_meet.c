#include "worker/drive/drive_meet.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "worker/drive/drive_core.h"
#include "worker/drive/drive_tell.h"

/* A rank that waits offers its core to those that have not come, and looks again: a switch to one
 * that is ready costs less than to be woken. While none of those that were last seen on it has
 * still to come it looks for a moment each time before it offers it. Then it sleeps. */
#define MOMENT_NS 4000u
#define PAUSES 16u /* between two looks at the clock */
#define YIELDS 8u
/* How often the background thread looks after requests that nobody waits for, and for how long
 * after the last of them began: waking it for each would cost more than the collective. */
#define KEEP_MS 10u
#define KEEP_FOR_MS 100u
/* How often after one that passes in pieces. */
#define PASS_MS 2u
/* A round to which all have come waits so long for a rank before the daemon hears of it, and so
 * long again. */
#define HELD_MS 1000u
/* A caller that begins to wait before this rank has made more turns than SOON_TURNS, or within
 * SOON_NS, counts as one that waits at once. */
#define SOON_TURNS 2u
#define SOON_NS 100000u

static void wake(const struct meeting *meeting, int most)
{
    if (most > 0 && meeting_ring(meeting))
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

static struct meeting_ask meeting_ask_of_request(const struct request *core)
{
    return meeting_ask_of(&core->ask, core->asked, core->asked_count);
}

/* Whether no buffer of an ask or a block begins between two elements; *outside is set if one lies
 * outside of the arena. Buffers in the arena take less time through the daemon, which copies none
 * of them. */
static bool passes_well(const struct shoal_job *job, const struct request_ask *ask, bool *outside)
{
    uint64_t element_bytes = dtype_bytes(ask->dtype), bytes = ask->count * element_bytes;
    const void *buffers[] = {ask->send, ask->recv};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        if (buffers[i] && !request_in_arena(&job->progress.memory, buffers[i], bytes))
            *outside = true;
        if ((uintptr_t)buffers[i] % element_bytes != 0)
            return false;
    }
    return true;
}

/* Whether it is well to let it pass in pieces. */
static bool may_pass(const struct shoal_job *job, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count)
{
    bool outside = false;
    bool well = passes_well(job, ask, &outside);
    for (uint32_t i = 0; i < block_count; i++)
        well &= passes_well(job, &blocks[i], &outside);
    return well && outside;
}

bool drive_meet_fits(const struct shoal_group *group, const struct request_ask *ask,
                     const struct request_ask *blocks, uint32_t block_count)
{
    struct meeting_ask wanted = meeting_ask_of(ask, blocks, block_count);
    for (uint32_t i = 0; i < block_count; i++) {
        if (blocks[i].count != wanted.count || blocks[i].shared)
            return false;
    }
    return meeting_fits(&wanted, group->size) && !ask->on_device && !ask->shared &&
           (!meeting_in_pieces(&wanted, group->size) ||
            may_pass(group->job, ask, blocks, block_count));
}

/* Whether somebody waits at the place, who sees to what waits there. */
static bool attended(const struct shoal_group *group)
{
    return group->core.meeting && group->place.memory->waiters > 0;
}

/* Whether the background thread can wait at the group's place. */
static bool may_watch(const struct shoal_group *group)
{
    const struct shoal_job *job = group->job;
    return job->background_requests == 0 && !job->completions_used &&
           (!job->watched || job->watched == group || !job->watched->core.meeting ||
            attended(job->watched));
}

bool drive_meet_may(const struct shoal_group *group, const struct request_ask *ask,
                    const struct request_ask *blocks, uint32_t block_count, bool waiting)
{
    const struct shoal_job *job = group->job;
    struct meeting_ask wanted = meeting_ask_of(ask, blocks, block_count);
    return group->place.state == PLACE_OPEN && meeting_complete(&group->place.meeting) &&
           !group->core.requests && !group->core.failed && !job->progress.failed &&
           !job->completions_used && !arena_tracing(&job->arena) &&
           drive_meet_fits(group, ask, blocks, block_count) &&
           (waiting || !meeting_in_pieces(&wanted, group->size) || may_watch(group));
}

bool drive_meet_takes_own(const struct shoal_group *group, const struct request_ask *ask,
                          const struct request_ask *blocks, uint32_t block_count)
{
    struct meeting_ask wanted = meeting_ask_of(ask, blocks, block_count);
    return ask->kind == COLLECTIVE_ALL_GATHER && meeting_in_pieces(&wanted, group->size);
}

/* Collect the memory that the rank sends: by block, or whole. */
static void collect_sends(const struct shoal_group *group, const struct request *core,
                          const void *send[MEETING_RANKS_MAX])
{
    bool parts = meeting_sends_parts(core->ask.kind);
    memset(send, 0, group->size * sizeof(*send));
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
    memset(recv, 0, group->size * sizeof(*recv));
    if (core->copy_out)
        recv[0] = core->ask.recv;
    if (core->ask.own_bytes > 0)
        recv[group->rank] = core->ask.own_to;
    for (uint32_t i = 0; i < core->asked_count; i++) {
        const struct request_ask *block = &core->asked[i];
        if (route_receives(&block->route, group->rank))
            recv[parts ? block->route.from : 0] = block->recv;
    }
}

static bool passes(const struct shoal_group *group, const struct request *core)
{
    struct meeting_ask ask = meeting_ask_of_request(core);
    return meeting_in_pieces(&ask, group->size);
}

/* --- beginning and ending ------------------------------------------------------------------ */

/* The request is the first of those that wait. */
static void lead(struct shoal_group *group)
{
    struct place *place = &group->place;
    place->ask = meeting_ask_of_request(group->core.meeting);
    place->round = next_round(group);
    place->since_ns = 0;
}

/* A round to which this rank has come last has a verdict. */
static void tell_others(const struct shoal_group *group, enum meeting_verdict verdict)
{
    const struct shoal_job *job = group->job;
    /* This rank and those that it wakes are as many as the cores; each may be bound to its own
     * core. One more wakes if our own thread sleeps there, and may be woken in place of another
     * rank. */
    if (verdict == MEETING_SUMS)
        wake(&group->place.meeting,
             (job->cores > 1 ? job->cores : job->local_size) - 1 + (job->gate ? 1 : 0));
    else if (verdict != MEETING_OPEN)
        wake(&group->place.meeting, INT_MAX);
}

/* Bring the requests that wait to the place, one after the other, as far as it lets them. */
static void come_on(struct shoal_group *group)
{
    const void *send[MEETING_RANKS_MAX];
    struct meeting *meeting = &group->place.meeting;
    const struct request *core = group->core.meeting;
    uint64_t round = next_round(group) + meeting->line;
    enum meeting_verdict any = MEETING_OPEN;
    for (uint32_t i = 0; i < meeting->line; i++) {
        assert(core); /* who has come waits */
        core = core->next;
    }
    if (core)
        drive_core_say(meeting);
    for (; core; core = core->next, round++) {
        struct meeting_ask ask = meeting_ask_of_request(core);
        if (!meeting_may_come(meeting, &ask))
            break;
        collect_sends(group, core, send);
        enum meeting_verdict verdict = meeting_arrive(meeting, round, &ask, send);
        any = verdict != MEETING_OPEN ? verdict : any;
    }
    tell_others(group, any);
}

/* The first that waits is a request as others are. Its rank's own part, which the daemon does not
 * move, is copied when that has been told, so that the others need not wait for it. */
static void submit_first(struct shoal_group *group, uint64_t now_ns)
{
    struct shoal_job *job = group->job;
    struct request *core = group->core.meeting;
    struct request_ask asked = core->ask;
    core->ask.own_bytes = 0;
    progress_submit_unmet(&job->progress, &group->core, group->rank, now_ns);
    if (asked.own_bytes > 0) {
        drive_notify(job);
        memcpy(asked.own_to, asked.own_from, asked.own_bytes);
    }
}

/* The ranks have not met: all that wait are requests as others are. */
static void submit_all(struct shoal_group *group, uint64_t now_ns)
{
    struct shoal_job *job = group->job;
    struct request *core;
    unsigned count;
    DL_COUNT(group->core.meeting, core, count);
    meeting_leave(&group->place.meeting, next_round(group) + count - 1);
    while ((core = group->core.meeting)) {
        struct shoal_request *request = (struct shoal_request *)core;
        submit_first(group, now_ns);
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

/* The first of those that wait passes in pieces, and this rank's turn is due. */
static enum meeting_verdict make_turn(struct shoal_group *group)
{
    const void *send[MEETING_RANKS_MAX];
    void *recv[MEETING_RANKS_MAX];
    struct place *place = &group->place;
    collect_sends(group, group->core.meeting, send);
    collect_recvs(group, group->core.meeting, recv);
    enum meeting_verdict verdict =
        meeting_turn(&place->meeting, place->round, &place->ask, send, recv);
    if (verdict != MEETING_OPEN)
        wake(&place->meeting, INT_MAX);
    return verdict == MEETING_TURN ? MEETING_OPEN : verdict; /* the next one, when asked again */
}

/* Whether MEET_MS have passed since this was first asked of the round. Not before: to ask for the
 * time takes a tenth of a small collective, and most rounds have met by then. */
static bool waited_long(struct place *place)
{
    uint64_t now_ns = clock_now_ns();
    if (place->since_ns == 0)
        place->since_ns = now_ns;
    return now_ns >= place->since_ns + MEET_MS * NS_PER_MS;
}

/* All have come to the round, so it cannot go to the daemon; but the daemon knows what to do about
 * a rank that does not go on. */
static void note_hold(struct shoal_group *group)
{
    struct shoal_job *job = group->job;
    uint64_t now_ns = clock_now_ns();
    uint32_t rank;
    if (group->place.since_ns == 0)
        group->place.since_ns = now_ns;
    if (now_ns < group->place.since_ns + HELD_MS * NS_PER_MS ||
        now_ns < job->hold.said_ns + HELD_MS * NS_PER_MS ||
        !meeting_waits_for(&group->place.meeting, group->place.round, &rank) || rank == group->rank)
        return;
    job->hold = (struct job_hold){.due = true,
                                  .group = group->core.number,
                                  .rank = group->ranks ? (uint32_t)group->ranks[rank] : rank,
                                  .number = group->place.round - 1,
                                  .said_ns = now_ns};
}

/* Return the verdict on the first of the requests that wait. MEETING_OPEN: it still waits. With
 * `now` it waits no longer than for the ranks that reduce. */
static enum meeting_verdict look(struct shoal_group *group, bool now)
{
    struct place *place = &group->place;
    enum meeting_verdict verdict = meeting_look(&place->meeting, place->round);
    if (verdict == MEETING_SUMS) {
        verdict = meeting_help(&place->meeting, place->round, &place->ask);
        if (verdict == MEETING_MET)
            wake(&place->meeting, INT_MAX);
    }
    if (verdict == MEETING_TURN)
        return make_turn(group);
    if (verdict != MEETING_OPEN || (!now && !waited_long(place)))
        return verdict;
    verdict = give_up(group, place->round);
    if (verdict == MEETING_OPEN)
        note_hold(group);
    return verdict;
}

/* Settle the requests that wait, one after the other, as far as that goes; nobody is told. Without
 * with_callbacks, stop at the first that has a callback. Return whether none waits any more. */
static bool settle(struct shoal_group *group, bool now, bool with_callbacks)
{
    struct request *core;
    bool any = false;
    while ((core = group->core.meeting) &&
           (with_callbacks || !((struct shoal_request *)core)->callback)) {
        if (group->place.meeting.line == 0)
            come_on(group);
        enum meeting_verdict verdict = look(group, now);
        if (verdict == MEETING_OPEN)
            break;
        any = true;
        if (verdict == MEETING_VOID)
            submit_all(group, clock_now_ns());
        else if (verdict == MEETING_MET)
            take(group, clock_now_ns());
        if (verdict == MEETING_MET && group->core.meeting)
            lead(group);
    }
    if (!any)
        return !group->core.meeting;
    if (group->core.meeting)
        come_on(group);
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

bool drive_meet_settle_others(struct shoal_group *group)
{
    struct shoal_group *other;
    bool all = true;
    DL_FOREACH(group->job->groups, other)
    {
        if (other != group)
            all &= settle(other, false, true);
    }
    drive_tell_quietly(group->job);
    return !all;
}

/* Have the background thread look after a request that nobody may be waiting for. A collective that
 * passes in pieces needs this rank to the end: then the thread begins at once, unless the caller
 * waited for the last one as soon as it had begun. */
static void keep(struct shoal_group *group, const struct request *core)
{
    struct shoal_job *job = group->job;
    uint64_t now_ns = clock_now_ns();
    bool passing = core->state == REQUEST_MEETING && passes(group, core);
    uint64_t kept_ns = passing ? job->passed_ns + KEEP_FOR_MS * NS_PER_MS : job->keep_until_ns;
    job->keep_until_ns = now_ns + KEEP_FOR_MS * NS_PER_MS;
    if (passing)
        job->passed_ns = now_ns;
    if (passing && !job->waits_soon) {
        drive_meet_watch(group);
    } else if (now_ns >= kept_ns) {
        drive_call_background(job);
        drive_wake(job);
    }
}

int drive_meet_begin(struct shoal_group *group, const struct request_ask *ask,
                     struct request_ask *blocks, uint32_t block_count,
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
    bool first = group->core.meeting == &request->core;
    if (first)
        lead(group);
    come_on(group);
    bool over = first && meeting_look(&group->place.meeting, group->place.round) != MEETING_OPEN &&
                drive_meet_settle_quietly(group);
    if (!over && first)
        group->place.since_ns = clock_now_ns();
    if (!over && !waiting)
        keep(group, &request->core);
    return 0;
}

bool drive_meet_waits_for(const struct shoal_group *group, uint32_t *rank)
{
    return group->core.meeting &&
           meeting_waits_for(&group->place.meeting, group->place.round, rank);
}

bool drive_meet_leave(struct shoal_job *job)
{
    struct shoal_group *group;
    bool needed = false;
    DL_FOREACH(job->groups, group)
    {
        if (group->core.meeting && passes(group, group->core.meeting)) {
            enum meeting_verdict verdict = give_up(group, group->place.round);
            needed |= verdict != MEETING_VOID && verdict != MEETING_MET;
        }
    }
    return needed;
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

/* Until the round has a verdict, or the gate has been rung since it was as given, or MEET_MS have
 * passed; and until_ns, unless it is 0. Lock not held. */
static void sleep_at(const struct meeting *meeting, uint64_t round, uint32_t gate,
                     uint64_t until_ns)
{
    _Atomic uint32_t *word = meeting_gate(meeting);
    uint64_t now_ns = clock_now_ns(), left_ns = MEET_MS * NS_PER_MS;
    if (until_ns && until_ns < now_ns + left_ns)
        left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / NS_PER_S),
                            .tv_nsec = (long)(left_ns % NS_PER_S)};
    meeting_sleep(meeting, true);
    if (left_ns > 0 && meeting_look(meeting, round) == MEETING_OPEN)
        syscall(SYS_futex, word, FUTEX_WAIT, gate, &left, NULL, 0);
    meeting_sleep(meeting, false);
}

/* Whether there is a verdict within a moment, for which no rank of the group needs the core. */
static bool spin_at(const struct meeting *meeting, uint64_t round)
{
    if (meeting_needs_core(meeting, round, drive_core_now()))
        return false;
    uint64_t end_ns = clock_now_ns() + MOMENT_NS;
    do {
        for (unsigned i = 0; i < PAUSES; i++) {
            if (meeting_look(meeting, round) != MEETING_OPEN)
                return true;
            relax();
        }
    } while (clock_now_ns() < end_ns);
    return false;
}

/* Wait as sleep_at does, awake at first. */
static void pause_at(const struct meeting *meeting, uint64_t round, uint32_t gate,
                     uint64_t until_ns)
{
    if (spin_at(meeting, round))
        return;
    for (unsigned i = 0; i < YIELDS; i++) {
        sched_yield();
        if (meeting_look(meeting, round) != MEETING_OPEN || spin_at(meeting, round))
            return;
    }
    sleep_at(meeting, round, gate, until_ns);
}

void drive_meet_pause(struct shoal_group *group, uint64_t deadline_ns)
{
    struct shoal_job *job = group->job;
    uint64_t round = group->place.round;
    uint32_t gate = atomic_load(meeting_gate(&group->place.meeting));
    if (meeting_look(&group->place.meeting, round) != MEETING_OPEN) {
        /* Others who want the lock need not wait for the end of what passes in pieces. */
        pthread_mutex_unlock(&job->lock);
        sched_yield();
        pthread_mutex_lock(&job->lock);
        return;
    }
    struct meeting meeting = group->place.meeting;
    struct place_memory *memory = group->place.memory;
    int core = drive_core_now();
    bool leaves = drive_core_is_left(job, &meeting, core);
    job_visit_place(memory);
    pthread_mutex_unlock(&job->lock);
    if (leaves)
        drive_core_leave(&meeting, core);
    pause_at(&meeting, round, gate, deadline_ns);
    pthread_mutex_lock(&job->lock);
    job_leave_place(memory);
}

struct place_memory *drive_meet_begin_wait(struct shoal_group *group)
{
    struct shoal_job *job = group->job;
    struct place_memory *memory = group->place.memory;
    if (group->core.meeting && passes(group, group->core.meeting))
        job->waits_soon = group->place.meeting.turn <= SOON_TURNS;
    job_visit_place(memory);
    memory->waiters++;
    return memory;
}

void drive_meet_end_wait(struct shoal_job *job, struct place_memory *memory)
{
    memory->waiters--;
    job_leave_place(memory);
    if (job->watched && job->watched->core.meeting)
        drive_call_background(job);
}

bool drive_meet_watch(struct shoal_group *group)
{
    struct shoal_job *job = group->job;
    if (!may_watch(group))
        return false;
    job->watched = group;
    if (!job->gate)
        drive_call_background(job);
    return true;
}

bool drive_meet_stand_by(struct shoal_job *job, uint64_t until_ns)
{
    struct shoal_group *group = job->watched;
    /* One thread at the place is enough: each that sleeps there has to be woken. */
    if (!group || !group->core.meeting || attended(group))
        return false;
    struct meeting meeting = group->place.meeting;
    struct place_memory *memory = group->place.memory;
    uint64_t round = group->place.round;
    uint32_t gate = atomic_load(meeting_gate(&meeting));
    if (job->progress.completed || meeting_look(&meeting, round) != MEETING_OPEN)
        return true;
    job_visit_place(memory);
    job->gate = meeting_gate(&meeting);
    pthread_mutex_unlock(&job->lock);
    sleep_at(&meeting, round, gate, until_ns);
    pthread_mutex_lock(&job->lock);
    job->gate = NULL;
    job_leave_place(memory);
    return true;
}

/* Whether the first at the place passes in pieces, and no caller is about to wait. */
static bool passes_alone(const struct shoal_group *group, uint64_t now_ns)
{
    return group->core.meeting && !attended(group) && passes(group, group->core.meeting) &&
           now_ns >= group->job->passed_ns + SOON_NS;
}

/* When to look again: at once where a turn is due that nobody else makes. */
static uint64_t look_again_ns(const struct shoal_job *job, uint64_t now_ns, bool any)
{
    const struct shoal_group *group;
    bool passing = now_ns < job->passed_ns + KEEP_FOR_MS * NS_PER_MS;
    DL_FOREACH(job->groups, group)
    {
        if (!passes_alone(group, now_ns))
            continue;
        passing = true;
        if (meeting_look(&group->place.meeting, group->place.round) == MEETING_TURN)
            return now_ns;
    }
    if (!any && now_ns >= job->keep_until_ns)
        return 0;
    return now_ns + (passing ? PASS_MS : KEEP_MS) * NS_PER_MS;
}

uint64_t drive_meet_keep(struct shoal_job *job)
{
    struct shoal_group *group;
    bool any = false;
    uint64_t now_ns = clock_now_ns();
    DL_FOREACH(job->groups, group)
    {
        any |= attended(group) || !settle(group, false, true);
        if (passes_alone(group, now_ns)) {
            job->waits_soon = false;
            drive_meet_watch(group);
        }
    }
    /* Tell of the requests that are complete now, and of those of which drive_tell_quietly did not
     * tell. */
    if (job->progress.completed)
        drive_tell(job);
    if (job->progress.completed)
        return now_ns;
    return look_again_ns(job, now_ns, any);
}
