#include "server/exchange/ground/recorder.h"

#include <inttypes.h>

uint64_t recorder_now_ns(const struct exchange *exchange)
{
    return exchange->options.io.now_ns(exchange->options.io.context);
}

uint64_t recorder_end(const struct exchange_job *job, struct trace_record *record)
{
    record->end_ns = recorder_now_ns(job->exchange);
    trace_add(job->trace, record);
    return record->end_ns;
}

uint64_t recorder_end_task(const struct exchange_job *job, struct trace_record *record,
                           const struct reduce_task *task)
{
    uint64_t now_ns = recorder_now_ns(job->exchange);
    bool known = task->timed && task->begin_ns > 0;
    record->begin_ns = known ? task->begin_ns : record->begin_ns;
    record->end_ns = known ? task->end_ns : now_ns;
    trace_add(job->trace, record);
    return now_ns;
}

void recorder_end_copy(const struct exchange_job *job, struct trace_record *record,
                       const struct arena_submission *submission, uint64_t now_ns)
{
    if (!trace_times_valid(submission->begin_ns, submission->end_ns, now_ns)) {
        job->trace->refused++;
        return;
    }
    record->begin_ns = submission->begin_ns;
    record->end_ns = submission->end_ns;
    trace_add(job->trace, record);
}

void recorder_cut(struct trace *trace, struct trace_record record)
{
    record.end_ns = trace->ended_ns;
    record.flags = TRACE_FLAG_OPEN;
    if (record.begin_ns > record.end_ns) /* of the next round of the engine's clock */
        record.begin_ns = record.end_ns;
    trace_add(trace, &record);
}

void recorder_send_posted(struct exchange_send *send)
{
    send->posted_ns = recorder_now_ns(send->group->job->exchange);
}

void recorder_send_over(const struct exchange_send *send)
{
    const struct exchange_job *job = send->group->job;
    struct wire_header header;
    if (wire_decode_header(send->header, (size_t)WIRE_HEADER_BYTES + send->payload_bytes, &header,
                           NULL) != 0 ||
        (header.type != WIRE_CONTRIBUTION && header.type != WIRE_RESULT))
        return;
    trace_add(job->trace, &(struct trace_record){
                              .begin_ns = send->posted_ns,
                              .end_ns = recorder_now_ns(job->exchange),
                              .sequence = header.sequence,
                              .bytes = header.payload_bytes,
                              .group = header.group,
                              .block = header.ask.block,
                              .chunk = header.chunk,
                              .peer = send->node,
                              .stage = header.type == WIRE_CONTRIBUTION ? TRACE_SEND : TRACE_RETURN,
                              .kind = header.ask.kind,
                          });
}

int recorder_copied(struct exchange_worker *worker, const struct arena_submission *submission,
                    struct error *error)
{
    struct exchange_job *job = worker->job;
    /* Every entry of the ring has a bound, so that nobody keeps the engine busy with nothing. */
    if (worker->given_back == 0)
        return error_set(error, ERR_PROTOCOL,
                         "a copy of chunk %" PRIu32 " of collective %" PRIu64
                         ", where none has been given back",
                         submission->chunk, submission->sequence);
    worker->given_back--;
    if (!job->trace)
        return 0;
    struct trace_record record = {
        .sequence = submission->sequence,
        .group = submission->group,
        .block = submission->block,
        .chunk = submission->chunk,
        .peer = worker->rank,
        .stage = TRACE_COPY_OUT,
        .kind = COLLECTIVE_KIND_COUNT, /* its chunk is gone */
    };
    job->trace->omitted += submission->omitted;
    recorder_end_copy(job, &record, submission, recorder_now_ns(job->exchange));
    return 0;
}
