/* Recoveries of a job: how often it has gone on after a loss, and how long each took. Pure. */
#ifndef SERVER_JOBS_RECOVERIES_H
#define SERVER_JOBS_RECOVERIES_H

#include <stdint.h>

enum recovery_kind {
    RECOVERY_CONNECTION, /* a connection of this daemon was broken, and went on */
    RECOVERY_SERVER,     /* a server without ranks was lost; all ranks went on */
    RECOVERY_DAEMON,     /* a daemon with ranks was lost; all ranks went on */
    RECOVERY_GENERATION, /* ranks were lost, or came: others formed the next generation */
    RECOVERY_KINDS,
};

struct recoveries {
    struct recovery_count {
        uint32_t times;
        uint64_t last_ns, total_ns; /* from the loss until the job went on */
    } of[RECOVERY_KINDS];
};

/* "connection", "server", "daemon", "generation" */
const char *recovery_kind_name(enum recovery_kind kind);
void recoveries_add(struct recoveries *recoveries, enum recovery_kind kind, uint64_t took_ns);

#endif
