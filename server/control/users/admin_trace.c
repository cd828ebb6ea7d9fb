/* Traces that shoalctl asks for: one for each user and job, begun and ended by the engine, kept
 * here until the client has read it or is gone. Nobody waits for another user's trace. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/text/json_text.h"
#include "server/control/ground/control_internal.h"

#define RECORDS_AT_ONCE 2048u
#define CLOCK_READINGS 16
#define READ_S 30     /* a client that asks for no more for so long gets no more */
#define TRACES_MAX 8u /* of all users together */

static struct admin_trace *tracing_of(const struct control *control, uint32_t worker)
{
    struct admin_trace *tracing = control->traces;
    while (tracing && tracing->worker != worker)
        tracing = tracing->next_trace;
    return tracing;
}

/* A daemon that drains waits for nobody longer than it waits for the last words to be taken. */
static void tracing_timer(struct admin_trace *tracing, uint32_t ms)
{
    if (tracing->control->draining)
        ms = CONTROL_FLUSH_S * 1000;
    struct timeval limit = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};
    event_base_update_cache_time(tracing->control->base); /* memory has just been touched */
    evtimer_add(tracing->timer, &limit);
}

static void tracing_release(struct admin_trace *tracing)
{
    DL_DELETE2(tracing->control->traces, tracing, prev_trace, next_trace);
    trace_free(tracing->trace);
    if (tracing->timer)
        event_free(tracing->timer);
    free(tracing);
}

static void tracing_stop(const struct admin_trace *tracing)
{
    control_command(tracing->control, &(struct engine_command){.kind = COMMAND_TRACE_STOP,
                                                               .trace_number = tracing->number});
}

static void tracing_on_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct admin_trace *tracing = argument;
    struct control *control = tracing->control;
    if (tracing->trace || control->draining) {
        log_throttled(control->log, log_throttle_of(&control->user_lines, tracing->uid),
                      clock_now_ns(), LOG_LEVEL_WARNING,
                      "the trace of job '%s' is thrown away: process %u does not read it",
                      tracing->job, tracing->pid);
        tracing_release(tracing);
    } else {
        tracing_stop(tracing);
    }
    control_update_later(control);
}

static void tracing_send_document(struct control_worker *worker, struct json_text *text)
{
    size_t length;
    json_text_close_object(text);
    json_text_raw(text, "\n", 1);
    char *document = json_text_take(text, &length);
    if (document)
        control_stream_send(worker->stream, document, length);
    else
        log_error(worker->control->log, "no memory: a part of a trace is lost");
    free(document);
}

static void tracing_document_begin(struct json_text *text, const char *type)
{
    json_text_init(text);
    text->shown = true;
    json_text_open_object(text, NULL);
    json_text_string(text, "type", type);
}

/* --- which job -------------------------------------------------------------------------------- */

/* Names of the jobs that have a part here, for whoever asked for another. */
static void tracing_jobs_text(const struct control *control, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (const struct job *job = coordinator_jobs(control->coordinator); job && used < bytes;
         job = job->hh.next) {
        if (job->state == JOB_READY && job_needs_engine(job))
            used +=
                (size_t)snprintf(text + used, bytes - used, "%s'%s'", used ? ", " : "", job->name);
    }
    if (used == 0)
        snprintf(text, bytes, "none");
}

const struct job *admin_find_job(const struct control *control, const char *name,
                                 struct error *error)
{
    const char *node = control->config->node;
    if (control->draining) {
        error_set(error, ERR_REFUSED, "node %s is shutting down", node);
        return NULL;
    }
    for (const struct job *job = coordinator_jobs(control->coordinator); job; job = job->hh.next) {
        if (strcmp(job->name, name) == 0 && job->state == JOB_READY && job_needs_engine(job))
            return job;
    }
    const struct job *other = coordinator_jobs(control->coordinator);
    while (other && strcmp(other->name, name) != 0)
        other = other->hh.next;
    const struct gathering *gathering = coordinator_gatherings(control->coordinator);
    while (gathering && strcmp(gathering->name, name) != 0)
        gathering = gathering->hh.next;
    char jobs[300];
    tracing_jobs_text(control, jobs, sizeof(jobs));
    if (gathering || (other && other->state == JOB_OPENING))
        error_set(error, ERR_STATE, "job '%s' does not run yet: its ranks are still coming", name);
    else if (other && other->state == JOB_FAILED)
        error_set(error, ERR_STATE, "job '%s' has failed: %.600s", name, other->text);
    else
        error_set(error, ERR_INVALID,
                  "node %s has no part in a job '%s' (it has: %s); ask a node that has ranks of it",
                  node, name, jobs);
    return NULL;
}

/* --- beginning -------------------------------------------------------------------------------- */

static int tracing_check(const struct control *control, const struct control_worker *worker,
                         const struct job *job, struct error *error)
{
    uint32_t uid = worker->credentials.uid;
    if (uid != 0 && uid != geteuid() && uid != job->uid)
        return error_set(error, ERR_REFUSED,
                         "user %u may not trace job '%s', only user %u, whose it is, root and user "
                         "%u may",
                         uid, job->name, job->uid, geteuid());
    const struct admin_trace *tracing = control->traces;
    while (tracing && tracing->uid != uid)
        tracing = tracing->next_trace;
    if (tracing)
        return error_set(error, ERR_REFUSED,
                         "process %u of user %u takes a trace of job '%s' on node %s, and a user "
                         "may take one at a time: wait for it, or end it",
                         tracing->pid, uid, tracing->job, control->config->node);
    return 0;
}

/* End the trace of the same job that somebody else takes: a job has one trace at a time. */
static void tracing_displace(const struct admin_trace *by)
{
    struct admin_trace *tracing;
    DL_FOREACH2(by->control->traces, tracing, next_trace)
    {
        if (tracing == by || tracing->job_id != by->job_id || tracing->trace)
            continue;
        tracing->displaced = true;
        tracing_stop(tracing);
    }
}

/* Throw away the oldest trace, when there are as many as there may be. Root's and that of the
 * daemon's own user, who has all memory anyway, stay. */
static void tracing_make_room(struct control *control)
{
    struct admin_trace *tracing, *oldest = NULL;
    uint32_t count = 0;
    DL_FOREACH2(control->traces, tracing, next_trace)
    {
        count++;
        if (!oldest && tracing->uid != 0 && tracing->uid != geteuid())
            oldest = tracing;
    }
    if (count < TRACES_MAX || !oldest)
        return;
    char why[256];
    struct control_worker *worker = control_worker_find(control, oldest->worker);
    snprintf(
        why, sizeof(why),
        "the trace is thrown away: node %s has memory for %u, and another user takes one; read "
        "it sooner, or take it later",
        control->config->node, TRACES_MAX);
    if (worker)
        control_worker_refuse(worker, ERR_REFUSED, why);
    if (!oldest->trace)
        tracing_stop(oldest);
    tracing_release(oldest);
}

/* The connection that has the trace, or had one, is over. */
static void tracing_on_gone(struct control *control, uint32_t worker)
{
    struct admin_trace *tracing = tracing_of(control, worker);
    if (!tracing)
        return;
    if (!tracing->trace)
        tracing_stop(tracing);
    tracing_release(tracing);
}

static struct admin_trace *tracing_create(struct control_worker *worker, const struct job *job)
{
    struct control *control = worker->control;
    struct admin_trace *tracing = calloc(1, sizeof(*tracing));
    if (!tracing)
        return NULL;
    *tracing = (struct admin_trace){.control = control,
                                    .worker = worker->id,
                                    .uid = worker->credentials.uid,
                                    .pid = worker->credentials.pid,
                                    .number = ++control->trace_number,
                                    .job_id = job->id,
                                    .world_size = job->world_size,
                                    .timer = evtimer_new(control->base, tracing_on_timer, tracing)};
    snprintf(tracing->job, sizeof(tracing->job), "%s", job->name);
    DL_APPEND2(control->traces, tracing, prev_trace, next_trace);
    if (tracing->timer)
        return tracing;
    tracing_release(tracing);
    return NULL;
}

static int tracing_begin(struct control *control, struct control_worker *worker,
                         const struct job *job, uint32_t duration_ms, struct error *error)
{
    tracing_make_room(control);
    struct trace *trace = trace_create(control->trace_number + 1, job->id, TRACE_RECORDS_MAX);
    struct admin_trace *tracing = trace ? tracing_create(worker, job) : NULL;
    if (!tracing) {
        trace_free(trace);
        return error_set(error, ERR_MEMORY, "no memory for a trace");
    }
    tracing_displace(tracing);
    control_command(control, &(struct engine_command){.kind = COMMAND_TRACE_START, .trace = trace});
    worker->gone = tracing_on_gone;
    tracing_timer(tracing, duration_ms);
    log_throttled(control->log, log_throttle_of(&control->user_lines, worker->credentials.uid),
                  clock_now_ns(), LOG_LEVEL_INFO,
                  "process %u of user %u takes a trace of job '%s' for %u ms",
                  worker->credentials.pid, worker->credentials.uid, job->name, duration_ms);
    return 0;
}

void admin_trace_start(struct control_worker *worker, const struct message *message)
{
    struct control *control = worker->control;
    struct error error = {0};
    const struct job *job = admin_find_job(control, message->job, &error);
    if (!job) {
        control_worker_refuse(worker, error.code, error.text);
        return;
    }
    int result = tracing_check(control, worker, job, &error);
    if (result == 0)
        result = tracing_begin(control, worker, job, message->duration_ms, &error);
    if (result != 0) {
        control_worker_refuse(worker, result, error.text);
        return;
    }
    struct json_text text;
    tracing_document_begin(&text, "tracing");
    json_text_string(&text, "job", job->name);
    tracing_send_document(worker, &text);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Return what to add to CLOCK_MONOTONIC to get the time of day. The pair of readings that took the
 * shortest counts: the thread may lose its core between the two. */
static int64_t tracing_wall_offset_ns(void)
{
    uint64_t least_ns = UINT64_MAX;
    int64_t offset_ns = 0;
    for (int i = 0; i < CLOCK_READINGS; i++) {
        struct timespec wall;
        uint64_t before_ns = clock_now_ns();
        clock_gettime(CLOCK_REALTIME, &wall);
        uint64_t took_ns = clock_now_ns() - before_ns;
        if (took_ns >= least_ns)
            continue;
        least_ns = took_ns;
        offset_ns = (int64_t)wall.tv_sec * (int64_t)NS_PER_S + wall.tv_nsec -
                    (int64_t)(before_ns + took_ns / 2);
    }
    return offset_ns;
}

static const char *tracing_end_name(const struct admin_trace *tracing)
{
    if (tracing->trace->end != TRACE_END_ASKED)
        return trace_end_name(tracing->trace->end);
    return tracing->control->draining ? "draining"
           : tracing->displaced       ? "another trace"
                                      : trace_end_name(TRACE_END_ASKED);
}

static void tracing_send_summary(const struct admin_trace *tracing, struct control_worker *worker)
{
    const struct trace *trace = tracing->trace;
    const struct config *config = tracing->control->config;
    struct json_text text;
    tracing_document_begin(&text, "traced");
    json_text_string(&text, "job", tracing->job);
    json_text_hex(&text, "job_id", trace->job);
    json_text_uint(&text, "world_size", tracing->world_size);
    json_text_string(&text, "node", config->node);
    json_text_uint(&text, "node_number", config->self);
    json_text_open_array(&text, "nodes");
    for (uint32_t i = 0; i < config->server_count; i++)
        json_text_string(&text, NULL, config->servers[i].name);
    json_text_close_array(&text);
    json_text_uint(&text, "pid", (uint64_t)getpid());
    json_text_string(&text, "end", tracing_end_name(tracing));
    json_text_uint(&text, "began_ns", trace->began_ns);
    json_text_uint(&text, "ended_ns", trace->ended_ns);
    json_text_int(&text, "wall_offset_ns", tracing_wall_offset_ns());
    json_text_uint(&text, "records", trace->count);
    json_text_uint(&text, "dropped", trace->dropped);
    json_text_uint(&text, "left_out", trace->omitted);
    json_text_uint(&text, "refused", trace->refused);
    tracing_send_document(worker, &text);
}

void admin_trace_over(struct control *control, struct engine_event *event)
{
    struct admin_trace *tracing = event->trace ? control->traces : NULL;
    while (tracing && tracing->number != event->trace->number)
        tracing = tracing->next_trace;
    struct control_worker *worker = tracing ? control_worker_find(control, tracing->worker) : NULL;
    if (!worker)
        return; /* nobody's any more: it goes with the event */
    if (event->code != 0) {
        tracing_release(tracing);
        control_worker_refuse(worker, event->code, event->text);
        return;
    }
    tracing->trace = event->trace;
    event->trace = NULL;
    if (!control->draining)
        tracing_timer(tracing, READ_S * 1000);
    tracing_send_summary(tracing, worker);
}

static void tracing_put_record(struct json_text *text, const struct trace_record *record)
{
    json_text_open_array(text, NULL);
    json_text_uint(text, NULL, record->stage);
    json_text_uint(text, NULL, record->kind);
    json_text_uint(text, NULL, record->flags);
    json_text_uint(text, NULL, record->group);
    json_text_int(text, NULL, (int64_t)record->sequence); /* all 64 bits, for any reader */
    json_text_uint(text, NULL, record->block);
    json_text_uint(text, NULL, record->chunk);
    json_text_int(text, NULL, record->peer == TRACE_NO_PEER ? -1 : (int64_t)record->peer);
    json_text_uint(text, NULL, record->bytes);
    json_text_uint(text, NULL, record->begin_ns);
    json_text_uint(text, NULL, record->end_ns);
    json_text_close_array(text);
}

void admin_trace_read(struct control_worker *worker)
{
    struct control *control = worker->control;
    struct admin_trace *tracing = tracing_of(control, worker->id);
    if (!tracing || !tracing->trace) {
        control_worker_refuse(worker, ERR_STATE, "there is no trace to be read");
        return;
    }
    const struct trace *trace = tracing->trace;
    struct json_text text;
    tracing_document_begin(&text, "trace_records");
    json_text_open_array(&text, "records");
    for (uint32_t i = 0; i < RECORDS_AT_ONCE && tracing->next < trace->count; i++)
        tracing_put_record(&text, &trace->records[tracing->next++]);
    json_text_close_array(&text);
    tracing_send_document(worker, &text);
    if (tracing->next == trace->count)
        tracing_release(tracing);
    else if (!control->draining)
        tracing_timer(tracing, READ_S * 1000);
}

void admin_trace_drain(struct control *control)
{
    struct admin_trace *tracing;
    DL_FOREACH2(control->traces, tracing, next_trace)
    {
        if (!tracing->trace)
            tracing_stop(tracing);
        tracing_timer(tracing, 0);
    }
}

bool admin_trace_waits(const struct control *control)
{
    return control->traces;
}

void admin_trace_clear(struct control *control)
{
    while (control->traces)
        tracing_release(control->traces); /* NOLINT(clang-analyzer-unix.Malloc) */
}
