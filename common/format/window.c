#include "common/format/window.h"

#include "common/format/wire.h"

#define FULL_NODES 8u
#define PIPELINE_CHUNKS 4u
#define TURN_CHUNKS 2u /* one that comes, one that is asked for */
#define LEAD_CHUNKS 8u
/* Bounds of the default chunk_bytes; the lower one is the least that the configuration allows. */
#define CHUNK_MOST_BYTES (256u << 10)
#define CHUNK_LEAST_BYTES (4u << 10)
#define CHUNK_UNIT_BYTES 64u

static uint32_t at_least(uint32_t number, uint32_t least)
{
    return number < least ? least : number;
}

static uint32_t at_most(uint32_t number, uint32_t most)
{
    return number > most ? most : number;
}

uint32_t window_chunks(uint32_t configured, uint32_t nodes)
{
    if (nodes <= FULL_NODES)
        return configured;
    uint32_t window = configured * FULL_NODES / nodes;
    return at_least(window, at_most(configured, PIPELINE_CHUNKS));
}

static uint32_t at_least_a_pipeline(uint32_t chunks)
{
    return at_least(chunks, PIPELINE_CHUNKS);
}

uint32_t window_of_shard(uint32_t pieces)
{
    return at_least_a_pipeline(pieces / 4);
}

uint32_t window_of_gathered(uint32_t shard_window, uint32_t window_bytes, uint32_t chunk_bytes,
                            uint32_t others)
{
    uint64_t bytes = (uint64_t)chunk_bytes * others;
    if (others < 2 || bytes == 0)
        return shard_window;
    return at_most(shard_window, at_least((uint32_t)(window_bytes / bytes), TURN_CHUNKS));
}

uint32_t window_of_network(uint32_t window_bytes, uint32_t chunk_bytes)
{
    return chunk_bytes ? at_least_a_pipeline(window_bytes / chunk_bytes) : UINT32_MAX;
}

uint32_t window_of_lead(uint32_t shard_window, uint32_t network_window, uint32_t window)
{
    return at_most(at_least(at_most(shard_window, network_window), LEAD_CHUNKS), window);
}

uint32_t window_receives(uint32_t window, bool contributes, bool returns)
{
    /* Beside the contributions one DISAGREE, beside the results the ERROR that answers it, and
     * beside all of them a sign of life. */
    return (contributes ? window + 1 : 0) + (returns ? window + 1 : 0) + (contributes || returns);
}

uint64_t window_sums(uint32_t window, uint32_t owners)
{
    return (uint64_t)window * owners;
}

/* Receives and sums of a group of `members` nodes, this one among them, with `outside` servers that
 * have no ranks of it. */
static uint64_t group_receives(uint32_t configured, uint32_t members, uint32_t outside)
{
    return (uint64_t)(members - 1) *
               window_receives(window_chunks(configured, members), true, true) +
           (uint64_t)outside *
               window_receives(window_chunks(configured, members + outside), false, true);
}

static uint64_t group_sums(uint32_t configured, uint32_t members, uint32_t outside)
{
    return window_sums(window_chunks(configured, members), members) +
           window_sums(window_chunks(configured, members + outside), outside);
}

typedef uint64_t count_buffers(uint32_t configured, uint32_t members, uint32_t outside);

static uint64_t group_all(uint32_t configured, uint32_t members, uint32_t outside)
{
    return group_receives(configured, members, outside) + group_sums(configured, members, outside);
}

/* Return the most that any group with ranks on this node counts. `servers` other nodes are servers;
 * those of them without ranks of the group are outside it. Larger groups have smaller windows, so
 * all numbers of members and of outside servers are tried. */
static uint64_t groups_most(count_buffers *count, uint32_t configured, uint32_t nodes,
                            uint32_t servers)
{
    uint64_t most = 0;
    for (uint32_t members = 2; members <= nodes; members++) {
        uint32_t rest = nodes - members;
        uint32_t most_outside = servers < rest ? servers : rest;
        for (uint32_t outside = servers >= members ? servers - members + 1 : 0;
             outside <= most_outside; outside++) {
            uint64_t buffers = count(configured, members, outside);
            if (buffers > most)
                most = buffers;
        }
    }
    return most;
}

uint64_t window_buffers_most(uint32_t configured, uint32_t nodes, uint32_t servers, bool serves)
{
    return groups_most(group_all, configured, nodes, servers - serves);
}

uint64_t window_receives_most(uint32_t configured, uint32_t nodes, uint32_t servers)
{
    uint64_t most = groups_most(group_receives, configured, nodes, servers);
    uint64_t serving =
        servers > 0 ? groups_most(group_receives, configured, nodes, servers - 1) : 0;
    return serving > most ? serving : most;
}

uint32_t window_chunk_bytes(uint32_t configured, uint32_t nodes, uint32_t servers)
{
    uint64_t receives = window_receives_most(configured, nodes, servers);
    if (nodes <= FULL_NODES || receives == 0)
        return CHUNK_MOST_BYTES;
    uint64_t bytes = WINDOW_RECEIVE_BYTES / receives;
    bytes = bytes > WIRE_HEADER_BYTES ? bytes - WIRE_HEADER_BYTES : 0;
    bytes -= bytes % CHUNK_UNIT_BYTES;
    if (bytes > CHUNK_MOST_BYTES)
        return CHUNK_MOST_BYTES;
    return bytes < CHUNK_LEAST_BYTES ? CHUNK_LEAST_BYTES : (uint32_t)bytes;
}
