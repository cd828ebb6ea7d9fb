/* munge's programs, of which stand-ins in PATH fail in the ways of the real ones. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"
#include "worker/programs/step/munge.h"

static char *directory;

static void write_program(const char *name, const char *text)
{
    char file[PATH_MAX];
    snprintf(file, sizeof(file), "%s/%s", directory, name);
    FILE *out = fopen(file, "w");
    ck_assert_ptr_nonnull(out);
    fprintf(out, "#!/bin/sh\n%s\n", text);
    fclose(out);
    ck_assert_int_eq(chmod(file, 0755), 0);
}

static void setup(void)
{
    char path[PATH_MAX];
    directory = suite_make_directory();
    snprintf(path, sizeof(path), "%s:/usr/bin:/bin", directory);
    ck_assert_int_eq(setenv("PATH", path, 1), 0);
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static uint64_t after_ms(uint64_t milliseconds)
{
    return clock_now_ns() + milliseconds * NS_PER_MS;
}

START_TEST(test_both_ways)
{
    struct error error;
    char *sealed = NULL, *text = NULL;
    write_program("munge", "cat");
    write_program("unmunge", "printf 'UID: %s\\n\\n' $(id -u); cat");
    ck_assert_msg(munge_seal("a b", after_ms(60000), &sealed, &error) == 0, "%s", error.text);
    ck_assert_str_eq(sealed, "a b");
    ck_assert_msg(munge_open(sealed, after_ms(60000), &text, &error) == 0, "%s", error.text);
    ck_assert_str_eq(text, "a b");
    free(sealed);
    free(text);
    write_program("unmunge", "echo 'unmunge: Error: Replayed credential' >&2; exit 17");
    ck_assert_int_eq(munge_open("x", after_ms(60000), &text, &error), ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(error.text, "Replayed credential"));
}
END_TEST

/* Where its daemon is stuck, the program waits for it as long as it likes. */
START_TEST(test_stuck)
{
    struct error error;
    char *sealed = NULL;
    write_program("munge", "exec sleep 1000");
    ck_assert_int_eq(munge_seal("x", after_ms(100), &sealed, &error), ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(error.text, "munge has not ended in time"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("munge");
    TCase *tests = tcase_create("munge");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_both_ways);
    tcase_add_test(tests, test_stuck);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
