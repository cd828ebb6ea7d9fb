/* Traces of the virtual cluster: taken on and off, so that whatever happens happens with one and
 * without, and each is looked at. */
#include "tests/lib/server/trace_lanes.h"
#include "tests/lib/virtual/virtual_private.h"

#define WHILE_NS 300000u
#define QUIET_NS 5000000u
#define RECORDS 5000u

static bool record_lasts(const struct trace_record *it)
{
    return (it->flags & TRACE_FLAG_OPEN) && (it->flags & TRACE_FLAG_CUT);
}

/* Whether anything happened in it. */
static bool check_records(const struct trace *trace)
{
    bool any = false;
    for (uint32_t i = 0; i < trace->count; i++) {
        const struct trace_record *it = &trace->records[i];
        EXPECT(it->begin_ns >= trace->began_ns && it->begin_ns <= it->end_ns);
        EXPECT(it->end_ns <= trace->ended_ns);
        EXPECT(it->stage < TRACE_STAGES && it->kind < COLLECTIVE_KIND_COUNT);
        EXPECT(!(it->flags & TRACE_FLAG_OPEN) || it->end_ns == trace->ended_ns);
        EXPECT(!(it->flags & TRACE_FLAG_CUT) || it->begin_ns == trace->began_ns);
        any |= !record_lasts(it);
    }
    EXPECT(trace->dropped == 0 || trace->count == trace->capacity);
    return any;
}

void virtual_trace_over(struct virtual_node *node, struct engine_event *event)
{
    struct trace_timeline timeline;
    struct trace *trace = event->trace;
    EXPECT(event->code == 0 && trace && trace->number == node->traces);
    node->quiet = !check_records(trace);
    EXPECT(trace_timeline_create(&timeline, trace->records, trace->count) == 0);
    trace_lanes_check(&timeline);
    trace_timeline_clear(&timeline);
    engine_event_free(event);
}

void virtual_trace_tick(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    struct virtual_node *node = what;
    if (!node->alive)
        return;
    exchange_trace_stop(node->exchange, node->traces, TRACE_END_ASKED);
    struct engine_job_status jobs[8];
    uint32_t count = exchange_job_totals(node->exchange, jobs, 8);
    count = count < 8 ? count : 8;
    if (number % 2 == 0 && count > 0) {
        struct trace *trace = trace_create(++node->traces, jobs[number / 2 % count].job, RECORDS);
        EXPECT(trace);
        if (exchange_trace_start(node->exchange, trace, NULL) != 0)
            trace_free(trace); /* it has failed, or is about to go */
    }
    virtual_schedule(cluster, node, count > 0 && !node->quiet ? WHILE_NS : QUIET_NS,
                     virtual_trace_tick, node, number + 1);
}
