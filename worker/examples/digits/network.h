/* A multi-layer perceptron: dense layers, tanh between them, softmax and cross-entropy at the end.
 *
 * tanh rather than ReLU because it is smooth: where a ReLU stands near its corner, one rounding
 * more or less switches it, and two runs that differ in their last bits drift apart.
 *
 * The parameters lie in one array of floats. Tensor 2l holds the weights of layer l as
 * [inputs][outputs], tensor 2l+1 its bias as [outputs]; this is the order of the forward pass.
 * Pure: no I/O, no clock, no threads. Functions that return int give 0 or a negative SHOAL_E...
 * code. */
#ifndef WORKER_EXAMPLES_DIGITS_NETWORK_H
#define WORKER_EXAMPLES_DIGITS_NETWORK_H

#include <stddef.h>
#include <stdint.h>

enum { NETWORK_LAYERS_MAX = 8, NETWORK_TENSORS_MAX = 2 * NETWORK_LAYERS_MAX };

struct network {
    size_t layer_count;
    size_t widths[NETWORK_LAYERS_MAX + 1]; /* widths[l] into layer l, widths[l + 1] out of it */
};

struct network_workspace;

/* 2 * layer_count. */
size_t network_tensor_count(const struct network *network);
/* Elements of a tensor, and where it begins in the array of parameters. */
size_t network_tensor_size(const struct network *network, size_t tensor);
size_t network_tensor_offset(const struct network *network, size_t tensor);
/* Elements of all tensors. */
size_t network_parameter_count(const struct network *network);

/* Set the weights uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio, AISTATS 2010), the
 * biases zero. Equal seeds give equal bits. */
void network_initialize(const struct network *network, uint64_t seed, float *parameters);

/* Memory for the activations of up to rows_max rows. NULL when out of memory. */
struct network_workspace *network_workspace_create(const struct network *network, size_t rows_max);
void network_workspace_free(struct network_workspace *workspace);

/* Run inputs[rows][widths[0]] through the network; rows may be 0 and at most rows_max. `inputs`
 * must stay as it is until network_backward is done. Returns the output before the softmax,
 * [rows][widths[layer_count]], which belongs to the workspace and lasts until the next call. */
const float *network_forward(const struct network *network, const float *parameters,
                             const float *inputs, size_t rows, struct network_workspace *workspace);

/* Told as soon as a tensor's gradient is complete; non-zero stops the backward pass. */
typedef int network_ready(void *context, size_t tensor);

/* The backward pass over the rows of the last network_forward, last layer first. gradients[t]
 * receives, for tensor t, the sum over the rows of the gradient of the cross-entropy, times `scale`
 * (1 / rows of the whole batch: the sum over all shares is then the gradient of the mean). With no
 * rows the gradients are zeros. *loss_sum: sum over the rows of the cross-entropy, not scaled.
 * Returns 0 or what `ready` returned. `ready` may be NULL. */
int network_backward(const struct network *network, const float *parameters,
                     const unsigned char *labels, float scale, float *const *gradients,
                     network_ready *ready, void *context, struct network_workspace *workspace,
                     double *loss_sum);

/* Rows of the last network_forward whose greatest output is at their label (the first of equals).
 */
size_t network_correct_count(const struct network *network, const unsigned char *labels,
                             const struct network_workspace *workspace);

#endif
