/* shoalctl trace: takes a trace of a job on the daemon of this node, and writes it as trace events,
 * the JSON that chrome://tracing and Perfetto open. */
#ifndef SERVER_SHOALCTL_SHOALCTL_TRACE_H
#define SERVER_SHOALCTL_SHOALCTL_TRACE_H

#include <stdbool.h>
#include <stdio.h>

#include "server/shoalctl/shoalctl_talk.h"
#include "server/shoalctl/trace_timeline.h"

#define TRACE_DEFAULT_MS 2000u
#define TRACE_DEFAULT_OUTPUT "trace.json"

struct trace_options {
    const char *job;
    const char *output; /* NULL: the default; "-": stdout */
    uint32_t duration_ms;
};

/* "0.5"; 0 or ERR_INVALID. */
int trace_parse_seconds(const char *text, uint32_t *duration_ms);

/* Take it, write it, and say on stdout, or on stderr when that has the trace, what is in it. */
int shoalctl_trace(struct conversation *talk, const struct trace_options *options,
                   struct error *error);

/* --- for tests */

/* The record that an array of a "trace_records" object is. ERR_PROTOCOL. */
int trace_record_read(const json_t *array, struct trace_record *record);
/* traced: the object of that type; "base_unix_s" in the output says where its times count from.
 * ERR_MEMORY, ERR_SYSTEM. */
int trace_write_events(FILE *out, const json_t *traced, const struct trace_timeline *timeline,
                       struct error *error);
/* A table of the stages. ERR_MEMORY. */
int trace_print_summary(FILE *out, const struct trace_record *records, uint32_t count);

#endif
