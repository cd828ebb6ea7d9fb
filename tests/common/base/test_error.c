#include "common/base/error.h"

#include <errno.h>
#include <string.h>

#include "tests/lib/suite.h"

START_TEST(every_code_has_a_name_of_its_own)
{
    for (int code = ERR_OK; code >= ERR_CONFIG; code--) {
        ck_assert_str_ne(error_name(code), "unknown error");
        ck_assert_uint_gt(strlen(error_name(code)), 0);
        for (int other = code + 1; other <= ERR_OK; other++)
            ck_assert_str_ne(error_name(code), error_name(other));
    }
    ck_assert_str_eq(error_name(ERR_OK), "success");
    ck_assert_str_eq(error_name(ERR_LOST), "rank lost");
    ck_assert_str_eq(error_name(ERR_CONFIG), "configuration error");
}
END_TEST

START_TEST(numbers_that_are_no_codes_have_a_name_too)
{
    const int codes[] = {1, ERR_CONFIG - 1, 1000, -1000, 2147483647, -2147483647};
    for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        ck_assert_str_eq(error_name(codes[i]), "unknown error");
}
END_TEST

START_TEST(codes_that_say_what_went_wrong_are_known)
{
    for (int code = -1000; code <= 1000; code++)
        ck_assert_int_eq(error_is_known(code), code >= ERR_CONFIG && code < ERR_OK);
    ck_assert(!error_is_known(2147483647) && !error_is_known(-2147483647 - 1));
}
END_TEST

START_TEST(setting_fills_code_and_text_and_returns_the_code)
{
    struct error error = {0};
    ck_assert_int_eq(error_set(&error, ERR_INVALID, "rank %d of %s", 7, "job"), ERR_INVALID);
    ck_assert_int_eq(error.code, ERR_INVALID);
    ck_assert_str_eq(error.text, "rank 7 of job");
    ck_assert_int_eq(error_set(&error, ERR_STATE, "new"), ERR_STATE);
    ck_assert_int_eq(error.code, ERR_STATE);
    ck_assert_str_eq(error.text, "new");
}
END_TEST

START_TEST(nobody_needs_to_want_the_text)
{
    ck_assert_int_eq(error_set(NULL, ERR_MEMORY, "%d", 1), ERR_MEMORY);
    ck_assert_int_eq(error_set_errno(NULL, ENOENT, "%d", 1), ERR_SYSTEM);
    error_prefix(NULL, "%d", 1);
}
END_TEST

START_TEST(a_system_error_has_the_systems_words)
{
    struct error error = {0};
    ck_assert_int_eq(error_set_errno(&error, ENOENT, "cannot open %s", "x.json"), ERR_SYSTEM);
    ck_assert_int_eq(error.code, ERR_SYSTEM);
    char expected[128] = "cannot open x.json: ";
    strcat(expected, strerror(ENOENT));
    ck_assert_str_eq(error.text, expected);
}
END_TEST

/* Whoever chose a name, or the words of another error, does nothing to the terminal. */
START_TEST(words_of_others_are_shown)
{
    struct error error = {0};
    error_set(&error, ERR_LOST, "job '%s'", "\x1b[2J\n");
    ck_assert_str_eq(error.text, "job '\\u001b[2J\\u000a'");
    error_prefix(&error, "node %s",
                 "\xe2\x80\xae"
                 "a\x7f");
    ck_assert_str_eq(error.text, "node \\u202ea\\u007f: job '\\u001b[2J\\u000a'");
    error_set_errno(&error, ENOENT,
                    "\xc2\x9b"
                    "2J");
    ck_assert_ptr_eq(strstr(error.text, "\\u009b2J: "), error.text);
}
END_TEST

START_TEST(a_prefix_keeps_the_code)
{
    struct error error;
    error_set(&error, ERR_REFUSED, "draining");
    error_prefix(&error, "node %s", "b");
    error_prefix(&error, "job '%s'", "train");
    ck_assert_int_eq(error.code, ERR_REFUSED);
    ck_assert_str_eq(error.text, "job 'train': node b: draining");
}
END_TEST

/* A text that is too long is cut, at every length around the limit, and always ends. */
START_TEST(long_texts_are_cut)
{
    char words[2 * ERROR_TEXT_BYTES];
    for (size_t length = ERROR_TEXT_BYTES - 4; length < ERROR_TEXT_BYTES + 4; length++) {
        memset(words, 'x', length);
        words[length] = '\0';
        struct {
            struct error error;
            char guard[8];
        } it;
        memset(&it, 'g', sizeof(it));
        error_set(&it.error, ERR_PROTOCOL, "%s", words);
        size_t expected = length < ERROR_TEXT_BYTES ? length : ERROR_TEXT_BYTES - 1;
        ck_assert_uint_eq(strlen(it.error.text), expected);

        error_prefix(&it.error, "prefix");
        ck_assert_uint_eq(strlen(it.error.text), ERROR_TEXT_BYTES - 1);
        ck_assert_int_eq(strncmp(it.error.text, "prefix: xxx", 11), 0);

        error_prefix(&it.error, "%s", words);
        ck_assert_uint_eq(strlen(it.error.text), ERROR_TEXT_BYTES - 1);

        error_set_errno(&it.error, EPERM, "%s", words);
        ck_assert_uint_eq(strlen(it.error.text), ERROR_TEXT_BYTES - 1);
        ck_assert_int_eq(it.error.code, ERR_SYSTEM);
        ck_assert_mem_eq(it.guard, "gggggggg", 8);
    }
}
END_TEST

START_TEST(set_with_arguments_already_taken)
{
    struct error error;
    error_set(&error, ERR_INVALID, "%s%c%d%%", "a", 'b', -3);
    ck_assert_str_eq(error.text, "ab-3%");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("error");
    TCase *tests = tcase_create("error");
    tcase_add_test(tests, every_code_has_a_name_of_its_own);
    tcase_add_test(tests, numbers_that_are_no_codes_have_a_name_too);
    tcase_add_test(tests, codes_that_say_what_went_wrong_are_known);
    tcase_add_test(tests, setting_fills_code_and_text_and_returns_the_code);
    tcase_add_test(tests, nobody_needs_to_want_the_text);
    tcase_add_test(tests, a_system_error_has_the_systems_words);
    tcase_add_test(tests, a_prefix_keeps_the_code);
    tcase_add_test(tests, words_of_others_are_shown);
    tcase_add_test(tests, long_texts_are_cut);
    tcase_add_test(tests, set_with_arguments_already_taken);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
