/* A process opens as many groups as its arena has room for, and has a collective under way in each
 * at once. */
#include <stdlib.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define MANY 250          /* a ring of the least size has room for 200 */
#define ARENA (72u << 20) /* and this arena for the slots of so many, and few more */

static shoal_job *open_second(struct library_rank *self)
{
    struct shoal_options options = library_options(self->of->cluster, 0, "groups", self->of->size);
    shoal_job *job = NULL;
    options.rank_plus_1 = self->rank + 1;
    options.arena_bytes = ARENA;
    GOOD(shoal_open(&options, &job));
    return job;
}

/* The ranks begin in different orders, with data that is copied: each group needs its own slot. */
static void many_run(struct library_rank *self)
{
    enum { COUNT = 3000 };
    const int members[] = {0, 1};
    shoal_job *job = open_second(self);
    shoal_group **groups = calloc(MANY, sizeof(shoal_group *)), *another = NULL;
    shoal_request **requests = calloc(MANY, sizeof(shoal_request *));
    int32_t(*data)[COUNT] = calloc(MANY, sizeof(*data));
    for (int i = 0; i < MANY; i++)
        GOOD(shoal_group_open(job, members, 2, -1, &groups[i]));
    for (int i = 0; i < MANY; i++) {
        int at = self->rank == 0 ? i : MANY - 1 - i;
        for (int k = 0; k < COUNT; k++)
            data[at][k] = at + k * (1 + self->rank);
        GOOD(shoal_all_reduce(groups[at], data[at], data[at], COUNT, SHOAL_I32, SHOAL_SUM,
                              &requests[at]));
    }
    for (int i = 0; i < MANY; i++) {
        GOOD(shoal_wait(requests[i], -1));
        for (int k = 0; k < COUNT; k++)
            ck_assert_int_eq(data[i][k], 2 * i + 3 * k);
    }
    int code = SHOAL_OK, more = 0;
    for (; code == SHOAL_OK && more < 1000; more++)
        code = shoal_group_open(job, members, 2, -1, &another);
    ck_assert_int_lt(more, 100);
    BAD(code, SHOAL_EMEMORY, "SHOAL_ARENA_BYTES");
    GOOD(shoal_barrier(shoal_world(job), NULL));
    GOOD(shoal_close(job));
    free(groups);
    free(requests);
    free(data);
}

START_TEST(many_groups_at_once)
{
    library_cluster_run(1, NULL, 2, many_run, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_groups");
    TCase *groups = tcase_create("groups");
    tcase_set_timeout(groups, 300);
    tcase_add_test(groups, many_groups_at_once);
    suite_add_tcase(suite, groups);
    return suite_main(suite);
}
