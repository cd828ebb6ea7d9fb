/* shoalperf's picture of its measurements: an SVG with bandwidth and time against size, all axes
 * logarithmic, in the look of scripts/bench/plot.py. A point has its figures as text, in the digits
 * of a line of JSON.
 */
#ifndef WORKER_PROGRAMS_SHOALPERF_PERF_PLOT_H
#define WORKER_PROGRAMS_SHOALPERF_PERF_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/base/error.h"
#include "worker/programs/shoalperf/perf_table.h"

struct perf_plot {
    const char *path; /* the caller's; NULL: none is wanted, and all calls do nothing */
    int fd;
    bool made; /* the file was not there */
    struct perf_row *rows;
    size_t count, room;
};

/* Open the file, before anything is measured; what is in it stays until perf_plot_close. ERR_SYSTEM
 * with the path. */
int perf_plot_open(struct perf_plot *plot, const char *path, struct error *error);
/* Rows of one collective, pair of type and operation after pair. ERR_MEMORY. */
int perf_plot_add(struct perf_plot *plot, const struct perf_row *row, struct error *error);
/* Write the picture, if whole, and close; else the file is as it was before. */
int perf_plot_close(struct perf_plot *plot, bool whole, struct error *error);

/* The picture alone. rows[0] says which collective. */
void perf_plot_draw(FILE *out, const struct perf_row *rows, size_t count);

#endif
