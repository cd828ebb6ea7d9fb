/* CUDA's driver interface, as far as this project uses it: the names, the numbers and the layouts
 * that libcuda.so.1 of CUDA 12.0 and later has. A machine without the CUDA Toolkit thus builds the
 * same program as one with it. Nothing here is linked: the library is loaded at run time.
 *
 * With SHOAL_CUDA_TOOLKIT defined the types and numbers are those of the toolkit's own cuda.h, 12.8
 * or later, and the declarations of functions below stand beside the toolkit's: a compiler refuses
 * one that differs. tests/worker/device/test_cuda_driver.c compares everything else.
 */
#ifndef WORKER_DEVICE_CUDA_DRIVER_H
#define WORKER_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef SHOAL_CUDA_TOOLKIT
#include <cuda.h>
#else

/* --- numbers ------------------------------------------------------------------------------- */

typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_NOT_SUPPORTED = 801,
} CUresult;

typedef enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
} CUdevice_attribute;

typedef enum CUdriverProcAddressQueryResult_enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
} CUdriverProcAddressQueryResult;

typedef enum CUmemLocationType_enum {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
} CUmemLocationType;

typedef enum CUmemcpySrcAccessOrder_enum {
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
} CUmemcpySrcAccessOrder;

/* Flags, which functions take as an unsigned int. */
enum {
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_WAIT_DEFAULT = 0,
    CU_STREAM_WAIT_VALUE_GEQ = 0, /* a signed difference: it may wrap */
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1,
};
#define CU_MEMHOSTREGISTER_PORTABLE 0x01
#define CU_MEMHOSTREGISTER_DEVICEMAP 0x02

/* --- types --------------------------------------------------------------------------------- */

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUstream_st *CUstream;
typedef void (*CUhostFn)(void *argument);

/* The default stream by a handle; NULL is its other one. */
#define CU_STREAM_LEGACY ((CUstream)0x1)

typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;

typedef struct CUmemcpyAttributes_st {
    CUmemcpySrcAccessOrder srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;

/* --- the symbol of each function that has had another form --------------------------------- */

#define cuGetProcAddress cuGetProcAddress_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamWaitValue32 cuStreamWaitValue32_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemAllocHost cuMemAllocHost_v2
#define cuMemFree cuMemFree_v2
#define cuMemHostRegister cuMemHostRegister_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2

#endif

/* --- functions ----------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status);
CUresult cuGetErrorName(CUresult result, const char **name);
CUresult cuGetErrorString(CUresult result, const char **text);

CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int number);
CUresult cuDeviceGetName(char *name, int room, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *address, int room, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxPopCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);

CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument);

CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);

CUresult cuMemAlloc(CUdeviceptr *memory, size_t bytes);
CUresult cuMemAllocHost(void **memory, size_t bytes);
CUresult cuMemFree(CUdeviceptr memory);
CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void *memory);
CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned flags);

/* cuMemcpyBatchAsync in its two forms: it came with CUDA 12.8, and lost a parameter with 13.0. The
 * function is found by cuGetProcAddress, since older drivers have none. */
typedef CUresult (*cuda_batch_12080)(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
                                     size_t count, CUmemcpyAttributes *attributes, size_t *first,
                                     size_t attribute_count, size_t *failed, CUstream stream);
typedef CUresult (*cuda_batch_13000)(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
                                     size_t count, CUmemcpyAttributes *attributes, size_t *first,
                                     size_t attribute_count, CUstream stream);

#endif
