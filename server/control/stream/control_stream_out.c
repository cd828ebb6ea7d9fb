/* The sending half of a stream: output that waits for the socket, and descriptors that go with its
 * bytes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

#define WRITE_BYTES ((size_t)128 << 10) /* before others have their turn */

static void stream_out_drop(struct control_stream *stream, struct control_descriptor *descriptor)
{
    /* Takes each of a list of several for its only one.
     * NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
    DL_DELETE(stream->out, descriptor);
    stream->out_count--;
    close(descriptor->fd);
    free(descriptor);
}

void control_stream_drop_output(struct control_stream *stream)
{
    while (stream->out)
        stream_out_drop(stream, stream->out);
    if (stream->output)
        evbuffer_free(stream->output);
    stream->output = NULL;
}

int control_stream_error(struct error *error, int cause)
{
    bool ended = cause == ECONNRESET || cause == EPIPE;
    return error_set(error, ended ? ERR_DISCONNECTED : ERR_SYSTEM, "%s", strerror(cause));
}

/* Bytes sent, or -1 and errno. A descriptor goes with its byte, which is the first of a call. */
static ssize_t stream_out_some(struct control_stream *stream, struct evbuffer_iovec *output)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary = {0};
    struct control_descriptor *first = stream->out;
    bool due = first && first->at == stream->written;
    struct control_descriptor *later = due ? first->next : first;
    struct iovec part = {output->iov_base, output->iov_len};
    if (later && part.iov_len > later->at - stream->written)
        part.iov_len = (size_t)(later->at - stream->written);
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (due) {
        header.msg_control = ancillary.bytes;
        header.msg_controllen = sizeof(ancillary.bytes);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &first->fd, sizeof(int));
    }
    ssize_t count = sendmsg(stream->fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0 && due) {
        stream_out_drop(stream, first);
        stream->sent_count++;
    }
    if (count > 0)
        stream->written += (size_t)count;
    return count;
}

ssize_t control_stream_write(struct control_stream *stream, struct error *error)
{
    struct evbuffer_iovec part;
    size_t written = 0;
    while (written < WRITE_BYTES && evbuffer_peek(stream->output, -1, NULL, &part, 1) > 0) {
        if (part.iov_len > WRITE_BYTES)
            part.iov_len = WRITE_BYTES;
        ssize_t count = stream_out_some(stream, &part);
        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (count < 0)
            return control_stream_error(error, errno);
        evbuffer_drain(stream->output, (size_t)count);
        control_account_output(stream, evbuffer_get_length(stream->output));
        written += (size_t)count;
    }
    return (ssize_t)written;
}

/* The owner is in the middle of something: the end is told from the loop. */
static void stream_out_fail(struct control_stream *stream)
{
    stream->overflow = true;
    event_active(stream->read_event, EV_READ, 1);
}

void control_stream_send(struct control_stream *stream, const char *bytes, size_t length)
{
    if (stream->dead || stream->overflow)
        return;
    size_t waiting = evbuffer_get_length(stream->output);
    if (stream->wire)
        waiting += control_wire_waiting(stream->wire);
    int result = 0;
    if (waiting + length > CONTROL_OUTPUT_MAX_BYTES + stream->answer_bytes ||
        !control_account_output(stream, waiting + length))
        result = ERR_MEMORY;
    else if (stream->wire)
        result = control_wire_send(stream->wire, bytes, length, stream->output, NULL);
    else
        result = evbuffer_add(stream->output, bytes, length);
    if (result < 0)
        stream_out_fail(stream);
    else
        event_add(stream->write_event, NULL);
}

void control_stream_protect(struct control_stream *stream, struct control_wire *wire)
{
    stream->wire = wire;
    if (control_wire_start(wire, stream->output, NULL) < 0)
        stream_out_fail(stream);
    else if (evbuffer_get_length(stream->output) > 0)
        event_add(stream->write_event, NULL);
}

void control_stream_answer(struct control_stream *stream, const char *bytes, size_t length)
{
    stream->answered = true;
    stream->answer_bytes = length;
    control_stream_send(stream, bytes, length);
}

static char *stream_out_encode(const struct control_stream *stream, const struct message *message,
                               size_t *length)
{
    char *line = message_encode(message, length);
    if (!line)
        log_error(stream->control->log, "no memory: a message %s is lost",
                  message_type_name(message->type));
    return line;
}

void control_stream_send_message(struct control_stream *stream, const struct message *message)
{
    size_t length;
    char *line = stream_out_encode(stream, message, &length);
    if (line)
        control_stream_send(stream, line, length);
    free(line);
}

void control_stream_send_descriptor(struct control_stream *stream, const struct message *message,
                                    int descriptor)
{
    if (stream->dead || stream->overflow)
        return;
    size_t length;
    char *line = stream_out_encode(stream, message, &length);
    struct control_descriptor *out = calloc(1, sizeof(*out));
    int copy = -1;
    if (line && out && control_account_has_room(stream))
        copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        struct control *control = stream->control;
        log_throttled(control->log, log_throttle_of(&control->user_lines, stream->uid),
                      clock_now_ns(), LOG_LEVEL_WARNING,
                      "user %u cannot be sent a descriptor with a message %s (%u wait here)",
                      stream->uid, message_type_name(message->type), stream->out_count);
        free(out);
        free(line);
        stream_out_fail(stream);
        return;
    }
    *out = (struct control_descriptor){.fd = copy,
                                       .at = stream->written + evbuffer_get_length(stream->output)};
    DL_APPEND(stream->out, out);
    stream->out_count++;
    control_stream_send(stream, line, length);
    free(line);
}
