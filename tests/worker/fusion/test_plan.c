#include "worker/fusion/plan.h"

#include "common/base/error.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

static void check_plan(const struct plan *plan, const struct plan_parameter *parameters,
                       const uint32_t *order, uint64_t threshold, uint64_t first)
{
    uint32_t *place = calloc(plan->parameter_count + 1, sizeof(*place));
    uint8_t *seen = calloc(plan->parameter_count + 1, 1);
    for (uint32_t i = 0; i < plan->parameter_count; i++)
        place[order[i]] = i;
    ck_assert(plan_order_valid(plan->members, plan->parameter_count, seen));
    uint64_t end = 0;
    uint32_t member = 0;
    int unfinished[DTYPE_COUNT] = {0};
    uint32_t priorities = 0;
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        ck_assert_uint_eq(buffer->offset, end);
        ck_assert_uint_eq(buffer->first_member, member);
        ck_assert_uint_gt(buffer->member_count, 0);
        uint64_t bytes = 0, before_last = 0;
        for (uint32_t j = 0; j < buffer->member_count; j++) {
            uint32_t index = plan->members[member + j];
            ck_assert_uint_eq(parameters[index].dtype, buffer->dtype);
            ck_assert_uint_eq(plan->buffer_of[index], i);
            ck_assert_uint_eq(plan->offset_of[index], end + bytes);
            ck_assert_uint_eq(plan->offset_of[index] % PLAN_ALIGNMENT, 0);
            if (j > 0)
                ck_assert_uint_gt(place[index], place[plan->members[member + j - 1]]);
            before_last = bytes;
            uint64_t size = parameters[index].count * dtype_bytes(parameters[index].dtype);
            bytes += (size + 63) / 64 * 64;
        }
        ck_assert_uint_eq(buffer->bytes, bytes);
        uint64_t least = threshold < first ? threshold : first;
        if (bytes < least) /* only the last of its type */
            ck_assert_int_eq(unfinished[buffer->dtype]++, 0);
        ck_assert(buffer->member_count == 1 ||
                  before_last < (threshold > first ? threshold : first));
        if (i > 0) { /* sent in the order of their last gradients */
            const struct plan_buffer *previous = buffer - 1;
            ck_assert_uint_gt(
                place[plan->members[member + buffer->member_count - 1]],
                place[plan->members[previous->first_member + previous->member_count - 1]]);
        }
        member += buffer->member_count;
        end += bytes;
        priorities += buffer->priority;
        ck_assert_uint_lt(buffer->priority, plan->buffer_count);
    }
    ck_assert_uint_eq(member, plan->parameter_count);
    ck_assert_uint_eq(end, plan->total_bytes);
    if (plan->buffer_count > 0)
        ck_assert_uint_eq(priorities, plan->buffer_count * (plan->buffer_count - 1) / 2);
    if (plan->parameter_count > 0)
        ck_assert_uint_eq(plan->buffers[plan->buffer_of[0]].priority, 0);
    free(place);
    free(seen);
}

START_TEST(test_a_small_network)
{
    /* Reverse order, threshold 1024, first 256. */
    const struct plan_parameter parameters[] = {
        {64, DTYPE_F32}, {16, DTYPE_F32}, {128, DTYPE_F32}, {16, DTYPE_F32}, {64, DTYPE_F32}};
    const uint32_t order[] = {4, 3, 2, 1, 0};
    struct plan plan;
    ck_assert_int_eq(plan_make(&plan, parameters, 5, order, 1024, 256), 0);
    check_plan(&plan, parameters, order, 1024, 256);
    ck_assert_uint_eq(plan.buffer_count, 2);
    ck_assert_uint_eq(plan.buffers[0].member_count, 1);
    ck_assert_uint_eq(plan.buffers[0].bytes, 256);
    ck_assert_uint_eq(plan.buffers[0].priority, 1);
    ck_assert_uint_eq(plan.buffers[1].member_count, 4);
    ck_assert_uint_eq(plan.buffers[1].priority, 0);
    ck_assert_uint_eq(plan.offset_of[3], 256);
    plan_clear(&plan);
}
END_TEST

START_TEST(test_types_are_not_mixed)
{
    const struct plan_parameter parameters[] = {
        {100, DTYPE_F32}, {100, DTYPE_BF16}, {100, DTYPE_F32}, {100, DTYPE_BF16}, {1, DTYPE_I8}};
    const uint32_t order[] = {0, 1, 2, 3, 4};
    struct plan plan;
    ck_assert_int_eq(plan_make(&plan, parameters, 5, order, 1 << 20, 1 << 20), 0);
    check_plan(&plan, parameters, order, 1 << 20, 1 << 20);
    ck_assert_uint_eq(plan.buffer_count, 3);
    ck_assert_uint_eq(plan.buffer_of[0], plan.buffer_of[2]);
    ck_assert_uint_eq(plan.buffer_of[1], plan.buffer_of[3]);
    ck_assert_uint_eq(plan.buffers[2].dtype, DTYPE_I8);
    plan_clear(&plan);
}
END_TEST

START_TEST(test_random_plans)
{
    uint64_t state = 99;
    for (int round = 0; round < 500; round++) {
        enum { MOST = 80 };
        struct plan_parameter parameters[MOST];
        uint32_t order[MOST], count = (uint32_t)round % MOST;
        for (uint32_t i = 0; i < count; i++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            parameters[i] =
                (struct plan_parameter){(state >> 33) % 3000, (enum dtype)((state >> 50) % 3)};
            uint32_t j = (uint32_t)(state >> 40) % (i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        uint64_t threshold = 1 + (state >> 35) % 20000, first = 1 + (state >> 45) % 9000;
        struct plan plan, other;
        ck_assert_int_eq(plan_make(&plan, parameters, count, order, threshold, first), 0);
        check_plan(&plan, parameters, order, threshold, first);
        /* The plan is the same everywhere, and has the same size in any order. */
        ck_assert_int_eq(plan_make(&other, parameters, count, order, threshold, first), 0);
        ck_assert_int_eq(memcmp(plan.offset_of, other.offset_of, count * sizeof(uint64_t)), 0);
        plan_clear(&other);
        for (uint32_t i = 0; i < count; i++)
            order[i] = i;
        ck_assert_int_eq(plan_make(&other, parameters, count, order, threshold, first), 0);
        ck_assert_uint_eq(plan.total_bytes, other.total_bytes);
        plan_clear(&other);
        plan_clear(&plan);
    }
}
END_TEST

START_TEST(test_too_large)
{
    struct plan plan = {.buffer_count = 77};
    const uint32_t order[] = {0, 1};
    const struct plan_parameter huge[] = {{1ull << 61, DTYPE_F64}, {1, DTYPE_F32}};
    const struct plan_parameter together[] = {{1ull << 58, DTYPE_F64}, {1ull << 58, DTYPE_F64}};
    ck_assert_int_eq(plan_make(&plan, huge, 2, order, 1, 1), ERR_INVALID);
    ck_assert_int_eq(plan_make(&plan, together, 2, order, 1, 1), ERR_INVALID);
    ck_assert_uint_eq(plan.buffer_count, 77);
}
END_TEST

START_TEST(test_threshold)
{
    ck_assert_uint_eq(plan_threshold_bytes(1, 262144), 25u << 20);
    ck_assert_uint_eq(plan_threshold_bytes(100, 262144), 25u << 20);
    ck_assert_uint_eq(plan_threshold_bytes(101, 262144), 101u * 262144);
    ck_assert_uint_eq(plan_threshold_bytes(1024, 1u << 28), 1ull << 38);
}
END_TEST

START_TEST(test_orders)
{
    uint8_t seen[4];
    ck_assert(plan_order_valid((const uint32_t[]){2, 0, 3, 1}, 4, seen));
    ck_assert(plan_order_valid(NULL, 0, seen));
    ck_assert(!plan_order_valid((const uint32_t[]){2, 0, 2, 1}, 4, seen));
    ck_assert(!plan_order_valid((const uint32_t[]){0, 1, 2, 4}, 4, seen));
    ck_assert(!plan_order_valid((const uint32_t[]){0, 1, 2, UINT32_MAX}, 4, seen));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *cases = tcase_create("plan");
    tcase_add_test(cases, test_a_small_network);
    tcase_add_test(cases, test_types_are_not_mixed);
    tcase_add_test(cases, test_random_plans);
    tcase_add_test(cases, test_too_large);
    tcase_add_test(cases, test_threshold);
    tcase_add_test(cases, test_orders);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
