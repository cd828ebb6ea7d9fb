/* Where a rank runs, and when it goes elsewhere. Of the cores only what ranks have said counts. */
#include "worker/drive/drive_core.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/meeting_table.h"

#define TRIES 1000

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

START_TEST(test_own_core)
{
    struct table table;
    struct shoal_job job = {.cores = 3, .local_size = 3};
    table_set(&table);
    say(&table, 0, 1, 1);
    ck_assert(drive_core_is_own(&job, &table.at[0], 0));
    ck_assert(!drive_core_is_own(&job, &table.at[1], 1));
    ck_assert(!drive_core_is_own(&job, &table.at[0], 1)); /* where it is now counts */
    ck_assert(drive_core_is_own(&job, &table.at[1], -1));
    job.cores = 2;
    ck_assert(!drive_core_is_own(&job, &table.at[0], 0));
    free(table.memory);
}
END_TEST

/* The last of those on a core looks for another, once; and not again at once. */
START_TEST(test_who_leaves)
{
    struct table table;
    struct shoal_job job = {.cores = 3, .local_size = 3}, alone = {.cores = 1, .local_size = 3};
    table_set(&table);
    say(&table, 5, 1, 5);
    ck_assert(!drive_core_is_left(&job, &table.at[0], 5));
    ck_assert(!drive_core_is_left(&job, &table.at[1], 1));
    ck_assert(!drive_core_is_left(&job, &table.at[2], -1));
    ck_assert(!drive_core_is_left(&alone, &table.at[2], 5));
    ck_assert(drive_core_is_left(&job, &table.at[2], 5));
    ck_assert_uint_eq(job.look_after_ms, 1);
    job.look_ns += UINT64_C(3600) * NS_PER_S; /* however slow this machine is */
    ck_assert(!drive_core_is_left(&job, &table.at[2], 5));
    /* Each time it waits for longer, up to a limit, and begins anew when it has not looked for long
     * (which it may seem to have been here). */
    for (unsigned i = 0; i < TRIES && job.look_after_ms < 64; i++) {
        uint64_t before_ms = job.look_after_ms;
        job.look_ns = clock_now_ns();
        ck_assert(drive_core_is_left(&job, &table.at[2], 5));
        ck_assert(job.look_after_ms == 2 * before_ms || job.look_after_ms == 1);
    }
    ck_assert_uint_eq(job.look_after_ms, 64);
    job.look_ns = clock_now_ns();
    ck_assert(drive_core_is_left(&job, &table.at[2], 5));
    ck_assert_uint_le(job.look_after_ms, 64);
    job.look_ns = 1;
    ck_assert(drive_core_is_left(&job, &table.at[2], 5));
    ck_assert_uint_eq(job.look_after_ms, 1);
    free(table.memory);
}
END_TEST

START_TEST(test_better_core)
{
    struct table table;
    cpu_set_t may;
    table_set(&table);
    say(&table, 0, 0, 0);
    cores_are(&may, (int[]){0, 1}, 2);
    ck_assert_int_eq(drive_core_better(&table.at[2], 0, &may), 1);
    say(&table, 0, 1, 0); /* one beside this rank here, one there */
    ck_assert_int_eq(drive_core_better(&table.at[2], 0, &may), -1);
    cores_are(&may, (int[]){0, 1, 7}, 3);
    ck_assert_int_eq(drive_core_better(&table.at[2], 0, &may), 7);
    cores_are(&may, (int[]){0}, 1); /* it may not leave */
    say(&table, 0, 0, 0);
    ck_assert_int_eq(drive_core_better(&table.at[2], 0, &may), -1);
    say(&table, 0, 1, 2); /* it has its own */
    cores_are(&may, (int[]){0, 1, 2, 3}, 4);
    ck_assert_int_eq(drive_core_better(&table.at[2], 2, &may), -1);
    free(table.memory);
}
END_TEST

/* It runs elsewhere then, and may run wherever it might. */
START_TEST(test_leaves)
{
    struct table table;
    cpu_set_t before, after;
    bool moved = false;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    table_set(&table);
    for (unsigned i = 0; i < TRIES && !moved; i++) {
        int core = drive_core_now(), now;
        ck_assert_int_ge(core, 0);
        say(&table, (uint32_t)core, (uint32_t)core, (uint32_t)core);
        drive_core_leave(&table.at[2], core);
        now = drive_core_now(); /* the system may have moved it since */
        moved = now != core;
        ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
        ck_assert(CPU_EQUAL(&before, &after));
        drive_core_say(&table.at[2]);
        ck_assert_int_ge(meeting_core_of(&table.at[2], 2), 0);
    }
    ck_assert(moved || CPU_COUNT(&before) == 1);
    free(table.memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("drive_core");
    TCase *core = tcase_create("core");
    tcase_add_test(core, test_own_core);
    tcase_add_test(core, test_who_leaves);
    tcase_add_test(core, test_better_core);
    tcase_add_test(core, test_leaves);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
