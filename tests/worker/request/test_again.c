/* Data that a request sends is kept where its results overwrite it, and put back. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/request/parts.h"
#include "worker/request/request.h"

#define COUNT 1000u
#define SIZE 2u
#define BYTES (COUNT * sizeof(int64_t))

static int64_t data[SIZE * COUNT], other[SIZE * COUNT];
static struct request_ask blocks[2 * SIZE];
static uint32_t block_count;
static struct kept_memory memory;

static void setup(void)
{
    for (size_t i = 0; i < SIZE * COUNT; i++)
        data[i] = (int64_t)i;
    block_count = 0;
}

static void teardown(void)
{
    kept_memory_clear(&memory); /* all of it has been given back */
}

static struct request_ask ask_of(enum collective_kind kind, int64_t *send, int64_t *recv)
{
    return (struct request_ask){
        .kind = kind, .dtype = DTYPE_I64, .count = COUNT, .send = send, .recv = recv, .root = 1};
}

/* One in blocks, of rank 1. */
static struct request_ask in_blocks(enum collective_kind kind, int64_t *send, int64_t *recv)
{
    struct parts_ask parts = {.kind = kind,
                              .dtype = DTYPE_I64,
                              .root = 1,
                              .rank = 1,
                              .size = SIZE,
                              .send = {.base = send, .count = COUNT},
                              .recv = {.base = recv, .count = COUNT}};
    parts_blocks(&parts, blocks);
    block_count = parts_block_count(&parts);
    ck_assert_uint_gt(block_count, 0);
    return parts_whole(&parts);
}

/* How many copies there are; they are forgotten. */
static uint32_t copies(struct request_ask ask, uint32_t rank)
{
    struct error error;
    ck_assert_int_eq(request_keep_sent(&memory, &ask, blocks, block_count, rank, &error), 0);
    uint32_t count = ask.kept != NULL;
    for (uint32_t i = 0; i < block_count; i++)
        count += blocks[i].kept != NULL;
    request_forget_kept(&ask, blocks, block_count);
    ck_assert_ptr_null(ask.kept);
    return count;
}

START_TEST(test_only_what_is_overwritten)
{
    ck_assert_uint_eq(copies(ask_of(COLLECTIVE_ALL_REDUCE, data, data), 0), 1);
    ck_assert_uint_eq(copies(ask_of(COLLECTIVE_ALL_REDUCE, data, other), 0), 0);
    ck_assert_uint_eq(copies(ask_of(COLLECTIVE_REDUCE, data, data), 1), 1);
    ck_assert_uint_eq(copies(ask_of(COLLECTIVE_REDUCE, data, data), 0), 0); /* not the root */
    ck_assert_uint_eq(copies(ask_of(COLLECTIVE_BROADCAST, data, data), 1), 0);
    ck_assert_uint_eq(copies(ask_of(COLLECTIVE_BROADCAST, data, data), 0), 0);
    ck_assert_uint_eq(copies(ask_of(COLLECTIVE_BARRIER, NULL, NULL), 0), 0);
    struct request_ask none = ask_of(COLLECTIVE_ALL_REDUCE, data, data);
    none.count = 0;
    ck_assert_uint_eq(copies(none, 0), 0);
}
END_TEST

START_TEST(test_blocks)
{
    ck_assert_uint_eq(copies(in_blocks(COLLECTIVE_REDUCE_SCATTER, data, other), 1), 0);
    ck_assert_uint_eq(copies(in_blocks(COLLECTIVE_REDUCE_SCATTER, data, data + COUNT), 1), SIZE);
    ck_assert_uint_eq(copies(in_blocks(COLLECTIVE_ALL_TO_ALL, data, other), 1), 0);
}
END_TEST

START_TEST(test_put_back)
{
    struct request request = {0};
    struct error error;
    request.ask = ask_of(COLLECTIVE_ALL_REDUCE, data, data);
    ck_assert_int_eq(request_keep_sent(&memory, &request.ask, NULL, 0, 0, &error), 0);
    request_copy_sent(&request.ask, NULL, 0);
    memset(data, 0x77, BYTES);
    request_restore(&request);
    for (size_t i = 0; i < COUNT; i++)
        if (data[i] != (int64_t)i)
            ck_abort_msg("element %zu: %ld", i, (long)data[i]);
    request_drop_kept(&request);
    ck_assert_ptr_null(request.ask.kept);
    memset(data, 0x77, BYTES);
    request_restore(&request); /* nothing is kept any more */
    ck_assert_int_eq(data[0], 0x7777777777777777);
}
END_TEST

/* On fewer servers, with another number; and nothing of what it was in remains. */
START_TEST(test_again)
{
    static const uint32_t weights[] = {1, 1};
    static _Alignas(64) uint8_t arena[4096];
    const struct layout_rule two = {2, weights, 1024, 256, false, false};
    const struct layout_rule one = {1, weights, 1024, 256, false, false};
    const struct request_memory where = {.base = arena, .total_bytes = sizeof(arena)};
    const struct request_ask ask = ask_of(COLLECTIVE_ALL_REDUCE, data, other);
    struct request request;
    ck_assert_int_eq(request_init(&request, &ask, 0, &two, 9, &where), 0);
    request.index = 4;
    request.age = 5;
    request.chunks_given = request.chunks_done = 2;
    request.has_result = true;
    ck_assert_int_eq(request_again(&request, 0, &one, 1, &where), 0);
    ck_assert_int_eq(request.state, REQUEST_QUEUED);
    ck_assert_uint_eq(request.sequence, 1);
    ck_assert_uint_eq(request.index, 4);
    ck_assert_uint_eq(request.age, 5);
    ck_assert_uint_eq(request.chunks_given, 0);
    ck_assert_uint_eq(request.chunks_done, 0);
    ck_assert(!request.has_result);
    ck_assert_ptr_eq(request.ask.send, data);
    request_clear(&request);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("again");
    TCase *tcase = tcase_create("again");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_only_what_is_overwritten);
    tcase_add_test(tcase, test_blocks);
    tcase_add_test(tcase, test_put_back);
    tcase_add_test(tcase, test_again);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
