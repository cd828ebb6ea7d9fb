/* A stand-in for CUDA's driver library: a shared object of its own, see
 * tests/lib/cuda/cuda_stand_in.h. Device memory is mapped twice: at the address that callers get it
 * cannot be touched, and the streams' threads use the other one. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "tests/lib/cuda/cuda_stand_in_private.h"

#define CONTEXTS_MAX 8
#define FUNCTIONS_MAX 64
#define DEVICES_MAX 2

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct range *allocations, *registrations;
int stream_count, thread_count, event_count;
int memory_operations = 1;
CUresult broken;
long unpinned_copies;
static struct CUctx_st contexts[DEVICES_MAX];
static int device_count = 1;
static uint64_t random_state = 0x9e3779b97f4a7c15ull;
static int version = 13000;
static struct {
    const char *function;
    long calls;
} counts[FUNCTIONS_MAX];
static long all_calls, late_frees;
static const char *fail_function, *failed_function = "";
static int fail_nth, fail_result;
/* This model of thread-local memory leaves a thread that ends nothing of this library to free. */
#define THREADS_OWN static _Thread_local __attribute__((tls_model("initial-exec")))
THREADS_OWN CUcontext current[CONTEXTS_MAX];
THREADS_OWN int current_count;

uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

CUcontext current_context(void)
{
    return current_count > 0 ? current[current_count - 1] : &contexts[0];
}

/* --- faults -------------------------------------------------------------------------------- */

/* Count a call; lock held. Return the error it must fail with, or CUDA_SUCCESS. */
static CUresult count_call(const char *function)
{
    int i = 0;
    while (i < FUNCTIONS_MAX - 1 && counts[i].function && strcmp(counts[i].function, function) != 0)
        i++;
    counts[i].function = function;
    counts[i].calls++;
    all_calls++;
    if (fail_nth > 0 && (!fail_function || strcmp(fail_function, function) == 0) &&
        --fail_nth == 0) {
        failed_function = function;
        return (CUresult)fail_result;
    }
    return broken;
}

/* For a call that needs a context. */
CUresult enter(const char *function, bool needs_context)
{
    pthread_mutex_lock(&lock);
    CUresult result = count_call(function);
    if (result == CUDA_SUCCESS && needs_context && current_count == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    return result;
}

CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- memory -------------------------------------------------------------------------------- */

struct range *find_range(struct range *ranges, uintptr_t address)
{
    while (ranges && (address < ranges->start || address >= ranges->start + ranges->bytes))
        ranges = ranges->next;
    return ranges;
}

/* Where a copy finds this; NULL when it lies partly outside of the device's memory, or is pinned in
 * part. */
void *reach(uintptr_t address, size_t bytes, bool *on_device, bool *pinned)
{
    const struct range *range = find_range(allocations, address);
    if (range) {
        *on_device = true;
        return bytes > range->start + range->bytes - address
                   ? NULL
                   : range->shadow + (address - range->start);
    }
    const struct range *registered = find_range(registrations, address);
    if (bytes > 0 && registered != find_range(registrations, address + bytes - 1))
        return NULL;
    *pinned &= registered != NULL;
    return (void *)address;
}

static void free_range(struct range **ranges, uintptr_t address)
{
    struct range *range = find_range(*ranges, address);
    if (!range)
        return;
    if (range->shadow) {
        munmap(range->shadow, range->bytes);
        munmap((void *)range->start, range->bytes);
    }
    LL_DELETE(*ranges, range);
    free(range);
}

CUresult cuMemAlloc(CUdeviceptr *memory, size_t bytes)
{
    ENTER(cuMemAlloc);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct range *range = calloc(1, sizeof(*range));
    range->bytes = (bytes + page - 1) / page * page;
    int fd = memfd_create("stand-in", MFD_CLOEXEC);
    if (ftruncate(fd, (off_t)range->bytes) != 0)
        abort();
    range->start = (uintptr_t)mmap(NULL, range->bytes, PROT_NONE, MAP_SHARED, fd, 0);
    range->shadow = mmap(NULL, range->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    LL_PREPEND(allocations, range);
    *memory = range->start;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemFree(CUdeviceptr memory)
{
    CUresult result = enter("cuMemFree", false);
    const struct range *range = find_range(allocations, memory);
    if (range && stand_in_busy(range)) { /* as the driver does */
        late_frees++;
        while (stand_in_busy(range) && !broken)
            pthread_cond_wait(&changed, &lock);
    }
    free_range(&allocations, memory);
    return leave(result);
}

CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER(cuMemHostRegister);
    if (find_range(registrations, (uintptr_t)memory))
        return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    struct range *range = calloc(1, sizeof(*range));
    range->start = (uintptr_t)memory;
    range->bytes = bytes;
    LL_PREPEND(registrations, range);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *memory)
{
    CUresult result = enter("cuMemHostUnregister", false);
    free_range(&registrations, (uintptr_t)memory);
    return leave(result);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *memory, unsigned flags)
{
    (void)flags;
    ENTER(cuMemHostGetDevicePointer);
    if (!find_range(registrations, (uintptr_t)memory))
        return leave(CUDA_ERROR_INVALID_VALUE);
    *device = (CUdeviceptr)memory;
    return leave(CUDA_SUCCESS);
}

/* --- device and context -------------------------------------------------------------------- */

/* For programs that a test starts, as CUDA_VISIBLE_DEVICES. */
static bool has_device(void)
{
    const char *devices = getenv("STAND_IN_DEVICES");
    return !devices || strcmp(devices, "0") != 0;
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    ENTER_WITHOUT_CONTEXT(cuInit);
    return leave(has_device() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
}

CUresult cuDriverGetVersion(int *value)
{
    ENTER_WITHOUT_CONTEXT(cuDriverGetVersion);
    *value = version;
    return leave(CUDA_SUCCESS);
}

CUresult cuGetProcAddress(const char *symbol, void **function, int wanted, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    (void)flags;
    ENTER_WITHOUT_CONTEXT(cuGetProcAddress);
    *function = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (strcmp(symbol, "cuMemcpyBatchAsync") == 0 && version >= 12080 && wanted <= version) {
        cuda_batch_13000 newer = copy_batch;
        cuda_batch_12080 older = copy_batch_12080;
        if (wanted >= 13000)
            memcpy(function, &newer, sizeof(newer));
        else
            memcpy(function, &older, sizeof(older));
        *status = CU_GET_PROC_ADDRESS_SUCCESS;
    }
    return leave(CUDA_SUCCESS);
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    *name = result == CUDA_ERROR_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == CUDA_ERROR_NOT_SUPPORTED   ? "CUDA_ERROR_NOT_SUPPORTED"
            : result == CUDA_ERROR_NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
            : result == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                                   : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    (void)result;
    *text = "as the stand-in was told";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER_WITHOUT_CONTEXT(cuDeviceGetCount);
    *count = device_count;
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int number)
{
    ENTER_WITHOUT_CONTEXT(cuDeviceGet);
    *device = number;
    return leave(number < device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

static void put_text(char *to, int room, const char *text)
{
    strncpy(to, text, (size_t)room - 1);
    to[room - 1] = '\0';
}

CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    (void)device;
    ENTER_WITHOUT_CONTEXT(cuDeviceGetName);
    put_text(name, room, "stand-in");
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *address, int room, CUdevice device)
{
    (void)device;
    ENTER_WITHOUT_CONTEXT(cuDeviceGetPCIBusId);
    put_text(address, room, "ffff:ff:1f.7");
    return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    ENTER_WITHOUT_CONTEXT(cuDeviceGetAttribute);
    if (attribute != CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *value = memory_operations;
    return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
    ENTER_WITHOUT_CONTEXT(cuDevicePrimaryCtxRetain);
    contexts[device].retained++;
    *made = &contexts[device];
    return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    CUresult result = enter("cuDevicePrimaryCtxRelease", false);
    contexts[device].retained--;
    return leave(result);
}

CUresult cuCtxPushCurrent(CUcontext pushed)
{
    ENTER_WITHOUT_CONTEXT(cuCtxPushCurrent);
    if (current_count == CONTEXTS_MAX || pushed->retained == 0)
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    current[current_count++] = pushed;
    return leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *popped)
{
    CUresult result = enter("cuCtxPopCurrent", true);
    if (current_count > 0)
        *popped = current[--current_count];
    return leave(result);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(cuCtxGetStreamPriorityRange);
    *least = 0;
    *greatest = -5;
    return leave(CUDA_SUCCESS);
}

/* --- controls ------------------------------------------------------------------------------ */

void stand_in_seed(uint64_t seed);
void stand_in_set_version(int value);
void stand_in_set_memory_operations(bool there);
void stand_in_set_devices(int count);
void stand_in_fail_call(const char *function, int nth, int result);
void stand_in_break_device(int result);
long stand_in_calls(const char *function);
const char *stand_in_failed(void);
long stand_in_unpinned(void);
long stand_in_late_frees(void);
struct stand_in_live stand_in_live(void);

void stand_in_seed(uint64_t seed)
{
    pthread_mutex_lock(&lock);
    random_state = seed * 0x2545f4914f6cdd1dull + 0x9e3779b97f4a7c15ull;
    pthread_mutex_unlock(&lock);
}

void stand_in_set_version(int value)
{
    pthread_mutex_lock(&lock);
    version = value;
    pthread_mutex_unlock(&lock);
}

void stand_in_set_memory_operations(bool there)
{
    pthread_mutex_lock(&lock);
    memory_operations = there;
    pthread_mutex_unlock(&lock);
}

void stand_in_set_devices(int count)
{
    pthread_mutex_lock(&lock);
    device_count = count;
    pthread_mutex_unlock(&lock);
}

void stand_in_fail_call(const char *function, int nth, int result)
{
    pthread_mutex_lock(&lock);
    fail_function = function;
    fail_nth = nth;
    fail_result = result;
    failed_function = "";
    pthread_mutex_unlock(&lock);
}

void stand_in_break_device(int result)
{
    pthread_mutex_lock(&lock);
    broken = (CUresult)result;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

long stand_in_calls(const char *function)
{
    long calls = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; function && i < FUNCTIONS_MAX && counts[i].function; i++)
        if (strcmp(counts[i].function, function) == 0)
            calls = counts[i].calls;
    if (!function)
        calls = all_calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

const char *stand_in_failed(void)
{
    pthread_mutex_lock(&lock);
    const char *function = failed_function;
    pthread_mutex_unlock(&lock);
    return function;
}

long stand_in_unpinned(void)
{
    pthread_mutex_lock(&lock);
    long count = unpinned_copies;
    pthread_mutex_unlock(&lock);
    return count;
}

long stand_in_late_frees(void)
{
    pthread_mutex_lock(&lock);
    long count = late_frees;
    pthread_mutex_unlock(&lock);
    return count;
}

struct stand_in_live stand_in_live(void)
{
    struct stand_in_live live = {0};
    struct range *range;
    pthread_mutex_lock(&lock);
    while (thread_count > stream_count)
        pthread_cond_wait(&changed, &lock);
    for (int i = 0; i < DEVICES_MAX; i++)
        live.contexts += contexts[i].retained;
    live.streams = stream_count;
    live.events = event_count;
    LL_FOREACH(registrations, range)
    {
        live.registrations++;
    }
    LL_FOREACH(allocations, range)
    {
        live.allocations++;
    }
    pthread_mutex_unlock(&lock);
    return live;
}
