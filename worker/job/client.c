#include "worker/job/client.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "worker/job/daemon_log.h"

#define FIRST_INPUT_BYTES 4096u
#define DESCRIPTORS_MAX 8u

static int went_away(const struct client *client, struct error *error)
{
    char log[DAEMON_LOG_BYTES];
    return error_set(error, ERR_DISCONNECTED, "the daemon of this node (socket %s) went away%s",
                     client->path, daemon_log_end(client->path, log));
}

static int not_there(const char *path, int errno_value, struct error *error)
{
    char log[DAEMON_LOG_BYTES];
    return error_set(error, ERR_DISCONNECTED, "no daemon answers at socket %s: %s%s", path,
                     strerror(errno_value), daemon_log_end(path, log));
}

/* Field by field: a fork of another thread closes in the child what it finds here (forking.h), and
 * finds no number at any moment that is not the client's. */
static void client_begin(struct client *client, int fd)
{
    client->fd = -1;
    client->descriptor_count = 0;
    client->path[0] = '\0';
    client->input = NULL;
    client->input_bytes = client->input_capacity = client->searched_bytes = 0;
    client->cut_off = false;
    client->fd = fd;
}

int client_connect(struct client *client, const char *path, uint64_t deadline_ns,
                   struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof(address.sun_path))
        return error_set(error, ERR_INVALID,
                         "the socket's path has %zu bytes, must have 1 to %zu: \"%s\"", length,
                         sizeof(address.sun_path) - 1, path);
    memcpy(address.sun_path, path, length + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_set_errno(error, errno, "cannot make a socket");
    client_begin(client, fd);
    /* A full backlog makes connect wait; this bounds it. */
    uint64_t now_ns = clock_now_ns();
    uint64_t remaining_ns = deadline_ns > now_ns ? deadline_ns - now_ns : NS_PER_MS;
    struct timeval remaining = {.tv_sec = (time_t)(remaining_ns / NS_PER_S),
                                .tv_usec = (suseconds_t)(remaining_ns % NS_PER_S / 1000)};
    int code = 0;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &remaining, sizeof(remaining)) < 0)
        code = error_set_errno(error, errno, "cannot set the socket's timeout");
    else if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        code = errno == EAGAIN
                   ? error_set(error, ERR_TIMEOUT, "the daemon at socket %s does not answer", path)
                   : not_there(path, errno, error);
    else if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        code = error_set_errno(error, errno, "cannot set up the socket");
    if (code < 0) {
        client_close(client);
        return code;
    }
    memcpy(client->path, path, length + 1);
    return 0;
}

/* Forgotten first: once it is closed, the number may be another thread's, and a fork would close
 * that in the child. A child that was forked in between has a copy: it is not to keep the
 * connection up. */
static void client_hang_up(struct client *client)
{
    int fd = client->fd;
    client->fd = -1;
    if (fd < 0)
        return;
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

void client_close(struct client *client)
{
    int fd;
    client_hang_up(client);
    while ((fd = client_take_descriptor(client)) >= 0)
        close(fd);
    free(client->input);
    client->input = NULL;
    client->input_bytes = client->input_capacity = client->searched_bytes = 0;
}

static int wait_for(const struct client *client, short events, uint64_t deadline_ns,
                    struct error *error)
{
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            return error_set(error, ERR_TIMEOUT, "the daemon (socket %s) does not answer",
                             client->path);
        uint64_t remaining_ns = deadline_ns - now_ns;
        struct timespec remaining = {.tv_sec = (time_t)(remaining_ns / NS_PER_S),
                                     .tv_nsec = (long)(remaining_ns % NS_PER_S)};
        struct pollfd poller = {.fd = client->fd, .events = events};
        int ready = ppoll(&poller, 1, &remaining, NULL);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return error_set_errno(error, errno, "cannot wait for the daemon");
    }
}

static ssize_t send_part(const struct client *client, const char *data, size_t bytes,
                         const int *fds, unsigned fd_count)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))] = {0};
    if (fd_count > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, fd_count * sizeof(int));
    }
    return sendmsg(client->fd, &header, MSG_NOSIGNAL);
}

int client_send(struct client *client, const struct message *message, const int *fds,
                unsigned fd_count, uint64_t deadline_ns, struct error *error)
{
    assert(fd_count <= DESCRIPTORS_MAX);
    if (client->cut_off)
        return went_away(client, error);
    size_t length;
    char *line = message_encode(message, &length);
    if (!line)
        return error_set(error, ERR_MEMORY, "out of memory for a message to the daemon");
    int code = 0;
    size_t sent = 0;
    while (sent < length && code == 0) {
        ssize_t part = send_part(client, line + sent, length - sent, fds, fd_count);
        if (part > 0) {
            sent += (size_t)part;
            fd_count = 0; /* they went with the first byte */
        } else if (part < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            code = wait_for(client, POLLOUT, deadline_ns, error);
        } else if (part < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            code = went_away(client, error);
        } else if (part < 0 && errno != EINTR) {
            code = error_set_errno(error, errno, "cannot write to the daemon (socket %s)",
                                   client->path);
        }
    }
    free(line);
    if (code < 0 && sent > 0 && sent < length) {
        client->cut_off = true;
        shutdown(client->fd, SHUT_RDWR);
    }
    return code;
}

/* Decode the first whole line of the input. 1, 0 or an error. */
static int take_line(struct client *client, struct message *message, struct error *error)
{
    char *from = client->input + client->searched_bytes;
    char *end = client->input_bytes > client->searched_bytes
                    ? memchr(from, '\n', client->input_bytes - client->searched_bytes)
                    : NULL;
    if (!end) {
        client->searched_bytes = client->input_bytes;
        if (client->input_bytes >= MESSAGE_LINE_BYTES)
            return error_set(error, ERR_PROTOCOL,
                             "the daemon (socket %s) sent a line of more than %zu bytes",
                             client->path, MESSAGE_LINE_BYTES);
        return 0;
    }
    *end = '\0';
    size_t length = (size_t)(end - client->input);
    int code = message_decode(message, MESSAGE_TO_WORKER, client->input, length, error);
    if (code < 0) {
        error_prefix(error, "the daemon (socket %s) sent what makes no sense", client->path);
        return code;
    }
    client->input_bytes -= length + 1;
    client->searched_bytes = 0;
    memmove(client->input, end + 1, client->input_bytes);
    return 1;
}

static int reserve_input(struct client *client, struct error *error)
{
    if (client->input_bytes < client->input_capacity)
        return 0;
    size_t capacity = client->input_capacity ? 2 * client->input_capacity : FIRST_INPUT_BYTES;
    char *input = realloc(client->input, capacity);
    if (!input)
        return error_set(error, ERR_MEMORY, "out of memory for a message of the daemon");
    client->input = input;
    client->input_capacity = capacity;
    return 0;
}

int client_take_descriptor(struct client *client)
{
    if (client->descriptor_count == 0)
        return -1;
    int fd = client->descriptors[0];
    client->descriptor_count--;
    memmove(client->descriptors, client->descriptors + 1,
            client->descriptor_count * sizeof(client->descriptors[0]));
    return fd;
}

static void keep_descriptors(struct client *client, struct msghdr *header)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
            if (client->descriptor_count < CLIENT_DESCRIPTORS_MAX)
                client->descriptors[client->descriptor_count++] = fd;
            else
                close(fd); /* more than were asked for */
        }
    }
}

static ssize_t receive_part(struct client *client)
{
    struct iovec part = {.iov_base = client->input + client->input_bytes,
                         .iov_len = client->input_capacity - client->input_bytes};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof(control)};
    ssize_t got = recvmsg(client->fd, &header, MSG_CMSG_CLOEXEC);
    if (got > 0)
        keep_descriptors(client, &header);
    return got;
}

int client_receive(struct client *client, struct message *message, struct error *error)
{
    for (;;) {
        int code = client->input ? take_line(client, message, error) : 0;
        if (code != 0)
            return code;
        code = reserve_input(client, error);
        if (code < 0)
            return code;
        ssize_t got = receive_part(client);
        if (got > 0)
            client->input_bytes += (size_t)got;
        else if (got == 0 || errno == ECONNRESET)
            return went_away(client, error);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        else if (errno != EINTR)
            return error_set_errno(error, errno, "cannot read from the daemon (socket %s)",
                                   client->path);
    }
}

int client_wait(struct client *client, struct message *message, uint64_t deadline_ns,
                struct error *error)
{
    for (;;) {
        int code = client_receive(client, message, error);
        if (code != 0)
            return code < 0 ? code : 0;
        code = wait_for(client, POLLIN, deadline_ns, error);
        if (code < 0)
            return code;
    }
}
