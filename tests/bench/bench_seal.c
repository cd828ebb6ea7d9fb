/* The time that the cipher alone takes, on one thread: sealing from one buffer into another, as
 * messages go out, and opening where they lie, as they come in. Prints a line of JSON. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/seal.h"
#include "common/base/clock.h"

#define HEADER_BYTES 64u
#define TOTAL_BYTES (512ull << 20)
#define ROUNDS 5

#define PLAIN_BYTES (64ull << 20) /* what a rank has lies in its memory, not in the cache */
#define BUFFERS 16                /* while buffers go round */

struct buffers {
    uint8_t *plain;
    uint8_t *sealed[BUFFERS];
};

/* Nanoseconds for TOTAL_BYTES; *open_ns for opening them again. */
static uint64_t pass(struct seal *seal, const struct buffers *buffers, uint32_t bytes,
                     uint64_t *open_ns)
{
    uint64_t seal_ns = 0, sequence = 0, places = PLAIN_BYTES / bytes;
    *open_ns = 0;
    for (uint64_t done = 0; done < TOTAL_BYTES; done += (uint64_t)bytes * BUFFERS) {
        uint64_t begin_ns = clock_now_ns();
        for (int i = 0; i < BUFFERS; i++) {
            if (seal_message(seal, sequence + (uint64_t)i, buffers->sealed[i], HEADER_BYTES,
                             buffers->plain + (sequence + (uint64_t)i) % places * bytes,
                             bytes) != 0)
                abort();
        }
        uint64_t middle_ns = clock_now_ns();
        for (int i = 0; i < BUFFERS; i++) {
            if (seal_open(seal, buffers->sealed[i], HEADER_BYTES,
                          HEADER_BYTES + bytes + SEAL_TRAILER_BYTES) != 0)
                abort();
        }
        seal_ns += middle_ns - begin_ns;
        *open_ns += clock_now_ns() - middle_ns;
        sequence += BUFFERS;
    }
    return seal_ns;
}

int main(int argc, char **argv)
{
    static const uint8_t key[SEAL_KEY_BYTES] = {1, 2, 3};
    uint32_t bytes = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 248576;
    struct error error = {0};
    struct seal *seal;
    struct buffers buffers;
    if (bytes == 0 || bytes > 16u << 20 || seal_create(&seal, key, &error) != 0) {
        fprintf(stderr, "usage: bench_seal [BYTES]   of a message; %s\n", error.text);
        return 2;
    }
    buffers.plain = malloc(PLAIN_BYTES);
    if (!buffers.plain)
        return 2;
    memset(buffers.plain, 1, PLAIN_BYTES);
    for (int i = 0; i < BUFFERS; i++) {
        buffers.sealed[i] = malloc(HEADER_BYTES + bytes + SEAL_TRAILER_BYTES);
        if (!buffers.sealed[i])
            return 2;
        memset(buffers.sealed[i], 0, HEADER_BYTES + bytes + SEAL_TRAILER_BYTES);
    }
    uint64_t least_seal_ns = UINT64_MAX, least_open_ns = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t open_ns, seal_ns = pass(seal, &buffers, bytes, &open_ns);
        least_seal_ns = seal_ns < least_seal_ns ? seal_ns : least_seal_ns;
        least_open_ns = open_ns < least_open_ns ? open_ns : least_open_ns;
    }
    uint64_t round_bytes = (uint64_t)bytes * BUFFERS;
    double total = (double)((TOTAL_BYTES + round_bytes - 1) / round_bytes * round_bytes);
    printf("{\"bytes\": %u, \"seal_GBps\": %.3f, \"open_GBps\": %.3f}\n", bytes,
           total / (double)least_seal_ns, total / (double)least_open_ns);
    for (int i = 0; i < BUFFERS; i++)
        free(buffers.sealed[i]);
    free(buffers.plain);
    seal_destroy(seal);
    return 0;
}
