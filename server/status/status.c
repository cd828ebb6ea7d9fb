#include "server/status/status.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/text/json_text.h"
#include "server/status/rank_room.h"
#include "server/status/status_daemon.h"
#include "server/status/status_recoveries.h"

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

/* The address of the page for whoever is on this machine. Null: there is none. */
static void status_put_page(struct json_text *text, const struct config *config)
{
    const char *address = config->metrics_address;
    char page[CONFIG_ADDRESS_BYTES + 32];
    if (config->metrics_port == 0) {
        json_text_null(text, "page");
        return;
    }
    if (strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0)
        address = "127.0.0.1"; /* of any */
    bool six = strchr(address, ':') != NULL;
    snprintf(page, sizeof(page), "http://%s%s%s:%u/", six ? "[" : "", address, six ? "]" : "",
             config->metrics_port);
    json_text_string(text, "page", page);
}

static void status_put_provider(struct json_text *text, const struct transport_info *info)
{
    json_text_open_object(text, "provider");
    json_text_string(text, "name", info->provider);
    json_text_string(text, "endpoint", info->endpoint);
    json_text_string(text, "version", info->version);
    json_text_string(text, "address", info->local);
    json_text_close_object(text);
}

/* Messages of the peer that were refused, by reason. */
static void status_put_refused(struct json_text *text, const struct engine_peer_status *peer)
{
    json_text_open_object(text, "refused");
    for (int i = SEAL_TAKEN + 1; i < SEAL_REFUSALS; i++)
        json_text_uint(text, seal_refusal_name((enum seal_refusal)i), peer->refused[i]);
    json_text_close_object(text);
}

static void status_put_peers(struct json_text *text, const struct status_source *source)
{
    json_text_open_array(text, "peers");
    for (uint32_t node = 0; node < source->config->server_count; node++) {
        const struct config_server *server = &source->config->servers[node];
        const struct membership_peer *peer = &source->membership->peers[node];
        if (node == source->config->self)
            continue;
        char address[CONFIG_ADDRESS_BYTES + 8];
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
        json_text_bool(text, "sealed", traffic->sealed);
        status_put_refused(text, traffic);
        json_text_uint(text, "unsent", traffic->unsent);
        json_text_uint(text, "bytes_in", traffic->bytes_in);
        json_text_uint(text, "bytes_out", traffic->bytes_out);
        json_text_string(text, "last_error", peer->reason);
        if (peer->state == MEMBERSHIP_DOWN || source->now_ns < peer->heard_ns)
            json_text_null(text, "silent_ms");
        else
            json_text_uint(text, "silent_ms", (source->now_ns - peer->heard_ns) / 1000000);
        if (!membership_is_away(source->membership, node) || source->now_ns < peer->since_ns)
            json_text_null(text, "away_ms");
        else
            json_text_uint(text, "away_ms", (source->now_ns - peer->since_ns) / 1000000);
        json_text_uint(text, "recovered", peer->recovered);
        json_text_uint(text, "recovered_ms", peer->recovered_ns / 1000000);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static const struct engine_job_status *status_find_engine_job(const struct status_source *source,
                                                              uint64_t job)
{
    static const struct engine_job_status none = {.slowest_rank = UINT32_MAX};
    for (uint32_t i = 0; i < source->engine->job_count; i++) {
        if (source->engine->jobs[i].job == job)
            return &source->engine->jobs[i];
    }
    return &none;
}

static void status_put_late(struct json_text *text, struct rank_room *room,
                            const struct status_source *source, const struct job *job)
{
    json_text_open_array(text, "late");
    const struct job_late *late;
    DL_FOREACH(job->lates, late)
    {
        if (late->rank_count == 0)
            continue;
        json_text_open_object(text, NULL);
        json_text_uint(text, "group", late->group);
        json_text_uint(text, "sequence", late->number);
        json_text_open_array(text, "ranks");
        for (uint32_t i = 0; i < late->rank_count && room->left > 0; i++, room->left--)
            json_text_uint(text, NULL, late->ranks[i]);
        json_text_close_array(text);
        json_text_uint(text, "since_ms",
                       source->now_ns > late->since_ns ? (source->now_ns - late->since_ns) / 1000000
                                                       : 0);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

/* Ranks that are known, or not; how many had no room. */
static uint32_t status_put_ranks(struct json_text *text, struct rank_room *room, const char *key,
                                 const bool *known, uint32_t world_size, bool wanted)
{
    uint32_t left_out = 0;
    json_text_open_array(text, key);
    for (uint32_t rank = 0; rank < world_size; rank++) {
        if (known[rank] != wanted)
            continue;
        if (room->left == 0) {
            left_out++;
            continue;
        }
        room->left--;
        json_text_uint(text, NULL, rank);
    }
    json_text_close_array(text);
    return left_out;
}

/* Both lists, or without missing ranks when these are not known. */
static void status_put_both_ranks(struct json_text *text, struct rank_room *room, const bool *known,
                                  uint32_t world_size, bool missing)
{
    uint32_t left_out = status_put_ranks(text, room, "ranks_present", known, world_size, true);
    left_out +=
        status_put_ranks(text, room, "ranks_missing", known, missing ? world_size : 0, false);
    json_text_uint(text, "ranks_left_out", left_out);
}

static void status_put_job_ranks(struct json_text *text, struct rank_room *room,
                                 const struct job *job)
{
    bool present[MESSAGE_RANKS_MAX];
    assert(job->world_size <= MESSAGE_RANKS_MAX);
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        bool here = job->rank_nodes[rank] == job->self;
        present[rank] = !job->departed[rank] && (!here || job->locals[rank]);
    }
    status_put_both_ranks(text, room, present, job->world_size, true);
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

static void status_put_job_figures(struct json_text *text, const struct engine_job_status *figures,
                                   uint64_t groups, const struct config *config)
{
    json_text_uint(text, "groups", groups);
    json_text_uint(text, "bytes", figures->bytes_submitted);
    json_text_uint(text, "collectives", figures->collectives);
    json_text_uint(text, "met_collectives", figures->met_collectives);
    json_text_uint(text, "met_bytes", figures->met_bytes);
    json_text_uint(text, "slots", figures->slots);
    json_text_uint(text, "request_bytes", figures->kept_bytes);
    json_text_open_object(text, "replay");
    json_text_uint(text, "bytes", figures->archived_bytes);
    json_text_uint(text, "first", figures->archived_first);
    json_text_uint(text, "end", figures->archived_end);
    json_text_close_object(text);
    if (figures->slowest_rank == UINT32_MAX)
        json_text_null(text, "slowest_rank");
    else
        json_text_uint(text, "slowest_rank", figures->slowest_rank);
    json_text_uint(text, "slowest_times", figures->slowest_times);
    json_text_open_object(text, "waits");
    status_put_waits(text, &figures->waits, config);
    json_text_close_object(text);
    json_text_open_object(text, "time");
    status_put_overlap(text, &figures->overlap);
    json_text_close_object(text);
}

static void status_put_job_head(struct json_text *text, const char *name, const char *state,
                                uint32_t uid, uint32_t world_size)
{
    json_text_open_object(text, NULL);
    json_text_string(text, "name", name);
    json_text_string(text, "state", state);
    json_text_uint(text, "uid", uid);
    json_text_uint(text, "world_size", world_size);
}

static void status_put_open_jobs(struct json_text *text, struct rank_room *room,
                                 const struct status_source *source)
{
    static const char *const states[] = {"opening", "running", "failed"};
    for (const struct job *job = coordinator_jobs(source->coordinator); job; job = job->hh.next) {
        status_put_job_head(text, job->name, states[job->state], job->uid, job->world_size);
        json_text_hex(text, "job_id", job->id);
        json_text_uint(text, "generation", job->generation);
        rank_room_enter(room, job->uid);
        status_put_job_ranks(text, room, job);
        status_put_job_figures(text, status_find_engine_job(source, job->id),
                               HASH_COUNT(job->groups), source->config);
        status_put_late(text, room, source, job);
        status_put_recoveries(text, &job->recoveries);
        status_put_lost(
            text,
            job->state == JOB_FAILED ? status_succession(source->coordinator, job->lineage) : NULL,
            source, &room->left);
        if (job->state == JOB_FAILED)
            json_text_string(text, "error", job->text);
        json_text_close_object(text);
    }
}

/* Workers of this node that wait for a job to open, by the job's name, then in order of arrival. */
struct waiting {
    struct coordinator_worker_view *views;
    uint32_t count;
};

static int status_waiting_compare(const void *left, const void *right)
{
    const struct coordinator_worker_view *a = left, *b = right;
    int order = strcmp(a->job_name, b->job_name);
    if (order != 0)
        return order;
    return a->worker < b->worker ? -1 : a->worker > b->worker;
}

static int status_waiting_collect(struct waiting *waiting, const struct coordinator *coordinator)
{
    uint32_t count = coordinator_worker_count(coordinator), kept = 0;
    struct coordinator_worker_view *views = calloc((size_t)count + 1, sizeof(*views));
    if (!views)
        return ERR_MEMORY;
    coordinator_worker_views(coordinator, views);
    for (uint32_t i = 0; i < count; i++) {
        if (!views[i].opened)
            views[kept++] = views[i];
    }
    qsort(views, kept, sizeof(*views), status_waiting_compare);
    *waiting = (struct waiting){views, kept};
    return 0;
}

/* The first that is not before the name. */
static uint32_t status_waiting_find(const struct waiting *waiting, const char *name)
{
    uint32_t low = 0, high = waiting->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(waiting->views[middle].job_name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Ranks that a gathering knows of, and those that it lacks when every rank is known. */
static void status_put_gathering_ranks(struct json_text *text, struct rank_room *room,
                                       const struct gathering *gathering)
{
    bool known[MESSAGE_RANKS_MAX], all_known = true;
    assert(gathering->world_size <= MESSAGE_RANKS_MAX);
    memset(known, 0, gathering->world_size * sizeof(known[0]));
    for (uint32_t i = 0; i < gathering->count; i++) {
        int32_t rank = gathering->members[i].rank;
        all_known = all_known && rank >= 0;
        if (rank >= 0)
            known[rank] = true;
    }
    status_put_both_ranks(text, room, known, gathering->world_size, all_known);
}

/* Put the ranks of one job, from `first` on, of the workers that wait; return the first of the next
 * job. */
static uint32_t status_put_waiting_ranks(struct json_text *text, const struct waiting *waiting,
                                         uint32_t first, const char *name)
{
    uint32_t i = first;
    json_text_open_array(text, "local_ranks");
    for (; i < waiting->count && strcmp(waiting->views[i].job_name, name) == 0; i++) {
        const struct coordinator_worker_view *view = &waiting->views[i];
        json_text_open_object(text, NULL);
        if (view->rank < 0)
            json_text_null(text, "rank");
        else
            json_text_int(text, "rank", view->rank);
        json_text_uint(text, "pid", view->pid);
        json_text_close_object(text);
    }
    json_text_close_array(text);
    return i;
}

static void status_put_no_figures(struct json_text *text, const struct config *config)
{
    static const struct engine_job_status none = {.slowest_rank = UINT32_MAX};
    status_put_job_figures(text, &none, 0, config);
    json_text_open_array(text, "late");
    json_text_close_array(text);
}

/* Put the history of a job that has not been ready yet: none. */
static void status_put_no_history(struct json_text *text)
{
    static const struct recoveries none = {0};
    status_put_recoveries(text, &none);
    status_put_lost(text, NULL, NULL, NULL);
    json_text_close_object(text);
}

static void status_put_gatherings(struct json_text *text, struct rank_room *room,
                                  const struct status_source *source, const struct waiting *waiting)
{
    for (const struct gathering *gathering = coordinator_gatherings(source->coordinator); gathering;
         gathering = gathering->hh.next) {
        status_put_job_head(text, gathering->name, "gathering", gathering->uid,
                            gathering->world_size);
        json_text_null(text, "job_id");
        rank_room_enter(room, gathering->uid);
        status_put_gathering_ranks(text, room, gathering);
        status_put_waiting_ranks(text, waiting, status_waiting_find(waiting, gathering->name),
                                 gathering->name);
        json_text_uint(text, "joined", gathering->count);
        char cause[ERROR_TEXT_BYTES];
        if (coordinator_gathering_waits(source->coordinator, gathering, cause, sizeof(cause)))
            json_text_string(text, "waits_for", cause);
        else
            json_text_null(text, "waits_for");
        status_put_no_figures(text, source->config);
        status_put_no_history(text);
    }
}

/* Jobs that gather elsewhere and that workers of this node wait for. */
static void status_put_waiting(struct json_text *text, struct rank_room *room,
                               const struct status_source *source, const struct waiting *waiting)
{
    struct gathering *gatherings =
        (struct gathering *)(uintptr_t)coordinator_gatherings(source->coordinator);
    for (uint32_t i = 0; i < waiting->count;) {
        const struct coordinator_worker_view *view = &waiting->views[i];
        const struct gathering *gathering;
        HASH_FIND_STR(gatherings, view->job_name, gathering);
        if (gathering || status_succession(source->coordinator, view->former)) {
            i++;
            continue;
        }
        status_put_job_head(text, view->job_name, "joining", view->uid, view->world_size);
        json_text_null(text, "job_id");
        status_put_both_ranks(text, room, NULL, 0, false);
        i = status_put_waiting_ranks(text, waiting, i, view->job_name);
        status_put_no_figures(text, source->config);
        status_put_no_history(text);
    }
}

static void status_put_succession_ranks(struct json_text *text, struct rank_room *room,
                                        const struct succession *succession)
{
    bool here[MESSAGE_RANKS_MAX];
    assert(succession->world_size <= MESSAGE_RANKS_MAX);
    for (uint32_t rank = 0; rank < succession->world_size; rank++)
        here[rank] = succession->states[rank] != SUCCESSION_GONE;
    status_put_both_ranks(text, room, here, succession->world_size, true);
}

static bool status_has_job(const struct status_source *source, const struct succession *succession)
{
    const struct job *job = coordinator_jobs(source->coordinator);
    while (job && job->lineage != succession->lineage)
        job = job->hh.next;
    return job != NULL;
}

/* Jobs that have failed, of which some rank waits here for the next generation, but none has the
 * failed one any more. */
static void status_put_successions(struct json_text *text, struct rank_room *room,
                                   const struct status_source *source,
                                   const struct waiting *waiting)
{
    for (const struct succession *it = coordinator_successions(source->coordinator); it;
         it = it->hh.next) {
        if (!status_succession_waits(it, waiting->views, waiting->count) ||
            status_has_job(source, it))
            continue;
        status_put_job_head(text, it->name, "waiting", it->uid, it->world_size);
        json_text_null(text, "job_id");
        json_text_uint(text, "generation", it->generation);
        rank_room_enter(room, it->uid);
        status_put_succession_ranks(text, room, it);
        status_put_waiting_ranks(text, waiting, status_waiting_find(waiting, it->name), it->name);
        status_put_no_figures(text, source->config);
        status_put_recoveries(text, &it->recoveries);
        status_put_lost(text, it, source, &room->left);
        json_text_string(text, "error", it->text);
        json_text_close_object(text);
    }
}

/* Return whether the job goes on as a next generation, or ranks wait here for one. */
static bool status_goes_on(const struct status_source *source, const struct waiting *waiting,
                           const struct ended_job *it)
{
    const struct succession *succession = status_succession(source->coordinator, it->lineage);
    const struct job *job = coordinator_jobs(source->coordinator);
    while (job && job->lineage != it->lineage)
        job = job->hh.next;
    return job ||
           (succession && status_succession_waits(succession, waiting->views, waiting->count));
}

/* Jobs that have ended here lately, the newest first. */
static void status_put_ended(struct json_text *text, const struct status_source *source,
                             const struct waiting *waiting)
{
    const struct ended_jobs *ended = coordinator_ended(source->coordinator);
    json_text_open_array(text, "ended");
    for (uint32_t i = (uint32_t)ended->places.used; i-- > 0;) {
        const struct ended_job *it = &ended->jobs[i];
        if (ended_is_old(it, source->now_ns) || status_goes_on(source, waiting, it))
            continue;
        status_put_job_head(text, it->name, it->failed ? "failed" : "completed", it->uid,
                            it->world_size);
        json_text_real(text, "ran_s", (double)(it->ended_ns - it->began_ns) / 1e9);
        json_text_uint(text, "ended_ms",
                       source->now_ns > it->ended_ns ? (source->now_ns - it->ended_ns) / 1000000
                                                     : 0);
        if (it->failed)
            json_text_string(text, "error", it->text);
        else
            json_text_null(text, "error");
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static void status_put_traffic(struct json_text *text, const struct status_source *source)
{
    const struct engine_status *engine = source->engine;
    json_text_open_object(text, "traffic");
    json_text_uint(text, "bytes_in", engine->bytes_in);
    json_text_uint(text, "bytes_out", engine->bytes_out);
    json_text_real(text, "in_GBps", source->rates->in_GBps);
    json_text_real(text, "out_GBps", source->rates->out_GBps);
    json_text_uint(text, "link_mbits", status_link_mbits(source));
    json_text_uint(text, "bytes_reduced", engine->bytes_reduced);
    json_text_uint(text, "collectives", engine->collectives);
    json_text_uint(text, "met_collectives", engine->met_collectives);
    json_text_uint(text, "dropped_messages",
                   engine->dropped_messages + coordinator_dropped_messages(source->coordinator));
    json_text_close_object(text);
    json_text_open_object(text, "memory");
    json_text_uint(text, "used_bytes", engine->buffer_bytes_used);
    json_text_uint(text, "allocated_bytes", engine->buffer_bytes_allocated);
    json_text_uint(text, "reserved_bytes", engine->buffer_bytes_reserved);
    json_text_uint(text, "limit_bytes", engine->buffer_bytes_limit);
    json_text_uint(text, "set_aside_bytes", engine->buffer_bytes_set_aside);
    json_text_close_object(text);
    json_text_open_object(text, "replay");
    json_text_uint(text, "results", engine->archived_count);
    json_text_uint(text, "used_bytes", engine->archived_bytes);
    json_text_uint(text, "limit_bytes", config_keep_bytes(source->config));
    json_text_close_object(text);
    json_text_uint(text, "slots", engine->slots);
}

/* Users that have something. */
static void status_put_users(struct json_text *text, const struct status_source *source)
{
    json_text_open_array(text, "users");
    for (const struct account *account = source->accounts->accounts; account;
         account = account->hh.next) {
        json_text_open_object(text, NULL);
        json_text_uint(text, "uid", account->uid);
        json_text_uint(text, "memory_bytes", account->used[ACCOUNT_MEMORY]);
        json_text_uint(text, "left_bytes", account->used[ACCOUNT_LEFT]);
        json_text_uint(text, "output_bytes", account->used[ACCOUNT_OUTPUT]);
        json_text_uint(text, "descriptors", account->used[ACCOUNT_DESCRIPTORS]);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static void status_put_limits(struct json_text *text, const struct status_source *source)
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
    json_text_uint(text, "user_bytes", source->accounts->limits[ACCOUNT_MEMORY]);
    json_text_uint(text, "pinned_bytes", config->pinned_bytes);
    json_text_uint(text, "jobs", config->jobs);
    json_text_uint(text, "workers", config->workers);
    json_text_uint(text, "groups_per_job", config->groups_per_job);
    json_text_uint(text, "connections", config->connections);
    json_text_close_object(text);
}

static void status_put_warnings(struct json_text *text, const struct status_source *source)
{
    json_text_open_array(text, "warnings");
    for (uint32_t i = 0; i < source->warning_count; i++) {
        const struct log_line *line = &source->warnings[i];
        json_text_open_object(text, NULL);
        json_text_string(text, "time", line->time);
        json_text_string(text, "level", log_level_name(line->level));
        json_text_string(text, "text", line->text);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

/* Present or missing, and late or lost. */
static void status_share_out(struct rank_room *room, const struct status_source *source)
{
    const struct coordinator *coordinator = source->coordinator;
    for (const struct job *job = coordinator_jobs(coordinator); job; job = job->hh.next)
        rank_room_want(room, job->uid, 2 * job->world_size);
    for (const struct gathering *it = coordinator_gatherings(coordinator); it; it = it->hh.next)
        rank_room_want(room, it->uid, it->world_size);
    for (const struct succession *it = coordinator_successions(coordinator); it; it = it->hh.next)
        rank_room_want(room, it->uid, 2 * it->world_size);
    rank_room_share_out(room, STATUS_RANKS_MAX);
}

char *status_document(const struct status_source *source, size_t *length)
{
    struct json_text text;
    struct waiting waiting;
    if (status_waiting_collect(&waiting, source->coordinator) < 0)
        return NULL;
    json_text_init(&text);
    text.shown = true;
    json_text_open_object(&text, NULL);
    json_text_string(&text, "type", "status");
    json_text_string(&text, "software", source->software);
    json_text_string(&text, "node", source->config->node);
    json_text_uint(&text, "pid", source->pid);
    json_text_real(&text, "uptime_s", (double)(source->now_ns - source->started_ns) / 1e9);
    json_text_string(&text, "state",
                     coordinator_draining(source->coordinator) ? "draining" : "running");
    status_put_page(&text, source->config);
    status_put_provider(&text, source->transport);
    json_text_string(&text, "instruction_set", source->instruction_set);
    json_text_string(&text, "topology", source->topology);
    status_put_peers(&text, source);
    json_text_open_array(&text, "jobs");
    struct rank_room room = {0};
    status_share_out(&room, source);
    status_put_open_jobs(&text, &room, source);
    status_put_gatherings(&text, &room, source, &waiting);
    status_put_successions(&text, &room, source, &waiting);
    status_put_waiting(&text, &room, source, &waiting);
    rank_room_clear(&room);
    json_text_close_array(&text);
    status_put_ended(&text, source, &waiting);
    status_put_traffic(&text, source);
    status_put_users(&text, source);
    status_put_limits(&text, source);
    status_put_warnings(&text, source);
    json_text_close_object(&text);
    json_text_raw(&text, "\n", 1);
    free(waiting.views);
    return json_text_take(&text, length);
}
