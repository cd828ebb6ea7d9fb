#include "server/shoalctl/shoalctl_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/shown.h"
#include "common/format/message.h"
#include "common/log/progress.h"
#include "common/reduce/dtype.h"
#include "server/shoalctl/shoalctl_print.h"

#define RECORD_NUMBERS 11
#define PROGRESS_INTERVAL_MS 200u

int trace_parse_seconds(const char *text, uint32_t *duration_ms)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 0.001 && seconds * 1000 <= MESSAGE_TRACE_MAX_MS))
        return ERR_INVALID;
    *duration_ms = (uint32_t)(seconds * 1000 + 0.5);
    return 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

int trace_record_read(const json_t *array, struct trace_record *record)
{
    int64_t numbers[RECORD_NUMBERS];
    if (json_array_size(array) != RECORD_NUMBERS)
        return ERR_PROTOCOL;
    for (size_t i = 0; i < RECORD_NUMBERS; i++) {
        const json_t *number = json_array_get(array, i);
        numbers[i] = json_integer_value(number);
        bool may_be_negative = i == 4 || (i == 7 && numbers[i] == -1);
        if (!json_is_integer(number) || (numbers[i] < 0 && !may_be_negative))
            return ERR_PROTOCOL;
    }
    struct trace_record read = {
        .stage = (uint8_t)numbers[0],
        .kind = (uint8_t)numbers[1],
        .flags = (uint8_t)numbers[2],
        .group = (uint32_t)numbers[3],
        .sequence = (uint64_t)numbers[4],
        .block = (uint32_t)numbers[5],
        .chunk = (uint32_t)numbers[6],
        .peer = numbers[7] < 0 ? TRACE_NO_PEER : (uint32_t)numbers[7],
        .bytes = (uint64_t)numbers[8],
        .begin_ns = (uint64_t)numbers[9],
        .end_ns = (uint64_t)numbers[10],
    };
    if (numbers[0] >= TRACE_STAGES || numbers[1] > COLLECTIVE_KIND_COUNT ||
        read.end_ns < read.begin_ns)
        return ERR_PROTOCOL;
    *record = read;
    return 0;
}

/* Up to `room` of the object's records; how many, or ERR_PROTOCOL. */
static int64_t trace_records_take(const json_t *object, struct trace_record *records, uint32_t room)
{
    const json_t *list = json_object_get(object, "records");
    size_t count = json_array_size(list);
    if (count == 0 || count > room)
        return ERR_PROTOCOL;
    for (size_t i = 0; i < count; i++) {
        if (trace_record_read(json_array_get(list, i), &records[i]) != 0)
            return ERR_PROTOCOL;
    }
    return (int64_t)count;
}

static int trace_records_receive(struct conversation *talk, struct trace_record *records,
                                 uint32_t count, struct error *error)
{
    uint32_t have = 0;
    while (have < count) {
        json_t *object = NULL;
        int result = line_send(talk, "{\"type\":\"trace_read\"}\n", error);
        if (result == 0)
            result = object_receive(talk, "trace_records", TALK_ANSWER_MS, &object, error);
        if (result != 0)
            return result;
        int64_t taken = trace_records_take(object, &records[have], count - have);
        json_decref(object);
        if (taken < 0)
            return error_set(error, ERR_PROTOCOL,
                             "the daemon at %s sent records that make no sense", talk->path);
        have += (uint32_t)taken;
    }
    return 0;
}

static int trace_ask(struct conversation *talk, const struct trace_options *options,
                     struct error *error)
{
    json_t *ask = json_pack("{s:s, s:s, s:i}", "type", "trace", "job", options->job, "duration_ms",
                            (int)options->duration_ms);
    char *text = ask ? json_dumps(ask, JSON_COMPACT) : NULL;
    int result = text ? line_send(talk, text, error)
                      : error_set(error, ERR_INVALID, "the job's name is not UTF-8");
    if (result == 0)
        result = line_send(talk, "\n", error);
    free(text);
    json_decref(ask);
    return result;
}

/* --- writing ---------------------------------------------------------------------------------- */

static int trace_save(const struct trace_options *options, const json_t *traced,
                      const struct trace_timeline *timeline, struct error *error)
{
    const char *path = options->output ? options->output : TRACE_DEFAULT_OUTPUT;
    if (strcmp(path, "-") == 0)
        return trace_write_events(stdout, traced, timeline, error);
    FILE *out = fopen(path, "w");
    if (!out)
        return error_set_errno(error, errno, "cannot write %s", path);
    int result = trace_write_events(out, traced, timeline, error);
    if (fclose(out) != 0 && result == 0)
        result = error_set_errno(error, errno, "cannot write %s", path);
    return result;
}

int trace_print_summary(FILE *out, const struct trace_record *records, uint32_t count)
{
    struct trace_summary summaries[TRACE_STAGES];
    int result = trace_summarize(records, count, summaries);
    if (result != 0)
        return result;
    fprintf(out, "%-13s %9s %11s %11s %11s %11s\n", "STAGE", "COUNT", "MEDIAN us", "99 % us",
            "MOST us", "TOTAL ms");
    for (uint32_t i = 0; i < TRACE_STAGES; i++) {
        const struct trace_summary *it = &summaries[i];
        if (it->count > 0)
            fprintf(out, "%-13s %9" PRIu32 " %11.1f %11.1f %11.1f %11.1f\n",
                    trace_stage_name((enum trace_stage)i), it->count, (double)it->median_ns / 1e3,
                    (double)it->p99_ns / 1e3, (double)it->most_ns / 1e3,
                    (double)it->total_ns / 1e6);
    }
    return 0;
}

static json_int_t trace_number(const json_t *traced, const char *key)
{
    return json_integer_value(json_object_get(traced, key));
}

/* Print what is in the trace, and what is not. */
static void trace_report(const struct trace_options *options, const json_t *traced,
                         const struct trace_record *records, uint32_t count, uint32_t unmatched)
{
    const char *path = options->output ? options->output : TRACE_DEFAULT_OUTPUT;
    FILE *out = strcmp(path, "-") == 0 ? stderr : stdout;
    double seconds =
        (double)(trace_number(traced, "ended_ns") - trace_number(traced, "began_ns")) / 1e9;
    char job[256], node[256], end[64];
    shown_copy(job, sizeof(job), options->job);
    const char *name = json_string_value(json_object_get(traced, "node"));
    shown_copy(node, sizeof(node), name ? name : "?");
    const char *why = json_string_value(json_object_get(traced, "end"));
    shown_copy(end, sizeof(end), why ? why : "?");
    fprintf(out, "%s: %.3f s of job '%s' on node %s, %" PRIu32 " records\n", path, seconds, job,
            node, count);
    if (strcmp(end, "time") != 0)
        fprintf(out, "it ends before its time: %s\n", end);
    if (trace_number(traced, "dropped") > 0)
        fprintf(out,
                "%" JSON_INTEGER_FORMAT " later records were dropped: there is room for %" PRIu32
                "; take fewer seconds\n",
                trace_number(traced, "dropped"), count);
    if (trace_number(traced, "left_out") > 0)
        fprintf(out, "%" JSON_INTEGER_FORMAT " copies out are missing: the daemon was behind\n",
                trace_number(traced, "left_out"));
    if (trace_number(traced, "refused") > 0)
        fprintf(out, "%" JSON_INTEGER_FORMAT " copies are missing: their times make no sense\n",
                trace_number(traced, "refused"));
    /* Chunks that were over before the trace began always leave some, so the line comes only where
     * records were dropped. */
    if (unmatched > 0 && trace_number(traced, "dropped") > 0)
        fprintf(out, "%" PRIu32 " copies out are not shown: their chunks are not in the trace\n",
                unmatched);
    trace_print_summary(out, records, count);
}

static int trace_take(struct conversation *talk, const struct trace_options *options,
                      const json_t *traced, struct error *error)
{
    json_int_t count = trace_number(traced, "records");
    if (count < 0 || count > UINT32_MAX / 4)
        return error_set(error, ERR_PROTOCOL, "the daemon at %s sent no count of records",
                         talk->path);
    struct trace_record *records = calloc(count ? (size_t)count : 1, sizeof(*records));
    if (!records)
        return error_set(error, ERR_MEMORY, "no memory for the trace");
    struct trace_timeline timeline = {0};
    int result = trace_records_receive(talk, records, (uint32_t)count, error);
    if (result == 0 && trace_timeline_create(&timeline, records, (uint32_t)count) != 0)
        result = error_set(error, ERR_MEMORY, "no memory for the trace");
    if (result == 0)
        result = trace_save(options, traced, &timeline, error);
    if (result == 0)
        trace_report(options, traced, records, (uint32_t)count, timeline.unmatched);
    trace_timeline_clear(&timeline);
    free(records);
    return result;
}

/* Until the daemon has recorded; meanwhile, on a terminal, how far it is. */
static int traced_receive(struct conversation *talk, const struct trace_options *options,
                          json_t **traced, struct error *error)
{
    uint64_t began_ns = clock_now_ns();
    uint32_t most_ms = options->duration_ms + TALK_ANSWER_MS, past_ms = 0;
    char job[256];
    struct progress progress;
    progress_open(&progress);
    shown_copy(job, sizeof(job), options->job);
    int result;
    do {
        uint32_t shown_ms = past_ms < options->duration_ms ? past_ms : options->duration_ms;
        progress_draw(&progress, "recording job '%s': %.1f of %.1f s", job, shown_ms / 1e3,
                      options->duration_ms / 1e3);
        uint32_t wait_ms = most_ms - past_ms;
        if (progress.shown && wait_ms > PROGRESS_INTERVAL_MS)
            wait_ms = PROGRESS_INTERVAL_MS;
        result = object_receive(talk, "traced", wait_ms, traced, error);
        past_ms = (uint32_t)((clock_now_ns() - began_ns) / NS_PER_MS);
    } while (result == ERR_TIMEOUT && past_ms < most_ms);
    progress_erase(&progress);
    return result;
}

int shoalctl_trace(struct conversation *talk, const struct trace_options *options,
                   struct error *error)
{
    json_t *object = NULL;
    int result = trace_ask(talk, options, error);
    if (result == 0)
        result = object_receive(talk, "tracing", TALK_ANSWER_MS, &object, error);
    json_decref(object);
    object = NULL;
    if (result == 0)
        result = traced_receive(talk, options, &object, error);
    if (result == 0)
        result = trace_take(talk, options, object, error);
    json_decref(object);
    return result;
}
