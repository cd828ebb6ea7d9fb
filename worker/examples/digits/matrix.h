/* Products of small dense matrices in float, for the example's network. Pure; nothing is allocated.
 */
#ifndef WORKER_EXAMPLES_DIGITS_MATRIX_H
#define WORKER_EXAMPLES_DIGITS_MATRIX_H

#include <stddef.h>

/* A matrix to read: element (i, j) is data[i * row_stride + j * column_stride], so that a
 * transposed view costs nothing. */
struct matrix_view {
    const float *data;
    size_t row_stride;    /* elements */
    size_t column_stride; /* elements */
};

/* product[rows][columns] = start + left(rows x inner) * right[inner][columns].
 * start is one row of `columns` elements added to every row, or NULL for zero. Each element is
 * summed in ascending order of the inner index whatever the shape, so a row of the product does not
 * depend on the other rows: the same bits come out wherever in a batch a row stands. */
void matrix_multiply(float *product, struct matrix_view left, const float *right,
                     const float *start, size_t rows, size_t inner, size_t columns);

/* transposed[columns][rows] = matrix[rows][columns]. */
void matrix_transpose(float *transposed, const float *matrix, size_t rows, size_t columns);

#endif
