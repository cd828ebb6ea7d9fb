/* A verdict splits a step, and points of the last minutes are kept. */
#include "server/status/status_steps.h"

#include <jansson.h>
#include <stdlib.h>

#include "server/waits/waits.h"
#include "tests/lib/suite.h"

#define HERE 3u
#define S 1000000000ull

/* Each step takes 232 ms. */
static const struct split {
    enum verdict_kind kind;
    uint32_t node;
    double lost_ms;
    double exposed; /* part of the window */
    double waiting_ms, network_ms;
} splits[] = {
    /* A rank of this node is late before this node's collectives begin. */
    {VERDICT_RANK_LATE, HERE, 20, 0.25, 20, 58},
    {VERDICT_NODE_LATE, HERE, 20, 0.25, 20, 58},
    /* A rank of another node is late while they are under way. */
    {VERDICT_RANK_LATE, 1, 20, 0.25, 20, 38},
    {VERDICT_RANK_DRAINS, 1, 20, 0.25, 20, 38},
    {VERDICT_NODE_LATE, 1, 20, 0.25, 20, 38},
    /* The whole exposed part is the network's. */
    {VERDICT_LINK_SLOW, 1, 20, 0.25, 0, 58},
    {VERDICT_RECEIVER_SLOW, 1, 20, 0.25, 0, 58},
    {VERDICT_SERVER_SLOW, 1, 20, 0.25, 0, 58},
    {VERDICT_NOBODY, WAITS_NOBODY, 0, 0.25, 0, 58},
    {VERDICT_NOBODY, WAITS_NOBODY, 0, 0, 0, 0},
    /* No part is less than nothing, and both are not more than the step. */
    {VERDICT_RANK_LATE, 1, 100, 0.25, 100, 0},
    {VERDICT_RANK_LATE, HERE, 200, 0.75, 200, 32},
};

static json_t *told(const struct status_steps *steps, uint64_t now_ns)
{
    struct json_text text;
    json_text_init(&text);
    json_text_open_object(&text, NULL);
    status_put_steps(&text, "points", steps, now_ns);
    json_text_close_object(&text);
    char *written = json_text_take(&text, NULL);
    json_t *root = json_loads(written, 0, NULL), *points = json_object_get(root, "points");
    ck_assert_ptr_nonnull(points);
    json_incref(points);
    json_decref(root);
    free(written);
    return points;
}

static double told_at(const json_t *points, size_t i, size_t k)
{
    return json_number_value(json_array_get(json_array_get(points, i), k));
}

START_TEST(a_step_splits)
{
    const struct split *it = &splits[_i];
    struct status_steps steps = {0};
    const struct verdict verdict = {
        .kind = it->kind, .node = it->node, .step_ms = 232, .lost_ms = it->lost_ms};
    const struct overlap_figures overlap = {.window_us = 4000000,
                                            .exposed_us = (uint32_t)(it->exposed * 4000000)};
    status_steps_add(&steps, 7 * S, &verdict, 8, &overlap, HERE);
    json_t *points = told(&steps, 10 * S);
    const double expected[] = {3, 232, it->waiting_ms, it->network_ms};
    ck_assert_uint_eq(json_array_size(points), 1);
    for (size_t i = 0; i < 4; i++)
        ck_assert_double_eq_tol(told_at(points, 0, i), expected[i], 0.002);
    json_decref(points);
}
END_TEST

START_TEST(what_is_not_known_is_no_point)
{
    struct status_steps steps = {0};
    const struct overlap_figures none = {0};
    status_steps_add(&steps, S, &(struct verdict){.kind = VERDICT_UNKNOWN, .step_ms = 5}, 8, &none,
                     0);
    json_t *points = told(&steps, S);
    ck_assert_uint_eq(json_array_size(points), 0);
    json_decref(points);
}
END_TEST

/* A loss that is averaged now and then breaks the pattern for a while. */
START_TEST(steps_and_collectives_do_not_mix)
{
    static const uint32_t known[] = {0, 0, 8, 0, 8, 0};
    static const size_t counts[] = {1, 2, 1, 1, 2, 2};
    struct status_steps steps = {0};
    const struct overlap_figures none = {0};
    for (uint32_t i = 0; i < 6; i++) {
        struct verdict verdict = {.kind = VERDICT_NOBODY, .step_ms = known[i] ? 80 : 10};
        status_steps_add(&steps, (4 * i + 1) * S, &verdict, known[i], &none, 0);
        json_t *points = told(&steps, 40 * S);
        ck_assert_uint_eq(json_array_size(points), counts[i]);
        for (size_t k = 0; k < counts[i]; k++)
            ck_assert_double_eq_tol(told_at(points, k, 1), i < 2 ? 10 : 80, 0.01);
        ck_assert_uint_eq(steps.step, i < 2 ? 0 : 8);
        json_decref(points);
    }
}
END_TEST

/* However often it is told, and for however long. */
START_TEST(the_last_minutes_are_kept)
{
    struct status_steps steps = {0};
    const struct overlap_figures none = {0};
    uint64_t end_ns = 2000 * S;
    for (uint64_t now_ns = S; now_ns <= end_ns; now_ns += S / 2) {
        struct verdict verdict = {.kind = VERDICT_NOBODY, .step_ms = (double)now_ns / S};
        status_steps_add(&steps, now_ns, &verdict, 1, &none, 0);
    }
    json_t *points = told(&steps, end_ns);
    ck_assert_uint_eq(json_array_size(points), STATUS_STEPS);
    for (size_t i = 0; i < STATUS_STEPS; i++) {
        double age_s = 1 + 2.0 * (double)(STATUS_STEPS - 1 - i);
        ck_assert_double_eq_tol(told_at(points, i, 0), age_s, 0.01);
        ck_assert_double_eq_tol(told_at(points, i, 1), 2000 - age_s, 0.01);
    }
    json_decref(points);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status_steps");
    TCase *cases = tcase_create("status_steps");
    tcase_add_loop_test(cases, a_step_splits, 0, (int)(sizeof(splits) / sizeof(splits[0])));
    tcase_add_test(cases, what_is_not_known_is_no_point);
    tcase_add_test(cases, steps_and_collectives_do_not_mix);
    tcase_add_test(cases, the_last_minutes_are_kept);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
