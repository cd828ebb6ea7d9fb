/* How near the kernels come to memory: the sum of W inputs that are in no cache, against a loop
 * that only reads the same inputs and writes one output, by turns, one thread.
 *
 *   bench_reduce [--inputs W] [--mebibytes N] [--pairs N] [--piece-bytes N]
 *
 * Prints a line of JSON for each type: GB/s of input of every turn. Buffers are shared mappings, as
 * arenas are, and are gone through piece by piece, as a daemon does with chunks. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/base/clock.h"
#include "common/reduce/reduce.h"

#define INPUTS_MAX 16
#define PAIRS_MAX 101

struct bench {
    unsigned inputs;
    size_t bytes, piece_bytes; /* of a buffer; of one call */
    unsigned pairs;
    uint8_t *in[INPUTS_MAX], *out;
};

/* --- the floor -------------------------------------------------------------------------------- */

typedef uint64_t lanes __attribute__((vector_size(64)));

/* Nothing but the traffic: exclusive or is the cheapest thing that needs every input. */
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
pass_plain(const uint8_t *const *in, unsigned inputs, uint8_t *out, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(lanes)) {
        lanes all = *(const lanes *)(in[0] + at);
        for (unsigned i = 1; i < inputs; i++)
            all ^= *(const lanes *)(in[i] + at);
        *(lanes *)(out + at) = all;
    }
}

/* Pass over the inputs as pass_plain does, with stores that pass the cache by, so that the output
 * is not read first. */
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void pass_streamed(const uint8_t *const *in, unsigned inputs,
                                                          uint8_t *out, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) {
        __m256i low = _mm256_load_si256((const __m256i *)(in[0] + at));
        __m256i high = _mm256_load_si256((const __m256i *)(in[0] + at + 32));
        for (unsigned i = 1; i < inputs; i++) {
            low = _mm256_xor_si256(low, _mm256_load_si256((const __m256i *)(in[i] + at)));
            high = _mm256_xor_si256(high, _mm256_load_si256((const __m256i *)(in[i] + at + 32)));
        }
        _mm256_stream_si256((__m256i *)(out + at), low);
        _mm256_stream_si256((__m256i *)(out + at + 32), high);
    }
    _mm_sfence();
}
#endif

enum floor_kind { FLOOR_PLAIN, FLOOR_STREAMED };

static bool floor_is_there(enum floor_kind kind)
{
#if defined(__x86_64__)
    return kind == FLOOR_PLAIN || __builtin_cpu_supports("avx2");
#else
    return kind == FLOOR_PLAIN;
#endif
}

/* --- turns ------------------------------------------------------------------------------------ */

static double GBps(const struct bench *bench, uint64_t ns)
{
    return (double)bench->inputs * (double)bench->bytes / (double)ns;
}

static double floor_turn(const struct bench *bench, enum floor_kind kind)
{
    uint64_t start = clock_now_ns();
    for (size_t at = 0; at < bench->bytes; at += bench->piece_bytes) {
        const uint8_t *in[INPUTS_MAX];
        for (unsigned i = 0; i < bench->inputs; i++)
            in[i] = bench->in[i] + at;
#if defined(__x86_64__)
        if (kind == FLOOR_STREAMED) {
            pass_streamed(in, bench->inputs, bench->out + at, bench->piece_bytes);
            continue;
        }
#endif
        (void)kind;
        pass_plain(in, bench->inputs, bench->out + at, bench->piece_bytes);
    }
    return GBps(bench, clock_now_ns() - start);
}

static double kernel_turn(const struct bench *bench, const struct reduce_kernels *kernels,
                          enum dtype dtype)
{
    uint64_t start = clock_now_ns();
    for (size_t at = 0; at < bench->bytes; at += bench->piece_bytes) {
        const void *in[INPUTS_MAX];
        void *out = bench->out + at;
        for (unsigned i = 0; i < bench->inputs; i++)
            in[i] = bench->in[i] + at;
        const struct reduction reduction = {
            .dtype = dtype,
            .op = REDUCE_SUM,
            .divisor = 1,
            .inputs = bench->inputs,
            .outputs = 1,
            .past_cache = 1, /* it is in no cache either, and nobody reads it soon */
            .count = bench->piece_bytes / dtype_bytes(dtype),
            .in = in,
            .out = &out,
        };
        reduce_run(kernels, &reduction);
    }
    return GBps(bench, clock_now_ns() - start);
}

static void figures_print(const char *name, const double *figures, unsigned count)
{
    printf(",\"%s\":[", name);
    for (unsigned i = 0; i < count; i++)
        printf("%s%.4f", i ? "," : "", figures[i]);
    printf("]");
}

static void dtype_measure(const struct bench *bench, enum dtype dtype)
{
    enum reduce_isa isa = reduce_isa_best();
    const struct reduce_kernels *kernels = reduce_select(isa);
    double kernel[PAIRS_MAX], plain[PAIRS_MAX], streamed[PAIRS_MAX];
    bool has_streamed = floor_is_there(FLOOR_STREAMED);
    for (unsigned pair = 0; pair < bench->pairs; pair++) {
        plain[pair] = floor_turn(bench, FLOOR_PLAIN);
        kernel[pair] = kernel_turn(bench, kernels, dtype);
        streamed[pair] = has_streamed ? floor_turn(bench, FLOOR_STREAMED) : plain[pair];
    }
    printf("{\"dtype\":\"%s\",\"isa\":\"%s\",\"inputs\":%u,\"bytes\":%zu", dtype_name(dtype),
           reduce_isa_name(isa), bench->inputs, bench->bytes);
    figures_print("kernel_GBps", kernel, bench->pairs);
    figures_print("plain_GBps", plain, bench->pairs);
    figures_print("streamed_GBps", streamed, bench->pairs);
    printf("}\n");
    fflush(stdout);
}

/* --- set up ----------------------------------------------------------------------------------- */

static int buffers_open(struct bench *bench)
{
    size_t all = (bench->inputs + 1) * bench->bytes;
    uint8_t *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "bench_reduce: no %zu bytes of memory\n", all);
        return -1;
    }
    /* A byte pattern that is a small normal number in every type. */
    memset(memory, 0x3c, all);
    for (unsigned i = 0; i < bench->inputs; i++)
        bench->in[i] = memory + i * bench->bytes;
    bench->out = memory + bench->inputs * bench->bytes;
    return 0;
}

static int option_number(const char *text, unsigned long least, unsigned long most,
                         unsigned long *value)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (end == text || *end || number < least || number > most) {
        fprintf(stderr, "bench_reduce: got \"%s\", must be a number from %lu to %lu\n", text, least,
                most);
        return -1;
    }
    *value = number;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {{"inputs", 1, NULL, 'i'},
                                          {"mebibytes", 1, NULL, 'm'},
                                          {"pairs", 1, NULL, 'p'},
                                          {"piece-bytes", 1, NULL, 'c'},
                                          {0}};
    unsigned long inputs = 8, mebibytes = 64, pairs = 7, piece = 262144;
    for (int name; (name = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        int result = -1;
        if (name == 'i')
            result = option_number(optarg, 1, INPUTS_MAX, &inputs);
        else if (name == 'm')
            result = option_number(optarg, 1, 4096, &mebibytes);
        else if (name == 'p')
            result = option_number(optarg, 1, PAIRS_MAX, &pairs);
        else if (name == 'c')
            result = option_number(optarg, 4096, 1ul << 20, &piece);
        if (result)
            return 2;
    }
    if ((1ul << 20) % piece) {
        fprintf(stderr, "bench_reduce: --piece-bytes: must divide a mebibyte\n");
        return 2;
    }
    struct bench bench = {.inputs = (unsigned)inputs,
                          .bytes = (size_t)mebibytes << 20,
                          .piece_bytes = piece,
                          .pairs = (unsigned)pairs};
    if (buffers_open(&bench))
        return 1;
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (unsigned i = 0; i < 3; i++)
        dtype_measure(&bench, dtypes[i]);
    return 0;
}
