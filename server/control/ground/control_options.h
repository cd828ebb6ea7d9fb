/* Options that the control thread is given: the engine as a table, sockets, and whom to tell. */
#ifndef SERVER_CONTROL_CONTROL_OPTIONS_H
#define SERVER_CONTROL_CONTROL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/auth/credentials.h"
#include "common/base/error.h"
#include "common/base/unmapped.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "server/engine/engine.h"

/* The calls of server/engine/engine.h on one engine; a table, so that tests can give
 * another. */
struct control_engine {
    struct engine *engine;
    int (*event_descriptor)(const struct engine *engine);
    struct engine_event *(*next_event)(struct engine *engine);
    const struct transport_info *(*transport_info)(const struct engine *engine);
    void (*fabric_address)(const struct engine *engine, uint8_t address[TRANSPORT_ADDRESS_BYTES],
                           uint32_t *bytes);
    void (*command)(struct engine *engine, const struct engine_command *command);
    uint64_t (*turns)(struct engine *engine);
    int (*status)(struct engine *engine, struct engine_status *status);
    void (*status_clear)(struct engine_status *status);
    void (*event_free)(struct engine_event *event);
};
/* Return a table without an engine, for a daemon that cannot start. */
struct control_engine control_engine_none(void);
/* Return the table of the real engine (control_engine.c). */
struct control_engine control_engine_of(struct engine *engine);

enum control_notice {
    CONTROL_READY,    /* listening */
    CONTROL_ALIVE,    /* this loop turns, and the engine's: once a second at least */
    CONTROL_DRAINING, /* shutting down */
};

struct control_options {
    const struct config *config;
    struct log *log;
    struct credentials *credentials; /* loaded; read anew at SIGHUP. The caller's, to be cleared */
    struct control_engine engine;
    const char *instruction_set; /* for the status: what reductions use */
    const char *topology;        /* for the status: one line about this machine */
    struct unmapped unmapped;    /* whose number is refused at the Unix socket */
    /* Bound sockets to use instead of binding, or -1. Taken over. */
    int listen_fd; /* TCP */
    int socket_fd; /* Unix */
    /* Why the daemon cannot start: whoever comes is told, for CONTROL_FAILURE_S at most; NULL: it
     * has started. Outlives the control thread. */
    const char *failure;
    bool of_run;   /* the daemon has come with the ranks of a run: one user alone reaches the Unix
                      socket, and each node of the roster has ranks of that run */
    int parent_fd; /* drain quickly when it reaches its end; -1: none. Taken over */
    int signal_fd; /* struct signalfd_siginfo: SIGTERM, SIGINT drain, a second one ends at once;
                      SIGUSR1 retires; SIGHUP reads the credentials anew. -1: none. Taken over */
    uint32_t alive_ms; /* how often CONTROL_ALIVE, at most 1000; 0: every 1000 */
    void (*notice)(void *context, enum control_notice notice); /* may be NULL */
    void *notice_context;
};

/* How many descriptors so many workers and connections take as the configuration allows. one_user:
 * nobody else reaches the Unix socket, so that nobody is protected from another's messages. */
uint64_t control_descriptors_needed(const struct config *config, bool one_user);

#endif
