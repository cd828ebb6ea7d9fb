/* Written JSON, as a parser of somebody else reads it. */
#include "common/text/json_text.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

static struct json_text text;

static void setup(void)
{
    json_text_init(&text);
}

static void expect(const char *wanted)
{
    size_t length;
    char *taken = json_text_take(&text, &length);
    ck_assert_ptr_nonnull(taken);
    ck_assert_str_eq(taken, wanted);
    ck_assert_uint_eq(length, strlen(wanted));
    free(taken);
}

/* The string as the parser reads it back; the caller's. */
static char *string_back(const char *value)
{
    json_text_string(&text, NULL, value);
    char *taken = json_text_take(&text, NULL);
    json_error_t error;
    json_t *json = json_loads(taken, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(json_is_string(json), "%s: %s", taken, error.text);
    char *back = strdup(json_string_value(json));
    free(taken);
    json_decref(json);
    return back;
}

static void expect_string(const char *value, const char *wanted)
{
    char *back = string_back(value);
    ck_assert_str_eq(back, wanted);
    free(back);
}

/* --- commas */

START_TEST(test_empty)
{
    expect("");
    json_text_open_object(&text, NULL);
    json_text_close_object(&text);
    expect("{}");
    json_text_open_array(&text, NULL);
    json_text_close_array(&text);
    expect("[]");
}
END_TEST

START_TEST(test_commas_stand_between)
{
    json_text_open_object(&text, NULL);
    json_text_open_object(&text, "a");
    json_text_close_object(&text);
    json_text_open_array(&text, "b");
    json_text_open_array(&text, NULL);
    json_text_close_array(&text);
    json_text_open_object(&text, NULL);
    json_text_uint(&text, "c", 1);
    json_text_close_object(&text);
    json_text_null(&text, NULL);
    json_text_close_array(&text);
    json_text_bool(&text, "d", false);
    json_text_close_object(&text);
    expect("{\"a\":{},\"b\":[[],{\"c\":1},null],\"d\":false}");
}
END_TEST

START_TEST(test_every_value_takes_its_comma)
{
    json_text_open_array(&text, NULL);
    for (int i = 0; i < 2; i++) {
        json_text_string(&text, NULL, "s");
        json_text_uint(&text, NULL, 0);
        json_text_int(&text, NULL, -1);
        json_text_real(&text, NULL, 2.5);
        json_text_bool(&text, NULL, true);
        json_text_null(&text, NULL);
        json_text_hex(&text, NULL, 1);
        json_text_hex_bytes(&text, NULL, (const uint8_t *)"\x01", 1);
    }
    json_text_close_array(&text);
    expect("[\"s\",0,-1,2.5,true,null,\"0000000000000001\",\"01\","
           "\"s\",0,-1,2.5,true,null,\"0000000000000001\",\"01\"]");
}
END_TEST

START_TEST(test_raw_leaves_the_grammar_alone)
{
    json_text_open_array(&text, NULL);
    json_text_uint(&text, NULL, 1);
    json_text_raw(&text, "\n", 1);
    json_text_uint(&text, NULL, 2);
    json_text_close_array(&text);
    expect("[1\n,2]");
}
END_TEST

START_TEST(test_taken_starts_anew)
{
    json_text_uint(&text, NULL, 1);
    expect("1");
    json_text_uint(&text, NULL, 2); /* no comma of before */
    expect("2");
    json_text_uint(&text, NULL, 3);
    json_text_clear(&text);
    json_text_uint(&text, NULL, 4);
    expect("4");
}
END_TEST

/* --- numbers */

START_TEST(test_numbers_at_their_ends)
{
    json_text_open_array(&text, NULL);
    json_text_uint(&text, NULL, 0);
    json_text_uint(&text, NULL, UINT64_MAX);
    json_text_int(&text, NULL, INT64_MIN);
    json_text_int(&text, NULL, INT64_MAX);
    json_text_hex(&text, NULL, UINT64_MAX);
    json_text_hex(&text, NULL, 0);
    json_text_hex_bytes(&text, NULL, NULL, 0);
    json_text_close_array(&text);
    expect("[0,18446744073709551615,-9223372036854775808,9223372036854775807,"
           "\"ffffffffffffffff\",\"0000000000000000\",\"\"]");
}
END_TEST

START_TEST(test_reals)
{
    json_text_open_array(&text, NULL);
    json_text_real(&text, NULL, 0.0);
    json_text_real(&text, NULL, 1.0 / 3.0);
    json_text_real(&text, NULL, -1e300);
    json_text_real(&text, NULL, 1e-300);
    json_text_real(&text, NULL, (double)NAN);
    json_text_real(&text, NULL, (double)INFINITY);
    json_text_real(&text, NULL, -(double)INFINITY);
    json_text_close_array(&text);
    char *taken = json_text_take(&text, NULL);
    ck_assert_str_eq(taken, "[0,0.333333,-1e+300,1e-300,0,0,0]");
    json_t *json = json_loads(taken, 0, NULL);
    ck_assert_uint_eq(json_array_size(json), 7);
    json_decref(json);
    free(taken);
}
END_TEST

/* --- strings */

START_TEST(test_every_character_comes_back)
{
    /* All of ASCII but NUL, in a value and in a key. */
    char all[128];
    for (int i = 1; i < 128; i++)
        all[i - 1] = (char)i;
    all[127] = '\0';
    expect_string(all, all);
    json_text_open_object(&text, NULL);
    json_text_uint(&text, all, 7);
    json_text_close_object(&text);
    char *taken = json_text_take(&text, NULL);
    for (const char *c = taken; *c; c++)
        ck_assert_msg(*c >= 0x20 && *c < 0x7f, "byte %d in the text", *c);
    json_t *json = json_loads(taken, 0, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(json, all)), 7);
    json_decref(json);
    free(taken);
}
END_TEST

/* For people: the escape itself is the string, so that whoever decodes the JSON can print it. */
START_TEST(test_shown)
{
    static const char *const strings[][2] = {
        {"plain \"a\\", "plain \"a\\"}, {"\x1b[2J\n", "\\u001b[2J\\u000a"}, {"\x7f", "\\u007f"},
        {"\xc2\x9b", "\\u009b"},        {"\xe2\x80\xae", "\\u202e"},        {"\x9b", "\\x9b"},
    };
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
        text.shown = true;
        json_text_string(&text, NULL, strings[i][0]);
        char *taken = json_text_take(&text, NULL);
        json_t *json = json_loads(taken, JSON_DECODE_ANY, NULL);
        ck_assert_msg(json_is_string(json), "%s", taken);
        ck_assert_str_eq(json_string_value(json), strings[i][1]);
        json_decref(json);
        free(taken);
    }
}
END_TEST

static const char *const good[] = {
    "",
    "\x7f",
    "\xc2\x80",         /* the first of two bytes */
    "\xdf\xbf",         /* the last */
    "\xe0\xa0\x80",     /* the first of three */
    "\xed\x9f\xbf",     /* before the surrogates */
    "\xee\x80\x80",     /* behind them */
    "\xef\xbf\xbf",     /* the last of three */
    "\xf0\x90\x80\x80", /* the first of four */
    "\xf4\x8f\xbf\xbf", /* the last there is */
    "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\x9f z",
};

START_TEST(test_utf8_stays)
{
    expect_string(good[_i], good[_i]);
}
END_TEST

static const struct {
    const char *value, *back;
} bad[] = {
    {"\x80", "?"},                 /* a continuation alone */
    {"a\xff\xfe z", "a?? z"},      /* never in UTF-8 */
    {"\xc0\xaf", "??"},            /* overlong */
    {"\xc1\xbf", "??"},            /* overlong */
    {"\xe0\x9f\xbf", "???"},       /* overlong */
    {"\xf0\x8f\xbf\xbf", "????"},  /* overlong */
    {"\xed\xa0\x80", "???"},       /* a surrogate */
    {"\xed\xbf\xbf", "???"},       /* a surrogate */
    {"\xf4\x90\x80\x80", "????"},  /* beyond the last */
    {"\xf5\x80\x80\x80", "????"},  /* beyond the last */
    {"\xc3", "?"},                 /* cut at the end of the string */
    {"\xe2\x82", "??"},            /* cut */
    {"\xf0\x9f\x90", "???"},       /* cut */
    {"\xe2\x82\"", "??\""},        /* the quote is not swallowed */
    {"\xc3\xc3\xa4", "?\xc3\xa4"}, /* the next one is found again */
    {"\xf0\x9f\xc3\xa4", "??\xc3\xa4"},
};

START_TEST(test_what_is_no_utf8_is_replaced)
{
    expect_string(bad[_i].value, bad[_i].back);
    ck_assert(!json_text_is_utf8(bad[_i].value));
    ck_assert(json_text_is_utf8(bad[_i].back));
}
END_TEST

START_TEST(test_random_bytes_are_always_valid)
{
    unsigned seed = (unsigned)_i + 1;
    for (int round = 0; round < 500; round++) {
        char bytes[40];
        size_t count = (size_t)rand_r(&seed) % sizeof(bytes);
        for (size_t i = 0; i < count; i++)
            bytes[i] = (char)(1 + rand_r(&seed) % 255);
        bytes[count ? count - 1 : 0] = '\0';
        char *once = string_back(bytes), *twice = string_back(once);
        /* A text that has been made valid stays as it is; ASCII always does. */
        ck_assert_str_eq(once, twice);
        ck_assert(json_text_is_utf8(once));
        ck_assert_int_eq(json_text_is_utf8(bytes), strcmp(bytes, once) == 0);
        size_t ascii = 0, ascii_back = 0;
        for (const char *c = bytes; *c; c++)
            ascii += *c > 0 && *c != '?';
        for (const char *c = once; *c; c++)
            ascii_back += *c > 0 && *c != '?';
        ck_assert_uint_eq(ascii, ascii_back);
        free(once);
        free(twice);
    }
}
END_TEST

/* --- size */

START_TEST(test_it_grows)
{
    json_text_open_array(&text, NULL);
    for (uint64_t i = 0; i < 100000; i++)
        json_text_uint(&text, NULL, i);
    json_text_close_array(&text);
    size_t length;
    char *taken = json_text_take(&text, &length);
    json_t *json = json_loadb(taken, length, 0, NULL);
    ck_assert_uint_eq(json_array_size(json), 100000);
    for (size_t i = 0; i < 100000; i += 997)
        ck_assert_int_eq(json_integer_value(json_array_get(json, i)), (json_int_t)i);
    json_decref(json);
    free(taken);
}
END_TEST

START_TEST(test_failure_is_remembered)
{
    /* After a failed allocation, which `failed` stands for, nothing is written any more, and taking
     * says so once. */
    json_text_uint(&text, NULL, 1);
    text.failed = true;
    json_text_string(&text, NULL, "not written");
    ck_assert_uint_eq(text.length, 1);
    size_t length = 99;
    ck_assert_ptr_null(json_text_take(&text, &length));
    ck_assert_uint_eq(length, 99);
    json_text_uint(&text, NULL, 5);
    expect("5");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_text");
    TCase *cases = tcase_create("json_text");
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, test_empty);
    tcase_add_test(cases, test_commas_stand_between);
    tcase_add_test(cases, test_every_value_takes_its_comma);
    tcase_add_test(cases, test_raw_leaves_the_grammar_alone);
    tcase_add_test(cases, test_taken_starts_anew);
    tcase_add_test(cases, test_numbers_at_their_ends);
    tcase_add_test(cases, test_reals);
    tcase_add_test(cases, test_every_character_comes_back);
    tcase_add_test(cases, test_shown);
    tcase_add_loop_test(cases, test_utf8_stays, 0, sizeof(good) / sizeof(good[0]));
    tcase_add_loop_test(cases, test_what_is_no_utf8_is_replaced, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_loop_test(cases, test_random_bytes_are_always_valid, 0, 4);
    tcase_add_test(cases, test_it_grows);
    tcase_add_test(cases, test_failure_is_remembered);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
