#include "worker/examples/digits/distributed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One training run. */
struct session {
    const struct distributed *distributed;
    shoal_fusion *fusion;
    float *gradients[NETWORK_TENSORS_MAX]; /* on a device: where they are computed */
    bool show;
    uint64_t epoch_begin_ns;
    int64_t epoch_communication_ns, epoch_exposed_ns; /* this rank's, of this epoch */
    struct distributed_outcome outcome;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Pass a result on; a failure is told once, here where it is first known. */
static int tell(const struct distributed *distributed, const char *call, int result)
{
    if (result != SHOAL_OK)
        fprintf(stderr, "shoal-digits: rank %d: %s: %s: %s\n", shoal_rank(distributed->job), call,
                shoal_result_name(result), shoal_error_text());
    return result;
}

double distributed_hidden_percent(uint64_t communication_ns, uint64_t exposed_ns)
{
    if (communication_ns == 0)
        return 0.0;
    return 100.0 * (1.0 - (double)exposed_ns / (double)communication_ns);
}

/* --- the exchange of a step ------------------------------------------------------------------ */

/* A tensor's gradient between the memory where it is computed and its memory on the device. */
static int gradient_copy(const struct session *session, size_t tensor, bool to_device)
{
    const struct distributed *distributed = session->distributed;
    void *host = session->gradients[tensor];
    void *memory = shoal_fusion_gradient(session->fusion, tensor);
    size_t bytes = network_tensor_size(distributed->training->network, tensor) * sizeof(float);
    return tell(distributed, "shoal_device_copy",
                shoal_device_copy(distributed->job, to_device ? memory : host,
                                  to_device ? host : memory, bytes));
}

/* The gradients lie in the fusion buffers; they move once, after the first step. */
static int exchange_begin(void *context, float **gradients)
{
    struct session *session = context;
    size_t count = network_tensor_count(session->distributed->training->network);
    for (size_t tensor = 0; tensor < count; tensor++) {
        gradients[tensor] = session->distributed->on_device
                                ? session->gradients[tensor]
                                : shoal_fusion_gradient(session->fusion, tensor);
        if (!gradients[tensor])
            return tell(session->distributed, "shoal_fusion_gradient", SHOAL_EINVALID);
    }
    return 0;
}

static int exchange_ready(void *context, size_t tensor)
{
    struct session *session = context;
    int result = session->distributed->on_device ? gradient_copy(session, tensor, true) : 0;
    if (result != SHOAL_OK)
        return result;
    return tell(session->distributed, "shoal_fusion_ready",
                shoal_fusion_ready(session->fusion, tensor));
}

static int exchange_finish(void *context, float **gradients)
{
    struct session *session = context;
    struct shoal_fusion_statistics statistics = {.struct_size = sizeof statistics};
    int result =
        tell(session->distributed, "shoal_fusion_wait", shoal_fusion_wait(session->fusion, -1));
    if (result == SHOAL_OK)
        result = tell(session->distributed, "shoal_fusion_statistics",
                      shoal_fusion_statistics(session->fusion, &statistics));
    if (result != SHOAL_OK)
        return result;
    session->epoch_communication_ns += (int64_t)statistics.communication_ns;
    session->epoch_exposed_ns += (int64_t)statistics.exposed_ns;
    session->outcome.buffers_per_step = statistics.buffers;
    session->outcome.bytes_per_step = statistics.bytes;
    size_t count = network_tensor_count(session->distributed->training->network);
    for (size_t i = 0; session->distributed->on_device && result == SHOAL_OK && i < count; i++)
        result = gradient_copy(session, i, false);
    return result == SHOAL_OK ? exchange_begin(context, gradients) : result;
}

/* --- after an epoch -------------------------------------------------------------------------- */

static void show_epoch(const struct session *session, size_t epoch, double loss_sum,
                       const int64_t *totals, uint64_t elapsed_ns)
{
    const struct training *training = session->distributed->training;
    printf("epoch %3zu/%zu  loss %.4f  test accuracy %.4f  %6.2f ms/step  communication %5.2f "
           "ms/step, %3.0f %% hidden\n",
           epoch, training->plan.epochs, loss_sum / (double)training->rows->row_count,
           (double)totals[0] / (double)session->distributed->test->row_count,
           (double)elapsed_ns / 1e6 / (double)training_step_count(training),
           (double)totals[1] / 1e6 / (double)training_step_count(training) /
               shoal_world_size(session->distributed->job),
           distributed_hidden_percent((uint64_t)totals[1], (uint64_t)totals[2]));
    fflush(stdout);
}

static int epoch_done(void *context, size_t epoch, const float *parameters, double loss_sum)
{
    struct session *session = context;
    const struct distributed *distributed = session->distributed;
    shoal_group *world = shoal_world(distributed->job);
    uint64_t elapsed_ns = now_ns() - session->epoch_begin_ns;
    size_t first, count, correct;

    /* The test is shared out too. */
    training_share(distributed->test->row_count, shoal_rank(distributed->job),
                   shoal_world_size(distributed->job), &first, &count);
    int result = training_evaluate(distributed->training->network, parameters, distributed->test,
                                   first, count, &correct);
    if (result != 0)
        return result;
    int64_t totals[3] = {(int64_t)correct, session->epoch_communication_ns,
                         session->epoch_exposed_ns};
    result = tell(distributed, "shoal_all_reduce",
                  shoal_all_reduce(world, totals, totals, 3, SHOAL_I64, SHOAL_SUM, NULL));
    if (result == SHOAL_OK)
        result = tell(distributed, "shoal_all_reduce",
                      shoal_all_reduce(world, &loss_sum, &loss_sum, 1, SHOAL_F64, SHOAL_SUM, NULL));
    if (result != SHOAL_OK)
        return result;

    session->outcome.test_correct = (size_t)totals[0];
    session->outcome.communication_ns += (uint64_t)totals[1];
    session->outcome.exposed_ns += (uint64_t)totals[2];
    session->outcome.elapsed_ns += elapsed_ns;
    if (session->show && shoal_rank(distributed->job) == 0)
        show_epoch(session, epoch, loss_sum, totals, elapsed_ns);
    session->epoch_communication_ns = session->epoch_exposed_ns = 0;
    session->epoch_begin_ns = now_ns();
    return 0;
}

/* --- a run ----------------------------------------------------------------------------------- */

static int fusion_open(struct session *session)
{
    const struct distributed *distributed = session->distributed;
    const struct network *network = distributed->training->network;
    size_t count = network_tensor_count(network);
    struct shoal_parameter parameters[NETWORK_TENSORS_MAX];
    for (size_t tensor = 0; tensor < count; tensor++)
        parameters[tensor] = (struct shoal_parameter){
            .gradient = NULL, .count = network_tensor_size(network, tensor), .dtype = SHOAL_F32};
    struct shoal_fusion_options options = {.struct_size = sizeof options,
                                           .threshold_bytes = distributed->threshold_bytes,
                                           .first_buffer_bytes = distributed->first_buffer_bytes,
                                           .op = SHOAL_SUM,
                                           .on_device = distributed->on_device};
    int result = tell(distributed, "shoal_fusion_create",
                      shoal_fusion_create(shoal_world(distributed->job), parameters, count,
                                          &options, &session->fusion));
    if (result != SHOAL_OK || !distributed->on_device)
        return result;
    for (size_t i = 0; i < count; i++) {
        session->gradients[i] = malloc(parameters[i].count * sizeof(float));
        if (!session->gradients[i]) {
            fprintf(stderr, "shoal-digits: rank %d: out of memory\n", shoal_rank(distributed->job));
            return SHOAL_EMEMORY;
        }
    }
    return tell(distributed, "shoal_fusion_set_stream",
                shoal_fusion_set_stream(session->fusion, shoal_device_stream(distributed->job)));
}

int distributed_train(const struct distributed *distributed, bool show, float *parameters,
                      struct distributed_outcome *outcome)
{
    const struct training *training = distributed->training;
    shoal_group *world = shoal_world(distributed->job);
    size_t count = network_parameter_count(training->network);
    struct session session = {.distributed = distributed, .show = show};
    struct training_exchange exchange = {.rank = shoal_rank(distributed->job),
                                         .world_size = shoal_world_size(distributed->job),
                                         .context = &session,
                                         .begin = exchange_begin,
                                         .ready = exchange_ready,
                                         .finish = exchange_finish};

    if (shoal_rank(distributed->job) == 0)
        network_initialize(training->network, training->plan.seed, parameters);
    int result = tell(distributed, "shoal_broadcast",
                      shoal_broadcast(world, parameters, count, SHOAL_F32, 0, NULL));
    if (result == SHOAL_OK)
        result = fusion_open(&session);
    if (result == SHOAL_OK)
        result = tell(distributed, "shoal_barrier", shoal_barrier(world, NULL));
    if (result == SHOAL_OK) {
        session.epoch_begin_ns = now_ns();
        result = training_run(training, &exchange, parameters, epoch_done, &session);
        if (result == SHOAL_EMEMORY)
            fprintf(stderr, "shoal-digits: rank %d: out of memory\n", exchange.rank);
    }
    if (session.fusion)
        shoal_fusion_free(session.fusion);
    for (size_t i = 0; i < NETWORK_TENSORS_MAX; i++)
        free(session.gradients[i]);
    if (result == SHOAL_OK)
        *outcome = session.outcome;
    return result;
}

int distributed_compare_words(const struct distributed *distributed, const void *words,
                              size_t count, bool *same)
{
    shoal_group *world = shoal_world(distributed->job);
    int32_t *every = malloc(2 * count * sizeof *every);
    if (!every) {
        fprintf(stderr, "shoal-digits: rank %d: out of memory\n", shoal_rank(distributed->job));
        return SHOAL_EMEMORY;
    }
    int32_t *any = every + count;
    int result = tell(distributed, "shoal_all_reduce",
                      shoal_all_reduce(world, words, every, count, SHOAL_I32, SHOAL_BAND, NULL));
    if (result == SHOAL_OK)
        result = tell(distributed, "shoal_all_reduce",
                      shoal_all_reduce(world, words, any, count, SHOAL_I32, SHOAL_BOR, NULL));
    if (result == SHOAL_OK)
        *same = memcmp(every, any, count * sizeof *every) == 0 &&
                memcmp(every, words, count * sizeof *every) == 0;
    free(every);
    return result;
}

int distributed_agree(const struct distributed *distributed, int32_t *flags, size_t count)
{
    return tell(distributed, "shoal_all_reduce",
                shoal_all_reduce(shoal_world(distributed->job), flags, flags, count, SHOAL_I32,
                                 SHOAL_MIN, NULL));
}
