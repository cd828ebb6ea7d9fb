/* The conversation with this node's daemon over its Unix socket: lines of JSON, see
 * doc/protocol/worker.md and common/format/message.h. Knows no state but the
 * connection's. Calls common/format and common/base. */
#ifndef WORKER_JOB_CLIENT_H
#define WORKER_JOB_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/format/message.h"

#define CLIENT_PATH_BYTES 108      /* what a Unix address holds */
#define CLIENT_DESCRIPTORS_MAX 64u /* received and not yet taken */

struct client {
    int fd; /* non-blocking; -1: not connected */
    char path[CLIENT_PATH_BYTES];
    char *input; /* received, not yet taken */
    size_t input_bytes, input_capacity;
    size_t searched_bytes;                   /* of the input, without a newline */
    int descriptors[CLIENT_DESCRIPTORS_MAX]; /* in the order of the lines that they came with */
    uint32_t descriptor_count;
    bool cut_off; /* a line was sent in part: nothing can follow it */
};

/* Deadlines are clock_now_ns times. ERR_DISCONNECTED when nobody listens at path. */
int client_connect(struct client *client, const char *path, uint64_t deadline_ns,
                   struct error *error);
/* Close the connection, and the descriptors that nobody has taken. */
void client_close(struct client *client);

/* Send a message, with descriptors (fd_count up to 8; they stay the caller's) on its first byte.
 * One thread at a time. ERR_DISCONNECTED, ERR_TIMEOUT, ERR_MEMORY, ERR_SYSTEM. When the time passes
 * in the middle of a message the connection is shut down, and the daemon counts as gone. */
int client_send(struct client *client, const struct message *message, const int *fds,
                unsigned fd_count, uint64_t deadline_ns, struct error *error);

/* The next message without waiting: 1 with *message the caller's (message_clear), 0 when there is
 * none yet, ERR_DISCONNECTED, ERR_PROTOCOL, ERR_MEMORY, ERR_SYSTEM. One thread at a time. */
int client_receive(struct client *client, struct message *message, struct error *error);
/* The next message, waiting for it until the deadline: 0, or an error of client_receive, or
 * ERR_TIMEOUT. */
int client_wait(struct client *client, struct message *message, uint64_t deadline_ns,
                struct error *error);

/* The first descriptor that came and was not taken, the caller's to close; -1: there is none. A
 * line's is there when the line is. */
int client_take_descriptor(struct client *client);

#endif
