#include "server/shoalctl/shoalctl_talk.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/shown.h"
#include "common/format/message.h"

#define LINE_BYTES_MAX (64u << 20) /* of a status with every job and peer that limits allow */

int conversation_open(struct conversation *talk, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(talk->path);
    if (length >= sizeof(address.sun_path))
        return error_set(error, ERR_INVALID, "%s is too long for a socket", talk->path);
    memcpy(address.sun_path, talk->path, length + 1);
    talk->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (talk->fd < 0)
        return error_set_errno(error, errno, "cannot open a socket");
    /* A full backlog makes connect wait, a full buffer send; this bounds them. */
    struct timeval limit = {.tv_sec = TALK_ANSWER_MS / 1000,
                            .tv_usec = TALK_ANSWER_MS % 1000 * 1000L};
    if (setsockopt(talk->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)))
        return error_set_errno(error, errno, "cannot set up a socket");
    if (connect(talk->fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return 0;
    if (errno == EAGAIN)
        return error_set(error, ERR_TIMEOUT, "the daemon at %s does not answer", talk->path);
    return error_set_errno(error, errno, "no daemon at %s", talk->path);
}

void conversation_close(struct conversation *talk)
{
    if (talk->fd >= 0)
        close(talk->fd);
    free(talk->bytes);
}

int line_send(struct conversation *talk, const char *line, struct error *error)
{
    size_t length = strlen(line);
    while (length) {
        ssize_t sent = send(talk->fd, line, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            return error_set(error, ERR_TIMEOUT, "the daemon at %s does not answer", talk->path);
        if (sent < 0 && errno == EPIPE)
            return 0; /* it has ended the connection, and may have said why: that is read next */
        if (sent < 0 && errno != EINTR)
            return error_set_errno(error, errno, "cannot write to the daemon at %s", talk->path);
        if (sent > 0) {
            line += sent;
            length -= (size_t)sent;
        }
    }
    return 0;
}

int bytes_receive(struct conversation *talk, uint64_t deadline_ns, struct error *error)
{
    int wait_ms = -1;
    if (deadline_ns) {
        uint64_t now = clock_now_ns();
        if (now >= deadline_ns)
            return error_set(error, ERR_TIMEOUT, "the daemon at %s does not answer", talk->path);
        wait_ms = (int)((deadline_ns - now) / NS_PER_MS) + 1;
    }
    struct pollfd polled[2] = {{.fd = talk->fd, .events = POLLIN},
                               {.fd = talk->interrupt_fd, .events = POLLIN}};
    if (poll(polled, 2, wait_ms) <= 0)
        return 0;
    if (polled[1].revents)
        return error_set(error, ERR_AGAIN, "interrupted");
    if (talk->room - talk->used < 4096) {
        size_t room = talk->room * 2 + 65536;
        char *bytes = room <= LINE_BYTES_MAX ? realloc(talk->bytes, room) : NULL;
        if (!bytes)
            return error_set(error, ERR_MEMORY, "the answer of the daemon is too long");
        talk->bytes = bytes;
        talk->room = room;
    }
    ssize_t got = recv(talk->fd, talk->bytes + talk->used, talk->room - talk->used, 0);
    if (got < 0 && errno != EINTR)
        return error_set_errno(error, errno, "cannot read from the daemon at %s", talk->path);
    if (got == 0)
        return error_set(error, ERR_DISCONNECTED, "the daemon at %s closed the connection",
                         talk->path);
    talk->used += got > 0 ? (size_t)got : 0;
    return 0;
}

int object_receive(struct conversation *talk, const char *type, uint32_t timeout_ms,
                   json_t **object, struct error *error)
{
    uint64_t deadline = clock_now_ns() + timeout_ms * NS_PER_MS;
    char *end;
    while (!(end = talk->used ? memchr(talk->bytes, '\n', talk->used) : NULL)) {
        int result = bytes_receive(talk, deadline, error);
        if (result)
            return result;
    }
    size_t length = (size_t)(end - talk->bytes) + 1;
    json_error_t where;
    json_t *read = json_loadb(talk->bytes, length, 0, &where);
    memmove(talk->bytes, talk->bytes + length, talk->used - length);
    talk->used -= length;
    const char *got = json_string_value(json_object_get(read, "type"));
    int result = 0;
    if (got && strcmp(got, "error") == 0) {
        const char *text = json_string_value(json_object_get(read, "text"));
        char shown[512];
        shown_copy(shown, sizeof(shown), text ? text : "no reason given");
        result = error_set(error, ERR_REFUSED, "the daemon at %s says: %s", talk->path, shown);
    } else if (!got || strcmp(got, type) != 0) {
        result = error_set(error, ERR_PROTOCOL, "%s is no shoald: its answer is no \"%s\"",
                           talk->path, type);
    }
    if (result)
        json_decref(read);
    else
        *object = read;
    return result;
}

int hello_exchange(struct conversation *talk, struct error *error)
{
    char line[256];
    snprintf(line, sizeof(line),
             "{\"type\":\"hello\",\"protocol\":%u,\"software\":\"shoalctl " SHOAL_VERSION
             "\",\"pid\":%d}\n",
             MESSAGE_PROTOCOL, (int)getpid());
    int result = line_send(talk, line, error);
    json_t *hello = NULL;
    if (result == 0)
        result = object_receive(talk, "hello", TALK_ANSWER_MS, &hello, error);
    if (result)
        return result;
    json_int_t protocol = json_integer_value(json_object_get(hello, "protocol"));
    json_decref(hello);
    if (protocol != MESSAGE_PROTOCOL)
        return error_set(error, ERR_PROTOCOL,
                         "the daemon at %s speaks protocol %d, this shoalctl %u", talk->path,
                         (int)protocol, MESSAGE_PROTOCOL);
    return 0;
}
