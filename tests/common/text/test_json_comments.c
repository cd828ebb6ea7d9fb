#include "common/text/json_comments.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

static void expect(const char *text, const char *bare)
{
    char *made = json_without_comments(text, strlen(text));
    ck_assert_ptr_nonnull(made);
    ck_assert_msg(strcmp(made, bare) == 0, "%s: %s", text, made);
    free(made);
}

START_TEST(test_lines)
{
    expect("", "");
    expect("//", "  ");
    expect("//\n", "  \n");
    expect("{}\n// a\n", "{}\n    \n");
    expect("// a\n{}", "    \n{}");
    expect(" \t// \"a\": 1,\r\n {}", " \t           \n {}");
    expect("\n\n//\n\n//", "\n\n  \n\n  ");
}
END_TEST

/* Whatever stands behind something else is no comment, nor is half of one. */
START_TEST(test_others_stay)
{
    static const char *const texts[] = {"{} // a", "\"a//b\"", "\"//\"", "/",
                                        "/\n/",    "/ /",      "1 //\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        expect(texts[i], texts[i]);
}
END_TEST

/* Text need not end with a NUL, and may hold some. */
START_TEST(test_bytes)
{
    static const char text[] = {'/', '/', 'a', '\n', '\0', '/', '/', '\n', '/', '/'};
    char *made = json_without_comments(text, sizeof(text) - 1);
    ck_assert_int_eq(memcmp(made, "   \n\0//\n/", sizeof(text)), 0);
    free(made);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_comments");
    TCase *cases = tcase_create("json_comments");
    tcase_add_test(cases, test_lines);
    tcase_add_test(cases, test_others_stay);
    tcase_add_test(cases, test_bytes);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
