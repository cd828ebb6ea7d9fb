/* The text of whom a job waits for on a daemon. */
#include "server/status/status.h"

#include <stdio.h>

#include "server/status/status_metric.h"

#define US_PER_S 1e6
#define MS_PER_S 1e3

static void waits_put_ranks(struct json_text *text, const struct waits_figures *figures)
{
    json_text_open_array(text, "ranks");
    uint32_t count =
        figures->window_us > 0 ? WAITS_RANKS : 0; /* what nobody has filled in is zero */
    for (uint32_t i = 0; i < count && figures->rank[i].rank != WAITS_NOBODY; i++) {
        json_text_open_object(text, NULL);
        json_text_uint(text, "rank", figures->rank[i].rank);
        json_text_uint(text, "times", figures->rank[i].times);
        json_text_real(text, "start_s", figures->rank[i].start_us / US_PER_S);
        json_text_real(text, "data_s", figures->rank[i].give_us / US_PER_S);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

static void waits_put_nodes(struct json_text *text, const struct waits_figures *figures,
                            const struct config *config)
{
    json_text_open_array(text, "nodes");
    uint32_t count = figures->window_us > 0 ? WAITS_NODES : 0;
    for (uint32_t i = 0; i < count && figures->node[i].node < config->server_count; i++) {
        json_text_open_object(text, NULL);
        json_text_string(text, "node", config->servers[figures->node[i].node].name);
        json_text_uint(text, "times", figures->node[i].times);
        json_text_real(text, "start_s", figures->node[i].start_us / US_PER_S);
        json_text_real(text, "data_s", figures->node[i].flow_us / US_PER_S);
        json_text_real(text, "alone_s", figures->node[i].all_us / US_PER_S);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

void status_put_waits(struct json_text *text, const struct waits_figures *figures,
                      const struct config *config)
{
    json_text_real(text, "window_s", figures->window_us / US_PER_S);
    json_text_uint(text, "collectives", figures->collectives);
    json_text_uint(text, "step_collectives", figures->step);
    json_text_real(text, "sums_s", figures->tasks_us / US_PER_S);
    json_text_real(text, "still_s", figures->still_us / US_PER_S);
    json_text_real(text, "own_part_s", figures->self_us / US_PER_S);
    json_text_real(text, "other_parts_s", figures->gather_us / US_PER_S);
    json_text_real(text, "opened_s", figures->opened_us / US_PER_S);
    waits_put_ranks(text, figures);
    waits_put_nodes(text, figures, config);
}

static double overlap_computing_s(const struct overlap_figures *figures)
{
    double rest_us = (double)figures->window_us - figures->hidden_us - figures->exposed_us;
    return rest_us > 0 ? rest_us / US_PER_S : 0;
}

void status_put_overlap(struct json_text *text, const struct overlap_figures *figures)
{
    json_text_real(text, "window_s", figures->window_us / US_PER_S);
    json_text_real(text, "computing_s", overlap_computing_s(figures));
    json_text_real(text, "hidden_s", figures->hidden_us / US_PER_S);
    json_text_real(text, "exposed_s", figures->exposed_us / US_PER_S);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void metrics_put_wait(struct json_text *text, const struct job *job, const char *cause,
                             const char *culprit, uint32_t us, uint32_t window_us)
{
    char name[METRICS_LABEL_BYTES], who[METRICS_LABEL_BYTES];
    metrics_put_line(text, "shoal_job_wait_ratio{job=\"%s\",cause=\"%s\",culprit=\"%s\"} %.6f",
                     metrics_label(job->name, name), cause, metrics_label(culprit, who),
                     us < window_us ? (double)us / window_us : 1.0);
}

static void metrics_put_job_waits(struct json_text *text, const struct job *job,
                                  const struct waits_figures *it, const struct config *config)
{
    char rank[16];
    for (uint32_t i = 0; i < WAITS_RANKS && it->rank[i].rank != WAITS_NOBODY; i++) {
        snprintf(rank, sizeof(rank), "%u", it->rank[i].rank);
        metrics_put_wait(text, job, "rank", rank, it->rank[i].start_us, it->window_us);
        metrics_put_wait(text, job, "rank data", rank, it->rank[i].give_us, it->window_us);
    }
    for (uint32_t i = 0; i < WAITS_NODES && it->node[i].node < config->server_count; i++) {
        const char *node = config->servers[it->node[i].node].name;
        metrics_put_wait(text, job, "node", node, it->node[i].start_us, it->window_us);
        metrics_put_wait(text, job, "node data", node, it->node[i].flow_us, it->window_us);
    }
}

static void metrics_put_part(struct json_text *text, const struct job *job, const char *part,
                             double part_s, const struct overlap_figures *it)
{
    char name[METRICS_LABEL_BYTES];
    double window_s = it->window_us / US_PER_S;
    metrics_put_line(text, "shoal_job_time_ratio{job=\"%s\",part=\"%s\"} %.6f",
                     metrics_label(job->name, name), part,
                     part_s < window_s ? part_s / window_s : 1.0);
}

static void metrics_put_job_overlap(struct json_text *text, const struct job *job,
                                    const struct overlap_figures *it)
{
    metrics_put_part(text, job, "computing", overlap_computing_s(it), it);
    metrics_put_part(text, job, "hidden", it->hidden_us / US_PER_S, it);
    metrics_put_part(text, job, "exposed", it->exposed_us / US_PER_S, it);
}

/* Return what the engine knows of a job that runs; NULL: nothing yet. */
static const struct engine_job_status *metrics_find(const struct engine_status *engine,
                                                    const struct job *job)
{
    for (uint32_t i = 0; job->state == JOB_READY && i < engine->job_count; i++) {
        if (engine->jobs[i].job == job->id)
            return &engine->jobs[i];
    }
    return NULL;
}

static const struct verdict *metrics_find_verdict(const struct status_source *source,
                                                  const struct job *job)
{
    for (uint32_t i = 0; job->state == JOB_READY && i < source->verdict_count; i++) {
        const struct verdict *it = &source->verdicts[i].verdict;
        if (source->verdicts[i].job == job->id && it->kind != VERDICT_UNKNOWN)
            return it;
    }
    return NULL;
}

static void metrics_put_without(struct json_text *text, const struct job *job,
                                const struct verdict *it, const struct config *config)
{
    char name[METRICS_LABEL_BYTES], node[METRICS_LABEL_BYTES], rank[16] = "";
    if (it->kind == VERDICT_NOBODY || it->node >= config->server_count)
        return;
    if (it->rank != WAITS_NOBODY)
        snprintf(rank, sizeof(rank), "%u", it->rank);
    metrics_put_line(
        text,
        "shoal_job_step_without_seconds{job=\"%s\",kind=\"%s\",culprit=\"%s\",rank=\"%s\"} %.6f",
        metrics_label(job->name, name), verdict_kind_name(it->kind),
        metrics_label(config->servers[it->node].name, node), rank, it->without_ms / MS_PER_S);
}

/* Put the time of a step, and the time it would take without the one for whom the job waits. */
static void metrics_put_verdicts(struct json_text *text, const struct status_source *source)
{
    const struct job *jobs = coordinator_jobs(source->coordinator);
    char name[METRICS_LABEL_BYTES];
    metrics_put_family(text, "shoal_job_step_seconds", "gauge",
                       "What a step of the job took lately; of jobs whose rank 0 is here.");
    for (const struct job *job = jobs; job; job = job->hh.next) {
        const struct verdict *it = metrics_find_verdict(source, job);
        if (it)
            metrics_put_line(text, "shoal_job_step_seconds{job=\"%s\"} %.6f",
                             metrics_label(job->name, name), it->step_ms / MS_PER_S);
    }
    metrics_put_family(text, "shoal_job_step_without_seconds", "gauge",
                       "What it would take without whom the job waits for.");
    for (const struct job *job = jobs; job; job = job->hh.next) {
        const struct verdict *it = metrics_find_verdict(source, job);
        if (it)
            metrics_put_without(text, job, it, source->config);
    }
}

/* A job that runs has a name of its own; what the engine has just begun with has no window. */
void metrics_put_waits(struct json_text *text, const struct status_source *source)
{
    const struct job *jobs = coordinator_jobs(source->coordinator);
    metrics_put_family(text, "shoal_job_wait_ratio", "gauge",
                       "Part of the last seconds in which the job waited here for one alone.");
    for (const struct job *job = jobs; job; job = job->hh.next) {
        const struct engine_job_status *it = metrics_find(source->engine, job);
        if (it && it->waits.window_us > 0)
            metrics_put_job_waits(text, job, &it->waits, source->config);
    }
    metrics_put_family(text, "shoal_job_time_ratio", "gauge",
                       "Part of the last seconds in which the job computed here, communicated "
                       "behind that (hidden), or waited for communication (exposed).");
    for (const struct job *job = jobs; job; job = job->hh.next) {
        const struct engine_job_status *it = metrics_find(source->engine, job);
        if (it && it->overlap.window_us > 0)
            metrics_put_job_overlap(text, job, &it->overlap);
    }
    metrics_put_verdicts(text, source);
}
