#include "worker/examples/digits/training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/examples/digits/random.h"
#include "worker/shoal.h"

/* Memory of one run. */
struct run {
    const struct training *training;
    const struct training_exchange *exchange;
    float *parameters; /* the caller's */
    float *velocity;
    float *gradients[NETWORK_TENSORS_MAX];
    uint32_t *order;
    float *inputs; /* this rank's rows of a batch */
    unsigned char *labels;
    struct network_workspace *workspace;
};

size_t training_step_count(const struct training *training)
{
    size_t batch = training->plan.batch_rows;
    return (training->rows->row_count + batch - 1) / batch;
}

void training_order(uint32_t *order, size_t count, uint64_t seed, size_t epoch)
{
    uint64_t state = seed ^ (UINT64_C(0xd1342543de82ef95) * (epoch + 1));
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count; i > 1; i--) { /* Fisher and Yates */
        size_t j = random_below(&state, i);
        uint32_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

void training_share(size_t rows, int rank, int world_size, size_t *first, size_t *count)
{
    size_t begin = rows * (size_t)rank / (size_t)world_size;
    *first = begin;
    *count = rows * ((size_t)rank + 1) / (size_t)world_size - begin;
}

static void run_free(struct run *run)
{
    free(run->velocity);
    free(run->order);
    free(run->inputs);
    free(run->labels);
    network_workspace_free(run->workspace);
}

static int run_prepare(struct run *run)
{
    const struct training *training = run->training;
    size_t world_size = (size_t)run->exchange->world_size;
    size_t share_max = (training->plan.batch_rows + world_size - 1) / world_size;
    run->velocity = calloc(network_parameter_count(training->network), sizeof(float));
    run->order = malloc(training->rows->row_count * sizeof *run->order);
    run->inputs = malloc(share_max * DATASET_PIXELS * sizeof(float));
    run->labels = malloc(share_max);
    run->workspace = network_workspace_create(training->network, share_max);
    if (run->velocity && run->order && run->inputs && run->labels && run->workspace)
        return 0;
    run_free(run);
    return SHOAL_EMEMORY;
}

/* v = momentum * v + gradient; parameter -= learning rate * v. */
static void update_parameters(struct run *run)
{
    const struct network *network = run->training->network;
    float rate = run->training->plan.learning_rate, momentum = run->training->plan.momentum;
    float *parameter = run->parameters, *velocity = run->velocity;
    for (size_t tensor = 0; tensor < network_tensor_count(network); tensor++) {
        const float *gradient = run->gradients[tensor];
        size_t count = network_tensor_size(network, tensor);
        for (size_t i = 0; i < count; i++) {
            velocity[i] = momentum * velocity[i] + gradient[i];
            parameter[i] -= rate * velocity[i];
        }
        parameter += count;
        velocity += count;
    }
}

static int run_step(struct run *run, size_t step, double *loss_sum)
{
    const struct training *training = run->training;
    const struct training_exchange *exchange = run->exchange;
    size_t batch_first = step * training->plan.batch_rows;
    size_t batch = training->rows->row_count - batch_first, first, count;
    if (batch > training->plan.batch_rows)
        batch = training->plan.batch_rows;
    training_share(batch, exchange->rank, exchange->world_size, &first, &count);
    dataset_gather(training->rows, run->order + batch_first + first, count, run->inputs,
                   run->labels);

    int result = exchange->begin(exchange->context, run->gradients);
    if (result != 0)
        return result;
    double loss;
    network_forward(training->network, run->parameters, run->inputs, count, run->workspace);
    result =
        network_backward(training->network, run->parameters, run->labels, 1.0F / (float)batch,
                         run->gradients, exchange->ready, exchange->context, run->workspace, &loss);
    if (result == 0 && exchange->finish)
        result = exchange->finish(exchange->context, run->gradients);
    if (result != 0)
        return result;
    update_parameters(run);
    *loss_sum += loss;
    return 0;
}

int training_run(const struct training *training, const struct training_exchange *exchange,
                 float *parameters, training_epoch_done *epoch_done, void *context)
{
    struct run run = {.training = training, .exchange = exchange, .parameters = parameters};
    int result = run_prepare(&run);
    if (result != 0)
        return result;
    for (size_t epoch = 1; result == 0 && epoch <= training->plan.epochs; epoch++) {
        double loss_sum = 0.0;
        training_order(run.order, training->rows->row_count, training->plan.seed, epoch);
        for (size_t step = 0; result == 0 && step < training_step_count(training); step++)
            result = run_step(&run, step, &loss_sum);
        if (result == 0 && epoch_done)
            result = epoch_done(context, epoch, parameters, loss_sum);
    }
    run_free(&run);
    return result;
}

struct alone {
    const struct network *network;
    float *gradients;
};

static int alone_begin(void *context, float **gradients)
{
    const struct alone *alone = context;
    for (size_t tensor = 0; tensor < network_tensor_count(alone->network); tensor++)
        gradients[tensor] = alone->gradients + network_tensor_offset(alone->network, tensor);
    return 0;
}

int training_run_alone(const struct training *training, float *parameters,
                       training_epoch_done *epoch_done, void *context)
{
    struct alone alone = {training->network, NULL};
    alone.gradients = malloc(network_parameter_count(training->network) * sizeof(float));
    if (!alone.gradients)
        return SHOAL_EMEMORY;
    struct training_exchange exchange = {
        .rank = 0, .world_size = 1, .context = &alone, .begin = alone_begin};
    int result = training_run(training, &exchange, parameters, epoch_done, context);
    free(alone.gradients);
    return result;
}

int training_evaluate(const struct network *network, const float *parameters,
                      const struct dataset *rows, size_t first, size_t count, size_t *correct)
{
    struct network_workspace *workspace = network_workspace_create(network, count);
    if (!workspace)
        return SHOAL_EMEMORY;
    network_forward(network, parameters, rows->pixels + first * DATASET_PIXELS, count, workspace);
    *correct = network_correct_count(network, rows->labels + first, workspace);
    network_workspace_free(workspace);
    return 0;
}

double training_difference(const struct network *network, const float *parameters,
                           const float *reference, size_t *tensor)
{
    double worst = -1.0;
    for (size_t t = 0; t < network_tensor_count(network); t++) {
        double difference = 0.0, greatest = 0.0, relative = 0.0;
        for (size_t i = 0; i < network_tensor_size(network, t); i++) {
            double a = (double)*parameters++, b = (double)*reference++;
            if (!isfinite(a) || !isfinite(b))
                difference = INFINITY;
            difference = fmax(difference, fabs(a - b));
            greatest = fmax(greatest, fabs(b));
        }
        if (difference > 0.0)
            relative = isinf(difference) ? INFINITY : difference / greatest;
        if (relative > worst) {
            worst = relative;
            if (tensor)
                *tensor = t;
        }
    }
    return worst;
}

uint64_t training_hash(const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}
