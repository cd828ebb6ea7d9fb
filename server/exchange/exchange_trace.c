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
    if (exchange->traced)
        return error_set(error, ERR_STATE, "another job is traced");
    if (!job || job->failed)
        return error_set(error, ERR_STATE, "job %016" PRIx64 " is not open", trace->job);
    trace->began_ns = recorder_now_ns(exchange);
    exchange->traced = job;
    job->trace = trace;
    exchange_trace_tell_workers(job, true);
    return 0;
}

uint64_t exchange_traced_job(const struct exchange *exchange, uint32_t number)
{
    const struct exchange_job *job = exchange->traced;
    return job && job->trace->number == number ? job->id : 0;
}

void exchange_trace_stop(struct exchange *exchange, uint32_t number, enum trace_end end)
{
    struct exchange_job *job = exchange->traced;
    if (!job || job->trace->number != number)
        return;
    struct trace *trace = job->trace;
    trace->ended_ns = recorder_now_ns(exchange);
    trace->end = end;
    /* What has not ended yet: a trace of a job that stands still shows where. */
    for (const struct exchange_group *group = job->groups; group; group = group->next) {
        if (group->failed)
            continue;
        collectives_record_open(group, trace);
        slots_record_open(group, trace);
    }
    exchange_trace_tell_workers(job, false);
    job->trace = NULL;
    exchange->traced = NULL;
    struct engine_event *event = engine_event_create(ENGINE_TRACED);
    event->job = job->id;
    event->trace = trace;
    exchange->options.io.event(exchange->options.io.context, event);
}

void exchange_trace_job_over(struct exchange_job *job, enum trace_end end)
{
    if (job->trace)
        exchange_trace_stop(job->exchange, job->trace->number, end);
}
