#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/env.h"
#include "tests/lib/suite.h"

#define NAME "SHOAL_TEST_ENV"
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static void setup(void)
{
    unsetenv(NAME);
}

START_TEST(test_text)
{
    ck_assert_ptr_null(env_text(NAME));
    setenv(NAME, "", 1);
    ck_assert_ptr_null(env_text(NAME));
    setenv(NAME, "some text", 1);
    ck_assert_str_eq(env_text(NAME), "some text");
}
END_TEST

START_TEST(test_integer_fallback)
{
    long long value = 5;
    struct error error = {0};
    ck_assert_int_eq(env_integer(NAME, 0, 10, -3, &value, &error), 0);
    ck_assert_int_eq(value, -3); /* the fallback may lie outside: "not given" */
    setenv(NAME, "", 1);
    value = 5;
    ck_assert_int_eq(env_integer(NAME, 0, 10, 7, &value, &error), 0);
    ck_assert_int_eq(value, 7);
    ck_assert_int_eq(error.code, 0);
}
END_TEST

static const struct {
    const char *text;
    long long least, most, value;
} good[] = {
    {"0", 0, 0, 0},
    {"3", 0, 10, 3},
    {"10", 0, 10, 10},
    {"010", 0, 10, 10},
    {"-4", -4, 10, -4},
    {"-0", 0, 10, 0},
    {"9223372036854775807", LLONG_MIN, LLONG_MAX, LLONG_MAX},
    {"-9223372036854775808", LLONG_MIN, LLONG_MAX, LLONG_MIN},
};

START_TEST(test_integer)
{
    long long value = 77;
    struct error error = {0};
    setenv(NAME, good[_i].text, 1);
    ck_assert_int_eq(env_integer(NAME, good[_i].least, good[_i].most, 99, &value, &error), 0);
    ck_assert_int_eq(value, good[_i].value);
}
END_TEST

static const char *const bad[] = {
    "x",
    "-",
    "--1",
    "+1",
    " 1",
    "1 ",
    "1.5",
    "0x1",
    "1e3",
    "11",
    "-1",
    "1,0",
    "ten",
    "3abc",
    "٣",
    "99999999999999999999",
    "-99999999999999999999",
};

START_TEST(test_integer_refuses)
{
    long long value = 77;
    struct error error = {0};
    char expected[256];
    setenv(NAME, bad[_i], 1);
    ck_assert_int_eq(env_integer(NAME, 0, 10, 5, &value, &error), ERR_INVALID);
    ck_assert_int_eq(value, 77);
    ck_assert_int_eq(error.code, ERR_INVALID);
    snprintf(expected, sizeof(expected),
             "environment variable %s: got \"%s\", must be an integer from 0 to 10", NAME, bad[_i]);
    ck_assert_str_eq(error.text, expected);
}
END_TEST

/* Numbers that only overflow are refused where every long long is allowed, too. */
START_TEST(test_integer_overflow)
{
    long long value = 77;
    setenv(NAME, "9223372036854775808", 1);
    ck_assert_int_eq(env_integer(NAME, LLONG_MIN, LLONG_MAX, 5, &value, NULL), ERR_INVALID);
    ck_assert_int_eq(value, 77);
}
END_TEST

START_TEST(test_long_text_is_cut)
{
    char text[4000];
    long long value = 77;
    struct error error = {0};
    memset(text, '1', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    setenv(NAME, text, 1);
    ck_assert_int_eq(env_integer(NAME, 0, 10, 5, &value, &error), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "must be an integer from 0 to 10"));
}
END_TEST

START_TEST(test_set_default)
{
    ck_assert_int_eq(env_set_default(NAME, "1"), 0);
    ck_assert_str_eq(getenv(NAME), "1");
    ck_assert_int_eq(env_set_default(NAME, "2"), 0);
    ck_assert_str_eq(getenv(NAME), "1");
    setenv(NAME, "", 1);
    ck_assert_int_eq(env_set_default(NAME, "2"), 0);
    ck_assert_str_eq(getenv(NAME), "");
    ck_assert_int_eq(env_set_default("", "2"), ERR_INVALID);
    ck_assert_int_eq(env_set_default("A=B", "2"), ERR_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("env");
    TCase *tests = tcase_create("env");
    tcase_add_checked_fixture(tests, setup, setup);
    tcase_add_test(tests, test_text);
    tcase_add_test(tests, test_integer_fallback);
    tcase_add_loop_test(tests, test_integer, 0, COUNT(good));
    tcase_add_loop_test(tests, test_integer_refuses, 0, COUNT(bad));
    tcase_add_test(tests, test_integer_overflow);
    tcase_add_test(tests, test_long_text_is_cut);
    tcase_add_test(tests, test_set_default);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
