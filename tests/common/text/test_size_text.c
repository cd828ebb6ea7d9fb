#include <stdio.h>
#include <string.h>

#include "common/text/size_text.h"
#include "tests/lib/suite.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const struct {
    const char *text;
    uint64_t bytes;
} good[] = {
    {"0", 0},
    {"1", 1},
    {"0064", 64},
    {"100B", 100},
    {"7b", 7},
    {"1K", 1024},
    {"1k", 1024},
    {"64M", 64ull << 20},
    {"25MiB", 25ull << 20},
    {"25mib", 25ull << 20},
    {"4G", 4ull << 30},
    {"4GiB", 4ull << 30},
    {"3T", 3ull << 40},
    {"2P", 2ull << 50},
    {"18446744073709551615", UINT64_MAX},
    {"16383P", 16383ull << 50},
};

START_TEST(test_parse)
{
    uint64_t bytes = 12345;
    struct error error = {0};
    ck_assert_int_eq(size_text_parse(good[_i].text, &bytes, &error), 0);
    ck_assert_uint_eq(bytes, good[_i].bytes);
    ck_assert_int_eq(error.code, 0);
}
END_TEST

static const struct {
    const char *text;
    const char *reason;
} bad[] = {
    {"", "not understood"},
    {"K", "not understood"},
    {"B", "not understood"},
    {" 1", "not understood"},
    {"1 ", "not understood"},
    {"1 K", "not understood"},
    {"-1", "not understood"},
    {"+1", "not understood"},
    {"1.5M", "not understood"},
    {"0x10", "not understood"},
    {"64KB", "not understood"},
    {"64MB", "not understood"},
    {"1Ki", "not understood"},
    {"1KK", "not understood"},
    {"1KiBs", "not understood"},
    {"1E", "not understood"},
    {"many", "not understood"},
    {"18446744073709551616", "more than 64 bits"},
    {"99999999999999999999999", "more than 64 bits"},
    {"16384P", "more than 64 bits"},
    {"18446744073709551615K", "more than 64 bits"},
};

START_TEST(test_parse_refuses)
{
    uint64_t bytes = 12345;
    struct error error = {0};
    char quoted[64];
    ck_assert_int_eq(size_text_parse(bad[_i].text, &bytes, &error), ERR_INVALID);
    ck_assert_uint_eq(bytes, 12345);
    ck_assert_int_eq(error.code, ERR_INVALID);
    snprintf(quoted, sizeof(quoted), "size \"%s\"", bad[_i].text);
    ck_assert_msg(strstr(error.text, quoted) && strstr(error.text, bad[_i].reason), "%s",
                  error.text);
    ck_assert_int_eq(size_text_parse(bad[_i].text, &bytes, NULL), ERR_INVALID);
}
END_TEST

static const struct {
    uint64_t bytes;
    const char *text;
} printed[] = {
    {0, "0 B"},
    {1, "1 B"},
    {1023, "1023 B"},
    {1024, "1 KiB"},
    {1536, "1.50 KiB"},
    {65536, "64 KiB"},
    {1048576, "1 MiB"},
    {26214400, "25 MiB"},
    {1000000, "976.56 KiB"},
    {4ull << 30, "4 GiB"},
    {3ull << 40, "3 TiB"},
    {5ull << 50, "5 PiB"},
    {UINT64_MAX, "16384.00 PiB"},
};

START_TEST(test_print)
{
    char text[SIZE_TEXT_BYTES];
    size_text_print(printed[_i].bytes, text, sizeof(text));
    ck_assert_str_eq(text, printed[_i].text);
}
END_TEST

START_TEST(test_print_is_cut_to_room)
{
    char text[8] = "-------";
    size_text_print(1000000, text, 4);
    ck_assert_str_eq(text, "976");
    ck_assert_int_eq(text[4], '-');
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("size_text");
    TCase *tests = tcase_create("size_text");
    tcase_add_loop_test(tests, test_parse, 0, COUNT(good));
    tcase_add_loop_test(tests, test_parse_refuses, 0, COUNT(bad));
    tcase_add_loop_test(tests, test_print, 0, COUNT(printed));
    tcase_add_test(tests, test_print_is_cut_to_room);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
