#include "common/format/window.h"

#define FULL_NODES 16u
#define LEAST_CHUNKS 2u
#define PIPELINE_CHUNKS 4u
#define LEAD_CHUNKS 8u

uint32_t window_chunks(uint32_t configured, uint32_t nodes)
{
    if (nodes <= FULL_NODES)
        return configured;
    uint32_t window = configured * FULL_NODES / nodes;
    return window < LEAST_CHUNKS ? LEAST_CHUNKS : window;
}

static uint32_t at_least_a_pipeline(uint32_t chunks)
{
    return chunks < PIPELINE_CHUNKS ? PIPELINE_CHUNKS : chunks;
}

uint32_t window_of_shard(uint32_t pieces)
{
    return at_least_a_pipeline(pieces / 4);
}

uint32_t window_of_network(uint32_t window_bytes, uint32_t chunk_bytes)
{
    return chunk_bytes ? at_least_a_pipeline(window_bytes / chunk_bytes) : UINT32_MAX;
}

uint32_t window_of_lead(uint32_t shard_window, uint32_t network_window)
{
    uint32_t window = shard_window < network_window ? shard_window : network_window;
    return window < LEAD_CHUNKS ? LEAD_CHUNKS : window;
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

uint64_t window_buffers_most(uint32_t configured, uint32_t nodes, uint32_t servers, bool serves)
{
    uint64_t most = 0;
    for (uint32_t members = 2; members <= nodes; members++) {
        /* This node has ranks, the other members do not serve where there are enough such nodes: so
         * there are the most owners. */
        uint32_t outside = servers - serves;
        if (outside > nodes - members)
            outside = nodes - members;
        uint32_t window = window_chunks(configured, members);
        uint64_t buffers = window_sums(window, members + outside) +
                           (uint64_t)(members - 1) * window_receives(window, true, true) +
                           (uint64_t)outside * window_receives(window, false, true);
        if (buffers > most)
            most = buffers;
    }
    return most;
}
