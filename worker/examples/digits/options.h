/* The command line of shoal-digits. */
#ifndef WORKER_EXAMPLES_DIGITS_OPTIONS_H
#define WORKER_EXAMPLES_DIGITS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "worker/examples/digits/network.h"
#include "worker/examples/digits/training.h"

enum { OPTIONS_ERROR_BYTES = 512 };

struct options {
    const char *data_path; /* NULL: look for it around the program */
    const char *save_path; /* NULL: do not; "{rank}" in it stands for the rank */
    struct network network;
    struct training_plan plan;
    size_t threshold_bytes;    /* of the fusion buffers */
    size_t first_buffer_bytes; /* of the first one */
    double accuracy_min;
    bool on_device; /* gradients are exchanged in a GPU's memory */
    bool single;    /* train alone, without shoal */
    bool verify;    /* train a second time, and alone */
    bool help;
};

/* Read the command line; strings stay argv's. SHOAL_EINVALID with what is wrong in `error`, of
 * OPTIONS_ERROR_BYTES. Uses getopt_long, so one thread at a time. */
int options_parse(int argc, char **argv, struct options *options, char *error);
void options_print_help(FILE *out);

/* `path` with every "{rank}" replaced. SHOAL_EINVALID when it does not fit. */
int options_save_path(const char *path, int rank, char *result, size_t result_bytes);

#endif
