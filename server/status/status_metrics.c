/* Prometheus's text format 0.0.4, which all that scrape read, and promtool:
 * https://prometheus.io/docs/instrumenting/exposition_formats/ */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/shown.h"
#include "common/text/json_text.h" /* for its growing buffer */
#include "server/status/status.h"
#include "server/status/status_daemon.h"
#include "server/status/status_metric.h"
#include "server/status/status_recoveries.h"

#define BYTES_PER_MBIT 125000u

void metrics_put_line(struct json_text *text, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof(line) - 1, format, arguments);
    va_end(arguments);
    size_t used = length < 0 ? 0 : (size_t)length;
    used = used < sizeof(line) - 1 ? used : sizeof(line) - 2;
    line[used++] = '\n';
    json_text_raw(text, line, used);
}

void metrics_put_family(struct json_text *text, const char *name, const char *type,
                        const char *help)
{
    metrics_put_line(text, "# TYPE %s %s", name, type);
    metrics_put_line(text, "# HELP %s %s", name, help);
}

static void metrics_put_counter(struct json_text *text, const char *name, const char *help,
                                uint64_t value)
{
    metrics_put_family(text, name, "counter", help);
    metrics_put_line(text, "%s %" PRIu64, name, value);
}

static void metrics_put_gauge(struct json_text *text, const char *name, const char *help,
                              uint64_t value)
{
    metrics_put_family(text, name, "gauge", help);
    metrics_put_line(text, "%s %" PRIu64, name, value);
}

const char *metrics_label(const char *value, char escaped[METRICS_LABEL_BYTES])
{
    char shown[METRICS_LABEL_BYTES];
    size_t used = 0;
    shown_copy(shown, sizeof(shown), value);
    /* A name has room for all of it: a control of two bytes becomes seven. */
    for (const char *s = shown; *s && used < METRICS_LABEL_BYTES - 2; s++) {
        if (*s == '"' || *s == '\\')
            escaped[used++] = '\\';
        escaped[used++] = *s;
    }
    escaped[used] = '\0';
    return escaped;
}

static void metrics_put_peers(struct json_text *text, const struct status_source *source)
{
    static const struct {
        const char *name, *type, *help;
    } families[] = {
        {"shoal_peer_up", "gauge", "Whether the peer is reached over control and fabric."},
        {"shoal_peer_away", "gauge", "Whether its connection is over and may go on."},
        {"shoal_peer_recovered_total", "counter", "Connections of the peer that went on."},
        {"shoal_peer_in_bytes_total", "counter", "Bytes received from the peer."},
        {"shoal_peer_out_bytes_total", "counter", "Bytes sent to the peer."},
    };
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        metrics_put_family(text, families[i].name, families[i].type, families[i].help);
        for (uint32_t node = 0; node < source->config->server_count; node++) {
            char name[METRICS_LABEL_BYTES];
            if (node == source->config->self || node >= source->engine->peer_count)
                continue;
            uint64_t values[] = {source->membership->peers[node].state == MEMBERSHIP_UP,
                                 membership_is_away(source->membership, node),
                                 source->membership->peers[node].recovered,
                                 source->engine->peers[node].bytes_in,
                                 source->engine->peers[node].bytes_out};
            metrics_put_line(text, "%s{peer=\"%s\"} %" PRIu64, families[i].name,
                             metrics_label(source->config->servers[node].name, name), values[i]);
        }
    }
}

static void metrics_put_refused(struct json_text *text, const struct status_source *source)
{
    metrics_put_family(text, "shoal_peer_refused_messages_total", "counter",
                       "Sealed messages of the peer that were refused.");
    for (uint32_t node = 0; node < source->config->server_count; node++) {
        char name[METRICS_LABEL_BYTES];
        if (node == source->config->self || node >= source->engine->peer_count)
            continue;
        metrics_label(source->config->servers[node].name, name);
        for (int i = SEAL_TAKEN + 1; i < SEAL_REFUSALS; i++)
            metrics_put_line(
                text, "shoal_peer_refused_messages_total{peer=\"%s\",reason=\"%s\"} %" PRIu64, name,
                seal_refusal_name((enum seal_refusal)i), source->engine->peers[node].refused[i]);
    }
}

static void metrics_put_jobs(struct json_text *text, const struct status_source *source)
{
    uint64_t count[3] = {0}, late = 0;
    for (const struct job *job = coordinator_jobs(source->coordinator); job; job = job->hh.next) {
        count[job->state]++;
        for (const struct job_late *entry = job->lates; entry; entry = entry->next)
            late += entry->rank_count;
    }
    metrics_put_family(text, "shoal_jobs", "gauge", "Jobs that are open on this node.");
    metrics_put_line(text, "shoal_jobs{state=\"opening\"} %" PRIu64, count[JOB_OPENING]);
    metrics_put_line(text, "shoal_jobs{state=\"running\"} %" PRIu64, count[JOB_READY]);
    metrics_put_line(text, "shoal_jobs{state=\"failed\"} %" PRIu64, count[JOB_FAILED]);
    metrics_put_gauge(text, "shoal_gathering_jobs", "Jobs that gather at this node.",
                      HASH_COUNT(coordinator_gatherings(source->coordinator)));
    metrics_put_gauge(text, "shoal_late_ranks", "Ranks that others wait for.", late);
    metrics_put_gauge(text, "shoal_workers", "Workers of this node.",
                      coordinator_worker_count(source->coordinator));
}

char *status_metrics(const struct status_source *source, size_t *length)
{
    const struct engine_status *engine = source->engine;
    struct json_text text;
    json_text_init(&text);
    char node[METRICS_LABEL_BYTES], provider[METRICS_LABEL_BYTES];
    metrics_put_family(&text, "shoal_daemon_info", "gauge", "This daemon.");
    metrics_put_line(&text, "shoal_daemon_info{software=\"%s\",node=\"%s\",provider=\"%s\"} 1",
                     source->software, metrics_label(source->config->node, node),
                     metrics_label(source->transport->provider, provider));
    metrics_put_gauge(&text, "shoal_draining", "Whether the daemon is shutting down.",
                      coordinator_draining(source->coordinator));
    metrics_put_counter(&text, "shoal_in_bytes_total", "Bytes received over the fabric.",
                        engine->bytes_in);
    metrics_put_counter(&text, "shoal_out_bytes_total", "Bytes sent over the fabric.",
                        engine->bytes_out);
    if (status_link_mbits(source) > 0)
        metrics_put_gauge(&text, "shoal_link_bytes_per_second", "What the link can carry each way.",
                          (uint64_t)status_link_mbits(source) * BYTES_PER_MBIT);
    metrics_put_counter(&text, "shoal_reduced_bytes_total", "Input bytes of reductions.",
                        engine->bytes_reduced);
    metrics_put_counter(&text, "shoal_collectives_total", "Collectives completed.",
                        engine->collectives);
    metrics_put_counter(&text, "shoal_met_collectives_total",
                        "Of these, what ranks of this node did in memory that they share.",
                        engine->met_collectives);
    metrics_put_counter(
        &text, "shoal_dropped_messages_total", "Messages of unknown jobs or groups.",
        engine->dropped_messages + coordinator_dropped_messages(source->coordinator));
    metrics_put_gauge(&text, "shoal_slots", "Chunks in progress.", engine->slots);
    metrics_put_gauge(&text, "shoal_buffer_used_bytes", "Chunk buffers in use.",
                      engine->buffer_bytes_used);
    metrics_put_gauge(&text, "shoal_buffer_allocated_bytes", "Chunk buffers allocated.",
                      engine->buffer_bytes_allocated);
    metrics_put_gauge(&text, "shoal_buffer_reserved_bytes",
                      "Chunk buffers and shared memory that groups are promised.",
                      engine->buffer_bytes_reserved);
    metrics_put_gauge(&text, "shoal_buffer_limit_bytes", "Limit of what groups are promised.",
                      engine->buffer_bytes_limit);
    metrics_put_gauge(&text, "shoal_buffer_set_aside_bytes",
                      "Of the used, those that the fabric may still read.",
                      engine->buffer_bytes_set_aside);
    metrics_put_gauge(&text, "shoal_replay_results", "Results that are kept for replays.",
                      engine->archived_count);
    metrics_put_gauge(&text, "shoal_replay_bytes", "Memory that these take.",
                      engine->archived_bytes);
    metrics_put_gauge(&text, "shoal_replay_limit_bytes", "And may take at most.",
                      config_keep_bytes(source->config));
    metrics_put_jobs(&text, source);
    metrics_put_waits(&text, source);
    metrics_put_recoveries(&text, source);
    metrics_put_peers(&text, source);
    metrics_put_refused(&text, source);
    return json_text_take(&text, length);
}
