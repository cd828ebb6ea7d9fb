/* Every type of message, with every field at random: it survives the way there and back, and what
 * is left of its line after any damage is a message or an error, never anything else. */
#include "common/format/message_fields.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/message.h"
#include "tests/lib/suite.h"

static unsigned seed;

static uint32_t below(uint32_t most)
{
    return ((uint32_t)rand_r(&seed) ^ (uint32_t)rand_r(&seed) << 12) % most;
}

static uint64_t bits64(void)
{
    return (uint64_t)below(1u << 31) << 40 ^ (uint64_t)below(1u << 31) << 20 ^ below(1u << 31);
}

static enum message_conversation conversation_of(int type)
{
    if (type < MESSAGE_DAEMON_HELLO)
        return MESSAGE_TO_DAEMON;
    return type < MESSAGE_HELLO ? MESSAGE_TO_WORKER : MESSAGE_BETWEEN_DAEMONS;
}

static void random_text(char *text, size_t bytes)
{
    static const char *const pieces[] = {"a",  "Z",        "\"",           "\\", "\n", "\x7f",
                                         "\t", "\xc3\xa4", "\xe2\x82\xac", "/",  "{",  "\x01"};
    size_t used = 0, wanted = below((uint32_t)bytes);
    for (;;) {
        const char *piece = pieces[below(sizeof(pieces) / sizeof(pieces[0]))];
        if (used + strlen(piece) > wanted)
            break;
        memcpy(text + used, piece, strlen(piece));
        used += strlen(piece);
    }
    text[used] = '\0';
}

static void random_bytes(uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)below(256);
}

static void random_list(struct message_list *list, uint32_t most)
{
    uint32_t values[40], count = below(40);
    for (uint32_t i = 0; i < count; i++)
        values[i] = below(most);
    ck_assert_int_eq(message_list_set(list, values, count), 0);
}

/* In the ranges of the keys, ends included now and then. */
static void random_message(struct message *m, int type)
{
    *m = (struct message){.type = (enum message_type)type};
    m->protocol = below(2) ? UINT32_MAX : below(9);
    random_text(m->software, sizeof(m->software));
    random_text(m->node, sizeof(m->node));
    m->pid = below(2) ? INT32_MAX : below(99999);
    random_bytes(m->roster, sizeof(m->roster));
    random_bytes(m->nonce, sizeof(m->nonce));
    random_bytes(m->mac, sizeof(m->mac));
    m->wire = below(2) ? UINT32_MAX : below(9);
    m->incarnation = bits64();
    random_text(m->provider, sizeof(m->provider));
    random_text(m->version, sizeof(m->version));
    m->message_bytes = below(3) ? 64 + below(1u << 20) : 1u << 28;
    m->address_bytes = below(MESSAGE_ADDRESS_BYTES + 1);
    random_bytes(m->address, m->address_bytes);
    random_bytes(m->token, sizeof(m->token));
    random_text(m->job, sizeof(m->job));
    m->job_id = bits64();
    m->generation = below(1u << 31);
    m->lineage = bits64();
    m->uid = below(2) ? UINT32_MAX : 1000;
    m->world_size = 1 + below(MESSAGE_RANKS_MAX);
    m->rank = (int32_t)below(MESSAGE_RANKS_MAX);
    m->local_rank = (int32_t)below(MESSAGE_RANKS_MAX);
    m->local_size = 1 + below(MESSAGE_RANKS_MAX);
    m->node_index = below(MESSAGE_RANKS_MAX);
    m->node_count = 1 + below(MESSAGE_RANKS_MAX);
    m->member = below(2) ? UINT32_MAX : 0;
    m->timeout_ms = below(2) ? MESSAGE_TIMEOUT_MAX_MS : below(1000);
    m->duration_ms = below(2) ? MESSAGE_TRACE_MAX_MS : 1 + below(1000);
    m->request = below(1u << 31);
    m->group = (int32_t)below(1u << 31);
    m->nth = below(1u << 31);
    m->segment = below(1u << 31);
    m->sequence = bits64() >> 1;
    m->chunk_bytes = 64 + below(1u << 20);
    m->least_shard_bytes = below(1u << 31);
    m->pinned_bytes = bits64() >> 1;
    m->bytes = 1 + (bits64() >> 2);
    m->code = -(int32_t)below(101);
    random_text(m->text, sizeof(m->text));
    random_list(&m->ranks, MESSAGE_RANKS_MAX);
    random_list(&m->members, UINT32_MAX);
    random_list(&m->servers, UINT32_MAX);
    random_list(&m->weights, UINT32_MAX);
    m->position_count = below(20);
    m->positions = calloc(m->position_count + 1, sizeof(*m->positions));
    for (uint32_t i = 0; i < m->position_count; i++)
        m->positions[i] = (struct message_position){below(1u << 31), bits64() >> 1};
}

static char *random_line(int type, size_t *length)
{
    struct message message;
    random_message(&message, type);
    char *line = message_encode(&message, length);
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_le(*length, MESSAGE_LINE_BYTES);
    message_clear(&message);
    return line;
}

START_TEST(test_there_and_back)
{
    seed = (unsigned)_i * 7919;
    for (int round = 0; round < 40; round++) {
        size_t length, again_length;
        char *line = random_line(_i, &length);
        struct message back;
        struct error error = {0};
        ck_assert_msg(message_decode(&back, conversation_of(_i), line, length - 1, &error) == 0,
                      "%s: %s", error.text, line);
        ck_assert_int_eq(back.type, _i);
        char *again = message_encode(&back, &again_length);
        ck_assert_str_eq(again, line);
        free(again);
        free(line);
        message_clear(&back);
    }
}
END_TEST

/* Bytes changed, taken away, put in, doubled; tokens exchanged for others. */
static size_t damage(char *line, size_t length)
{
    static const char *const tokens[] = {"null", "-1",  "1e9", "[]",    "{}", "\"\"",
                                         "true", "0.5", "[[",  "\\u00", ",",  "99999999999"};
    size_t at = below((uint32_t)length), rest = length - at;
    switch (below(5)) {
    case 0:
        line[at] = (char)below(256);
        return length;
    case 1:
        line[at] ^= (char)(1 << below(8));
        return length;
    case 2:
        memmove(line + at, line + at + 1, rest - 1);
        return length - 1;
    case 3: {
        size_t count = rest < 8 ? rest : 8; /* a piece once more; the room is there */
        memmove(line + at + count, line + at, rest);
        return length + count;
    }
    default: {
        const char *token = tokens[below(sizeof(tokens) / sizeof(tokens[0]))];
        size_t count = strlen(token) < rest ? strlen(token) : rest;
        memcpy(line + at, token, count);
        return length;
    }
    }
}

START_TEST(test_damaged)
{
    int refused = 0, accepted = 0;
    seed = (unsigned)_i * 104729;
    for (int round = 0; round < 300; round++) {
        size_t length;
        char *line = random_line(_i, &length);
        char *room = calloc(1, length + 64);
        memcpy(room, line, --length);
        free(line);
        for (uint32_t times = 1 + below(4); times > 0 && length > 1; times--)
            length = damage(room, length);
        /* Exactly as long as it is, so that a sanitizer sees a byte too many being read. */
        char *exact = malloc(length);
        memcpy(exact, room, length);
        free(room);
        struct message back;
        struct error error = {0};
        memset(&back, 0x5a, sizeof(back));
        int result = message_decode(&back, conversation_of(_i), exact, length, &error);
        if (result == 0) {
            accepted++;
            /* Whatever it is now, it is one that can be sent. */
            char *again = message_encode(&back, NULL);
            ck_assert_ptr_nonnull(again);
            free(again);
            message_clear(&back);
        } else {
            refused++;
            ck_assert_int_eq(result, ERR_PROTOCOL);
            ck_assert_int_eq(error.code, ERR_PROTOCOL);
            ck_assert_str_ne(error.text, "");
            ck_assert_int_eq(back.type, 0x5a5a5a5a); /* set on success only */
        }
        free(exact);
    }
    ck_assert_int_gt(refused, 0);
    ck_assert_int_eq(refused + accepted, 300);
}
END_TEST

START_TEST(test_cut)
{
    /* A line cut anywhere is refused: no part of an object is one. */
    size_t length;
    seed = (unsigned)_i + 1;
    char *line = random_line(_i, &length);
    size_t step = 1 + length / 200;
    for (size_t cut = 0; cut + 1 < length; cut += step) {
        struct message back;
        struct error error = {0};
        ck_assert_int_eq(message_decode(&back, conversation_of(_i), line, cut, &error),
                         ERR_PROTOCOL);
    }
    free(line);
}
END_TEST

static json_t *line_object(int type)
{
    size_t length;
    char *line = random_line(type, &length);
    json_t *object = json_loadb(line, length, 0, NULL);
    ck_assert_ptr_nonnull(object);
    free(line);
    return object;
}

/* The answer to the object, which must be a refusal that names the key. */
static void refused_for(int type, const json_t *object, const char *key)
{
    char *line = json_dumps(object, JSON_COMPACT), named[64];
    struct message back;
    struct error error = {0};
    ck_assert_msg(message_decode(&back, conversation_of(type), line, strlen(line), &error) ==
                      ERR_PROTOCOL,
                  "taken: %s", line);
    snprintf(named, sizeof(named), "key '%s'", key);
    ck_assert_msg(strstr(error.text, named) != NULL, "no %s in: %s", named, error.text);
    free(line);
}

START_TEST(test_every_key_is_needed_and_typed)
{
    json_t *whole = line_object(_i);
    const char *key;
    json_t *value;
    seed = 5;
    json_object_foreach(whole, key, value)
    {
        json_t *object = json_copy(whole);
        json_object_del(object, key);
        refused_for(_i, object, key);
        json_object_set_new(object, key, json_null());
        refused_for(_i, object, key);
        json_object_set_new(object, key, json_object());
        refused_for(_i, object, key);
        json_object_set_new(object, key, json_real(1.0));
        refused_for(_i, object, key);
        json_object_set_new(object, key,
                            json_is_integer(value) ? json_string("1") : json_integer(1));
        refused_for(_i, object, key);
        if (json_is_integer(value)) {
            json_object_set_new(object, key, json_integer(INT64_MIN));
            refused_for(_i, object, key);
        }
        if (json_is_array(value)) {
            json_object_set_new(object, key, json_pack("[s]", "1"));
            refused_for(_i, object, key);
            json_object_set_new(object, key, json_pack("[i]", -1));
            refused_for(_i, object, key);
        }
        json_decref(object);
    }
    json_decref(whole);
}
END_TEST

START_TEST(test_what_is_no_digit)
{
    static const char *const keys[] = {"job_id", "roster", "nonce", "mac", "address", "token"};
    static const char wrong[] = "g/:@`G -";
    json_t *object = line_object(_i);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *digits = json_string_value(json_object_get(object, keys[i]));
        for (size_t j = 0; digits && digits[0] && wrong[j]; j++) {
            json_t *damaged = json_copy(object);
            char *changed = strdup(digits);
            changed[below((uint32_t)strlen(changed))] = wrong[j];
            json_object_set_new(damaged, keys[i], json_string(changed));
            refused_for(_i, damaged, keys[i]);
            free(changed);
            json_decref(damaged);
        }
    }
    json_decref(object);
}
END_TEST

START_TEST(test_unknown_keys_are_passed_over)
{
    /* A later version may say more. */
    json_t *object = line_object(_i);
    json_object_set_new(object, "later", json_pack("{s:[i,n]}", "x", 1));
    char *line = json_dumps(object, JSON_COMPACT);
    struct message back;
    struct error error = {0};
    ck_assert_int_eq(message_decode(&back, conversation_of(_i), line, strlen(line), &error), 0);
    message_clear(&back);
    free(line);
    json_decref(object);
}
END_TEST

static void list_of(uint32_t count, int wanted)
{
    struct json_text text;
    json_text_init(&text);
    json_text_open_object(&text, NULL);
    json_text_string(&text, "type", "late_reply");
    json_text_string(&text, "job_id", "1");
    json_text_uint(&text, "group", 0);
    json_text_uint(&text, "sequence", 0);
    json_text_open_array(&text, "ranks");
    for (uint32_t i = 0; i < count; i++)
        json_text_uint(&text, NULL, 0);
    json_text_close_array(&text);
    json_text_close_object(&text);
    size_t length;
    char *line = json_text_take(&text, &length);
    struct message back;
    struct error error = {0};
    ck_assert_int_eq(message_decode(&back, MESSAGE_BETWEEN_DAEMONS, line, length, &error), wanted);
    if (wanted == 0) {
        ck_assert_uint_eq(back.ranks.count, count);
        message_clear(&back);
    } else {
        ck_assert_str_eq(error.text, "message late_reply: key 'ranks' has 65537 elements, allowed "
                                     "are 65536");
    }
    free(line);
}

START_TEST(test_longest_list)
{
    list_of(65536, 0);
    list_of(65537, ERR_PROTOCOL);
}
END_TEST

START_TEST(test_deep_nesting_is_refused)
{
    size_t length = 200000;
    char *line = malloc(length);
    memset(line, '[', length);
    struct message back;
    struct error error = {0};
    ck_assert_int_eq(message_decode(&back, MESSAGE_TO_DAEMON, line, length, &error), ERR_PROTOCOL);
    free(line);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("message_fields");
    TCase *cases = tcase_create("message_fields");
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, test_there_and_back, MESSAGE_NONE + 1, MESSAGE_TYPES);
    tcase_add_loop_test(cases, test_damaged, MESSAGE_NONE + 1, MESSAGE_TYPES);
    tcase_add_loop_test(cases, test_cut, MESSAGE_NONE + 1, MESSAGE_TYPES);
    tcase_add_loop_test(cases, test_every_key_is_needed_and_typed, MESSAGE_NONE + 1, MESSAGE_TYPES);
    tcase_add_loop_test(cases, test_what_is_no_digit, MESSAGE_NONE + 1, MESSAGE_TYPES);
    tcase_add_loop_test(cases, test_unknown_keys_are_passed_over, MESSAGE_NONE + 1, MESSAGE_TYPES);
    tcase_add_test(cases, test_longest_list);
    tcase_add_test(cases, test_deep_nesting_is_refused);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
