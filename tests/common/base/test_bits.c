/* Bits that say which of many things have something to do. */
#include "common/base/bits.h"
#include "tests/lib/suite.h"

#include <stdint.h>

#define COUNT 200u

START_TEST(none_is_set_at_first)
{
    uint64_t words[BITS_WORDS(COUNT)] = {0};
    ck_assert_uint_eq(BITS_WORDS(COUNT), 4);
    for (uint32_t number = 0; number <= COUNT; number++)
        ck_assert_uint_eq(bits_from(words, COUNT, number), COUNT);
}
END_TEST

/* Each alone, seen from everywhere. */
START_TEST(one_is_found_from_below_and_not_from_above)
{
    uint64_t words[BITS_WORDS(COUNT)] = {0};
    for (uint32_t set = 0; set < COUNT; set++) {
        bits_set(words, set);
        for (uint32_t from = 0; from < COUNT; from++)
            ck_assert_uint_eq(bits_from(words, COUNT, from), from <= set ? set : COUNT);
        bits_clear(words, set);
        ck_assert_uint_eq(bits_from(words, COUNT, 0), COUNT);
    }
}
END_TEST

START_TEST(all_come_in_order)
{
    static const uint32_t numbers[] = {0, 1, 63, 64, 127, 128, 130, 191, 192, 199};
    uint64_t words[BITS_WORDS(COUNT)] = {0};
    uint32_t found = 0, count = sizeof(numbers) / sizeof(numbers[0]);
    for (uint32_t i = 0; i < count; i++) {
        bits_set(words, numbers[count - 1 - i]);
        bits_set(words, numbers[count - 1 - i]); /* twice is once */
    }
    for (uint32_t at = 0; (at = bits_from(words, COUNT, at)) < COUNT; at++) {
        ck_assert_uint_lt(found, count);
        ck_assert_uint_eq(at, numbers[found++]);
    }
    ck_assert_uint_eq(found, count);
    bits_clear(words, 64);
    ck_assert_uint_eq(bits_from(words, COUNT, 64), 127);
}
END_TEST

/* Beyond the count may be anything. */
START_TEST(what_is_beyond_is_not_there)
{
    uint64_t words[BITS_WORDS(70)] = {0};
    bits_set(words, 69);
    ck_assert_uint_eq(bits_from(words, 64, 0), 64);
    ck_assert_uint_eq(bits_from(words, 70, 0), 69);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bits");
    TCase *tests = tcase_create("bits");
    tcase_add_test(tests, none_is_set_at_first);
    tcase_add_test(tests, one_is_found_from_below_and_not_from_above);
    tcase_add_test(tests, all_come_in_order);
    tcase_add_test(tests, what_is_beyond_is_not_there);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
