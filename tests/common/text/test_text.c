/* Text in pieces: what is added, what has no room, ranks in words. */
#include "common/text/text.h"

#include <string.h>

#include "tests/lib/suite.h"

START_TEST(pieces_come_one_behind_the_other)
{
    char at[32];
    struct text text = {.at = at, .room = sizeof(at)};
    text_add(&text, "%s", "");
    ck_assert_str_eq(at, "");
    text_add(&text, "rank %u", 7u);
    text_add(&text, ", %s", "and so on");
    ck_assert_str_eq(at, "rank 7, and so on");
    ck_assert_uint_eq(text.length, strlen(at));
}
END_TEST

/* Texts with room of every size, and a guard behind it. */
START_TEST(what_has_no_room_is_left_out)
{
    static const char whole[] = "0123456789";
    for (size_t room = 1; room < sizeof(whole) + 2; room++) {
        char at[sizeof(whole) + 3];
        memset(at, 'x', sizeof(at));
        struct text text = {.at = at, .room = room};
        text_add(&text, "%s", "012345");
        text_add(&text, "%s", "6789");
        size_t fits = room < sizeof(whole) ? room - 1 : sizeof(whole) - 1;
        ck_assert_uint_eq(text.length, fits);
        ck_assert_uint_eq(strlen(at), fits);
        ck_assert_int_eq(memcmp(at, whole, fits), 0);
        ck_assert_int_eq(at[room], 'x');
        text_add(&text, "%s", "more");
        ck_assert_int_eq(at[room], 'x');
    }
}
END_TEST

START_TEST(ranks_in_words)
{
    static const uint32_t ranks[] = {3, 4, UINT32_MAX, 6};
    static const struct {
        uint32_t count, named;
        const char *words;
    } cases[] = {{1, 1, "rank 3"},
                 {1, 9, "rank 3"},
                 {2, 2, "ranks 3, 4"},
                 {4, 9, "ranks 3, 4, 4294967295, 6"},
                 {4, 1, "ranks 3 and 3 more"},
                 {100, 4, "ranks 3, 4, 4294967295, 6 and 96 more"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char at[80];
        struct text text = {.at = at, .room = sizeof(at)};
        text_add_ranks(&text, ranks, cases[i].count, cases[i].named);
        ck_assert_str_eq(at, cases[i].words);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("text");
    TCase *cases = tcase_create("cases");
    tcase_add_test(cases, pieces_come_one_behind_the_other);
    tcase_add_test(cases, what_has_no_room_is_left_out);
    tcase_add_test(cases, ranks_in_words);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
