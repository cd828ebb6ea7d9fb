/* Declarations that the two files of the stand-in for CUDA's driver share:
 * tests/lib/cuda/cuda_stand_in.c has its calls and faults, tests/lib/cuda/cuda_stand_in_stream.c
 * the work on streams. One lock guards all of it. */
#ifndef TESTS_LIB_CUDA_CUDA_STAND_IN_PRIVATE_H
#define TESTS_LIB_CUDA_CUDA_STAND_IN_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/cuda/cuda_stand_in.h"
#include "worker/device/cuda_driver.h"

struct range {
    uintptr_t start;
    size_t bytes;
    uint8_t *shadow; /* of device memory */
    struct range *next;
};

/* The context of a device. */
struct CUctx_st {
    int retained;
    CUstream default_stream; /* NULL: nothing was put onto it yet */
};

extern pthread_mutex_t lock;
extern pthread_cond_t changed; /* anything */
extern struct range *allocations, *registrations;
extern int stream_count, thread_count, event_count;
extern int memory_operations;
extern CUresult broken;
extern long unpinned_copies;

uint64_t draw(void);
/* The calling thread's context; the first device's where it has none. */
CUcontext current_context(void);

/* The beginning and the end of every call, which holds the lock: what it is to fail with. */
CUresult enter(const char *function, bool needs_context);
CUresult leave(CUresult result);
#define ENTER(function)                                                                            \
    CUresult result = enter(#function, true);                                                      \
    if (result != CUDA_SUCCESS)                                                                    \
    return leave(result)
#define ENTER_WITHOUT_CONTEXT(function)                                                            \
    CUresult result = enter(#function, false);                                                     \
    if (result != CUDA_SUCCESS)                                                                    \
    return leave(result)

struct range *find_range(struct range *ranges, uintptr_t address);
/* Where a copy finds this; NULL when it lies partly outside of the device's memory, or is pinned in
 * part. */
void *reach(uintptr_t address, size_t bytes, bool *on_device, bool *pinned);

/* Whether something on a stream is still to use this memory. */
bool stand_in_busy(const struct range *range);

/* Both forms of cuMemcpyBatchAsync. */
CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                    CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                    CUstream stream);
CUresult copy_batch_12080(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                          CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                          size_t *failed, CUstream stream);

#endif
