#include "server/jobs/recoveries.h"

const char *recovery_kind_name(enum recovery_kind kind)
{
    static const char *const names[] = {"connection", "server", "daemon", "generation"};
    return names[kind];
}

void recoveries_add(struct recoveries *recoveries, enum recovery_kind kind, uint64_t took_ns)
{
    struct recovery_count *count = &recoveries->of[kind];
    count->times++;
    count->last_ns = took_ns;
    count->total_ns += took_ns;
}
