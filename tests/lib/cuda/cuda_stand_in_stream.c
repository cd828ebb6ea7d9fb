/* The streams of the stand-in for CUDA's driver: each a thread that takes its time over copies. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utlist.h>

#include "tests/lib/cuda/cuda_stand_in_private.h"

#define DELAY_MAX_NS 300000
#define LATE_OF 16 /* one copy of so many is late */
#define LATE_NS 3000000
#define WORD_POLL_NS 50000
#define PRIORITIES 6

struct CUevent_st {
    uint64_t recorded, done; /* the last record asked for, and carried out */
    int references;
    CUcontext context;
};

enum operation_type { OP_COPY, OP_RECORD, OP_WAIT_EVENT, OP_HOST, OP_WAIT_WORD, OP_HOLD, OP_ZERO };

struct operation {
    enum operation_type type;
    void *to;
    const void *from;
    size_t bytes;
    struct CUevent_st *event;
    uint64_t record;
    CUhostFn function;
    void *argument;
    const _Atomic uint32_t *word;
    uint32_t value;
    uint64_t number; /* of all, as they were asked for */
    struct operation *prev, *next;
};

struct CUstream_st {
    struct operation *operations;
    pthread_cond_t
        asked; /* there is an operation, or will be none; other changes are everybody's */
    struct CUstream_st *prev, *next;
    bool destroyed;
    int held;    /* how many holds are still to be let go */
    int room;    /* operations that it takes before who adds to it has to wait; 0: any number */
    int refuses; /* how many records */
    int queue;   /* of the device's, shared with other streams; -1: its own */
    CUcontext context;
};

static struct CUstream_st *streams;
static long default_count; /* operations on it */
static bool any_memory;    /* all of the process's counts as the device's */
static bool copies_held, functions_held;
static int copies_begun; /* and not ended */
static int queue_count;  /* of each priority; 0: every stream has its own */
static int streams_made[PRIORITIES];
static uint64_t operations_made;

static void pause_ns(long ns)
{
    struct timespec time = {.tv_nsec = ns};
    nanosleep(&time, NULL);
}

static void release_event(struct CUevent_st *event)
{
    if (event && --event->references == 0)
        free(event);
}

/* Copy; lock held, released meanwhile. A copy that has begun ends in any case. */
static void carry_out_copy(const struct operation *operation, long delay_ns)
{
    copies_begun++;
    while (copies_held)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    pause_ns(delay_ns);
    memmove(operation->to, operation->from, operation->bytes);
    pthread_mutex_lock(&lock);
    copies_begun--;
}

/* Lock held, released meanwhile. */
static void carry_out(struct CUstream_st *stream, const struct operation *operation, long delay_ns)
{
    if (operation->type == OP_HOLD) {
        while (stream->held > 0 && !broken)
            pthread_cond_wait(&changed, &lock);
        return;
    }
    if (operation->type == OP_WAIT_EVENT) {
        while (operation->event->done < operation->record && !broken)
            pthread_cond_wait(&changed, &lock);
        return;
    }
    if (operation->type == OP_RECORD) {
        if (operation->event->done < operation->record && !broken)
            operation->event->done = operation->record;
        return;
    }
    while (operation->type == OP_HOST && functions_held)
        pthread_cond_wait(&changed, &lock);
    CUresult dead = broken;
    if (operation->type == OP_COPY) {
        if (!dead)
            carry_out_copy(operation, delay_ns);
        return;
    }
    pthread_mutex_unlock(&lock);
    if (operation->type == OP_ZERO && !dead) {
        memset(operation->to, 0, operation->bytes);
    } else if (operation->type == OP_HOST && !dead) {
        operation->function(operation->argument);
    }
    while (operation->type == OP_WAIT_WORD && !dead &&
           (int32_t)(atomic_load(operation->word) - operation->value) < 0) {
        pause_ns(WORD_POLL_NS);
        pthread_mutex_lock(&lock);
        dead = broken;
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
}

/* A queue takes what its streams are asked to do in that order, and what waits holds up the rest.
 */
static bool comes_later(const struct CUstream_st *stream)
{
    const struct CUstream_st *other;
    DL_FOREACH(streams, other)
    {
        if (stream->queue >= 0 && other->queue == stream->queue && other->operations &&
            other->operations->number < stream->operations->number)
            return true;
    }
    return false;
}

static void *run_stream(void *argument)
{
    struct CUstream_st *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct operation *operation = stream->operations;
        if (!operation && stream->destroyed)
            break;
        if (!operation || comes_later(stream)) {
            pthread_cond_wait(operation ? &changed : &stream->asked, &lock);
            continue;
        }
        uint64_t number = draw();
        carry_out(stream, operation,
                  number % LATE_OF == 0 ? LATE_NS : (long)(number % DELAY_MAX_NS));
        DL_DELETE(stream->operations, operation);
        release_event(operation->event);
        free(operation);
        pthread_cond_broadcast(&changed);
    }
    DL_DELETE(streams, stream);
    pthread_cond_destroy(&stream->asked);
    free(stream);
    thread_count--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct CUstream_st *make_stream(int priority)
{
    struct CUstream_st *stream = calloc(1, sizeof(*stream));
    int made = streams_made[-priority]++;
    stream->context = current_context();
    stream->queue = queue_count == 0 ? -1 : -priority * queue_count + made % queue_count;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_cond_init(&stream->asked, NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, run_stream, stream) != 0)
        abort();
    pthread_attr_destroy(&attributes);
    DL_APPEND(streams, stream);
    thread_count++;
    return stream;
}

static int operation_count(const struct CUstream_st *stream)
{
    const struct operation *operation;
    int count = 0;
    DL_COUNT(stream->operations, operation, count);
    return count;
}

/* The default stream has two handles. */
static CUstream known(CUstream stream)
{
    return stream == CU_STREAM_LEGACY ? NULL : stream;
}

/* Not of the calling thread's context. */
static bool foreign(CUstream stream)
{
    return known(stream) && stream->context != current_context();
}

static void enqueue(CUstream stream, struct operation operation)
{
    stream = known(stream);
    if (!stream) {
        CUcontext context = current_context();
        default_count++;
        if (!context->default_stream) {
            context->default_stream = make_stream(0);
            thread_count--; /* it never ends */
        }
        stream = context->default_stream;
    }
    while (stream->room > 0 && operation_count(stream) >= stream->room && !broken)
        pthread_cond_wait(&changed, &lock);
    struct operation *made = malloc(sizeof(*made));
    *made = operation;
    made->number = operations_made++;
    if (made->event)
        made->event->references++;
    DL_APPEND(stream->operations, made);
    pthread_cond_signal(&stream->asked);
}

bool stand_in_busy(const struct range *range)
{
    const uint8_t *first = range->shadow, *end = first + range->bytes;
    const struct CUstream_st *stream;
    const struct operation *operation;
    DL_FOREACH(streams, stream)
    {
        DL_FOREACH(stream->operations, operation)
        {
            const uint8_t *to = operation->to, *from = operation->from;
            if ((to >= first && to < end) || (from >= first && from < end))
                return true;
        }
    }
    return false;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    ENTER(cuStreamCreateWithPriority);
    if (flags != CU_STREAM_NON_BLOCKING || priority > 0 || priority <= -PRIORITIES)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *stream = make_stream(priority);
    stream_count++;
    return leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream stream)
{
    CUresult result = enter("cuStreamDestroy", false);
    stream->destroyed = true;
    stream_count--;
    pthread_cond_signal(&stream->asked);
    return leave(result);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER(cuStreamSynchronize);
    if (foreign(stream))
        return leave(CUDA_ERROR_INVALID_HANDLE);
    stream = known(stream) ? stream : current_context()->default_stream;
    while (stream && stream->operations && !broken)
        pthread_cond_wait(&changed, &lock);
    return leave(broken);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    ENTER(cuStreamWaitEvent);
    if (foreign(stream))
        return leave(CUDA_ERROR_INVALID_HANDLE);
    enqueue(stream,
            (struct operation){.type = OP_WAIT_EVENT, .event = event, .record = event->recorded});
    return leave(CUDA_SUCCESS);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    ENTER(cuStreamWaitValue32);
    if (foreign(stream) || !find_range(registrations, address) || flags != CU_STREAM_WAIT_VALUE_GEQ)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!memory_operations)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    enqueue(stream, (struct operation){.type = OP_WAIT_WORD,
                                       .word = (const _Atomic uint32_t *)address,
                                       .value = value});
    return leave(CUDA_SUCCESS);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
    ENTER(cuLaunchHostFunc);
    if (foreign(stream))
        return leave(CUDA_ERROR_INVALID_HANDLE);
    enqueue(stream,
            (struct operation){.type = OP_HOST, .function = function, .argument = argument});
    return leave(CUDA_SUCCESS);
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    ENTER(cuEventCreate);
    *event = calloc(1, sizeof(**event));
    (*event)->references = 1;
    (*event)->context = current_context();
    event_count++;
    return leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent event)
{
    CUresult result = enter("cuEventDestroy", false);
    event_count--;
    release_event(event);
    return leave(result);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER(cuEventRecord);
    if (foreign(stream) || event->context != current_context())
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (known(stream) && stream->refuses > 0) {
        stream->refuses--;
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    enqueue(stream,
            (struct operation){.type = OP_RECORD, .event = event, .record = ++event->recorded});
    return leave(CUDA_SUCCESS);
}

CUresult cuEventQuery(CUevent event)
{
    ENTER(cuEventQuery);
    return leave(event->done == event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

/* Lock held. */
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    bool to_device = false, from_device = false, pinned = true;
    void *target = reach(to, bytes, &to_device, &pinned);
    const void *source = reach(from, bytes, &from_device, &pinned);
    if (foreign(stream) || !target || !source || !(to_device || from_device || any_memory))
        return CUDA_ERROR_INVALID_VALUE;
    if (!pinned)
        unpinned_copies++;
    enqueue(stream,
            (struct operation){.type = OP_COPY, .to = target, .from = source, .bytes = bytes});
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream)
{
    ENTER(cuMemsetD8Async);
    bool on_device = false, pinned = true;
    void *target = reach(memory, bytes, &on_device, &pinned);
    if (foreign(stream) || !target || !(on_device || any_memory) || value != 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    enqueue(stream, (struct operation){.type = OP_ZERO, .to = target, .bytes = bytes});
    return leave(CUDA_SUCCESS);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyAsync);
    return leave(copy(to, from, bytes, stream));
}

CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                    CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                    CUstream stream)
{
    ENTER(cuMemcpyBatchAsync);
    if (!known(stream) || attribute_count != 1 || first[0] != 0 ||
        attributes[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return leave(CUDA_ERROR_INVALID_VALUE);
    /* A batch is in no order. */
    for (size_t i = count; i > 0 && result == CUDA_SUCCESS; i--)
        result = copy(to[i - 1], from[i - 1], bytes[i - 1], stream);
    return leave(result);
}

CUresult copy_batch_12080(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                          CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                          size_t *failed, CUstream stream)
{
    *failed = SIZE_MAX;
    return copy_batch(to, from, bytes, count, attributes, first, attribute_count, stream);
}

/* --- streams of the test's ----------------------------------------------------------------- */

void *stand_in_stream_make(void);
void stand_in_stream_drop(void *stream);
void stand_in_stream_hold(void *stream);
void stand_in_stream_let_go(void *stream);
void stand_in_stream_copy(void *stream, void *to, const void *from, size_t bytes);
void stand_in_stream_finish(void *stream);
void stand_in_stream_limit(void *stream, int room);
void stand_in_stream_refuse(void *stream, int records);
void stand_in_stream_follow(void *stream, void *other);
void stand_in_set_any_memory(bool any);
void stand_in_copies_hold(bool hold);
void stand_in_functions_hold(bool hold);
int stand_in_copies_begun(void);
long stand_in_default_operations(void);
void stand_in_set_queues(int count);

void *stand_in_stream_make(void)
{
    pthread_mutex_lock(&lock);
    struct CUstream_st *stream = make_stream(0);
    stream_count++;
    pthread_mutex_unlock(&lock);
    return stream;
}

void stand_in_stream_drop(void *stream)
{
    pthread_mutex_lock(&lock);
    ((struct CUstream_st *)stream)->destroyed = true;
    stream_count--;
    pthread_cond_signal(&((struct CUstream_st *)stream)->asked);
    pthread_mutex_unlock(&lock);
}

void stand_in_stream_hold(void *stream)
{
    pthread_mutex_lock(&lock);
    ((struct CUstream_st *)stream)->held++;
    enqueue(stream, (struct operation){.type = OP_HOLD});
    pthread_mutex_unlock(&lock);
}

void stand_in_stream_let_go(void *stream)
{
    pthread_mutex_lock(&lock);
    ((struct CUstream_st *)stream)->held--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void stand_in_stream_copy(void *stream, void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (copy((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream) != CUDA_SUCCESS)
        abort();
    pthread_mutex_unlock(&lock);
}

void stand_in_stream_limit(void *stream, int room)
{
    pthread_mutex_lock(&lock);
    ((struct CUstream_st *)stream)->room = room;
    pthread_mutex_unlock(&lock);
}

void stand_in_stream_refuse(void *stream, int records)
{
    pthread_mutex_lock(&lock);
    ((struct CUstream_st *)stream)->refuses = records;
    pthread_mutex_unlock(&lock);
}

/* Let operations that are put onto the stream from now on wait for all that is on the other by
 * now. */
void stand_in_stream_follow(void *stream, void *other)
{
    struct CUevent_st *event = calloc(1, sizeof(*event));
    pthread_mutex_lock(&lock);
    event->recorded = 1;
    enqueue(other, (struct operation){.type = OP_RECORD, .event = event, .record = 1});
    enqueue(stream, (struct operation){.type = OP_WAIT_EVENT, .event = event, .record = 1});
    pthread_mutex_unlock(&lock);
}

void stand_in_set_any_memory(bool any)
{
    pthread_mutex_lock(&lock);
    any_memory = any;
    pthread_mutex_unlock(&lock);
}

void stand_in_copies_hold(bool hold)
{
    pthread_mutex_lock(&lock);
    copies_held = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void stand_in_functions_hold(bool hold)
{
    pthread_mutex_lock(&lock);
    functions_held = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int stand_in_copies_begun(void)
{
    pthread_mutex_lock(&lock);
    int count = copies_begun;
    pthread_mutex_unlock(&lock);
    return count;
}

long stand_in_default_operations(void)
{
    pthread_mutex_lock(&lock);
    long count = default_count;
    pthread_mutex_unlock(&lock);
    return count;
}

void stand_in_set_queues(int count)
{
    pthread_mutex_lock(&lock);
    queue_count = count;
    memset(streams_made, 0, sizeof(streams_made));
    pthread_mutex_unlock(&lock);
}

void stand_in_stream_finish(void *stream)
{
    pthread_mutex_lock(&lock);
    while (((struct CUstream_st *)stream)->operations && !broken)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
