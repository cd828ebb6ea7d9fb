/* Text of others, as a person is shown it: nothing that a terminal obeys is left. */
#include "common/base/shown.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/suite.h"

static const struct {
    const char *text, *shown;
} cases[] = {
    {"", ""},
    {"job of node 1: a 'b' \"c\" \\d", "job of node 1: a 'b' \"c\" \\d"},
    {"n\xc3\xb6"
     "de \xe2\x82\xac \xf0\x9f\x90\x9f",
     "n\xc3\xb6"
     "de \xe2\x82\xac \xf0\x9f\x90\x9f"},
    {"\x1b[2J", "\\u001b[2J"},               /* C0: clears the screen */
    {"a\r\n\tb", "a\\u000d\\u000a\\u0009b"}, /* C0: another line */
    {"\x7f", "\\u007f"},                     /* DEL */
    {"\xc2\x9b"
     "31m",
     "\\u009b31m"}, /* C1: the same as ESC [ */
    {"\x9b"
     "31m",
     "\\x9b31m"}, /* C1 of an eight-bit terminal */
    {"\xe2\x80\xae"
     "exe.txt",
     "\\u202eexe.txt"},                             /* an override */
    {"\xe2\x80\x8f\xd8\x9c", "\\u200f\\u061c"},     /* marks */
    {"\xe2\x81\xa6\xe2\x81\xa9", "\\u2066\\u2069"}, /* isolates */
    {"\xe2\x80\xa8", "\\u2028"},                    /* a line's end */
    {"\xc0\x9b\xff", "\\xc0\\x9b\\xff"},            /* not UTF-8 */
    {"\xe2\x80", "\\xe2\\x80"},                     /* cut */
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

START_TEST(test_cases)
{
    char shown[256], again[256];
    ck_assert_uint_eq(shown_copy(shown, sizeof(shown), cases[_i].text), strlen(cases[_i].shown));
    ck_assert_str_eq(shown, cases[_i].shown);
    shown_copy(again, sizeof(again), shown);
    ck_assert_str_eq(again, shown);
}
END_TEST

/* Every character: what is escaped is what is to be, and the rest stays. */
START_TEST(test_every_character)
{
    for (uint32_t code = 1; code < 0x10ffff; code++) {
        char text[5] = {0}, shown[SHOWN_BYTES];
        bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
        bool direction = code == 0x61c || code == 0x200e || code == 0x200f ||
                         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
        bool line = code == 0x2028 || code == 0x2029;
        if (code >= 0xd800 && code < 0xe000)
            continue; /* no characters */
        if (code < 0x80) {
            text[0] = (char)code;
        } else if (code < 0x800) {
            text[0] = (char)(0xc0 | code >> 6);
            text[1] = (char)(0x80 | (code & 0x3f));
        } else if (code < 0x10000) {
            text[0] = (char)(0xe0 | code >> 12);
            text[1] = (char)(0x80 | (code >> 6 & 0x3f));
            text[2] = (char)(0x80 | (code & 0x3f));
        } else {
            text[0] = (char)(0xf0 | code >> 18);
            text[1] = (char)(0x80 | (code >> 12 & 0x3f));
            text[2] = (char)(0x80 | (code >> 6 & 0x3f));
            text[3] = (char)(0x80 | (code & 0x3f));
        }
        if (shown_first(text, shown) != strlen(text))
            ck_abort_msg("U+%04x", code);
        if ((strcmp(shown, text) != 0) != (control || direction || line))
            ck_abort_msg("U+%04x is %s", code, shown);
    }
}
END_TEST

/* No half of an escape, and always an end. */
START_TEST(test_room)
{
    char shown[32];
    for (size_t room = 1; room < sizeof(shown); room++) {
        memset(shown, 'x', sizeof(shown));
        size_t used = shown_copy(shown, room, "\x1b\x1b\xe2\x82\xac\x1b");
        ck_assert_uint_lt(used, room);
        ck_assert_uint_eq(strlen(shown), used);
        ck_assert(used == 0 || used == 6 || used == 12 || used == 15 || used == 21);
        ck_assert(room == sizeof(shown) - 1 || shown[room] == 'x');
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shown");
    TCase *tests = tcase_create("shown");
    tcase_add_loop_test(tests, test_cases, 0, CASES);
    tcase_add_test(tests, test_every_character);
    tcase_add_test(tests, test_room);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
