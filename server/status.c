#include "server/status.h"

#include <stdio.h>
#include <string.h>
#include <utlist.h>

#include "common/json_text.h"

void status_rates_sample(struct status_rates *rates, uint64_t now_ns, uint64_t bytes_in,
                         uint64_t bytes_out)
{
    if (rates->sampled_ns != 0 && now_ns > rates->sampled_ns) {
        /* bytes per nanosecond are 1e9 bytes per second */
        double elapsed_ns = (double)(now_ns - rates->sampled_ns);
        rates->in_GBps = (double)(bytes_in - rates->bytes_in) / elapsed_ns;
        rates->out_GBps = (double)(bytes_out - rates->bytes_out) / elapsed_ns;
    }
    rates->sampled_ns = now_ns;
    rates->bytes_in = bytes_in;
    rates->bytes_out = bytes_out;
}

static void put_provider(struct json_text *text, const struct transport_info *info)
{
    json_text_open_object(text, "provider");
    json_text_string(text, "name", info->provider);
    json_text_string(text, "endpoint", info->endpoint);
    json_text_string(text, "version", info->version);
    json_text_string(text, "address", info->local);
    json_text_close_object(text);
}

static void put_peers(struct json_text *text, const struct status_source *source)
{
    json_text_open_array(text, "peers");
    for (uint32_t node = 0; node < source->config->server_count; node++) {
        const struct config_server *server = &source->config->servers[node];
        const struct membership_peer *peer = &source->membership->peers[node];
        if (node == source->config->self)
            continue;
        char address[2 * CONFIG_NAME_BYTES];
        snprintf(address, sizeof(address), "%s:%u", server->address, server->port);
        struct engine_peer_status none = {.node = node};
        const struct engine_peer_status *traffic =
            node < source->engine->peer_count ? &source->engine->peers[node] : &none;
        json_text_open_object(text, NULL);
        json_text_uint(text, "node", node);
        json_text_string(text, "name", server->name);
        json_text_string(text, "address", address);
        json_text_uint(text, "weight", server->weight);
        json_text_string(text, "state", membership_state_name(peer->state));
        json_text_string(text, "fabric", traffic->up ? "up" : "down");
        json_text_uint(text, "bytes_in", traffic->bytes_in);
        json_text_uint(text, "bytes_out", traffic->bytes_out);
        json_text_string(text, "last_error", peer->reason);
        if (peer->state == MEMBERSHIP_DOWN || source->now_ns < peer->heard_ns)
            json_text_null(text, "silent_ms");
        else
            json_text_uint(text, "silent_ms", (source->now_ns - peer->heard_ns) / 1000000);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static const struct engine_job_status *engine_job_status(const struct status_source *source,
                                                         uint64_t job)
{
    static const struct engine_job_status none = {.slowest_rank = UINT32_MAX};
    for (uint32_t i = 0; i < source->engine->job_count; i++) {
        if (source->engine->jobs[i].job == job)
            return &source->engine->jobs[i];
    }
    return &none;
}

static void put_late(struct json_text *text, const struct status_source *source,
                     const struct job *job)
{
    json_text_open_array(text, "late");
    const struct job_late *late;
    DL_FOREACH(job->lates, late)
    {
        if (late->rank_count == 0)
            continue;
        json_text_open_object(text, NULL);
        json_text_uint(text, "group", late->group);
        json_text_uint(text, "sequence", late->sequence);
        json_text_open_array(text, "ranks");
        for (uint32_t i = 0; i < late->rank_count; i++)
            json_text_uint(text, NULL, late->ranks[i]);
        json_text_close_array(text);
        json_text_uint(text, "since_ms",
                       source->now_ns > late->since_ns ? (source->now_ns - late->since_ns) / 1000000
                                                       : 0);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static void put_job_ranks(struct json_text *text, const struct job *job)
{
    json_text_open_array(text, "ranks_present");
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        bool here = job->rank_nodes[rank] == job->self;
        if (!job->left[rank] && (!here || job->locals[rank]))
            json_text_uint(text, NULL, rank);
    }
    json_text_close_array(text);
    json_text_open_array(text, "ranks_missing");
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        bool here = job->rank_nodes[rank] == job->self;
        if (job->left[rank] || (here && !job->locals[rank]))
            json_text_uint(text, NULL, rank);
    }
    json_text_close_array(text);
    json_text_open_array(text, "local_ranks");
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        uint32_t pid;
        if (!coordinator_job_worker(job, rank, &pid))
            continue;
        json_text_open_object(text, NULL);
        json_text_uint(text, "rank", rank);
        json_text_uint(text, "pid", pid);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static void put_job_figures(struct json_text *text, const struct engine_job_status *figures,
                            uint64_t groups)
{
    json_text_uint(text, "groups", groups);
    json_text_uint(text, "bytes", figures->bytes_submitted);
    json_text_uint(text, "collectives", figures->collectives);
    json_text_uint(text, "slots", figures->slots);
    if (figures->slowest_rank == UINT32_MAX)
        json_text_null(text, "slowest_rank");
    else
        json_text_uint(text, "slowest_rank", figures->slowest_rank);
    json_text_uint(text, "slowest_times", figures->slowest_times);
}

static void put_job_head(struct json_text *text, const char *name, const char *state, uint32_t uid,
                         uint32_t world_size)
{
    json_text_open_object(text, NULL);
    json_text_string(text, "name", name);
    json_text_string(text, "state", state);
    json_text_uint(text, "uid", uid);
    json_text_uint(text, "world_size", world_size);
}

static void put_open_jobs(struct json_text *text, const struct status_source *source)
{
    static const char *const states[] = {"opening", "running", "failed"};
    for (const struct job *job = coordinator_jobs(source->coordinator); job; job = job->hh.next) {
        put_job_head(text, job->name, states[job->state], job->uid, job->world_size);
        json_text_hex(text, "job_id", job->id);
        put_job_ranks(text, job);
        put_job_figures(text, engine_job_status(source, job->id), HASH_COUNT(job->groups));
        put_late(text, source, job);
        if (job->state == JOB_FAILED)
            json_text_string(text, "error", job->text);
        json_text_close_object(text);
    }
}

/* Ranks that a gathering knows of, and those that it lacks when every rank is known. */
static void put_gathering_ranks(struct json_text *text, const struct gathering *gathering,
                                bool present)
{
    json_text_open_array(text, present ? "ranks_present" : "ranks_missing");
    bool all_known = true;
    for (uint32_t i = 0; i < gathering->count; i++)
        all_known = all_known && gathering->members[i].rank >= 0;
    for (uint32_t rank = 0; rank < gathering->world_size; rank++) {
        bool here = false;
        for (uint32_t i = 0; i < gathering->count && !here; i++)
            here = gathering->members[i].rank == (int64_t)rank;
        if (here == present && (present || all_known))
            json_text_uint(text, NULL, rank);
    }
    json_text_close_array(text);
}

/* Workers of this node that wait for the job, by rank when they have given one. */
static void put_waiting_ranks(struct json_text *text, const struct status_source *source,
                              const char *name)
{
    json_text_open_array(text, "local_ranks");
    for (uint32_t i = 0; i < coordinator_worker_count(source->coordinator); i++) {
        struct coordinator_worker_view view;
        coordinator_worker_view(source->coordinator, i, &view);
        if (view.opened || strcmp(view.job_name, name) != 0)
            continue;
        json_text_open_object(text, NULL);
        if (view.rank < 0)
            json_text_null(text, "rank");
        else
            json_text_int(text, "rank", view.rank);
        json_text_uint(text, "pid", view.pid);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static void put_gatherings(struct json_text *text, const struct status_source *source)
{
    static const struct engine_job_status none = {.slowest_rank = UINT32_MAX};
    for (const struct gathering *gathering = coordinator_gatherings(source->coordinator); gathering;
         gathering = gathering->hh.next) {
        put_job_head(text, gathering->name, "gathering", gathering->uid, gathering->world_size);
        json_text_null(text, "job_id");
        put_gathering_ranks(text, gathering, true);
        put_gathering_ranks(text, gathering, false);
        put_waiting_ranks(text, source, gathering->name);
        json_text_uint(text, "joined", gathering->count);
        put_job_figures(text, &none, 0);
        json_text_open_array(text, "late");
        json_text_close_array(text);
        json_text_close_object(text);
    }
}

/* Jobs that gather elsewhere and that workers of this node wait for. */
static void put_waiting(struct json_text *text, const struct status_source *source)
{
    static const struct engine_job_status none = {.slowest_rank = UINT32_MAX};
    const struct coordinator *coordinator = source->coordinator;
    for (uint32_t i = 0; i < coordinator_worker_count(coordinator); i++) {
        struct coordinator_worker_view view, other;
        coordinator_worker_view(coordinator, i, &view);
        const struct gathering *gathering;
        HASH_FIND_STR((struct gathering *)(uintptr_t)coordinator_gatherings(coordinator),
                      view.job_name, gathering);
        bool shown = view.opened || gathering;
        for (uint32_t j = 0; j < i && !shown; j++) {
            coordinator_worker_view(coordinator, j, &other);
            shown = !other.opened && strcmp(other.job_name, view.job_name) == 0;
        }
        if (shown)
            continue;
        put_job_head(text, view.job_name, "joining", view.uid, view.world_size);
        json_text_null(text, "job_id");
        json_text_open_array(text, "ranks_present");
        json_text_close_array(text);
        json_text_open_array(text, "ranks_missing");
        json_text_close_array(text);
        put_waiting_ranks(text, source, view.job_name);
        put_job_figures(text, &none, 0);
        json_text_open_array(text, "late");
        json_text_close_array(text);
        json_text_close_object(text);
    }
}

static void put_traffic(struct json_text *text, const struct status_source *source)
{
    const struct engine_status *engine = source->engine;
    json_text_open_object(text, "traffic");
    json_text_uint(text, "bytes_in", engine->bytes_in);
    json_text_uint(text, "bytes_out", engine->bytes_out);
    json_text_real(text, "in_GBps", source->rates->in_GBps);
    json_text_real(text, "out_GBps", source->rates->out_GBps);
    json_text_uint(text, "bytes_reduced", engine->bytes_reduced);
    json_text_uint(text, "collectives", engine->collectives);
    json_text_uint(text, "dropped_messages",
                   engine->dropped_messages + coordinator_dropped_messages(source->coordinator));
    json_text_close_object(text);
    json_text_open_object(text, "memory");
    json_text_uint(text, "used_bytes", engine->buffer_bytes_used);
    json_text_uint(text, "allocated_bytes", engine->buffer_bytes_allocated);
    json_text_uint(text, "reserved_bytes", engine->buffer_bytes_reserved);
    json_text_uint(text, "limit_bytes", engine->buffer_bytes_limit);
    json_text_close_object(text);
    json_text_uint(text, "slots", engine->slots);
}

static void put_limits(struct json_text *text, const struct status_source *source)
{
    const struct config *config = source->config;
    json_text_open_object(text, "workers");
    json_text_uint(text, "count", coordinator_worker_count(source->coordinator));
    json_text_uint(text, "limit", config->workers);
    json_text_close_object(text);
    json_text_open_object(text, "connections");
    json_text_uint(text, "count", source->connections);
    json_text_uint(text, "limit", config->connections);
    json_text_close_object(text);
    json_text_open_object(text, "limits");
    json_text_uint(text, "memory_bytes", config->memory_bytes);
    json_text_uint(text, "arena_bytes", config->arena_bytes);
    json_text_uint(text, "jobs", config->jobs);
    json_text_uint(text, "workers", config->workers);
    json_text_uint(text, "groups_per_job", config->groups_per_job);
    json_text_uint(text, "connections", config->connections);
    json_text_close_object(text);
}

char *status_document(const struct status_source *source, size_t *length)
{
    struct json_text text;
    json_text_init(&text);
    json_text_open_object(&text, NULL);
    json_text_string(&text, "type", "status");
    json_text_string(&text, "software", source->software);
    json_text_string(&text, "node", source->config->node);
    json_text_uint(&text, "pid", source->pid);
    json_text_real(&text, "uptime_s", (double)(source->now_ns - source->started_ns) / 1e9);
    json_text_string(&text, "state",
                     coordinator_draining(source->coordinator) ? "draining" : "running");
    put_provider(&text, source->transport);
    json_text_string(&text, "instruction_set", source->instruction_set);
    json_text_string(&text, "topology", source->topology);
    put_peers(&text, source);
    json_text_open_array(&text, "jobs");
    put_open_jobs(&text, source);
    put_gatherings(&text, source);
    put_waiting(&text, source);
    json_text_close_array(&text);
    put_traffic(&text, source);
    put_limits(&text, source);
    json_text_close_object(&text);
    json_text_raw(&text, "\n", 1);
    return json_text_take(&text, length);
}
