/* Shared memory that a collective may still be about. */
#include "worker/job/shared.h"

#include <check.h>
#include <utlist.h>

#include "tests/lib/suite.h"
#include "worker/job/job.h"

static struct shoal_group group;
static struct request request;

static void setup(void)
{
    group = (struct shoal_group){0};
    request = (struct request){.ask = {.shared = true, .segment = 3}};
}

static void check_in_use(void)
{
    ck_assert(shared_in_use(&(struct shared_memory){.group = &group, .number = 3}));
    ck_assert(!shared_in_use(&(struct shared_memory){.group = &group, .number = 2}));
    request.ask.shared = false; /* then the number is nothing */
    ck_assert(!shared_in_use(&(struct shared_memory){.group = &group, .number = 3}));
}

START_TEST(test_under_way)
{
    struct request *first = &request;
    DL_APPEND(group.core.requests, first);
    check_in_use();
}
END_TEST

/* In a job with recovery: it has its result, and is told when it is stable. */
START_TEST(test_not_told)
{
    struct request other = {0}, *first = &other, *last = &request;
    DL_APPEND2(group.core.kept, first, kept_prev, kept_next);
    DL_APPEND2(group.core.kept, last, kept_prev, kept_next);
    check_in_use();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shared");
    TCase *tcase = tcase_create("shared");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, test_under_way);
    tcase_add_test(tcase, test_not_told);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
