/* A trace as trace events. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/reduce/dtype.h"
#include "server/shoalctl/shoalctl_trace.h"

/* Times are microseconds in a double: from the last multiple of this many seconds of the
 * time of day (11.6 days) a nanosecond still shows, and the files of several nodes have the same
 * base. */
#define BASE_S 1000000ll
#define NS_PER_SECOND 1000000000ll
#define DUMP_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(15))

struct events {
    FILE *out;
    const json_t *traced;
    const json_t *nodes;
    int64_t offset_ns; /* to be added to a record's time */
    int64_t base_s;
    json_int_t pid;
    bool any;
    int cause; /* errno of what failed first */
};

static void events_put_failed(struct events *events, int cause)
{
    if (events->cause == 0)
        events->cause = cause;
}

/* Takes the event. */
static void events_write(struct events *events, json_t *event)
{
    if (!event) {
        events_put_failed(events, ENOMEM);
        return;
    }
    fputs(events->any ? ",\n" : "\n", events->out);
    events->any = true;
    if (json_dumpf(event, events->out, DUMP_FLAGS) != 0)
        events_put_failed(events, errno);
    json_decref(event);
}

static const char *events_node_name(const struct events *events, uint32_t node)
{
    const char *name = json_string_value(json_array_get(events->nodes, node));
    return name ? name : "?";
}

/* --- names ------------------------------------------------------------------------------------ */

static void events_put_meta(struct events *events, json_int_t tid, const char *name,
                            const char *key, json_t *value)
{
    events_write(events, json_pack("{s:s, s:s, s:I, s:I, s:{s:o}}", "name", name, "ph", "M", "pid",
                                   events->pid, "tid", tid, "args", key, value));
}

static void events_track_name(const struct events *events, const struct trace_track *track,
                              char *name, size_t bytes)
{
    switch (track->kind) {
    case TRACK_COLLECTIVES:
        snprintf(name, bytes, "collectives");
        break;
    case TRACK_RANK:
        snprintf(name, bytes, "rank %" PRIu32 ": copies", track->number);
        break;
    case TRACK_CHUNKS:
        snprintf(name, bytes, "chunks");
        break;
    case TRACK_SEND:
        snprintf(name, bytes, "send to %s", events_node_name(events, track->number));
        break;
    case TRACK_OWNER:
        snprintf(name, bytes, "owner");
        break;
    case TRACK_RETURN:
        snprintf(name, bytes, "return to %s", events_node_name(events, track->number));
        break;
    }
}

static void events_put_tracks(struct events *events, const struct trace_timeline *timeline)
{
    char name[256], numbered[300];
    const char *node = json_string_value(json_object_get(events->traced, "node"));
    const char *job = json_string_value(json_object_get(events->traced, "job"));
    snprintf(name, sizeof(name), "node %s (job %s)", node ? node : "?", job ? job : "?");
    events_put_meta(events, 0, "process_name", "name", json_string(name));
    events_put_meta(events, 0, "process_sort_index", "sort_index", json_integer(events->pid));
    for (uint32_t i = 0; i < timeline->track_count; i++) {
        const struct trace_track *track = &timeline->tracks[i];
        events_track_name(events, track, name, sizeof(name));
        for (uint32_t lane = 0; lane < track->lanes; lane++) {
            json_int_t tid = (json_int_t)track->first_lane + lane + 1;
            snprintf(numbered, sizeof(numbered), track->lanes > 1 ? "%s #%" PRIu32 : "%s", name,
                     lane + 1);
            events_put_meta(events, tid, "thread_name", "name", json_string(numbered));
            events_put_meta(events, tid, "thread_sort_index", "sort_index", json_integer(tid));
        }
    }
}

/* --- slices ----------------------------------------------------------------------------------- */

static json_t *events_peer_value(const struct events *events, const struct trace_record *record)
{
    bool rank = record->stage == TRACE_ARRIVE || record->stage == TRACE_COPY_IN ||
                record->stage == TRACE_WAIT || record->stage == TRACE_COPY_OUT;
    if (record->peer == TRACE_NO_PEER)
        return NULL;
    return rank ? json_sprintf("rank %" PRIu32, record->peer)
                : json_sprintf("node %s", events_node_name(events, record->peer));
}

/* JSON's integers have 63 bits, and readers' fewer; the last one is no part of a count. */
static json_int_t events_sequence_number(const struct trace_record *record)
{
    return (json_int_t)(record->sequence & INT64_MAX);
}

static json_t *events_slice_arguments(const struct events *events, const struct trace_slice *slice)
{
    const struct trace_record *record = &slice->record;
    bool collective = record->stage == TRACE_COLLECTIVE || record->stage == TRACE_ARRIVE;
    json_t *arguments =
        json_pack("{s:s, s:I, s:I, s:I}", "collective", collective_name(record->kind), "group",
                  (json_int_t)record->group, "sequence", events_sequence_number(record), "bytes",
                  (json_int_t)record->bytes);
    if (record->block > 0)
        json_object_set_new(arguments, "block", json_integer(record->block));
    if (!collective)
        json_object_set_new(arguments, "chunk", json_integer(record->chunk));
    json_t *peer = events_peer_value(events, record);
    if (peer)
        json_object_set_new(arguments, "peer", peer);
    if (record->flags & TRACE_FLAG_CUT)
        json_object_set_new(arguments, "began_before", json_true());
    if (record->flags & TRACE_FLAG_OPEN)
        json_object_set_new(arguments, "not_ended", json_true());
    return arguments;
}

static void events_slice_name(const struct trace_slice *slice, char *name, size_t bytes)
{
    const struct trace_record *record = &slice->record;
    if (record->stage == TRACE_COLLECTIVE)
        snprintf(name, bytes, "%s %" JSON_INTEGER_FORMAT, collective_name(record->kind),
                 events_sequence_number(record));
    else if (slice->whole)
        snprintf(name, bytes, "%s %" JSON_INTEGER_FORMAT " chunk %" PRIu32,
                 collective_name(record->kind), events_sequence_number(record), record->chunk);
    else
        snprintf(name, bytes, "%s", trace_stage_name(record->stage));
}

/* Nanoseconds are whole, and so are thousandths. */
static double events_microseconds(int64_t ns)
{
    return (double)ns / 1000;
}

static void events_put_slice(struct events *events, const struct trace_timeline *timeline,
                             const struct trace_slice *slice)
{
    const struct trace_record *record = &slice->record;
    const struct trace_track *track = &timeline->tracks[slice->track];
    int64_t begin_ns =
        (int64_t)record->begin_ns + events->offset_ns - events->base_s * NS_PER_SECOND;
    const char *category = "stage";
    if (record->stage == TRACE_COLLECTIVE)
        category = "collective";
    else if (slice->whole)
        category = "chunk";
    char name[128];
    events_slice_name(slice, name, sizeof(name));
    events_write(events,
                 json_pack("{s:s, s:s, s:s, s:f, s:f, s:I, s:I, s:o}", "name", name, "cat",
                           category, "ph", "X", "ts", events_microseconds(begin_ns), "dur",
                           events_microseconds((int64_t)(record->end_ns - record->begin_ns)), "pid",
                           events->pid, "tid", (json_int_t)track->first_lane + slice->lane + 1,
                           "args", events_slice_arguments(events, slice)));
}

static void events_put_head(struct events *events)
{
    json_t *head = json_deep_copy(events->traced);
    json_object_del(head, "type");
    json_object_set_new(head, "base_unix_s", json_integer(events->base_s));
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":", events->out);
    if (!head || json_dumpf(head, events->out, DUMP_FLAGS) != 0)
        events_put_failed(events, head ? errno : ENOMEM);
    json_decref(head);
    fputs(",\n\"traceEvents\":[", events->out);
}

int trace_write_events(FILE *out, const json_t *traced, const struct trace_timeline *timeline,
                       struct error *error)
{
    struct events events = {
        .out = out,
        .traced = traced,
        .nodes = json_object_get(traced, "nodes"),
        .offset_ns = json_integer_value(json_object_get(traced, "wall_offset_ns")),
        .pid = json_integer_value(json_object_get(traced, "node_number")) + 1,
    };
    int64_t began_ns = json_integer_value(json_object_get(traced, "began_ns")) + events.offset_ns;
    events.base_s = began_ns / NS_PER_SECOND / BASE_S * BASE_S;
    events_put_head(&events);
    events_put_tracks(&events, timeline);
    for (uint32_t i = 0; i < timeline->slice_count; i++)
        events_put_slice(&events, timeline, &timeline->slices[i]);
    fputs("\n]}\n", out);
    if (fflush(out) != 0 || ferror(out))
        events_put_failed(&events, errno);
    if (events.cause != 0)
        return error_set_errno(error, events.cause, "cannot write the trace");
    return 0;
}
