/* The digits example's matrices and network, without shoal. */
#include "tests/lib/suite.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "worker/examples/digits/matrix.h"
#include "worker/examples/digits/network.h"
#include "worker/examples/digits/random.h"
#include "worker/examples/digits/training.h"

static const struct network demo_network = {4, {64, 256, 256, 128, 10}};

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static float *random_floats(size_t count, uint64_t seed)
{
    float *values = allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = 2.0F * random_unit(&seed) - 1.0F;
    return values;
}

static unsigned char *random_labels(size_t count, unsigned classes, uint64_t seed)
{
    unsigned char *labels = allocate(count, 1);
    for (size_t i = 0; i < count; i++)
        labels[i] = (unsigned char)random_below(&seed, classes);
    return labels;
}

/* --- matrices -------------------------------------------------------------------------------- */

static void check_product(size_t rows, size_t inner, size_t columns, bool transposed, bool started)
{
    float *left = random_floats(rows * inner, 1), *right = random_floats(inner * columns, 2);
    float *start = random_floats(columns, 3), *product = random_floats(rows * columns + 1, 4);
    float after = product[rows * columns];
    struct matrix_view view = {left, inner, 1};
    if (transposed)
        view = (struct matrix_view){left, 1, rows};
    matrix_multiply(product, view, right, started ? start : NULL, rows, inner, columns);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) {
            float sum = started ? start[j] : 0.0F;
            for (size_t k = 0; k < inner; k++)
                sum += left[i * view.row_stride + k * view.column_stride] * right[k * columns + j];
            /* The order of the sum is fixed, so the bits are. */
            ck_assert_msg(memcmp(&sum, &product[i * columns + j], sizeof sum) == 0,
                          "%zux%zux%zu at %zu,%zu: %.9g, not %.9g", rows, inner, columns, i, j,
                          (double)product[i * columns + j], (double)sum);
        }
    ck_assert_float_eq(product[rows * columns], after);
    free(left);
    free(right);
    free(start);
    free(product);
}

START_TEST(multiply_gives_the_ordered_sum)
{
    static const size_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 19};
    size_t count = sizeof sizes / sizeof sizes[0];
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++)
            for (size_t k = 0; k < count; k += 3)
                for (int kind = 0; kind < 4; kind++)
                    check_product(sizes[i], sizes[k], sizes[j], kind & 1, kind & 2);
}
END_TEST

START_TEST(multiply_takes_empty_shapes)
{
    check_product(0, 8, 8, false, true);
    check_product(8, 8, 0, false, false);
    check_product(5, 0, 9, false, false); /* zeros */
    check_product(5, 0, 9, true, true);   /* the start row */
}
END_TEST

START_TEST(multiply_of_a_row_does_not_depend_on_the_others)
{
    enum { ROWS = 11, INNER = 37, COLUMNS = 21 };
    float *left = random_floats(ROWS * INNER, 5), *right = random_floats(INNER * COLUMNS, 6);
    float together[ROWS * COLUMNS], single[COLUMNS];
    matrix_multiply(together, (struct matrix_view){left, INNER, 1}, right, NULL, ROWS, INNER,
                    COLUMNS);
    for (size_t row = 0; row < ROWS; row++) {
        matrix_multiply(single, (struct matrix_view){left + row * INNER, INNER, 1}, right, NULL, 1,
                        INNER, COLUMNS);
        ck_assert_mem_eq(single, together + row * COLUMNS, sizeof single);
    }
    free(left);
    free(right);
}
END_TEST

START_TEST(transpose_twice_is_the_same)
{
    enum { ROWS = 7, COLUMNS = 13 };
    float *matrix = random_floats(ROWS * COLUMNS, 7);
    float once[ROWS * COLUMNS], twice[ROWS * COLUMNS];
    matrix_transpose(once, matrix, ROWS, COLUMNS);
    ck_assert_float_eq(once[3 * ROWS + 2], matrix[2 * COLUMNS + 3]);
    matrix_transpose(twice, once, COLUMNS, ROWS);
    ck_assert_mem_eq(twice, matrix, sizeof twice);
    free(matrix);
}
END_TEST

/* --- the network ----------------------------------------------------------------------------- */

static const struct network small_network = {3, {6, 9, 5, 4}};
enum { SMALL_TENSORS = 6 };

/* A network with its rows, and what a pass over them gave. */
struct pass {
    const struct network *network;
    size_t rows, count;
    float *parameters, *inputs, *gradient;
    float *gradients[NETWORK_TENSORS_MAX];
    unsigned char *labels;
    struct network_workspace *workspace;
    size_t told[NETWORK_TENSORS_MAX + 1]; /* tensors, in the order in which they were ready */
    size_t told_count, stop_after;
    double loss;
};

static void pass_open(struct pass *pass, const struct network *network, size_t rows, uint64_t seed)
{
    *pass = (struct pass){.network = network, .rows = rows, .stop_after = SIZE_MAX};
    size_t outputs = network->widths[network->layer_count];
    pass->count = network_parameter_count(network);
    pass->parameters = allocate(pass->count, sizeof(float));
    network_initialize(network, seed, pass->parameters);
    for (size_t i = 0; i < pass->count; i += 7) /* biases that are not zero */
        pass->parameters[i] += 0.05F;
    pass->inputs = random_floats(rows * network->widths[0], seed + 1);
    pass->labels = random_labels(rows, (unsigned)outputs, seed + 2);
    pass->gradient = random_floats(pass->count, seed + 3); /* to be overwritten whole */
    for (size_t t = 0; t < network_tensor_count(network); t++)
        pass->gradients[t] = pass->gradient + network_tensor_offset(network, t);
    pass->workspace = network_workspace_create(network, rows);
    ck_assert_ptr_nonnull(pass->workspace);
}

static void pass_close(struct pass *pass)
{
    free(pass->parameters);
    free(pass->inputs);
    free(pass->labels);
    free(pass->gradient);
    network_workspace_free(pass->workspace);
}

static int pass_ready(void *context, size_t tensor)
{
    struct pass *pass = context;
    pass->told[pass->told_count++] = tensor;
    return pass->told_count > pass->stop_after ? -99 : 0;
}

static int pass_run(struct pass *pass, size_t first, size_t count, float scale)
{
    pass->told_count = 0;
    network_forward(pass->network, pass->parameters,
                    pass->inputs + first * pass->network->widths[0], count, pass->workspace);
    return network_backward(pass->network, pass->parameters, pass->labels + first, scale,
                            pass->gradients, pass_ready, pass, pass->workspace, &pass->loss);
}

START_TEST(tensors_lie_one_after_the_other)
{
    static const size_t sizes[SMALL_TENSORS] = {54, 9, 45, 5, 20, 4};
    size_t offset = 0;
    ck_assert_uint_eq(network_tensor_count(&small_network), SMALL_TENSORS);
    for (size_t t = 0; t < SMALL_TENSORS; t++) {
        ck_assert_uint_eq(network_tensor_size(&small_network, t), sizes[t]);
        ck_assert_uint_eq(network_tensor_offset(&small_network, t), offset);
        offset += sizes[t];
    }
    ck_assert_uint_eq(network_parameter_count(&small_network), offset);
    ck_assert_uint_eq(network_parameter_count(&demo_network), 116618);
}
END_TEST

START_TEST(initialize_depends_on_the_seed_alone)
{
    size_t count = network_parameter_count(&demo_network);
    float *a = allocate(count, sizeof(float)), *b = allocate(count, sizeof(float));
    network_initialize(&demo_network, 1, a);
    network_initialize(&demo_network, 1, b);
    ck_assert_mem_eq(a, b, count * sizeof(float));
    network_initialize(&demo_network, 2, b);
    ck_assert_mem_ne(a, b, count * sizeof(float));
    float limit = sqrtf(6.0F / (64 + 256)), greatest = 0.0F;
    double sum = 0.0;
    for (size_t i = 0; i < 64 * 256; i++) {
        ck_assert(fabsf(a[i]) <= limit);
        greatest = fmaxf(greatest, fabsf(a[i]));
        sum += (double)a[i];
    }
    ck_assert(greatest > 0.99F * limit);
    ck_assert(fabs(sum / (64 * 256)) < 0.005);
    for (size_t i = 64 * 256; i < 64 * 256 + 256; i++)
        ck_assert_float_eq(a[i], 0.0F);
    free(a);
    free(b);
}
END_TEST

/* The network is so small that every number can be worked out: 1-1-2 wide, one row. */
START_TEST(forward_and_backward_of_one_row)
{
    static const struct network network = {2, {1, 1, 2}};
    float parameters[] = {0.5F, 0.25F, 1.0F, -1.0F, 0.0F, 0.5F};
    float input = 1.5F, gradient[6];
    float *gradients[] = {gradient, gradient + 1, gradient + 2, gradient + 4};
    unsigned char label = 1;
    double hidden = tanh(1.5 * 0.5 + 0.25);
    double outputs[] = {hidden, 0.5 - hidden}, loss;
    double p0 = exp(outputs[0]) / (exp(outputs[0]) + exp(outputs[1])), p1 = 1.0 - p0;
    double below = (p0 * 1.0 + (p1 - 1.0) * -1.0) * (1.0 - hidden * hidden);
    double expected[] = {below * 1.5, below, hidden * p0, hidden * (p1 - 1.0), p0, p1 - 1.0};

    struct network_workspace *workspace = network_workspace_create(&network, 1);
    ck_assert_ptr_nonnull(workspace);
    const float *out = network_forward(&network, parameters, &input, 1, workspace);
    ck_assert_double_eq_tol((double)out[0], outputs[0], 1e-6);
    ck_assert_double_eq_tol((double)out[1], outputs[1], 1e-6);
    ck_assert_uint_eq(network_correct_count(&network, &label, workspace), 0);
    label = 0;
    ck_assert_uint_eq(network_correct_count(&network, &label, workspace), 1);
    label = 1;
    ck_assert_int_eq(network_backward(&network, parameters, &label, 1.0F, gradients, NULL, NULL,
                                      workspace, &loss),
                     0);
    ck_assert_double_eq_tol(loss, -log(p1), 1e-6);
    for (int i = 0; i < 6; i++)
        ck_assert_double_eq_tol((double)gradient[i], expected[i], 1e-6);
    network_workspace_free(workspace);
}
END_TEST

/* (loss(p + h) - loss(p - h)) / 2h for every single parameter. */
START_TEST(gradients_agree_with_finite_differences)
{
    struct pass pass;
    pass_open(&pass, &small_network, 13, 11);
    ck_assert_int_eq(pass_run(&pass, 0, 13, 1.0F), 0);
    float *gradient = allocate(pass.count, sizeof(float));
    memcpy(gradient, pass.gradient, pass.count * sizeof(float));
    const float h = 0x1p-7F;
    for (size_t i = 0; i < pass.count; i++) {
        float kept = pass.parameters[i];
        pass.parameters[i] = kept + h;
        ck_assert_int_eq(pass_run(&pass, 0, 13, 1.0F), 0);
        double above = pass.loss;
        pass.parameters[i] = kept - h;
        ck_assert_int_eq(pass_run(&pass, 0, 13, 1.0F), 0);
        double estimate = (above - pass.loss) / (2.0 * (double)h);
        pass.parameters[i] = kept;
        ck_assert_msg(fabs(estimate - (double)gradient[i]) < 2e-3, "parameter %zu: %g, not %g", i,
                      (double)gradient[i], estimate);
    }
    free(gradient);
    pass_close(&pass);
}
END_TEST

START_TEST(backward_tells_the_last_layer_first)
{
    static const size_t order[SMALL_TENSORS] = {5, 4, 3, 2, 1, 0};
    struct pass pass;
    pass_open(&pass, &small_network, 4, 12);
    ck_assert_int_eq(pass_run(&pass, 0, 4, 1.0F), 0);
    ck_assert_uint_eq(pass.told_count, SMALL_TENSORS);
    ck_assert_mem_eq(pass.told, order, sizeof order);
    pass.stop_after = 2;
    ck_assert_int_eq(pass_run(&pass, 0, 4, 1.0F), -99);
    ck_assert_uint_eq(pass.told_count, 3);
    pass_close(&pass);
}
END_TEST

START_TEST(backward_without_rows_gives_zeros)
{
    struct pass pass;
    pass_open(&pass, &small_network, 4, 13);
    ck_assert_int_eq(pass_run(&pass, 0, 0, 1.0F), 0);
    for (size_t i = 0; i < pass.count; i++)
        ck_assert_float_eq(pass.gradient[i], 0.0F);
    ck_assert_double_eq(pass.loss, 0.0);
    ck_assert_uint_eq(pass.told_count, SMALL_TENSORS);
    pass_close(&pass);
}
END_TEST

START_TEST(gradients_of_shares_add_up)
{
    struct pass pass;
    pass_open(&pass, &small_network, 10, 14);
    float *sum = allocate(pass.count, sizeof(float));
    double loss_sum = 0.0;
    for (int rank = 0; rank < 3; rank++) {
        size_t first, count;
        training_share(10, rank, 3, &first, &count);
        ck_assert_int_eq(pass_run(&pass, first, count, 0.1F), 0);
        loss_sum += pass.loss;
        for (size_t i = 0; i < pass.count; i++)
            sum[i] += pass.gradient[i];
    }
    ck_assert_int_eq(pass_run(&pass, 0, 10, 0.1F), 0);
    ck_assert_double_eq_tol(loss_sum, pass.loss, 1e-9);
    ck_assert(training_difference(&small_network, sum, pass.gradient, NULL) < 1e-5);
    free(sum);
    pass_close(&pass);
}
END_TEST

START_TEST(loss_of_great_outputs_is_finite)
{
    struct pass pass;
    pass_open(&pass, &small_network, 4, 15);
    for (size_t i = network_tensor_offset(&small_network, 4); i < pass.count; i++)
        pass.parameters[i] *= 1e4F;
    ck_assert_int_eq(pass_run(&pass, 0, 4, 1.0F), 0);
    ck_assert(isfinite(pass.loss));
    for (size_t i = 0; i < pass.count; i++)
        ck_assert(isfinite(pass.gradient[i]));
    pass_close(&pass);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("digits network");
    TCase *tcase = tcase_create("matrix");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, multiply_gives_the_ordered_sum);
    tcase_add_test(tcase, multiply_takes_empty_shapes);
    tcase_add_test(tcase, multiply_of_a_row_does_not_depend_on_the_others);
    tcase_add_test(tcase, transpose_twice_is_the_same);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("network");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, tensors_lie_one_after_the_other);
    tcase_add_test(tcase, initialize_depends_on_the_seed_alone);
    tcase_add_test(tcase, forward_and_backward_of_one_row);
    tcase_add_test(tcase, gradients_agree_with_finite_differences);
    tcase_add_test(tcase, backward_tells_the_last_layer_first);
    tcase_add_test(tcase, backward_without_rows_gives_zeros);
    tcase_add_test(tcase, gradients_of_shares_add_up);
    tcase_add_test(tcase, loss_of_great_outputs_is_finite);
    suite_add_tcase(suite, tcase);
    return suite_main(suite);
}
