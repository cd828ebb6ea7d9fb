/* shoalperf: times collectives and checks their results, in the manner of nccl-tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/format/route.h"
#include "common/log/progress.h"
#include "common/memory/copy.h"
#include "common/text/size_text.h"
#include "common/text/text.h"
#include "worker/programs/shoalperf/perf_device.h"
#include "worker/programs/shoalperf/perf_options.h"
#include "worker/programs/shoalperf/perf_parts.h"
#include "worker/programs/shoalperf/perf_plot.h"
#include "worker/programs/shoalperf/perf_table.h"
#include "worker/programs/shoalperf/perf_values.h"
#include "worker/shoal.h"

#define EXIT_WRONG 1
#define EXIT_USAGE 2
#define EXIT_ERROR 3

#define ARENA_DEFAULT_BYTES (256ull << 20)
#define ARENA_SPARE_BYTES (64ull << 20)

struct perf {
    struct perf_options options;
    shoal_job *job;
    shoal_group *group;
    uint32_t rank, ranks, nodes;
    void *send, *recv;         /* the same in place; never of collectives with parts */
    struct perf_device device; /* copies of both, on which collectives run with --device */
    bool in_blocks;            /* the collective has parts: this is its data, else values are */
    struct perf_values values;
    struct perf_parts parts;
    struct perf_plot plot;    /* rank 0's */
    struct progress progress; /* the same */
    uint64_t rows_wanted;     /* 0: not counted */
    uint32_t round;           /* of data */
    bool one_clock;           /* all ranks are on one machine */
    uint64_t wrong, rows;
    double busbw_sum;
    /* Values that the ranks tell each other: after a timeout they must stay until the job is
     * closed, as the buffers must. */
    int64_t integers[3];
    double real;
};

/* Bytes of the greatest buffer that will be needed. */
static uint64_t buffer_bytes(const struct perf_options *options, uint32_t ranks)
{
    bool in_blocks = route_in_blocks(options->collective);
    uint64_t least = 8ull * perf_size_parts(options->collective, ranks);
    uint64_t most = options->most_bytes < least ? least : options->most_bytes;
    for (uint32_t i = 0; i < options->count_count; i++)
        if (options->counts[i] * least > most)
            most = options->counts[i] * least;
    return in_blocks ? perf_parts_bytes(most, ranks) : (most + 63) / 64 * 64;
}

static int failed(const struct perf *perf, const char *what, int result)
{
    if (result) {
        progress_erase(&perf->progress);
        fprintf(stderr, "shoalperf: rank %u: %s: %s: %s\n", perf->rank, what,
                shoal_result_name(result), shoal_error_text());
    }
    return result;
}

static bool receives(const struct perf *perf)
{
    return perf->options.collective != COLLECTIVE_REDUCE || perf->rank == perf->options.root;
}

static int collective_start(const struct perf *perf, enum dtype dtype, enum reduce_op op,
                            uint64_t count, shoal_request **request)
{
    int root = (int)perf->options.root;
    void *send = perf->options.device ? perf->device.send : perf->send;
    void *recv = perf->options.device ? perf->device.recv : perf->recv;
    enum shoal_dtype type = (enum shoal_dtype)dtype;
    enum shoal_op operation = (enum shoal_op)op;
    switch (perf->options.collective) {
    case COLLECTIVE_BARRIER:
        return shoal_barrier(perf->group, request);
    case COLLECTIVE_ALL_REDUCE:
        return shoal_all_reduce(perf->group, send, recv, count, type, operation, request);
    case COLLECTIVE_REDUCE:
        return shoal_reduce(perf->group, send, recv, count, type, operation, root, request);
    case COLLECTIVE_BROADCAST:
        return shoal_broadcast(perf->group, recv, count, type, root, request);
    default:
        return perf_parts_start(&perf->parts, send, recv, perf->group, request);
    }
}

static int collective_run(const struct perf *perf, enum dtype dtype, enum reduce_op op,
                          uint64_t count)
{
    shoal_request *request;
    int result = SHOAL_OK;
    if (perf->options.device)
        result = shoal_group_set_stream(perf->group, SHOAL_MEMORY_DEVICE, perf->device.stream);
    if (result == SHOAL_OK)
        result = collective_start(perf, dtype, op, count, &request);
    if (perf->options.device && result == SHOAL_OK) /* the program's own are in memory */
        result = shoal_group_set_stream(perf->group, SHOAL_MEMORY_HOST, NULL);
    if (result == SHOAL_OK) {
        result = shoal_wait(request, -1);
        if (result == SHOAL_ETIMEOUT)
            shoal_request_free(request);
    }
    return failed(perf, perf_collective_name(perf->options.collective), result);
}

static void buffers_prepare(const struct perf *perf, uint64_t count)
{
    const struct perf_values *values = &perf->values;
    bool broadcast = perf->options.collective == COLLECTIVE_BROADCAST;
    if (!perf->options.shared) /* which is only read here; it has the data of another round */
        perf_values_poison(values, perf->recv, count);
    if (!broadcast)
        perf_values_fill(values, perf->send, count);
    else if (perf->rank == perf->options.root)
        perf_values_fill(values, perf->recv, count);
}

/* Results where there are some; elsewhere, and in what was sent, nothing may have changed. */
static uint64_t buffers_check(const struct perf *perf, uint64_t count, uint64_t *first)
{
    uint64_t wrong;
    const struct perf_values *values = &perf->values;
    bool in_place = perf->send == perf->recv;
    if (receives(perf))
        wrong = perf_values_check(values, perf->recv, count, first);
    else if (in_place)
        wrong = perf_values_check_input(values, perf->recv, count);
    else
        wrong = perf_values_check_poison(values, perf->recv, count);
    if (!in_place && perf->options.collective != COLLECTIVE_BROADCAST)
        wrong += perf_values_check_input(values, perf->send, count);
    return wrong;
}

/* Make the data of a round and put it into the buffers. */
static int data_make(struct perf *perf, const struct perf_case *what, uint64_t count)
{
    struct error error;
    struct perf_parts_case is = {*what, count, perf->options.uneven, perf->options.in_place};
    int code = perf->in_blocks ? perf_parts_make(&perf->parts, &is, perf->send, perf->recv, &error)
                               : perf_values_make(&perf->values, what, &error);
    if (code < 0) {
        progress_erase(&perf->progress);
        fprintf(stderr, "shoalperf: rank %u: %s\n", perf->rank, error.text);
    } else if (perf->in_blocks)
        perf_parts_prepare(&perf->parts);
    else
        buffers_prepare(perf, count);
    if (code == 0 && perf->options.device)
        return failed(perf, "copying to the device",
                      perf_device_load(&perf->device, perf->send, perf->recv));
    return code < 0 ? SHOAL_EMEMORY : SHOAL_OK;
}

static void data_clear(struct perf *perf)
{
    perf_values_clear(&perf->values);
    perf_parts_clear(&perf->parts);
}

static int data_check(const struct perf *perf, enum dtype dtype, uint64_t count, uint64_t *sum)
{
    uint64_t first = 0;
    int result = SHOAL_OK;
    if (perf->options.device)
        result = failed(perf, "copying from the device",
                        perf_device_store(&perf->device, perf->send, perf->recv));
    if (result != SHOAL_OK)
        return result;
    uint64_t wrong =
        perf->in_blocks ? perf_parts_check(&perf->parts) : buffers_check(perf, count, &first);
    char where[48] = ", parts and what lies between them"; /* which have no one order */
    if (!perf->in_blocks)
        snprintf(where, sizeof(where), ", the first at %llu", (unsigned long long)first);
    if (wrong) {
        progress_erase(&perf->progress);
        fprintf(stderr, "shoalperf: rank %u: %s %s, %llu elements: %llu wrong%s\n", perf->rank,
                perf_collective_name(perf->options.collective), dtype_name(dtype),
                (unsigned long long)count, (unsigned long long)wrong, where);
    }
    *sum += wrong;
    return SHOAL_OK;
}

/* Whether every iteration starts with the same; else it has the result of the one before. */
static bool data_repeats(const struct perf *perf)
{
    if (perf->in_blocks)
        return perf_parts_repeats(&perf->parts.is);
    return perf->send != perf->recv || perf->options.collective == COLLECTIVE_BROADCAST;
}

/* Fresh data, once through the collective. *wrong is added to. */
static int checked_run(struct perf *perf, enum dtype dtype, enum reduce_op op, uint64_t count,
                       uint64_t *wrong)
{
    struct perf_case what = {
        .collective = perf->options.collective,
        .dtype = dtype,
        .op = op,
        .rank = perf->rank,
        .ranks = perf->ranks,
        .root = perf->options.root,
        .round = perf->round++,
    };
    data_clear(perf);
    int result = data_make(perf, &what, count);
    if (result == SHOAL_OK)
        result = collective_run(perf, dtype, op, count);
    if (result == SHOAL_OK && perf->options.check)
        result = data_check(perf, dtype, count, wrong);
    return result;
}

/* Write again what this rank sends, so that no other core has the lines any more. */
static void sent_rewrite(const struct perf *perf, enum dtype dtype, uint64_t count)
{
    bool broadcast = perf->options.collective == COLLECTIVE_BROADCAST;
    volatile uint8_t *memory = broadcast ? perf->recv : perf->send;
    uint64_t bytes = count * dtype_bytes(dtype);
    if (broadcast && perf->rank != perf->options.root)
        bytes = 0;
    if (perf->in_blocks) {
        memory = perf->parts.send.memory;
        bytes = perf->parts.send.bytes;
    }
    for (uint64_t i = 0; i < bytes; i += COPY_LINE_BYTES) {
        uint8_t same = memory[i];
        memory[i] = same;
    }
}

static int iteration_run(const struct perf *perf, enum dtype dtype, enum reduce_op op,
                         uint64_t count)
{
    if (perf->options.rewrite)
        sent_rewrite(perf, dtype, count);
    return collective_run(perf, dtype, op, count);
}

static int timed_run(const struct perf *perf, enum dtype dtype, enum reduce_op op, uint64_t count,
                     double *time_us)
{
    for (uint32_t i = 0; i < perf->options.warmup; i++) {
        int result = iteration_run(perf, dtype, op, count);
        if (result)
            return result;
    }
    int result = failed(perf, "barrier", shoal_barrier(perf->group, NULL));
    uint64_t start = clock_now_ns();
    for (uint32_t i = 0; result == SHOAL_OK && i < perf->options.iterations; i++)
        result = iteration_run(perf, dtype, op, count);
    double total_us = (double)(clock_now_ns() - start) / 1e3;
    if (result == SHOAL_OK)
        *time_us = total_us / perf->options.iterations;
    return result;
}

/* The wrong elements of all ranks, the mean of their times. */
static int results_gather(struct perf *perf, uint64_t *wrong, double *time_us)
{
    int64_t *count = &perf->integers[0];
    double *mean_us = &perf->real;
    *count = (int64_t)*wrong;
    *mean_us = *time_us;
    int result = shoal_all_reduce(perf->group, count, count, 1, SHOAL_I64, SHOAL_SUM, NULL);
    if (result == SHOAL_OK)
        result = shoal_all_reduce(perf->group, mean_us, mean_us, 1, SHOAL_F64, SHOAL_AVG, NULL);
    *wrong = (uint64_t)*count;
    *time_us = *mean_us;
    return failed(perf, "gathering the results", result);
}

static int row_report(struct perf *perf, const struct perf_row *row)
{
    struct error error;
    perf->wrong += row->wrong;
    perf->busbw_sum += perf_busbw_GBps(row);
    perf->rows++;
    if (perf->rank != 0)
        return SHOAL_OK;
    progress_erase(&perf->progress);
    if (perf->options.json)
        perf_json_row(stdout, row);
    else
        perf_table_row(stdout, row);
    if (perf_plot_add(&perf->plot, row, &error) == 0)
        return SHOAL_OK;
    fprintf(stderr, "shoalperf: %s\n", error.text);
    return SHOAL_EMEMORY;
}

/* Show which row is measured now, and of which collective and size it is. */
static void row_announce(const struct perf *perf, const struct perf_row *row)
{
    char words[128], size[SIZE_TEXT_BYTES];
    struct text text = {.at = words, .room = sizeof(words)};
    if (!perf->progress.shown)
        return;
    text_add(&text, "row %llu", (unsigned long long)perf->rows + 1);
    if (perf->rows_wanted)
        text_add(&text, " of %llu", (unsigned long long)perf->rows_wanted);
    text_add(&text, ": %s", perf_collective_name(row->collective));
    if (collective_has_op(row->collective))
        text_add(&text, " %s", reduce_op_name(row->op));
    size_text_print(perf_row_bytes(row), size, sizeof(size));
    if (row->collective != COLLECTIVE_BARRIER)
        text_add(&text, ", %s, %s", dtype_name(row->dtype), size);
    progress_draw(&perf->progress, "%s", words);
}

/* By rank 0, of which all hear whether it could. */
static int plot_open(struct perf *perf)
{
    struct error error;
    int64_t *bad = &perf->integers[0];
    *bad = 0;
    if (!perf->options.plot_path)
        return SHOAL_OK;
    if (perf->rank == 0 && perf_plot_open(&perf->plot, perf->options.plot_path, &error) < 0) {
        fprintf(stderr, "shoalperf: %s\n", error.text);
        *bad = 1;
    }
    int result = shoal_all_reduce(perf->group, bad, bad, 1, SHOAL_I64, SHOAL_MAX, NULL);
    if (result)
        return failed(perf, "opening the plot", result);
    return *bad ? SHOAL_EINVALID : SHOAL_OK;
}

static int plot_close(struct perf *perf, int result)
{
    struct error error;
    if (perf_plot_close(&perf->plot, result == SHOAL_OK, &error) == 0)
        return result;
    fprintf(stderr, "shoalperf: %s\n", error.text);
    return SHOAL_EINVALID;
}

static int count_measure(struct perf *perf, enum dtype dtype, enum reduce_op op, uint64_t count)
{
    struct perf_row row = {
        .collective = perf->options.collective,
        .dtype = dtype,
        .op = op,
        .root = collective_has_root(perf->options.collective) ? (int)perf->options.root : -1,
        .count = count,
        .ranks = perf->ranks,
        .nodes = perf->nodes,
        .checked = perf->options.check,
    };
    row_announce(perf, &row);
    int result = checked_run(perf, dtype, op, count, &row.wrong);
    if (result == SHOAL_OK)
        result = timed_run(perf, dtype, op, count, &row.time_us);
    if (result == SHOAL_OK && data_repeats(perf) && perf->options.check)
        result = data_check(perf, dtype, count, &row.wrong);
    if (result == SHOAL_OK)
        result = checked_run(perf, dtype, op, count, &row.wrong);
    data_clear(perf);
    if (result == SHOAL_OK)
        result = results_gather(perf, &row.wrong, &row.time_us);
    if (result == SHOAL_OK)
        result = row_report(perf, &row);
    return result;
}

/* Nobody may leave before everybody has entered; seen on the machine's one clock. Rank by rank,
 * one comes late: it has work to do first. */
static int barrier_check(struct perf *perf, uint64_t *wrong)
{
    for (uint32_t late = 0; late < perf->ranks && late < 8; late++) {
        if (perf->rank == late)
            memset(perf->send, (int)late, buffer_bytes(&perf->options, perf->ranks));
        int64_t *entered = &perf->integers[0];
        *entered = (int64_t)clock_now_ns();
        int result = failed(perf, "barrier", shoal_barrier(perf->group, NULL));
        int64_t exited = (int64_t)clock_now_ns();
        if (result == SHOAL_OK)
            result = shoal_all_reduce(perf->group, entered, entered, 1, SHOAL_I64, SHOAL_MAX, NULL);
        if (result)
            return failed(perf, "checking the barrier", result);
        *wrong += exited < *entered;
    }
    return SHOAL_OK;
}

static int barrier_measure(struct perf *perf)
{
    struct perf_row row = {
        .collective = COLLECTIVE_BARRIER,
        .root = -1,
        .ranks = perf->ranks,
        .nodes = perf->nodes,
        .checked = perf->options.check && perf->one_clock,
    };
    row_announce(perf, &row);
    int result = row.checked ? barrier_check(perf, &row.wrong) : SHOAL_OK;
    if (result == SHOAL_OK)
        result = timed_run(perf, DTYPE_F32, REDUCE_SUM, 0, &row.time_us);
    if (result == SHOAL_OK)
        result = results_gather(perf, &row.wrong, &row.time_us);
    if (result == SHOAL_OK)
        result = row_report(perf, &row);
    return result;
}

static int all_measure(struct perf *perf)
{
    if (perf->options.collective == COLLECTIVE_BARRIER)
        return barrier_measure(perf);
    uint32_t position = 0;
    enum dtype dtype;
    enum reduce_op op;
    int result = SHOAL_OK;
    while (result == SHOAL_OK && perf_next_pair(&perf->options, &position, &dtype, &op)) {
        uint64_t *counts;
        size_t used;
        struct error error;
        result = perf_counts(&perf->options, dtype, perf->ranks, &counts, &used, &error);
        if (result) {
            fprintf(stderr, "shoalperf: rank %u: %s\n", perf->rank, error.text);
            return result;
        }
        for (size_t i = 0; result == SHOAL_OK && i < used; i++)
            result = count_measure(perf, dtype, op, counts[i]);
        free(counts);
    }
    return result;
}

static int buffers_open(struct perf *perf)
{
    uint64_t bytes = buffer_bytes(&perf->options, perf->ranks);
    bool one = perf->options.in_place && !perf->in_blocks;
    if (perf->options.shared) {
        perf->recv = (void *)(uintptr_t)shoal_shared_alloc(perf->group, bytes);
        if (!perf->recv)
            return failed(perf, "shared memory for results", SHOAL_EMEMORY);
    }
    if (perf->options.arena) {
        perf->send = shoal_alloc(perf->job, bytes);
        if (perf->send && !perf->recv)
            perf->recv = one ? perf->send : shoal_alloc(perf->job, bytes);
        if (!perf->send || !perf->recv)
            return failed(perf, "buffers in the arena", SHOAL_EMEMORY);
        return SHOAL_OK;
    }
    perf->send = aligned_alloc(64, bytes);
    if (!perf->recv)
        perf->recv = one ? perf->send : aligned_alloc(64, bytes);
    if (!perf->send || !perf->recv) {
        fprintf(stderr, "shoalperf: rank %u: no memory for buffers of %llu bytes\n", perf->rank,
                (unsigned long long)bytes);
        return SHOAL_EMEMORY;
    }
    if (!perf->options.device)
        return SHOAL_OK;
    /* All of them is copied each time. */
    memset(perf->send, 0, bytes);
    memset(perf->recv, 0, bytes);
    return failed(perf, "buffers on the device",
                  perf_device_open(&perf->device, perf->job, bytes, one));
}

/* Give the buffers back that are the job's. */
static void buffers_return(struct perf *perf)
{
    if (perf->options.shared)
        failed(perf, "giving shared memory back", shoal_shared_free(perf->group, perf->recv));
    if (perf->options.device)
        perf_device_close(&perf->device);
    if (!perf->options.arena)
        return;
    if (perf->recv != perf->send && !perf->options.shared)
        shoal_free(perf->job, perf->recv);
    shoal_free(perf->job, perf->send);
}

/* Free the buffers that are this process's own. The job is closed: nothing is copied any more. */
static void buffers_free(struct perf *perf)
{
    if (perf->options.arena)
        return;
    if (perf->recv != perf->send && !perf->options.shared)
        free(perf->recv);
    free(perf->send);
}

/* Whether all ranks run under the same kernel, by its boot id. */
static int clock_compare(struct perf *perf)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(text, sizeof(text), file))
            text[0] = 0;
        fclose(file);
    }
    int64_t *own = &perf->integers[0], *least = &perf->integers[1], *most = &perf->integers[2];
    *own = text[0] ? 0 : (int64_t)perf->rank + 1; /* unknown: nobody's equal */
    for (const char *c = text; *c; c++)
        *own = (int64_t)((uint64_t)*own * 1099511628211ull + (uint8_t)*c);
    int result = shoal_all_reduce(perf->group, own, least, 1, SHOAL_I64, SHOAL_MIN, NULL);
    if (result == SHOAL_OK)
        result = shoal_all_reduce(perf->group, own, most, 1, SHOAL_I64, SHOAL_MAX, NULL);
    perf->one_clock = *least == *most;
    return failed(perf, "comparing machines", result);
}

static int job_open(struct perf *perf)
{
    struct shoal_options options = {.struct_size = sizeof(options)};
    struct error error;
    long long ranks = 1;
    if (env_integer("WORLD_SIZE", 1, 1 << 20, 1, &ranks, &error) < 0)
        ranks = 1; /* shoal_open says what is wrong */
    uint64_t needed = 2 * buffer_bytes(&perf->options, (uint32_t)ranks) + ARENA_SPARE_BYTES;
    if (perf->options.arena && needed > ARENA_DEFAULT_BYTES)
        options.arena_bytes = (needed + (2u << 20) - 1) & ~((2ull << 20) - 1);
    int result = shoal_open(&options, &perf->job);
    if (result) {
        fprintf(stderr, "shoalperf: cannot join the job: %s: %s\n", shoal_result_name(result),
                shoal_error_text());
        return result;
    }
    perf->group = shoal_world(perf->job);
    perf->rank = (uint32_t)shoal_rank(perf->job);
    perf->ranks = (uint32_t)shoal_world_size(perf->job);
    perf->nodes = (uint32_t)shoal_node_count(perf->job);
    return SHOAL_OK;
}

static int job_measure(struct perf *perf)
{
    if (perf->options.root >= perf->ranks) {
        if (perf->rank == 0)
            fprintf(stderr, "shoalperf: -r: root %u, but there are %u ranks\n", perf->options.root,
                    perf->ranks);
        return SHOAL_EINVALID;
    }
    if (perf->options.collective == COLLECTIVE_SEND && perf->ranks < 2) {
        fprintf(stderr, "shoalperf: sendrecv: there is one rank, which cannot send to itself\n");
        return SHOAL_EINVALID;
    }
    int result = plot_open(perf);
    if (result)
        return result;
    bool head = perf->rank == 0 && !perf->options.json;
    if (head) {
        char buffers[64];
        snprintf(buffers, sizeof(buffers), "%s buffers, %s%s%s",
                 perf->options.arena    ? "arena"
                 : perf->options.device ? "device"
                                        : "private",
                 perf->options.in_place ? "in place" : "out of place",
                 perf->options.shared ? ", shared result" : "",
                 perf->options.uneven ? ", uneven parts" : "");
        perf_table_head(stdout, perf_collective_name(perf->options.collective), perf->ranks,
                        perf->nodes, buffers);
    }
    if (perf->rank == 0)
        progress_open(&perf->progress);
    if (perf->progress.shown)
        perf->rows_wanted = perf_row_count(&perf->options, perf->ranks);
    result = buffers_open(perf);
    if (result == SHOAL_OK && perf->options.collective == COLLECTIVE_BARRIER)
        result = clock_compare(perf);
    if (result == SHOAL_OK)
        result = all_measure(perf);
    progress_erase(&perf->progress);
    if (result == SHOAL_OK && head)
        perf_table_foot(stdout, perf->wrong, perf->busbw_sum, perf->rows);
    /* After a failure a collective may be under way: the job's buffers go with the job. */
    if (result == SHOAL_OK)
        buffers_return(perf);
    return result;
}

int main(int argc, char **argv)
{
    struct perf perf = {0};
    struct error error = {0};
    if (perf_options_parse(argc, argv, &perf.options, &error)) {
        fprintf(stderr, "shoalperf: %s\nTry 'shoalperf --help'.\n", error.text);
        return EXIT_USAGE;
    }
    if (perf.options.help || perf.options.version) {
        fputs(perf.options.help ? perf_usage() : "shoalperf " SHOAL_VERSION "\n", stdout);
        return EXIT_SUCCESS;
    }
    perf.in_blocks = route_in_blocks(perf.options.collective);
    if (job_open(&perf))
        return EXIT_ERROR;
    int result = plot_close(&perf, job_measure(&perf));
    int closed = failed(&perf, "leaving the job", shoal_close(perf.job));
    buffers_free(&perf);
    if (closed || result)
        return EXIT_ERROR;
    if (ferror(stdout)) {
        fputs("shoalperf: the results could not be written\n", stderr);
        return EXIT_ERROR;
    }
    return perf.wrong ? EXIT_WRONG : EXIT_SUCCESS;
}
