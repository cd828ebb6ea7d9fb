#include "worker/examples/digits/network.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/examples/digits/matrix.h"
#include "worker/examples/digits/random.h"

struct network_workspace {
    size_t rows_max;
    size_t rows;                        /* of the last forward pass */
    const float *inputs;                /* likewise; the caller's */
    float *outputs[NETWORK_LAYERS_MAX]; /* of each layer: [rows][widths[l + 1]] */
    float *delta;                       /* gradient at a layer's output before tanh */
    float *delta_below;                 /* the same one layer below */
    float *transposed;                  /* the weights of one layer, transposed */
};

size_t network_tensor_count(const struct network *network)
{
    return 2 * network->layer_count;
}

size_t network_tensor_size(const struct network *network, size_t tensor)
{
    size_t layer = tensor / 2;
    size_t outputs = network->widths[layer + 1];
    return tensor % 2 == 0 ? network->widths[layer] * outputs : outputs;
}

size_t network_tensor_offset(const struct network *network, size_t tensor)
{
    size_t offset = 0;
    for (size_t t = 0; t < tensor; t++)
        offset += network_tensor_size(network, t);
    return offset;
}

size_t network_parameter_count(const struct network *network)
{
    return network_tensor_offset(network, network_tensor_count(network));
}

void network_initialize(const struct network *network, uint64_t seed, float *parameters)
{
    uint64_t state = seed;
    for (size_t layer = 0; layer < network->layer_count; layer++) {
        size_t inputs = network->widths[layer], outputs = network->widths[layer + 1];
        float limit = sqrtf(6.0F / (float)(inputs + outputs));
        for (size_t i = 0; i < inputs * outputs; i++)
            *parameters++ = (2.0F * random_unit(&state) - 1.0F) * limit;
        for (size_t i = 0; i < outputs; i++)
            *parameters++ = 0.0F;
    }
}

struct network_workspace *network_workspace_create(const struct network *network, size_t rows_max)
{
    assert(network->layer_count >= 1 && network->layer_count <= NETWORK_LAYERS_MAX);
    struct network_workspace *workspace = calloc(1, sizeof *workspace);
    if (!workspace)
        return NULL;
    workspace->rows_max = rows_max;
    size_t width_max = 0, weights_max = 0;
    int missing = 0;
    for (size_t layer = 0; layer < network->layer_count; layer++) {
        size_t width = network->widths[layer + 1],
               weights = network_tensor_size(network, 2 * layer);
        width_max = width > width_max ? width : width_max;
        weights_max = weights > weights_max ? weights : weights_max;
        workspace->outputs[layer] = calloc(rows_max * width + 1, sizeof(float));
        missing |= !workspace->outputs[layer];
    }
    workspace->delta = calloc(rows_max * width_max + 1, sizeof(float));
    workspace->delta_below = calloc(rows_max * width_max + 1, sizeof(float));
    workspace->transposed = calloc(weights_max + 1, sizeof(float));
    if (missing || !workspace->delta || !workspace->delta_below || !workspace->transposed) {
        network_workspace_free(workspace);
        return NULL;
    }
    return workspace;
}

void network_workspace_free(struct network_workspace *workspace)
{
    if (!workspace)
        return;
    for (size_t layer = 0; layer < NETWORK_LAYERS_MAX; layer++)
        free(workspace->outputs[layer]);
    free(workspace->delta);
    free(workspace->delta_below);
    free(workspace->transposed);
    free(workspace);
}

const float *network_forward(const struct network *network, const float *parameters,
                             const float *inputs, size_t rows, struct network_workspace *workspace)
{
    assert(rows <= workspace->rows_max);
    workspace->rows = rows;
    workspace->inputs = inputs;
    for (size_t layer = 0; layer < network->layer_count; layer++) {
        size_t in = network->widths[layer], out = network->widths[layer + 1];
        const float *weights = parameters + network_tensor_offset(network, 2 * layer);
        const float *bias = parameters + network_tensor_offset(network, 2 * layer + 1);
        float *outputs = workspace->outputs[layer];
        matrix_multiply(outputs, (struct matrix_view){inputs, in, 1}, weights, bias, rows, in, out);
        if (layer + 1 < network->layer_count)
            for (size_t i = 0; i < rows * out; i++)
                outputs[i] = tanhf(outputs[i]);
        inputs = outputs;
    }
    return inputs;
}

/* delta = (softmax(outputs) - one at the label) * scale. Returns the cross-entropy of the row. */
static double softmax_row(const float *outputs, size_t count, unsigned char label, float scale,
                          float *delta)
{
    float greatest = outputs[0];
    for (size_t i = 1; i < count; i++)
        greatest = outputs[i] > greatest ? outputs[i] : greatest;
    delta[0] = expf(outputs[0] - greatest);
    float sum = delta[0]; /* the greatest gives 1, so the sum is at least that */
    for (size_t i = 1; i < count; i++) {
        delta[i] = expf(outputs[i] - greatest);
        sum += delta[i];
    }
    for (size_t i = 0; i < count; i++)
        delta[i] = (delta[i] / sum - (i == label ? 1.0F : 0.0F)) * scale;
    return log((double)sum) + (double)greatest - (double)outputs[label];
}

/* delta_below = (delta * weights transposed) * tanh', where tanh' = 1 - tanh^2. */
static void delta_propagate(const float *weights, size_t in, size_t out, const float *activations,
                            struct network_workspace *workspace)
{
    float *below = workspace->delta_below;
    matrix_transpose(workspace->transposed, weights, in, out);
    matrix_multiply(below, (struct matrix_view){workspace->delta, out, 1}, workspace->transposed,
                    NULL, workspace->rows, out, in);
    for (size_t i = 0; i < workspace->rows * in; i++)
        below[i] *= 1.0F - activations[i] * activations[i];
}

static void bias_gradient(float *gradient, const float *delta, size_t rows, size_t width)
{
    memset(gradient, 0, width * sizeof *gradient);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++)
            gradient[i] += delta[r * width + i];
}

int network_backward(const struct network *network, const float *parameters,
                     const unsigned char *labels, float scale, float *const *gradients,
                     network_ready *ready, void *context, struct network_workspace *workspace,
                     double *loss_sum)
{
    size_t rows = workspace->rows, classes = network->widths[network->layer_count];
    double loss = 0.0;
    for (size_t r = 0; r < rows; r++)
        loss += softmax_row(workspace->outputs[network->layer_count - 1] + r * classes, classes,
                            labels[r], scale, workspace->delta + r * classes);

    for (size_t layer = network->layer_count; layer-- > 0;) {
        size_t in = network->widths[layer], out = network->widths[layer + 1];
        const float *below = layer > 0 ? workspace->outputs[layer - 1] : workspace->inputs;
        bias_gradient(gradients[2 * layer + 1], workspace->delta, rows, out);
        matrix_multiply(gradients[2 * layer], (struct matrix_view){below, 1, in}, workspace->delta,
                        NULL, in, rows, out);
        int result = ready ? ready(context, 2 * layer + 1) : 0;
        if (result == 0 && ready)
            result = ready(context, 2 * layer);
        if (result != 0)
            return result;
        if (layer > 0) {
            delta_propagate(parameters + network_tensor_offset(network, 2 * layer), in, out, below,
                            workspace);
            float *swap = workspace->delta;
            workspace->delta = workspace->delta_below;
            workspace->delta_below = swap;
        }
    }
    *loss_sum = loss;
    return 0;
}

size_t network_correct_count(const struct network *network, const unsigned char *labels,
                             const struct network_workspace *workspace)
{
    size_t classes = network->widths[network->layer_count], correct = 0;
    const float *outputs = workspace->outputs[network->layer_count - 1];
    for (size_t r = 0; r < workspace->rows; r++) {
        size_t best = 0;
        for (size_t i = 1; i < classes; i++)
            if (outputs[r * classes + i] > outputs[r * classes + best])
                best = i;
        correct += best == labels[r];
    }
    return correct;
}
