#include "server/status/status_daemon.h"

#define NS_PER_MS 1000000u
#define MS_PER_S 1e3

uint32_t status_link_mbits(const struct status_source *source)
{
    return source->config->link_mbits ? source->config->link_mbits : source->transport->link_mbits;
}

void status_daemon_take(struct status_daemon *daemon, const struct status_source *source)
{
    const struct engine_status *engine = source->engine;
    const struct membership *membership = source->membership;
    *daemon = (struct status_daemon){
        .memory_used_bytes = engine->buffer_bytes_used,
        .memory_reserved_bytes = engine->buffer_bytes_reserved,
        .memory_limit_bytes = engine->buffer_bytes_limit,
        .bytes_in = engine->bytes_in,
        .bytes_out = engine->bytes_out,
        .link_mbits = status_link_mbits(source),
    };
    if (engine->now_ns > source->started_ns)
        daemon->time_ms = (engine->now_ns - source->started_ns) / NS_PER_MS;
    for (uint32_t node = 0; node < membership->count; node++) {
        daemon->away += membership_is_away(membership, node);
        daemon->recovered += membership->peers[node].recovered;
    }
    for (uint32_t node = 0; node < engine->peer_count; node++) {
        const struct engine_peer_status *peer = &engine->peers[node];
        if (node == membership->self || membership->count > STATUS_LINKS + 1)
            continue;
        daemon->links[daemon->link_count++] =
            (struct status_link){node, peer->bytes_in, peer->bytes_out};
    }
}

/* --- as numbers of a message ------------------------------------------------------------------ */

static uint32_t *words_put(uint32_t *words, uint64_t value)
{
    *words++ = (uint32_t)(value >> 32);
    *words++ = (uint32_t)value;
    return words;
}

static const uint32_t *words_get(const uint32_t *words, uint64_t *value)
{
    *value = (uint64_t)words[0] << 32 | words[1];
    return words + 2;
}

uint32_t status_daemon_pack(const struct status_daemon *daemon,
                            uint32_t words[STATUS_DAEMON_WORDS_MAX])
{
    uint32_t *next = words_put(words, daemon->time_ms);
    next = words_put(next, daemon->memory_used_bytes);
    next = words_put(next, daemon->memory_reserved_bytes);
    next = words_put(next, daemon->memory_limit_bytes);
    next = words_put(next, daemon->bytes_in);
    next = words_put(next, daemon->bytes_out);
    *next++ = daemon->link_mbits;
    *next++ = daemon->away;
    *next++ = daemon->recovered;
    for (uint32_t i = 0; i < daemon->link_count; i++) {
        *next++ = daemon->links[i].node;
        next = words_put(next, daemon->links[i].bytes_in);
        next = words_put(next, daemon->links[i].bytes_out);
    }
    return (uint32_t)(next - words);
}

bool status_daemon_unpack(struct status_daemon *daemon, const uint32_t *words, uint32_t count,
                          uint32_t roster)
{
    if (count < STATUS_DAEMON_WORDS || count > STATUS_DAEMON_WORDS_MAX ||
        (count - STATUS_DAEMON_WORDS) % STATUS_LINK_WORDS != 0)
        return false;
    *daemon =
        (struct status_daemon){.link_count = (count - STATUS_DAEMON_WORDS) / STATUS_LINK_WORDS};
    words = words_get(words, &daemon->time_ms);
    words = words_get(words, &daemon->memory_used_bytes);
    words = words_get(words, &daemon->memory_reserved_bytes);
    words = words_get(words, &daemon->memory_limit_bytes);
    words = words_get(words, &daemon->bytes_in);
    words = words_get(words, &daemon->bytes_out);
    daemon->link_mbits = *words++;
    daemon->away = *words++;
    daemon->recovered = *words++;
    for (uint32_t i = 0; i < daemon->link_count; i++) {
        struct status_link *link = &daemon->links[i];
        link->node = *words++;
        if (link->node >= roster)
            return false;
        words = words_get(words, &link->bytes_in);
        words = words_get(words, &link->bytes_out);
    }
    return true;
}

/* --- in words --------------------------------------------------------------------------------- */

void status_put_daemon(struct json_text *text, const struct status_daemon *daemon,
                       const struct config *config)
{
    json_text_real(text, "time_s", (double)daemon->time_ms / MS_PER_S);
    json_text_uint(text, "bytes_in", daemon->bytes_in);
    json_text_uint(text, "bytes_out", daemon->bytes_out);
    json_text_uint(text, "link_mbits", daemon->link_mbits);
    json_text_open_object(text, "memory");
    json_text_uint(text, "used_bytes", daemon->memory_used_bytes);
    json_text_uint(text, "reserved_bytes", daemon->memory_reserved_bytes);
    json_text_uint(text, "limit_bytes", daemon->memory_limit_bytes);
    json_text_close_object(text);
    json_text_uint(text, "away", daemon->away);
    json_text_uint(text, "recovered", daemon->recovered);
    json_text_open_array(text, "links");
    for (uint32_t i = 0; i < daemon->link_count; i++) {
        const struct status_link *link = &daemon->links[i];
        json_text_open_object(text, NULL);
        json_text_string(text, "node", config->servers[link->node].name);
        json_text_uint(text, "bytes_in", link->bytes_in);
        json_text_uint(text, "bytes_out", link->bytes_out);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}
