/* Products of complex numbers, which libshoal does not have: every rank gets what is to be
 * multiplied, and multiplies in the order of the ranks. */
#ifndef WORKER_MPI_PRODUCT_H
#define WORKER_MPI_PRODUCT_H

#include "worker/shoal.h"

/* Do as shoal_all_reduce and shoal_reduce_scatter, of `count` pairs of dtype, SHOAL_F32 or
 * SHOAL_F64. Between communicator_enter and process_leave, which they call and whose error they
 * return. */
int product_all_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                       enum shoal_dtype dtype);
int product_reduce_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                           enum shoal_dtype dtype);

#endif
