#include "server/status/status_recoveries.h"

#include <stdlib.h>
#include <string.h>

#include "server/status/status_metric.h"

#define NS_PER_MS 1000000u
#define NS_PER_S 1e9

const struct succession *status_succession(const struct coordinator *coordinator, uint64_t lineage)
{
    const struct succession *it = coordinator_successions(coordinator);
    while (it && (it->lineage != lineage || it->formed))
        it = it->hh.next;
    return it;
}

bool status_succession_waits(const struct succession *succession,
                             const struct coordinator_worker_view *views, uint32_t count)
{
    bool waits = succession->ask_count > 0;
    for (uint32_t i = 0; i < count && !waits; i++)
        waits = !views[i].opened && views[i].former == succession->lineage;
    return waits && !succession->formed;
}

void status_put_recoveries(struct json_text *text, const struct recoveries *recoveries)
{
    json_text_open_object(text, "recovered");
    for (int kind = 0; kind < RECOVERY_KINDS; kind++) {
        const struct recovery_count *it = &recoveries->of[kind];
        json_text_open_object(text, recovery_kind_name((enum recovery_kind)kind));
        json_text_uint(text, "times", it->times);
        json_text_uint(text, "last_ms", it->last_ns / NS_PER_MS);
        json_text_uint(text, "total_ms", it->total_ns / NS_PER_MS);
        json_text_close_object(text);
    }
    json_text_close_object(text);
}

static void lost_put_ranks(struct json_text *text, const char *key, uint32_t *room,
                           const struct succession *succession, enum succession_state state)
{
    json_text_open_array(text, key);
    for (uint32_t rank = 0; rank<succession->world_size && * room> 0; rank++) {
        if (succession->states[rank] != state)
            continue;
        json_text_uint(text, NULL, rank);
        --*room;
    }
    json_text_close_array(text);
}

static uint64_t lost_since_ns(const struct succession *succession,
                              const struct status_source *source)
{
    return source->now_ns > succession->since_ns ? source->now_ns - succession->since_ns : 0;
}

void status_put_lost(struct json_text *text, const struct succession *succession,
                     const struct status_source *source, uint32_t *room)
{
    if (!succession) {
        json_text_null(text, "lost");
        return;
    }
    json_text_open_object(text, "lost");
    json_text_uint(text, "since_ms", lost_since_ns(succession, source) / NS_PER_MS);
    lost_put_ranks(text, "ranks", room, succession, SUCCESSION_GONE);
    lost_put_ranks(text, "away", room, succession, SUCCESSION_AWAY);
    json_text_open_array(text, "nodes");
    for (uint32_t node = 0; node < succession->roster; node++) {
        if (succession->members[node] && succession->lost[node])
            json_text_string(text, NULL, source->config->servers[node].name);
    }
    json_text_close_array(text);
    /* The home alone hears who has asked on other nodes. */
    if (succession_home(succession) == succession->self)
        lost_put_ranks(text, "awaited", room, succession, SUCCESSION_AWAITED);
    else
        json_text_null(text, "awaited");
    uint32_t least_ranks = succession_least_ranks(succession);
    if (succession->short_ns != UINT64_MAX && !succession->waited && least_ranks > 0)
        json_text_uint(text, "least_ranks", least_ranks);
    else
        json_text_null(text, "least_ranks");
    json_text_close_object(text);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void metrics_put_generations(struct json_text *text, const struct job *jobs)
{
    char name[METRICS_LABEL_BYTES];
    metrics_put_family(text, "shoal_job_generation", "gauge",
                       "How often the ranks of the job have formed anew, from 1.");
    for (const struct job *job = jobs; job; job = job->hh.next) {
        if (job->state == JOB_READY)
            metrics_put_line(text, "shoal_job_generation{job=\"%s\"} %u",
                             metrics_label(job->name, name), job->generation);
    }
}

static void metrics_put_recovered(struct json_text *text, const struct job *jobs)
{
    static const struct {
        const char *name, *type, *help;
    } families[] = {
        {"shoal_job_recovered_total", "counter", "What the job has gone on from."},
        {"shoal_job_recovered_seconds_total", "counter", "How long it took to go on."},
        {"shoal_job_recovered_last_seconds", "gauge", "How long it took the last time."},
    };
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        metrics_put_family(text, families[i].name, families[i].type, families[i].help);
        for (const struct job *job = jobs; job; job = job->hh.next) {
            char name[METRICS_LABEL_BYTES];
            if (job->state != JOB_READY)
                continue;
            metrics_label(job->name, name);
            for (int kind = 0; kind < RECOVERY_KINDS; kind++) {
                const struct recovery_count *it = &job->recoveries.of[kind];
                double values[] = {it->times, (double)it->total_ns / NS_PER_S,
                                   (double)it->last_ns / NS_PER_S};
                metrics_put_line(text, "%s{job=\"%s\",kind=\"%s\"} %.*f", families[i].name, name,
                                 recovery_kind_name((enum recovery_kind)kind), i == 0 ? 0 : 6,
                                 values[i]);
            }
        }
    }
}

/* Return whether one of the `count` before it that wait has its name: a series has one value. */
static bool metrics_named_before(const struct succession *const *waiting, uint32_t count,
                                 const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(waiting[i]->name, name) == 0)
            return true;
    }
    return false;
}

static void metrics_put_waiting(struct json_text *text, const struct status_source *source,
                                const struct succession *const *waiting, uint32_t count)
{
    char name[METRICS_LABEL_BYTES];
    metrics_put_family(text, "shoal_job_lost_seconds", "gauge",
                       "Since when ranks of a job that has failed wait for its next generation.");
    for (uint32_t i = 0; i < count; i++)
        metrics_put_line(text, "shoal_job_lost_seconds{job=\"%s\"} %.6f",
                         metrics_label(waiting[i]->name, name),
                         (double)lost_since_ns(waiting[i], source) / NS_PER_S);
    metrics_put_family(text, "shoal_job_lost_ranks", "gauge", "Ranks that such a job has lost.");
    for (uint32_t i = 0; i < count; i++) {
        uint32_t gone = 0;
        for (uint32_t rank = 0; rank < waiting[i]->world_size; rank++)
            gone += waiting[i]->states[rank] == SUCCESSION_GONE;
        metrics_put_line(text, "shoal_job_lost_ranks{job=\"%s\"} %u",
                         metrics_label(waiting[i]->name, name), gone);
    }
}

void metrics_put_recoveries(struct json_text *text, const struct status_source *source)
{
    const struct job *jobs = coordinator_jobs(source->coordinator);
    metrics_put_generations(text, jobs);
    metrics_put_recovered(text, jobs);
    uint32_t views_count = coordinator_worker_count(source->coordinator), count = 0;
    const struct succession *it = coordinator_successions(source->coordinator);
    struct coordinator_worker_view *views = calloc((size_t)views_count + 1, sizeof(*views));
    const struct succession **waiting =
        calloc(it ? (size_t)HASH_COUNT(it) : 1, sizeof(const struct succession *));
    if (views)
        coordinator_worker_views(source->coordinator, views);
    for (; views && waiting && it; it = it->hh.next) {
        if (status_succession_waits(it, views, views_count) &&
            !metrics_named_before(waiting, count, it->name))
            waiting[count++] = it;
    }
    metrics_put_waiting(text, source, waiting, count);
    free(waiting);
    free(views);
}
