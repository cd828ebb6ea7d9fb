/* Where a rank runs, and when it goes elsewhere. Only the cores count that ranks have said. */
#include "worker/drive/drive_core.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/meeting_table.h"

#define TRIES 100

static void say(struct table *table, uint32_t a, uint32_t b, uint32_t c)
{
    meeting_say_core(&table->at[0], a);
    meeting_say_core(&table->at[1], b);
    meeting_say_core(&table->at[2], c);
}

static void cores_are(cpu_set_t *may, const int *cores, size_t count)
{
    CPU_ZERO(may);
    for (size_t i = 0; i < count; i++)
        CPU_SET((size_t)cores[i], may);
}

/* The last of those on a core, when it has been there for some time. */
START_TEST(test_who_leaves)
{
    struct table table;
    struct shoal_job job = {.cores = 3}, alone = {.cores = 1};
    table_set(&table);
    say(&table, 5, 1, 5);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert(!drive_core_is_left(&job, &table.at[0], 5));
        ck_assert(!drive_core_is_left(&job, &table.at[1], 1));
        ck_assert(!drive_core_is_left(&job, &table.at[2], -1));
        ck_assert(!drive_core_is_left(&alone, &table.at[2], 5));
        ck_assert_uint_eq(job.shared_ns, 0);
        ck_assert(!drive_core_is_left(&job, &table.at[2], 5));
        ck_assert_uint_gt(job.shared_ns, 0);
        job.shared_ns += UINT64_C(3600) * NS_PER_S; /* however slow this machine is */
        ck_assert(!drive_core_is_left(&job, &table.at[2], 5));
        job.shared_ns = 1;
        ck_assert(drive_core_is_left(&job, &table.at[2], 5));
        ck_assert_uint_gt(job.shared_ns, 1);
    }
    free(table.memory);
}
END_TEST

/* Each time it waits for longer, up to a limit, and when it has not looked for long (which it may
 * seem to have been here) as at first. */
START_TEST(test_how_often)
{
    struct table table;
    struct shoal_job job = {.cores = 3};
    table_set(&table);
    say(&table, 5, 1, 5);
    ck_assert(!drive_core_is_left(&job, &table.at[2], 5));
    ck_assert_uint_eq(job.look_after_ms, 1);
    for (unsigned i = 0; i < TRIES && job.look_after_ms < 64; i++) {
        uint64_t before_ms = job.look_after_ms;
        job.shared_ns = 1;
        ck_assert(drive_core_is_left(&job, &table.at[2], 5));
        ck_assert(job.look_after_ms == 2 * before_ms || job.look_after_ms == 2);
    }
    ck_assert_uint_eq(job.look_after_ms, 64);
    job.shared_ns = 1;
    ck_assert(drive_core_is_left(&job, &table.at[2], 5));
    ck_assert(job.look_after_ms == 64 || job.look_after_ms == 2);
    job.looked_ns = job.shared_ns = 1;
    ck_assert(drive_core_is_left(&job, &table.at[2], 5));
    ck_assert_uint_eq(job.look_after_ms, 2);
    free(table.memory);
}
END_TEST

/* Check which cores rank 2 finds better than core 0, when it may run on `may`. */
static void check_better(const struct table *table, const int *may, size_t count, const int *wanted,
                         size_t wanted_count)
{
    cpu_set_t allowed, better, right;
    cores_are(&allowed, may, count);
    cores_are(&right, wanted, wanted_count);
    ck_assert_int_eq(drive_core_better(&table->at[2], 0, &allowed, &better), wanted_count > 0);
    ck_assert(CPU_EQUAL(&better, &right));
}

START_TEST(test_better_core)
{
    struct table table;
    static const int cores[] = {0, 1, 7};
    table_set(&table);
    say(&table, 0, 0, 0);
    check_better(&table, cores, 3, &cores[1], 2);
    check_better(&table, cores, 1, NULL, 0); /* it may not leave */
    say(&table, 0, 1, 0);                    /* one beside this rank here, and one there */
    check_better(&table, cores, 2, NULL, 0);
    check_better(&table, cores, 3, &cores[2], 1);
    say(&table, 1, 1, 0); /* it has its own */
    check_better(&table, cores, 3, NULL, 0);
    free(table.memory);
}
END_TEST

/* A rank that leaves a core runs elsewhere then, and may run wherever it might before. */
START_TEST(test_leaves)
{
    struct table table;
    cpu_set_t before, after;
    unsigned moved = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    table_set(&table);
    for (unsigned i = 0; i < TRIES; i++) {
        int core = drive_core_now();
        ck_assert_int_ge(core, 0);
        say(&table, (uint32_t)core, (uint32_t)core, (uint32_t)core);
        drive_core_leave(&table.at[2], core);
        moved += drive_core_now() != core; /* unless the system has moved it again by now */
        ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
        ck_assert(CPU_EQUAL(&before, &after));
        drive_core_say(&table.at[2]);
        ck_assert_int_ge(meeting_core_of(&table.at[2], 2), 0);
    }
    ck_assert(moved > TRIES / 2 || CPU_COUNT(&before) == 1);
    free(table.memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("drive_core");
    TCase *core = tcase_create("core");
    tcase_add_test(core, test_who_leaves);
    tcase_add_test(core, test_how_often);
    tcase_add_test(core, test_better_core);
    tcase_add_test(core, test_leaves);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
