#include "worker/programs/shoalperf/perf_options.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/route.h"
#include "common/text/number_text.h"
#include "common/text/size_text.h"

#define SIZES_MAX 100000u

const char *perf_usage(void)
{
    return "usage: shoalrun ... -- shoalperf [OPTION]... COLLECTIVE\n"
           "Time a collective, and check every element of every rank.\n"
           "\n"
           "Collectives:\n"
           "  all_reduce, reduce, broadcast, barrier, all_gather, reduce_scatter, gather,\n"
           "  scatter, all_to_all, sendrecv\n"
           "\n"
           "Options:\n"
           "  -b, --minbytes SIZE       least size (default 32M)\n"
           "  -e, --maxbytes SIZE       greatest size (default: the least)\n"
           "  -i, --stepbytes SIZE      from one size to the next, add SIZE (default 1M)\n"
           "  -f, --stepfactor N        from one size to the next, multiply by N\n"
           "  --count COUNTS            numbers of elements, with commas between, in place\n"
           "                            of sizes; of a rank's part where it has one\n"
           "  -d, --datatype TYPE       float (default), double, half, bfloat16, int8,\n"
           "                            uint8, int32, int64, int16, uint16, uint32,\n"
           "                            uint64, or all\n"
           "  -o, --op OP               sum (default), avg, prod, min, max, band, bor, bxor,\n"
           "                            land, lor, lxor, or all\n"
           "  -r, --root RANK           the root of a collective that has one (default 0)\n"
           "  -w, --warmup_iters N      iterations before the measured ones (default 5)\n"
           "  -n, --iters N             measured iterations (default 20)\n"
           "  --arena                   buffers in the arena: nothing is copied\n"
           "  --shared-result           all_reduce into memory that ranks of a node share\n"
           "  --device DEVICE           cpu (default), or cuda: buffers in memory or a GPU\n"
           "  --in-place                send and receive buffers are one; of parts, a rank's\n"
           "                            own is in place\n"
           "  --out-of-place            they are two (default)\n"
           "  --uneven                  parts of different sizes, some empty: the _v calls\n"
           "  --rewrite                 write what is sent before each iteration, within its\n"
           "                            time, as training does\n"
           "  --check N                 1 (default): check the results, 0: do not\n"
           "  --json                    a line of JSON for each size\n"
           "  --plot FILE               draw bandwidth and time against size, as SVG\n"
           "  -h, --help                print this text, and end\n"
           "  --version                 print the version, and end\n"
           "\n"
           "SIZE is in bytes, or with K, M, G in powers of 1024; it is that of the large\n"
           "buffer, of all parts together.\n"
           "\n"
           "Exit status:\n"
           "  0    all results are right\n"
           "  1    a result is wrong\n"
           "  2    wrong options\n"
           "  3    a call failed, or the results could not be written\n"
           "\n"
           "Read on: shoalperf(1), shoalrun(1).\n";
}

static int parse_number(const char *option, const char *text, uint64_t least, uint64_t most,
                        uint64_t *value, struct error *error)
{
    int result = number_text_parse(text, least, most, value, error);
    if (result)
        error_prefix(error, "%s", option);
    return result;
}

static int perf_parse_size(const char *option, const char *text, uint64_t least, uint64_t *value,
                           struct error *error)
{
    uint64_t bytes;
    int result = size_text_parse(text, &bytes, error);
    if (result) {
        error_prefix(error, "%s", option);
        return result;
    }
    if (bytes < least || bytes > (1ull << 40))
        return error_set(error, ERR_INVALID, "%s: got \"%s\", must be from %llu bytes to 1024G",
                         option, text, (unsigned long long)least);
    *value = bytes;
    return 0;
}

static int parse_counts(const char *text, struct perf_options *options, struct error *error)
{
    options->count_count = 0;
    for (const char *word = text; *word;) {
        char number[32];
        size_t length = strcspn(word, ",");
        if (options->count_count == PERF_COUNTS_MAX)
            return error_set(error, ERR_INVALID, "--count: at most %d counts", PERF_COUNTS_MAX);
        snprintf(number, sizeof(number), "%.*s", length < 31 ? (int)length : 31, word);
        int result = parse_number("--count", number, 1, 1ull << 38,
                                  &options->counts[options->count_count], error);
        if (result)
            return result;
        options->count_count++;
        word += length + (word[length] == ',');
    }
    if (options->count_count == 0)
        return error_set(error, ERR_INVALID, "--count: no count given");
    return 0;
}

static int parse_dtype(const char *text, struct perf_options *options, struct error *error)
{
    options->all_dtypes = strcmp(text, "all") == 0;
    if (!options->all_dtypes && dtype_parse(text, &options->dtype))
        return error_set(error, ERR_INVALID, "-d: unknown type \"%s\"", text);
    return 0;
}

static int parse_op(const char *text, struct perf_options *options, struct error *error)
{
    options->all_ops = strcmp(text, "all") == 0;
    if (!options->all_ops && reduce_op_parse(text, &options->op))
        return error_set(error, ERR_INVALID, "-o: unknown operation \"%s\"", text);
    return 0;
}

static int perf_parse_device(const char *text, struct perf_options *options, struct error *error)
{
    options->device = strcmp(text, "cuda") == 0;
    if (!options->device && strcmp(text, "cpu") != 0)
        return error_set(error, ERR_INVALID, "--device: got \"%s\", must be cpu or cuda", text);
    return 0;
}

enum {
    OPTION_COUNT = 256,
    OPTION_ARENA,
    OPTION_DEVICE,
    OPTION_SHARED,
    OPTION_IN_PLACE,
    OPTION_OUT_OF_PLACE,
    OPTION_UNEVEN,
    OPTION_REWRITE,
    OPTION_CHECK,
    OPTION_JSON,
    OPTION_PLOT,
    OPTION_VERSION,
};

static const struct option perf_long_options[] = {
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"stepbytes", required_argument, NULL, 'i'},
    {"datatype", required_argument, NULL, 'd'},
    {"op", required_argument, NULL, 'o'},
    {"root", required_argument, NULL, 'r'},
    {"warmup_iters", required_argument, NULL, 'w'},
    {"iters", required_argument, NULL, 'n'},
    {"count", required_argument, NULL, OPTION_COUNT},
    {"arena", no_argument, NULL, OPTION_ARENA},
    {"shared-result", no_argument, NULL, OPTION_SHARED},
    {"device", required_argument, NULL, OPTION_DEVICE},
    {"in-place", no_argument, NULL, OPTION_IN_PLACE},
    {"out-of-place", no_argument, NULL, OPTION_OUT_OF_PLACE},
    {"uneven", no_argument, NULL, OPTION_UNEVEN},
    {"rewrite", no_argument, NULL, OPTION_REWRITE},
    {"check", required_argument, NULL, OPTION_CHECK},
    {"json", no_argument, NULL, OPTION_JSON},
    {"plot", required_argument, NULL, OPTION_PLOT},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

static int take_number(struct perf_options *options, int option, struct error *error)
{
    uint64_t number = 0;
    int result = 0;
    switch (option) {
    case 'f':
        result = parse_number("-f", optarg, 2, 1u << 30, &options->factor, error);
        options->step_bytes = 0;
        return result;
    case 'i':
        result = perf_parse_size("-i", optarg, 1, &options->step_bytes, error);
        options->factor = 0;
        return result;
    case 'r':
        result = parse_number("-r", optarg, 0, INT_MAX, &number, error);
        options->root = (uint32_t)number;
        return result;
    case 'w':
        result = parse_number("-w", optarg, 0, INT_MAX, &number, error);
        options->warmup = (uint32_t)number;
        return result;
    case 'n':
        result = parse_number("-n", optarg, 1, INT_MAX, &number, error);
        options->iterations = (uint32_t)number;
        return result;
    default:
        result = parse_number("--check", optarg, 0, 1, &number, error);
        options->check = number == 1;
        return result;
    }
}

static int perf_take_option(struct perf_options *options, int option, char *const *argv,
                            struct error *error)
{
    switch (option) {
    case 'b':
        return perf_parse_size("-b", optarg, 0, &options->least_bytes, error);
    case 'e':
        return perf_parse_size("-e", optarg, 0, &options->most_bytes, error);
    case 'd':
        return parse_dtype(optarg, options, error);
    case 'o':
        return parse_op(optarg, options, error);
    case OPTION_COUNT:
        return parse_counts(optarg, options, error);
    case OPTION_ARENA:
        options->arena = true;
        return 0;
    case OPTION_DEVICE:
        return perf_parse_device(optarg, options, error);
    case OPTION_SHARED:
        options->shared = true;
        return 0;
    case OPTION_IN_PLACE:
    case OPTION_OUT_OF_PLACE:
        options->in_place = option == OPTION_IN_PLACE;
        return 0;
    case OPTION_UNEVEN:
        options->uneven = true;
        return 0;
    case OPTION_REWRITE:
        options->rewrite = true;
        return 0;
    case OPTION_JSON:
        options->json = true;
        return 0;
    case OPTION_PLOT:
        options->plot_path = optarg;
        return 0;
    case 'h':
        options->help = true;
        return 0;
    case OPTION_VERSION:
        options->version = true;
        return 0;
    case ':':
        return error_set(error, ERR_INVALID, "%s needs a value", argv[optind - 1]);
    case '?':
        return error_set(error, ERR_INVALID, "unknown option %s", argv[optind - 1]);
    default:
        return take_number(options, option, error);
    }
}

/* A send is measured with its receive, under nccl-tests' name. */
static const char send_name[] = "sendrecv";

const char *perf_collective_name(enum collective_kind kind)
{
    return kind == COLLECTIVE_SEND ? send_name : collective_name(kind);
}

static int perf_collective_parse(const char *text, enum collective_kind *kind)
{
    bool send = strcmp(text, send_name) == 0;
    if (send)
        *kind = COLLECTIVE_SEND;
    else if (strcmp(text, collective_name(COLLECTIVE_SEND)) == 0)
        return ERR_INVALID;
    return send ? 0 : collective_parse(text, kind);
}

uint32_t perf_size_parts(enum collective_kind kind, uint32_t ranks)
{
    return route_in_blocks(kind) && kind != COLLECTIVE_SEND ? ranks : 1;
}

static int perf_options_check(struct perf_options *options, int argc, char *const *argv,
                              struct error *error)
{
    if (optind == argc)
        return error_set(error, ERR_INVALID, "which collective?");
    if (optind + 1 < argc)
        return error_set(error, ERR_INVALID, "one collective only, got \"%s\" too",
                         argv[optind + 1]);
    if (perf_collective_parse(argv[optind], &options->collective))
        return error_set(error, ERR_INVALID, "unknown collective \"%s\"", argv[optind]);
    bool send = options->collective == COLLECTIVE_SEND;
    if (options->uneven && (send || !route_in_blocks(options->collective)))
        return error_set(error, ERR_INVALID, "--uneven: %s has no parts",
                         perf_collective_name(options->collective));
    if (options->plot_path && options->collective == COLLECTIVE_BARRIER)
        return error_set(error, ERR_INVALID, "--plot: a barrier has no sizes");
    if (options->plot_path && !options->plot_path[0])
        return error_set(error, ERR_INVALID, "--plot: the name of a file is empty");
    if (options->arena && options->device)
        return error_set(error, ERR_INVALID, "--arena: buffers are there or on a device, not both");
    if (options->rewrite && options->device)
        return error_set(error, ERR_INVALID, "--rewrite: not on a device");
    if (options->shared && options->collective != COLLECTIVE_ALL_REDUCE)
        return error_set(error, ERR_INVALID, "--shared-result: only all_reduce has one");
    if (options->shared && (options->device || options->in_place))
        return error_set(error, ERR_INVALID, "--shared-result: not %s",
                         options->device ? "on a device" : "in place");
    if (options->in_place && (send || options->collective == COLLECTIVE_ALL_TO_ALL))
        return error_set(error, ERR_INVALID, "--in-place: %s cannot be",
                         perf_collective_name(options->collective));
    if (options->most_bytes == 0)
        options->most_bytes = options->least_bytes;
    if (options->most_bytes < options->least_bytes)
        return error_set(error, ERR_INVALID, "-e is less than -b");
    if (options->factor == 0 && options->step_bytes == 0)
        options->step_bytes = 1u << 20;
    if (options->step_bytes &&
        (options->most_bytes - options->least_bytes) / options->step_bytes >= SIZES_MAX)
        return error_set(error, ERR_INVALID, "-i: more than %u sizes", SIZES_MAX);
    if (!options->all_ops && !options->all_dtypes && !reduce_op_allows(options->op, options->dtype))
        return error_set(error, ERR_INVALID, "%s is not defined for %s",
                         reduce_op_name(options->op), dtype_name(options->dtype));
    return 0;
}

int perf_options_parse(int argc, char **argv, struct perf_options *options, struct error *error)
{
    struct perf_options parsed = {
        .least_bytes = 32u << 20,
        .dtype = DTYPE_F32,
        .op = REDUCE_SUM,
        .warmup = 5,
        .iterations = 20,
        .check = true,
    };
    optind = 0; /* glibc: start over */
    opterr = 0;
    int option;
    while ((option = getopt_long(argc, argv, ":hb:e:f:i:d:o:r:w:n:", perf_long_options, NULL)) !=
           -1) {
        int result = perf_take_option(&parsed, option, argv, error);
        if (result)
            return result;
    }
    if (!parsed.help && !parsed.version) {
        int result = perf_options_check(&parsed, argc, argv, error);
        if (result)
            return result;
    }
    *options = parsed;
    return 0;
}

int perf_counts(const struct perf_options *options, enum dtype dtype, uint32_t ranks,
                uint64_t **counts, size_t *count, struct error *error)
{
    if (options->collective == COLLECTIVE_BARRIER || options->count_count) {
        size_t used = options->count_count ? options->count_count : 1;
        uint64_t *list = calloc(used, sizeof(*list));
        if (!list)
            return error_set(error, ERR_MEMORY, "out of memory");
        if (options->collective == COLLECTIVE_BARRIER)
            used = 1; /* of nothing */
        else
            memcpy(list, options->counts, used * sizeof(*list));
        *counts = list;
        *count = used;
        return 0;
    }
    uint64_t *list = calloc(SIZES_MAX, sizeof(*list)); /* touched as far as used */
    if (!list)
        return error_set(error, ERR_MEMORY, "out of memory");
    size_t used = 0;
    uint64_t parts = perf_size_parts(options->collective, ranks);
    for (uint64_t bytes = options->least_bytes; bytes <= options->most_bytes && used < SIZES_MAX;) {
        uint64_t elements = bytes / dtype_bytes(dtype) / parts;
        elements = elements ? elements : 1;
        if (used == 0 || list[used - 1] != elements)
            list[used++] = elements;
        if (options->factor)
            bytes = bytes ? bytes * options->factor : 1;
        else
            bytes += options->step_bytes;
    }
    *counts = list;
    *count = used;
    return 0;
}

bool perf_next_pair(const struct perf_options *options, uint32_t *position, enum dtype *dtype,
                    enum reduce_op *op)
{
    bool has_op = collective_has_op(options->collective);
    bool all_ops = options->all_ops && has_op;
    bool all_dtypes = options->all_dtypes && options->collective != COLLECTIVE_BARRIER;
    for (; *position < DTYPE_COUNT * REDUCE_OP_COUNT; (*position)++) {
        unsigned this_dtype = *position / REDUCE_OP_COUNT, this_op = *position % REDUCE_OP_COUNT;
        unsigned wanted_op = has_op ? options->op : REDUCE_SUM;
        if ((!all_dtypes && this_dtype != options->dtype) || (!all_ops && this_op != wanted_op))
            continue;
        if (!reduce_op_allows(this_op, this_dtype))
            continue;
        *dtype = (enum dtype)this_dtype;
        *op = (enum reduce_op)this_op;
        (*position)++;
        return true;
    }
    return false;
}

uint64_t perf_row_count(const struct perf_options *options, uint32_t ranks)
{
    uint32_t position = 0;
    enum dtype dtype;
    enum reduce_op op;
    uint64_t rows = 0;
    while (perf_next_pair(options, &position, &dtype, &op)) {
        uint64_t *counts = NULL;
        size_t used = 0;
        struct error error;
        if (perf_counts(options, dtype, ranks, &counts, &used, &error))
            return 0;
        free(counts);
        rows += used;
    }
    return rows;
}
