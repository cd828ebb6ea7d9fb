#include "server/exchange/ground/session.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* A cable that is moved breaks some connections before anything came through. */
#define BARREN_MOST 8
/* Without payload, beyond what the open groups may have under way with one. */
#define EMPTY_MOST 4096u

static struct exchange_session *session_of(struct exchange *exchange, uint32_t node)
{
    return &exchange->peers[node].session;
}

/* --- beginning and end ------------------------------------------------------------------------ */

void session_begin(struct exchange *exchange, uint32_t node)
{
    struct exchange_session *session = session_of(exchange, node);
    assert(!session->on && !session->first && !session->waiting);
    *session = (struct exchange_session){.on = true, .promised = session->promised};
    session->last = &session->first;
    session->waiting_end = &session->waiting;
}

static void session_drop_copy(struct exchange_session *session, struct session_message *message)
{
    if (!message->buffer)
        return;
    buffer_release(message->buffer);
    message->buffer = NULL;
    session->copies--;
}

static void session_drop_first(struct exchange *exchange, struct exchange_session *session)
{
    struct session_message *message = session->first;
    session->first = message->next;
    if (!session->first)
        session->last = &session->first;
    session_drop_copy(session, message);
    session->kept--;
    slab_put(&exchange->kept, message);
}

void session_end(struct exchange *exchange, uint32_t node)
{
    struct exchange_session *session = session_of(exchange, node);
    while (session->first)
        session_drop_first(exchange, session);
    session->on = session->suspended = false;
}

void session_suspend(struct exchange *exchange, uint32_t node)
{
    struct exchange_session *session = session_of(exchange, node);
    uint64_t number = session->first ? session->first->number : 0;
    if (session->ready) { /* the fabric had made the connection */
        bool barren = number != 0 && number == session->barren_number;
        session->barren = barren ? session->barren + 1 : 0;
        session->barren_number = number;
    }
    session->suspended = session->on;
    session->ready = session->heard = session->greeted = false;
    session->stalled_ns = 0;
}

bool session_may_go_on(const struct exchange *exchange, uint32_t node)
{
    const struct exchange_session *session = &exchange->peers[node].session;
    return session->on && session->barren < BARREN_MOST;
}

bool session_goes_on(struct exchange *exchange, uint32_t node)
{
    struct exchange_session *session = session_of(exchange, node);
    if (!session->suspended || !session->ready || !session->heard)
        return false;
    session->suspended = false;
    return true;
}

/* --- what goes out ---------------------------------------------------------------------------- */

/* Windows keep what is unacknowledged within the promise. A message beyond it (an answer that no
 * window counts) waits; where nothing is promised any more, one at a time goes all the same. */
static bool session_has_room(const struct exchange_session *session, uint32_t payload_bytes)
{
    if (session->kept >= session->promised + EMPTY_MOST)
        return false;
    return payload_bytes == 0 || session->copies == 0 || session->copies < session->promised;
}

/* Keep only the number of the message: its content does not go again. */
static void session_keep_number(struct session_message *message)
{
    struct wire_header empty = {.type = WIRE_ALIVE};
    message->group = NULL;
    message->payload_bytes = 0;
    wire_encode_header(message->header, &empty);
}

bool session_keep(struct exchange *exchange, struct exchange_send *send)
{
    struct exchange_session *session = session_of(exchange, send->node);
    bool whole = send->group->job->recovery;
    uint32_t kept_bytes = whole ? send->payload_bytes : 0;
    if (!session_has_room(session, kept_bytes))
        return false;
    struct session_message *message = slab_get(&exchange->kept);
    struct buffer *buffer = message && kept_bytes > 0 ? buffer_get(exchange->options.pool) : NULL;
    if (!message || (kept_bytes > 0 && !buffer)) {
        if (message)
            slab_put(&exchange->kept, message);
        return false;
    }
    *message = (struct session_message){.group = whole ? send->group : NULL,
                                        .number = ++session->sent,
                                        .buffer = buffer,
                                        .payload_bytes = kept_bytes};
    if (buffer) {
        buffer->peer = NO_INDEX;
        memcpy(buffer->data + WIRE_HEADER_BYTES, send->payload, send->payload_bytes);
        session->copies++;
    }
    wire_write_session(send->header, exchange->peers[send->node].send_token, message->number,
                       session_tell(exchange, send->node));
    memcpy(message->header, send->header, WIRE_HEADER_BYTES);
    if (!whole)
        session_keep_number(message);
    *session->last = message;
    session->last = &message->next;
    session->kept++;
    return true;
}

uint64_t session_tell(struct exchange *exchange, uint32_t node)
{
    struct exchange_session *session = session_of(exchange, node);
    session->untold = 0;
    return session->received;
}

bool session_stalls(struct exchange *exchange, uint32_t node, uint64_t passed_ns)
{
    struct exchange_session *session = session_of(exchange, node);
    uint64_t number = session->first ? session->first->number : 0;
    bool stalls = session->waiting && number != 0 && number == session->stalled_number;
    session->stalled_ns = stalls ? session->stalled_ns + passed_ns : 0;
    session->stalled_number = number;
    return session->stalled_ns >= exchange->options.silence_ns;
}

void session_forget_group(const struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    for (uint32_t node = 0; node < exchange->options.node_count; node++) {
        struct exchange_session *session = session_of(exchange, node);
        for (struct session_message *message = session->first; message; message = message->next) {
            if (message->group != group)
                continue;
            session_drop_copy(session, message);
            session_keep_number(message);
        }
    }
}

/* --- what comes ------------------------------------------------------------------------------- */

int session_take(struct exchange *exchange, uint32_t node, const struct wire_header *header,
                 struct error *error)
{
    struct exchange_session *session = session_of(exchange, node);
    if (!session->on)
        return 0;
    if (header->received > session->sent)
        return error_set(error, ERR_PROTOCOL,
                         "message %" PRIu64 " has come, it says, of %" PRIu64 " that were sent",
                         header->received, session->sent);
    session->heard = true;
    while (session->first && session->first->number <= header->received)
        session_drop_first(exchange, session);
    if (header->number == 0)
        return 0;
    if (header->number <= session->received)
        return 1;
    if (header->number != session->received + 1)
        return error_set(error, ERR_PROTOCOL, "message %" PRIu64 " came after message %" PRIu64,
                         header->number, session->received);
    session->received++;
    session->untold++;
    return 0;
}

/* --- for tests -------------------------------------------------------------------------------- */

void session_check_invariants(const struct exchange *exchange, uint32_t node)
{
    const struct exchange_session *session = &exchange->peers[node].session;
    uint32_t copies = 0, kept = 0;
    uint64_t number = 0;
    for (const struct session_message *it = session->first; it; it = it->next) {
        assert(it->number == (number ? number + 1 : it->number));
        number = it->number;
        copies += it->buffer != NULL;
        kept++;
    }
    assert(copies == session->copies && kept == session->kept);
    assert(session->on || (!session->first && !session->suspended));
    assert(!session->first || number == session->sent);
}
