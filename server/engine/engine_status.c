/* The picture of the engine that the status shows: made by its thread, copied by the control
 * thread.
 */
#include <stdlib.h>
#include <string.h>

#include "server/engine/engine_private.h"

void engine_status_clear(struct engine_status *status)
{
    free(status->jobs);
    free(status->peers);
    status->jobs = NULL;
    status->peers = NULL;
}

static void status_add_peers(const struct engine *engine, struct engine_status *status)
{
    for (uint32_t i = 0; i < engine->node_count; i++) {
        const struct engine_peer *peer = &engine->peers[i];
        status->peers[i] = (struct engine_peer_status){.node = i,
                                                       .up = peer->up,
                                                       .sealed = peer->link != NULL,
                                                       .unsent = peer->unsent,
                                                       .bytes_in = peer->bytes_in,
                                                       .bytes_out = peer->bytes_out,
                                                       .messages_in = peer->messages_in,
                                                       .messages_out = peer->messages_out};
        memcpy(status->peers[i].refused, peer->refused, sizeof(peer->refused));
        status->bytes_in += peer->bytes_in;
        status->bytes_out += peer->bytes_out;
    }
}

/* The picture is made beside the one that is shown; without memory for it that one stays. */
void engine_update_status(struct engine *engine, uint64_t now_ns)
{
    struct exchange_totals totals;
    exchange_totals(engine->exchange, &totals);
    struct engine_status made = {
        .now_ns = now_ns,
        .bytes_reduced = totals.bytes_reduced,
        .collectives = totals.collectives,
        .met_collectives = totals.met_collectives,
        .dropped_messages = totals.dropped_messages,
        .buffer_bytes_used = buffer_pool_used_bytes(engine->pool),
        .buffer_bytes_allocated = buffer_pool_allocated_bytes(engine->pool),
        .buffer_bytes_reserved = buffer_pool_reserved_bytes(engine->pool),
        .buffer_bytes_limit = buffer_pool_limit_bytes(engine->pool),
        .buffer_bytes_set_aside = engine->aside_bytes,
        .archived_bytes = totals.archived_bytes,
        .archived_count = totals.archived_count,
        .slots = totals.slots,
        .workers = totals.workers,
        .jobs = calloc(totals.jobs ? totals.jobs : 1, sizeof(*made.jobs)),
        .job_count = totals.jobs,
        .peers = calloc(engine->node_count, sizeof(*made.peers)),
        .peer_count = engine->node_count,
    };
    if (made.jobs && made.peers) {
        exchange_job_totals(engine->exchange, made.jobs, totals.jobs);
        status_add_peers(engine, &made);
        pthread_mutex_lock(&engine->status_lock);
        struct engine_status before = engine->status;
        engine->status = made;
        pthread_mutex_unlock(&engine->status_lock);
        made = before;
    }
    engine_status_clear(&made);
}

int engine_status(struct engine *engine, struct engine_status *status)
{
    struct engine_status copy = {
        .peers = calloc(engine->node_count, sizeof(*copy.peers)),
    };
    uint32_t room = 0;
    bool fits = false;
    while (copy.peers && !fits) {
        struct engine_job_status *jobs = realloc(copy.jobs, (room + 1) * sizeof(*jobs));
        if (!jobs)
            break;
        copy.jobs = jobs;
        pthread_mutex_lock(&engine->status_lock);
        const struct engine_status *shown = &engine->status;
        fits = shown->job_count <= room;
        room = shown->job_count;
        if (fits && shown->peers) {
            memcpy(copy.peers, shown->peers, shown->peer_count * sizeof(*copy.peers));
            memcpy(jobs, shown->jobs, shown->job_count * sizeof(*jobs));
        }
        if (fits)
            *status = *shown;
        pthread_mutex_unlock(&engine->status_lock);
    }
    if (!fits) {
        engine_status_clear(&copy);
        return ERR_MEMORY;
    }
    status->peers = copy.peers;
    status->jobs = copy.jobs;
    return 0;
}
