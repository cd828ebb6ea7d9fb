/* A trace that shoalctl asks for: one at a time, begun and ended by the engine, kept here until the
 * client has read it or is gone. */
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
#define READ_S 30 /* a client that asks for no more for so long gets no more */

/* A daemon that drains waits for nobody longer than it waits for the last words to be taken. */
static void tracing_timer(struct control *control, uint32_t ms)
{
    if (control->draining)
        ms = CONTROL_FLUSH_S * 1000;
    struct timeval limit = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};
    event_base_update_cache_time(control->base); /* memory has just been touched */
    evtimer_add(control->tracing.timer, &limit);
}

static void tracing_release(struct control *control)
{
    struct admin_trace *tracing = &control->tracing;
    trace_free(tracing->trace);
    tracing->trace = NULL;
    tracing->worker = 0;
    event_del(tracing->timer);
}

static void tracing_stop(struct control *control)
{
    control_command(control, &(struct engine_command){.kind = COMMAND_TRACE_STOP,
                                                      .trace_number = control->tracing.number});
}

static void tracing_on_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    if (control->tracing.trace || control->draining) {
        log_warning(control->log,
                    "the trace of job '%s' is thrown away: process %u does not read it",
                    control->tracing.job, control->tracing.pid);
        tracing_release(control);
    } else {
        tracing_stop(control);
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
    const struct admin_trace *tracing = &control->tracing;
    uint32_t uid = worker->credentials.uid;
    if (uid != 0 && uid != geteuid() && uid != job->uid)
        return error_set(error, ERR_REFUSED,
                         "user %u may not trace job '%s', only user %u, whose it is, root and user "
                         "%u may",
                         uid, job->name, job->uid, geteuid());
    if (tracing->worker != 0)
        return error_set(error, ERR_REFUSED,
                         "process %u takes a trace of job '%s' on node %s: one at a time",
                         tracing->pid, tracing->job, control->config->node);
    return 0;
}

/* The connection that has the trace, or had one, is over. */
static void tracing_on_gone(struct control *control, uint32_t worker)
{
    struct admin_trace *tracing = &control->tracing;
    if (tracing->worker == 0 || tracing->worker != worker)
        return;
    if (!tracing->trace)
        tracing_stop(control);
    tracing_release(control);
}

static int tracing_begin(struct control *control, struct control_worker *worker,
                         const struct job *job, uint32_t duration_ms, struct error *error)
{
    struct admin_trace *tracing = &control->tracing;
    if (!tracing->timer)
        tracing->timer = evtimer_new(control->base, tracing_on_timer, control);
    struct trace *trace = trace_create(tracing->number + 1, job->id, TRACE_RECORDS);
    if (!tracing->timer || !trace) {
        trace_free(trace);
        return error_set(error, ERR_MEMORY, "no memory for a trace");
    }
    tracing->number++;
    tracing->worker = worker->id;
    tracing->pid = worker->credentials.pid;
    tracing->next = 0;
    tracing->world_size = job->world_size;
    snprintf(tracing->job, sizeof(tracing->job), "%s", job->name);
    control_command(control, &(struct engine_command){.kind = COMMAND_TRACE_START, .trace = trace});
    worker->gone = tracing_on_gone;
    tracing_timer(control, duration_ms);
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

/* What to add to CLOCK_MONOTONIC to get the time of day. Of several pairs of readings the one that
 * took the shortest: the thread may lose its core between the two. */
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

static void tracing_send_summary(struct control *control, struct control_worker *worker)
{
    const struct admin_trace *tracing = &control->tracing;
    const struct trace *trace = tracing->trace;
    const struct config *config = control->config;
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
    bool drained = control->draining && trace->end == TRACE_END_ASKED;
    json_text_string(&text, "end", drained ? "draining" : trace_end_name(trace->end));
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
    struct admin_trace *tracing = &control->tracing;
    struct control_worker *worker = control_worker_find(control, tracing->worker);
    if (!worker || !event->trace || event->trace->number != tracing->number)
        return; /* nobody's any more: it goes with the event */
    if (event->code != 0) {
        tracing_release(control);
        control_worker_refuse(worker, event->code, event->text);
        return;
    }
    tracing->trace = event->trace;
    event->trace = NULL;
    if (!control->draining)
        tracing_timer(control, READ_S * 1000);
    tracing_send_summary(control, worker);
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
    struct admin_trace *tracing = &control->tracing;
    if (tracing->worker != worker->id || !tracing->trace) {
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
        tracing_release(control);
    else if (!control->draining)
        tracing_timer(control, READ_S * 1000);
}

void admin_trace_drain(struct control *control)
{
    struct admin_trace *tracing = &control->tracing;
    if (tracing->worker == 0)
        return;
    if (!tracing->trace)
        tracing_stop(control);
    tracing_timer(control, 0);
}

bool admin_trace_waits(const struct control *control)
{
    return control->tracing.worker != 0;
}

void admin_trace_clear(struct control *control)
{
    if (!control->tracing.timer)
        return;
    tracing_release(control);
    event_free(control->tracing.timer);
    control->tracing.timer = NULL;
}
