/* Jobs that go on, and wish to have so many ranks first: how long newcomers are waited for to make
 * them so many. */
#include <inttypes.h>

#include "server/coordinator/coordinator_internal.h"

uint32_t wish_newcomers(const struct coordinator *c, const struct succession *succession)
{
    if (succession->asks[0].whole) /* and so are all others */
        return 0;
    uint32_t count = newcomers_count(c, succession->name, succession->uid);
    uint32_t most = MESSAGE_RANKS_MAX - succession->ask_count;
    return count < most ? count : most;
}

uint64_t wish_deadline(const struct succession *succession)
{
    return succession_wait_end(succession, COORDINATOR_OPEN_LEAST_MS * COORDINATOR_MS);
}

bool wish_waits(struct coordinator *c, struct succession *succession, uint32_t ranks)
{
    uint32_t least_ranks = succession_least_ranks(succession);
    if (succession->waited || ranks >= least_ranks || succession->asks[0].whole)
        return false;
    bool begins = succession->short_ns == UINT64_MAX;
    if (begins)
        succession->short_ns = c->now_ns;
    uint64_t end_ns = wish_deadline(succession);
    if (end_ns <= c->now_ns)
        return false;
    if (begins)
        coordinator_log(c, LOG_LEVEL_INFO, succession->uid,
                        "job '%s' could go on with %u ranks, and waits for newcomers until it has "
                        "%u, for %" PRIu64 " ms at most",
                        succession->name, ranks, least_ranks,
                        (uint64_t)((end_ns - c->now_ns) / COORDINATOR_MS));
    return true;
}

void wish_end(struct coordinator *c, struct succession *succession)
{
    succession->waited = true;
    coordinator_log(c, LOG_LEVEL_WARNING, succession->uid,
                    "job '%s' waits no more until it has %u ranks, after %" PRIu64 " ms",
                    succession->name, succession_least_ranks(succession),
                    (uint64_t)((c->now_ns - succession->short_ns) / COORDINATOR_MS));
}
