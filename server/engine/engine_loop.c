/* The engine's thread: take what has come, let the exchange decide, sleep when there is nothing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/base/clock.h"
#include "common/base/kernel.h"
#include "server/engine/engine_private.h"

#define TICK_NS (100 * NS_PER_MS)
/* How often a fabric without wait objects is looked at: while collectives run, and otherwise. */
#define POLL_BUSY_NS (50 * 1000ull)
#define POLL_IDLE_NS (2 * NS_PER_MS)
#define WAKE_EVENTS 32
/* How much is done before the clock is asked whether a slice of the round is over. */
#define TASKS_A_LOOK 8
#define GROUPS_A_LOOK 2
/* Rounds end after some milliseconds: one that begins so much later was kept from its core. */
#define ROUND_NS (10 * NS_PER_MS)

bool engine_take_reduced(struct engine *engine)
{
    struct engine_slice slice = {0};
    struct reduce_task *task;
    while (!slice.over && (task = reducer_take(engine->reducer)) != NULL) {
        if (task->run)
            engine_protect_over(engine, task);
        else
            exchange_reduced(engine->exchange, task);
        engine_slice_step(&slice, TASKS_A_LOOK);
    }
    engine_move_protected(engine);
    return slice.steps > 0;
}

/* Rounds that begin too late, as of a daemon that was stopped, do not show that it was woken and
 * had no processor; the kernel's count does. Time that is in both counts once. */
static void engine_count_delay(struct engine *engine, uint64_t now_ns)
{
    uint64_t delay_ns = run_delay_take(&engine->delay);
    if (delay_ns > engine->still_ns)
        exchange_time(engine->exchange, now_ns, delay_ns - engine->still_ns);
    engine->still_ns = 0;
}

static void engine_tick(struct engine *engine, uint64_t now_ns)
{
    if (now_ns < engine->next_tick_ns)
        return;
    engine->next_tick_ns = now_ns + TICK_NS;
    engine_count_delay(engine, now_ns);
    exchange_tick(engine->exchange, now_ns);
    engine_check_connecting(engine, now_ns);
    if (engine->links > 0)
        engine_check_protected(engine, now_ns);
    engine_update_status(engine, now_ns);
}

static void engine_check_drained(struct engine *engine)
{
    if (!engine->draining || engine->leaving > 0 || !exchange_idle(engine->exchange))
        return;
    engine->draining = false;
    engine_queue_put_event(&engine->events, engine_event_create(ENGINE_IDLE));
}

/* Whether there is more to be run. */
static bool engine_run(struct engine *engine)
{
    struct engine_slice slice = {0};
    while (!slice.over) {
        if (!exchange_run_some(engine->exchange, 1))
            return false;
        engine_slice_step(&slice, GROUPS_A_LOOK);
    }
    return true;
}

/* One round; whether anything had come, or is left. */
static bool engine_round(struct engine *engine)
{
    uint64_t now_ns = clock_now_ns();
    uint64_t still_ns = engine->due_ns > 0 && now_ns > engine->due_ns ? now_ns - engine->due_ns : 0;
    exchange_time(engine->exchange, now_ns, still_ns);
    engine->still_ns += still_ns;
    engine->due_ns = now_ns + ROUND_NS;
    bool any = engine_take_commands(engine);
    any |= engine_read_workers(engine, now_ns);
    any |= engine_poll_transport(engine, now_ns);
    any |= engine_take_reduced(engine);
    any |= engine_return_lost(engine);
    if (engine->config->recovery)
        engine_end_unsendable(engine);
    engine_tick(engine, now_ns);
    any |= engine_run(engine);
    engine_ring_workers(engine);
    engine_check_drained(engine);
    return reducer_work(engine->reducer) || any; /* last: nothing that goes out waits for it */
}

/* Announce sleep everywhere; false when something came meanwhile, and then all is withdrawn. */
static bool engine_prepare_sleep(struct engine *engine)
{
    struct engine_worker *it = engine->workers;
    bool ready = engine->lost || reducer_prepare_sleep(engine->reducer);
    if (ready)
        return false;
    for (; it && !ready; it = it->next)
        ready = !it->stopped && arena_daemon_prepare_sleep(&it->exchange.arena);
    if (!ready)
        ready = !transport_can_sleep(engine->transport);
    if (!ready)
        return true;
    reducer_cancel_sleep(engine->reducer);
    for (struct engine_worker *back = engine->workers; back != it; back = back->next)
        arena_daemon_cancel_sleep(&back->exchange.arena);
    return false;
}

static uint64_t engine_sleep_ns(const struct engine *engine)
{
    uint64_t now_ns = clock_now_ns();
    uint64_t ns = engine->next_tick_ns > now_ns ? engine->next_tick_ns - now_ns : 0;
    if (transport_descriptor(engine->transport) >= 0)
        return ns;
    uint64_t poll_ns = exchange_idle(engine->exchange) ? POLL_IDLE_NS : POLL_BUSY_NS;
    return poll_ns < ns ? poll_ns : ns;
}

/* Linux has epoll_pwait2 from 5.11 on, and a container's filter of system calls may forbid it. */
static void engine_wait(struct engine *engine, uint64_t ns)
{
    struct epoll_event events[WAKE_EVENTS];
    struct timespec timeout = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    if (!engine->waits_in_ms) {
        int count = kernel_epoll_pwait2(engine->poll_descriptor, events, WAKE_EVENTS, &timeout);
        if (count >= 0 || errno == EINTR)
            return;
        engine->waits_in_ms = true;
    }
    epoll_wait(engine->poll_descriptor, events, WAKE_EVENTS, (int)(ns / NS_PER_MS) + 1);
}

static void engine_sleep(struct engine *engine)
{
    if (!engine_prepare_sleep(engine))
        return;
    engine->due_ns = engine->next_tick_ns + ROUND_NS;
    engine_wait(engine, engine_sleep_ns(engine));
    reducer_rested(engine->reducer);
    reducer_cancel_sleep(engine->reducer);
    for (struct engine_worker *it = engine->workers; it; it = it->next)
        arena_daemon_cancel_sleep(&it->exchange.arena);
}

void *engine_main(void *argument)
{
    struct engine *engine = argument;
    if (!run_delay_open(&engine->delay))
        log_info(engine->log, "the kernel does not say how long the engine waits for a processor: "
                              "`why` will not see that others take it");
    while (!engine->stopping) {
        atomic_fetch_add_explicit(&engine->turns, 1, memory_order_relaxed);
        if (!engine_round(engine))
            engine_sleep(engine);
    }
    run_delay_close(&engine->delay);
    return NULL;
}
