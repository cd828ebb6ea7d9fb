/* The queue by priority, against a sorted array; and how many steps it takes. */
#include "common/base/heap.h"

#include <stdlib.h>

#include "tests/lib/suite.h"

#define NUMBERS 2000

struct number {
    struct heap_entry entry; /* first */
    uint32_t value;
    bool queued;
};

static struct number numbers[NUMBERS];
static uint64_t comparisons;

static bool number_goes_before(const struct heap_entry *entry, const struct heap_entry *other)
{
    comparisons++;
    return ((const struct number *)entry)->value < ((const struct number *)other)->value;
}

static struct heap new_heap(void)
{
    for (uint32_t i = 0; i < NUMBERS; i++)
        numbers[i] = (struct number){.value = i};
    comparisons = 0;
    return (struct heap){.goes_before = number_goes_before};
}

static void put(struct heap *heap, uint32_t value)
{
    heap_add(heap, &numbers[value].entry);
    numbers[value].queued = true;
}

static void take(struct heap *heap, uint32_t value)
{
    heap_remove(heap, &numbers[value].entry);
    numbers[value].queued = false;
}

/* The smallest one that is queued, or NUMBERS. */
static uint32_t smallest(void)
{
    uint32_t value = 0;
    while (value < NUMBERS && !numbers[value].queued)
        value++;
    return value;
}

static void expect_all(const struct heap *heap, uint32_t count)
{
    heap_check(heap);
    uint32_t met = 0;
    for (const struct heap_entry *it = heap->first; it; it = heap_next(it)) {
        if (!((const struct number *)it)->queued)
            ck_abort_msg("one that was taken out is met");
        met++;
    }
    ck_assert_uint_eq(met, count);
}

START_TEST(nothing_is_first_of_nothing)
{
    struct heap heap = new_heap();
    ck_assert_ptr_null(heap.first);
    expect_all(&heap, 0);
    put(&heap, 7);
    ck_assert_ptr_eq(heap.first, &numbers[7].entry);
    ck_assert_ptr_null(heap_next(heap.first));
    take(&heap, 7);
    ck_assert_ptr_null(heap.first);
}
END_TEST

/* In the order of a walk through them: rising, falling, from both ends, and shuffled. */
static uint32_t nth(int order, uint32_t i)
{
    switch (order) {
    case 0:
        return i;
    case 1:
        return NUMBERS - 1 - i;
    case 2:
        return i % 2 ? i / 2 : NUMBERS - 1 - i / 2;
    default:
        return i * 1103u % NUMBERS; /* a prime, which does not divide NUMBERS */
    }
}

/* The smallest comes first, and no order of coming makes any step a long one. */
START_TEST(they_go_in_order_whatever_the_order_in_which_they_come)
{
    const uint64_t most = 2 * 11; /* twice log2(NUMBERS) */
    struct heap heap = new_heap();
    for (uint32_t i = 0; i < NUMBERS; i++) {
        uint64_t before = comparisons;
        put(&heap, nth(_i, i));
        ck_assert_uint_le(comparisons - before, most);
    }
    expect_all(&heap, NUMBERS);
    for (uint32_t i = 0; i < NUMBERS; i++) {
        ck_assert_ptr_eq(heap.first, &numbers[i].entry);
        uint64_t before = comparisons;
        take(&heap, i);
        ck_assert_uint_le(comparisons - before, most);
    }
    ck_assert_ptr_null(heap.first);
}
END_TEST

START_TEST(any_one_can_be_taken_out)
{
    struct heap heap = new_heap();
    for (uint32_t i = 0; i < NUMBERS; i++)
        put(&heap, nth(_i, i));
    for (uint32_t i = 0; i < NUMBERS; i += 3)
        take(&heap, nth(3, i));
    expect_all(&heap, NUMBERS - (NUMBERS + 2) / 3);
    for (uint32_t left = NUMBERS - (NUMBERS + 2) / 3; left > 0; left--) {
        uint32_t first = smallest();
        ck_assert_ptr_eq(heap.first, &numbers[first].entry);
        take(&heap, first);
    }
    ck_assert_ptr_null(heap.first);
}
END_TEST

START_TEST(coming_and_going_at_random)
{
    struct heap heap = new_heap();
    uint32_t count = 0;
    srandom((unsigned)_i);
    for (int step = 0; step < 2000; step++) {
        uint32_t value = (uint32_t)random() % 200;
        if (numbers[value].queued) {
            take(&heap, value);
            count--;
        } else {
            put(&heap, value);
            count++;
        }
        expect_all(&heap, count);
        uint32_t first = smallest();
        ck_assert_ptr_eq(heap.first, first < NUMBERS ? &numbers[first].entry : NULL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heap");
    TCase *tests = tcase_create("heap");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, nothing_is_first_of_nothing);
    tcase_add_loop_test(tests, they_go_in_order_whatever_the_order_in_which_they_come, 0, 4);
    tcase_add_loop_test(tests, any_one_can_be_taken_out, 0, 4);
    tcase_add_loop_test(tests, coming_and_going_at_random, 0, 4);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
