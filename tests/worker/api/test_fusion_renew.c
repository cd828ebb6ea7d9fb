/* Fusion buffers of a job that becomes the next generation: what is left to them by others. Steps
 * on both sides of it are in tests/python/test_generations.py. */
#include "worker/api/fusion_handle.h"

#include <utlist.h>

#include "tests/lib/suite.h"

#define MIB (UINT64_C(1) << 20)

/* Freed while requests of it were under way: it goes with the job, and its group has gone before.
 */
START_TEST(what_has_been_freed_is_left_alone)
{
    struct shoal_group world = {.fusions_made = 3};
    struct shoal_job job = {.groups = &world};
    struct shoal_fusion freed = {.group = NULL, .freed = true};
    pthread_mutex_init(&freed.lock, NULL);
    DL_APPEND(job.fusions, &freed);
    struct error error;
    ck_assert_int_eq(fusion_check_all(&job, &error), 0);
    fusion_renew_all(&job);
    ck_assert_uint_eq(world.fusions_made, 0); /* as on a newcomer */
    pthread_mutex_destroy(&freed.lock);
}
END_TEST

/* The threshold is what a newcomer works out, who sees the servers that are left; a threshold that
 * the caller gave stays. */
START_TEST(the_threshold_follows_the_servers)
{
    struct shoal_group group = {.core.rule = {.servers = 8, .chunk_bytes = 4 * MIB}};
    struct shoal_fusion fusion = {.group = &group};
    fusion_find_threshold(&fusion);
    ck_assert_uint_eq(fusion.threshold_bytes, 32 * MIB);
    group.core.rule.servers = 7;
    fusion_find_threshold(&fusion);
    ck_assert_uint_eq(fusion.threshold_bytes, 28 * MIB);
    fusion.threshold_given = true;
    group.core.rule.servers = 8;
    fusion_find_threshold(&fusion);
    ck_assert_uint_eq(fusion.threshold_bytes, 28 * MIB);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fusion_renew");
    TCase *cases = tcase_create("fusion_renew");
    tcase_add_test(cases, what_has_been_freed_is_left_alone);
    tcase_add_test(cases, the_threshold_follows_the_servers);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
