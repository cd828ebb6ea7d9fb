/* A fuzzer as a test: its corpus, and some thousand inputs made of it with a fixed seed. A compiler
 * without libFuzzer will do.
 *
 *   fuzz_NAME FOLDER [FILE...]     the files of the folder; or the files named, as they are */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

#define INPUTS_MAX 512
#define INPUT_BYTES_MAX (1 << 16)
#define MUTANTS 2000

struct inputs {
    uint8_t *data[INPUTS_MAX];
    size_t bytes[INPUTS_MAX];
    unsigned count;
};

/* xorshift64 (Marsaglia, 2003). */
static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void inputs_add(struct inputs *inputs, const char *path)
{
    FILE *file = fopen(path, "rb");
    FUZZ_REQUIRE(file && inputs->count < INPUTS_MAX);
    uint8_t *data = malloc(INPUT_BYTES_MAX);
    FUZZ_REQUIRE(data);
    inputs->bytes[inputs->count] = fread(data, 1, INPUT_BYTES_MAX, file);
    inputs->data[inputs->count++] = data;
    fclose(file);
}

/* In the order of their names, so that a run is the same everywhere. */
static void inputs_read(struct inputs *inputs, const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    FUZZ_REQUIRE(count >= 0);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            inputs_add(inputs, path);
        free(entries[i]);
    }
    free(entries);
}

/* A copy of exactly the length, so that a sanitizer sees what is read beyond. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    FUZZ_REQUIRE(copy);
    memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

/* Some bytes of one input changed, cut, or followed by the end of another. */
static void run_mutant(const struct inputs *inputs, uint64_t *state)
{
    unsigned one = (unsigned)(random_next(state) % inputs->count);
    unsigned other = (unsigned)(random_next(state) % inputs->count);
    uint8_t *data = malloc(2 * INPUT_BYTES_MAX);
    FUZZ_REQUIRE(data);
    size_t bytes = inputs->bytes[one];
    memcpy(data, inputs->data[one], bytes);
    if (random_next(state) % 4 == 0)
        bytes = random_next(state) % (bytes + 1);
    if (random_next(state) % 4 == 0) {
        size_t from = random_next(state) % (inputs->bytes[other] + 1);
        memcpy(data + bytes, inputs->data[other] + from, inputs->bytes[other] - from);
        bytes += inputs->bytes[other] - from;
    }
    for (uint64_t changes = random_next(state) % 8; changes > 0 && bytes > 0; changes--)
        data[random_next(state) % bytes] = (uint8_t)random_next(state);
    run(data, bytes);
    free(data);
}

int main(int argc, char **argv)
{
    static struct inputs inputs;
    if (argc > 2) {
        for (int i = 2; i < argc; i++)
            inputs_add(&inputs, argv[i]);
    } else {
        inputs_read(&inputs, argc > 1 ? argv[1] : FUZZ_CORPUS);
    }
    FUZZ_REQUIRE(inputs.count > 0);
    for (unsigned i = 0; i < inputs.count; i++)
        run(inputs.data[i], inputs.bytes[i]);
    uint64_t state = 20261123;
    for (unsigned i = 0; argc <= 2 && i < MUTANTS; i++)
        run_mutant(&inputs, &state);
    for (unsigned i = 0; i < inputs.count; i++)
        free(inputs.data[i]);
    printf("100%%: Checks: %u, Failures: 0, Errors: 0\n", inputs.count);
    return 0;
}
