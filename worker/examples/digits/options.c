#include "worker/examples/digits/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "worker/examples/digits/dataset.h"
#include "worker/shoal.h"

enum option_key {
    OPTION_DATA = 256,
    OPTION_EPOCHS,
    OPTION_BATCH,
    OPTION_SEED,
    OPTION_HIDDEN,
    OPTION_LEARNING_RATE,
    OPTION_MOMENTUM,
    OPTION_THRESHOLD_BYTES,
    OPTION_FIRST_BUFFER_BYTES,
    OPTION_ACCURACY_MIN,
    OPTION_SAVE,
    OPTION_DEVICE,
    OPTION_NO_VERIFY,
    OPTION_SINGLE,
    OPTION_HELP
};

enum { HIDDEN_WIDTH_MAX = 8192, EPOCHS_MAX = 100000, BATCH_ROWS_MAX = 1000000 };

static const struct option options_long[] = {
    {"data", required_argument, NULL, OPTION_DATA},
    {"epochs", required_argument, NULL, OPTION_EPOCHS},
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"seed", required_argument, NULL, OPTION_SEED},
    {"hidden", required_argument, NULL, OPTION_HIDDEN},
    {"learning-rate", required_argument, NULL, OPTION_LEARNING_RATE},
    {"momentum", required_argument, NULL, OPTION_MOMENTUM},
    {"threshold-bytes", required_argument, NULL, OPTION_THRESHOLD_BYTES},
    {"first-buffer-bytes", required_argument, NULL, OPTION_FIRST_BUFFER_BYTES},
    {"accuracy-min", required_argument, NULL, OPTION_ACCURACY_MIN},
    {"save", required_argument, NULL, OPTION_SAVE},
    {"device", required_argument, NULL, OPTION_DEVICE},
    {"no-verify", no_argument, NULL, OPTION_NO_VERIFY},
    {"single", no_argument, NULL, OPTION_SINGLE},
    {"help", no_argument, NULL, OPTION_HELP},
    {NULL, 0, NULL, 0},
};

void options_print_help(FILE *out)
{
    fputs("usage: shoalrun -n RANKS -- shoal-digits [option...]\n"
          "       shoal-digits --single [option...]\n"
          "Train a multi-layer perceptron on the optical-digits data, and check the result.\n"
          "\n"
          "  --data FILE               64 pixels and a label a line (default: digits.csv of the\n"
          "                            source tree or installation that the program stands in)\n"
          "  --epochs N                passes over the training rows (20)\n"
          "  --batch N                 rows of a batch, of all ranks together (128)\n"
          "  --seed N                  of parameters and row order (1)\n"
          "  --hidden N[,N...]         widths of the hidden layers, at most 7 (256,256,128)\n"
          "  --learning-rate F         (0.08)\n"
          "  --momentum F              (0.9)\n"
          "  --threshold-bytes N       size at which a fusion buffer is sent (65536)\n"
          "  --first-buffer-bytes N    the same of the first one (16384)\n"
          "  --accuracy-min F          test accuracy to be reached (0.95)\n"
          "  --save FILE               write the parameters of the first run, as the machine's\n"
          "                            floats; {rank} in FILE stands for the rank, without it\n"
          "                            rank 0 alone writes\n"
          "  --device cuda             gradients are exchanged in the memory of a GPU, on which\n"
          "                            nothing is computed (cpu: in memory)\n"
          "  --no-verify               no second run and no run alone to compare with\n"
          "  --single                  train alone in this process, without a daemon\n"
          "  --help                    this text\n"
          "\n"
          "Exit status: 0 all checks passed; 1 a check or a collective failed; 2 a wrong option\n"
          "or wrong data.\n",
          out);
}

static int parse_whole(const char *name, const char *text, unsigned long long least,
                       unsigned long long greatest, unsigned long long *value, char *error)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    /* strtoull takes blanks and signs, and wraps a negative number round. */
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || number < least ||
        number > greatest) {
        snprintf(error, OPTIONS_ERROR_BYTES,
                 "--%s: '%.64s' is not a whole number from %llu to %llu", name, text, least,
                 greatest);
        return SHOAL_EINVALID;
    }
    *value = number;
    return 0;
}

static int options_parse_size(const char *name, const char *text, size_t greatest, size_t *value,
                              char *error)
{
    unsigned long long number = 0;
    int result = parse_whole(name, text, 1, greatest, &number, error);
    if (result == 0)
        *value = (size_t)number;
    return result;
}

static int parse_real(const char *name, const char *text, double greatest, double *value,
                      char *error)
{
    char *end = NULL;
    double number = strtod(text, &end);
    /* Written so that a NaN is refused too. */
    if (end == text || *end != '\0' || !(number >= 0.0 && number <= greatest)) {
        snprintf(error, OPTIONS_ERROR_BYTES, "--%s: '%.64s' is not a number from 0 to %g", name,
                 text, greatest);
        return SHOAL_EINVALID;
    }
    *value = number;
    return 0;
}

static int parse_float(const char *name, const char *text, float *value, char *error)
{
    double number = 0.0;
    int result = parse_real(name, text, name[0] == 'm' ? 1.0 : 100.0, &number, error);
    if (result == 0)
        *value = (float)number;
    return result;
}

static int parse_hidden(const char *text, struct network *network, char *error)
{
    struct network parsed = {.layer_count = 1, .widths = {DATASET_PIXELS}};
    for (const char *at = text;;) {
        char *end = NULL;
        unsigned long width = at[0] >= '0' && at[0] <= '9' ? strtoul(at, &end, 10) : 0;
        if (width < 1 || width > HIDDEN_WIDTH_MAX || (*end != ',' && *end != '\0') ||
            parsed.layer_count == NETWORK_LAYERS_MAX) {
            snprintf(error, OPTIONS_ERROR_BYTES,
                     "--hidden: '%.64s' is not a list of 1 to %d widths from 1 to %d", text,
                     NETWORK_LAYERS_MAX - 1, HIDDEN_WIDTH_MAX);
            return SHOAL_EINVALID;
        }
        parsed.widths[parsed.layer_count++] = (size_t)width;
        if (*end == '\0')
            break;
        at = end + 1;
    }
    parsed.widths[parsed.layer_count] = DATASET_CLASSES;
    *network = parsed;
    return 0;
}

static int options_parse_device(const char *text, struct options *options, char *error)
{
    options->on_device = strcmp(text, "cuda") == 0;
    if (options->on_device || strcmp(text, "cpu") == 0)
        return 0;
    snprintf(error, OPTIONS_ERROR_BYTES, "--device: '%.64s' is not cpu or cuda", text);
    return SHOAL_EINVALID;
}

static int option_set(int key, const char *name, const char *text, struct options *options,
                      char *error)
{
    unsigned long long seed = 0;
    int result = 0;
    switch (key) {
    case OPTION_DATA:
        options->data_path = text;
        return 0;
    case OPTION_SAVE:
        options->save_path = text;
        return 0;
    case OPTION_EPOCHS:
        return options_parse_size(name, text, EPOCHS_MAX, &options->plan.epochs, error);
    case OPTION_BATCH:
        return options_parse_size(name, text, BATCH_ROWS_MAX, &options->plan.batch_rows, error);
    case OPTION_SEED:
        result = parse_whole(name, text, 0, UINT64_MAX, &seed, error);
        options->plan.seed = result == 0 ? seed : options->plan.seed;
        return result;
    case OPTION_HIDDEN:
        return parse_hidden(text, &options->network, error);
    case OPTION_LEARNING_RATE:
        return parse_float(name, text, &options->plan.learning_rate, error);
    case OPTION_MOMENTUM:
        return parse_float(name, text, &options->plan.momentum, error);
    case OPTION_THRESHOLD_BYTES:
        return options_parse_size(name, text, SIZE_MAX / 2, &options->threshold_bytes, error);
    case OPTION_FIRST_BUFFER_BYTES:
        return options_parse_size(name, text, SIZE_MAX / 2, &options->first_buffer_bytes, error);
    case OPTION_ACCURACY_MIN:
        return parse_real(name, text, 1.0, &options->accuracy_min, error);
    case OPTION_DEVICE:
        return options_parse_device(text, options, error);
    case OPTION_NO_VERIFY:
        options->verify = false;
        return 0;
    case OPTION_SINGLE:
        options->single = true;
        return 0;
    default:
        options->help = true;
        return 0;
    }
}

int options_parse(int argc, char **argv, struct options *options, char *error)
{
    struct options parsed = {
        .network = {4, {DATASET_PIXELS, 256, 256, 128, DATASET_CLASSES}},
        .plan =
            {.epochs = 20, .batch_rows = 128, .seed = 1, .learning_rate = 0.08F, .momentum = 0.9F},
        .threshold_bytes = (size_t)64 * 1024,
        .first_buffer_bytes = (size_t)16 * 1024,
        .accuracy_min = 0.95,
        .verify = true,
    };
    optind = 0; /* begin anew, also for a second command line */
    opterr = 0;
    for (;;) {
        int index = 0, key = getopt_long(argc, argv, ":", options_long, &index);
        if (key == -1)
            break;
        if (key == '?' || key == ':') {
            /* optopt is the key of a known option that was given a value it does not take. */
            snprintf(error, OPTIONS_ERROR_BYTES, "%.64s: %s", argv[optind - 1],
                     key == ':'              ? "a value is missing"
                     : optopt >= OPTION_DATA ? "this option takes no value"
                                             : "no such option");
            return SHOAL_EINVALID;
        }
        int result = option_set(key, options_long[index].name, optarg, &parsed, error);
        if (result != 0)
            return result;
    }
    if (optind < argc) {
        snprintf(error, OPTIONS_ERROR_BYTES, "'%.64s': not an option", argv[optind]);
        return SHOAL_EINVALID;
    }
    if (parsed.single && parsed.on_device) {
        snprintf(error, OPTIONS_ERROR_BYTES, "--device cuda: not with --single");
        return SHOAL_EINVALID;
    }
    *options = parsed;
    return 0;
}

int options_save_path(const char *path, int rank, char *result, size_t result_bytes)
{
    static const char mark[] = "{rank}";
    size_t used = 0;
    while (*path != '\0') {
        int written;
        if (strncmp(path, mark, sizeof mark - 1) == 0) {
            written = snprintf(result + used, result_bytes - used, "%d", rank);
            path += sizeof mark - 1;
        } else {
            written = snprintf(result + used, result_bytes - used, "%c", *path++);
        }
        if (written < 0 || (size_t)written >= result_bytes - used)
            return SHOAL_EINVALID;
        used += (size_t)written;
    }
    return used > 0 ? 0 : SHOAL_EINVALID;
}
