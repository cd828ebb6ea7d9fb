#include "worker/request/request.h"

#include "tests/lib/suite.h"

#include <string.h>

static const uint32_t weights[2] = {1, 1};
static const struct layout_rule rule = {2, weights, 1024, 256, false, false};
static _Alignas(64) uint8_t arena[65536];
static const struct request_memory memory = {
    .base = arena, .data_offset = 4096, .total_bytes = sizeof(arena)};
static float outside[10000];

static struct request_ask ask_of(enum collective_kind kind, const void *send, void *recv)
{
    return (struct request_ask){
        .kind = kind, .dtype = DTYPE_F32, .count = 1000, .send = send, .recv = recv, .root = 1};
}

START_TEST(test_every_ask_is_checked)
{
    struct error error;
    const struct request_ask good = ask_of(COLLECTIVE_ALL_REDUCE, outside, outside);
    ck_assert_int_eq(request_check(&good, 0, 2, &error), 0);
#define REFUSED(field, value, words)                                                               \
    do {                                                                                           \
        struct request_ask ask = good;                                                             \
        ask.field = (value);                                                                       \
        ck_assert_int_eq(request_check(&ask, 0, 2, &error), ERR_INVALID);                          \
        ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);                        \
    } while (0)
    REFUSED(kind, COLLECTIVE_KIND_COUNT, "unknown collective");
    REFUSED(dtype, DTYPE_COUNT, "all_reduce: 12 is no element type");
    REFUSED(op, REDUCE_OP_COUNT, "all_reduce: 11 is no operation");
    REFUSED(op, REDUCE_BAND, "band is not for float");
    REFUSED(count, UINT64_MAX, "too many");
    REFUSED(count, (1ull << 60) + 1, "too many");
    REFUSED(send, NULL, "send is NULL");
    REFUSED(recv, NULL, "receive into is NULL");
    REFUSED(recv, outside + 999, "overlap");
#undef REFUSED
    struct request_ask apart = good;
    apart.recv = outside + 1000;
    ck_assert_int_eq(request_check(&apart, 0, 2, &error), 0);
}
END_TEST

START_TEST(test_who_needs_which_buffer)
{
    const struct {
        enum collective_kind kind;
        uint32_t rank; /* the root is 1 */
        bool send, recv;
    } cases[] = {
        {COLLECTIVE_ALL_REDUCE, 0, true, true}, {COLLECTIVE_REDUCE, 0, true, false},
        {COLLECTIVE_REDUCE, 1, true, true},     {COLLECTIVE_BROADCAST, 0, false, true},
        {COLLECTIVE_BROADCAST, 1, true, false}, {COLLECTIVE_BARRIER, 0, false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct request_ask ask = ask_of(cases[i].kind, NULL, outside);
        int expected = cases[i].send ? ERR_INVALID : 0;
        ck_assert_int_eq(request_check(&ask, cases[i].rank, 2, NULL), expected);
        ask = ask_of(cases[i].kind, outside, NULL);
        expected = cases[i].recv ? ERR_INVALID : 0;
        ck_assert_int_eq(request_check(&ask, cases[i].rank, 2, NULL), expected);
        ask = ask_of(cases[i].kind, NULL, NULL);
        ask.count = 0;
        ck_assert_int_eq(request_check(&ask, cases[i].rank, 2, NULL), 0);

        struct request request;
        ask = ask_of(cases[i].kind, outside, outside);
        ck_assert_int_eq(request_init(&request, &ask, cases[i].rank, &rule, 3, &memory), 0);
        ck_assert_int_eq(request.copy_in, cases[i].send);
        ck_assert_int_eq(request.copy_out, cases[i].recv);
        ck_assert_int_eq(request.staged, cases[i].kind != COLLECTIVE_BARRIER);
        request_clear(&request);
    }
    struct request_ask ask = ask_of(COLLECTIVE_BROADCAST, outside, outside);
    ask.root = 2;
    ck_assert_int_eq(request_check(&ask, 0, 2, NULL), ERR_INVALID);
    ask.kind = COLLECTIVE_ALL_REDUCE; /* has no root */
    ck_assert_int_eq(request_check(&ask, 0, 2, NULL), 0);
}
END_TEST

static struct request init(const struct request_ask *ask, uint32_t rank)
{
    struct request request;
    ck_assert_int_eq(request_init(&request, ask, rank, &rule, 0, &memory), 0);
    return request;
}

START_TEST(test_what_lies_in_the_arena_is_not_staged)
{
    float *inside = (float *)(void *)(arena + 4096), *later = (float *)(void *)(arena + 16384);
    float *end = (float *)(void *)(arena + sizeof(arena) - 4000);
    struct request_ask ask = ask_of(COLLECTIVE_ALL_REDUCE, inside, inside);
    struct request request = init(&ask, 0);
    ck_assert(!request.staged);
    ck_assert_uint_eq(request.in_offset, 4096);
    ck_assert_uint_eq(request.out_offset, 4096);
    ask.recv = later;
    request = init(&ask, 0);
    ck_assert(!request.staged);
    ck_assert_uint_eq(request.out_offset, 16384);

    ask.recv = outside;
    ck_assert(init(&ask, 0).staged);
    ask.send = outside;
    ask.recv = later;
    ck_assert(init(&ask, 0).staged);
    ask.send = ask.recv = inside + 1; /* not aligned */
    ck_assert(init(&ask, 0).staged);
    ask.send = ask.recv = end + 8; /* over the end */
    ck_assert(init(&ask, 0).staged);
    ask.send = ask.recv = arena; /* not data */
    ck_assert(init(&ask, 0).staged);

    /* A rank that does not receive names its own other buffer. */
    ask = ask_of(COLLECTIVE_REDUCE, inside, NULL);
    request = init(&ask, 0);
    ck_assert(!request.staged);
    ck_assert_uint_eq(request.out_offset, 4096);
    ask = ask_of(COLLECTIVE_BROADCAST, later, later);
    request = init(&ask, 0);
    ck_assert(!request.staged);
    ck_assert_uint_eq(request.in_offset, 16384);
}
END_TEST

START_TEST(test_nothing_to_move)
{
    struct request_ask ask = ask_of(COLLECTIVE_ALL_REDUCE, NULL, NULL);
    ask.count = 0;
    struct request request = init(&ask, 0);
    ck_assert(!request.staged);
    ck_assert_uint_eq(request.in_offset, 4096);
    ck_assert_uint_eq(request.layout.chunks, 1);
    ask = (struct request_ask){.kind = COLLECTIVE_BARRIER, .dtype = (enum dtype)99, .count = 12};
    request = init(&ask, 0);
    ck_assert_uint_eq(request.ask.count, 0);
    ck_assert_uint_eq(request.ask.dtype, DTYPE_U8);
    ck_assert(!request_has_chunk(&request));
}
END_TEST

/* A request on a device hands nothing over before its stream has come to it. */
START_TEST(test_waiting_for_a_stream)
{
    struct request_ask ask = ask_of(COLLECTIVE_ALL_REDUCE, outside, outside);
    ask.on_device = true;
    struct request request = init(&ask, 0);
    ck_assert(request.staged && request.waiting);
    ck_assert(!request_has_chunk(&request));
    request.waiting = false;
    ck_assert(request_has_chunk(&request));
    request.chunks_given = request.layout.chunks;
    ck_assert(!request_has_chunk(&request));
}
END_TEST

START_TEST(test_progress_of_chunks)
{
    struct request_ask ask = ask_of(COLLECTIVE_ALL_REDUCE, outside, outside);
    struct request request = init(&ask, 0);
    ck_assert_uint_eq(request_bytes(&request), 4000);
    ck_assert_uint_eq(request.layout.shards, 2);
    uint64_t bytes = 0;
    while (request_has_chunk(&request)) {
        struct layout_chunk chunk = layout_chunk(&request.layout, request.chunks_given++);
        bytes += request_chunk_bytes(&request, &chunk);
        ck_assert_uint_eq(request_chunk_offset(&request, &chunk), chunk.first * 4);
    }
    ck_assert_uint_eq(bytes, 4000);
    ck_assert_uint_eq(request.chunks_given, request.layout.chunks);
    ck_assert(!request_finished(&request));
    request.chunks_done = request.layout.chunks;
    ck_assert(!request_finished(&request));
    request.done_seen = true;
    ck_assert(request_finished(&request));
    request.chunks_done--;
    ck_assert(!request_finished(&request));
}
END_TEST

/* A block of an all_gather: one shard, sent by one rank. The whole moves nothing itself. */
START_TEST(test_whole_and_block)
{
    struct request_ask whole = ask_of(COLLECTIVE_ALL_GATHER, NULL, NULL), block;
    struct request request = init(&whole, 0);
    ck_assert_uint_eq(request_bytes(&request), 0);
    ck_assert_uint_eq(request.ask.count, 1000); /* what the ranks compare */
    ck_assert(!request.staged && !request_has_chunk(&request));
    ck_assert(!request.copy_in && !request.copy_out);

    block = ask_of(COLLECTIVE_ALL_GATHER, outside, NULL);
    block.block = 1;
    block.route = route_find(COLLECTIVE_ALL_GATHER, 0, 1, 2);
    ck_assert_int_eq(request_init(&request, &block, 0, &rule, 5, &memory), 0);
    ck_assert(request.staged && request.copy_in && !request.copy_out);
    ck_assert_uint_eq(request_bytes(&request), 4000);
    ck_assert_uint_eq(request.layout.shards, 1);
    ck_assert_uint_eq(layout_chunk(&request.layout, 0).server, 0); /* whatever the sequence */
    ck_assert_ptr_eq(request.layout.rule, &request.block_rule);
    block.send = NULL;
    block.recv = outside;
    ck_assert_int_eq(request_init(&request, &block, 1, &rule, 5, &memory), 0);
    ck_assert(!request.copy_in && request.copy_out);

    /* Sent from the arena, and nothing to receive: no copy. */
    block.send = arena + 4096;
    block.recv = NULL;
    ck_assert_int_eq(request_init(&request, &block, 0, &rule, 5, &memory), 0);
    ck_assert(!request.staged);
    ck_assert_uint_eq(request.in_offset, 4096);
    ck_assert_uint_eq(request.out_offset, 4096);
}
END_TEST

START_TEST(test_too_many_chunks)
{
    struct request request = {.chunks_given = 99};
    struct request_ask ask = ask_of(COLLECTIVE_ALL_REDUCE, outside, outside);
    ask.count = 1ull << 59;
    ck_assert_int_eq(request_init(&request, &ask, 0, &rule, 0, &memory), ERR_INVALID);
    /* The library refuses here what the daemon would refuse. */
    ask.count = LAYOUT_MAX_CHUNKS * 1024ull / 4 + 1;
    ck_assert_int_eq(request_init(&request, &ask, 0, &rule, 0, &memory), ERR_INVALID);
    ck_assert_uint_eq(request.chunks_given, 99);
    ask.count--;
    ck_assert_int_eq(request_init(&request, &ask, 0, &rule, 0, &memory), 0);
    ck_assert_uint_eq(request.layout.chunks, LAYOUT_MAX_CHUNKS);
}
END_TEST

START_TEST(test_descriptions)
{
    char text[256];
    struct request_ask ask = ask_of(COLLECTIVE_ALL_REDUCE, outside, outside);
    struct request request = init(&ask, 0);
    request.sequence = 10;
    request.met = 7;
    request.chunks_given = 3;
    request.chunks_back = 1;
    request_describe(&request, 5, text, sizeof(text));
    ck_assert_str_eq(text,
                     "all_reduce of 1000 float (sum), collective 17 of group 5: 3 of 4 chunks "
                     "handed over, 1 back");
    ask = ask_of(COLLECTIVE_BROADCAST, arena + 4096, arena + 4096);
    request = init(&ask, 1);
    request_describe(&request, 5, text, sizeof(text));
    ck_assert_str_eq(
        text, "broadcast of 1000 float from rank 1, collective 0 of group 5: not submitted yet");
    ask = (struct request_ask){.kind = COLLECTIVE_BARRIER};
    request = init(&ask, 1);
    request.state = REQUEST_SUBMITTED;
    request_describe(&request, 0, text, sizeof(text));
    ck_assert_str_eq(text, "barrier, collective 0 of group 0: submitted");
    request_describe(&request, 0, text, 8);
    ck_assert_str_eq(text, "barrier");
}
END_TEST

START_TEST(test_descriptions_of_blocks)
{
    char text[256];
    struct request blocks[4];
    struct request_ask ask = ask_of(COLLECTIVE_REDUCE_SCATTER, NULL, NULL);
    struct request request = init(&ask, 0);
    request.blocks = blocks;
    request.block_count = 4;
    request.incomplete = 3;
    request_describe(&request, 5, text, sizeof(text));
    ck_assert_str_eq(
        text, "reduce_scatter of 1000 float (sum), collective 0 of group 5: 2 of 5 parts complete");
    request.ask.kind = COLLECTIVE_ALL_GATHER;
    request.incomplete = 5;
    request_describe(&request, 5, text, sizeof(text));
    ck_assert_str_eq(text,
                     "all_gather of 1000 float, collective 0 of group 5: 0 of 5 parts complete");
    request.ask.kind = COLLECTIVE_GATHER; /* nobody knows how many all together */
    request_describe(&request, 5, text, sizeof(text));
    ck_assert_str_eq(text, "gather of float, collective 0 of group 5: 0 of 5 parts complete");
    request.blocks = NULL; /* in a group of one */
    request_describe(&request, 5, text, sizeof(text));
    ck_assert_str_eq(text, "gather of float, collective 0 of group 5: not submitted yet");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("request");
    TCase *cases = tcase_create("request");
    tcase_add_test(cases, test_every_ask_is_checked);
    tcase_add_test(cases, test_who_needs_which_buffer);
    tcase_add_test(cases, test_what_lies_in_the_arena_is_not_staged);
    tcase_add_test(cases, test_nothing_to_move);
    tcase_add_test(cases, test_waiting_for_a_stream);
    tcase_add_test(cases, test_progress_of_chunks);
    tcase_add_test(cases, test_too_many_chunks);
    tcase_add_test(cases, test_whole_and_block);
    tcase_add_test(cases, test_descriptions);
    tcase_add_test(cases, test_descriptions_of_blocks);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
