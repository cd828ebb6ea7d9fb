#include "worker/examples/digits/matrix.h"

#include <string.h>

/* One tile of the product is held in registers: TILE_ROWS vectors of TILE_COLUMNS floats. */
enum { TILE_ROWS = 4, TILE_COLUMNS = 8 };

typedef float lanes __attribute__((vector_size(TILE_COLUMNS * sizeof(float))));

static void multiply_tile(float *product, const struct matrix_view *left, const float *right,
                          const float *start, size_t inner, size_t columns)
{
    const float *l0 = left->data;
    const float *l1 = l0 + left->row_stride;
    const float *l2 = l1 + left->row_stride;
    const float *l3 = l2 + left->row_stride;
    lanes sum0 = {0};
    if (start)
        memcpy(&sum0, start, sizeof sum0);
    lanes sum1 = sum0, sum2 = sum0, sum3 = sum0;

    for (size_t k = 0; k < inner; k++) {
        lanes r;
        size_t at = k * left->column_stride;
        memcpy(&r, right + k * columns, sizeof r);
        sum0 += l0[at] * r;
        sum1 += l1[at] * r;
        sum2 += l2[at] * r;
        sum3 += l3[at] * r;
    }
    memcpy(product, &sum0, sizeof sum0);
    memcpy(product + columns, &sum1, sizeof sum1);
    memcpy(product + 2 * columns, &sum2, sizeof sum2);
    memcpy(product + 3 * columns, &sum3, sizeof sum3);
}

static float multiply_element(const float *left, size_t left_stride, const float *right,
                              size_t right_stride, float start, size_t inner)
{
    float sum = start;
    for (size_t k = 0; k < inner; k++)
        sum += left[k * left_stride] * right[k * right_stride];
    return sum;
}

void matrix_multiply(float *product, struct matrix_view left, const float *right,
                     const float *start, size_t rows, size_t inner, size_t columns)
{
    size_t tiled_rows = rows - rows % TILE_ROWS;
    size_t tiled_columns = columns - columns % TILE_COLUMNS;

    /* Columns outside: the strip of `right` stays in the nearest cache while the rows go by. */
    for (size_t j = 0; j < tiled_columns; j += TILE_COLUMNS)
        for (size_t i = 0; i < tiled_rows; i += TILE_ROWS) {
            struct matrix_view tile = {left.data + i * left.row_stride, left.row_stride,
                                       left.column_stride};
            multiply_tile(product + i * columns + j, &tile, right + j, start ? start + j : NULL,
                          inner, columns);
        }
    for (size_t i = 0; i < rows; i++)
        for (size_t j = i < tiled_rows ? tiled_columns : 0; j < columns; j++)
            product[i * columns + j] =
                multiply_element(left.data + i * left.row_stride, left.column_stride, right + j,
                                 columns, start ? start[j] : 0.0F, inner);
}

void matrix_transpose(float *transposed, const float *matrix, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            transposed[j * rows + i] = matrix[i * columns + j];
}
