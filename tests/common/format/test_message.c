#include "common/format/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/json_text.h"
#include "common/text/line_reader.h"
#include "tests/lib/suite.h"

static int decode(struct message *message, enum message_conversation conversation, const char *line,
                  struct error *error)
{
    *error = (struct error){0};
    return message_decode(message, conversation, line, strlen(line), error);
}

/* --- what doc/protocol shows */

START_TEST(test_join)
{
    struct message message;
    struct error error;
    ck_assert_int_eq(decode(&message, MESSAGE_TO_DAEMON,
                            "{\"type\":\"join\",\"job\":\"train\",\"world_size\":4,\"rank\":-1,"
                            "\"local_rank\":0,\"timeout_ms\":60000,\"extra\":[1,2]}",
                            &error),
                     0);
    ck_assert_int_eq(message.type, MESSAGE_JOIN);
    ck_assert_str_eq(message.job, "train");
    ck_assert_uint_eq(message.world_size, 4);
    ck_assert_int_eq(message.rank, -1);
    ck_assert_int_eq(message.local_rank, 0);
    ck_assert_uint_eq(message.timeout_ms, 60000);
    message_clear(&message);
}
END_TEST

START_TEST(test_job_open)
{
    struct message message;
    struct error error;
    ck_assert_int_eq(
        decode(&message, MESSAGE_BETWEEN_DAEMONS,
               "{\"type\":\"job_open\",\"job\":\"t\",\"job_id\":\"89ABcdef\",\"generation\":1,"
               "\"lineage\":\"0\",\"uid\":0,\"timeout_ms\":5,\"ranks\":[0,0,1],\"members\":[16,17,"
               "4294967295],"
               "\"servers\":[0,1],\"weights\":[1,2],\"elders\":[0]}",
               &error),
        0);
    ck_assert_uint_eq(message.job_id, 0x89abcdef);
    ck_assert_uint_eq(message.ranks.count, 3);
    ck_assert_uint_eq(message.members.values[2], UINT32_MAX);
    ck_assert_uint_eq(message.weights.values[1], 2);
    message_clear(&message);
    ck_assert_ptr_null(message.ranks.values);
}
END_TEST

/* A key that is left out counts as 0, for ranks that join and for ranks that go on. */
START_TEST(test_wish)
{
    static const char bare[] = "{\"type\":\"rejoin\",\"timeout_ms\":9,\"stragglers_ms\":8}";
    static const char full[] = "{\"type\":\"rejoin\",\"timeout_ms\":9,\"stragglers_ms\":8,"
                               "\"least_ranks\":32768,\"wait_ms\":7}\n";
    struct message message;
    struct error error;
    ck_assert_int_eq(decode(&message, MESSAGE_TO_DAEMON, bare, &error), 0);
    ck_assert_uint_eq(message.least_ranks, 0);
    ck_assert_uint_eq(message.wait_ms, 0);
    ck_assert_int_eq(decode(&message, MESSAGE_TO_DAEMON, full, &error), 0);
    ck_assert_uint_eq(message.least_ranks, 32768);
    ck_assert_uint_eq(message.wait_ms, 7);
    size_t length;
    char *line = message_encode(&message, &length);
    ck_assert_str_eq(line, full);
    free(line);
}
END_TEST

START_TEST(test_one_name_in_three_conversations)
{
    static const char group_open[] =
        "{\"type\":\"group_open\",\"request\":1,\"ranks\":[0,2],\"nth\":0,\"timeout_ms\":0}";
    struct message message;
    struct error error;
    ck_assert_int_eq(decode(&message, MESSAGE_TO_DAEMON, group_open, &error), 0);
    ck_assert_int_eq(message.type, MESSAGE_WORKER_GROUP_OPEN);
    message_clear(&message);
    ck_assert_int_eq(decode(&message, MESSAGE_BETWEEN_DAEMONS, group_open, &error), ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "message group_open: key 'job_id' is missing, must be a "
                                 "hexadecimal string");
    ck_assert_int_eq(decode(&message, MESSAGE_TO_WORKER, group_open, &error), ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "unknown message type 'group_open'");
}
END_TEST

/* --- refusals name the key */

static const struct {
    enum message_conversation conversation;
    const char *line, *text;
} refusals[] = {
    {MESSAGE_TO_DAEMON, "", "not JSON"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"leave\"", "not JSON"},
    {MESSAGE_TO_DAEMON, "[]", "not a JSON object"},
    {MESSAGE_TO_DAEMON, "{}", "key 'type' is missing, must be a string"},
    {MESSAGE_TO_DAEMON, "{\"type\":7}", "key 'type' is an integer"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"leave\",\"type\":\"leave\"}", "not JSON: duplicate"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"dance\"}", "unknown message type 'dance'"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"a-very-long-type-that-nobody-knows-here\"}", "key 'type' has"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"group_close\",\"group\":\"0\"}", "key 'group' is a string"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"group_close\",\"group\":1.5}", "key 'group' is a real"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"group_close\",\"group\":-1}",
     "key 'group' is -1, must be 0 to 2147483647"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"group_close\",\"group\":99999999999999999999}", "not JSON"},
    {MESSAGE_TO_DAEMON,
     "{\"type\":\"join\",\"job\":\"0123456789012345678901234567890123456789012345678901234567890123"
     "\",\"world_size\":1,\"rank\":0,\"local_rank\":0,\"timeout_ms\":0}",
     "key 'job' has 64 bytes, allowed are 63"},
    {MESSAGE_TO_DAEMON,
     "{\"type\":\"join\",\"job\":\"t\",\"world_size\":32769,\"rank\":0,\"local_rank\":0,"
     "\"timeout_ms\":0}",
     "key 'world_size' is 32769, must be 0 to 32768"},
    {MESSAGE_TO_DAEMON,
     "{\"type\":\"rejoin\",\"timeout_ms\":9,\"stragglers_ms\":8,\"least_ranks\":32769}",
     "key 'least_ranks' is 32769, must be 0 to 32768"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"rejoin\",\"timeout_ms\":9,\"stragglers_ms\":8,\"wait_ms\":-1}",
     "key 'wait_ms' is -1, must be 0 to 2000000000"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"group_open\",\"request\":1,\"ranks\":3}", "key 'ranks' is an"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"group_open\",\"request\":1,\"ranks\":[0,-1]}",
     "key 'ranks' is -1"},
    {MESSAGE_TO_DAEMON, "{\"type\":\"group_open\",\"request\":1,\"ranks\":[0,null]}",
     "key 'ranks' is null"},
    {MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"job_ready\",\"job_id\":\"xyz\"}",
     "key 'job_id' is not 1 to 16 hexadecimal digits"},
    {MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"job_ready\",\"job_id\":\"\"}", "key 'job_id' is not"},
    {MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"job_ready\",\"job_id\":\"00112233445566778\"}",
     "key 'job_id' is not"},
    {MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"job_ready\",\"job_id\":12}", "key 'job_id' is an"},
    {MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"auth\",\"mac\":\"00\"}",
     "key 'mac' has 2 digits, must have 64"},
    {MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"auth\",\"mac\":false}", "key 'mac' is false"},
    {MESSAGE_BETWEEN_DAEMONS,
     "{\"type\":\"fabric\",\"provider\":\"tcp\",\"version\":\"1\",\"message_bytes\":64,"
     "\"address\":\"0g\"}",
     "key 'address' is not hexadecimal"},
    {MESSAGE_BETWEEN_DAEMONS,
     "{\"type\":\"fabric\",\"provider\":\"tcp\",\"version\":\"1\",\"message_bytes\":64,"
     "\"address\":\"000\"}",
     "an even number up to 512"},
    {MESSAGE_BETWEEN_DAEMONS,
     "{\"type\":\"rank_left\",\"job_id\":\"1\",\"rank\":0,\"positions\":[[1]]}", "key 'positions'"},
    {MESSAGE_BETWEEN_DAEMONS,
     "{\"type\":\"rank_left\",\"job_id\":\"1\",\"rank\":0,\"positions\":[[1,-2]]}",
     "key 'positions' is -2"},
    {MESSAGE_BETWEEN_DAEMONS, "{\"type\":\"rank_left\",\"job_id\":\"1\",\"rank\":-1}",
     "key 'rank' is -1, must be 0 to 32767"},
};

START_TEST(test_refused)
{
    struct message message;
    struct error error;
    ck_assert_int_eq(decode(&message, refusals[_i].conversation, refusals[_i].line, &error),
                     ERR_PROTOCOL);
    ck_assert_msg(strstr(error.text, refusals[_i].text) != NULL, "'%s' is not in '%s'",
                  refusals[_i].text, error.text);
}
END_TEST

/* --- there and back */

static enum message_conversation conversation_of(int type)
{
    if (type < MESSAGE_DAEMON_HELLO)
        return MESSAGE_TO_DAEMON;
    return type < MESSAGE_HELLO ? MESSAGE_TO_WORKER : MESSAGE_BETWEEN_DAEMONS;
}

static struct message full_message(void)
{
    static const uint32_t numbers[] = {0, 1, 32767};
    struct message message = {
        .protocol = 1,
        .software = "shoald 0.1.0",
        .node = "a",
        .pid = 4711,
        .provider = "tcp",
        .version = "libfabric 1.17",
        .message_bytes = 262208,
        .address = {1, 2, 255},
        .address_bytes = 3,
        .token = {0xff},
        .job = "quote \" backslash \\ \xc3\xa4",
        .job_id = UINT64_MAX,
        .generation = 2,
        .lineage = UINT64_MAX - 1,
        .uid = UINT32_MAX,
        .world_size = 3,
        .rank = 2,
        .local_rank = 1,
        .local_size = 2,
        .node_index = 1,
        .node_count = 2,
        .member = 9,
        .timeout_ms = 60000,
        .duration_ms = 2000,
        .request = 5,
        .group = 7,
        .nth = 3,
        .segment = 11,
        .bytes = 67108864,
        .sequence = INT64_MAX,
        .chunk_bytes = 65536,
        .least_shard_bytes = 4096,
        .pinned_bytes = INT64_MAX,
        .code = -5,
        .text = "line\nbreak\tand \x01",
    };
    memset(message.roster, 0xab, sizeof(message.roster));
    memset(message.nonce, 0x01, sizeof(message.nonce));
    message.wire = 4;
    message.incarnation = 0x1122334455667788;
    memset(message.mac, 0xfe, sizeof(message.mac));
    ck_assert_int_eq(message_list_set(&message.ranks, numbers, 3), 0);
    ck_assert_int_eq(message_list_set(&message.members, numbers, 3), 0);
    ck_assert_int_eq(message_list_set(&message.servers, numbers, 2), 0);
    ck_assert_int_eq(message_list_set(&message.weights, numbers, 0), 0);
    ck_assert_int_eq(message_list_set(&message.elders, numbers, 2), 0);
    message.positions = calloc(2, sizeof(*message.positions));
    message.positions[1] = (struct message_position){7, 1000};
    message.position_count = 2;
    return message;
}

START_TEST(test_there_and_back)
{
    struct message full = full_message(), copy, back;
    struct error error = {0};
    ck_assert_int_eq(message_copy(&copy, &full), 0);
    copy.type = (enum message_type)_i;
    size_t length, length_again;
    char *line = message_encode(&copy, &length);
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_eq(strlen(line), length);
    ck_assert_ptr_eq(strchr(line, '\n'), line + length - 1);
    ck_assert_msg(message_decode(&back, conversation_of(_i), line, length - 1, &error) == 0, "%s",
                  error.text);
    ck_assert_int_eq(back.type, _i);
    char *again = message_encode(&back, &length_again);
    ck_assert_str_eq(line, again);
    free(line);
    free(again);
    message_clear(&back);
    message_clear(&copy);
    message_clear(&full);
    ck_assert_str_ne(message_type_name((enum message_type)_i), "none");
}
END_TEST

START_TEST(test_values_survive)
{
    struct message full = full_message(), back;
    struct error error = {0};
    size_t length;
    full.type = MESSAGE_JOB_FAILED;
    char *line = message_encode(&full, &length);
    ck_assert_int_eq(message_decode(&back, MESSAGE_BETWEEN_DAEMONS, line, length - 1, &error), 0);
    ck_assert_uint_eq(back.job_id, UINT64_MAX);
    ck_assert_str_eq(back.text, full.text);
    ck_assert_int_eq(back.code, -5);
    free(line);
    message_clear(&back);
    full.type = MESSAGE_FABRIC;
    line = message_encode(&full, &length);
    ck_assert_int_eq(message_decode(&back, MESSAGE_BETWEEN_DAEMONS, line, length - 1, &error), 0);
    ck_assert_uint_eq(back.address_bytes, 3);
    ck_assert_mem_eq(back.address, full.address, 3);
    ck_assert_mem_eq(back.token, full.token, sizeof(full.token));
    free(line);
    message_clear(&back);
    message_clear(&full);
}
END_TEST

START_TEST(test_damaged)
{
    /* Whatever byte is changed, the answer is an error or a message, never anything else. */
    struct message full = full_message();
    full.type = MESSAGE_JOB_OPEN;
    size_t length;
    char *line = message_encode(&full, &length);
    for (size_t i = 0; i + 1 < length; i++) {
        static const char bytes[] = {'\0', '"', '9', '{', '\xff', '-'};
        for (size_t b = 0; b < sizeof(bytes); b++) {
            char old = line[i];
            struct message back;
            struct error error = {0};
            line[i] = bytes[b];
            int result = message_decode(&back, MESSAGE_BETWEEN_DAEMONS, line, length - 1, &error);
            if (result == 0)
                message_clear(&back);
            else
                ck_assert_str_ne(error.text, "");
            line[i] = old;
        }
    }
    free(line);
    message_clear(&full);
}
END_TEST

/* --- lines */

START_TEST(test_lines)
{
    struct line_reader reader;
    struct error error = {0};
    char *line;
    size_t length, at = 0;
    static const char bytes[] = "one\n\ntwo\r\nthree";
    static const char *const lines[] = {"one", "", "two"};
    line_reader_init(&reader, 64);
    /* Byte by byte, and all at once. */
    for (size_t i = 0; i < sizeof(bytes) - 1; i++) {
        ck_assert_int_eq(line_reader_feed(&reader, bytes + i, 1, &error), 0);
        while (line_reader_next(&reader, &line, &length, &error) == 1)
            ck_assert_str_eq(line, lines[at++]);
    }
    ck_assert_uint_eq(at, 3);
    ck_assert_int_eq(line_reader_feed(&reader, bytes, sizeof(bytes) - 1, &error), 0);
    ck_assert_int_eq(line_reader_next(&reader, &line, &length, &error), 1);
    ck_assert_str_eq(line, "threeone");
    ck_assert_uint_eq(length, 8);
    line_reader_clear(&reader);
}
END_TEST

START_TEST(test_long_lines)
{
    struct line_reader reader;
    struct error error = {0};
    char *line;
    size_t length;
    line_reader_init(&reader, 8);
    ck_assert_int_eq(line_reader_feed(&reader, "1234567\n", 8, &error), 0);
    ck_assert_int_eq(line_reader_next(&reader, &line, &length, &error), 1);
    ck_assert_int_eq(line_reader_feed(&reader, "12345678", 8, &error), 0);
    ck_assert_int_eq(line_reader_next(&reader, &line, &length, &error), 0);
    ck_assert_int_eq(line_reader_feed(&reader, "9", 1, &error), 0);
    ck_assert_int_eq(line_reader_next(&reader, &line, &length, &error), ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "a line of more than 8 bytes");
    line_reader_clear(&reader);
}
END_TEST

/* --- JSON text */

START_TEST(test_json_text)
{
    struct json_text text;
    json_text_init(&text);
    json_text_open_object(&text, NULL);
    json_text_open_array(&text, "a");
    json_text_uint(&text, NULL, UINT64_MAX);
    json_text_int(&text, NULL, -7);
    json_text_open_array(&text, NULL);
    json_text_close_array(&text);
    json_text_close_array(&text);
    json_text_string(&text, "s", "\"\\\x1f\xff\xc3\xa4\xed\xa0\x80");
    json_text_real(&text, "r", 0.5);
    json_text_real(&text, "n", 0.0 / 0.0);
    json_text_bool(&text, "b", true);
    json_text_null(&text, "z");
    json_text_hex(&text, "h", 255);
    json_text_hex_bytes(&text, "x", (const uint8_t *)"\x01\xfe", 2);
    json_text_close_object(&text);
    size_t length;
    char *taken = json_text_take(&text, &length);
    ck_assert_str_eq(taken,
                     "{\"a\":[18446744073709551615,-7,[]],\"s\":\"\\\"\\\\\\u001f?\xc3\xa4???\","
                     "\"r\":0.5,\"n\":0,\"b\":true,\"z\":null,\"h\":\"00000000000000ff\","
                     "\"x\":\"01fe\"}");
    ck_assert_uint_eq(length, strlen(taken));
    free(taken);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("message");
    TCase *cases = tcase_create("message");
    tcase_add_test(cases, test_join);
    tcase_add_test(cases, test_job_open);
    tcase_add_test(cases, test_wish);
    tcase_add_test(cases, test_one_name_in_three_conversations);
    tcase_add_loop_test(cases, test_refused, 0, sizeof(refusals) / sizeof(refusals[0]));
    tcase_add_loop_test(cases, test_there_and_back, MESSAGE_NONE + 1, MESSAGE_TYPES);
    tcase_add_test(cases, test_values_survive);
    tcase_add_test(cases, test_damaged);
    tcase_add_test(cases, test_lines);
    tcase_add_test(cases, test_long_lines);
    tcase_add_test(cases, test_json_text);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
