/* What the exchange tells a trace. One trace at a time, of one job; the job has it while it is
 * taken, so that whether to record is one look at a pointer.
 *
 * A chunk or slot remembers when its present stage began: a record is written when the stage ends,
 * and one of each open stage when the trace does. */
#include <assert.h>
#include <inttypes.h>

#include "server/exchange/exchange_private.h"

static uint64_t trace_now_ns(const struct exchange *exchange)
{
    return exchange->options.io.now_ns(exchange->options.io.context);
}

/* --- stages ----------------------------------------------------------------------------------- */

static struct trace_record chunk_record(const struct chunk *chunk, enum trace_stage stage)
{
    const struct collective *collective = chunk->collective;
    /* Without a time of its own it began before the trace, or with the collective: then all of its
     * data lies in the arenas. */
    uint64_t begin_ns = chunk->stage_ns ? chunk->stage_ns : collective->first_ns;
    uint32_t peer = TRACE_NO_PEER;
    if (stage == TRACE_AT_OWNER)
        peer = collective->group->owner_nodes[chunk->owner];
    else if (stage == TRACE_WAIT && chunk->stage_ns)
        peer = chunk->last_rank;
    return (struct trace_record){
        .begin_ns = begin_ns,
        .sequence = collective->sequence,
        .bytes = chunk->place.count * collective->element_bytes,
        .group = collective->group->id,
        .block = collective->ask.block,
        .chunk = chunk->index,
        .peer = peer,
        .stage = (uint8_t)stage,
        .kind = collective->ask.kind,
    };
}

/* Which stage the chunk is in. */
static enum trace_stage chunk_stage(const struct chunk *chunk)
{
    switch (chunk->state) {
    case CHUNK_GATHERING:
        return TRACE_WAIT;
    case CHUNK_SUMMING:
        return TRACE_LOCAL_SUM;
    case CHUNK_CONTRIBUTED:
        return TRACE_AT_OWNER;
    default:
        if (chunk->unsent > 0) /* its result is here, its data not yet out of the arena */
            return TRACE_AT_OWNER;
        return chunk->task.reduction.inputs > 1 ? TRACE_LOCAL_SUM : TRACE_DELIVER;
    }
}

static struct trace_record slot_record(const struct slot *slot, enum trace_stage stage,
                                       uint32_t peer)
{
    const struct contribution *first = slot->contributions;
    while (!first->heard)
        first++;
    return (struct trace_record){
        .begin_ns = slot->stage_ns,
        .sequence = slot->sequence,
        .bytes = slot->place.count * ask_element_bytes(&first->ask),
        .group = slot->group->id,
        .block = slot->block,
        .chunk = slot->chunk,
        .peer = peer,
        .stage = (uint8_t)stage,
        .kind = first->ask.kind,
    };
}

static struct trace_record collective_record(const struct collective *collective,
                                             enum trace_stage stage, uint32_t rank)
{
    return (struct trace_record){
        .begin_ns = collective->first_ns,
        .sequence = collective->sequence,
        .bytes = wire_ask_elements(&collective->ask) * collective->element_bytes,
        .group = collective->group->id,
        .block = collective->ask.block,
        .peer = rank,
        .stage = (uint8_t)stage,
        .kind = collective->ask.kind,
    };
}

/* The time of a task is that of the thread which did it, where that took it. */
static void record_task(struct trace *trace, struct trace_record *record,
                        const struct reduce_task *task, uint64_t now_ns)
{
    bool known = task->timed && task->begin_ns > 0;
    record->begin_ns = known ? task->begin_ns : record->begin_ns;
    record->end_ns = known ? task->end_ns : now_ns;
    trace_add(trace, record);
}

void chunk_trace_stage(struct chunk *chunk, enum trace_stage stage)
{
    struct exchange_job *job = chunk->collective->group->job;
    struct trace_record record = chunk_record(chunk, stage);
    record.end_ns = trace_now_ns(job->exchange);
    trace_add(job->trace, &record);
    chunk->stage_ns = record.end_ns;
}

void chunk_trace_task_done(struct chunk *chunk)
{
    struct exchange_job *job = chunk->collective->group->job;
    struct trace_record record = chunk_record(chunk, chunk_stage(chunk));
    uint64_t now_ns = trace_now_ns(job->exchange);
    record_task(job->trace, &record, &chunk->task, now_ns);
    chunk->stage_ns = now_ns;
}

void slot_trace_made(struct slot *slot)
{
    slot->stage_ns = trace_now_ns(slot->group->job->exchange);
}

void slot_trace_gathered(struct slot *slot, uint32_t node_index)
{
    struct exchange_job *job = slot->group->job;
    struct trace_record record = slot_record(slot, TRACE_GATHER, slot->group->nodes[node_index]);
    record.end_ns = trace_now_ns(job->exchange);
    trace_add(job->trace, &record);
    slot->stage_ns = record.end_ns;
}

void slot_trace_task_done(struct slot *slot)
{
    struct exchange_job *job = slot->group->job;
    enum trace_stage stage = slot->task.reduction.inputs > 1 ? TRACE_OWNER_SUM : TRACE_DELIVER;
    struct trace_record record = slot_record(slot, stage, TRACE_NO_PEER);
    uint64_t now_ns = trace_now_ns(job->exchange);
    record_task(job->trace, &record, &slot->task, now_ns);
    slot->stage_ns = now_ns;
}

void collective_trace_end(const struct collective *collective, enum trace_stage stage,
                          uint32_t rank)
{
    const struct exchange_job *job = collective->group->job;
    struct trace_record record = collective_record(collective, stage, rank);
    record.end_ns = trace_now_ns(job->exchange);
    trace_add(job->trace, &record);
}

void send_trace_posted(struct exchange_send *send)
{
    send->posted_ns = trace_now_ns(send->group->job->exchange);
}

void send_trace_sent(const struct exchange_send *send)
{
    const struct exchange_job *job = send->group->job;
    struct wire_header header;
    if (wire_decode_header(send->header, (size_t)WIRE_HEADER_BYTES + send->payload_bytes, &header,
                           NULL) != 0 ||
        (header.type != WIRE_CONTRIBUTION && header.type != WIRE_RESULT))
        return;
    trace_add(job->trace, &(struct trace_record){
                              .begin_ns = send->posted_ns,
                              .end_ns = trace_now_ns(job->exchange),
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

/* --- what workers say ------------------------------------------------------------------------- */

/* Times are the worker's: they are shown, and nothing else is made of them. */
static void record_copy(struct exchange_job *job, struct trace_record *record,
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

void chunk_trace_handed_over(struct chunk *chunk, const struct exchange_worker *worker,
                             const struct arena_submission *submission)
{
    struct exchange_job *job = worker->job;
    uint64_t now_ns = trace_now_ns(job->exchange);
    chunk->last_rank = worker->rank;
    if (chunk->stage_ns == 0)
        chunk->stage_ns = now_ns;
    if (submission->begin_ns == 0) /* nothing was copied, or nobody looked at the clock */
        return;
    struct trace_record record = chunk_record(chunk, TRACE_COPY_IN);
    record.peer = worker->rank;
    record_copy(job, &record, submission, now_ns);
}

int worker_trace_copied(struct exchange_worker *worker, const struct arena_submission *submission,
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
    job->trace->left_out += submission->omitted;
    record_copy(job, &record, submission, trace_now_ns(job->exchange));
    return 0;
}

/* --- beginning and end ------------------------------------------------------------------------ */

static void job_set_tracing(struct exchange_job *job, bool tracing)
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
    trace->began_ns = trace_now_ns(exchange);
    exchange->traced = job;
    job->trace = trace;
    job_set_tracing(job, true);
    return 0;
}

static void record_open(struct trace *trace, struct trace_record record)
{
    record.end_ns = trace->ended_ns;
    record.flags = TRACE_FLAG_OPEN;
    if (record.begin_ns > record.end_ns) /* of the next round of the engine's clock */
        record.begin_ns = record.end_ns;
    trace_add(trace, &record);
}

static void collective_record_open(const struct collective *collective, struct trace *trace)
{
    record_open(trace, collective_record(collective, TRACE_COLLECTIVE, TRACE_NO_PEER));
    if (collective->submitted < collective->needed)
        record_open(trace, collective_record(collective, TRACE_ARRIVE, TRACE_NO_PEER));
    for (uint32_t i = 0; i < collective->layout.chunks; i++) {
        const struct chunk *chunk = collective->chunks[i];
        if (chunk)
            record_open(trace, chunk_record(chunk, chunk_stage(chunk)));
    }
}

/* What has not ended yet: a trace of a job that stands still shows where. */
static void group_record_open(const struct exchange_group *group, struct trace *trace)
{
    for (const struct collective *it = group->oldest; it; it = it->next)
        collective_record_open(it, trace);
    for (const struct collective *it = group->transfers; it; it = it->next)
        collective_record_open(it, trace);
    for (uint32_t i = 0; i < SLOT_BUCKETS; i++) {
        for (const struct slot *it = group->slot_table[i]; it; it = it->next) {
            enum trace_stage stage = TRACE_GATHER;
            if (it->state == SLOT_SUMMING)
                stage = it->task.reduction.inputs > 1 ? TRACE_OWNER_SUM : TRACE_DELIVER;
            record_open(trace, slot_record(it, stage, TRACE_NO_PEER));
        }
    }
}

void exchange_trace_stop(struct exchange *exchange, uint32_t number, enum trace_end end)
{
    struct exchange_job *job = exchange->traced;
    if (!job || job->trace->number != number)
        return;
    struct trace *trace = job->trace;
    trace->ended_ns = trace_now_ns(exchange);
    trace->end = end;
    for (const struct exchange_group *group = job->groups; group; group = group->next) {
        if (!group->failed)
            group_record_open(group, trace);
    }
    job_set_tracing(job, false);
    job->trace = NULL;
    exchange->traced = NULL;
    struct engine_event *event = engine_event_create(ENGINE_TRACED);
    event->job = job->id;
    event->trace = trace;
    exchange->options.io.event(exchange->options.io.context, event);
}

void job_trace_over(struct exchange_job *job, enum trace_end end)
{
    if (job->trace)
        exchange_trace_stop(job->exchange, job->trace->number, end);
}
