/* The line of progress: what is drawn, what a terminal would act on, what is too wide. */
#include "common/text/progress_line.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/suite.h"

#define END "\033[K\r"

/* With guards on both sides: what is drawn, and nothing else, is written. */
static const char *drawn(const char *text, unsigned columns)
{
    static char bytes[PROGRESS_LINE_BYTES + 2];
    memset(bytes, 'x', sizeof(bytes));
    size_t length = progress_line_draw(text, columns, &bytes[1]);
    ck_assert_uint_le(length, PROGRESS_LINE_BYTES);
    ck_assert_int_eq(bytes[0], 'x');
    for (size_t i = length + 1; i < sizeof(bytes); i++)
        ck_assert_int_eq(bytes[i], 'x');
    bytes[length + 1] = 0;
    return &bytes[1];
}

START_TEST(a_line_is_drawn_over_the_one_before)
{
    ck_assert_str_eq(drawn("row 3 of 24", 80), "\rrow 3 of 24" END);
    ck_assert_str_eq(drawn("row 3 of 24", 0), "\rrow 3 of 24" END);
    ck_assert_str_eq(drawn("", 80), "\r" END);
}
END_TEST

/* In columns, not bytes; the last one stays free. */
START_TEST(it_is_as_wide_as_the_terminal)
{
    ck_assert_str_eq(drawn("0123456789", 11), "\r0123456789" END);
    ck_assert_str_eq(drawn("0123456789", 10), "\r012345678" END);
    ck_assert_str_eq(drawn("0123456789", 2), "\r0" END);
    ck_assert_str_eq(drawn("0123456789", 1), "\r" END);
    ck_assert_str_eq(drawn("h\xc3\xbc\xe6\xbc\xa2., and more", 5), "\rh??." END);
}
END_TEST

START_TEST(where_the_width_is_unknown_it_is_the_usual_one)
{
    char text[256], wanted[256];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    snprintf(wanted, sizeof(wanted), "\r%.79s" END, text);
    ck_assert_str_eq(drawn(text, 0), wanted);
}
END_TEST

/* On a terminal of any width there is an end to it. */
START_TEST(its_room_is_enough)
{
    char text[3 * PROGRESS_LINE_BYTES];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    for (unsigned columns = PROGRESS_LINE_BYTES - 16; columns < PROGRESS_LINE_BYTES + 16; columns++)
        ck_assert_ptr_nonnull(strstr(drawn(text, columns), "a" END));
    ck_assert_uint_eq(strlen(drawn(text, 0xffffffffu)), PROGRESS_LINE_BYTES);
}
END_TEST

/* Control characters are replaced: ASCII's, and C1's as bytes and in UTF-8. */
START_TEST(nothing_passes_that_a_terminal_acts_on)
{
    ck_assert_str_eq(drawn("a\033[2Jb\nc\rd\x7f"
                           "e\t",
                           80),
                     "\ra?[2Jb?c?d?e?" END);
    ck_assert_str_eq(drawn("a\xc2\x9b"
                           "2J",
                           80),
                     "\ra?2J" END);
    for (unsigned byte = 1; byte < 256; byte++) {
        char text[3] = {(char)byte, 'z', 0};
        const char *shown = drawn(text, 80);
        ck_assert_ptr_nonnull(strstr(shown, "z" END));
        for (const char *c = shown + 1; *c != '\033'; c++)
            ck_assert(*c >= 0x20 && *c < 0x7f);
    }
}
END_TEST

START_TEST(kinds_of_terminals)
{
    ck_assert(progress_line_can_draw("xterm-256color"));
    ck_assert(progress_line_can_draw("linux"));
    ck_assert(!progress_line_can_draw("dumb"));
    ck_assert(!progress_line_can_draw(""));
    ck_assert(!progress_line_can_draw(NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress_line");
    TCase *cases = tcase_create("progress_line");
    tcase_add_test(cases, a_line_is_drawn_over_the_one_before);
    tcase_add_test(cases, it_is_as_wide_as_the_terminal);
    tcase_add_test(cases, where_the_width_is_unknown_it_is_the_usual_one);
    tcase_add_test(cases, its_room_is_enough);
    tcase_add_test(cases, nothing_passes_that_a_terminal_acts_on);
    tcase_add_test(cases, kinds_of_terminals);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
