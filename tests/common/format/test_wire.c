#include "common/format/wire.h"

#include <stdbool.h>
#include <string.h>

#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

static struct wire_header example(void)
{
    return (struct wire_header){
        .type = WIRE_CONTRIBUTION,
        .token = 0x0102030405060708ull,
        .job = 0x1112131415161718ull,
        .sequence = 0x2122232425262728ull,
        .group = 0x31323334u,
        .chunk = 0x41424344u,
        .payload_bytes = 0,
        .ask = {.kind = COLLECTIVE_REDUCE,
                .dtype = DTYPE_BF16,
                .op = REDUCE_MAX,
                .root = 0x51525354u,
                .block = 0x71727374u,
                .count = 0x6162636465666768ull,
                .identity = 0xb1b2b3b4u},
        .generation = 0x81828384u,
        .number = 0x9192939495969798ull,
        .received = 0xa1a2a3a4a5a6a7a8ull,
    };
}

/* Signs of life are of no job. */
static uint32_t generation_of(uint8_t type)
{
    return type == WIRE_KEEPALIVE || type == WIRE_ALIVE ? 0 : 7;
}

/* The bytes on the wire, as doc/protocol/data.md has them: other versions must read them too. */
START_TEST(the_bytes_are_those_of_the_protocol)
{
    static const uint8_t expected[WIRE_HEADER_BYTES] = {
        0x53, 0x48, 0x4f, 0x4c, 10,   1,    0,    0,    /* magic, version, type, status */
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, /* token */
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* job */
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, /* sequence */
        0x34, 0x33, 0x32, 0x31, 0x44, 0x43, 0x42, 0x41, /* group, chunk */
        0,    0,    0,    0,    1,    3,    4,    0,    /* payload, kind, dtype, op, codec */
        0x54, 0x53, 0x52, 0x51, 0x74, 0x73, 0x72, 0x71, /* root, block */
        0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61, /* count */
        0x84, 0x83, 0x82, 0x81, 0,    0,    0,    0,    /* generation, zero */
        0xb4, 0xb3, 0xb2, 0xb1, 0,    0,    0,    0,    /* identity */
        0x98, 0x97, 0x96, 0x95, 0x94, 0x93, 0x92, 0x91, /* number */
        0xa8, 0xa7, 0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, /* received */
        0,    0,    0,    0,    0,    0,    0,    0,    /* stable, and zeros from here on */
    };
    struct wire_header header = example();
    uint8_t bytes[WIRE_HEADER_BYTES];
    memset(bytes, 0xee, sizeof(bytes));
    wire_encode_header(bytes, &header);
    ck_assert_mem_eq(bytes, expected, sizeof(bytes));
}
END_TEST

START_TEST(what_is_encoded_is_decoded)
{
    for (uint8_t type = WIRE_CONTRIBUTION; type <= WIRE_DELIVERED; type++) {
        struct wire_header header = example(), decoded;
        header.type = type;
        header.status = type == WIRE_ERROR ? ERR_MISMATCH : 0;
        header.generation = generation_of(type);
        header.payload_bytes = 1000;
        uint8_t message[WIRE_HEADER_BYTES + 1000] = {0};
        wire_encode_header(message, &header);
        struct error error = {0};
        ck_assert_int_eq(wire_decode_header(message, sizeof(message), &decoded, &error), 0);
        ck_assert_uint_eq(decoded.type, header.type);
        ck_assert_int_eq(decoded.status, header.status);
        ck_assert_uint_eq(decoded.token, header.token);
        ck_assert_uint_eq(decoded.job, header.job);
        ck_assert_uint_eq(decoded.sequence, header.sequence);
        ck_assert_uint_eq(decoded.group, header.group);
        ck_assert_uint_eq(decoded.chunk, header.chunk);
        ck_assert_uint_eq(decoded.payload_bytes, 1000);
        ck_assert_uint_eq(decoded.generation, header.generation);
        ck_assert_uint_eq(decoded.number, header.number);
        ck_assert_uint_eq(decoded.received, header.received);
        ck_assert_uint_eq(decoded.ask.kind, header.ask.kind);
        ck_assert_uint_eq(decoded.ask.dtype, header.ask.dtype);
        ck_assert_uint_eq(decoded.ask.op, header.ask.op);
        ck_assert_uint_eq(decoded.ask.root, header.ask.root);
        ck_assert_uint_eq(decoded.ask.count, header.ask.count);
        ck_assert_uint_eq(decoded.ask.identity, header.ask.identity);
        ck_assert_uint_eq(decoded.codec, WIRE_CODEC_AS_IS);
    }
}
END_TEST

/* --- messages that are refused ---------------------------------------------------------------- */

struct wrong {
    unsigned at;
    uint8_t byte;
    const char *words;
};

static const struct wrong wrongs[] = {
    {0, 0x54, "not the magic"},
    {3, 0x4d, "0x4d4f4853"},
    {4, 0, "version 0"},
    {4, 2, "version 2, this daemon speaks 10"},
    {5, 0, "unknown type 0"},
    {5, 13, "unknown type 13"},
    {5, 255, "unknown type 255"},
    {6, 1, "status 1"},
    {7, 0xff, "status -256"},
    {5, WIRE_ERROR, "type 4 has status 0"},
    {40, 9, "announces a payload of 9"},
    {43, 1, "16777224 bytes and has 8"},
    {47, 1, "the payload of a message has codec 1, this daemon knows 0 alone"},
    {47, 255, "codec 255"},
    {68, 1, "reserved"},
    {76, 1, "reserved"}, /* beyond the identity */
    {79, 1, "reserved"},
    {96, 1, "reserved"}, /* stable */
    {127, 1, "reserved"},
    {5, WIRE_ALIVE, "type 9 has generation 2172814212"},
};

START_TEST(wrong_headers_are_refused_with_the_reason)
{
    const struct wrong *wrong = &wrongs[_i];
    struct wire_header header = example();
    header.payload_bytes = 8;
    uint8_t message[WIRE_HEADER_BYTES + 8] = {0};
    wire_encode_header(message, &header);
    message[wrong->at] = wrong->byte;
    struct wire_header untouched, before;
    memset(&untouched, 0x5a, sizeof(untouched));
    memcpy(&before, &untouched, sizeof(before));
    struct error error = {0};
    ck_assert_int_eq(wire_decode_header(message, sizeof(message), &untouched, &error),
                     ERR_PROTOCOL);
    ck_assert_int_eq(error.code, ERR_PROTOCOL);
    ck_assert_msg(strstr(error.text, wrong->words) != NULL, "%s", error.text);
    ck_assert_mem_eq(&untouched, &before, sizeof(before));
    ck_assert_int_eq(wire_decode_header(message, sizeof(message), &untouched, NULL), ERR_PROTOCOL);
}
END_TEST

START_TEST(only_the_right_length_is_taken)
{
    struct wire_header header = example(), decoded;
    header.payload_bytes = 16;
    uint8_t message[WIRE_HEADER_BYTES + 32] = {0};
    wire_encode_header(message, &header);
    for (size_t length = 0; length <= sizeof(message); length++) {
        struct error error = {0};
        int expected = length == WIRE_HEADER_BYTES + 16 ? 0 : ERR_PROTOCOL;
        EXPECT(wire_decode_header(message, length, &decoded, &error) == expected);
        if (length < WIRE_HEADER_BYTES)
            EXPECT(strstr(error.text, "shorter than its header"));
    }
}
END_TEST

START_TEST(an_error_has_a_negative_status_and_others_none)
{
    for (int status = -20; status <= 20; status++) {
        for (uint8_t type = WIRE_CONTRIBUTION; type <= WIRE_DELIVERED; type++) {
            struct wire_header header = example(), decoded;
            header.type = type;
            header.status = (int16_t)status;
            header.generation = generation_of(type);
            uint8_t bytes[WIRE_HEADER_BYTES];
            wire_encode_header(bytes, &header);
            bool right = type == WIRE_ERROR ? status < 0 && status >= ERR_CONFIG : status == 0;
            EXPECT(wire_decode_header(bytes, sizeof(bytes), &decoded, NULL) ==
                   (right ? 0 : ERR_PROTOCOL));
            EXPECT(!right || decoded.status == status);
        }
    }
}
END_TEST

/* A late rank is asked for over the control plane, whose numbers are signed. */
START_TEST(collectives_are_numbered_below_2_to_the_63)
{
    for (uint8_t kind = COLLECTIVE_ALL_REDUCE; kind <= COLLECTIVE_ALL_TO_ALL; kind++) {
        for (unsigned i = 0; i < 4; i++) {
            struct wire_header header = example(), decoded;
            header.ask.kind = kind;
            header.sequence = (const uint64_t[]){0, INT64_MAX, 1ull << 63, UINT64_MAX}[i];
            uint8_t bytes[WIRE_HEADER_BYTES];
            wire_encode_header(bytes, &header);
            struct error error = {0};
            int result = wire_decode_header(bytes, sizeof(bytes), &decoded, &error);
            ck_assert_int_eq(result, i < 2 ? 0 : ERR_PROTOCOL);
            if (result != 0)
                EXPECT(strstr(error.text, i == 2 ? "numbered 9223372036854775808"
                                                 : "numbered 18446744073709551615"));
        }
    }
}
END_TEST

/* Whatever the bytes, decoding reads no further than the length, and what it takes encodes again to
 * the same bytes. */
START_TEST(random_bytes_never_do_harm)
{
    uint64_t random = 7;
    unsigned taken = 0;
    for (int round = 0; round < 20000; round++) {
        struct wire_header header = example(), decoded;
        uint8_t message[WIRE_HEADER_BYTES], again[WIRE_HEADER_BYTES];
        wire_encode_header(message, &header);
        for (int i = 0; i < 2; i++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            message[(random >> 33) % sizeof(message)] = (uint8_t)(random >> 56);
        }
        if (wire_decode_header(message, sizeof(message), &decoded, NULL) != 0)
            continue;
        taken++;
        wire_encode_header(again, &decoded);
        EXPECT(memcmp(message, again, sizeof(again)) == 0);
    }
    ck_assert_uint_gt(taken, 1000);
}
END_TEST

/* --- asks ------------------------------------------------------------------------------------- */

START_TEST(a_ranks_ask_goes_there_and_back)
{
    struct wire_ask ask = {.kind = COLLECTIVE_BROADCAST,
                           .dtype = DTYPE_I64,
                           .op = REDUCE_PROD,
                           .root = 0x01020304,
                           .count = 0x1122334455667788ull,
                           .identity = 0x91929394};
    static const uint8_t expected[WIRE_RANK_ASK_BYTES] = {
        7,    0,    0,    0,    2,    7,    2,    0,    4,    3,    2,    1,    0, 0, 0, 0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x94, 0x93, 0x92, 0x91, 0, 0, 0, 0,
    };
    uint8_t bytes[WIRE_RANK_ASK_BYTES];
    wire_encode_rank_ask(bytes, 7, &ask);
    ck_assert_mem_eq(bytes, expected, sizeof(bytes));
    uint32_t rank = 0;
    struct wire_ask decoded;
    ck_assert_int_eq(wire_decode_rank_ask(bytes, sizeof(bytes), &rank, &decoded), 0);
    ck_assert_uint_eq(rank, 7);
    ck_assert(wire_ask_equal(&ask, &decoded));
    ck_assert_uint_eq(decoded.op, ask.op);

    rank = 99;
    for (size_t length = 0; length < sizeof(bytes); length++)
        EXPECT(wire_decode_rank_ask(bytes, length, &rank, &decoded) == ERR_PROTOCOL);
    bytes[7] = 1; /* reserved */
    EXPECT(wire_decode_rank_ask(bytes, sizeof(bytes), &rank, &decoded) == ERR_PROTOCOL);
    bytes[7] = 0;
    bytes[28] = 1; /* an identity of more than its bits */
    EXPECT(wire_decode_rank_ask(bytes, sizeof(bytes), &rank, &decoded) == ERR_PROTOCOL);
    ck_assert_uint_eq(rank, 99);
}
END_TEST

/* The table says which fields count for which kind: dtype, op, root, count. */
START_TEST(asks_are_equal_in_what_their_kind_gives_a_meaning)
{
    static const bool counts[COLLECTIVE_KIND_COUNT][4] = {
        [COLLECTIVE_ALL_REDUCE] = {true, true, false, true},
        [COLLECTIVE_REDUCE] = {true, true, true, true},
        [COLLECTIVE_BROADCAST] = {true, false, true, true},
        [COLLECTIVE_BARRIER] = {false, false, false, false},
        [COLLECTIVE_ALL_GATHER] = {true, false, false, true},
        [COLLECTIVE_REDUCE_SCATTER] = {true, true, false, true},
        [COLLECTIVE_GATHER] = {true, false, true, true},
        [COLLECTIVE_SCATTER] = {true, false, true, true},
        [COLLECTIVE_ALL_TO_ALL] = {true, false, false, true},
        [COLLECTIVE_SEND] = {true, false, false, true},
    };
    for (uint8_t kind = 0; kind < COLLECTIVE_KIND_COUNT; kind++) {
        struct wire_ask ask = {.kind = kind, .dtype = 1, .op = 1, .root = 1, .count = 1};
        for (int field = 0; field < 4; field++) {
            struct wire_ask other = ask;
            if (field == 0)
                other.dtype = 2;
            else if (field == 1)
                other.op = 2;
            else if (field == 2)
                other.root = 2;
            else
                other.count = 2;
            ck_assert_int_eq(wire_ask_equal(&ask, &other), !counts[kind][field]);
            ck_assert_int_eq(wire_ask_equal(&other, &ask), !counts[kind][field]);
        }
        ck_assert_int_eq(wire_ask_equal(&ask, &ask), 1);
        struct wire_ask tensor = ask;
        tensor.identity = 2;
        ck_assert_int_eq(wire_ask_equal(&ask, &tensor), kind == COLLECTIVE_BARRIER);
        struct wire_ask block = ask;
        block.block = 2;
        ck_assert_int_eq(wire_ask_equal(&ask, &block), 0);
        for (uint8_t different = 0; different < COLLECTIVE_KIND_COUNT; different++) {
            struct wire_ask other = ask;
            other.kind = different;
            ck_assert_int_eq(wire_ask_equal(&ask, &other), kind == different);
        }
    }
}
END_TEST

struct checked {
    struct wire_ask ask;
    const char *words; /* NULL: allowed */
};

static const struct checked checks[] = {
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 0, 100, 0, 0}, NULL},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 77, 100, 0, 0},
     NULL}, /* no root: not looked at */
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 0, 0, 0, 0}, NULL},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_I32, REDUCE_BXOR, 0, 1, 0, 0}, NULL},
    {{COLLECTIVE_REDUCE, DTYPE_F64, REDUCE_AVG, 3, 1, 0, 0}, NULL},
    {{COLLECTIVE_BROADCAST, DTYPE_U8, 200, 0, 1, 0, 0}, NULL}, /* no operation: not looked at */
    {{COLLECTIVE_BARRIER, 200, 200, 200, 0, 0, 0}, NULL},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 0, (1ull << 62) / 8, 0, 0}, NULL},
    {{COLLECTIVE_KIND_COUNT, DTYPE_F32, REDUCE_SUM, 0, 1, 0, 0}, "collective 10 does not exist"},
    {{255, DTYPE_F32, REDUCE_SUM, 0, 1, 0, 0}, "collective 255 does not exist"},
    {{COLLECTIVE_BARRIER, 0, 0, 0, 5, 0, 0}, "a barrier has 5 elements"},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_COUNT, REDUCE_SUM, 0, 1, 0, 0},
     "data type 12 is none of this version's, 0 to 11: "},
    {{COLLECTIVE_BROADCAST, 255, 0, 0, 1, 0, 0}, "data type 255 is none"},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_OP_COUNT, 0, 1, 0, 0},
     "operation 11 is none of this version's, 0 to 10: "},
    {{COLLECTIVE_REDUCE, DTYPE_U64, 255, 0, 1, 0, 0}, "operation 255 is none"},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_U64, REDUCE_LXOR, 0, 1, 0, 0}, NULL},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_LOR, 0, 1, 0, 0}, "operation lor (9) is not"},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F16, REDUCE_BAND, 0, 1, 0, 0}, "operation band (5)"},
    {{COLLECTIVE_REDUCE, DTYPE_F64, REDUCE_BOR, 0, 1, 0, 0}, "operation bor (6)"},
    {{COLLECTIVE_REDUCE, DTYPE_F32, REDUCE_SUM, 4, 1, 0, 0}, "root 4 in a group of 4 ranks"},
    {{COLLECTIVE_BROADCAST, DTYPE_F32, 0, UINT32_MAX, 1, 0, 0}, "root 4294967295 in a group"},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_I8, REDUCE_SUM, 0, (1ull << 62) / 8 + 1, 0, 0}, "are too many"},
    {{COLLECTIVE_BROADCAST, DTYPE_F64, 0, 0, UINT64_MAX, 0, 0}, "18446744073709551615 elements"},
    {{COLLECTIVE_ALL_GATHER, DTYPE_F32, 99, 99, 8, 0, 0}, NULL},
    {{COLLECTIVE_ALL_GATHER, DTYPE_F32, 0, 0, 8, 4, 0}, NULL},
    {{COLLECTIVE_ALL_GATHER, DTYPE_F32, 0, 0, 8, 5, 0},
     "all_gather has no block 5 in a group of 4"},
    {{COLLECTIVE_REDUCE_SCATTER, DTYPE_F32, REDUCE_AVG, 0, 8, 1, 0}, NULL},
    {{COLLECTIVE_REDUCE_SCATTER, DTYPE_F32, REDUCE_BOR, 0, 8, 1, 0}, "operation bor (6)"},
    {{COLLECTIVE_GATHER, DTYPE_F32, 0, 4, 8, 0, 0}, "root 4 in a group of 4 ranks"},
    {{COLLECTIVE_GATHER, DTYPE_F32, 0, 3, 8, 4, 0}, "gather has no block 4"},
    {{COLLECTIVE_SCATTER, DTYPE_F32, 0, 3, 8, 3, 0}, NULL},
    {{COLLECTIVE_ALL_TO_ALL, DTYPE_F32, 0, 0, 8, 2, 0}, NULL},
    {{COLLECTIVE_ALL_TO_ALL, DTYPE_F32, 0, 0, 8, 6, 0}, "all_to_all has no block 6"},
    {{COLLECTIVE_SEND, DTYPE_F32, 0, 0, 8, 2, 0}, NULL},
    {{COLLECTIVE_SEND, DTYPE_F32, 0, 0, 0, 5, 0}, NULL},
    {{COLLECTIVE_SEND, DTYPE_F32, 0, 0, 8, 0, 0}, "a send goes between two ranks"},
    {{COLLECTIVE_SEND, DTYPE_F32, 0, 0, 8, 6, 0}, "send has no block 6"}, /* to itself */
    {{COLLECTIVE_SEND, DTYPE_F32, 0, 0, 8, 17, 0}, "send has no block 17"},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 0, 8, 1, 0}, "all_reduce has no block 1"},
    {{COLLECTIVE_BARRIER, 0, 0, 0, 0, 1, 0}, "a barrier has 0 elements"},
    {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 0, 8, 0, UINT32_MAX}, NULL},
    {{COLLECTIVE_REDUCE, DTYPE_F32, REDUCE_SUM, 0, 8, 0, 1}, NULL},
    {{COLLECTIVE_BROADCAST, DTYPE_F32, 0, 0, 8, 0, 1}, NULL},
    {{COLLECTIVE_BARRIER, 0, 0, 0, 0, 0, 1}, "barrier is of no tensor with an identity"},
    {{COLLECTIVE_ALL_GATHER, DTYPE_F32, 0, 0, 8, 0, 1}, "all_gather is of no tensor"},
    {{COLLECTIVE_SEND, DTYPE_F32, 0, 0, 8, 2, 1}, "send is of no tensor with an identity"},
};

START_TEST(asks_are_checked)
{
    const struct checked *it = &checks[_i];
    struct error error = {0};
    int result = wire_ask_check(&it->ask, 4, &error);
    ck_assert_int_eq(result, it->words ? ERR_INVALID : 0);
    ck_assert_int_eq(wire_ask_check(&it->ask, 4, NULL), result);
    if (it->words)
        ck_assert_msg(strstr(error.text, it->words) != NULL, "%s", error.text);
}
END_TEST

START_TEST(asks_have_words)
{
    static const struct {
        struct wire_ask ask;
        const char *text;
    } cases[] = {
        {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 9, 1000, 0, 0},
         "all_reduce sum float count 1000"},
        {{COLLECTIVE_REDUCE, DTYPE_BF16, REDUCE_MIN, 2, 1, 0, 0},
         "reduce min bfloat16 count 1 root 2"},
        {{COLLECTIVE_BROADCAST, DTYPE_F32, 3, 1, 3, 0, 0}, "broadcast float count 3 root 1"},
        {{COLLECTIVE_BARRIER, 3, 3, 3, 0, 0, 0}, "barrier"},
        {{COLLECTIVE_ALL_GATHER, DTYPE_F32, 3, 3, 8, 0, 0}, "all_gather float count 8"},
        {{COLLECTIVE_REDUCE_SCATTER, DTYPE_F32, REDUCE_AVG, 0, 4, 3, 0},
         "reduce_scatter avg float count 4 for the part of rank 2 of the group"},
        {{COLLECTIVE_GATHER, DTYPE_U8, 0, 5, 4, 3, 0},
         "gather uint8 count 4 root 5 from rank 2 to rank 5 of the group"},
        {{COLLECTIVE_ALL_TO_ALL, DTYPE_F32, 0, 0, 3, 3, 0},
         "all_to_all float count 3 from rank 0 to rank 2 of the group"},
        {{COLLECTIVE_ALL_TO_ALL, DTYPE_F32, 0, 0, 3, 1, 0},
         "all_to_all float count 3"}, /* no pair */
        {{COLLECTIVE_REDUCE, DTYPE_F32, REDUCE_SUM, 2, 4, 0, 7},
         "reduce sum float count 4 root 2 of tensor 7"},
        {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 0, 4, 0, WIRE_IDENTITY_FUSION | 3},
         "all_reduce sum float count 4 of fusion buffer 3"},
        {{COLLECTIVE_ALL_REDUCE, DTYPE_F32, REDUCE_SUM, 0, 4, 0, WIRE_IDENTITY_FUSION | 2u << 16},
         "all_reduce sum float count 4 of buffer 0 of fusion 2"},
    };
    char text[128];
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        wire_ask_text(&cases[i].ask, 8, text, sizeof(text));
        ck_assert_str_eq(text, cases[i].text);
    }
    /* numbers that do not exist, as a peer may send them, and little room */
    struct wire_ask nonsense = {.kind = 99, .dtype = 99, .op = 99, .root = 99, .count = UINT64_MAX};
    wire_ask_text(&nonsense, 8, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "18446744073709551615"));
    wire_ask_text(&cases[0].ask, 8, text, 8);
    ck_assert_str_eq(text, "all_red");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *tests = tcase_create("wire");
    tcase_add_test(tests, the_bytes_are_those_of_the_protocol);
    tcase_add_test(tests, what_is_encoded_is_decoded);
    tcase_add_loop_test(tests, wrong_headers_are_refused_with_the_reason, 0,
                        sizeof(wrongs) / sizeof(wrongs[0]));
    tcase_add_test(tests, only_the_right_length_is_taken);
    tcase_add_test(tests, an_error_has_a_negative_status_and_others_none);
    tcase_add_test(tests, collectives_are_numbered_below_2_to_the_63);
    tcase_add_test(tests, random_bytes_never_do_harm);
    tcase_add_test(tests, a_ranks_ask_goes_there_and_back);
    tcase_add_test(tests, asks_are_equal_in_what_their_kind_gives_a_meaning);
    tcase_add_loop_test(tests, asks_are_checked, 0, sizeof(checks) / sizeof(checks[0]));
    tcase_add_test(tests, asks_have_words);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
