/* A job for the library's tests: a daemon in a thread, and every rank in a thread of its own. */
#ifndef TESTS_LIB_SERVER_WORLD_H
#define TESTS_LIB_SERVER_WORLD_H

#include <check.h>
#include <pthread.h>
#include <string.h>

#include "tests/lib/worker/fake_daemon.h"
#include "worker/shoal.h"

#define WORLD_RANKS_MAX 4
#define GOOD(call) ck_assert_msg((call) == SHOAL_OK, "%s: %s", #call, shoal_error_text())
#define BAD(call, code, words)                                                                     \
    do {                                                                                           \
        ck_assert_int_eq((call), (code));                                                          \
        ck_assert_msg(strstr(shoal_error_text(), (words)) != NULL, "%s", shoal_error_text());      \
    } while (0)

/* An assertion for single elements: it is cheap, where ck_assert writes to a pipe each time. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

struct world;

struct member {
    struct world *world;
    pthread_t thread;
    shoal_job *job;
    int rank;
    void (*body)(struct member *member);
};

struct world {
    struct fake_daemon *daemon;
    struct member members[WORLD_RANKS_MAX];
    int size;
    uint64_t arena_bytes; /* of each rank; 0: the library's default */
};

/* Return options that open a job of this size with the daemon; the rank is left to be assigned. */
struct shoal_options world_options(const struct fake_daemon *daemon, int size);

/* Run body as every rank of a job, and close it. */
void world_run(const struct fake_daemon_options *options, void (*body)(struct member *member));
/* Run as world_run does, with arenas of the library's default size, which are larger. */
void world_run_large(const struct fake_daemon_options *options,
                     void (*body)(struct member *member));

/* A thread that waits for the request, which ends well. */
void *world_wait_well(void *request);
/* Take the job's lock when the driver sleeps and nothing is under way on a device: whatever comes
 * while it is held, the driver finds all at once. */
void world_lock_sleeping(shoal_job *job);

/* Arguments with which a callback was called. */
struct notes {
    pthread_mutex_t lock;
    pthread_cond_t called;
    int calls, last_result;
    char text[256];
};

#define NOTES                                                                                      \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, ""                              \
    }

/* For shoal_request_on_complete; argument: struct notes. */
void note_call(void *argument, int result);
/* Until it has been called that often. */
void notes_wait(struct notes *notes, int calls);

#endif
