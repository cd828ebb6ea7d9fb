#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

#define READ_BYTES 65536
#define READ_FEW_BYTES 4096 /* of those who have only short lines */

static const struct timeval at_once = {0, 0};

static void stream_destroy(struct control_stream *stream)
{
    control_wire_free(stream->wire);
    line_reader_clear(&stream->lines);
    control_share_leave(stream->control, stream->share);
    free(stream);
}

/* --- reading */

/* Bytes are received unless something else has to happen first. */
static void stream_listen(struct control_stream *stream)
{
    if (!stream->finishing && (stream->held || stream->turn_waits || stream->list_waits))
        event_del(stream->read_event);
    else
        event_add(stream->read_event, NULL);
}

/* --- lines with lists: a user's are few at a time, so that halves of them are not much memory */

/* There is room for the list that has begun. */
static void stream_admit_list(struct control_stream *stream)
{
    static const struct timeval limit = {CONTROL_LIST_S, 0};
    stream->list_comes = true;
    stream->share->lists++;
    if (stream->share != &stream->control->trusted)
        evtimer_add(stream->list_event, &limit);
    line_reader_allow(&stream->lines, stream->list_bytes);
}

static void stream_end_list(struct control_stream *stream)
{
    struct control_share *share = stream->share;
    if (stream->list_waits)
        DL_DELETE2(share->list_waiters, stream, list_prev, list_next);
    stream->list_waits = false;
    if (!stream->list_comes)
        return;
    stream->list_comes = false;
    share->lists--;
    event_del(stream->list_event);
    struct control_stream *first = share->list_waiters;
    if (!first)
        return;
    DL_DELETE2(share->list_waiters, first, list_prev, list_next);
    first->list_waits = false;
    stream_admit_list(first); /* so that it passes the room on, however it ends */
    stream_listen(first);
    evtimer_add(first->turn_event, &at_once);
}

/* A line is longer than short ones are. Whether it may be; it may have to wait. */
static bool stream_begin_list(struct control_stream *stream)
{
    struct control_share *share = stream->share;
    const char *head;
    size_t bytes = line_reader_head(&stream->lines, &head);
    enum message_conversation conversation =
        stream->with_descriptors ? MESSAGE_TO_DAEMON : MESSAGE_BETWEEN_DAEMONS;
    if (stream->list_waits) /* it had something else to do, its output for one */
        return true;
    if (stream->list_comes || stream->list_bytes == 0 ||
        !message_begins_list(conversation, head, bytes))
        return false;
    if (share->lists >= share->limit_lists) {
        stream->list_waits = true;
        DL_APPEND2(share->list_waiters, stream, list_prev, list_next);
        stream_listen(stream);
    } else {
        stream_admit_list(stream);
    }
    return true;
}

void control_stream_allow_lists(struct control_stream *stream, size_t bytes)
{
    stream->list_bytes = bytes;
}

/* --- the end */

/* All but the memory, which a callback of the stream, if one runs, still looks at. */
static void stream_close(struct control_stream *stream)
{
    stream->dead = true;
    DL_DELETE(stream->control->streams, stream);
    control_turn_forget(stream);
    stream_end_list(stream);
    if (stream->list_event)
        event_free(stream->list_event);
    if (stream->read_event)
        event_free(stream->read_event);
    if (stream->write_event)
        event_free(stream->write_event);
    if (stream->turn_event)
        event_free(stream->turn_event);
    control_stream_drop_output(stream);
    control_close_foreign(stream->control, stream->uid, stream->descriptors,
                          (size_t)stream->descriptor_count);
    control_account_clear(stream);
    if (stream->with_descriptors)
        control_close_connection(stream->control, stream->uid, stream->fd);
    else
        close(stream->fd);
}

void control_stream_free(struct control_stream *stream)
{
    if (stream->dead)
        return;
    stream_close(stream);
    if (!stream->running)
        stream_destroy(stream);
}

/* In a callback of the stream; stream_leave frees it. */
static void stream_end(struct control_stream *stream, const struct error *error)
{
    if (stream->finishing)
        stream_close(stream);
    else
        stream->handlers.end(stream->context, error->code, error->text);
}

/* ERR_PROTOCOL: there are more than a join has, or than the user may have waiting for theirs.
 * ERR_MEMORY: the daemon cannot have them. */
static int stream_take_descriptors(struct control_stream *stream, struct msghdr *header,
                                   struct error *error)
{
    int others[CONTROL_DESCRIPTORS_SENT];
    size_t other_count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
            if (stream->descriptor_count < CONTROL_DESCRIPTORS) {
                stream->descriptors[stream->descriptor_count++] = fd;
            } else if (other_count < CONTROL_DESCRIPTORS_SENT) {
                others[other_count++] = fd;
            }
        }
    }
    control_close_foreign(stream->control, stream->uid, others, other_count);
    /* There was room for all that the kernel can bring. */
    if (header->msg_flags & MSG_CTRUNC)
        return error_set(error, ERR_MEMORY,
                         "the daemon has no descriptors left for those that came");
    if (other_count > 0)
        return error_set(error, ERR_PROTOCOL, "too many descriptors");
    if (!control_account_descriptors(stream))
        return error_set(error, ERR_PROTOCOL,
                         "too many descriptors of its user wait for the ends of their lines");
    return 0;
}

/* However many connections a user ends, what they have brought and what is still being closed is
 * no more than so much and two messages. */
static bool stream_may_bring(const struct control_stream *stream)
{
    struct control *control = stream->control;
    if (!stream->with_descriptors || !control_account_is_full(control, stream->uid))
        return true;
    control_closer_sweep(control); /* some may be closed since */
    return !control_account_is_full(control, stream->uid);
}

/* Bytes read, 0 for "not now", or negative. */
static ssize_t stream_receive(struct control_stream *stream, char *bytes, struct error *error)
{
    union {
        struct cmsghdr align;
        /* Descriptors that have no room here would be closed by the kernel, in this thread. */
        char bytes[CMSG_SPACE(sizeof(int) * CONTROL_DESCRIPTORS_SENT)];
    } ancillary;
    bool much = stream->list_comes || stream->share == &stream->control->trusted;
    struct iovec part = {bytes, much ? READ_BYTES : READ_FEW_BYTES};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (stream->with_descriptors) {
        header.msg_control = ancillary.bytes;
        header.msg_controllen = sizeof(ancillary.bytes);
    }
    if (!stream_may_bring(stream))
        return error_set(error, ERR_MEMORY,
                         "too many descriptors that user %u has sent are still being closed",
                         stream->uid);
    ssize_t count = recvmsg(stream->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count > 0 && stream->with_descriptors) {
        int result = stream_take_descriptors(stream, &header, error);
        return result < 0 ? result : count;
    }
    if (count > 0)
        return count;
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (count < 0)
        return control_stream_error(error, errno);
    return error_set(error, ERR_DISCONNECTED, "connection closed");
}

/* 1: a line; 0: none yet, or it has to wait; negative. */
static int stream_next_line(struct control_stream *stream, char **line, size_t *length,
                            struct error *error)
{
    int result = line_reader_next(&stream->lines, line, length, error);
    if (result < 0 && stream_begin_list(stream))
        result = stream->list_waits ? 0 : line_reader_next(&stream->lines, line, length, error);
    if (result > 0)
        stream_end_list(stream);
    return result;
}

/* Some of the lines that are there. The others wait for the next round of the loop, in which other
 * connections have their turn; meanwhile no more bytes are received. */
static void stream_give_lines(struct control_stream *stream, uint64_t began_ns)
{
    struct error error = {0};
    int result = 1;
    stream->unread = true;
    for (uint32_t i = 0; i < CONTROL_TURN_LINES && result > 0; i++) {
        char *line;
        size_t length;
        if (stream->dead || stream->finishing || stream->held || stream->overflow)
            return;
        if (i > 0 && clock_now_ns() - began_ns >= control_turn_limit_ns(stream->control))
            break;
        result = stream_next_line(stream, &line, &length, &error);
        if (result > 0)
            stream->handlers.line(stream->context, line, length);
    }
    if (stream->dead || stream->finishing) /* whose turn_event is its end */
        return;
    control_account_descriptors(stream); /* some may have been taken */
    stream->unread = result > 0 || stream->list_waits;
    if (result < 0)
        stream_end(stream, &error);
    else if (result > 0 && !stream->held)
        evtimer_add(stream->turn_event, &at_once);
    else if (!stream->unread)
        line_reader_trim(&stream->lines);
}

static void stream_leave(struct control_stream *stream, struct control *control)
{
    stream->running = false;
    if (stream->dead)
        stream_destroy(stream);
    control_update_later(control);
}

static int stream_take_bytes(struct control_stream *stream, const char *bytes, size_t count,
                             struct error *error)
{
    if (!stream->wire)
        return line_reader_feed(&stream->lines, bytes, count, error);
    int result =
        control_wire_receive(stream->wire, bytes, count, &stream->lines, stream->output, error);
    if (evbuffer_get_length(stream->output) > 0)
        event_add(stream->write_event, NULL);
    return result;
}

/* How many bytes have come; of one that is finishing they are dropped. */
static size_t stream_read(struct control_stream *stream, uint64_t now_ns)
{
    char bytes[READ_BYTES];
    struct error error = {0};
    ssize_t count = stream_receive(stream, bytes, &error);
    if (count > 0)
        stream->received_ns = now_ns;
    if (count > 0 && !stream->finishing &&
        stream_take_bytes(stream, bytes, (size_t)count, &error) < 0)
        count = -1;
    if (count < 0 && stream->finishing && error.code == ERR_MEMORY)
        event_del(stream->read_event); /* its last words go out unhindered */
    else if (count < 0)
        stream_end(stream, &error);
    return count > 0 ? (size_t)count : 0;
}

/* Do what the stream has to do, if there is something left of its share of the turn. */
static void stream_work(struct control_stream *stream)
{
    struct control *control = stream->control;
    if (control_share_is_spent(control, stream->share)) {
        control_turn_wait(stream);
        stream_listen(stream);
        return;
    }
    uint64_t began_ns = clock_now_ns();
    size_t bytes = stream->unread ? 0 : stream_read(stream, began_ns);
    if (!stream->dead && (stream->unread || bytes > 0))
        stream_give_lines(stream, began_ns);
    control_share_spend(control, stream->share, clock_now_ns() - began_ns, bytes);
}

static void stream_on_read(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_stream *stream = argument;
    struct control *control = stream->control;
    stream->running = true;
    if (stream->overflow) {
        struct error error;
        error_set(&error, ERR_PROTOCOL, "it does not read what it is sent");
        stream_end(stream, &error);
    } else if (stream->finishing) {
        stream_read(stream, 0);
    } else if (!stream->unread && !stream->turn_waits) {
        stream_work(stream);
    }
    stream_leave(stream, control);
}

/* All that there was has been written. */
static void stream_let_go(struct control_stream *stream)
{
    if (!stream->answered)
        return;
    stream->held = stream->answered = false;
    stream->answer_bytes = 0;
    stream_listen(stream);
    evtimer_add(stream->turn_event, &at_once);
}

/* To daemons at once, whatever they have had of the turn: it may be a heartbeat. */
static bool stream_may_write(const struct control_stream *stream)
{
    const struct control *control = stream->control;
    return stream->finishing || stream->share == &control->trusted ||
           (!stream->turn_waits && !control_share_is_spent(control, stream->share));
}

static void stream_write(struct control_stream *stream)
{
    struct control *control = stream->control;
    struct error error = {0};
    uint64_t began_ns = clock_now_ns();
    ssize_t count = control_stream_write(stream, &error);
    if (count < 0)
        stream_end(stream, &error);
    else if (evbuffer_get_length(stream->output) > 0)
        event_add(stream->write_event, NULL);
    else if (stream->finishing)
        stream_close(stream);
    else
        stream_let_go(stream);
    control_share_spend(control, stream->share, clock_now_ns() - began_ns,
                        count > 0 ? (size_t)count : 0);
}

static void stream_on_turn(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_stream *stream = argument;
    struct control *control = stream->control;
    stream->running = true;
    if (stream->finishing) {
        stream_close(stream); /* whoever does not take the last words is not waited for */
    } else if (!stream->turn_waits) {
        stream_listen(stream);
        if (evbuffer_get_length(stream->output) > 0 && stream_may_write(stream))
            stream_write(stream);
        if (!stream->dead)
            stream_work(stream);
    }
    stream_leave(stream, control);
}

static void stream_on_late_list(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_stream *stream = argument;
    struct control *control = stream->control;
    struct error error;
    error_set(&error, ERR_PROTOCOL, "a line of it has not ended in %d s", CONTROL_LIST_S);
    stream->running = true;
    stream_end(stream, &error);
    stream_leave(stream, control);
}

uint64_t control_stream_heard_ns(const struct control_stream *stream, uint64_t now_ns)
{
    int bytes = 0;
    bool waits = stream->unread || stream->turn_waits ||
                 (ioctl(stream->fd, FIONREAD, &bytes) == 0 && bytes > 0);
    return waits ? now_ns : stream->received_ns;
}

static void stream_on_write(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_stream *stream = argument;
    struct control *control = stream->control;
    stream->running = true;
    if (stream_may_write(stream)) {
        stream_write(stream);
    } else if (!stream->turn_waits) {
        control_turn_wait(stream);
        stream_listen(stream);
    }
    stream_leave(stream, control);
}

struct control_stream *control_stream_create(struct control *control, int fd, bool with_descriptors,
                                             uint32_t uid,
                                             const struct control_stream_handlers *handlers,
                                             void *context)
{
    struct control_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        if (with_descriptors)
            control_close_connection(control, uid, fd);
        else
            close(fd);
        return NULL;
    }
    stream->control = control;
    stream->fd = fd;
    stream->with_descriptors = with_descriptors;
    stream->uid = uid;
    stream->handlers = *handlers;
    stream->context = context;
    line_reader_init(&stream->lines, MESSAGE_FIRST_LINE_BYTES);
    DL_APPEND(control->streams, stream);
    stream->share = with_descriptors ? control_share_of_user(control, uid) : &control->strangers;
    if (stream->share == &control->strangers)
        stream->share->streams++;
    stream->output = evbuffer_new();
    stream->read_event = event_new(control->base, fd, EV_READ | EV_PERSIST, stream_on_read, stream);
    stream->write_event = event_new(control->base, fd, EV_WRITE, stream_on_write, stream);
    stream->turn_event = evtimer_new(control->base, stream_on_turn, stream);
    stream->list_event = evtimer_new(control->base, stream_on_late_list, stream);
    if (!stream->share || !stream->list_event || !stream->output || !stream->read_event ||
        !stream->write_event || !stream->turn_event || event_add(stream->read_event, NULL) < 0) {
        control_stream_free(stream);
        return NULL;
    }
    return stream;
}

static void stream_urge(struct event *event, short what)
{
    /* An event that is pending keeps its urgency. */
    bool pending = event_pending(event, what, NULL);
    event_del(event);
    event_priority_set(event, CONTROL_HIGH);
    if (pending)
        event_add(event, NULL);
}

void control_stream_trust(struct control_stream *stream)
{
    control_share_leave(stream->control, stream->share);
    stream->share = &stream->control->trusted;
    stream->share->streams++;
    stream->lines.line_bytes = MESSAGE_SHORT_LINE_BYTES;
    stream->list_bytes = MESSAGE_LINE_BYTES;
    stream_urge(stream->read_event, EV_READ);
    stream_urge(stream->write_event, EV_WRITE);
    event_priority_set(stream->turn_event, CONTROL_HIGH);
}

void control_stream_hold(struct control_stream *stream)
{
    stream->held = true;
    stream_listen(stream); /* no: what comes meanwhile is not to wake the loop */
}

void control_stream_finish(struct control_stream *stream)
{
    if (stream->dead || stream->finishing)
        return;
    stream->finishing = true;
    if (stream->overflow) {
        control_stream_free(stream);
        return;
    }
    control_turn_forget(stream);
    stream_end_list(stream);
    /* Bytes that still come are read and dropped, for no longer than this. */
    struct timeval limit = {CONTROL_FLUSH_S, 0};
    evtimer_add(stream->turn_event, &limit);
    event_add(stream->read_event, NULL);
    event_add(stream->write_event, NULL);
}
