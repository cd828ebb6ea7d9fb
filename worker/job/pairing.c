#include "worker/job/pairing.h"

#include <stdlib.h>
#include <string.h>

#include "common/format/wire.h"

uint64_t pairing_sequence(uint32_t tag, uint32_t number)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | number;
}

static struct transfer_key pairing_key(uint32_t peer, uint32_t tag, bool receive)
{
    struct transfer_key key;
    memset(&key, 0, sizeof(key)); /* padding is hashed too */
    key.peer = peer;
    key.tag = tag;
    key.receive = receive;
    return key;
}

int pairing_counter(struct shoal_group *group, uint32_t peer, uint32_t tag, bool receive,
                    struct transfer_counter **counter, struct error *error)
{
    struct transfer_key key = pairing_key(peer, tag, receive);
    HASH_FIND(hh, group->transfer_counters, &key, sizeof(key), *counter);
    if (*counter)
        return 0;
    *counter = calloc(1, sizeof(**counter));
    if (!*counter)
        return error_set(error, ERR_MEMORY, "out of memory for a tag");
    (*counter)->key = key;
    HASH_ADD(hh, group->transfer_counters, key, sizeof(key), *counter);
    if (HASH_IS_ADDED(*counter))
        return 0;
    free(*counter);
    return error_set(error, ERR_MEMORY, "out of memory for a tag");
}

void pairing_write_numbers(const struct shoal_group *group, uint32_t tag, uint64_t offset)
{
    uint32_t *numbers = (uint32_t *)(void *)(group->job->arena.base + offset);
    for (uint32_t rank = 0; rank < group->size; rank++) {
        const struct transfer_counter *counter;
        struct transfer_key key = pairing_key(rank, tag, true);
        HASH_FIND(hh, group->transfer_counters, &key, sizeof(key), counter);
        numbers[rank] = counter ? counter->next : 0;
    }
}

/* Begin the receive of a request for which a sender was found; ask again if this rank has got that
 * send otherwise meanwhile. */
static int pairing_found(struct shoal_job *job, struct request *core, struct error *error)
{
    struct shoal_request *request = (struct shoal_request *)core;
    struct shoal_group *group = (struct shoal_group *)core->group;
    uint32_t source = core->any_source;
    uint32_t tag = (uint32_t)(core->sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX;
    if (source >= group->size || source == group->rank)
        return error_set(error, ERR_PROTOCOL, "the daemon found a sender that is none: %u", source);
    struct transfer_counter *counter;
    int code = pairing_counter(group, source, tag, true, &counter, error);
    if (code < 0)
        return code;
    const uint32_t *numbers =
        (const uint32_t *)(const void *)(job->arena.base + core->numbers_offset);
    if (counter->next != numbers[source]) {
        pairing_write_numbers(group, tag, core->numbers_offset);
        progress_any_again(&job->progress, core);
        return 0;
    }
    uint32_t block = 1 + source * group->size + group->rank;
    struct route route = route_find(COLLECTIVE_SEND, 0, block, group->size);
    if (request->source)
        *request->source = (int)source;
    progress_any_found(&job->progress, core, block, &route, pairing_sequence(tag, counter->next));
    counter->next++;
    return 0;
}

int pairing_match(struct shoal_job *job, struct error *error)
{
    struct request *core;
    int code = 0;
    while (code == 0 && !job->progress.failed && (core = progress_next_matched(&job->progress))) {
        code = pairing_found(job, core, error);
        if (code < 0)
            progress_any_again(&job->progress, core); /* so that it fails with the others */
    }
    return code;
}
