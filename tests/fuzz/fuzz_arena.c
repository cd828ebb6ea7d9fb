/* An arena of a hostile worker: header, tail and entries as the input has them. The daemon's side
 * refuses it, or takes out no more than the ring has and believes no offset beyond the memory. */
#include <stdlib.h>
#include <string.h>

#include "common/format/arena.h"
#include "tests/fuzz/fuzz.h"

#define ENTRIES 16

/* Spoil as much of the header as there are bytes for, then entries of the submission ring. */
static void spoil(uint8_t *base, const uint8_t *data, size_t size)
{
    size_t header = size < sizeof(struct arena_header) ? size : sizeof(struct arena_header);
    for (size_t i = 0; i < header; i++)
        base[i] ^= data[i];
    struct arena_header *shared = (struct arena_header *)base;
    uint64_t room = ENTRIES * sizeof(struct arena_submission);
    uint64_t offset = shared->submission_offset;
    if (offset % ARENA_ALIGNMENT || offset > ARENA_LEAST_BYTES - room)
        return;
    memcpy(base + offset, data + header, size - header < room ? size - header : room);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *base = aligned_alloc(4096, ARENA_LEAST_BYTES);
    FUZZ_REQUIRE(base);
    memset(base, 0, ARENA_LEAST_BYTES);
    struct arena worker, daemon;
    struct error error;
    FUZZ_REQUIRE(arena_format(&worker, base, ARENA_LEAST_BYTES, ENTRIES, &error) == 0);
    spoil(base, data, size);
    if (arena_attach_memory(&daemon, base, ARENA_LEAST_BYTES, &error) == 0) {
        struct arena_submission entry;
        uint32_t popped = 0;
        while (arena_pop_submission(&daemon, &entry) == 1) {
            FUZZ_REQUIRE(++popped <= daemon.submission_mask + 1);
            if (arena_range_valid(&daemon, entry.in_offset, entry.count)) {
                FUZZ_REQUIRE(entry.in_offset >= daemon.data_offset);
                FUZZ_REQUIRE(entry.count <= ARENA_LEAST_BYTES - entry.in_offset);
            }
            struct arena_completion done = {.type = ARENA_REQUEST_DONE, .request = entry.request};
            (void)arena_push_completion(&daemon, &done);
        }
        (void)arena_daemon_prepare_sleep(&daemon);
        arena_daemon_cancel_sleep(&daemon);
        (void)arena_worker_needs_doorbell(&daemon);
    } else {
        FUZZ_REQUIRE(error.text[0]);
    }
    free(base);
    return 0;
}
