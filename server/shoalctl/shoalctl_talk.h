/* shoalctl's conversation with a daemon: a line each way at a time, JSON. */
#ifndef SERVER_SHOALCTL_SHOALCTL_TALK_H
#define SERVER_SHOALCTL_SHOALCTL_TALK_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define TALK_ANSWER_MS 10000u

struct conversation {
    const char *path;
    int fd;
    int interrupt_fd; /* -1, or: what is readable ends a wait with ERR_AGAIN */
    char *bytes;      /* received and not yet taken */
    size_t used, room;
};

/* talk->path is set, both descriptors are -1. To be closed also when it fails. */
int conversation_open(struct conversation *talk, struct error *error);
void conversation_close(struct conversation *talk);

/* 0 also when the daemon has ended the conversation: what it has said is read next. */
int line_send(struct conversation *talk, const char *line, struct error *error);
/* More bytes, or an error; ERR_DISCONNECTED at the end, ERR_AGAIN for interrupt_fd. deadline_ns 0:
 * no deadline. */
int bytes_receive(struct conversation *talk, uint64_t deadline_ns, struct error *error);
/* The next object, which must be of this type. An "error" object becomes an error. *object is the
 * caller's. After ERR_AGAIN and ERR_TIMEOUT it can be called again. */
int object_receive(struct conversation *talk, const char *type, uint32_t timeout_ms,
                   json_t **object, struct error *error);
/* Both sides' hello. */
int hello_exchange(struct conversation *talk, struct error *error);

#endif
