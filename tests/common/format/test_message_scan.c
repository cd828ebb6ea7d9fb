/* Lines that are refused before they are parsed, and how long a line may be. */
#include "common/format/message_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/message.h"
#include "tests/lib/suite.h"

static struct error error;

static int scan(const char *line)
{
    error = (struct error){0};
    return message_scan(line, strlen(line), &error);
}

START_TEST(test_what_messages_are)
{
    static const char *const lines[] = {
        "",
        "{}",
        "{\"type\":\"leave\"}",
        "{\"positions\":[[1,2],[3,4]],\"ranks\":[]}",
        "{\"a\":{\"b\":[1]},\"c\":{}}",
        "{\"text\":\"[[[[[[{{{{{{\"}",
        "{\"text\":\"a quote \\\" [[[[ and a backslash \\\\\",\"ranks\":[[]]}",
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        ck_assert_msg(scan(lines[i]) == 0, "%s: %s", lines[i], error.text);
}
END_TEST

START_TEST(test_nested)
{
    static const char *const lines[] = {
        "[[[[",
        "{\"a\":[[[1]]]}",
        "{\"a\":{\"b\":{\"c\":{}}}}",
        "{\"text\":\"\\\\\",\"a\":[[[1]]]}", /* the string ends behind its escaped backslash */
        "]]]]{\"a\":[[[",                    /* no JSON, but nothing that hides the rest */
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        ck_assert_msg(scan(lines[i]) == ERR_PROTOCOL, "%s", lines[i]);
        ck_assert_str_eq(error.text, "a line nested more than 3 deep");
    }
}
END_TEST

static char *objects(uint32_t count)
{
    char *line = calloc(1, count * 3 + 16), *end = line;
    end += sprintf(end, "{\"a\":[");
    for (uint32_t i = 1; i < count; i++)
        end += sprintf(end, "{},");
    memcpy(end - 1, "]}", 3);
    return line;
}

START_TEST(test_objects)
{
    char *line = objects(MESSAGE_OBJECTS_MAX);
    ck_assert_int_eq(scan(line), 0);
    free(line);
    line = objects(MESSAGE_OBJECTS_MAX + 1);
    ck_assert_int_eq(scan(line), ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "a line of more than 16 objects");
    free(line);
}
END_TEST

/* The scan reads nothing behind bytes that end anywhere; a sanitizer would see it. */
START_TEST(test_cut_anywhere)
{
    static const char line[] = "{\"text\":\"a\\\"b\\\\\",\"positions\":[[1,2]]}";
    for (size_t bytes = 0; bytes < sizeof(line); bytes++) {
        char *exact = malloc(bytes ? bytes : 1);
        memcpy(exact, line, bytes);
        ck_assert_int_eq(message_scan(exact, bytes, &error), 0);
        free(exact);
    }
}
END_TEST

START_TEST(test_decoding_looks_first)
{
    struct message message;
    ck_assert_int_eq(message_decode(&message, MESSAGE_TO_DAEMON,
                                    "{\"type\":\"leave\",\"x\":[[[1]]]}", 27, &error),
                     ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "a line nested more than 3 deep");
}
END_TEST

/* --- how long */

static bool begins_list(enum message_conversation conversation, const char *head)
{
    return message_begins_list(conversation, head, strlen(head));
}

START_TEST(test_begins_list)
{
    ck_assert(begins_list(MESSAGE_TO_DAEMON, "{\"type\":\"group_open\""));
    ck_assert(begins_list(MESSAGE_TO_DAEMON, "{\"type\":\"group_open\",\"ranks\":[0,1"));
    ck_assert(begins_list(MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"job_open\",\"job\":\"t\""));
    ck_assert(begins_list(MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"rank_left\","));
    ck_assert(begins_list(MESSAGE_TO_WORKER, "{\"type\":\"joined\","));
    static const char *const others[] = {
        "",
        "{\"type\":\"",
        "{\"type\":\"group_open", /* it may go on: group_opened */
        "{\"type\":\"group_opens\"",
        "{\"type\":\"\"",
        "{ \"type\":\"group_open\"",
        "{\"type\": \"group_open\"",
        "{\"ranks\":[],\"type\":\"group_open\"",
        "{\"type\":\"ping\",\"x\":\"group_open\"",
        "{\"type\":\"job_open\"",
        "[{\"type\":\"group_open\"",
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        ck_assert_msg(!begins_list(MESSAGE_TO_DAEMON, others[i]), "%s", others[i]);
    ck_assert(!begins_list(MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"join\""));
}
END_TEST

static void fill(char *text, size_t bytes)
{
    memset(text, '\x01', bytes - 1); /* six bytes each */
    text[bytes - 1] = '\0';
}

/* The longest line of every type: within its limit, and those beyond the short one begin a list. */
START_TEST(test_longest_lines)
{
    enum message_conversation conversation = MESSAGE_BETWEEN_DAEMONS;
    if (_i < MESSAGE_HELLO)
        conversation = _i < MESSAGE_DAEMON_HELLO ? MESSAGE_TO_DAEMON : MESSAGE_TO_WORKER;
    struct message message = {.type = (enum message_type)_i,
                              .protocol = UINT32_MAX,
                              .pid = INT32_MAX,
                              .message_bytes = 1 << 28,
                              .address_bytes = MESSAGE_ADDRESS_BYTES,
                              .job_id = UINT64_MAX,
                              .generation = UINT32_MAX,
                              .uid = UINT32_MAX,
                              .world_size = MESSAGE_RANKS_MAX,
                              .rank = MESSAGE_RANKS_MAX - 1,
                              .local_rank = MESSAGE_RANKS_MAX - 1,
                              .local_size = MESSAGE_RANKS_MAX,
                              .node_index = MESSAGE_RANKS_MAX - 1,
                              .node_count = MESSAGE_RANKS_MAX,
                              .member = UINT32_MAX,
                              .timeout_ms = MESSAGE_TIMEOUT_MAX_MS,
                              .duration_ms = MESSAGE_TRACE_MAX_MS,
                              .request = UINT32_MAX,
                              .group = INT32_MAX,
                              .nth = UINT32_MAX,
                              .segment = UINT32_MAX,
                              .bytes = INT64_MAX,
                              .sequence = INT64_MAX,
                              .chunk_bytes = 1 << 28,
                              .least_shard_bytes = UINT32_MAX,
                              .pinned_bytes = INT64_MAX,
                              .code = -100};
    fill(message.software, sizeof(message.software));
    fill(message.node, sizeof(message.node));
    fill(message.provider, sizeof(message.provider));
    fill(message.version, sizeof(message.version));
    fill(message.job, sizeof(message.job));
    fill(message.text, sizeof(message.text));
    size_t short_bytes, long_bytes, limit = MESSAGE_SHORT_LINE_BYTES;
    if (conversation == MESSAGE_TO_DAEMON || _i == MESSAGE_HELLO || _i == MESSAGE_AUTH ||
        _i == MESSAGE_FABRIC)
        limit = MESSAGE_FIRST_LINE_BYTES;
    char *line = message_encode(&message, &short_bytes);
    ck_assert_uint_le(short_bytes, limit);
    bool begins = message_begins_list(conversation, line, short_bytes);
    free(line);
    uint32_t *values = malloc(MESSAGE_RANKS_MAX * sizeof(*values));
    for (uint32_t i = 0; i < MESSAGE_RANKS_MAX; i++)
        values[i] = MESSAGE_RANKS_MAX - 1;
    ck_assert_int_eq(message_list_set(&message.ranks, values, MESSAGE_RANKS_MAX), 0);
    ck_assert_int_eq(message_list_set(&message.servers, values, 1024), 0);
    ck_assert_int_eq(message_list_set(&message.weights, values, 1024), 0);
    memset(values, 0xff, MESSAGE_RANKS_MAX * sizeof(*values));
    ck_assert_int_eq(message_list_set(&message.members, values, MESSAGE_RANKS_MAX), 0);
    message.positions = calloc(1, sizeof(*message.positions));
    message.position_count = 1;
    line = message_encode(&message, &long_bytes);
    ck_assert_uint_eq(begins, long_bytes > short_bytes);
    ck_assert_uint_le(long_bytes, begins ? MESSAGE_LINE_BYTES : limit);
    if (conversation == MESSAGE_TO_DAEMON)
        ck_assert_uint_le(long_bytes, limit + MESSAGE_LIST_RANK_BYTES * MESSAGE_RANKS_MAX);
    free(line);
    free(values);
    message_clear(&message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("message_scan");
    TCase *cases = tcase_create("message_scan");
    tcase_add_test(cases, test_what_messages_are);
    tcase_add_test(cases, test_nested);
    tcase_add_test(cases, test_objects);
    tcase_add_test(cases, test_cut_anywhere);
    tcase_add_test(cases, test_decoding_looks_first);
    tcase_add_test(cases, test_begins_list);
    tcase_add_loop_test(cases, test_longest_lines, MESSAGE_NONE + 1, MESSAGE_TYPES);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
