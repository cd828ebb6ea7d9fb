/* The training over shoal: fusion buffers that are all-reduced while the backward pass goes on. */
#ifndef WORKER_EXAMPLES_DIGITS_DISTRIBUTED_H
#define WORKER_EXAMPLES_DIGITS_DISTRIBUTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/examples/digits/dataset.h"
#include "worker/examples/digits/training.h"
#include "worker/shoal.h"

struct distributed {
    shoal_job *job;
    const struct training *training;
    const struct dataset *test;
    size_t threshold_bytes;    /* of the fusion buffers */
    size_t first_buffer_bytes; /* of the first one */
    bool on_device;            /* the job's device holds them */
};

/* Outcome of a run; equal on every rank, but for elapsed_ns. */
struct distributed_outcome {
    size_t test_correct;       /* held-out rows labelled rightly after the last epoch */
    uint64_t elapsed_ns;       /* of the steps, without tests; this rank's */
    uint64_t communication_ns; /* of all ranks, as struct shoal_fusion_statistics */
    uint64_t exposed_ns;       /* likewise */
    uint64_t buffers_per_step;
    uint64_t bytes_per_step;
};

/* Every function prints what failed, with the library's words, to stderr and returns the library's
 * code. All ranks must call them in the same order. */

/* Train with all ranks from the parameters that rank 0 draws; `parameters` receives the result.
 * show: rank 0 prints a line an epoch. */
int distributed_train(const struct distributed *distributed, bool show, float *parameters,
                      struct distributed_outcome *outcome);
/* Whether all ranks have the same bits: the bitwise and of all equals the bitwise or of all. */
int distributed_compare_words(const struct distributed *distributed, const void *words,
                              size_t count, bool *same);
/* flags[i] becomes the least of all ranks'. Waits for ranks that come later. */
int distributed_agree(const struct distributed *distributed, int32_t *flags, size_t count);

/* 1 - exposed / communication, in percent; 0 without communication. */
double distributed_hidden_percent(uint64_t communication_ns, uint64_t exposed_ns);

#endif
