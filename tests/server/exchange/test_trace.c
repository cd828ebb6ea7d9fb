/* The records of a trace: how many there are, what is kept of them, names. */
#include <check.h>
#include <string.h>

#include "server/commands/trace.h"
#include "tests/lib/suite.h"

static struct trace *make(uint32_t capacity, uint64_t began_ns)
{
    struct trace *trace = trace_create(7, 0xabc, capacity);
    ck_assert_ptr_nonnull(trace);
    trace->began_ns = began_ns;
    return trace;
}

static void add(struct trace *trace, uint64_t begin_ns, uint64_t end_ns, uint32_t chunk)
{
    trace_add(trace,
              &(struct trace_record){.begin_ns = begin_ns, .end_ns = end_ns, .chunk = chunk});
}

START_TEST(a_new_trace_is_empty)
{
    struct trace *trace = make(4, 0);
    ck_assert_uint_eq(trace->number, 7);
    ck_assert_uint_eq(trace->job, 0xabc);
    ck_assert_uint_eq(trace->count, 0);
    ck_assert_uint_eq(trace->capacity, 4);
    ck_assert_uint_eq(trace->dropped, 0);
    trace_free(trace);
    trace_free(NULL);
}
END_TEST

START_TEST(records_are_kept_in_order)
{
    struct trace *trace = make(4, 100);
    add(trace, 100, 110, 1);
    add(trace, 105, 105, 2);
    ck_assert_uint_eq(trace->count, 2);
    ck_assert_uint_eq(trace->records[0].chunk, 1);
    ck_assert_uint_eq(trace->records[1].chunk, 2);
    ck_assert_uint_eq(trace->records[1].flags, 0);
    trace_free(trace);
}
END_TEST

START_TEST(records_without_room_are_counted)
{
    struct trace *trace = make(3, 100);
    for (uint32_t i = 0; i < 10; i++)
        add(trace, 100 + i, 200 + i, i);
    ck_assert_uint_eq(trace->count, 3);
    ck_assert_uint_eq(trace->dropped, 7);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(trace->records[i].chunk, i);
    trace_free(trace);
}
END_TEST

START_TEST(what_began_before_is_cut)
{
    struct trace *trace = make(4, 100);
    add(trace, 0, 150, 1);
    add(trace, 99, 100, 2);
    add(trace, 100, 100, 3);
    ck_assert_uint_eq(trace->records[0].begin_ns, 100);
    ck_assert_uint_eq(trace->records[0].end_ns, 150);
    ck_assert_uint_eq(trace->records[0].flags, TRACE_FLAG_CUT);
    ck_assert_uint_eq(trace->records[1].flags, TRACE_FLAG_CUT);
    ck_assert_uint_eq(trace->records[1].begin_ns, 100);
    ck_assert_uint_eq(trace->records[2].flags, 0);
    trace_free(trace);
}
END_TEST

START_TEST(what_ended_before_is_nothing)
{
    struct trace *trace = make(1, 100);
    add(trace, 10, 99, 1);
    ck_assert_uint_eq(trace->count, 0);
    add(trace, 100, 101, 2);
    add(trace, 10, 99, 3); /* nor is it one that there was no room for */
    ck_assert_uint_eq(trace->count, 1);
    ck_assert_uint_eq(trace->dropped, 0);
    trace_free(trace);
}
END_TEST

START_TEST(times_of_others_are_looked_at)
{
    ck_assert(trace_times_valid(5, 5, 5));
    ck_assert(trace_times_valid(1, 2, 3));
    ck_assert(!trace_times_valid(2, 1, 3));
    ck_assert(!trace_times_valid(1, 4, 3));
    ck_assert(!trace_times_valid(UINT64_MAX, UINT64_MAX, 3));
    ck_assert(!trace_times_valid(UINT64_MAX, 0, 3));
}
END_TEST

START_TEST(every_stage_and_end_has_a_name_of_its_own)
{
    for (unsigned i = 0; i < TRACE_STAGES; i++) {
        ck_assert_ptr_nonnull(trace_stage_name((enum trace_stage)i));
        for (unsigned j = 0; j < i; j++)
            ck_assert_str_ne(trace_stage_name((enum trace_stage)i),
                             trace_stage_name((enum trace_stage)j));
    }
    ck_assert_str_eq(trace_stage_name(TRACE_OWNER_SUM), "owner's sum");
    ck_assert_str_eq(trace_end_name(TRACE_END_ASKED), "time");
    ck_assert_str_eq(trace_end_name(TRACE_END_JOB_FAILED), "job failed");
    ck_assert_str_eq(trace_end_name(TRACE_END_JOB_CLOSED), "job closed");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace");
    TCase *tests = tcase_create("trace");
    tcase_add_test(tests, a_new_trace_is_empty);
    tcase_add_test(tests, records_are_kept_in_order);
    tcase_add_test(tests, records_without_room_are_counted);
    tcase_add_test(tests, what_began_before_is_cut);
    tcase_add_test(tests, what_ended_before_is_nothing);
    tcase_add_test(tests, times_of_others_are_looked_at);
    tcase_add_test(tests, every_stage_and_end_has_a_name_of_its_own);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
