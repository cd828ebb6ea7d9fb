/* The one file that knows CUDA. Its driver library is loaded when the first device is opened, and
 * stays loaded: it has threads and handlers of its own.
 *
 * Copies go onto two streams of the highest priority, one for each direction, that never wait for
 * anything but copies before them; so a stream of the caller's that waits for a word, and whatever
 * shares a hardware queue with it, is never in front of the copies that it waits for. Host
 * functions, which hold up what comes after them, go onto streams that carry nothing else.
 *
 * Streams of one priority share hardware queues, few, or one (CUDA_DEVICE_MAX_CONNECTIONS). Bells
 * have other priorities than callers' streams: behind one that waits for a word, the bell for a
 * copy that it waits for could not ring; and bells that wait for callers' streams would hold up
 * others. Each kind of bell has its own priority, below that of copies.
 */
#include "worker/device/device.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker/device/cuda_driver.h"

#define DEFAULT_LIBRARY "libcuda.so.1"
#define LEAST_DRIVER 12000
#define WORDS_BYTES (DEVICE_WORDS * sizeof(uint32_t))

/* Every function used. The header makes some of the names those of a version
 * (cuMemHostRegister_v2), and they are looked up as such. */
#define FUNCTIONS(X)                                                                               \
    X(cuInit)                                                                                      \
    X(cuDriverGetVersion)                                                                          \
    X(cuGetProcAddress)                                                                            \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetPCIBusId)                                                                         \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuCtxGetStreamPriorityRange)                                                                 \
    X(cuStreamCreateWithPriority)                                                                  \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamWaitEvent)                                                                           \
    X(cuStreamWaitValue32)                                                                         \
    X(cuLaunchHostFunc)                                                                            \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy)                                                                              \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemsetD8Async)                                                                             \
    X(cuMemcpyAsync)                                                                               \
    X(cuMemHostRegister)                                                                           \
    X(cuMemHostUnregister)                                                                         \
    X(cuMemHostGetDevicePointer)

#define FIELD(name) __typeof__(name) *name; /* NOLINT(bugprone-macro-parentheses): a name */
#define TEXT(name) #name
#define SYMBOL(name) TEXT(name)

/* Argument of host functions. It may outlive the device, and goes with its last reference; a device
 * that has failed does not call its functions any more, and then it stays. */
struct bells {
    atomic_uint references;
    _Atomic uint32_t rung;
    int wake_fd;
    struct bell {
        struct bells *of;
        uint32_t bit;
    } bell[DEVICE_BELLS];
};

struct device {
    struct {
        FUNCTIONS(FIELD)
    } call;
    int number;
    CUdevice id;
    char name[DEVICE_NAME_BYTES];
    char address[16];
    CUcontext context;
    CUstream lanes[DEVICE_LANES];
    CUstream bell_streams[DEVICE_BELLS]; /* that of DEVICE_BELL_WAITS waits for the waits */
    CUstream own;                        /* for programs without one */
    struct bells *bells;
    _Atomic uintptr_t keeper; /* the thread that keeps the context; 0: none */
    bool kept;                /* it has it; the keeper's own */
    const char *no_waits;     /* why streams do not wait for words, or NULL */
    atomic_bool copies_lost, waits_lost;
    cuda_batch_12080 copy_batch_12080;
    cuda_batch_13000 copy_batch_13000;
    void *pinned;
    _Atomic uint32_t *words;
    bool words_pinned;
    CUdeviceptr words_address; /* as the device sees them */
};

/* --- errors -------------------------------------------------------------------------------- */

static int failure(const struct device *device, CUresult result, const char *function,
                   struct error *error)
{
    const char *name = NULL, *text = NULL;
    device->call.cuGetErrorName(result, &name);
    device->call.cuGetErrorString(result, &text);
    int code = result == CUDA_ERROR_OUT_OF_MEMORY   ? ERR_MEMORY
               : result == CUDA_ERROR_NOT_SUPPORTED ? ERR_UNSUPPORTED
               : result == CUDA_ERROR_NO_DEVICE     ? ERR_UNSUPPORTED
               : result == CUDA_ERROR_INVALID_VALUE ? ERR_INVALID
                                                    : ERR_SYSTEM;
    return error_set(error, code, "GPU %d%s%s: %s: %s (%d: %s)", device->number,
                     device->name[0] ? ", " : "", device->name, function,
                     name ? name : "unknown error", (int)result, text ? text : "no words");
}

/* `if (CALL(device, error, cuInit, 0) < 0)`: 0 or the failure. */
#define CALL(device, error, function, ...)                                                         \
    check((device), (device)->call.function(__VA_ARGS__), SYMBOL(function), (error))

static int check(const struct device *device, CUresult result, const char *function,
                 struct error *error)
{
    return result == CUDA_SUCCESS ? 0 : failure(device, result, function, error);
}

static bool is_keeper(const struct device *device)
{
    return atomic_load(&device->keeper) == (uintptr_t)pthread_self();
}

/* The calling thread's context is the caller's; ours is on top of it for the time of a call, or
 * until a thread that keeps it lets go of it. */
static int enter(struct device *device, struct error *error)
{
    bool keeper = is_keeper(device);
    if (keeper && device->kept)
        return 0;
    int code = CALL(device, error, cuCtxPushCurrent, device->context);
    if (keeper && code == 0)
        device->kept = true;
    return code;
}

static int leave(const struct device *device, int code)
{
    CUcontext popped;
    if (!is_keeper(device))
        device->call.cuCtxPopCurrent(&popped); /* what was done is done, whatever this says */
    return code;
}

void device_keep(struct device *device)
{
    atomic_store(&device->keeper, (uintptr_t)pthread_self());
}

void device_let_go(struct device *device)
{
    if (!is_keeper(device))
        return;
    atomic_store(&device->keeper, 0);
    if (device->kept)
        leave(device, 0);
    device->kept = false;
}

/* --- opening ------------------------------------------------------------------------------- */

static int load(struct device *device, const char *path, struct error *error)
{
    void *library = dlopen(path ? path : DEFAULT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(error, ERR_UNSUPPORTED, "GPU %d: no CUDA driver on this machine: %s",
                         device->number, dlerror());
    const char *missing = NULL;
#define LOOK_UP(name)                                                                              \
    do {                                                                                           \
        void *found = dlsym(library, SYMBOL(name));                                                \
        if (!found)                                                                                \
            missing = SYMBOL(name);                                                                \
        memcpy(&device->call.name, &found, sizeof(found));                                         \
    } while (0);
    FUNCTIONS(LOOK_UP)
    if (missing)
        return error_set(error, ERR_UNSUPPORTED, "GPU %d: the CUDA driver %s has no %s: too old?",
                         device->number, path ? path : DEFAULT_LIBRARY, missing);
    return 0;
}

/* A function that is not in every driver, in the form that it had in a version; or NULL. */
static void *look_up(const struct device *device, const char *name, int version)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (device->call.cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT,
                                      &status) != CUDA_SUCCESS ||
        status != CU_GET_PROC_ADDRESS_SUCCESS)
        return NULL;
    return found;
}

static int find_device(struct device *device, struct error *error)
{
    int version = 0, count = 0;
    if (CALL(device, error, cuInit, 0) < 0 ||
        CALL(device, error, cuDriverGetVersion, &version) < 0 ||
        CALL(device, error, cuDeviceGetCount, &count) < 0)
        return error->code;
    if (version < LEAST_DRIVER)
        return error_set(error, ERR_UNSUPPORTED,
                         "GPU %d: the driver is for CUDA %d.%d, 12.0 is needed", device->number,
                         version / 1000, version % 1000 / 10);
    if (device->number < 0 || device->number >= count)
        return error_set(error, ERR_INVALID, "GPU %d: this process has %d (0 to %d)",
                         device->number, count, count - 1);
    if (CALL(device, error, cuDeviceGet, &device->id, device->number) < 0 ||
        CALL(device, error, cuDeviceGetName, device->name, sizeof(device->name), device->id) < 0 ||
        CALL(device, error, cuDeviceGetPCIBusId, device->address, sizeof(device->address),
             device->id) < 0)
        return error->code;
    void *found = look_up(device, "cuMemcpyBatchAsync", 13000);
    if (found && version >= 13000)
        memcpy(&device->copy_batch_13000, &found, sizeof(found));
    else if (version >= 12080 && (found = look_up(device, "cuMemcpyBatchAsync", 12080)))
        memcpy(&device->copy_batch_12080, &found, sizeof(found));
    /* A device that can wait for words of 64 bits can for those of 32, which have no attribute. */
    int wide_operations = 0;
    if (CALL(device, error, cuDeviceGetAttribute, &wide_operations,
             CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device->id) < 0)
        return error->code;
    if (!wide_operations)
        device->no_waits = "its streams cannot wait for memory";
    return 0;
}

/* Less is more urgent. A device with few priorities has those of callers' streams shared: then a
 * ring may be late, by as much as the next look takes to come. */
static int bell_priority(unsigned bell, int lowest, int highest)
{
    int priority = highest + (bell < DEVICE_LANES ? 1 : bell < DEVICE_BELL_WAITS ? 2 : 3);
    return priority < lowest ? priority : lowest;
}

static int make_streams(struct device *device, struct error *error)
{
    int lowest = 0, highest = 0;
    int code = CALL(device, error, cuCtxGetStreamPriorityRange, &lowest, &highest);
    for (unsigned i = 0; i < DEVICE_LANES && code == 0; i++)
        code = CALL(device, error, cuStreamCreateWithPriority, &device->lanes[i],
                    CU_STREAM_NON_BLOCKING, highest);
    for (unsigned i = 0; i < DEVICE_BELLS && code == 0; i++)
        code = CALL(device, error, cuStreamCreateWithPriority, &device->bell_streams[i],
                    CU_STREAM_NON_BLOCKING, bell_priority(i, lowest, highest));
    if (code == 0)
        code = CALL(device, error, cuStreamCreateWithPriority, &device->own, CU_STREAM_NON_BLOCKING,
                    lowest);
    return code;
}

static int make_words(struct device *device, struct error *error)
{
    void *words =
        mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return error_set(error, ERR_MEMORY, "GPU %d: out of memory for the words", device->number);
    device->words = words;
    int code = CALL(device, error, cuMemHostRegister, words, WORDS_BYTES,
                    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (code < 0)
        return code;
    device->words_pinned = true;
    return CALL(device, error, cuMemHostGetDevicePointer, &device->words_address, words, 0);
}

static struct bells *make_bells(int wake_fd)
{
    struct bells *bells =
        mmap(NULL, sizeof(*bells), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bells == MAP_FAILED)
        return NULL;
    bells->wake_fd = dup(wake_fd);
    if (bells->wake_fd < 0) {
        munmap(bells, sizeof(*bells));
        return NULL;
    }
    atomic_init(&bells->references, 1);
    for (unsigned i = 0; i < DEVICE_BELLS; i++)
        bells->bell[i] = (struct bell){.of = bells, .bit = 1u << i};
    return bells;
}

static void release_bells(struct bells *bells)
{
    if (atomic_fetch_sub(&bells->references, 1) != 1)
        return;
    close(bells->wake_fd);
    munmap(bells, sizeof(*bells));
}

int device_open(struct device **device, int number, const char *library, int wake_fd,
                struct error *error)
{
    struct device *made = calloc(1, sizeof(*made));
    struct bells *bells = make_bells(wake_fd);
    if (!made || !bells) {
        free(made);
        if (bells)
            release_bells(bells);
        return error_set(error, ERR_MEMORY, "GPU %d: out of memory or descriptors", number);
    }
    made->number = number;
    made->bells = bells;
    int code = load(made, library, error);
    if (code < 0) {
        release_bells(bells);
        free(made);
        return code;
    }
    code = find_device(made, error);
    if (code == 0)
        code = CALL(made, error, cuDevicePrimaryCtxRetain, &made->context, made->id);
    if (code < 0) {
        made->context = NULL;
    } else if ((code = enter(made, error)) == 0) {
        code = make_streams(made, error);
        if (code == 0)
            code = make_words(made, error);
        code = leave(made, code);
    }
    if (code < 0) {
        device_close(made);
        return code;
    }
    *device = made;
    return 0;
}

static void destroy_stream(const struct device *device, CUstream stream)
{
    if (stream)
        device->call.cuStreamDestroy(stream);
}

void device_close(struct device *device)
{
    struct error ignored;
    device_let_go(device);
    if (device->context) {
        bool entered = enter(device, &ignored) == 0;
        for (unsigned i = 0; i < DEVICE_LANES; i++)
            destroy_stream(device, device->lanes[i]);
        for (unsigned i = 0; i < DEVICE_BELLS; i++)
            destroy_stream(device, device->bell_streams[i]);
        destroy_stream(device, device->own);
        if (device->words_pinned)
            device->call.cuMemHostUnregister((void *)device->words);
        if (device->pinned)
            device->call.cuMemHostUnregister(device->pinned);
        if (entered)
            leave(device, 0);
    }
    if (device->words)
        munmap((void *)device->words, WORDS_BYTES);
    if (device->context)
        device->call.cuDevicePrimaryCtxRelease(device->id);
    release_bells(device->bells);
    free(device);
}

int device_number(const struct device *device)
{
    return device->number;
}

const char *device_name(const struct device *device)
{
    return device->name;
}

const char *device_address(const struct device *device)
{
    return device->address;
}

void device_forbid_waits(struct device *device, const char *why)
{
    device->no_waits = why;
}

const char *device_no_waits(const struct device *device)
{
    return device->no_waits;
}

/* --- memory -------------------------------------------------------------------------------- */

int device_pin(struct device *device, void *memory, uint64_t bytes, struct error *error)
{
    assert(!device->pinned);
    if (enter(device, error) < 0)
        return error->code;
    int code = CALL(device, error, cuMemHostRegister, memory, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (code == 0)
        device->pinned = memory;
    return leave(device, code);
}

int device_allocate(struct device *device, uint64_t bytes, void **memory, struct error *error)
{
    CUdeviceptr made = 0;
    if (enter(device, error) < 0)
        return error->code;
    int code = CALL(device, error, cuMemAlloc, &made, bytes ? bytes : 1);
    if (code == 0)
        *memory = (void *)made;
    return leave(device, code);
}

int device_free(struct device *device, void *memory, struct error *error)
{
    /* Taking back is tried in any case. */
    int entered = enter(device, error), code = 0;
    if (entered == 0)
        code = CALL(device, error, cuMemFree, (CUdeviceptr)memory);
    else
        device->call.cuMemFree((CUdeviceptr)memory);
    return entered == 0 ? leave(device, code) : entered;
}

void *device_stream(struct device *device)
{
    return device->own;
}

/* Wait for the copies on a stream. A call that failed may do well when it is made again; on a
 * device that has failed for good none does, and none waits. */
static int finish_copies(struct device *device, CUstream stream, struct error *error)
{
    int code = CALL(device, error, cuStreamSynchronize, stream);
    if (code < 0 && device->call.cuStreamSynchronize(stream) != CUDA_SUCCESS)
        atomic_store(&device->copies_lost, true);
    return code;
}

int device_transfer(struct device *device, void *to, const void *from, uint64_t bytes,
                    struct error *error)
{
    if (enter(device, error) < 0)
        return error->code;
    int code =
        CALL(device, error, cuMemcpyAsync, (CUdeviceptr)to, (CUdeviceptr)from, bytes, device->own);
    if (code == 0)
        code = finish_copies(device, device->own, error);
    return leave(device, code);
}

/* --- events, copies, bells, words ---------------------------------------------------------- */

int device_event_create(struct device *device, void **event, struct error *error)
{
    CUevent made;
    if (enter(device, error) < 0)
        return error->code;
    int code = CALL(device, error, cuEventCreate, &made, CU_EVENT_DISABLE_TIMING);
    if (code == 0)
        *event = made;
    return leave(device, code);
}

void device_event_destroy(struct device *device, void *event)
{
    struct error ignored;
    int entered = enter(device, &ignored);
    device->call.cuEventDestroy(event);
    if (entered == 0)
        leave(device, 0);
}

int device_event_record(struct device *device, void *event, void *stream, struct error *error)
{
    int code = enter(device, error);
    return code < 0 ? code : leave(device, CALL(device, error, cuEventRecord, event, stream));
}

/* The context is entered. */
static int event_done(struct device *device, void *event, struct error *error)
{
    CUresult result = device->call.cuEventQuery(event);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        return failure(device, result, "cuEventQuery", error);
    return result == CUDA_SUCCESS;
}

int device_event_record_done(struct device *device, void *event, void *stream, struct error *error)
{
    if (enter(device, error) < 0)
        return error->code;
    int code = CALL(device, error, cuEventRecord, event, stream);
    return leave(device, code < 0 ? code : event_done(device, event, error));
}

int device_event_done(struct device *device, void *event, struct error *error)
{
    int code = enter(device, error);
    return code < 0 ? code : leave(device, event_done(device, event, error));
}

static int copy_batch(const struct device *device, CUstream lane, const struct device_copy *copies,
                      uint32_t count, struct error *error)
{
    CUdeviceptr to[DEVICE_COPIES_MAX], from[DEVICE_COPIES_MAX];
    size_t bytes[DEVICE_COPIES_MAX], first = 0, failed = 0;
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                                     .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
    for (uint32_t i = 0; i < count; i++) {
        to[i] = (CUdeviceptr)copies[i].to;
        from[i] = (CUdeviceptr)copies[i].from;
        bytes[i] = copies[i].bytes;
    }
    CUresult result =
        device->copy_batch_13000
            ? device->copy_batch_13000(to, from, bytes, count, &attributes, &first, 1, lane)
            : device->copy_batch_12080(to, from, bytes, count, &attributes, &first, 1, &failed,
                                       lane);
    return check(device, result, "cuMemcpyBatchAsync", error);
}

static int copy_all(const struct device *device, CUstream lane, const struct device_copy *copies,
                    uint32_t count, struct error *error)
{
    bool default_stream = !lane || lane == CU_STREAM_LEGACY; /* which takes no batch */
    if (count > 1 && !default_stream && (device->copy_batch_13000 || device->copy_batch_12080))
        return copy_batch(device, lane, copies, count, error);
    int code = 0;
    for (uint32_t i = 0; i < count && code == 0; i++)
        code = CALL(device, error, cuMemcpyAsync, (CUdeviceptr)copies[i].to,
                    (CUdeviceptr)copies[i].from, copies[i].bytes, lane);
    return code;
}

int device_copy(struct device *device, enum device_lane lane, const struct device_copy *copies,
                uint32_t count, void *event, bool *begun, struct error *error)
{
    assert(count <= DEVICE_COPIES_MAX);
    CUstream stream = device->lanes[lane];
    struct error unrecorded, ignored;
    *begun = false;
    int code = enter(device, error);
    if (code < 0)
        return code;
    code = copy_all(device, stream, copies, count, error);
    int recorded = event ? CALL(device, &unrecorded, cuEventRecord, event, stream) : code;
    if (recorded < 0) {
        /* The lane has copies only, and nothing else will tell when they are done. */
        finish_copies(device, stream, &ignored);
        if (code == 0)
            *error = unrecorded, code = recorded;
    }
    *begun = recorded == 0;
    return leave(device, code);
}

void device_settle(struct device *device)
{
    struct error ignored;
    if (enter(device, &ignored) < 0) {
        atomic_store(&device->copies_lost, true);
        return;
    }
    for (unsigned i = 0; i < DEVICE_LANES; i++)
        finish_copies(device, device->lanes[i], &ignored);
    leave(device, 0);
}

bool device_copies_lost(const struct device *device)
{
    return atomic_load(&device->copies_lost);
}

int device_copy_on(struct device *device, void *stream, const struct device_copy *copies,
                   uint32_t count, struct error *error)
{
    int code = enter(device, error);
    return code < 0 ? code : leave(device, copy_all(device, stream, copies, count, error));
}

int device_zero_on(struct device *device, void *stream, void *memory, uint64_t bytes,
                   struct error *error)
{
    int code = bytes > 0 ? enter(device, error) : 0;
    if (code == 0 && bytes > 0)
        code = leave(device,
                     CALL(device, error, cuMemsetD8Async, (CUdeviceptr)memory, 0, bytes, stream));
    return code;
}

int device_follow_on(struct device *device, void *stream, void *event, struct error *error)
{
    int code = enter(device, error);
    return code < 0 ? code
                    : leave(device, CALL(device, error, cuStreamWaitEvent, stream, event,
                                         CU_EVENT_WAIT_DEFAULT));
}

int device_finish_on(struct device *device, void *stream, struct error *error)
{
    int code = enter(device, error);
    return code < 0 ? code
                    : leave(device, CALL(device, error, cuStreamSynchronize, (CUstream)stream));
}

int device_clear(struct device *device, void *memory, uint64_t bytes, struct error *error)
{
    int code = device_zero_on(device, device->own, memory, bytes, error);
    return code < 0 ? code : device_finish_on(device, device->own, error);
}

static void ring(void *argument)
{
    const struct bell *bell = argument;
    struct bells *bells = bell->of;
    uint64_t one = 1;
    atomic_fetch_or(&bells->rung, bell->bit);
    ssize_t written = write(bells->wake_fd, &one, sizeof(one));
    (void)written; /* fails only when it is rung already */
    release_bells(bells);
}

int device_ring_after(struct device *device, unsigned bell, void *event, struct error *error)
{
    CUstream stream = device->bell_streams[bell];
    int code = enter(device, error);
    if (code < 0)
        return code;
    if (bell == DEVICE_BELL_WAITS)
        code = CALL(device, error, cuEventRecord, event, stream);
    else
        code = CALL(device, error, cuStreamWaitEvent, stream, event, CU_EVENT_WAIT_DEFAULT);
    if (code == 0) {
        atomic_fetch_add(&device->bells->references, 1);
        code = CALL(device, error, cuLaunchHostFunc, stream, ring, &device->bells->bell[bell]);
        if (code < 0)
            release_bells(device->bells);
    }
    return leave(device, code);
}

uint32_t device_rung(struct device *device)
{
    return atomic_exchange(&device->bells->rung, 0);
}

_Atomic uint32_t *device_word(struct device *device, uint32_t index)
{
    assert(index < DEVICE_WORDS);
    return &device->words[index];
}

/* Let the bell of the waits tell when the stream has come past its wait, and the words may go. */
static int follow_wait(struct device *device, void *stream, void *event, struct error *error)
{
    int code = CALL(device, error, cuEventRecord, event, stream);
    if (code == 0)
        code = CALL(device, error, cuStreamWaitEvent, device->bell_streams[DEVICE_BELL_WAITS],
                    event, CU_EVENT_WAIT_DEFAULT);
    return code;
}

int device_wait_for_word(struct device *device, void *stream, uint32_t index, uint32_t value,
                         void *event, struct error *error)
{
    assert(index < DEVICE_WORDS && !device->no_waits);
    int code = enter(device, error);
    if (code < 0)
        return code;
    code = CALL(device, error, cuStreamWaitValue32, stream,
                device->words_address + index * sizeof(uint32_t), value, CU_STREAM_WAIT_VALUE_GEQ);
    if (code == 0 && follow_wait(device, stream, event, error) < 0) {
        code = follow_wait(device, stream, event, error); /* the stream waits in any case */
        if (code < 0)
            atomic_store(&device->waits_lost, true);
    }
    return leave(device, code);
}

bool device_waits_lost(const struct device *device)
{
    return atomic_load(&device->waits_lost);
}
