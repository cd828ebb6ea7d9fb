/* A trace of the chunk pipeline: one record for each stage that a chunk has gone through, in memory
 * that is there before the first record. The exchange writes the records
 * (server/exchange/ground/recorder.h), the control thread hands them out
 * (server/control/users/admin_trace.c), shoalctl makes a timeline of them
 * (server/shoalctl/trace_timeline.h). */
#ifndef SERVER_COMMANDS_TRACE_H
#define SERVER_COMMANDS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

#define TRACE_RECORDS_MAX (1u << 18) /* of one trace: 14 MiB, while it is taken and read */
#define TRACE_NO_PEER UINT32_MAX

/* Stages of a chunk, each with what a record of it covers. `peer` is a rank of the job in some, the
 * number of a node in others. */
enum trace_stage {
    TRACE_COLLECTIVE, /* on a node, from its first rank's submission to the last chunk; no peer */
    TRACE_ARRIVE,    /* from the first local rank's submission to the last's; peer: the last rank */
    TRACE_COPY_IN,   /* by the worker, into the arena; peer: its rank */
    TRACE_WAIT,      /* handed over by the first rank, not issued; peer: the last rank, if known */
    TRACE_LOCAL_SUM, /* a reduce thread sums what the node's ranks gave; no peer */
    TRACE_SEND,      /* a contribution, from the ask until the fabric lets go; peer: owner's node */
    TRACE_AT_OWNER,  /* contributed, no result yet; peer: owner's node, which may be this one */
    TRACE_GATHER,    /* at the owner: first node heard to last; peer: the last node */
    TRACE_OWNER_SUM, /* at the owner: a reduce thread sums the nodes' contributions; no peer */
    TRACE_RETURN,    /* a result, as TRACE_SEND; peer: the node that it goes to */
    TRACE_DELIVER,   /* one input into the arenas of the node's ranks; no peer */
    TRACE_COPY_OUT,  /* by the worker, out of the arena; peer: its rank */
    TRACE_STAGES,
};

#define TRACE_FLAG_CUT 1u  /* it began before the trace did, which is where it is shown from */
#define TRACE_FLAG_OPEN 2u /* it had not ended when the trace did */

struct trace_record {
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC of the node */
    uint64_t sequence;
    uint64_t bytes; /* of the chunk, or all of a collective's */
    uint32_t group, block, chunk;
    uint32_t peer;
    uint8_t stage; /* enum trace_stage */
    uint8_t kind;  /* enum collective_kind; what a worker says of itself has none */
    uint8_t flags;
};

enum trace_end { TRACE_END_ASKED, TRACE_END_JOB_FAILED, TRACE_END_JOB_CLOSED };

/* One trace of one job on one node. Whoever has it is alone with it. */
struct trace {
    uint32_t number; /* whoever asked for it tells it from others by this */
    uint64_t job;
    bool ending;                 /* when what workers have told by now has been read */
    uint64_t began_ns, ended_ns; /* CLOCK_MONOTONIC */
    enum trace_end end;
    uint64_t dropped; /* records for which there was no room */
    uint64_t omitted; /* copies that workers had no room to tell of */
    uint64_t refused; /* a worker's times that made no sense */
    uint32_t count, capacity;
    struct trace_record *records; /* [capacity] */
};

/* The memory is touched, so that writing records does not have to. NULL: out of memory. */
struct trace *trace_create(uint32_t number, uint64_t job, uint32_t capacity);
void trace_free(struct trace *trace);

/* Keep the record, or count it as dropped. A record that ended before the trace began is
 * ignored. */
void trace_add(struct trace *trace, const struct trace_record *record);

/* Whether times that somebody else gives for something that is over now can be. */
bool trace_times_valid(uint64_t begin_ns, uint64_t end_ns, uint64_t now_ns);

/* "local sum"; stage below TRACE_STAGES. */
const char *trace_stage_name(enum trace_stage stage);
/* "time", "job failed", "job closed": as in the document of the trace. */
const char *trace_end_name(enum trace_end end);

#endif
