#include "server/exchange/exchange_trace.h"

#include <assert.h>
#include <inttypes.h>

#include "server/commands/engine_event.h"
#include "server/exchange/ground/recorder.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/node/collective.h"
#include "server/exchange/owner/slots.h"

/* The workers tell of their copies meanwhile. */
static void exchange_trace_tell_workers(struct exchange_job *job, bool tracing)
{
    for (struct exchange_worker *worker = job->workers; worker; worker = worker->next)
        arena_set_tracing(&worker->arena, tracing);
}

int exchange_trace_start(struct exchange *exchange, struct trace *trace, struct error *error)
{
    struct exchange_job *job = exchange_job_find(exchange, trace->job);
    assert(exchange->options.io.now_ns);
    if (!job || job->failed)
        return error_set(error, ERR_STATE, "job %016" PRIx64 " is not open", trace->job);
    if (job->trace)
        return error_set(error, ERR_STATE, "job %016" PRIx64 " is traced already", trace->job);
    trace->began_ns = recorder_now_ns(exchange);
    job->trace = trace;
    exchange_trace_tell_workers(job, true);
    return 0;
}

static struct exchange_job *exchange_traced(const struct exchange *exchange, uint32_t number)
{
    struct exchange_job *job = exchange->jobs;
    while (job && !(job->trace && job->trace->number == number))
        job = job->next;
    return job;
}

uint64_t exchange_trace_ends(struct exchange *exchange, uint32_t number)
{
    const struct exchange_job *job = exchange_traced(exchange, number);
    if (!job || job->trace->ending)
        return 0;
    job->trace->ending = true;
    exchange->traces_ending++;
    return job->id;
}

static void trace_stop(struct exchange_job *job, enum trace_end end)
{
    struct exchange *exchange = job->exchange;
    struct trace *trace = job->trace;
    trace->ended_ns = recorder_now_ns(exchange);
    trace->end = end;
    exchange->traces_ending -= trace->ending;
    /* Record the stages that have not ended yet: a trace of a job that stands still then shows
     * where it stands. */
    for (const struct exchange_group *group = job->groups; group; group = group->next) {
        if (group->failed)
            continue;
        collectives_record_open(group, trace);
        slots_record_open(group, trace);
    }
    exchange_trace_tell_workers(job, false);
    job->trace = NULL;
    struct engine_event *event = engine_event_create(ENGINE_TRACED);
    event->job = job->id;
    event->trace = trace;
    exchange->options.io.event(exchange->options.io.context, event);
}

void exchange_traces_settle(struct exchange *exchange, bool (*is_read)(void *context, uint64_t job),
                            void *context)
{
    for (struct exchange_job *job = exchange->jobs; job && exchange->traces_ending > 0;
         job = job->next) {
        if (job->trace && job->trace->ending && is_read(context, job->id))
            trace_stop(job, TRACE_END_ASKED);
    }
}

uint32_t exchange_traces_ending(const struct exchange *exchange)
{
    return exchange->traces_ending;
}

void exchange_trace_stop(struct exchange *exchange, uint32_t number, enum trace_end end)
{
    struct exchange_job *job = exchange_traced(exchange, number);
    if (job)
        trace_stop(job, end);
}

void exchange_trace_job_over(struct exchange_job *job, enum trace_end end)
{
    if (job->trace)
        trace_stop(job, end);
}
