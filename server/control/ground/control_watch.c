/* Whether the engine's thread goes on. This thread looks at it now and then, and asks it to go
 * round once more. The time for which it stood still is summed up over these looks, each of which
 * counts for a part of the limit only: a stall of the control thread itself, or of the whole
 * process, makes one look late and is not taken for the engine's. */
#include "server/control/ground/control_internal.h"

#define WATCH_LOOKS_LEAST 3u
/* Whoever waits less, or longer, for its peers does not so for its own engine: a thread may have to
 * wait for its core, and a watchdog is to bark. */
#define WATCH_LEAST_MS 1000u
#define WATCH_MOST_MS 10000u

static uint32_t watch_limit_ms(const struct config *config)
{
    uint32_t peer_ms = config->peer_ms < WATCH_MOST_MS ? config->peer_ms : WATCH_MOST_MS;
    return peer_ms > WATCH_LEAST_MS ? peer_ms : WATCH_LEAST_MS;
}

bool control_engine_goes_on(struct control *control)
{
    const struct control_engine *engine = &control->options.engine;
    struct control_watch *watch = &control->watch;
    uint32_t limit_ms = watch_limit_ms(control->config);
    uint64_t most_ns = limit_ms * NS_PER_MS / WATCH_LOOKS_LEAST;
    uint64_t now_ns = clock_now_ns(), passed_ns = now_ns - watch->looked_ns;
    uint64_t turns = engine->turns(engine->engine);
    if (turns != watch->turns || watch->looked_ns == 0)
        watch->still_ns = 0;
    else
        watch->still_ns += passed_ns < most_ns ? passed_ns : most_ns;
    watch->turns = turns;
    watch->looked_ns = now_ns;
    bool stuck = watch->still_ns >= WATCH_LOOKS_LEAST * most_ns;
    if (stuck && !watch->stuck)
        log_error(control->log,
                  "the engine's thread is stuck for %u ms: no heartbeats are sent, and the "
                  "watchdog is not fed",
                  limit_ms);
    else if (!stuck && watch->stuck)
        log_warning(control->log, "the engine's thread goes on");
    watch->stuck = stuck;
    return !stuck;
}
