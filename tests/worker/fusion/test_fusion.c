#include "worker/fusion/fusion.h"

#include "common/base/error.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/fake_daemon.h"
#include "worker/shoal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GOOD(call) ck_assert_msg((call) == SHOAL_OK, "%s: %s", #call, shoal_error_text())
#define BAD(call, code, words)                                                                     \
    do {                                                                                           \
        ck_assert_int_eq((call), (code));                                                          \
        ck_assert_msg(strstr(shoal_error_text(), (words)) != NULL, "%s", shoal_error_text());      \
    } while (0)

/* --- one step, without any I/O ------------------------------------------------------------- */

START_TEST(test_buffers_go_in_plan_order)
{
    const struct plan_parameter parameters[] = {
        {16, DTYPE_F32}, {16, DTYPE_F32}, {16, DTYPE_F32}, {16, DTYPE_F32}};
    const uint32_t order[] = {3, 2, 1, 0};
    struct plan plan;
    struct fusion_step step;
    uint32_t buffer = 9;
    ck_assert_int_eq(plan_make(&plan, parameters, 4, order, 128, 64), 0);
    ck_assert_uint_eq(plan.buffer_count, 3); /* 3 | 2 1 | 0 */
    ck_assert_int_eq(fusion_step_init(&step, 4), 0);
    for (int round = 0; round < 2; round++) {
        fusion_step_begin(&step, &plan);
        ck_assert(!fusion_step_next(&step, &buffer));
        /* The last buffer is complete first, and must wait for its turn. */
        const uint32_t ready[] = {0, 1, 3, 2};
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(fusion_step_claim(&step, ready[i]), 0);
            ck_assert_int_eq(fusion_step_claim(&step, ready[i]), ERR_INVALID);
            ck_assert(i == 3 || !fusion_step_next(&step, &buffer));
            fusion_step_fill(&step, ready[i]);
            if (i == 2) {
                ck_assert(fusion_step_next(&step, &buffer));
                ck_assert_uint_eq(buffer, 0);
            }
        }
        ck_assert(fusion_step_next(&step, &buffer));
        ck_assert_uint_eq(buffer, 1);
        ck_assert(fusion_step_next(&step, &buffer));
        ck_assert_uint_eq(buffer, 2);
        ck_assert(!fusion_step_next(&step, &buffer));
    }
    ck_assert_int_eq(fusion_step_claim(&step, 4), ERR_INVALID);
    ck_assert_int_eq(fusion_step_claim(&step, UINT64_MAX), ERR_INVALID);
    fusion_step_clear(&step);
    plan_clear(&plan);
}
END_TEST

START_TEST(test_learned_order)
{
    const struct plan_parameter parameters[6] = {{.count = 1}};
    const uint32_t order[] = {5, 4, 3, 2, 1, 0}, expected[] = {4, 1, 5, 3, 2, 0};
    struct plan plan;
    struct fusion_step step;
    uint32_t learned[6];
    ck_assert_int_eq(plan_make(&plan, parameters, 6, order, 64, 64), 0);
    ck_assert_int_eq(fusion_step_init(&step, 6), 0);
    fusion_step_begin(&step, &plan);
    ck_assert_int_eq(fusion_step_claim(&step, 4), 0);
    ck_assert_int_eq(fusion_step_claim(&step, 1), 0);
    fusion_step_order(&step, learned);
    ck_assert_int_eq(memcmp(learned, expected, sizeof(expected)), 0);
    fusion_step_clear(&step);
    plan_clear(&plan);
}
END_TEST

START_TEST(test_measuring_overlap)
{
    uint64_t total, inside;
    const struct fusion_interval intervals[] = {{10, 20}, {15, 30}, {16, 18}, {40, 50}, {50, 60}};
    fusion_measure(intervals, 5, (struct fusion_interval){45, 100}, &total, &inside);
    ck_assert_uint_eq(total, 40);
    ck_assert_uint_eq(inside, 15);
    fusion_measure(intervals, 5, (struct fusion_interval){0, 100}, &total, &inside);
    ck_assert_uint_eq(inside, 40);
    fusion_measure(intervals, 5, (struct fusion_interval){17, 17}, &total, &inside);
    ck_assert_uint_eq(inside, 0);
    fusion_measure(NULL, 0, (struct fusion_interval){0, 100}, &total, &inside);
    ck_assert_uint_eq(total, 0);
}
END_TEST

/* --- the handle, over a daemon in a thread ------------------------------------------------- */

#define RANKS 3
#define PARAMETERS 9

struct member {
    struct fake_daemon *daemon;
    pthread_t thread;
    int rank;
    shoal_job *job;
    void (*body)(struct member *member);
};

static void *member_run(void *argument)
{
    struct member *member = argument;
    struct shoal_options options = {.struct_size = sizeof(options),
                                    .socket_path = fake_daemon_path(member->daemon),
                                    .world_size = RANKS,
                                    .rank_plus_1 = member->rank + 1,
                                    .timeout_ms = 60000,
                                    .arena_bytes = 4u << 20};
    GOOD(shoal_open(&options, &member->job));
    member->body(member);
    GOOD(shoal_close(member->job));
    return NULL;
}

static void world_run(uint64_t seed, void (*body)(struct member *member))
{
    struct fake_daemon *daemon = fake_daemon_start(
        &(struct fake_daemon_options){.world_size = RANKS, .servers = 2, .seed = seed});
    struct member members[RANKS];
    for (int i = 0; i < RANKS; i++) {
        members[i] = (struct member){.daemon = daemon, .rank = i, .body = body};
        ck_assert_int_eq(pthread_create(&members[i].thread, NULL, member_run, &members[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(members[i].thread, NULL);
    fake_daemon_stop(daemon);
}

static const size_t counts[PARAMETERS] = {1000, 10, 5000, 50, 1, 3000, 30, 0, 777};

/* Some parameters are the caller's, some the library's; two types. */
struct model {
    struct shoal_parameter parameters[PARAMETERS];
    shoal_fusion *fusion;
};

static enum shoal_dtype type_of(size_t i)
{
    return i % 4 == 3 ? SHOAL_I64 : SHOAL_F32;
}

static void model_create(struct model *model, struct member *member, enum shoal_op op)
{
    for (size_t i = 0; i < PARAMETERS; i++)
        model->parameters[i] = (struct shoal_parameter){
            .gradient = i % 2 ? malloc(counts[i] * 8 + 1) : NULL,
            .count = counts[i],
            .dtype = type_of(i),
        };
    struct shoal_fusion_options options = {.struct_size = sizeof(options),
                                           .threshold_bytes = 8192,
                                           .first_buffer_bytes = 2048,
                                           .op = op};
    GOOD(shoal_fusion_create(shoal_world(member->job), model->parameters, PARAMETERS, &options,
                             &model->fusion));
}

static void model_free(struct model *model)
{
    shoal_fusion_free(model->fusion);
    for (size_t i = 0; i < PARAMETERS; i++)
        free(model->parameters[i].gradient);
}

static void fill(struct model *model, size_t i, int value)
{
    void *gradient = shoal_fusion_gradient(model->fusion, i);
    for (size_t j = 0; j < counts[i]; j++) {
        if (type_of(i) == SHOAL_I64)
            ((int64_t *)gradient)[j] = value + (int64_t)j;
        else
            ((float *)gradient)[j] = (float)(value + (int)(j % 100));
    }
}

static void expect(struct model *model, size_t i, int value, int factor)
{
    const void *gradient = shoal_fusion_gradient(model->fusion, i);
    size_t wrong = 0;
    for (size_t j = 0; j < counts[i]; j++) {
        if (type_of(i) == SHOAL_I64)
            wrong += ((const int64_t *)gradient)[j] != value + factor * (int64_t)j;
        else
            wrong += ((const float *)gradient)[j] != (float)(value + factor * (int)(j % 100));
    }
    ck_assert_msg(wrong == 0, "parameter %zu: %zu wrong of %zu", i, wrong, counts[i]);
}

static void check_steps(struct member *member)
{
    struct model model;
    model_create(&model, member, SHOAL_SUM);
    for (int step = 0; step < 6; step++) {
        for (size_t k = 0; k < PARAMETERS; k++) {
            /* Every rank in an order of its own. */
            size_t i = (k * 2 + (size_t)(member->rank * 3 + step)) % PARAMETERS;
            fill(&model, i, step * 10 + member->rank);
            GOOD(shoal_fusion_ready(model.fusion, i));
        }
        GOOD(shoal_fusion_wait(model.fusion, -1));
        for (size_t i = 0; i < PARAMETERS; i++)
            expect(&model, i, step * 30 + 3, RANKS);
        struct shoal_fusion_statistics statistics = {.struct_size = sizeof(statistics)};
        GOOD(shoal_fusion_statistics(model.fusion, &statistics));
        ck_assert_uint_ge(statistics.buffers, 3);
        ck_assert_uint_ge(statistics.bytes, 38000);
        ck_assert_uint_ge(statistics.communication_ns, statistics.exposed_ns);
        ck_assert_uint_gt(statistics.communication_ns, 0);
    }
    model_free(&model);
}

START_TEST(test_steps_in_any_order)
{
    for (uint64_t seed = 1; seed <= 3; seed++)
        world_run(seed, check_steps);
}
END_TEST

static void check_missing(struct member *member)
{
    struct model model;
    model_create(&model, member, SHOAL_SUM);
    for (int step = 0; step < 3; step++) {
        /* Parameter i is ready on rank i % RANKS alone. */
        for (size_t i = 0; i < PARAMETERS; i++) {
            fill(&model, i, 7);
            if (i % RANKS == (size_t)member->rank)
                GOOD(shoal_fusion_ready(model.fusion, i));
        }
        GOOD(shoal_fusion_wait(model.fusion, 60000));
        for (size_t i = 0; i < PARAMETERS; i++)
            expect(&model, i, 7, 1);
    }
    model_free(&model);
}

START_TEST(test_what_is_not_ready_counts_as_zero)
{
    world_run(4, check_missing);
}
END_TEST

static void check_average(struct member *member)
{
    struct model model;
    model_create(&model, member, SHOAL_AVG);
    for (size_t i = 0; i < PARAMETERS; i++) {
        fill(&model, i, member->rank * 10);
        GOOD(shoal_fusion_ready(model.fusion, i));
    }
    GOOD(shoal_fusion_wait(model.fusion, -1));
    for (size_t i = 0; i < PARAMETERS; i++)
        expect(&model, i, 10, 1);
    model_free(&model);
}

START_TEST(test_average)
{
    world_run(5, check_average);
}
END_TEST

/* After the first step all ranks have rank 0's order, and gradients lie by it. */
static void check_learning(struct member *member)
{
    enum { COUNT = 5 };
    struct shoal_parameter parameters[COUNT];
    const size_t ready[COUNT] = {2, 0, 4, 1, 3};
    for (size_t i = 0; i < COUNT; i++)
        parameters[i] = (struct shoal_parameter){.count = 16, .dtype = SHOAL_F32};
    shoal_fusion *fusion;
    GOOD(shoal_fusion_create(shoal_world(member->job), parameters, COUNT, NULL, &fusion));
    char *start = shoal_fusion_gradient(fusion, COUNT - 1);
    for (size_t i = 0; i < COUNT; i++)
        ck_assert_ptr_eq(shoal_fusion_gradient(fusion, i), start + (COUNT - 1 - i) * 64);
    for (size_t k = 0; k < COUNT; k++) {
        size_t i = member->rank == 0 ? ready[k] : k;
        ((float *)shoal_fusion_gradient(fusion, i))[0] = (float)i;
        GOOD(shoal_fusion_ready(fusion, i));
    }
    GOOD(shoal_fusion_wait(fusion, -1));
    for (size_t k = 0; k < COUNT; k++) {
        float *gradient = shoal_fusion_gradient(fusion, ready[k]);
        ck_assert_ptr_eq(gradient, start + k * 64);
        ck_assert(gradient[0] == (float)(ready[k] * RANKS));
    }
    ck_assert_ptr_null(shoal_fusion_gradient(fusion, COUNT));
    shoal_fusion_free(fusion);
}

START_TEST(test_order_is_learned_from_rank_0)
{
    world_run(6, check_learning);
}
END_TEST

static void check_misuse(struct member *member)
{
    struct model model;
    shoal_fusion *none = NULL;
    struct shoal_parameter bad = {.count = 1, .dtype = (enum shoal_dtype)50};
    struct shoal_parameter large = {.count = 100 << 20, .dtype = SHOAL_F32};
    struct shoal_fusion_options options = {.struct_size = sizeof(options), .op = SHOAL_MAX};
    shoal_group *world = shoal_world(member->job);
    BAD(shoal_fusion_create(world, &bad, 1, NULL, &none), SHOAL_EINVALID, "parameter 0");
    BAD(shoal_fusion_create(world, NULL, 1, NULL, &none), SHOAL_EINVALID, "NULL");
    BAD(shoal_fusion_create(world, &large, 1, NULL, &none), SHOAL_EMEMORY, "fusion buffers");
    BAD(shoal_fusion_create(world, &large, 1, &options, &none), SHOAL_EINVALID, "options.op");
    options.struct_size = 0;
    BAD(shoal_fusion_create(world, &large, 1, &options, &none), SHOAL_EINVALID, "struct_size");
    ck_assert_ptr_null(none);
    shoal_fusion_free(NULL);

    model_create(&model, member, SHOAL_SUM);
    BAD(shoal_fusion_ready(model.fusion, PARAMETERS), SHOAL_EINVALID, "parameter 9");
    fill(&model, 2, 1);
    GOOD(shoal_fusion_ready(model.fusion, 2));
    BAD(shoal_fusion_ready(model.fusion, 2), SHOAL_EINVALID, "parameter 2 is ready already");
    ck_assert_ptr_null(shoal_fusion_gradient(model.fusion, PARAMETERS));
    ck_assert_str_eq(shoal_error_text(), "parameter 9: there are 9");
    BAD(shoal_fusion_wait(model.fusion, -2), SHOAL_EINVALID, "timeout_ms");
    struct shoal_fusion_statistics statistics = {.struct_size = 0};
    BAD(shoal_fusion_statistics(model.fusion, &statistics), SHOAL_EINVALID, "struct_size");
    GOOD(shoal_fusion_wait(model.fusion, -1));
    GOOD(shoal_fusion_ready(model.fusion, 2)); /* a new step */
    GOOD(shoal_fusion_wait(model.fusion, -1));
    model_free(&model);
}

START_TEST(test_misuse)
{
    world_run(7, check_misuse);
}
END_TEST

struct part {
    struct model *model;
    pthread_t thread;
    size_t first;
};

static void *part_run(void *argument)
{
    struct part *part = argument;
    for (size_t i = part->first; i < PARAMETERS; i += 3)
        GOOD(shoal_fusion_ready(part->model->fusion, i));
    return NULL;
}

static void check_threads(struct member *member)
{
    struct model model;
    model_create(&model, member, SHOAL_SUM);
    for (int step = 0; step < 4; step++) {
        struct part parts[3];
        for (size_t i = 0; i < PARAMETERS; i++)
            fill(&model, i, 5);
        for (size_t i = 0; i < 3; i++) {
            parts[i] = (struct part){.model = &model, .first = i};
            ck_assert_int_eq(pthread_create(&parts[i].thread, NULL, part_run, &parts[i]), 0);
        }
        for (size_t i = 0; i < 3; i++)
            pthread_join(parts[i].thread, NULL);
        GOOD(shoal_fusion_wait(model.fusion, -1));
        for (size_t i = 0; i < PARAMETERS; i++)
            expect(&model, i, 15, RANKS);
    }
    model_free(&model);
}

START_TEST(test_ready_from_several_threads)
{
    world_run(8, check_threads);
}
END_TEST

static void check_timeout(struct member *member)
{
    struct model model;
    model_create(&model, member, SHOAL_SUM);
    GOOD(shoal_barrier(shoal_world(member->job), NULL));
    if (member->rank == 0)
        fake_daemon_hold(member->daemon, true);
    for (size_t i = 0; i < PARAMETERS; i++)
        fill(&model, i, 1);
    if (member->rank == 0) {
        BAD(shoal_fusion_wait(model.fusion, 5), SHOAL_ETIMEOUT, "all_reduce");
        BAD(shoal_fusion_ready(model.fusion, 0), SHOAL_ESTATE, "parameter 0");
        BAD(shoal_fusion_wait(model.fusion, 0), SHOAL_ETIMEOUT, "all_reduce");
        fake_daemon_hold(member->daemon, false);
    }
    GOOD(shoal_fusion_wait(model.fusion, -1));
    for (size_t i = 0; i < PARAMETERS; i++)
        expect(&model, i, 0, 0);
    model_free(&model);
}

START_TEST(test_wait_times_out_and_goes_on)
{
    world_run(9, check_timeout);
}
END_TEST

static void check_failure(struct member *member)
{
    struct model model;
    model_create(&model, member, SHOAL_SUM);
    GOOD(shoal_fusion_ready(model.fusion, PARAMETERS - 1));
    if (member->rank == 0)
        fake_daemon_fail(member->daemon, -1, SHOAL_ELOST, "rank 9 is gone");
    BAD(shoal_fusion_wait(model.fusion, -1), SHOAL_ELOST, "rank 9 is gone");
    BAD(shoal_fusion_wait(model.fusion, -1), SHOAL_ELOST, "rank 9 is gone");
    BAD(shoal_fusion_ready(model.fusion, 0), SHOAL_ELOST, "rank 9 is gone");
    if (member->rank)
        model_free(&model);
    else /* the job frees it */
        for (size_t i = 0; i < PARAMETERS; i++)
            free(model.parameters[i].gradient);
}

/* The code of a wait that ends too early is never that of a failure. */
static void check_timeout_of_the_job(struct member *member)
{
    struct model model;
    model_create(&model, member, SHOAL_SUM);
    if (member->rank == 0) {
        fake_daemon_hold(member->daemon, true);
        BAD(shoal_fusion_wait(model.fusion, 5), SHOAL_ETIMEOUT, "the time has passed");
        fake_daemon_fail(member->daemon, -1, SHOAL_ETIMEOUT, "the daemons are too slow");
    }
    for (int i = 0; i < 2; i++)
        BAD(shoal_fusion_wait(model.fusion, -1), SHOAL_ELOST, "the daemons are too slow");
    model_free(&model);
}

START_TEST(test_failure_by_timeout)
{
    world_run(11, check_timeout_of_the_job);
}
END_TEST

START_TEST(test_failure)
{
    world_run(10, check_failure);
}
END_TEST

static void check_group(struct member *member)
{
    shoal_group *group;
    shoal_fusion *fusions[2];
    struct shoal_parameter parameter = {.count = 7, .dtype = SHOAL_F32};
    GOOD(shoal_group_open(member->job, (int[]){0, 1, 2}, RANKS, -1, &group));
    for (int i = 0; i < 2; i++)
        GOOD(shoal_fusion_create(group, &parameter, 1, NULL, &fusions[i]));
    BAD(shoal_group_close(group), SHOAL_ESTATE, "group 1 has 2 fusions");
    shoal_fusion_free(fusions[0]);
    BAD(shoal_group_close(group), SHOAL_ESTATE, "group 1 has 1 fusions");
    GOOD(shoal_fusion_ready(fusions[1], 0));
    GOOD(shoal_fusion_wait(fusions[1], -1));
    shoal_fusion_free(fusions[1]);
    GOOD(shoal_group_close(group));
}

START_TEST(test_group_with_fusions_stays)
{
    world_run(3, check_group);
}
END_TEST

/* The buffers of a step of 9, 13, 13 and 7 MiB with chunks of 4 MiB, and nothing said of when a
 * buffer is full. */
static uint64_t buffers_of_a_step(uint32_t servers)
{
    enum { GRADIENTS = 4, MIB = 1 << 20 };
    struct fake_daemon *daemon = fake_daemon_start(&(struct fake_daemon_options){
        .world_size = 1, .servers = servers, .chunk_bytes = 4 * MIB, .seed = 12});
    struct shoal_options options = {.struct_size = sizeof(options),
                                    .socket_path = fake_daemon_path(daemon),
                                    .world_size = 1,
                                    .rank_plus_1 = 1,
                                    .timeout_ms = 60000,
                                    .arena_bytes = 128u * MIB};
    shoal_job *job;
    GOOD(shoal_open(&options, &job));
    const struct shoal_parameter parameters[GRADIENTS] = {{NULL, 7 * MIB / 4, SHOAL_F32},
                                                          {NULL, 13 * MIB / 4, SHOAL_F32},
                                                          {NULL, 13 * MIB / 4, SHOAL_F32},
                                                          {NULL, 9 * MIB / 4, SHOAL_F32}};
    shoal_fusion *fusion;
    GOOD(shoal_fusion_create(shoal_world(job), parameters, GRADIENTS, NULL, &fusion));
    for (size_t i = GRADIENTS; i-- > 0;)
        GOOD(shoal_fusion_ready(fusion, i));
    GOOD(shoal_fusion_wait(fusion, -1));
    struct shoal_fusion_statistics seen = {.struct_size = sizeof(seen)};
    GOOD(shoal_fusion_statistics(fusion, &seen));
    shoal_fusion_free(fusion);
    GOOD(shoal_close(job));
    fake_daemon_stop(daemon);
    return seen.buffers;
}

START_TEST(test_buffers_grow_with_the_servers)
{
    ck_assert_uint_eq(buffers_of_a_step(2), 3); /* 9 | 13 13 | 7 */
    ck_assert_uint_eq(buffers_of_a_step(8), 2); /* 9 | 13 13 7, of 32 MiB */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fusion");
    TCase *cases = tcase_create("fusion");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, test_buffers_go_in_plan_order);
    tcase_add_test(cases, test_learned_order);
    tcase_add_test(cases, test_measuring_overlap);
    tcase_add_test(cases, test_steps_in_any_order);
    tcase_add_test(cases, test_what_is_not_ready_counts_as_zero);
    tcase_add_test(cases, test_average);
    tcase_add_test(cases, test_order_is_learned_from_rank_0);
    tcase_add_test(cases, test_buffers_grow_with_the_servers);
    tcase_add_test(cases, test_misuse);
    tcase_add_test(cases, test_ready_from_several_threads);
    tcase_add_test(cases, test_wait_times_out_and_goes_on);
    tcase_add_test(cases, test_group_with_fusions_stays);
    tcase_add_test(cases, test_failure);
    tcase_add_test(cases, test_failure_by_timeout);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
