#include "server/commands/trace.h"

#include <stdlib.h>
#include <string.h>

struct trace *trace_create(uint32_t number, uint64_t job, uint32_t capacity)
{
    struct trace *trace = calloc(1, sizeof(*trace));
    struct trace_record *records = malloc(capacity * sizeof(*records));
    if (!trace || !records) {
        free(trace);
        free(records);
        return NULL;
    }
    /* Not zero: calloc, which the compiler makes of that, touches nothing. */
    memset(records, 0xff, capacity * sizeof(*records));
    trace->number = number;
    trace->job = job;
    trace->capacity = capacity;
    trace->records = records;
    return trace;
}

void trace_free(struct trace *trace)
{
    if (!trace)
        return;
    free(trace->records);
    free(trace);
}

void trace_add(struct trace *trace, const struct trace_record *record)
{
    if (record->end_ns < trace->began_ns)
        return;
    if (trace->count == trace->capacity) {
        trace->dropped++;
        return;
    }
    struct trace_record *added = &trace->records[trace->count++];
    *added = *record;
    if (added->begin_ns < trace->began_ns) {
        added->begin_ns = trace->began_ns;
        added->flags |= TRACE_FLAG_CUT;
    }
}

bool trace_times_valid(uint64_t begin_ns, uint64_t end_ns, uint64_t now_ns)
{
    return begin_ns <= end_ns && end_ns <= now_ns;
}

const char *trace_stage_name(enum trace_stage stage)
{
    static const char *const names[TRACE_STAGES] = {
        [TRACE_COLLECTIVE] = "collective", [TRACE_ARRIVE] = "ranks arrive",
        [TRACE_COPY_IN] = "copy in",       [TRACE_WAIT] = "wait",
        [TRACE_LOCAL_SUM] = "local sum",   [TRACE_SEND] = "send",
        [TRACE_AT_OWNER] = "at owner",     [TRACE_GATHER] = "gather",
        [TRACE_OWNER_SUM] = "owner's sum", [TRACE_RETURN] = "return",
        [TRACE_DELIVER] = "deliver",       [TRACE_COPY_OUT] = "copy out",
    };
    return names[stage];
}

const char *trace_end_name(enum trace_end end)
{
    static const char *const names[] = {
        [TRACE_END_ASKED] = "time",
        [TRACE_END_JOB_FAILED] = "job failed",
        [TRACE_END_JOB_CLOSED] = "job closed",
    };
    return names[end];
}
