/* Fusion buffers against real daemons: types mixed, gradients of the caller's and the library's. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define PARAMETERS 24
#define STEPS 6

struct model {
    struct shoal_parameter parameters[PARAMETERS];
    shoal_fusion *fusion;
};

static const enum shoal_dtype types[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F64, SHOAL_I64, SHOAL_F16};

static bool is_unready(int parameter, int step, int rank)
{
    return (parameter + step * 5 + rank) % 7 == 0;
}

/* Small integers, so that every type's sums are exact: a rank's gradient of one element. */
static int value_of(int parameter, size_t element, int step, int rank)
{
    return is_unready(parameter, step, rank)
               ? 0
               : (int)((size_t)(parameter + 3 * step + rank) + element) % 13;
}

static void element_set(void *gradient, enum shoal_dtype dtype, size_t at, int value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof(bits));
    switch (dtype) {
    case SHOAL_F32:
        ((float *)gradient)[at] = single;
        break;
    case SHOAL_F64:
        ((double *)gradient)[at] = value;
        break;
    case SHOAL_I64:
        ((int64_t *)gradient)[at] = value;
        break;
    case SHOAL_BF16:
        ((uint16_t *)gradient)[at] = (uint16_t)(bits >> 16);
        break;
    default: /* f16; from 0 to 2048 */
        ((uint16_t *)gradient)[at] =
            value ? (uint16_t)(((bits >> 13) & 0x3ff) | (((bits >> 23) - 112) << 10)) : 0;
    }
}

static void model_create(struct model *model, shoal_group *group)
{
    struct shoal_fusion_options options = {.struct_size = sizeof(options),
                                           .threshold_bytes = 30000,
                                           .first_buffer_bytes = 2000,
                                           .op = SHOAL_SUM};
    for (int p = 0; p < PARAMETERS; p++) {
        enum shoal_dtype dtype = types[p % 5];
        size_t count = p == 7 ? 0 : p == 11 ? 100003 : (size_t)(p * p * 17 + 1);
        model->parameters[p] = (struct shoal_parameter){.count = count, .dtype = dtype};
        if (p % 3 == 0) {
            model->parameters[p].gradient = malloc(count * shoal_dtype_bytes(dtype) + 1);
            ck_assert_ptr_nonnull(model->parameters[p].gradient);
        }
    }
    GOOD(shoal_fusion_create(group, model->parameters, PARAMETERS, &options, &model->fusion));
}

static void step_check(struct model *model, int step, int size)
{
    char expected[8];
    for (int p = 0; p < PARAMETERS; p++) {
        const char *gradient = shoal_fusion_gradient(model->fusion, (size_t)p);
        enum shoal_dtype dtype = model->parameters[p].dtype;
        size_t bytes = shoal_dtype_bytes(dtype);
        for (size_t i = 0; i < model->parameters[p].count; i++) {
            int sum = 0;
            for (int rank = 0; rank < size; rank++)
                sum += value_of(p, i, step, rank);
            element_set(expected, dtype, 0, sum);
            if (memcmp(gradient + i * bytes, expected, bytes) != 0)
                ck_abort_msg("step %d parameter %d element %zu: not %d", step, p, i, sum);
        }
    }
}

static void steps(struct library_rank *self)
{
    struct model model;
    model_create(&model, shoal_world(self->job));
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < PARAMETERS; k++) {
            /* 5 has no divisor in common with 24; ranks are ready in orders of their own. */
            int p = (k * 5 + self->rank * 3 + step) % PARAMETERS;
            void *gradient = shoal_fusion_gradient(model.fusion, (size_t)p);
            enum shoal_dtype dtype = model.parameters[p].dtype;
            /* A gradient that is not ready has rubbish in it, which must not be counted. */
            for (size_t i = 0; i < model.parameters[p].count; i++)
                element_set(gradient, dtype, i,
                            is_unready(p, step, self->rank) ? 99
                                                            : value_of(p, i, step, self->rank));
            if (!is_unready(p, step, self->rank))
                GOOD(shoal_fusion_ready(model.fusion, (size_t)p));
        }
        GOOD(shoal_fusion_wait(model.fusion, -1));
        step_check(&model, step, self->of->size);
        struct shoal_fusion_statistics statistics = {.struct_size = sizeof(statistics)};
        GOOD(shoal_fusion_statistics(model.fusion, &statistics));
        ck_assert_uint_ge(statistics.buffers, 5); /* types are never mixed in one */
        ck_assert_uint_ge(statistics.bytes, 100003 * 2);
        ck_assert_uint_le(statistics.exposed_ns, statistics.communication_ns);
    }
    shoal_fusion_free(model.fusion);
    for (int p = 0; p < PARAMETERS; p++)
        free(model.parameters[p].gradient);
}

START_TEST(gradients_of_every_type_are_summed_exactly)
{
    library_cluster_run((uint32_t)_i, NULL, 2, steps, NULL);
}
END_TEST

/* In a group that leaves out a rank, which meanwhile does other things. */
static void in_a_group(struct library_rank *self)
{
    static const int ranks[] = {3, 0, 2};
    float gradient[1000];
    struct shoal_parameter parameter = {.gradient = gradient, .count = 1000, .dtype = SHOAL_F32};
    struct shoal_fusion_options options = {.struct_size = sizeof(options), .op = SHOAL_AVG};
    if (self->rank != 1) {
        shoal_group *group;
        shoal_fusion *fusion;
        GOOD(shoal_group_open(self->job, ranks, 3, -1, &group));
        GOOD(shoal_fusion_create(group, &parameter, 1, &options, &fusion));
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < 1000; i++)
                gradient[i] = (float)(3 * i + 3 * step + self->rank - 1);
            GOOD(shoal_fusion_ready(fusion, 0));
            BAD(shoal_fusion_ready(fusion, 0), SHOAL_EINVALID, "ready already");
            BAD(shoal_fusion_ready(fusion, 1), SHOAL_EINVALID, "parameter 1");
            GOOD(shoal_fusion_wait(fusion, -1));
            for (int i = 0; i < 1000; i++) /* -1 + 1 + 2 = 2, a third of it each */
                if (gradient[i] != (float)(9 * i + 9 * step + 2) / 3.0f)
                    ck_abort_msg("step %d element %d: %g", step, i, (double)gradient[i]);
        }
        shoal_fusion_free(fusion);
        GOOD(shoal_group_close(group));
    }
    GOOD(shoal_barrier(shoal_world(self->job), NULL));
}

START_TEST(averages_in_a_group)
{
    library_cluster_run((uint32_t)_i, NULL, 4 / _i, in_a_group, NULL);
}
END_TEST

/* Ranks free fusion buffers when they like, as a garbage collector does, and make all in order. */
static void freed_at_another_time(struct library_rank *self)
{
    float gradient[1000];
    struct shoal_parameter parameter = {.gradient = gradient, .count = 1000, .dtype = SHOAL_F32};
    shoal_fusion *fusions[3];
    for (int made = 0; made < 3; made++) {
        GOOD(shoal_fusion_create(shoal_world(self->job), &parameter, 1, NULL, &fusions[made]));
        for (int i = 0; i < 1000; i++)
            gradient[i] = 1;
        GOOD(shoal_fusion_ready(fusions[made], 0));
        GOOD(shoal_fusion_wait(fusions[made], -1));
        ck_assert(gradient[0] == (float)self->of->size && gradient[999] == gradient[0]);
        if (self->rank % 2 == 0)
            shoal_fusion_free(fusions[made]);
    }
    for (int made = 0; made < 3 && self->rank % 2 == 1; made++)
        shoal_fusion_free(fusions[made]);
    GOOD(shoal_barrier(shoal_world(self->job), NULL));
}

START_TEST(ranks_free_them_when_they_like)
{
    library_cluster_run((uint32_t)_i, NULL, 2, freed_at_another_time, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_fusion");
    TCase *fusion = tcase_create("fusion"); /* _i: nodes */
    tcase_set_timeout(fusion, 300);
    tcase_add_loop_test(fusion, gradients_of_every_type_are_summed_exactly, 1, 3);
    tcase_add_loop_test(fusion, averages_in_a_group, 1, 3);
    tcase_add_loop_test(fusion, ranks_free_them_when_they_like, 1, 3);
    suite_add_tcase(suite, fusion);
    return suite_main(suite);
}
