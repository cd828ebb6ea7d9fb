/* Stochastic gradient descent with momentum, on this rank's share of every batch.
 *
 * The loop is one and the same for a process alone and for many: what differs, where gradients live
 * and how they are summed over the ranks, is behind struct training_exchange. Pure: no I/O, no
 * clock. Functions that return int give 0 or a negative SHOAL_E... code. */
#ifndef WORKER_EXAMPLES_DIGITS_TRAINING_H
#define WORKER_EXAMPLES_DIGITS_TRAINING_H

#include <stddef.h>
#include <stdint.h>

#include "worker/examples/digits/dataset.h"
#include "worker/examples/digits/network.h"

struct training_plan {
    size_t epochs;
    size_t batch_rows; /* of all ranks together; the last batch of an epoch may be smaller */
    uint64_t seed;     /* of the first parameters and of the order of the rows */
    float learning_rate;
    float momentum;
};

struct training {
    const struct network *network;
    const struct dataset *rows; /* all training rows; every rank holds all and uses its shares */
    struct training_plan plan;
};

/* The ranks that train together. Every function returns 0, or an error that ends the training. */
struct training_exchange {
    int rank, world_size;
    void *context;
    /* A step begins: set gradients[tensor] to the memory of this step's gradients. */
    int (*begin)(void *context, float **gradients);
    /* This rank's gradient of a tensor is complete (NULL: nothing to do). */
    network_ready *ready;
    /* Return when all gradients hold the sum over the ranks, and set gradients[tensor] to where
     * these lie (NULL: they are where they were, complete). */
    int (*finish)(void *context, float **gradients);
};

/* Called by every rank after each epoch (counted from 1), with this rank's sum of the
 * cross-entropy over its rows of the epoch. Non-zero ends the training. */
typedef int training_epoch_done(void *context, size_t epoch, const float *parameters,
                                double loss_sum);

/* Batches in an epoch. */
size_t training_step_count(const struct training *training);
/* The order of the rows in an epoch: a permutation of 0..count-1 that depends on seed and epoch. */
void training_order(uint32_t *order, size_t count, uint64_t seed, size_t epoch);
/* Rows first..first+count of a batch (or of anything) for one rank. Shares of all ranks together
 * are the whole, without overlap, and differ by one row at most. */
void training_share(size_t rows, int rank, int world_size, size_t *first, size_t *count);

/* Train from the given parameters, in place. `epoch_done` may be NULL. SHOAL_EMEMORY or what a
 * function of the exchange or epoch_done returned. */
int training_run(const struct training *training, const struct training_exchange *exchange,
                 float *parameters, training_epoch_done *epoch_done, void *context);
/* Train alone, every batch whole. */
int training_run_alone(const struct training *training, float *parameters,
                       training_epoch_done *epoch_done, void *context);

/* Rows first..first+count that the network labels rightly. SHOAL_EMEMORY. */
int training_evaluate(const struct network *network, const float *parameters,
                      const struct dataset *rows, size_t first, size_t count, size_t *correct);

/* How far parameters are from a reference: the greatest over all tensors of
 * max|a - b| / max|b|, the maxima taken over the elements of one tensor; infinite when a value is
 * not finite, or a tensor differs from a reference of zeros. *tensor, if not NULL: the worst one.
 */
double training_difference(const struct network *network, const float *parameters,
                           const float *reference, size_t *tensor);
/* 64-bit FNV-1a of the bytes of an array, to show that two are alike. */
uint64_t training_hash(const void *data, size_t bytes);

#endif
