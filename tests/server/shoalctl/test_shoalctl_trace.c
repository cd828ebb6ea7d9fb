/* The trace that shoalctl writes: what it reads of the daemon, the events, the table. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/reduce/dtype.h"
#include "server/shoalctl/shoalctl_trace.h"
#include "tests/lib/suite.h"

#define NS 1000000000ll

START_TEST(seconds)
{
    uint32_t ms = 0;
    ck_assert_int_eq(trace_parse_seconds("2", &ms), 0);
    ck_assert_uint_eq(ms, 2000);
    ck_assert_int_eq(trace_parse_seconds("0.001", &ms), 0);
    ck_assert_uint_eq(ms, 1);
    ck_assert_int_eq(trace_parse_seconds("60", &ms), 0);
    ck_assert_uint_eq(ms, 60000);
    static const char *const wrong[] = {"", "0", "0.0001", "60.1", "-1", "2s", "nan", "inf", "x"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_msg(trace_parse_seconds(wrong[i], &ms) == ERR_INVALID, "%s", wrong[i]);
    ck_assert_uint_eq(ms, 60000);
}
END_TEST

static int read_text(const char *text, struct trace_record *record)
{
    json_t *array = json_loads(text, JSON_DECODE_ANY, NULL);
    ck_assert_ptr_nonnull(array);
    int result = trace_record_read(array, record);
    json_decref(array);
    return result;
}

START_TEST(records_of_the_daemon)
{
    struct trace_record record;
    ck_assert_int_eq(read_text("[5,1,2,3,4,6,7,8,9,10,11]", &record), 0);
    ck_assert_uint_eq(record.stage, TRACE_SEND);
    ck_assert_uint_eq(record.kind, COLLECTIVE_REDUCE);
    ck_assert_uint_eq(record.flags, TRACE_FLAG_OPEN);
    ck_assert_uint_eq(record.group, 3);
    ck_assert_uint_eq(record.sequence, 4);
    ck_assert_uint_eq(record.block, 6);
    ck_assert_uint_eq(record.chunk, 7);
    ck_assert_uint_eq(record.peer, 8);
    ck_assert_uint_eq(record.bytes, 9);
    ck_assert_uint_eq(record.begin_ns, 10);
    ck_assert_uint_eq(record.end_ns, 11);
    ck_assert_int_eq(read_text("[0,0,0,0,0,0,0,-1,0,5,5]", &record), 0);
    ck_assert_uint_eq(record.peer, TRACE_NO_PEER);
    ck_assert_int_eq(read_text("[0,0,0,0,-9223372036854775801,0,0,-1,0,5,5]", &record), 0);
    ck_assert_uint_eq(record.sequence, 0x8000000000000007u);
    static const char *const wrong[] = {
        "[]",
        "7",
        "{}",
        "[5,1,2,3,4,6,7,8,9,10]",
        "[5,1,2,3,4,6,7,8,9,10,11,12]",
        "[99,1,2,3,4,6,7,8,9,10,11]",
        "[5,99,2,3,4,6,7,8,9,10,11]",
        "[5,1,2,-3,4,6,7,8,9,10,11]",
        "[5,1,2,3,4,6,7,-2,9,10,11]",
        "[5,1,2,3,4,6,7,8,9,12,11]",
        "[5,1,2,3,\"4\",6,7,8,9,10,11]",
        "[5,1,2,3,4.5,6,7,8,9,10,11]",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_msg(read_text(wrong[i], &record) == ERR_PROTOCOL, "%s", wrong[i]);
}
END_TEST

/* The document that is written for these records on the second of two nodes. */
static json_t *write_events(struct trace_record *records, uint32_t count, int64_t wall_offset_ns)
{
    struct trace_timeline timeline;
    struct error error = {0};
    char *text = NULL;
    size_t length = 0;
    json_t *traced =
        json_pack("{s:s, s:s, s:s, s:i, s:[s, s], s:I, s:I, s:I, s:I}", "type", "traced", "job",
                  "train", "node", "b", "node_number", 1, "nodes", "a", "b", "began_ns",
                  (json_int_t)(50 * NS), "ended_ns", (json_int_t)(52 * NS), "wall_offset_ns",
                  (json_int_t)wall_offset_ns, "dropped", (json_int_t)3);
    FILE *out = open_memstream(&text, &length);
    ck_assert_int_eq(trace_timeline_create(&timeline, records, count), 0);
    ck_assert_int_eq(trace_write_events(out, traced, &timeline, &error), 0);
    fclose(out);
    json_error_t place;
    json_t *document = json_loads(text, 0, &place);
    ck_assert_msg(document != NULL, "%s in %s", place.text, text);
    free(text);
    json_decref(traced);
    trace_timeline_clear(&timeline);
    return document;
}

static const json_t *find_event(const json_t *document, const char *phase, const char *name)
{
    size_t i;
    const json_t *event;
    json_array_foreach(json_object_get(document, "traceEvents"), i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0 &&
            strcmp(json_string_value(json_object_get(event, "name")), name) == 0)
            return event;
    }
    ck_abort_msg("no event %s", name);
    return NULL;
}

static const char *argument(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(event, "args"), key));
    return text ? text : "(none)";
}

static json_int_t number(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(event, key));
}

START_TEST(events)
{
    struct trace_record records[] = {
        {.stage = TRACE_WAIT,
         .sequence = 17,
         .chunk = 3,
         .bytes = 4096,
         .group = 2,
         .peer = 5,
         .begin_ns = 51 * NS,
         .end_ns = 51 * NS + 1234567},
        {.stage = TRACE_SEND,
         .sequence = 17,
         .chunk = 3,
         .bytes = 4096,
         .group = 2,
         .peer = 0,
         .begin_ns = 51 * NS + 1,
         .end_ns = 51 * NS + 5,
         .flags = TRACE_FLAG_OPEN},
        {.stage = TRACE_COLLECTIVE,
         .sequence = 17,
         .bytes = 1 << 20,
         .group = 2,
         .peer = TRACE_NO_PEER,
         .begin_ns = 50 * NS,
         .end_ns = 52 * NS,
         .flags = TRACE_FLAG_CUT},
    };
    /* 2026-11-21, whose last multiple of a million seconds is 1795000000. */
    json_t *document = write_events(records, 3, 1795219000 * NS);
    const json_t *other = json_object_get(document, "otherData");
    ck_assert_int_eq(number(other, "base_unix_s"), 1795000000);
    ck_assert_int_eq(number(other, "dropped"), 3);
    ck_assert_ptr_null(json_object_get(other, "type"));

    const json_t *wait = find_event(document, "X", "wait");
    ck_assert_str_eq(json_string_value(json_object_get(wait, "cat")), "stage");
    ck_assert_str_eq(argument(wait, "collective"), "all_reduce");
    ck_assert_str_eq(argument(wait, "peer"), "rank 5");
    ck_assert_int_eq(number(json_object_get(wait, "args"), "sequence"), 17);
    ck_assert_int_eq(number(json_object_get(wait, "args"), "chunk"), 3);
    ck_assert_int_eq(number(json_object_get(wait, "args"), "group"), 2);
    ck_assert_int_eq(number(json_object_get(wait, "args"), "bytes"), 4096);
    ck_assert_int_eq(number(wait, "pid"), 2);
    /* 219051 s after the base, in microseconds, and nanoseconds are still there. */
    ck_assert(json_real_value(json_object_get(wait, "ts")) == 219051e6);
    ck_assert(json_real_value(json_object_get(wait, "dur")) == 1234.567);
    const json_t *chunk = find_event(document, "X", "all_reduce 17 chunk 3");
    ck_assert_int_eq(number(chunk, "tid"), number(wait, "tid"));
    const json_t *send = find_event(document, "X", "send");
    ck_assert(json_real_value(json_object_get(send, "ts")) == 219051000000.001);
    ck_assert_str_eq(argument(send, "peer"), "node a");
    ck_assert(json_is_true(json_object_get(json_object_get(send, "args"), "not_ended")));
    ck_assert_int_ne(number(send, "tid"), number(wait, "tid"));
    const json_t *all = find_event(document, "X", "all_reduce 17");
    ck_assert_str_eq(json_string_value(json_object_get(all, "cat")), "collective");
    ck_assert(json_is_true(json_object_get(json_object_get(all, "args"), "began_before")));
    ck_assert_ptr_null(json_object_get(json_object_get(all, "args"), "chunk"));
    ck_assert_str_eq(argument(find_event(document, "M", "process_name"), "name"),
                     "node b (job train)");
    json_decref(document);
}
END_TEST

/* Names for every lane, and numbers that no other lane has. */
START_TEST(lanes_have_names)
{
    struct trace_record records[4];
    for (uint32_t i = 0; i < 4; i++)
        records[i] = (struct trace_record){.stage = i < 2 ? TRACE_RETURN : TRACE_COPY_IN,
                                           .chunk = i,
                                           .peer = i < 2 ? 1 : i,
                                           .begin_ns = 51 * NS,
                                           .end_ns = 51 * NS + 10};
    json_t *document = write_events(records, 4, 0);
    static const char *const wanted[] = {"rank 2: copies", "rank 3: copies", "return to b #1",
                                         "return to b #2"};
    for (size_t n = 0; n < 4; n++) {
        int found = 0;
        size_t i;
        const json_t *event;
        json_array_foreach(json_object_get(document, "traceEvents"), i, event)
        {
            bool named =
                strcmp(json_string_value(json_object_get(event, "name")), "thread_name") == 0;
            if (named && strcmp(argument(event, "name"), wanted[n]) == 0) {
                found++;
                ck_assert_int_eq(number(event, "tid"), (json_int_t)n + 1);
            }
        }
        ck_assert_int_eq(found, 1);
    }
    json_decref(document);
}
END_TEST

START_TEST(an_empty_trace_is_a_trace)
{
    json_t *document = write_events(NULL, 0, 0);
    ck_assert_uint_eq(json_array_size(json_object_get(document, "traceEvents")), 2);
    json_decref(document);
}
END_TEST

START_TEST(the_table)
{
    char *text = NULL;
    size_t length = 0;
    struct trace_record records[] = {
        {.stage = TRACE_LOCAL_SUM, .begin_ns = 0, .end_ns = 1500},
        {.stage = TRACE_LOCAL_SUM, .begin_ns = 0, .end_ns = 2500, .chunk = 1},
    };
    FILE *out = open_memstream(&text, &length);
    ck_assert_int_eq(trace_print_summary(out, records, 2), 0);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "STAGE"));
    ck_assert_ptr_nonnull(strstr(text, "local sum             2         2.5"));
    ck_assert_ptr_null(strstr(text, "copy in"));
    free(text);
}
END_TEST

/* No slices: that is found out at the end, many are where the first buffer is full. */
START_TEST(what_cannot_be_written)
{
    static struct trace_record records[1000];
    uint32_t count = _i == 0 ? 0 : 1000;
    for (uint32_t i = 0; i < count; i++)
        records[i] =
            (struct trace_record){.stage = TRACE_LOCAL_SUM, .begin_ns = i, .end_ns = i + 1};
    struct trace_timeline timeline;
    struct error error = {0};
    FILE *full = fopen("/dev/full", "w");
    if (!full) {
        suite_skip("what_cannot_be_written", "there is no /dev/full");
        return;
    }
    json_t *traced = json_pack("{s:s}", "node", "a");
    ck_assert_int_eq(trace_timeline_create(&timeline, records, count), 0);
    ck_assert_int_eq(trace_write_events(full, traced, &timeline, &error), ERR_SYSTEM);
    ck_assert_str_eq(error.text, "cannot write the trace: No space left on device");
    trace_timeline_clear(&timeline);
    json_decref(traced);
    fclose(full);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl_trace");
    TCase *tests = tcase_create("shoalctl_trace");
    tcase_add_test(tests, seconds);
    tcase_add_test(tests, records_of_the_daemon);
    tcase_add_test(tests, events);
    tcase_add_test(tests, lanes_have_names);
    tcase_add_test(tests, an_empty_trace_is_a_trace);
    tcase_add_test(tests, the_table);
    tcase_add_loop_test(tests, what_cannot_be_written, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
