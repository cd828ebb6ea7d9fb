#include "worker/mpi/product.h"

#include <stdlib.h>
#include <string.h>

#include "worker/mpi/process.h"

/* into *= by, both of `count` pairs. NOLINTBEGIN(bugprone-macro-parentheses): number is a type */
#define PRODUCT(name, number)                                                                      \
    static void name(void *into, const void *by, size_t count)                                     \
    {                                                                                              \
        number *a = into;                                                                          \
        const number *b = by;                                                                      \
        for (size_t i = 0; i < 2 * count; i += 2) {                                                \
            number real = a[i] * b[i] - a[i + 1] * b[i + 1];                                       \
            a[i + 1] = a[i] * b[i + 1] + a[i + 1] * b[i];                                          \
            a[i] = real;                                                                           \
        }                                                                                          \
    }
PRODUCT(product_f32, float)
PRODUCT(product_f64, double)
/* NOLINTEND(bugprone-macro-parentheses) */

typedef int (*product_exchange)(shoal_group *group, const void *send, void *recv, size_t count,
                                enum shoal_dtype dtype, shoal_request **request);

/* exchange: brings what is to be multiplied, a part of each rank's. */
static int product_of(shoal_group *group, const void *send, void *recv, size_t count,
                      enum shoal_dtype dtype, product_exchange exchange)
{
    size_t ranks = (size_t)shoal_group_size(group), bytes = 2 * count * shoal_dtype_bytes(dtype);
    char *parts = malloc(ranks * bytes + 1);
    if (!parts)
        return process_leave_failed("no memory for a product of complex numbers");
    int result = exchange(group, send, parts, 2 * count, dtype, NULL);
    if (result == SHOAL_OK) {
        for (size_t i = 1; i < ranks; i++)
            (dtype == SHOAL_F32 ? product_f32 : product_f64)(parts, parts + i * bytes, count);
        memcpy(recv, parts, bytes);
    }
    int error = process_leave(result); /* closes the job, so that nobody writes to parts */
    free(parts);
    return error;
}

int product_all_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                       enum shoal_dtype dtype)
{
    return product_of(group, send, recv, count, dtype, shoal_all_gather);
}

int product_reduce_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                           enum shoal_dtype dtype)
{
    return product_of(group, send, recv, count, dtype, shoal_all_to_all);
}
