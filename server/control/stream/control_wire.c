/* The layer between a peer's lines and its socket: TLS, or nothing. */
#include <stdlib.h>
#include <string.h>

#include "server/control/ground/control_internal.h"

struct control_wire {
    struct tls *tls;           /* NULL: in the clear */
    bool seen;                 /* the first byte of the other side has come */
    struct evbuffer *unsealed; /* lines that wait for the handshake */
};

struct control_wire *control_wire_create(const struct credentials *credentials, enum auth_role role)
{
    struct control_wire *wire = calloc(1, sizeof(*wire));
    if (!wire || !credentials->encrypt)
        return wire;
    wire->tls = tls_create(credentials, role);
    wire->unsealed = evbuffer_new();
    if (wire->tls && wire->unsealed)
        return wire;
    control_wire_free(wire);
    return NULL;
}

void control_wire_free(struct control_wire *wire)
{
    if (!wire)
        return;
    tls_free(wire->tls);
    if (wire->unsealed)
        evbuffer_free(wire->unsealed);
    free(wire);
}

struct tls *control_wire_tls(const struct control_wire *wire)
{
    return wire->tls;
}

size_t control_wire_waiting(const struct control_wire *wire)
{
    return wire->unsealed ? evbuffer_get_length(wire->unsealed) : 0;
}

/* TLS's bytes into the socket's. */
static int wire_put_out(struct control_wire *wire, struct evbuffer *output, struct error *error)
{
    const void *bytes;
    size_t count = tls_output(wire->tls, &bytes);
    int result = count > 0 ? evbuffer_add(output, bytes, count) : 0;
    tls_output_taken(wire->tls);
    return result < 0 ? error_set(error, ERR_MEMORY, "no memory for a message") : 0;
}

/* The lines that have waited. */
static int wire_seal(struct control_wire *wire, struct error *error)
{
    struct evbuffer_iovec part;
    int result = 0;
    while (result == 0 && tls_is_open(wire->tls) &&
           evbuffer_peek(wire->unsealed, -1, NULL, &part, 1) > 0) {
        result = tls_write(wire->tls, part.iov_base, part.iov_len, error);
        evbuffer_drain(wire->unsealed, part.iov_len);
    }
    return result;
}

int control_wire_start(struct control_wire *wire, struct evbuffer *output, struct error *error)
{
    return wire->tls ? wire_put_out(wire, output, error) : 0;
}

/* The two modes do not mix. Whichever is wrong here is told so in the way that it understands. */
static int wire_check_first(struct control_wire *wire, uint8_t first, struct evbuffer *output,
                            struct error *error)
{
    static const char alert[] = {0x15, 3, 3, 0, 2, 2, 70}; /* fatal: protocol_version */
    static const char line[] = "{}\n";
    bool record = first >= TLS_RECORD_FIRST && first <= TLS_RECORD_LAST;
    wire->seen = true;
    if (record == (wire->tls != NULL))
        return 0;
    if (wire->tls)
        tls_output_taken(wire->tls); /* it would not understand it */
    evbuffer_add(output, record ? line : alert, record ? sizeof(line) - 1 : sizeof(alert));
    if (record)
        return error_set(error, ERR_REFUSED, "it speaks TLS, and protect is \"none\" here");
    return error_set(error, ERR_REFUSED, "it %s, and protect is \"encrypt\" here",
                     first == '{' ? "speaks in the clear" : "does not speak TLS");
}

/* Put what TLS has opened into the lines. */
static int wire_open(struct control_wire *wire, struct line_reader *lines, struct error *error)
{
    char bytes[16384];
    for (;;) {
        int count = tls_read(wire->tls, bytes, sizeof(bytes), error);
        if (count <= 0)
            return count;
        int result = line_reader_feed(lines, bytes, (size_t)count, error);
        if (result < 0)
            return result;
    }
}

int control_wire_receive(struct control_wire *wire, const char *bytes, size_t count,
                         struct line_reader *lines, struct evbuffer *output, struct error *error)
{
    if (!wire->seen) {
        int result = wire_check_first(wire, (uint8_t)bytes[0], output, error);
        if (result < 0)
            return result;
    }
    if (!wire->tls)
        return line_reader_feed(lines, bytes, count, error);
    int result = tls_receive(wire->tls, bytes, count, error);
    if (result == 0)
        result = wire_seal(wire, error);
    if (result == 0)
        result = wire_open(wire, lines, error);
    /* This sends the line, too, that tells the other side why the connection ends. */
    int put = wire_put_out(wire, output, result < 0 ? NULL : error);
    return result < 0 ? result : put;
}

int control_wire_send(struct control_wire *wire, const char *bytes, size_t length,
                      struct evbuffer *output, struct error *error)
{
    if (!wire->tls)
        return evbuffer_add(output, bytes, length) < 0
                   ? error_set(error, ERR_MEMORY, "no memory for a message")
                   : 0;
    if (!tls_is_open(wire->tls))
        return evbuffer_add(wire->unsealed, bytes, length) < 0
                   ? error_set(error, ERR_MEMORY, "no memory for a message")
                   : 0;
    int result = tls_write(wire->tls, bytes, length, error);
    return result < 0 ? result : wire_put_out(wire, output, error);
}
