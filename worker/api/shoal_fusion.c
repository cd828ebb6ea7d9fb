/* Balanced fusion buffers: the handle of worker/shoal.h round worker/fusion/plan.h and
 * worker/fusion/fusion.h.
 *
 *   GATHER --shoal_fusion_wait--> REDUCE --all back--> GATHER
 *                                    \--first step--> AGREE --order known, plan remade--> GATHER
 *
 * A wait that times out leaves the phase as it is; the next one goes on from there.
 */
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "common/format/wire.h"
#include "worker/api/collective.h"
#include "worker/api/fusion_handle.h"
#include "worker/drive/drive.h"
#include "worker/fusion/fusion.h"
#include "worker/fusion/plan.h"
#include "worker/job/error_text.h"
#include "worker/job/job.h"
#include "worker/shoal.h"

#define DEFAULT_FIRST_BYTES (1ull << 20)

static void free_fusion(struct shoal_fusion *fusion)
{
    if (fusion->device.device)
        device_fusion_close(&fusion->device);
    fusion_times_free(fusion);
    plan_clear(&fusion->plan);
    fusion_step_clear(&fusion->step);
    free(fusion->parameters);
    free(fusion->gradients);
    free(fusion->requests);
    free(fusion->passed);
    free(fusion->intervals);
    free(fusion->order);
    pthread_cond_destroy(&fusion->gathered);
    pthread_mutex_destroy(&fusion->lock);
    free(fusion);
}

void fusion_free_all(struct shoal_job *job)
{
    struct shoal_fusion *fusion, *next;
    DL_FOREACH_SAFE(job->fusions, fusion, next)
    {
        DL_DELETE(job->fusions, fusion);
        /* The driver would wait for all that is under way. */
        if (job->device_stuck)
            fusion->device.allocated = false;
        free_fusion(fusion);
    }
}

/* --- making one ---------------------------------------------------------------------------- */

static int read_parameters(struct shoal_fusion *fusion, const struct shoal_parameter *parameters,
                           struct error *error)
{
    assert(parameters || fusion->parameter_count == 0);
    for (uint32_t i = 0; i < fusion->parameter_count; i++) {
        if (dtype_bytes((unsigned)parameters[i].dtype) == 0)
            return error_set(error, ERR_INVALID, "parameter %" PRIu32 ": %d is no element type", i,
                             (int)parameters[i].dtype);
        fusion->parameters[i] = (struct plan_parameter){.count = parameters[i].count,
                                                        .dtype = (enum dtype)parameters[i].dtype};
        fusion->gradients[i] = parameters[i].gradient;
        if (!parameters[i].gradient)
            fusion->own_memory = true;
        /* A backward pass meets the last layer first. */
        fusion->order[i] = fusion->parameter_count - 1 - i;
    }
    return 0;
}

static int make_plan(struct shoal_fusion *fusion, struct plan *plan, struct error *error)
{
    int code = plan_make(plan, fusion->parameters, fusion->parameter_count, fusion->order,
                         fusion->threshold_bytes, fusion->first_buffer_bytes);
    if (code < 0)
        error_set(error, code, "cannot plan fusion buffers for %" PRIu32 " parameters: %s",
                  fusion->parameter_count,
                  code == ERR_MEMORY ? "out of memory" : "they are too large");
    return code;
}

static int set_up_arena(struct shoal_fusion *fusion, struct error *error)
{
    fusion->memory = shoal_alloc(fusion->group->job, fusion->plan.total_bytes);
    if (!fusion->memory) {
        *error = *error_text_last();
        error_prefix(error, "fusion buffers");
        return error->code;
    }
    memset(fusion->memory, 0, fusion->plan.total_bytes);
    return 0;
}

static int set_up_device(struct shoal_fusion *fusion, void *memory, struct error *error)
{
    struct shoal_job *job = fusion->group->job;
    pthread_mutex_lock(&job->lock);
    struct device *device = job->device ? job->device->device : NULL;
    pthread_mutex_unlock(&job->lock);
    if (!device)
        return error_set(error, ERR_STATE, "fusion buffers: the job has no device");
    int code = device_fusion_open(&fusion->device, device, memory, &fusion->plan, fusion->gradients,
                                  fusion->parameters, error);
    if (code < 0)
        error_prefix(error, "fusion buffers");
    else
        fusion->memory = fusion->device.memory;
    return code;
}

static int fusion_set_up(struct shoal_fusion *fusion, const struct shoal_parameter *parameters,
                         void *device_memory, struct error *error)
{
    size_t room = (size_t)fusion->parameter_count + 1;
    fusion->parameters = calloc(room, sizeof(*fusion->parameters));
    fusion->gradients = calloc(room, sizeof(*fusion->gradients)); /* NOLINT: of pointers */
    fusion->requests = calloc(room, sizeof(*fusion->requests));   /* NOLINT: of pointers */
    fusion->passed = calloc(room, sizeof(*fusion->passed));       /* NOLINT: of pointers */
    fusion->intervals = calloc(room, sizeof(*fusion->intervals));
    fusion->order = calloc(room, sizeof(*fusion->order));
    if (!fusion->parameters || !fusion->gradients || !fusion->requests || !fusion->passed ||
        !fusion->intervals || !fusion->order ||
        fusion_step_init(&fusion->step, fusion->parameter_count) < 0)
        return error_set(error, ERR_MEMORY, "out of memory for fusion buffers");
    int code = read_parameters(fusion, parameters, error);
    if (code == 0)
        code = make_plan(fusion, &fusion->plan, error);
    if (code < 0)
        return code;
    code = fusion->on_device ? set_up_device(fusion, device_memory, error)
                             : set_up_arena(fusion, error);
    if (code < 0)
        return code;
    fusion_step_begin(&fusion->step, &fusion->plan);
    return 0;
}

void fusion_find_threshold(struct shoal_fusion *fusion)
{
    const struct layout_rule *rule = &fusion->group->core.rule;
    if (!fusion->threshold_given)
        fusion->threshold_bytes = plan_threshold_bytes(rule->servers, rule->chunk_bytes);
}

static int fusion_read_options(const struct shoal_fusion_options *given,
                               struct shoal_fusion *fusion, void **device_memory,
                               struct error *error)
{
    struct shoal_fusion_options options = {.op = SHOAL_SUM};
    int code = options_read(&options, sizeof(options), given, sizeof(given->struct_size),
                            "shoal_fusion_options", error);
    if (code < 0)
        return code;
    if (options.op != SHOAL_SUM && options.op != SHOAL_AVG)
        return error_set(error, ERR_INVALID, "options.op: got %d, must be SHOAL_SUM or SHOAL_AVG",
                         (int)options.op);
    fusion->op = (enum reduce_op)options.op;
    fusion->on_device = options.on_device != 0;
    *device_memory = options.device_memory;
    fusion->threshold_given = options.threshold_bytes > 0;
    fusion->threshold_bytes = options.threshold_bytes;
    fusion_find_threshold(fusion);
    fusion->first_buffer_bytes =
        options.first_buffer_bytes ? options.first_buffer_bytes : DEFAULT_FIRST_BYTES;
    return 0;
}

static int create(struct shoal_group *group, const struct shoal_parameter *parameters,
                  uint32_t parameter_count, const struct shoal_fusion_options *options,
                  struct shoal_fusion **fusion, struct error *error)
{
    struct shoal_fusion *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for fusion buffers");
    made->group = group;
    made->parameter_count = parameter_count;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->gathered, NULL);
    void *device_memory = NULL;
    int code = fusion_read_options(options, made, &device_memory, error);
    if (code == 0)
        code = fusion_set_up(made, parameters, device_memory, error);
    if (code < 0) {
        free_fusion(made);
        return code;
    }
    struct shoal_job *job = group->job;
    pthread_mutex_lock(&job->lock);
    made->number = group->fusions_made++;
    DL_APPEND(job->fusions, made);
    group->fusion_count++;
    pthread_mutex_unlock(&job->lock);
    *fusion = made;
    return 0;
}

int shoal_fusion_create(shoal_group *group, const struct shoal_parameter *parameters,
                        size_t parameter_count, const struct shoal_fusion_options *options,
                        shoal_fusion **fusion)
{
    struct error error;
    if (!fusion || (!parameters && parameter_count > 0) || parameter_count > INT32_MAX) {
        error_set(&error, ERR_INVALID, "shoal_fusion_create: %s",
                  parameter_count > INT32_MAX ? "too many parameters" : "an argument is NULL");
        return error_text_keep(&error);
    }
    if (group_check(group, &error) < 0 || job_enter(group->job, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = group->job;
    int code = create(group, parameters, (uint32_t)parameter_count, options, fusion, &error);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

/* --- a step -------------------------------------------------------------------------------- */

static uint64_t gradient_bytes(const struct shoal_fusion *fusion, uint32_t index)
{
    return plan_gradient_bytes(&fusion->parameters[index]);
}

static uint8_t *gradient_memory(const struct shoal_fusion *fusion, uint32_t index)
{
    return fusion->memory + fusion->plan.offset_of[index];
}

int fusion_enter(const struct shoal_fusion *fusion, struct error *error)
{
    if (!fusion)
        return error_set(error, ERR_INVALID, "the fusion is NULL");
    return job_enter(fusion->group->job, error);
}

static int parameter_unknown(const struct shoal_fusion *fusion, size_t index, struct error *error)
{
    return error_set(error, ERR_INVALID, "parameter %zu: there are %" PRIu32, index,
                     fusion->parameter_count);
}

void *shoal_fusion_gradient(shoal_fusion *fusion, size_t index)
{
    struct error error;
    if (fusion_enter(fusion, &error) < 0) {
        error_text_keep(&error);
        return NULL;
    }
    struct shoal_job *job = fusion->group->job;
    void *memory = NULL;
    if (index < fusion->parameter_count) {
        pthread_mutex_lock(&fusion->lock);
        memory = fusion->gradients[index] ? fusion->gradients[index]
                                          : gradient_memory(fusion, (uint32_t)index);
        pthread_mutex_unlock(&fusion->lock);
    } else {
        parameter_unknown(fusion, index, &error);
        error_text_keep(&error);
    }
    job_leave(job);
    return memory;
}

/* A buffer whose stream has waited for it is sent again. */
static void release_passed(struct shoal_fusion *fusion, uint32_t number)
{
    struct shoal_job *job = fusion->group->job;
    if (!fusion->passed[number])
        return;
    pthread_mutex_lock(&job->lock);
    job_release_request(job, fusion->passed[number]);
    pthread_mutex_unlock(&job->lock);
    fusion->passed[number] = NULL;
}

/* Return the identity of buffer `number`; it is equal in every step and on every rank. */
static uint32_t buffer_identity(const struct shoal_fusion *fusion, uint32_t number)
{
    const uint32_t low = (1u << WIRE_IDENTITY_FUSION_SHIFT) - 1;
    uint32_t identity = fusion->number << WIRE_IDENTITY_FUSION_SHIFT | (number & low);
    return identity | WIRE_IDENTITY_FUSION;
}

/* Send the buffers whose turn has come; lock held. */
static int send_ready(struct shoal_fusion *fusion, struct error *error)
{
    uint32_t number;
    while (fusion->failure.code == 0 && fusion_step_next(&fusion->step, &number)) {
        const struct plan_buffer *buffer = &fusion->plan.buffers[number];
        uint8_t *data = fusion->memory + buffer->offset;
        struct request_ask ask = {
            .kind = COLLECTIVE_ALL_REDUCE,
            .dtype = buffer->dtype,
            .op = fusion->op,
            .count = buffer->bytes / dtype_bytes(buffer->dtype),
            .send = data,
            .recv = data,
            .priority = buffer->priority,
            .identity = buffer_identity(fusion, number),
        };
        release_passed(fusion, number);
        fusion->intervals[number].start_ns = clock_now_ns();
        ask.on_device = fusion->on_device;
        ask.stream = fusion->device.stream;
        if ((fusion->on_device &&
             device_fusion_gather(&fusion->device, &fusion->plan, buffer, error) < 0) ||
            collective_start(fusion->group, &ask, START_BACKGROUND, &fusion->requests[number],
                             error) < 0) {
            error_prefix(error, "fusion buffer %" PRIu32, number);
            fusion->failure = *error;
        }
    }
    if (fusion->failure.code < 0) {
        *error = fusion->failure;
        return error->code;
    }
    return 0;
}

static int claim(struct shoal_fusion *fusion, size_t index, struct error *error)
{
    if (fusion->failure.code < 0) {
        *error = fusion->failure;
        return error->code;
    }
    if (index >= fusion->parameter_count)
        return parameter_unknown(fusion, index, error);
    if (fusion->phase != PHASE_GATHER)
        return error_set(error, ERR_STATE,
                         "parameter %zu: this step is being waited for (shoal_fusion_wait)", index);
    if (fusion_step_claim(&fusion->step, index) < 0)
        return error_set(error, ERR_INVALID, "parameter %zu is ready already in this step", index);
    return 0;
}

int shoal_fusion_ready(shoal_fusion *fusion, size_t index)
{
    struct error error;
    if (fusion_enter(fusion, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = fusion->group->job;
    pthread_mutex_lock(&fusion->lock);
    int code = claim(fusion, index, &error);
    if (code == 0) {
        uint32_t number = (uint32_t)index;
        if (fusion->gradients[number] && !fusion->on_device) {
            uint8_t *memory = gradient_memory(fusion, number);
            fusion->gathering++;
            pthread_mutex_unlock(&fusion->lock);
            memcpy(memory, fusion->gradients[number], gradient_bytes(fusion, number));
            pthread_mutex_lock(&fusion->lock);
            if (--fusion->gathering == 0)
                pthread_cond_broadcast(&fusion->gathered);
        }
        fusion_step_fill(&fusion->step, number);
        code = send_ready(fusion, &error);
    }
    pthread_mutex_unlock(&fusion->lock);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

/* End the gathering of this step and send the buffers that are left: a parameter without a gradient
 * counts as zero. Lock held. */
static int send_rest(struct shoal_fusion *fusion, struct error *error)
{
    while (fusion->gathering > 0)
        pthread_cond_wait(&fusion->gathered, &fusion->lock);
    if (!fusion->learned)
        fusion_step_order(&fusion->step, fusion->order);
    for (uint32_t i = 0; i < fusion->parameter_count; i++) {
        if (fusion_step_claim(&fusion->step, i) < 0)
            continue;
        if (fusion->on_device)
            fusion->device.absent[i] = true;
        else
            memset(gradient_memory(fusion, i), 0, gradient_bytes(fusion, i));
        fusion_step_fill(&fusion->step, i);
    }
    return send_ready(fusion, error);
}

/* Wait for a request of ours; release and forget it when it is complete, well or not. */
static int finish_request(struct shoal_fusion *fusion, struct shoal_request **slot,
                          uint64_t deadline_ns, uint64_t *completed_ns, struct error *error)
{
    struct shoal_job *job = fusion->group->job;
    struct shoal_request *request = *slot;
    pthread_mutex_lock(&job->lock);
    int code;
    if (request->core.state == REQUEST_MEETING)
        drive_wait_meeting(request, deadline_ns);
    enum drive_end end = drive_wait(job, job_request_complete, request, deadline_ns);
    if (end == DRIVE_TIMEOUT) {
        char what[512];
        request_describe(&request->core, fusion->group->core.number, what, sizeof(what));
        code = error_set(error, ERR_TIMEOUT, "the time has passed: %s", what);
    } else if (end == DRIVE_CLOSING) {
        code =
            error_set(error, ERR_STATE, "the job was closed while fusion buffers were waited for");
    } else {
        code = job_request_result(request, error);
        *completed_ns = request->core.completed_ns;
        job_release_request(job, request);
        *slot = NULL;
    }
    pthread_mutex_unlock(&job->lock);
    return code;
}

static int scatter(struct shoal_fusion *fusion, const struct plan_buffer *buffer,
                   struct error *error)
{
    if (fusion->on_device)
        return device_fusion_scatter(&fusion->device, &fusion->plan, buffer, fusion->device.stream,
                                     error);
    for (uint32_t i = 0; i < buffer->member_count; i++) {
        uint32_t index = fusion->plan.members[buffer->first_member + i];
        if (fusion->gradients[index])
            memcpy(fusion->gradients[index], gradient_memory(fusion, index),
                   gradient_bytes(fusion, index));
    }
    return 0;
}

/* Wait for the buffers in turn and write results back. Only this thread is in the step now. */
static int finish_buffers(struct shoal_fusion *fusion, uint64_t deadline_ns, struct error *error)
{
    while (fusion->finished < fusion->plan.buffer_count) {
        uint32_t i = fusion->finished;
        int code = finish_request(fusion, &fusion->requests[i], deadline_ns,
                                  &fusion->intervals[i].end_ns, error);
        if (code == 0)
            code = scatter(fusion, &fusion->plan.buffers[i], error);
        if (code < 0)
            return code;
        fusion->finished++;
    }
    struct fusion_interval window = {fusion->wait_started_ns, clock_now_ns()};
    struct shoal_fusion_statistics statistics = {.struct_size = sizeof(statistics),
                                                 .buffers = fusion->plan.buffer_count,
                                                 .bytes = fusion->plan.total_bytes};
    fusion_measure(fusion->intervals, fusion->plan.buffer_count, window,
                   &statistics.communication_ns, &statistics.exposed_ns);
    pthread_mutex_lock(&fusion->lock);
    fusion_times_drop(fusion);
    fusion->statistics = statistics;
    pthread_mutex_unlock(&fusion->lock);
    return 0;
}

static int start_agreeing(struct shoal_fusion *fusion, struct error *error)
{
    struct request_ask ask = {
        .kind = COLLECTIVE_BROADCAST,
        .dtype = DTYPE_I32,
        .count = fusion->parameter_count,
        .send = fusion->order,
        .recv = fusion->order,
    };
    return collective_start(fusion->group, &ask, START_ASYNC, &fusion->order_request, error);
}

int fusion_replan(struct shoal_fusion *fusion, struct error *error)
{
    uint8_t *seen = malloc((size_t)fusion->parameter_count + 1);
    bool in_arena = fusion->own_memory && !fusion->on_device;
    uint8_t *old = in_arena ? malloc(fusion->plan.total_bytes + 1) : NULL;
    struct plan plan = {0};
    int code = 0;
    if (!seen || (in_arena && !old))
        code = error_set(error, ERR_MEMORY, "out of memory to lay fusion buffers out again");
    else if (!plan_order_valid(fusion->order, fusion->parameter_count, seen))
        code = error_set(error, ERR_PROTOCOL,
                         "the order of gradients that rank 0 of the group told makes no sense: its "
                         "parameters differ from this rank's");
    else
        code = make_plan(fusion, &plan, error);
    if (code == 0 && fusion->on_device) {
        code = device_fusion_move(&fusion->device, &fusion->plan, &plan, fusion->own_memory, error);
        if (code < 0)
            plan_clear(&plan);
    }
    if (code == 0) {
        assert(plan.offset_of);
        if (old)
            memcpy(old, fusion->memory, fusion->plan.total_bytes);
        if (!fusion->on_device)
            memset(fusion->memory, 0, fusion->plan.total_bytes);
        for (uint32_t i = 0; i < fusion->parameter_count; i++)
            if (old && !fusion->gradients[i])
                memcpy(fusion->memory + plan.offset_of[i], old + fusion->plan.offset_of[i],
                       gradient_bytes(fusion, i));
        plan_clear(&fusion->plan);
        fusion->plan = plan;
        fusion->learned = true;
    }
    free(seen);
    free(old);
    return code;
}

/* Phases REDUCE and AGREE, as far as the deadline allows. */
static int finish_step(struct shoal_fusion *fusion, uint64_t deadline_ns, struct error *error)
{
    int code = 0;
    if (fusion->phase == PHASE_REDUCE) {
        code = finish_buffers(fusion, deadline_ns, error);
        if (code == 0 && !fusion->learned) {
            code = start_agreeing(fusion, error);
            if (code == 0) {
                pthread_mutex_lock(&fusion->lock);
                fusion->phase = PHASE_AGREE;
                pthread_mutex_unlock(&fusion->lock);
            }
        }
    }
    if (code == 0 && fusion->phase == PHASE_AGREE) {
        uint64_t completed_ns;
        code = finish_request(fusion, &fusion->order_request, deadline_ns, &completed_ns, error);
        pthread_mutex_lock(&fusion->lock);
        if (code == 0)
            code = fusion_replan(fusion, error);
        pthread_mutex_unlock(&fusion->lock);
    }
    if (code == 0 && fusion->on_device)
        code = device_fusion_end(&fusion->device, fusion->device.stream, error);
    return code;
}

void fusion_begin_step(struct shoal_fusion *fusion)
{
    for (uint32_t i = 0; fusion->on_device && i < fusion->parameter_count; i++)
        fusion->device.absent[i] = false;
    fusion_step_begin(&fusion->step, &fusion->plan);
    fusion->phase = PHASE_GATHER;
}

int fusion_enter_wait(struct shoal_fusion *fusion, struct error *error)
{
    if (fusion->failure.code < 0) {
        *error = fusion->failure;
        return error->code;
    }
    if (fusion->waiting)
        return error_set(error, ERR_STATE, "another thread is in shoal_fusion_wait");
    fusion->waiting = true; /* at once: send_rest lets the lock go */
    int code = 0;
    if (fusion->phase == PHASE_GATHER) {
        fusion->wait_started_ns = clock_now_ns();
        fusion->finished = 0;
        fusion->phase = PHASE_REDUCE;
        code = send_rest(fusion, error);
    }
    if (code < 0)
        fusion->waiting = false;
    return code;
}

/* Whether the request that was waited for is still to come: only the time had passed, or the job is
 * closed. */
static bool is_under_way(const struct shoal_fusion *fusion)
{
    if (fusion->phase == PHASE_AGREE)
        return fusion->order_request;
    return fusion->finished < fusion->plan.buffer_count && fusion->requests[fusion->finished];
}

int fusion_wait(struct shoal_fusion *fusion, int timeout_ms, struct error *error)
{
    uint64_t deadline_ns = job_deadline_ns(fusion->group->job, timeout_ms);
    pthread_mutex_lock(&fusion->lock);
    int code = fusion_enter_wait(fusion, error);
    pthread_mutex_unlock(&fusion->lock);
    if (code < 0)
        return code;
    code = finish_step(fusion, deadline_ns, error);
    pthread_mutex_lock(&fusion->lock);
    fusion->waiting = false;
    if (code == 0) {
        fusion_begin_step(fusion);
    } else if (!is_under_way(fusion)) {
        fusion->failure = *error;
    }
    pthread_mutex_unlock(&fusion->lock);
    return code;
}

int shoal_fusion_wait(shoal_fusion *fusion, int timeout_ms)
{
    struct error error;
    if (timeout_ms < -1) {
        error_set(&error, ERR_INVALID, "shoal_fusion_wait: timeout_ms is less than -1");
        return error_text_keep(&error);
    }
    if (fusion_enter(fusion, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = fusion->group->job;
    int code = fusion_wait(fusion, timeout_ms, &error);
    job_leave(job);
    return code < 0 ? error_text_keep(&error) : SHOAL_OK;
}

int shoal_fusion_statistics(const shoal_fusion *fusion, struct shoal_fusion_statistics *statistics)
{
    struct error error;
    if (!statistics || statistics->struct_size < sizeof(statistics->struct_size)) {
        error_set(&error, ERR_INVALID, "shoal_fusion_statistics: %s",
                  statistics ? "struct_size is not set" : "statistics is NULL");
        return error_text_keep(&error);
    }
    if (fusion_enter(fusion, &error) < 0)
        return error_text_keep(&error);
    struct shoal_job *job = fusion->group->job;
    size_t bytes = statistics->struct_size;
    /* The lock is not part of what the caller sees as constant. */
    struct shoal_fusion *locked = (struct shoal_fusion *)(uintptr_t)fusion;
    pthread_mutex_lock(&locked->lock);
    fusion_times_collect(locked);
    struct shoal_fusion_statistics copy = fusion->statistics;
    pthread_mutex_unlock(&locked->lock);
    job_leave(job);
    copy.struct_size = bytes;
    memcpy(statistics, &copy, bytes < sizeof(copy) ? bytes : sizeof(copy));
    return SHOAL_OK;
}

/* Wait for these requests. False: one has failed, or is still under way and where it was. */
static bool finish_requests(struct shoal_fusion *fusion, struct shoal_request **requests,
                            uint32_t count, uint64_t deadline_ns)
{
    struct error ignored;
    uint64_t completed_ns;
    bool well = true;
    for (uint32_t i = 0; i < count; i++)
        if (requests[i] &&
            finish_request(fusion, &requests[i], deadline_ns, &completed_ns, &ignored) < 0)
            well = false;
    return well;
}

/* Whether something may still be copied from and to memory of the fusion's by the library. */
static bool has_requests(const struct shoal_fusion *fusion)
{
    for (uint32_t i = 0; i < fusion->plan.buffer_count; i++)
        if (fusion->requests[i] || fusion->passed[i])
            return true;
    return fusion->order_request;
}

void shoal_fusion_free(shoal_fusion *fusion)
{
    struct error error;
    if (!fusion || fusion_enter(fusion, &error) < 0)
        return; /* a forked child has nothing of the job to free; a closed job frees it */
    struct shoal_job *job = fusion->group->job;
    uint64_t deadline_ns = job_deadline_ns(job, -1);
    uint32_t count = fusion->plan.buffer_count;
    bool well = finish_requests(fusion, fusion->requests, count, deadline_ns);
    well &= finish_requests(fusion, fusion->passed, count, deadline_ns);
    well &= finish_requests(fusion, &fusion->order_request, 1, deadline_ns);
    bool over = !has_requests(fusion); /* else it goes with the job */
    fusion_times_drop(fusion);
    pthread_mutex_lock(&job->lock);
    fusion->group->fusion_count--;
    if (over)
        DL_DELETE(job->fusions, fusion);
    else
        fusion->freed = true;
    pthread_mutex_unlock(&job->lock);
    if (over) {
        /* Memory that the daemon may still write to stays until the job is closed. */
        if (well && fusion->failure.code == 0 && !fusion->on_device)
            shoal_free(job, fusion->memory);
        free_fusion(fusion);
    }
    job_leave(job);
}
