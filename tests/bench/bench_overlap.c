/* How much a training step is lengthened by reducing its gradients while the backward pass goes on.
 *
 *   scripts/cluster.sh run -- bench_overlap TABLE TYPE BYTES_PER_S STEPS [MEBIBYTES [FRACTION]]
 *
 * TABLE is a file of tests/bench/models, TYPE float or bfloat16 (what gradients are sent as),
 * BYTES_PER_S what a link carries each way, MEBIBYTES when a fusion buffer is full (25). The
 * backward pass is replayed: from the last tensor of the table to the first, each takes a time in
 * proportion to its operations, which is waited for on a timer, as a host waits while its GPU
 * computes; then its gradient is ready. The pass takes so long that sending all gradients takes
 * FRACTION (0.9) of it, by the bound of the links. Nothing writes to the gradients meanwhile: a
 * GPU's copy engines would.
 *
 * Rank 0 prints a line of JSON: of STEPS steps after the first, which lays the fusion buffers out,
 * the mean over steps and ranks of the time by which a step is longer than its backward pass
 * (exposed_us), and of the time of the last fusion buffer's all-reduce alone (last_us). Links that
 * are never idle while a buffer is ready would give ideal for exposed_us / last_us. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/text/number_text.h"
#include "worker/fusion/plan.h"
#include "worker/shoal.h"

#define TENSORS_MAX 100000u
#define LINE_BYTES 256
#define FIRST_BUFFER_BYTES (1ull << 20)
#define ARENA_SPARE_BYTES (64ull << 20)
#define EXIT_WRONG 1
#define EXIT_USAGE 2
#define EXIT_ERROR 3

struct tensor {
    uint64_t elements; /* 0: work without parameters */
    double operations;
};

struct overlap {
    struct tensor *tensors; /* as the forward pass goes */
    uint32_t tensor_count;
    double operations; /* of all */
    struct shoal_parameter *parameters;
    uint32_t *parameter_of; /* [tensor] */
    uint32_t parameter_count;
    enum shoal_dtype dtype;
    uint64_t bytes, last_bytes; /* of all gradients; of the last fusion buffer */
    uint32_t buffers;
    double ideal;
    double rate_Bps, fraction;
    uint64_t threshold_bytes;
    uint64_t steps;
    uint64_t backward_ns;
    shoal_job *job;
    shoal_fusion *fusion;
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_overlap: %s: %s\n", what, shoal_error_text());
    exit(EXIT_ERROR);
}

static void need(int result, const char *what)
{
    if (result != SHOAL_OK)
        fail(what);
}

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);
    if (!memory) {
        fprintf(stderr, "bench_overlap: out of memory\n");
        exit(EXIT_ERROR);
    }
    return memory;
}

/* --- the table ------------------------------------------------------------------------------- */

static void table_wrong(const char *path, unsigned line, const char *what)
{
    fprintf(stderr, "bench_overlap: %s: line %u: %s\n", path, line, what);
    exit(EXIT_USAGE);
}

/* name,elements,operations */
static bool tensor_parse(char *line, struct tensor *tensor)
{
    uint64_t numbers[2];
    struct error error;
    char *comma = strchr(line, ',');
    char *second = comma ? strchr(comma + 1, ',') : NULL;
    if (!comma || comma == line || !second)
        return false;
    *second = '\0';
    if (number_text_parse(comma + 1, 0, 1ull << 40, &numbers[0], &error) < 0 ||
        number_text_parse(second + 1, 0, 1ull << 50, &numbers[1], &error) < 0)
        return false;
    *tensor = (struct tensor){.elements = numbers[0], .operations = (double)numbers[1]};
    return true;
}

static void table_read(struct overlap *overlap, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "bench_overlap: %s: %s\n", path, strerror(errno));
        exit(EXIT_USAGE);
    }
    char line[LINE_BYTES];
    bool header = false;
    overlap->tensors = allocate(TENSORS_MAX, sizeof(*overlap->tensors));
    for (unsigned number = 1; fgets(line, sizeof(line), file); number++) {
        size_t length = strcspn(line, "\n");
        if (line[length] != '\n')
            table_wrong(path, number, "too long, or without an end");
        line[length] = '\0';
        if (line[0] == '#')
            continue;
        if (!header) {
            header = strcmp(line, "tensor,elements,operations") == 0;
            if (!header)
                table_wrong(path, number, "must be the heading tensor,elements,operations");
            continue;
        }
        if (overlap->tensor_count == TENSORS_MAX)
            table_wrong(path, number, "too many tensors");
        struct tensor *tensor = &overlap->tensors[overlap->tensor_count++];
        if (!tensor_parse(line, tensor))
            table_wrong(path, number, "must be a name, elements and operations");
        overlap->operations += tensor->operations;
    }
    fclose(file);
    if (overlap->operations <= 0)
        table_wrong(path, 0, "there are no operations");
}

static void parameters_make(struct overlap *overlap)
{
    overlap->parameters = allocate(overlap->tensor_count, sizeof(*overlap->parameters));
    overlap->parameter_of = allocate(overlap->tensor_count, sizeof(*overlap->parameter_of));
    for (uint32_t i = 0; i < overlap->tensor_count; i++) {
        if (overlap->tensors[i].elements == 0)
            continue;
        overlap->parameter_of[i] = overlap->parameter_count;
        overlap->parameters[overlap->parameter_count++] = (struct shoal_parameter){
            .count = overlap->tensors[i].elements, .dtype = overlap->dtype};
    }
    if (overlap->parameter_count == 0)
        table_wrong("the table", 0, "there are no elements");
}

/* When the gradient of a parameter is there, as a part of the backward pass. */
static double ready_at(const struct overlap *overlap, uint32_t parameter)
{
    double done = 0;
    for (uint32_t i = overlap->tensor_count; i-- > 0;) {
        done += overlap->tensors[i].operations;
        if (overlap->tensors[i].elements > 0 && overlap->parameter_of[i] == parameter)
            break;
    }
    return done / overlap->operations;
}

/* Return how long the links work after the backward pass when they are never idle while a buffer is
 * ready, over how long they work for the last buffer alone. */
static double ideal_of(const struct overlap *overlap, const struct plan *plan)
{
    double sent_at = 0, last = 0; /* in backward passes */
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        for (uint32_t k = 0; k < buffer->member_count; k++)
            sent_at = fmax(sent_at, ready_at(overlap, plan->members[buffer->first_member + k]));
        last = overlap->fraction * (double)buffer->bytes / (double)overlap->bytes;
        sent_at += last;
    }
    return (sent_at - 1) / last;
}

/* The buffers that the library will make, by its own arithmetic: how large the last one is. */
static void plan_ask(struct overlap *overlap)
{
    uint32_t count = overlap->parameter_count;
    struct plan_parameter *parameters = allocate(count, sizeof(*parameters));
    uint32_t *order = allocate(count, sizeof(*order));
    for (uint32_t i = 0; i < count; i++) {
        parameters[i] = (struct plan_parameter){overlap->parameters[i].count,
                                                (enum dtype)overlap->parameters[i].dtype};
        order[i] = count - 1 - i;
    }
    struct plan plan;
    if (plan_make(&plan, parameters, count, order, overlap->threshold_bytes, FIRST_BUFFER_BYTES) <
        0) {
        fprintf(stderr, "bench_overlap: no plan of the fusion buffers\n");
        exit(EXIT_ERROR);
    }
    overlap->buffers = plan.buffer_count;
    overlap->last_bytes = plan.buffers[plan.buffer_count - 1].bytes;
    overlap->bytes = 0;
    for (uint32_t i = 0; i < plan.buffer_count; i++)
        overlap->bytes += plan.buffers[i].bytes;
    overlap->ideal = ideal_of(overlap, &plan);
    plan_clear(&plan);
    free(parameters);
    free(order);
}

/* --- data ------------------------------------------------------------------------------------ */

/* Return what rank r gives of a parameter: small whole numbers, so that the average is exact in
 * both types when the ranks are a power of two. It then stays: the average of equals. */
static float value_of(uint32_t parameter, double rank)
{
    return (float)(parameter % 7 + 2 * rank);
}

static void value_write(const struct overlap *overlap, void *at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint16_t half = (uint16_t)(bits >> 16); /* exact */
    if (overlap->dtype == SHOAL_F32)
        memcpy(at, &bits, sizeof(bits));
    else
        memcpy(at, &half, sizeof(half));
}

static void gradients_fill(const struct overlap *overlap)
{
    size_t size = shoal_dtype_bytes(overlap->dtype);
    for (uint32_t i = 0; i < overlap->parameter_count; i++) {
        uint8_t *gradient = shoal_fusion_gradient(overlap->fusion, i);
        float value = value_of(i, shoal_rank(overlap->job));
        for (size_t k = 0; k < overlap->parameters[i].count; k++)
            value_write(overlap, gradient + k * size, value);
    }
}

static int64_t gradients_wrong(const struct overlap *overlap)
{
    int64_t wrong = 0;
    size_t size = shoal_dtype_bytes(overlap->dtype);
    double mean = (shoal_world_size(overlap->job) - 1) / 2.0;
    for (uint32_t i = 0; i < overlap->parameter_count; i++) {
        const uint8_t *gradient = shoal_fusion_gradient(overlap->fusion, i);
        uint8_t expected[4];
        value_write(overlap, expected, value_of(i, mean));
        for (size_t k = 0; k < overlap->parameters[i].count; k++)
            wrong += memcmp(gradient + k * size, expected, size) != 0;
    }
    return wrong;
}

/* --- measuring ------------------------------------------------------------------------------- */

static void wait_until(uint64_t ns)
{
    struct timespec time = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    int result;
    do
        result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    while (result == EINTR);
}

/* One step; returns by how much it is longer than its backward pass. */
static double step_exposed_us(const struct overlap *overlap, uint64_t backward_ns)
{
    need(shoal_barrier(shoal_world(overlap->job), NULL), "barrier");
    uint64_t start_ns = clock_now_ns();
    double done = 0;
    for (uint32_t i = overlap->tensor_count; i-- > 0;) {
        const struct tensor *tensor = &overlap->tensors[i];
        done += tensor->operations;
        if (tensor->elements == 0)
            continue;
        wait_until(start_ns + (uint64_t)(done / overlap->operations * (double)backward_ns));
        need(shoal_fusion_ready(overlap->fusion, overlap->parameter_of[i]), "a gradient");
    }
    wait_until(start_ns + backward_ns);
    need(shoal_fusion_wait(overlap->fusion, -1), "the step");
    return ((double)(clock_now_ns() - start_ns) - (double)backward_ns) / 1e3;
}

static double last_alone_us(const struct overlap *overlap)
{
    size_t count = overlap->last_bytes / shoal_dtype_bytes(overlap->dtype);
    void *data = shoal_alloc(overlap->job, overlap->last_bytes);
    if (!data)
        fail("memory for the last buffer");
    memset(data, 0, overlap->last_bytes);
    double sum_us = 0;
    for (uint64_t i = 0; i <= overlap->steps; i++) {
        need(shoal_barrier(shoal_world(overlap->job), NULL), "barrier");
        uint64_t start_ns = clock_now_ns();
        need(shoal_all_reduce(shoal_world(overlap->job), data, data, count, overlap->dtype,
                              SHOAL_AVG, NULL),
             "the last buffer");
        sum_us += i > 0 ? (double)(clock_now_ns() - start_ns) / 1e3 : 0; /* the first warms up */
    }
    shoal_free(overlap->job, data);
    return sum_us / (double)overlap->steps;
}

static double mean_of_ranks(const struct overlap *overlap, double value)
{
    need(shoal_all_reduce(shoal_world(overlap->job), &value, &value, 1, SHOAL_F64, SHOAL_AVG, NULL),
         "results");
    return value;
}

static void job_open(struct overlap *overlap)
{
    struct shoal_options options = {.struct_size = sizeof(options)};
    options.arena_bytes = overlap->bytes + overlap->last_bytes + ARENA_SPARE_BYTES +
                          (uint64_t)overlap->parameter_count * PLAN_ALIGNMENT;
    options.arena_bytes = (options.arena_bytes + (2u << 20) - 1) & ~((2ull << 20) - 1);
    need(shoal_open(&options, &overlap->job), "cannot join the job");
    struct shoal_fusion_options buffers = {.struct_size = sizeof(buffers),
                                           .threshold_bytes = overlap->threshold_bytes,
                                           .first_buffer_bytes = FIRST_BUFFER_BYTES,
                                           .op = SHOAL_AVG};
    need(shoal_fusion_create(shoal_world(overlap->job), overlap->parameters,
                             overlap->parameter_count, &buffers, &overlap->fusion),
         "cannot make fusion buffers");
    double nodes = shoal_node_count(overlap->job);
    overlap->backward_ns = (uint64_t)(2 * (nodes - 1) / nodes * (double)overlap->bytes /
                                      overlap->rate_Bps / overlap->fraction * 1e9);
}

static int64_t measure(const struct overlap *overlap)
{
    gradients_fill(overlap);
    step_exposed_us(overlap, 0);
    double exposed_us = 0, backward_us = (double)overlap->backward_ns / 1e3;
    for (uint64_t i = 0; i < overlap->steps; i++)
        exposed_us += step_exposed_us(overlap, overlap->backward_ns) / (double)overlap->steps;
    struct shoal_fusion_statistics seen = {.struct_size = sizeof(seen)};
    need(shoal_fusion_statistics(overlap->fusion, &seen), "statistics");
    exposed_us = mean_of_ranks(overlap, exposed_us);
    double last_us = mean_of_ranks(overlap, last_alone_us(overlap));
    int64_t wrong = gradients_wrong(overlap);
    wrong += seen.buffers != overlap->buffers;
    need(shoal_all_reduce(shoal_world(overlap->job), &wrong, &wrong, 1, SHOAL_I64, SHOAL_SUM, NULL),
         "results");
    if (shoal_rank(overlap->job) == 0)
        printf("{\"parameters\":%u,\"bytes\":%llu,\"buffers\":%u,\"last_bytes\":%llu,"
               "\"backward_us\":%.1f,\"communication_us\":%.1f,\"exposed_us\":%.1f,"
               "\"last_us\":%.1f,\"ideal\":%.3f,\"wrong\":%lld}\n",
               overlap->parameter_count, (unsigned long long)overlap->bytes, overlap->buffers,
               (unsigned long long)overlap->last_bytes, backward_us,
               (double)seen.communication_ns / 1e3, exposed_us, last_us, overlap->ideal,
               (long long)wrong);
    return wrong;
}

static double number_of(const char *text, const char *what, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= most)) {
        fprintf(stderr, "bench_overlap: %s: got \"%s\"\n", what, text);
        exit(EXIT_USAGE);
    }
    return value;
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 7) {
        fprintf(stderr, "usage: bench_overlap TABLE float|bfloat16 BYTES_PER_S STEPS "
                        "[MEBIBYTES [FRACTION]]\n");
        return EXIT_USAGE;
    }
    struct overlap overlap = {.dtype = SHOAL_F32};
    if (strcmp(argv[2], "bfloat16") == 0) {
        overlap.dtype = SHOAL_BF16;
    } else if (strcmp(argv[2], "float") != 0) {
        fprintf(stderr, "bench_overlap: TYPE: got \"%s\", must be float or bfloat16\n", argv[2]);
        return EXIT_USAGE;
    }
    overlap.rate_Bps = number_of(argv[3], "BYTES_PER_S", 1e12);
    overlap.steps = (uint64_t)ceil(number_of(argv[4], "STEPS", 1000));
    double threshold = argc > 5 ? number_of(argv[5], "MEBIBYTES", 1024) : 25;
    overlap.threshold_bytes = (uint64_t)(threshold * (1 << 20));
    overlap.fraction = argc > 6 ? number_of(argv[6], "FRACTION", 100) : 0.9;
    table_read(&overlap, argv[1]);
    parameters_make(&overlap);
    plan_ask(&overlap);
    job_open(&overlap);
    int64_t wrong = measure(&overlap);
    shoal_fusion_free(overlap.fusion);
    need(shoal_close(overlap.job), "cannot leave the job");
    free(overlap.tensors);
    free(overlap.parameters);
    free(overlap.parameter_of);
    return wrong ? EXIT_WRONG : 0;
}
