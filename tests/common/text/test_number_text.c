#include <stdio.h>
#include <string.h>

#include "common/text/number_text.h"
#include "tests/lib/suite.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const struct {
    const char *text;
    uint64_t least, most, number;
} good[] = {
    {"0", 0, 0, 0},
    {"1", 0, UINT64_MAX, 1},
    {"007", 1, 9, 7},
    {"4096", 1, 4096, 4096},
    {"4294967296", 0, UINT64_MAX, 1ull << 32},
    {"18446744073709551615", 0, UINT64_MAX, UINT64_MAX},
    {"00000000000000000000000000000012", 0, 12, 12},
};

START_TEST(test_good)
{
    uint64_t number = 99;
    struct error error = {0};
    ck_assert_int_eq(
        number_text_parse(good[_i].text, good[_i].least, good[_i].most, &number, &error), 0);
    ck_assert_uint_eq(number, good[_i].number);
    ck_assert_int_eq(error.code, 0);
}
END_TEST

static const struct {
    const char *text;
    uint64_t least, most;
} bad[] = {
    {"", 0, UINT64_MAX},
    {" 1", 0, UINT64_MAX},
    {"1 ", 0, UINT64_MAX},
    {"+1", 0, UINT64_MAX},
    {"-1", 0, UINT64_MAX},
    {"0x10", 0, UINT64_MAX},
    {"1e3", 0, UINT64_MAX},
    {"1.0", 0, UINT64_MAX},
    {"ten", 0, UINT64_MAX},
    {"0", 1, 10},
    {"11", 1, 10},
    {"18446744073709551616", 0, UINT64_MAX},
    {"28446744073709551615", 0, UINT64_MAX}, /* wraps to a greater number than before */
    {"184467440737095516150", 0, UINT64_MAX},
    {"4294967297", 0, UINT32_MAX}, /* is 1 in 32 bits */
};

START_TEST(test_bad)
{
    uint64_t number = 99;
    struct error error = {0};
    char words[256];
    ck_assert_int_eq(number_text_parse(bad[_i].text, bad[_i].least, bad[_i].most, &number, &error),
                     ERR_INVALID);
    ck_assert_uint_eq(number, 99);
    snprintf(words, sizeof(words), "got \"%s\", must be a number from %llu to %llu", bad[_i].text,
             (unsigned long long)bad[_i].least, (unsigned long long)bad[_i].most);
    ck_assert_str_eq(error.text, words);
}
END_TEST

START_TEST(test_long_text_is_cut)
{
    char text[2000];
    uint64_t number;
    struct error error;
    memset(text, '9', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(number_text_parse(text, 0, 9, &number, &error), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "9\", must be a number from 0 to 9"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("number_text");
    TCase *cases = tcase_create("number_text");
    tcase_add_loop_test(cases, test_good, 0, COUNT(good));
    tcase_add_loop_test(cases, test_bad, 0, COUNT(bad));
    tcase_add_test(cases, test_long_text_is_cut);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
