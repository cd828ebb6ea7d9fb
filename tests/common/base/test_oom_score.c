/* A process's own place in the order of the kernel's killer. Each test is a process of its own, so
 * that what is written here lasts no longer. */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/oom_score.h"
#include "tests/lib/suite.h"

static int score(void)
{
    struct error error = {0};
    int read = -1;
    ck_assert_msg(oom_score_read(&read, &error) == 0, "%s", error.text);
    return read;
}

static void writes(int wanted)
{
    struct error error = {0};
    ck_assert_msg(oom_score_write(wanted, &error) == 0, "%s", error.text);
    ck_assert_int_eq(score(), wanted);
}

/* Anybody may. */
START_TEST(test_raised)
{
    int own = score();
    ck_assert_int_ge(own, -1000);
    ck_assert_int_le(own, 1000);
    writes(own);
    if (own < OOM_SCORE_RANK)
        writes(OOM_SCORE_RANK);
    writes(1000);
}
END_TEST

START_TEST(test_what_cannot_be)
{
    struct error error = {0};
    int own = score();
    ck_assert_int_eq(oom_score_write(1001, &error), ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, "/proc/self/oom_score_adj"));
    ck_assert_int_eq(oom_score_write(-1001, &error), ERR_SYSTEM);
    ck_assert_int_eq(score(), own);
    ck_assert_int_eq(oom_score_write(1001, NULL), ERR_SYSTEM);
}
END_TEST

/* Without the right the score stays. */
START_TEST(test_lowered)
{
    struct error error = {0};
    writes(1000);
    if (oom_score_write(OOM_SCORE_LAST, &error) < 0) {
        ck_assert_ptr_nonnull(strstr(error.text, strerror(EACCES)));
        ck_assert_int_eq(score(), 1000);
    } else {
        ck_assert_int_eq(score(), OOM_SCORE_LAST);
    }
}
END_TEST

START_TEST(test_inherited)
{
    int status;
    writes(1000);
    pid_t child = fork();
    if (child == 0) {
        int read;
        _exit(oom_score_read(&read, NULL) == 0 && read == 1000 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oom_score");
    TCase *cases = tcase_create("oom_score");
    tcase_add_test(cases, test_raised);
    tcase_add_test(cases, test_what_cannot_be);
    tcase_add_test(cases, test_lowered);
    tcase_add_test(cases, test_inherited);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
