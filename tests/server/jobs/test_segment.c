/* Members that have asked for a piece of shared memory, that have it, and that are done with it. */
#include "server/jobs/segment.h"

#include <check.h>
#include <utlist.h>

#include "tests/lib/suite.h"

START_TEST(members_are_done_until_they_may_ask)
{
    struct segment *segment = segment_create(7, 3, 4096, 5);
    ck_assert_ptr_nonnull(segment);
    ck_assert_uint_eq(segment->number, 7);
    ck_assert_uint_eq(segment->nth, 3);
    ck_assert_uint_eq(segment->bytes, 4096);
    ck_assert_uint_eq(segment->count, 5);
    ck_assert_int_eq(segment->descriptor, -1);
    ck_assert(!segment->opened);
    ck_assert(segment_is_done(segment) && !segment_is_wanted(segment));
    segment_free(segment);
}
END_TEST

START_TEST(it_is_wanted_until_all_have_it_and_there_until_all_are_done)
{
    static const struct {
        enum segment_state states[3];
        bool wanted, done;
    } cases[] = {
        {{SEGMENT_UNASKED, SEGMENT_UNASKED, SEGMENT_DONE}, true, false},
        {{SEGMENT_WAITING, SEGMENT_TAKEN, SEGMENT_DONE}, true, false},
        {{SEGMENT_TAKEN, SEGMENT_TAKEN, SEGMENT_UNASKED}, true, false},
        {{SEGMENT_TAKEN, SEGMENT_TAKEN, SEGMENT_DONE}, false, false},
        {{SEGMENT_DONE, SEGMENT_DONE, SEGMENT_UNASKED}, true, false},
        {{SEGMENT_DONE, SEGMENT_TAKEN, SEGMENT_DONE}, false, false},
        {{SEGMENT_DONE, SEGMENT_DONE, SEGMENT_DONE}, false, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct segment *segment = segment_create(0, 0, 1, 3);
        ck_assert_ptr_nonnull(segment);
        for (int member = 0; member < 3; member++)
            segment->members[member].state = cases[i].states[member];
        ck_assert_msg(segment_is_wanted(segment) == cases[i].wanted, "case %zu", i);
        ck_assert_msg(segment_is_done(segment) == cases[i].done, "case %zu", i);
        segment_free(segment);
    }
}
END_TEST

START_TEST(they_are_found_by_either_number)
{
    struct segment *all = NULL, *made[3];
    for (uint32_t i = 0; i < 3; i++) {
        made[i] = segment_create(10 + i, 5 - i, 64, 1);
        ck_assert_ptr_nonnull(made[i]);
        DL_APPEND(all, made[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_ptr_eq(segment_find_number(all, 10 + i), made[i]);
        ck_assert_ptr_eq(segment_find_nth(all, 5 - i), made[i]);
    }
    ck_assert_ptr_null(segment_find_number(all, 5));
    ck_assert_ptr_null(segment_find_nth(all, 10));
    ck_assert_ptr_null(segment_find_nth(NULL, 0));
    ck_assert_ptr_null(segment_find_number(NULL, 0));
    for (uint32_t i = 0; i < 3; i++)
        segment_free(made[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("segment");
    TCase *cases = tcase_create("cases");
    tcase_add_test(cases, members_are_done_until_they_may_ask);
    tcase_add_test(cases, it_is_wanted_until_all_have_it_and_there_until_all_are_done);
    tcase_add_test(cases, they_are_found_by_either_number);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
