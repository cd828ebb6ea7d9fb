/* Reading the rings of the workers. Each user's workers share one slice of a round and take turns
 * in it, so that what one user submits costs another no more than that, however much it is. The
 * entries that lay in the ring of a worker that leaves count, in as many rounds as it takes. */
#include <stdio.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "server/engine/engine_private.h"

#define SUBMISSIONS_AT_ONCE 128
#define SUBMISSIONS_A_LOOK 8 /* at the clock */

/* --- reading ---------------------------------------------------------------------------------- */

void engine_fail_worker(struct engine *engine, struct engine_worker *worker,
                        const struct error *error)
{
    worker->stopped = true;
    struct engine_event *event = engine_event_create(ENGINE_WORKER_FAILED);
    event->code = error->code;
    snprintf(event->text, sizeof(event->text), "%s", error->text);
    engine_report_worker(engine, worker, event);
}

/* One entry; false: there is none, or no further one is to be read. */
static bool rings_read_one(struct engine *engine, struct engine_worker *worker, uint64_t now_ns)
{
    struct arena_submission submission;
    struct error error = {.text = "its submission ring makes no sense"};
    int got = worker->stopped ? 0 : arena_pop_submission(&worker->exchange.arena, &submission);
    if (got > 0 &&
        exchange_submit(engine->exchange, &worker->exchange, &submission, now_ns, &error) == 0)
        return true;
    if (got != 0)
        engine_fail_worker(engine, worker, &error);
    return false;
}

static bool rings_has_passed(const struct engine_worker *worker, uint32_t index)
{
    return worker->stopped || (int32_t)(worker->exchange.arena.submission_index - index) >= 0;
}

/* Go on with whatever waited until the ring had been read up to a mark: a trace, or the worker's
 * leaving. */
static void rings_check_marks(struct engine *engine, struct engine_worker *worker)
{
    if (worker->trace_unread && rings_has_passed(worker, worker->trace_index)) {
        worker->trace_unread = false;
        engine->trace_unread--;
    }
    if (worker->leaving && rings_has_passed(worker, worker->leave_index)) {
        worker->leaving = false;
        engine->leaving--;
        worker->stopped = true;
        exchange_detach(engine->exchange, &worker->exchange);
    }
}

static bool rings_read_worker(struct engine *engine, struct engine_worker *worker, uint64_t now_ns,
                              struct engine_slice *slice)
{
    bool any = false;
    for (uint32_t i = 0; i < SUBMISSIONS_AT_ONCE && !slice->over; i++) {
        if (!rings_read_one(engine, worker, now_ns))
            break;
        any = true;
        engine_slice_step(slice, SUBMISSIONS_A_LOOK);
        if (worker->leaving && rings_has_passed(worker, worker->leave_index))
            break; /* what it has submitted since does not count */
    }
    rings_check_marks(engine, worker);
    return any;
}

static bool rings_read_share(struct engine *engine, struct engine_share *share, uint64_t now_ns)
{
    struct engine_slice slice = {0};
    struct engine_worker *it = share->workers;
    bool any = false;
    do {
        any |= rings_read_worker(engine, it, now_ns, &slice);
        it = it->next_shared;
    } while (it != share->workers && !slice.over);
    share->workers = it;
    return any;
}

bool engine_read_workers(struct engine *engine, uint64_t now_ns)
{
    bool any = false;
    struct engine_share *share;
    DL_FOREACH(engine->shares, share)
    {
        any |= rings_read_share(engine, share, now_ns);
    }
    engine_check_trace(engine);
    return any;
}

/* --- what waits until a ring has been read ---------------------------------------------------- */

static uint32_t rings_end(const struct engine_worker *worker)
{
    const struct arena *arena = &worker->exchange.arena;
    return arena->submission_index + arena_submissions_waiting(arena);
}

void engine_leave(struct engine *engine, struct engine_worker *worker)
{
    struct engine_slice slice = {0};
    if (worker->leaving || worker->exchange.detached)
        return;
    worker->leaving = true;
    worker->leave_index = rings_end(worker);
    engine->leaving++;
    rings_read_worker(engine, worker, clock_now_ns(), &slice); /* most often that is all */
}

void engine_stop_trace(struct engine *engine, uint32_t number)
{
    uint64_t job = exchange_trace_ends(engine->exchange, number);
    struct engine_slice slice = {0};
    for (struct engine_worker *it = job ? engine->workers : NULL; it; it = it->next) {
        if (it->job != job)
            continue;
        engine->trace_unread += !it->trace_unread;
        it->trace_unread = true;
        it->trace_index = rings_end(it);
        rings_read_worker(engine, it, clock_now_ns(), &slice);
    }
    engine_check_trace(engine);
}

static bool rings_are_read(void *context, uint64_t job)
{
    const struct engine *engine = context;
    const struct engine_worker *it = engine->trace_unread > 0 ? engine->workers : NULL;
    while (it && !(it->job == job && it->trace_unread))
        it = it->next;
    return !it;
}

void engine_check_trace(struct engine *engine)
{
    exchange_traces_settle(engine->exchange, rings_are_read, engine);
}

void engine_stop_trace_now(struct engine *engine, uint64_t job)
{
    for (struct engine_worker *it = engine->workers; it; it = it->next) {
        if (it->job != job || !it->trace_unread)
            continue;
        it->trace_unread = false;
        engine->trace_unread--;
    }
    engine_check_trace(engine);
}
