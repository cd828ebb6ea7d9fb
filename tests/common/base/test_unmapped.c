/* The number that identifies nobody, in maps of user namespaces and in a namespace of its own. */
#include "common/base/unmapped.h"

#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/suite.h"

static const struct {
    const char *map, *overflow;
    bool any;
    uint32_t uid;
} cases[] = {
    {"         0          0 4294967295\n", "65534\n", false, 65534}, /* the first namespace */
    {"         0       1000          1\n", "65534\n", true, 65534},  /* unshare -r */
    {"0 1000 1\n1 100000 65536\n", "65534\n", true, 65534}, /* rootless: its own 65534 is there */
    {"0 0 65536\n65536 65536 4294901759\n", "65534", false, 65534}, /* all, in two pieces */
    {"0 0 4294967294\n", "65533\n", true, 65533},                   /* one is missing */
    {"", "65534\n", true, 65534},                                   /* not mapped yet */
    {"nonsense", "", true, 65534},
    {"0 0 99999999999999999999", "x", true, 65534},
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

START_TEST(test_maps)
{
    struct unmapped unmapped;
    unmapped_parse(&unmapped, cases[_i].map, cases[_i].overflow);
    ck_assert_int_eq(unmapped.any, cases[_i].any);
    ck_assert_uint_eq(unmapped.uid, cases[_i].uid);
}
END_TEST

enum { RIGHT, WRONG, NO_NAMESPACE };

static int look_inside(void)
{
    struct unmapped unmapped;
    if (unshare(CLONE_NEWUSER) != 0)
        return NO_NAMESPACE;
    unmapped_read(&unmapped);
    return unmapped.any && unmapped.uid == geteuid() ? RIGHT : WRONG;
}

/* A process that has just made a namespace has no number there. */
START_TEST(test_own_namespace)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(look_inside());
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_NAMESPACE)
        suite_skip("test_own_namespace", "this kernel gives no user namespaces");
    else
        ck_assert_int_eq(WEXITSTATUS(status), RIGHT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unmapped");
    TCase *tests = tcase_create("unmapped");
    tcase_add_loop_test(tests, test_maps, 0, CASES);
    tcase_add_test(tests, test_own_namespace);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
