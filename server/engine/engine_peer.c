/* A peer's connection on the fabric: news of it for the control thread, its end, and how long it
 * may take to come and be silent. */
#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "server/engine/engine_private.h"

#define SILENCE_LEAST_NS NS_PER_S /* below that the engine's ticks are too coarse */
#define BARREN ", time and again, and nothing sent comes through before"
#define CONNECT_LEAST_NS (5 * NS_PER_S) /* the kernel repeats what is lost after 1 s and 3 s */

void engine_peer_event(struct engine *engine, enum engine_event_type type, uint32_t node, int code,
                       const char *text)
{
    struct engine_event *event = engine_event_create(type);
    event->node = node;
    event->code = code;
    event->connection = engine->peers[node].number;
    snprintf(event->text, sizeof(event->text), "%s", text);
    engine_queue_put_event(&engine->events, event);
}

bool engine_drop_peer(struct engine *engine, uint32_t node, bool recovers)
{
    struct engine_peer *peer = &engine->peers[node];
    peer->up = false;
    peer->connected = false;
    engine->unsendable -= peer->unsendable != 0;
    peer->unsendable = 0;
    peer->connection++;
    if (recovers)
        recovers = exchange_peer_away(engine->exchange, node);
    else
        exchange_peer_down(engine->exchange, node);
    engine_drop_backlog(engine, node);
    return recovers;
}

void engine_end_peer(struct engine *engine, uint32_t node, const char *text, bool recovers)
{
    char whole[ERROR_TEXT_BYTES];
    transport_disconnect(engine->transport, node);
    bool goes_on = engine_drop_peer(engine, node, recovers);
    bool barren = recovers && exchange_peer_is_barren(engine->exchange, node);
    snprintf(whole, sizeof(whole), "%.*s%s", (int)(sizeof(whole) - sizeof(BARREN)), text,
             barren ? BARREN : "");
    engine_peer_event(engine, ENGINE_PEER_DOWN, node, goes_on ? ERR_DISCONNECTED : 0, whole);
}

void engine_peer_lost(struct engine *engine, uint32_t node, const char *how, bool recovers)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s on the fabric link between %s (%s) and %s (%s)", how,
             engine->node_names[engine->config->self], transport_info(engine->transport)->local,
             engine->node_names[node], engine->peers[node].address);
    engine_end_peer(engine, node, text, recovers);
}

uint64_t engine_silence_ns(const struct engine *engine)
{
    uint64_t silence_ns = engine->config->peer_ms * NS_PER_MS;
    return silence_ns < SILENCE_LEAST_NS ? SILENCE_LEAST_NS : silence_ns;
}

static void engine_peer_lacks(struct engine *engine, uint32_t node, const char *what, uint64_t ns)
{
    char how[64];
    snprintf(how, sizeof(how), "%s for %" PRIu64 " ms", what, (uint64_t)(ns / NS_PER_MS));
    engine_peer_lost(engine, node, how, false);
}

void engine_peer_silent(struct engine *engine, uint32_t node, const char *what)
{
    engine_peer_lacks(engine, node, what, engine_silence_ns(engine));
}

void engine_end_unsendable(struct engine *engine)
{
    char how[128];
    for (uint32_t node = 0; engine->unsendable > 0 && node < engine->node_count; node++) {
        if (engine->peers[node].unsendable == 0)
            continue;
        snprintf(how, sizeof(how), "a message could not be sent (%s)",
                 error_name(engine->peers[node].unsendable));
        engine_peer_lost(engine, node, how, true);
    }
}

void engine_check_connecting(struct engine *engine, uint64_t now_ns)
{
    uint64_t limit_ns = engine_silence_ns(engine);
    if (limit_ns < CONNECT_LEAST_NS)
        limit_ns = CONNECT_LEAST_NS;
    for (uint32_t node = 0; node < engine->node_count; node++) {
        const struct engine_peer *peer = &engine->peers[node];
        if (peer->connected && !peer->up && now_ns >= peer->connect_ns + limit_ns)
            engine_peer_lacks(engine, node, "no connection", limit_ns);
    }
}
