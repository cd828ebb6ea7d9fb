/* Sealed messages between the exchange and the fabric (common/auth/seal.h): the keys of a
 * connection, and messages that are being sealed or opened, large ones by the reduce threads.
 * engine_io.c asks for what is ready, and posts or delivers it in the order of the sequences. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/engine/engine_private.h"

/* Messages to a peer that are being sealed, or are sealed and not sent. Each has a buffer, on top
 * of what groups are promised (config_table.c says so). */
#define PROTECT_SENDS_MOST 8
/* Up to here the engine's thread does it at once: about the cost of waking another. And so much in
 * a round: where the network is the limit few messages come at a time, and another thread would be
 * woken for each. */
#define PROTECT_INLINE_BYTES 16384
#define PROTECT_ROUND_BYTES (128u << 10)

struct engine_link {
    uint32_t references; /* the peer's, and one of each message */
    bool over;           /* the connection has ended */
    uint32_t sends;      /* being sealed, or sealed and not sent */
    uint64_t next;       /* sequence of the next message to the peer */
    struct seal_window window;
    uint8_t seal_key[SEAL_KEY_BYTES], open_key[SEAL_KEY_BYTES];
    uint32_t threads;
    struct seal **seals; /* [threads], then as many to open with; made by the thread that uses it */
};

/* One that is being sealed or opened, or has been and waits for its turn; sealed ones stay until
 * the fabric has sent them. */
struct protect_message {
    struct reduce_task task; /* first: the reducer knows it by this */
    struct protect_message *next;
    struct engine_link *link;
    struct exchange_send *send; /* NULL: it came from the peer */
    struct buffer *buffer;      /* the sealed message */
    uint32_t bytes;             /* of it */
    uint32_t node;
    uint64_t sequence;
    bool done;
    int result;
};

/* --- keys ------------------------------------------------------------------------------------- */

static void link_release(struct engine_link *link)
{
    if (--link->references > 0)
        return;
    for (uint32_t i = 0; link->seals && i < 2 * link->threads; i++)
        seal_destroy(link->seals[i]);
    free(link->seals);
    explicit_bzero(link, sizeof(*link));
    free(link);
}

/* The thread's own; NULL: no memory for it. */
static struct seal *link_seal(struct engine_link *link, uint32_t thread, bool opens)
{
    struct seal **seal = &link->seals[thread + (opens ? link->threads : 0)];
    if (!*seal && seal_create(seal, opens ? link->open_key : link->seal_key, NULL) != 0)
        *seal = NULL;
    return *seal;
}

int engine_protect_begin(struct engine *engine, const struct engine_peer_connect *peer,
                         bool ordered, struct error *error)
{
    if (peer->sealed != (engine->seal_bytes > 0))
        return error_set(error, ERR_STATE, "messages are sealed %s",
                         peer->sealed ? "there, and not here" : "here, and not there");
    if (!peer->sealed)
        return 0;
    struct engine_link *link = calloc(1, sizeof(*link));
    if (!link)
        return error_set(error, ERR_MEMORY, "no memory for the keys of a connection");
    link->references = 1;
    link->window.ordered = ordered;
    link->threads = engine->config->reduce_threads + 1;
    memcpy(link->seal_key, peer->seal_key, sizeof(link->seal_key));
    memcpy(link->open_key, peer->open_key, sizeof(link->open_key));
    link->seals = calloc(2 * (size_t)link->threads, sizeof(struct seal *));
    int result = link->seals ? seal_create(&link->seals[0], link->seal_key, error)
                             : error_set(error, ERR_MEMORY, "no memory for a cipher");
    if (result != 0) {
        link_release(link);
        return result;
    }
    engine->peers[peer->node].link = link;
    engine->links++;
    return 0;
}

/* --- messages --------------------------------------------------------------------------------- */

void engine_protect_init(struct engine *engine)
{
    slab_init(&engine->protect_messages, sizeof(struct protect_message));
}

void engine_protect_clear(struct engine *engine)
{
    slab_clear(&engine->protect_messages);
}

static struct protect_message *message_create(struct engine *engine, uint32_t node)
{
    struct protect_message *message = slab_get(&engine->protect_messages);
    if (!message)
        return NULL;
    message->node = node;
    message->link = engine->peers[node].link;
    message->link->references++;
    return message;
}

static void message_free(struct engine *engine, struct protect_message *message)
{
    link_release(message->link);
    slab_put(&engine->protect_messages, message);
}

static void queue_append(struct protect_queue *queue, struct protect_message *message)
{
    if (queue->first)
        queue->last->next = message;
    else
        queue->first = message;
    queue->last = message;
}

static void queue_pop(struct protect_queue *queue)
{
    queue->first = queue->first->next;
}

/* The header goes along in the clear. */
static void message_seal(struct protect_message *message, struct seal *seal)
{
    const struct exchange_send *send = message->send;
    uint8_t *bytes = message->buffer->data;
    memcpy(bytes, send->header, WIRE_HEADER_BYTES);
    message->result = seal_message(seal, message->sequence, bytes, WIRE_HEADER_BYTES, send->payload,
                                   send->payload_bytes);
}

static void message_run(struct reduce_task *task, uint32_t thread)
{
    struct protect_message *message = (struct protect_message *)task;
    struct seal *seal = link_seal(message->link, thread, message->send == NULL);
    if (!seal)
        message->result = ERR_MEMORY;
    else if (message->send)
        message_seal(message, seal);
    else
        message->result = seal_open(seal, message->buffer->data, WIRE_HEADER_BYTES, message->bytes);
}

void engine_protect_round(struct engine *engine)
{
    engine->protect_bytes = PROTECT_ROUND_BYTES;
}

static void message_start(struct engine *engine, struct protect_message *message)
{
    bool fits = message->bytes <= engine->protect_bytes;
    message->task.run = message_run;
    if (message->bytes <= PROTECT_INLINE_BYTES || fits) {
        engine->protect_bytes -= fits ? message->bytes : 0;
        message_run(&message->task, 0);
        message->done = true;
        return;
    }
    message->task.reduction =
        (struct reduction){.dtype = DTYPE_U8, .count = message->bytes, .inputs = 1, .outputs = 1};
    reducer_submit(engine->reducer, &message->task);
}

/* Of a connection that is over. */
static void message_abandon(struct engine *engine, struct protect_message *message)
{
    struct exchange_send *send = message->send;
    struct buffer *buffer = message->buffer;
    if (send) {
        engine_protect_free(engine, send);
        send->next = engine->lost;
        engine->lost = send;
        return;
    }
    message_free(engine, message);
    engine->receives_posted--;
    exchange_receive_returned(engine->exchange, buffer->peer, buffer);
}

static void queue_abandon(struct engine *engine, struct protect_queue *queue)
{
    struct protect_message *message = queue->first;
    queue->first = NULL;
    while (message) {
        struct protect_message *next = message->next;
        if (message->done)
            message_abandon(engine, message);
        message = next;
    }
}

void engine_protect_end(struct engine *engine, uint32_t node)
{
    struct engine_peer *peer = &engine->peers[node];
    struct engine_link *link = peer->link;
    if (!link)
        return;
    link->over = true;
    peer->link = NULL;
    engine->links--;
    queue_abandon(engine, &peer->sealing);
    queue_abandon(engine, &peer->opening);
    link_release(link);
}

void engine_protect_over(struct engine *engine, struct reduce_task *task)
{
    struct protect_message *message = (struct protect_message *)task;
    message->done = true;
    if (message->link->over)
        message_abandon(engine, message);
    else
        engine->protect_done = true;
}

/* --- out -------------------------------------------------------------------------------------- */

int engine_protect_seal(struct engine *engine, struct exchange_send *send)
{
    struct engine_link *link = engine->peers[send->node].link;
    if (link->sends >= PROTECT_SENDS_MOST)
        return ERR_AGAIN;
    struct buffer *buffer = buffer_get(engine->pool);
    struct protect_message *message = buffer ? message_create(engine, send->node) : NULL;
    if (!message) {
        buffer_release(buffer);
        return ERR_MEMORY;
    }
    assert(WIRE_HEADER_BYTES + send->payload_bytes + SEAL_TRAILER_BYTES <= buffer->capacity);
    message->send = send;
    message->buffer = buffer;
    message->bytes = WIRE_HEADER_BYTES + send->payload_bytes + SEAL_TRAILER_BYTES;
    message->sequence = link->next++;
    link->sends++;
    send->user = message;
    queue_append(&engine->peers[send->node].sealing, message);
    message_start(engine, message);
    return 0;
}

struct exchange_send *engine_protect_sealed(struct engine *engine, uint32_t node, int *code)
{
    const struct protect_message *message = engine->peers[node].sealing.first;
    if (!message || !message->done)
        return NULL;
    *code = message->result;
    return message->send;
}

void engine_protect_posted(struct engine *engine, struct exchange_send *send)
{
    struct protect_queue *queue = &engine->peers[send->node].sealing;
    assert(queue->first == send->user);
    queue_pop(queue);
}

const struct buffer *engine_protect_bytes(const struct exchange_send *send, uint32_t *bytes)
{
    const struct protect_message *message = send->user;
    if (!message)
        return NULL;
    *bytes = message->bytes;
    return message->buffer;
}

void engine_protect_free(struct engine *engine, struct exchange_send *send)
{
    struct protect_message *message = send->user;
    if (!message)
        return;
    send->user = NULL;
    message->link->sends--;
    buffer_release(message->buffer);
    message_free(engine, message);
}

/* --- in --------------------------------------------------------------------------------------- */

int engine_protect_open(struct engine *engine, uint32_t node, struct buffer *buffer, uint32_t bytes,
                        enum seal_refusal *refusal)
{
    struct engine_peer *peer = &engine->peers[node];
    *refusal = SEAL_SHORT;
    if (bytes < WIRE_HEADER_BYTES + SEAL_TRAILER_BYTES || bytes > buffer->capacity)
        return ERR_PROTOCOL;
    *refusal = seal_window_take(&peer->link->window, seal_sequence(buffer->data, bytes));
    if (*refusal != SEAL_TAKEN)
        return ERR_PROTOCOL;
    struct protect_message *message = message_create(engine, node);
    if (!message)
        return ERR_MEMORY;
    message->buffer = buffer;
    message->bytes = bytes;
    queue_append(&peer->opening, message);
    message_start(engine, message);
    return 0;
}

struct buffer *engine_protect_opened(struct engine *engine, uint32_t node, uint32_t *bytes,
                                     int *code)
{
    struct protect_queue *queue = &engine->peers[node].opening;
    struct protect_message *message = queue->first;
    if (!message || !message->done)
        return NULL;
    struct buffer *buffer = message->buffer;
    *bytes = message->bytes;
    *code = message->result;
    queue_pop(queue);
    message_free(engine, message);
    return buffer;
}

uint32_t engine_protect_sender(const struct engine *engine, const struct buffer *buffer,
                               uint32_t bytes)
{
    uint64_t token = 0;
    if (bytes < WIRE_HEADER_BYTES || bytes > buffer->capacity)
        return TRANSPORT_NO_PEER;
    for (int i = 0; i < 8; i++)
        token |= (uint64_t)buffer->data[8 + i] << (8 * i);
    for (uint32_t node = 0; node < engine->node_count; node++) {
        if (engine->peers[node].link && engine->peers[node].receive_token == token)
            return node;
    }
    return TRANSPORT_NO_PEER;
}
