/* Requests of the coordinator to whoever owns sockets, engine and memory. */
#ifndef SERVER_COORDINATOR_COORDINATOR_IO_H
#define SERVER_COORDINATOR_COORDINATOR_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/format/message.h"
#include "server/commands/engine_command.h"
#include "server/commands/engine_event.h"

/* Actions that the coordinator can take in the world. None of them may call the coordinator back: a
 * connection that ends because of one is reported later. */
struct coordinator_io {
    void *context;
    uint32_t own_user; /* the daemon's: this user and root have all of what others share */
    uint64_t (*random)(void *context);
    /* Send a message. Its uid is that of the user who has caused it, also where the line has none:
     * what the node does not hear yet is kept, and counted as that user's. */
    void (*send_peer)(void *context, uint32_t node, const struct message *message);
    /* Whether the node may be told of something new of the user's: less is kept for it than he may
     * have. NULL: always. */
    bool (*may_say)(void *context, uint32_t node, uint32_t uid);
    void (*send_worker)(void *context, uint32_t worker, const struct message *message);
    /* Close after what was sent; the coordinator has forgotten the worker. */
    void (*end_worker)(void *context, uint32_t worker);

    /* Give the command to the engine: copy what is lent in it, take what is handed over. For
     * COMMAND_WORKER_ATTACH, put in arena and doorbells. */
    void (*command)(void *context, const struct engine_command *command);
    /* Make the memory of a segment, which is the user's until segment_freed: *base, to be handed
     * over to the engine, and *descriptor, by which it can be read, and be written to only if it is
     * `writable`, and which is the user's until segment_drop. ERR_MEMORY, ERR_SYSTEM,
     * ERR_UNSUPPORTED. */
    int (*segment_make)(void *context, uint32_t uid, uint64_t bytes, bool writable, uint8_t **base,
                        int *descriptor, struct error *error);
    /* Send a message as send_worker does, and the descriptor along with it. */
    void (*segment_send)(void *context, uint32_t worker, const struct message *message,
                         int descriptor);
    void (*segment_drop)(void *context, uint32_t uid, int descriptor);
    void (*segment_freed)(void *context, uint32_t uid, uint64_t bytes);
};

/* Credentials of the process at the other end of a worker's socket. */
struct coordinator_credentials {
    uint32_t uid;
    uint32_t pid;
};

#endif
