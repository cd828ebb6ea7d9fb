/* shoal-digits: train a multi-layer perceptron on the optical-digits data over shoal, show how much
 * of the communication was hidden behind the backward pass, and check the result. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/examples/digits/dataset.h"
#include "worker/examples/digits/distributed.h"
#include "worker/examples/digits/options.h"
#include "worker/examples/digits/training.h"
#include "worker/shoal.h"

enum { EXIT_FAILED = 1, EXIT_WRONG_INPUT = 2 };

/* Greatest relative difference from the single-process run: see training_difference. */
#define DIFFERENCE_MAX 1e-5

struct program {
    struct options options;
    struct dataset training_rows, test_rows;
    struct training training;
    size_t parameter_count;
    float *parameters; /* of the first run, the one that is saved */
    float *others;     /* of a run to compare with */
};

enum check { CHECK_ACCURACY, CHECK_IDENTICAL, CHECK_REPEATED, CHECK_ALONE, CHECK_COUNT };

static int complain(int exit_status, const char *text)
{
    fprintf(stderr, "shoal-digits: %s\n", text);
    return exit_status;
}

/* --- data and memory ------------------------------------------------------------------------- */

static int load_rows(struct program *program)
{
    char found[PATH_MAX], executable[PATH_MAX], error[DATASET_ERROR_BYTES];
    const char *path = program->options.data_path;
    if (!path) {
        ssize_t length = readlink("/proc/self/exe", executable, sizeof executable - 1);
        executable[length > 0 ? length : 0] = '\0';
        if (dataset_find(executable, found, sizeof found) != 0)
            return complain(EXIT_WRONG_INPUT, "digits.csv is not near the program: give --data");
        path = found;
    }
    struct dataset all;
    if (dataset_load(path, &all, error) != 0)
        return complain(EXIT_WRONG_INPUT, error);
    int result = dataset_split(&all, &program->training_rows, &program->test_rows);
    size_t row_count = all.row_count;
    dataset_free(&all);
    if (result == SHOAL_EINVALID)
        fprintf(stderr, "shoal-digits: %s: %zu rows: too few, at least %d are needed\n", path,
                row_count, DATASET_HOLD_OUT_EVERY);
    else if (result != 0)
        complain(EXIT_FAILED, "out of memory");
    return result == 0 ? 0 : result == SHOAL_EINVALID ? EXIT_WRONG_INPUT : EXIT_FAILED;
}

static int program_prepare(struct program *program)
{
    int status = load_rows(program);
    if (status != 0)
        return status;
    program->training = (struct training){.network = &program->options.network,
                                          .rows = &program->training_rows,
                                          .plan = program->options.plan};
    program->parameter_count = network_parameter_count(&program->options.network);
    program->parameters = malloc(program->parameter_count * sizeof(float));
    program->others = malloc(program->parameter_count * sizeof(float));
    if (!program->parameters || !program->others)
        return complain(EXIT_FAILED, "out of memory");
    return 0;
}

static void program_free(struct program *program)
{
    free(program->parameters);
    free(program->others);
    dataset_free(&program->training_rows);
    dataset_free(&program->test_rows);
}

static int save_parameters(const struct program *program, int rank)
{
    char path[PATH_MAX];
    const char *given = program->options.save_path;
    if (!given || (rank != 0 && !strstr(given, "{rank}")))
        return 0;
    if (options_save_path(given, rank, path, sizeof path) != 0)
        return complain(EXIT_WRONG_INPUT, "--save: the name is empty or too long");
    FILE *file = fopen(path, "wbe");
    size_t written =
        file ? fwrite(program->parameters, sizeof(float), program->parameter_count, file) : 0;
    bool failed = written != program->parameter_count;
    int reason = errno;
    if (file && fclose(file) != 0 && !failed) {
        failed = true;
        reason = errno;
    }
    if (!failed)
        return 0;
    fprintf(stderr, "shoal-digits: %s: cannot be written: %s\n", path, strerror(reason));
    return EXIT_FAILED;
}

/* --- what is shown --------------------------------------------------------------------------- */

static void show_model(const struct program *program)
{
    const struct network *network = &program->options.network;
    printf("network ");
    for (size_t layer = 0; layer <= network->layer_count; layer++)
        printf("%s%zu", layer > 0 ? "-" : "", network->widths[layer]);
    printf(", %zu parameters; %zu training rows, %zu held out; batches of %zu, %zu epochs, "
           "seed %llu\n",
           program->parameter_count, program->training_rows.row_count, program->test_rows.row_count,
           program->options.plan.batch_rows, program->options.plan.epochs,
           (unsigned long long)program->options.plan.seed);
    fflush(stdout);
}

static bool show_check(bool passed, const char *text)
{
    printf("%s  %s\n", passed ? "PASS" : "FAIL", text);
    return passed;
}

static bool show_accuracy(const struct program *program, bool passed, size_t correct)
{
    char text[160];
    snprintf(text, sizeof text, "test accuracy %.4f (%zu of %zu held-out rows), %g wanted",
             (double)correct / (double)program->test_rows.row_count, correct,
             program->test_rows.row_count, program->options.accuracy_min);
    return show_check(passed, text);
}

static bool accuracy_reached(const struct program *program, size_t correct)
{
    return (double)correct >= program->options.accuracy_min * (double)program->test_rows.row_count;
}

/* --- alone ----------------------------------------------------------------------------------- */

static int alone_epoch_done(void *context, size_t epoch, const float *parameters, double loss_sum)
{
    const struct program *program = context;
    size_t correct;
    int result = training_evaluate(&program->options.network, parameters, &program->test_rows, 0,
                                   program->test_rows.row_count, &correct);
    if (result != 0)
        return result;
    printf("epoch %3zu/%zu  loss %.4f  test accuracy %.4f\n", epoch, program->options.plan.epochs,
           loss_sum / (double)program->training_rows.row_count,
           (double)correct / (double)program->test_rows.row_count);
    fflush(stdout);
    return 0;
}

static int run_alone(struct program *program)
{
    size_t correct;
    show_model(program);
    network_initialize(&program->options.network, program->options.plan.seed, program->parameters);
    if (training_run_alone(&program->training, program->parameters, alone_epoch_done, program) !=
            0 ||
        training_evaluate(&program->options.network, program->parameters, &program->test_rows, 0,
                          program->test_rows.row_count, &correct) != 0)
        return complain(EXIT_FAILED, "out of memory");
    int status = save_parameters(program, 0);
    if (status != 0)
        return status;
    return show_accuracy(program, accuracy_reached(program, correct), correct) ? 0 : EXIT_FAILED;
}

/* --- with all ranks -------------------------------------------------------------------------- */

/* Ranks with other options or data would train something, but nothing that can be told apart from a
 * wrong sum. */
static int compare_inputs(const struct program *program, const struct distributed *distributed)
{
    const struct options *options = &program->options;
    uint64_t hashes[] = {
        training_hash(program->training_rows.pixels,
                      program->training_rows.row_count * DATASET_PIXELS * sizeof(float)),
        training_hash(program->training_rows.labels, program->training_rows.row_count),
        training_hash(program->test_rows.pixels,
                      program->test_rows.row_count * DATASET_PIXELS * sizeof(float)),
        training_hash(program->test_rows.labels, program->test_rows.row_count),
        training_hash(&options->network, sizeof options->network),
        options->plan.epochs,
        options->plan.batch_rows,
        options->plan.seed,
        training_hash(&options->plan.learning_rate, sizeof options->plan.learning_rate),
        training_hash(&options->plan.momentum, sizeof options->plan.momentum),
        options->threshold_bytes,
        options->first_buffer_bytes,
        training_hash(&options->accuracy_min, sizeof options->accuracy_min),
        options->verify,
    };
    bool same = false;
    if (distributed_compare_words(distributed, hashes, sizeof hashes / (sizeof(int32_t)), &same) !=
        0)
        return EXIT_FAILED;
    if (same)
        return 0;
    return complain(EXIT_WRONG_INPUT, "the ranks were given different options or data");
}

static void show_checks(const struct program *program, const struct distributed *distributed,
                        const int32_t *passed, const struct distributed_outcome *outcome,
                        double difference, size_t tensor)
{
    char text[256];
    int failures = 0;
    failures += !show_accuracy(program, passed[CHECK_ACCURACY] != 0, outcome->test_correct);
    snprintf(text, sizeof text, "all %d ranks hold the same bits (rank 0: FNV-1a %016llx)",
             shoal_world_size(distributed->job),
             (unsigned long long)training_hash(program->parameters,
                                               program->parameter_count * sizeof(float)));
    failures += !show_check(passed[CHECK_IDENTICAL] != 0, text);
    if (program->options.verify) {
        failures += !show_check(passed[CHECK_REPEATED] != 0, "a second run gave the same bits");
        snprintf(text, sizeof text,
                 "a single process with the same batches: relative difference %.2g, %g allowed "
                 "(max|a-b| / max|b| of a tensor; worst in the %s of layer %zu)",
                 difference, DIFFERENCE_MAX, tensor % 2 == 0 ? "weights" : "biases",
                 tensor / 2 + 1);
        failures += !show_check(passed[CHECK_ALONE] != 0, text);
    }
    printf("%s\n", failures == 0 ? "all checks passed" : "a check failed");
    fflush(stdout);
}

/* The second run, and the run alone on rank 0 while the others wait in distributed_agree. */
static int verify(struct program *program, const struct distributed *distributed, int32_t *passed,
                  double *difference, size_t *tensor)
{
    struct distributed_outcome outcome;
    bool first = shoal_rank(distributed->job) == 0;
    if (first) {
        printf("training a second time, from the same seed\n");
        fflush(stdout);
    }
    if (distributed_train(distributed, false, program->others, &outcome) != 0)
        return EXIT_FAILED;
    passed[CHECK_REPEATED] =
        memcmp(program->parameters, program->others, program->parameter_count * sizeof(float)) == 0;
    if (!first)
        return 0;
    printf("training in a single process, with the same batches\n");
    fflush(stdout);
    network_initialize(&program->options.network, program->options.plan.seed, program->others);
    if (training_run_alone(&program->training, program->others, NULL, NULL) != 0)
        return complain(EXIT_FAILED, "out of memory");
    *difference = training_difference(&program->options.network, program->parameters,
                                      program->others, tensor);
    passed[CHECK_ALONE] = *difference <= DIFFERENCE_MAX;
    return 0;
}

static int run_checked(struct program *program, const struct distributed *distributed)
{
    struct distributed_outcome outcome;
    int32_t passed[CHECK_COUNT] = {1, 1, 1, 1};
    bool identical = false, first = shoal_rank(distributed->job) == 0;
    double difference = 0.0;
    size_t tensor = 0;

    if (distributed_train(distributed, true, program->parameters, &outcome) != 0 ||
        distributed_compare_words(distributed, program->parameters, program->parameter_count,
                                  &identical) != 0)
        return EXIT_FAILED;
    passed[CHECK_ACCURACY] = accuracy_reached(program, outcome.test_correct);
    passed[CHECK_IDENTICAL] = identical;
    if (first)
        printf("%.2f s; each step reduced %llu bytes in %llu fusion buffers; %.0f %% of the "
               "communication was hidden behind the backward pass\n",
               (double)outcome.elapsed_ns / 1e9, (unsigned long long)outcome.bytes_per_step,
               (unsigned long long)outcome.buffers_per_step,
               distributed_hidden_percent(outcome.communication_ns, outcome.exposed_ns));
    int status = save_parameters(program, shoal_rank(distributed->job));
    if (status == 0 && program->options.verify)
        status = verify(program, distributed, passed, &difference, &tensor);
    if (status != 0)
        return status;
    if (distributed_agree(distributed, passed, CHECK_COUNT) != 0)
        return EXIT_FAILED;
    if (first)
        show_checks(program, distributed, passed, &outcome, difference, tensor);
    for (int i = 0; i < CHECK_COUNT; i++)
        if (!passed[i])
            return EXIT_FAILED;
    return 0;
}

static int run_distributed(struct program *program)
{
    struct distributed distributed = {.training = &program->training,
                                      .test = &program->test_rows,
                                      .threshold_bytes = program->options.threshold_bytes,
                                      .first_buffer_bytes = program->options.first_buffer_bytes,
                                      .on_device = program->options.on_device};
    int result = shoal_open(NULL, &distributed.job);
    if (result != SHOAL_OK) {
        fprintf(stderr,
                "shoal-digits: shoal_open: %s: %s\n"
                "shoal-digits: start it with shoalrun, or alone with --single\n",
                shoal_result_name(result), shoal_error_text());
        return EXIT_FAILED;
    }
    if (distributed.on_device && shoal_device_open(distributed.job, NULL) != SHOAL_OK) {
        fprintf(stderr, "shoal-digits: shoal_device_open: %s\n", shoal_error_text());
        shoal_close(distributed.job);
        return EXIT_FAILED;
    }
    if (shoal_rank(distributed.job) == 0) {
        printf("%d ranks on %d nodes; ", shoal_world_size(distributed.job),
               shoal_node_count(distributed.job));
        show_model(program);
    }
    int status = compare_inputs(program, &distributed);
    if (status == 0)
        status = run_checked(program, &distributed);
    shoal_close(distributed.job);
    return status;
}

int main(int argc, char **argv)
{
    struct program program = {0};
    char error[OPTIONS_ERROR_BYTES];
    if (options_parse(argc, argv, &program.options, error) != 0) {
        complain(EXIT_WRONG_INPUT, error);
        fprintf(stderr, "shoal-digits: see shoal-digits --help\n");
        return EXIT_WRONG_INPUT;
    }
    if (program.options.help) {
        options_print_help(stdout);
        return 0;
    }
    int status = program_prepare(&program);
    if (status == 0)
        status = program.options.single ? run_alone(&program) : run_distributed(&program);
    program_free(&program);
    return status;
}
