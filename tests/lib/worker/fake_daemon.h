/* A daemon for the library's tests: one node, one job, in a thread of the test's process. It speaks
 * the worker's protocol over a Unix socket of its own and reduces with
 * tests/lib/worker/fake_exchange.h.
 */
#ifndef TESTS_LIB_WORKER_FAKE_DAEMON_H
#define TESTS_LIB_WORKER_FAKE_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

struct fake_daemon;

struct fake_daemon_options {
    uint32_t world_size;
    uint32_t servers;     /* 0: 1; every one has weight 1 */
    uint32_t chunk_bytes; /* 0: 4096 */
    uint64_t seed;
    uint32_t
        silence_ms; /* told to workers: after which a daemon without a word is gone; 0: never */
    uint64_t pinned_bytes; /* told to workers: what they may pin; 0: 256 MiB */
    bool mute;             /* does not answer pings */
    bool never_left;       /* close the socket in answer to leave, without a word */

    bool recovery;       /* the job goes on after a failure that fake_daemon_fail tells of */
    uint32_t restart_ms; /* told to workers */
    /* In the same write as the first shared memory each rank hears that the job has failed. */
    bool fails_with_shared;
    /* In the second generation what rank 1 asks for is refused with this code; 0: it is not. */
    int refuses;
};

struct fake_daemon *fake_daemon_start(const struct fake_daemon_options *options);
const char *fake_daemon_path(const struct fake_daemon *daemon);
/* All workers' sockets are closed; those that are still there see the daemon die. */
void fake_daemon_stop(struct fake_daemon *daemon);

/* While held, no collective completes. */
void fake_daemon_hold(struct fake_daemon *daemon, bool hold);
/* Tell all workers that the group (-1: the job) has failed. */
void fake_daemon_fail(struct fake_daemon *daemon, int group, int code, const char *text);
/* All workers are cut off, and from now on nobody who connects is answered. */
void fake_daemon_cut(struct fake_daemon *daemon);
/* Cut all workers off, and also the next `deaths` that connect, when they have been answered and
 * before they say more; workers that come after those may return. */
void fake_daemon_restart(struct fake_daemon *daemon, uint32_t deaths);
/* How many have returned, and what the last one said that it was called before. */
uint64_t fake_daemon_returned(struct fake_daemon *daemon);
uint64_t fake_daemon_former(struct fake_daemon *daemon);
/* Send this line to every worker. */
void fake_daemon_say(struct fake_daemon *daemon, const char *line);

/* Counted so far: groups closed by workers, workers that left properly, chunks that came through
 * staging slots. */
uint64_t fake_daemon_groups_closed(struct fake_daemon *daemon);
uint64_t fake_daemon_hellos(struct fake_daemon *daemon);
uint64_t fake_daemon_pings(struct fake_daemon *daemon);
uint64_t fake_daemon_workers_left(struct fake_daemon *daemon);
uint64_t fake_daemon_staged_chunks(struct fake_daemon *daemon);

#endif
