#include "worker/examples/digits/matrix.h"

#include <string.h>

/* One tile of the product is held in registers: TILE_ROWS by TILE_COLUMNS floats, in vectors of the
 * 16 bytes that every x86-64 has. With wider vectors some compilers keep each step on the stack. */
enum { TILE_ROWS = 4, LANES = 4, TILE_COLUMNS = 2 * LANES };

typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static lanes lanes_load(const float *from)
{
    lanes loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

static void lanes_store(float *to, lanes low, lanes high)
{
    memcpy(to, &low, sizeof low);
    memcpy(to + LANES, &high, sizeof high);
}

static void multiply_tile(float *product, const struct matrix_view *left, const float *right,
                          const float *start, size_t inner, size_t columns)
{
    const float *l0 = left->data;
    const float *l1 = l0 + left->row_stride;
    const float *l2 = l1 + left->row_stride;
    const float *l3 = l2 + left->row_stride;
    const lanes zero = {0};
    lanes low0 = start ? lanes_load(start) : zero, high0 = start ? lanes_load(start + LANES) : zero;
    lanes low1 = low0, low2 = low0, low3 = low0, high1 = high0, high2 = high0, high3 = high0;

    for (size_t k = 0; k < inner; k++) {
        size_t at = k * left->column_stride;
        lanes low = lanes_load(right + k * columns), high = lanes_load(right + k * columns + LANES);
        low0 += l0[at] * low;
        high0 += l0[at] * high;
        low1 += l1[at] * low;
        high1 += l1[at] * high;
        low2 += l2[at] * low;
        high2 += l2[at] * high;
        low3 += l3[at] * low;
        high3 += l3[at] * high;
    }
    lanes_store(product, low0, high0);
    lanes_store(product + columns, low1, high1);
    lanes_store(product + 2 * columns, low2, high2);
    lanes_store(product + 3 * columns, low3, high3);
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
