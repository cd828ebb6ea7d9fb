/* Memory of copies is used again, and is no more than twice what was taken at once. */
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/request/kept_memory.h"

#define MIB (1ull << 20)

static struct kept_memory memory;

static void setup(void)
{
    memory = (struct kept_memory){0};
}

static void teardown(void)
{
    kept_memory_clear(&memory);
    ck_assert_uint_eq(memory.held_bytes, 0);
}

static void *take(uint64_t bytes)
{
    void *taken = kept_memory_take(&memory, bytes);
    ck_assert_ptr_nonnull(taken);
    ck_assert_uint_eq((uintptr_t)taken % 64, 0);
    memset(taken, 0x5a, bytes);
    ck_assert_uint_le(memory.held_bytes, 2 * memory.most_bytes);
    return taken;
}

START_TEST(test_used_again)
{
    void *first = take(MIB), *second = take(4 * MIB);
    kept_memory_give_back(first);
    kept_memory_give_back(second);
    kept_memory_give_back(NULL);
    ck_assert_ptr_eq(take(4 * MIB), second);
    ck_assert_ptr_eq(take(MIB - 100), first); /* a step's last buffer is smaller */
    ck_assert_uint_eq(memory.spare_count, 0);
    kept_memory_give_back(second);
    kept_memory_give_back(first);
}
END_TEST

START_TEST(test_the_smallest_that_is_large_enough)
{
    void *large = take(3 * MIB), *middle = take(2 * MIB);
    kept_memory_give_back(large);
    kept_memory_give_back(middle);
    ck_assert_ptr_eq(take(2 * MIB), middle);
    ck_assert_ptr_eq(take(2 * MIB), large);
    void *small = take(1); /* and not one of which most would be for nothing */
    ck_assert_uint_eq(memory.held_bytes, 5 * MIB + 64);
    kept_memory_give_back(small);
    kept_memory_give_back(large);
    kept_memory_give_back(middle);
}
END_TEST

/* Blocks of sizes that never come again do not pile up. */
START_TEST(test_bounded)
{
    for (uint64_t i = 1; i <= 200; i++) {
        void *small = take(i * 100), *large = take(i * i * 10);
        kept_memory_give_back(small);
        kept_memory_give_back(large);
        ck_assert_uint_le(memory.spare_count, 256);
    }
    ck_assert_uint_gt(memory.spare_count, 0);
    void *all = take(memory.most_bytes); /* for which spares have to go */
    kept_memory_give_back(all);
}
END_TEST

/* A block that is larger than what was asked for counts with all its bytes. */
START_TEST(test_larger_blocks)
{
    void *large = take(10 * MIB);
    kept_memory_give_back(large);
    ck_assert_ptr_eq(take(6 * MIB), large);
    void *other = take(6 * MIB);
    ck_assert_uint_eq(memory.held_bytes, 16 * MIB);
    ck_assert_uint_eq(memory.most_bytes, 12 * MIB);
    kept_memory_give_back(large);
    kept_memory_give_back(other);
    void *small = take(3 * MIB), *next = take(9 * MIB); /* 28 are more than 24: a spare goes */
    ck_assert_uint_le(memory.held_bytes, 24 * MIB);
    kept_memory_give_back(small);
    kept_memory_give_back(next);
}
END_TEST

/* More are used again than a collective has parts in a job of many ranks. */
START_TEST(test_many)
{
    void *taken[200];
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 200; i++)
            taken[i] = take(4096);
        ck_assert_uint_eq(memory.held_bytes, 200 * 4096);
        for (size_t i = 0; i < 200; i++)
            kept_memory_give_back(taken[i]);
    }
    ck_assert_uint_eq(memory.spare_count, 200);
}
END_TEST

START_TEST(test_no_memory)
{
    void *spare = take(MIB);
    kept_memory_give_back(spare);
    ck_assert_ptr_null(kept_memory_take(&memory, UINT64_MAX));
    ck_assert_uint_eq(memory.taken_bytes, 0);
    ck_assert_uint_eq(memory.most_bytes, MIB); /* what was not there is not counted */
    kept_memory_give_back(take(MIB));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kept_memory");
    TCase *tcase = tcase_create("kept_memory");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_used_again);
    tcase_add_test(tcase, test_the_smallest_that_is_large_enough);
    tcase_add_test(tcase, test_bounded);
    tcase_add_test(tcase, test_larger_blocks);
    tcase_add_test(tcase, test_many);
    tcase_add_test(tcase, test_no_memory);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
