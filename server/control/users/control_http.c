/* Some documents over HTTP, for whoever reaches the port. libevent's own server has no limit of
 * connections, and each byte restarts its clock; here a connection has a deadline for all that it
 * does, where there are too many whoever has most gives way, and a document is made for many
 * clients at once. A request is answered with HTTP/1.0: one for each connection. */
#include <assert.h>
#include <errno.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/text/http_request.h"
#include "server/control/ground/control_internal.h"

#define CONNECTIONS_MAX 16u
#define DEADLINE_S 5
#define ACCEPTED_AT_ONCE 4
#define DOCUMENT_NS (100 * NS_PER_MS) /* a document is given out for so long */
/* Each connection has a copy of what it reads. */
#define DOCUMENT_MAX_BYTES ((size_t)8 << 20)
/* Only the one who asked may read a document: no page of somebody else's, no cache. */
#define HEADERS                                                                                    \
    "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nX-Frame-Options: DENY\r\n"      \
    "Cross-Origin-Resource-Policy: same-origin\r\n"

#define OTHER_NAME                                                                                 \
    "This daemon does not have the name that it was asked under. Ask by its address, or by a "     \
    "name "                                                                                        \
    "of the roster.\n"

struct http_connection {
    struct control_http *http;
    uint64_t owner; /* who asks */
    struct bufferevent *stream;
    struct event *timer; /* for all of it */
    bool answered;
    bool ended; /* the other side sends no more, and may still read */
    struct http_connection *next, *prev;
};

/* A document that was made a moment ago. */
struct http_copy {
    char *text;
    size_t length;
    uint64_t made_ns;
};

struct control_http {
    struct control_http_options options;
    int fd;
    struct event *listener;
    struct http_connection *connections; /* the oldest first */
    struct quota places;                 /* of the connections, by who asks */
    struct http_copy copies[CONTROL_HTTP_DOCUMENTS];
};

static void http_connection_free(struct http_connection *connection)
{
    struct control_http *http = connection->http;
    /* Takes one of several for the only one. */
    DL_DELETE(http->connections, connection); /* NOLINT(clang-analyzer-core.NullDereference) */
    quota_give_back(&http->places, connection->owner, 1);
    if (connection->timer)
        event_free(connection->timer);
    bufferevent_free(connection->stream);
    free(connection);
}

static void http_on_deadline(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    http_connection_free(argument);
}

/* NULL: there is none. */
static const struct control_http_document *http_find(const struct control_http *http,
                                                     const char *path)
{
    for (size_t i = 0; i < http->options.count; i++) {
        if (strcmp(http->options.documents[i].path, path) == 0)
            return &http->options.documents[i];
    }
    return NULL;
}

/* A client that says no name is no browser, which always does. */
static bool http_is_own_name(const struct control_http *http, const char *name)
{
    return name[0] == '\0' || http_host_is_local(name) ||
           http->options.is_own_name(http->options.control, name);
}

/* Younger than DOCUMENT_NS. NULL: there is none. */
static const char *http_text(struct control_http *http,
                             const struct control_http_document *document, size_t *length)
{
    struct http_copy *copy = &http->copies[document - http->options.documents];
    uint64_t now_ns = clock_now_ns();
    *length = document->length;
    if (document->text)
        return document->text;
    if (!copy->text || now_ns - copy->made_ns >= DOCUMENT_NS) {
        free(copy->text);
        copy->length = 0;
        copy->text = document->make(http->options.control, &copy->length);
        copy->made_ns = now_ns;
    }
    *length = copy->length;
    return copy->length <= DOCUMENT_MAX_BYTES ? copy->text : NULL;
}

/* `document`: where status is HTTP_STATUS_OK. */
static void http_answer(struct http_connection *connection, int status,
                        const struct control_http_document *document, bool with_body)
{
    struct evbuffer *output = bufferevent_get_output(connection->stream);
    size_t length = 0;
    const char *text =
        status == HTTP_STATUS_OK ? http_text(connection->http, document, &length) : NULL;
    const char *type = text ? document->content_type : "text/plain";
    if (status == HTTP_STATUS_OK && !text)
        status = HTTP_STATUS_UNAVAILABLE;
    if (status == HTTP_STATUS_MISDIRECTED) {
        text = OTHER_NAME;
        length = sizeof(OTHER_NAME) - 1;
    }
    connection->answered = true;
    evbuffer_add_printf(output, "HTTP/1.0 %d %s\r\nConnection: close\r\nContent-Length: %zu\r\n",
                        status, http_status_text(status), text ? length : 0);
    evbuffer_add(output, HEADERS, sizeof(HEADERS) - 1);
    if (status == HTTP_STATUS_NOT_ALLOWED)
        evbuffer_add_printf(output, "Allow: GET, HEAD\r\n");
    if (text)
        evbuffer_add_printf(output, "Content-Type: %s\r\n%s", type,
                            status == HTTP_STATUS_OK && document->headers ? document->headers : "");
    evbuffer_add(output, "\r\n", 2);
    if (text && with_body)
        evbuffer_add(output, text, length);
}

static void http_on_read(struct bufferevent *stream, void *argument)
{
    struct http_connection *connection = argument;
    struct evbuffer *input = bufferevent_get_input(stream);
    struct http_request request = {.head = false};
    if (connection->answered) { /* what comes behind a request, until the other side closes */
        evbuffer_drain(input, evbuffer_get_length(input));
        return;
    }
    const char *bytes = (const char *)evbuffer_pullup(input, -1);
    int status = http_request_parse(&request, bytes ? bytes : "", evbuffer_get_length(input));
    if (status == 0)
        return;
    const struct control_http_document *document =
        status == HTTP_STATUS_OK ? http_find(connection->http, request.path) : NULL;
    if (status == HTTP_STATUS_OK && !document)
        status = HTTP_STATUS_NOT_FOUND;
    if (document && document->own_names && !http_is_own_name(connection->http, request.host))
        status = HTTP_STATUS_MISDIRECTED;
    http_answer(connection, status, document, !request.head);
    evbuffer_drain(input, evbuffer_get_length(input));
}

/* All is written. Closing at once could lose it, if anything has come that was not read. */
static void http_on_written(struct bufferevent *stream, void *argument)
{
    struct http_connection *connection = argument;
    if (connection->ended)
        http_connection_free(connection);
    else if (connection->answered)
        shutdown(bufferevent_getfd(stream), SHUT_WR);
}

static void http_on_end(struct bufferevent *stream, short what, void *argument)
{
    struct http_connection *connection = argument;
    bool waits = connection->answered && evbuffer_get_length(bufferevent_get_output(stream)) > 0;
    if (!(what & BEV_EVENT_EOF) || !waits) {
        http_connection_free(connection);
        return;
    }
    connection->ended = true;
    bufferevent_disable(stream, EV_READ);
}

/* Close one connection by chance. False: the chosen one is the one that comes. */
static bool http_drop_any(struct control_http *http)
{
    uint64_t nth;
    auth_random(&nth, sizeof(nth));
    nth %= http->places.used + 1;
    struct http_connection *connection = http->connections;
    while (connection && nth-- > 0)
        connection = connection->next;
    if (connection)
        http_connection_free(connection);
    return connection;
}

/* The oldest of who has most gives way. Where nobody has more than one, and the owner none, chance
 * decides: so who holds a place, or comes often, has no advantage over who needs one for a moment
 * and is far away. False: there is none for the owner. */
static bool http_make_room(struct control_http *http, uint64_t owner)
{
    if (!quota_is_short(&http->places, 1))
        return true;
    uint64_t giver = quota_giver(&http->places, owner, 1);
    struct http_connection *oldest = http->connections;
    while (oldest && oldest->owner != giver)
        oldest = oldest->next;
    if (!oldest)
        return http_drop_any(http);
    http_connection_free(oldest);
    return true;
}

static void http_take(struct control_http *http, int fd, uint64_t owner)
{
    static const struct timeval limit = {DEADLINE_S, 0};
    struct event_base *base = http->options.base;
    bool room = http_make_room(http, owner) && quota_take(&http->places, owner, 1) == 0;
    struct http_connection *connection = room ? calloc(1, sizeof(*connection)) : NULL;
    struct bufferevent *stream =
        connection ? bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!stream) {
        quota_give_back(&http->places, owner, room);
        free(connection);
        close(fd);
        return;
    }
    connection->http = http;
    connection->owner = owner;
    connection->stream = stream;
    /* Here and in control_http_free: takes the first of a list of several for its only one.
     * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    DL_APPEND(http->connections, connection);
    connection->timer = evtimer_new(base, http_on_deadline, connection);
    bufferevent_setcb(stream, http_on_read, http_on_written, http_on_end, connection);
    /* More than a request is not read in. */
    bufferevent_setwatermark(stream, EV_READ, 0, HTTP_REQUEST_BYTES);
    if (!connection->timer || evtimer_add(connection->timer, &limit) < 0 ||
        bufferevent_enable(stream, EV_READ | EV_WRITE) < 0)
        http_connection_free(connection);
}

static void http_on_accept(evutil_socket_t listening, short what, void *argument)
{
    (void)what;
    struct control_http *http = argument;
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        struct sockaddr_storage from = {0};
        socklen_t length = sizeof(from);
        int fd =
            accept4(listening, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0 && control_descriptor_is_kept(http->options.control, fd)) {
            close(fd);
            continue;
        }
        if (fd >= 0) {
            http_take(http, fd, control_visitor(fd, (const struct sockaddr *)&from));
            continue;
        }
        /* The loop would try again at once and for ever. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            event_del(http->listener);
        return;
    }
}

bool control_http_is_idle(const struct control_http *http)
{
    return !http->connections;
}

void control_http_accept_again(struct control_http *http)
{
    if (http)
        event_add(http->listener, NULL);
}

int control_http_create(struct control_http **created, const struct control_http_options *options,
                        const char *address, uint16_t port, struct error *error)
{
    assert(options->count <= CONTROL_HTTP_DOCUMENTS);
    struct control_http *http = calloc(1, sizeof(*http));
    if (!http)
        return error_set(error, ERR_MEMORY, "no memory");
    http->options = *options;
    http->places.limit = CONNECTIONS_MAX;
    http->fd = -1;
    int result = control_listen_address(address, port, &http->fd, error);
    if (result == 0) {
        http->listener =
            event_new(options->base, http->fd, EV_READ | EV_PERSIST, http_on_accept, http);
        if (!http->listener || event_add(http->listener, NULL) < 0)
            result = error_set(error, ERR_MEMORY, "no memory");
    }
    if (result < 0) {
        control_http_free(http);
        return result;
    }
    *created = http;
    return 0;
}

void control_http_free(struct control_http *http)
{
    if (!http)
        return;
    while (http->connections)
        http_connection_free(http->connections); /* NOLINT(clang-analyzer-unix.Malloc) */
    quota_clear(&http->places);
    if (http->listener)
        event_free(http->listener);
    if (http->fd >= 0)
        close(http->fd);
    for (size_t i = 0; i < http->options.count; i++)
        free(http->copies[i].text);
    free(http);
}
