/* The floor of the device path: plain copies between pinned memory and a GPU, both ways at once, by
 * the driver's own calls. Prints the time of one pair of copies in microseconds.
 *
 *   bench_gpu_copy BYTES [ITERATIONS]
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/device/cuda_driver.h"

#define FUNCTIONS(X)                                                                               \
    X(cuInit)                                                                                      \
    X(cuDeviceGet)                                                                                 \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuCtxSetCurrent)                                                                             \
    X(cuMemAlloc)                                                                                  \
    X(cuMemAllocHost)                                                                              \
    X(cuStreamCreate)                                                                              \
    X(cuStreamSynchronize)                                                                         \
    X(cuMemcpyAsync)
#define FIELD(name) __typeof__(name) *name; /* NOLINT(bugprone-macro-parentheses): a name */
#define TEXT(name) #name
#define SYMBOL(name) TEXT(name)

struct driver {
    FUNCTIONS(FIELD)
};

static bool load(struct driver *driver)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    bool all = library != NULL;
#define LOOK_UP(name)                                                                              \
    do {                                                                                           \
        void *found = library ? dlsym(library, SYMBOL(name)) : NULL;                               \
        all = all && found;                                                                        \
        memcpy(&driver->name, &found, sizeof(found));                                              \
    } while (0);
    FUNCTIONS(LOOK_UP)
    return all;
}

struct side {
    CUstream stream;
    CUdeviceptr device;
    void *host;
};

static bool open_side(const struct driver *driver, struct side *side, size_t bytes)
{
    return driver->cuStreamCreate(&side->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           driver->cuMemAlloc(&side->device, bytes) == CUDA_SUCCESS &&
           driver->cuMemAllocHost(&side->host, bytes) == CUDA_SUCCESS;
}

static bool copy_pair(const struct driver *driver, const struct side *out, const struct side *in,
                      size_t bytes)
{
    return driver->cuMemcpyAsync((CUdeviceptr)out->host, out->device, bytes, out->stream) ==
               CUDA_SUCCESS &&
           driver->cuMemcpyAsync(in->device, (CUdeviceptr)in->host, bytes, in->stream) ==
               CUDA_SUCCESS &&
           driver->cuStreamSynchronize(out->stream) == CUDA_SUCCESS &&
           driver->cuStreamSynchronize(in->stream) == CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
    struct driver driver;
    struct side out, in;
    CUdevice device;
    CUcontext context;
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 64u << 20;
    int iterations = argc > 2 ? atoi(argv[2]) : 20;
    if (!load(&driver) || driver.cuInit(0) != CUDA_SUCCESS ||
        driver.cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
        driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
        driver.cuCtxSetCurrent(context) != CUDA_SUCCESS || !open_side(&driver, &out, bytes) ||
        !open_side(&driver, &in, bytes) || iterations < 1) {
        fprintf(stderr, "bench_gpu_copy: no GPU, or no memory of it\n");
        return 1;
    }
    bool good = copy_pair(&driver, &out, &in, bytes);
    uint64_t start_ns = clock_now_ns();
    for (int i = 0; i < iterations && good; i++)
        good = copy_pair(&driver, &out, &in, bytes);
    printf("%.2f\n", (double)(clock_now_ns() - start_ns) / 1e3 / iterations);
    return good ? 0 : 1;
}
