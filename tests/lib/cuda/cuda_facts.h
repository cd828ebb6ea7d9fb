/* A table of what worker/device/cuda_driver.h says of CUDA's driver. It is made twice: from our own
 * declarations (tests/lib/cuda/cuda_facts_own.c), and from the CUDA Toolkit's
 * (tests/lib/cuda/cuda_facts_toolkit.c). The two must be equal. */
#ifndef TESTS_LIB_CUDA_CUDA_FACTS_H
#define TESTS_LIB_CUDA_CUDA_FACTS_H

#include <stddef.h>
#include <stdint.h>

struct cuda_fact {
    const char *name; /* as the source has it */
    const char *text; /* of a function its symbol, of a type its kind, else "" */
    uint64_t value;   /* of a constant itself, of a type its bytes, of a field its offset */
};

struct cuda_facts {
    const struct cuda_fact *table;
    size_t count; /* 0: there is no toolkit */
};

struct cuda_facts cuda_facts_own(void);
struct cuda_facts cuda_facts_toolkit(void);

#define CUDA_FACT_TEXT(name) #name
#define CUDA_FACT_NUMBER(name) {#name, "", (uint64_t)(uintptr_t)(name)},
#define CUDA_FACT_INTEGER(type) {#type, (type)-1 <= (type)1 ? "signed" : "unsigned", sizeof(type)},
#define CUDA_FACT_TYPE(type, compatible)                                                           \
    {#type, __builtin_types_compatible_p(type, compatible) ? #compatible : "another", sizeof(type)},
#define CUDA_FACT_FIELD(type, field)                                                               \
    {#type "." #field, "", offsetof(type, field) * 1000 + sizeof(((type *)0)->field)},
/* The symbol is the name after the preprocessor; the type is compared by the header itself. */
#define CUDA_FACT_FUNCTION(name) {#name, CUDA_FACT_SYMBOL(name), 0},
#define CUDA_FACT_SYMBOL(name) CUDA_FACT_TEXT(name)

#define CUDA_FACTS                                                                                 \
    CUDA_FACT_NUMBER(CUDA_SUCCESS)                                                                 \
    CUDA_FACT_NUMBER(CUDA_ERROR_INVALID_VALUE)                                                     \
    CUDA_FACT_NUMBER(CUDA_ERROR_OUT_OF_MEMORY)                                                     \
    CUDA_FACT_NUMBER(CUDA_ERROR_NO_DEVICE)                                                         \
    CUDA_FACT_NUMBER(CUDA_ERROR_INVALID_DEVICE)                                                    \
    CUDA_FACT_NUMBER(CUDA_ERROR_INVALID_CONTEXT)                                                   \
    CUDA_FACT_NUMBER(CUDA_ERROR_INVALID_HANDLE)                                                    \
    CUDA_FACT_NUMBER(CUDA_ERROR_NOT_READY)                                                         \
    CUDA_FACT_NUMBER(CUDA_ERROR_ILLEGAL_ADDRESS)                                                   \
    CUDA_FACT_NUMBER(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)                                    \
    CUDA_FACT_NUMBER(CUDA_ERROR_NOT_SUPPORTED)                                                     \
    CUDA_FACT_NUMBER(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)                            \
    CUDA_FACT_NUMBER(CU_GET_PROC_ADDRESS_SUCCESS)                                                  \
    CUDA_FACT_NUMBER(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)                                         \
    CUDA_FACT_NUMBER(CU_MEM_LOCATION_TYPE_INVALID)                                                 \
    CUDA_FACT_NUMBER(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)                                            \
    CUDA_FACT_NUMBER(CU_STREAM_NON_BLOCKING)                                                       \
    CUDA_FACT_NUMBER(CU_EVENT_DISABLE_TIMING)                                                      \
    CUDA_FACT_NUMBER(CU_EVENT_WAIT_DEFAULT)                                                        \
    CUDA_FACT_NUMBER(CU_STREAM_WAIT_VALUE_GEQ)                                                     \
    CUDA_FACT_NUMBER(CU_GET_PROC_ADDRESS_DEFAULT)                                                  \
    CUDA_FACT_NUMBER(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)                                   \
    CUDA_FACT_NUMBER(CU_MEMHOSTREGISTER_PORTABLE)                                                  \
    CUDA_FACT_NUMBER(CU_MEMHOSTREGISTER_DEVICEMAP)                                                 \
    CUDA_FACT_NUMBER(CU_STREAM_LEGACY)                                                             \
    CUDA_FACT_INTEGER(CUresult)                                                                    \
    CUDA_FACT_INTEGER(CUdevice_attribute)                                                          \
    CUDA_FACT_INTEGER(CUdriverProcAddressQueryResult)                                              \
    CUDA_FACT_INTEGER(CUmemLocationType)                                                           \
    CUDA_FACT_INTEGER(CUmemcpySrcAccessOrder)                                                      \
    CUDA_FACT_TYPE(cuuint32_t, uint32_t)                                                           \
    CUDA_FACT_TYPE(cuuint64_t, uint64_t)                                                           \
    CUDA_FACT_TYPE(CUdevice, int)                                                                  \
    CUDA_FACT_TYPE(CUdeviceptr, unsigned long long)                                                \
    CUDA_FACT_TYPE(CUcontext, struct CUctx_st *)                                                   \
    CUDA_FACT_TYPE(CUevent, struct CUevent_st *)                                                   \
    CUDA_FACT_TYPE(CUstream, struct CUstream_st *)                                                 \
    CUDA_FACT_TYPE(CUhostFn, void (*)(void *))                                                     \
    CUDA_FACT_TYPE(CUmemLocation, struct CUmemLocation_st)                                         \
    CUDA_FACT_FIELD(CUmemLocation, type)                                                           \
    CUDA_FACT_FIELD(CUmemLocation, id)                                                             \
    CUDA_FACT_TYPE(CUmemcpyAttributes, struct CUmemcpyAttributes_st)                               \
    CUDA_FACT_FIELD(CUmemcpyAttributes, srcAccessOrder)                                            \
    CUDA_FACT_FIELD(CUmemcpyAttributes, srcLocHint)                                                \
    CUDA_FACT_FIELD(CUmemcpyAttributes, dstLocHint)                                                \
    CUDA_FACT_FIELD(CUmemcpyAttributes, flags)                                                     \
    CUDA_FACT_FUNCTION(cuInit)                                                                     \
    CUDA_FACT_FUNCTION(cuDriverGetVersion)                                                         \
    CUDA_FACT_FUNCTION(cuGetProcAddress)                                                           \
    CUDA_FACT_FUNCTION(cuGetErrorName)                                                             \
    CUDA_FACT_FUNCTION(cuGetErrorString)                                                           \
    CUDA_FACT_FUNCTION(cuDeviceGetCount)                                                           \
    CUDA_FACT_FUNCTION(cuDeviceGet)                                                                \
    CUDA_FACT_FUNCTION(cuDeviceGetName)                                                            \
    CUDA_FACT_FUNCTION(cuDeviceGetPCIBusId)                                                        \
    CUDA_FACT_FUNCTION(cuDeviceGetAttribute)                                                       \
    CUDA_FACT_FUNCTION(cuDevicePrimaryCtxRetain)                                                   \
    CUDA_FACT_FUNCTION(cuDevicePrimaryCtxRelease)                                                  \
    CUDA_FACT_FUNCTION(cuCtxPushCurrent)                                                           \
    CUDA_FACT_FUNCTION(cuCtxPopCurrent)                                                            \
    CUDA_FACT_FUNCTION(cuCtxSetCurrent)                                                            \
    CUDA_FACT_FUNCTION(cuCtxGetStreamPriorityRange)                                                \
    CUDA_FACT_FUNCTION(cuStreamCreate)                                                             \
    CUDA_FACT_FUNCTION(cuStreamCreateWithPriority)                                                 \
    CUDA_FACT_FUNCTION(cuStreamDestroy)                                                            \
    CUDA_FACT_FUNCTION(cuStreamSynchronize)                                                        \
    CUDA_FACT_FUNCTION(cuStreamWaitEvent)                                                          \
    CUDA_FACT_FUNCTION(cuStreamWaitValue32)                                                        \
    CUDA_FACT_FUNCTION(cuLaunchHostFunc)                                                           \
    CUDA_FACT_FUNCTION(cuEventCreate)                                                              \
    CUDA_FACT_FUNCTION(cuEventDestroy)                                                             \
    CUDA_FACT_FUNCTION(cuEventRecord)                                                              \
    CUDA_FACT_FUNCTION(cuEventQuery)                                                               \
    CUDA_FACT_FUNCTION(cuMemAlloc)                                                                 \
    CUDA_FACT_FUNCTION(cuMemAllocHost)                                                             \
    CUDA_FACT_FUNCTION(cuMemFree)                                                                  \
    CUDA_FACT_FUNCTION(cuMemsetD8Async)                                                            \
    CUDA_FACT_FUNCTION(cuMemcpyAsync)                                                              \
    CUDA_FACT_FUNCTION(cuMemHostRegister)                                                          \
    CUDA_FACT_FUNCTION(cuMemHostUnregister)                                                        \
    CUDA_FACT_FUNCTION(cuMemHostGetDevicePointer)

#endif
