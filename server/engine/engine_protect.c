/* Sealed messages between the exchange and the fabric (common/auth/seal.h): the keys of a
 * connection, and messages that are being sealed or opened, large ones by the reduce threads.
 * engine_io.c asks for what is ready, and posts or delivers it in the order of the sequences. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
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
/* A datagram may take long beside others; one that has not come for so many silences never will. */
#define PROTECT_MISSING_SILENCES 10

struct engine_link {
    uint32_t references; /* the peer's, and one of each message */
    bool over;           /* the connection has ended */
    uint32_t sends;      /* being sealed, or sealed and not sent */
    uint64_t next;       /* sequence of the next message to the peer */
    struct seal_window window;
    uint8_t seal_key[SEAL_KEY_BYTES], open_key[SEAL_KEY_BYTES];
    uint32_t threads;
    /* [threads], then as many to open with; made by the thread that uses it, but those of thread 0,
     * which does what others had no memory for */
    struct seal **seals;
    const char *stuck; /* "sealed": what the next message could not be, since the last tick */
    int stuck_code;    /* why */
    uint64_t stuck_ns; /* the first tick at which one was; 0: none was at the last */
    uint64_t missing;  /* the oldest sequence that had not come at the last tick, from a peer of */
    uint64_t missing_ns; /* whom later ones had, and the first such tick; 0: none was missing */
};

/* A message that is being sealed or opened, or has been and waits for its turn; sealed ones stay
 * until the fabric has sent them. */
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
    bool aside; /* the buffer is one of those that were set aside */
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
    if (result == 0)
        result = seal_create(&link->seals[link->threads], link->open_key, error);
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

/* A failure that is over when there is memory again: the message is as it was. */
static bool message_may_be_tried_again(const struct protect_message *message)
{
    return message->result == ERR_MEMORY || (message->send && message->result != 0);
}

/* Return whether the work on the oldest is done. If a thread had no memory for it, this thread does
 * the work, since it has its ciphers; later messages wait, for the order of the sequences. */
static bool message_is_ready(struct protect_message *message)
{
    if (!message || !message->done)
        return false;
    if (message_may_be_tried_again(message))
        message_run(&message->task, 0);
    if (!message_may_be_tried_again(message))
        return true;
    message->link->stuck = message->send ? "sealed" : "opened";
    message->link->stuck_code = message->result;
    return false;
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

/* Give back the message of a connection that is over. */
static void message_abandon(struct engine *engine, struct protect_message *message)
{
    struct exchange_send *send = message->send;
    struct buffer *buffer = message->buffer;
    if (send) {
        engine_protect_free(engine, send, false);
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

/* Take a buffer that was set aside, or a fresh one. False: no memory. */
static bool message_get_buffer(struct engine *engine, struct protect_message *message)
{
    message->aside = engine->aside != NULL;
    message->buffer = message->aside ? engine->aside : buffer_get(engine->pool);
    if (message->aside)
        engine->aside = message->buffer->next;
    return message->buffer != NULL;
}

int engine_protect_seal(struct engine *engine, struct exchange_send *send)
{
    struct engine_link *link = engine->peers[send->node].link;
    if (link->sends >= PROTECT_SENDS_MOST)
        return ERR_AGAIN;
    struct protect_message *message = message_create(engine, send->node);
    if (!message || !message_get_buffer(engine, message)) {
        if (message)
            message_free(engine, message);
        return link->sends > 0 ? ERR_AGAIN : ERR_MEMORY;
    }
    assert(WIRE_HEADER_BYTES + send->payload_bytes + SEAL_TRAILER_BYTES <=
           message->buffer->capacity);
    message->send = send;
    message->bytes = WIRE_HEADER_BYTES + send->payload_bytes + SEAL_TRAILER_BYTES;
    message->sequence = link->next++;
    link->sends++;
    send->user = message;
    queue_append(&engine->peers[send->node].sealing, message);
    message_start(engine, message);
    return 0;
}

struct exchange_send *engine_protect_sealed(struct engine *engine, uint32_t node)
{
    struct protect_message *message = engine->peers[node].sealing.first;
    return message_is_ready(message) ? message->send : NULL;
}

void engine_protect_posted(struct engine *engine, struct exchange_send *send)
{
    struct protect_queue *queue = &engine->peers[send->node].sealing;
    assert(queue->first == send->user);
    queue_pop(queue);
}

void engine_protect_unposted(struct engine *engine, uint32_t node, int code)
{
    engine->peers[node].link->stuck = "posted";
    engine->peers[node].link->stuck_code = code;
}

const struct buffer *engine_protect_bytes(const struct exchange_send *send, uint32_t *bytes)
{
    const struct protect_message *message = send->user;
    if (!message)
        return NULL;
    *bytes = message->bytes;
    return message->buffer;
}

void engine_protect_free(struct engine *engine, struct exchange_send *send, bool read)
{
    struct protect_message *message = send->user;
    if (!message)
        return;
    send->user = NULL;
    message->link->sends--;
    if (read && !message->aside) {
        message->aside = true;
        engine->aside_bytes += message->buffer->capacity;
    }
    if (message->aside) {
        message->buffer->next = engine->aside;
        engine->aside = message->buffer;
    } else {
        buffer_release(message->buffer);
    }
    message_free(engine, message);
}

void engine_protect_release(struct engine *engine)
{
    while (engine->aside) {
        struct buffer *buffer = engine->aside;
        engine->aside = buffer->next;
        buffer_release(buffer);
    }
    engine->aside_bytes = 0;
}

/* --- in --------------------------------------------------------------------------------------- */

/* Anybody may have written a datagram, so its sequence is taken when it has been opened, and not
 * before. On an ordered connection the sequence is taken at once. */
int engine_protect_open(struct engine *engine, uint32_t node, struct buffer *buffer, uint32_t bytes,
                        enum seal_refusal *refusal)
{
    struct engine_peer *peer = &engine->peers[node];
    *refusal = SEAL_SHORT;
    if (bytes < WIRE_HEADER_BYTES + SEAL_TRAILER_BYTES || bytes > buffer->capacity)
        return ERR_PROTOCOL;
    struct seal_window *window = &peer->link->window;
    uint64_t sequence = seal_sequence(buffer->data, bytes);
    *refusal =
        window->ordered ? seal_window_take(window, sequence) : seal_window_check(window, sequence);
    if (*refusal != SEAL_TAKEN && (window->ordered || *refusal == SEAL_REPEATED))
        return ERR_PROTOCOL;
    struct protect_message *message = message_create(engine, node);
    if (!message)
        return ERR_MEMORY;
    message->buffer = buffer;
    message->bytes = bytes;
    message->sequence = sequence;
    queue_append(&peer->opening, message);
    bits_set(engine->moving, node);
    message_start(engine, message);
    return 0;
}

struct buffer *engine_protect_opened(struct engine *engine, uint32_t node, uint32_t *bytes,
                                     int *code, enum seal_refusal *refusal)
{
    struct protect_queue *queue = &engine->peers[node].opening;
    struct protect_message *message = queue->first;
    if (!message_is_ready(message))
        return NULL;
    struct seal_window *window = &message->link->window;
    struct buffer *buffer = message->buffer;
    *bytes = message->bytes;
    *code = message->result;
    *refusal = SEAL_ALTERED;
    if (*code == 0 && !window->ordered) {
        *refusal = seal_window_take(window, message->sequence);
        *code = *refusal == SEAL_TAKEN ? 0 : ERR_PROTOCOL;
    }
    queue_pop(queue);
    message_free(engine, message);
    return buffer;
}

bool engine_protect_is_stranger(const struct engine *engine, uint32_t node,
                                enum seal_refusal refusal)
{
    return !engine->peers[node].link->window.ordered && refusal != SEAL_DISORDERED;
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

/* --- what does not go on ---------------------------------------------------------------------- */

void engine_protect_retry(struct engine *engine, uint32_t node)
{
    engine->peers[node].link->stuck = NULL;
}

static bool link_is_stuck(struct engine_link *link, uint64_t now_ns, uint64_t limit_ns)
{
    if (!link->stuck)
        link->stuck_ns = 0;
    else if (link->stuck_ns == 0)
        link->stuck_ns = now_ns;
    return link->stuck && now_ns - link->stuck_ns >= limit_ns;
}

static bool link_misses_one(struct engine_link *link, uint64_t now_ns, uint64_t limit_ns)
{
    const struct seal_window *window = &link->window;
    if (window->oldest == window->next) {
        link->missing_ns = 0;
        return false;
    }
    if (link->missing_ns == 0 || link->missing != window->oldest)
        link->missing_ns = now_ns;
    link->missing = window->oldest;
    return now_ns - link->missing_ns >= limit_ns;
}

bool engine_protect_check(struct engine *engine, uint32_t node, uint64_t now_ns,
                          uint64_t silence_ns, char *text, size_t room)
{
    struct engine_link *link = engine->peers[node].link;
    uint64_t stuck_ns = silence_ns / 2, missing_ns = silence_ns * PROTECT_MISSING_SILENCES;
    if (!link)
        return false;
    if (link_is_stuck(link, now_ns, stuck_ns)) {
        snprintf(text, room, "a message could not be %s here for %" PRIu64 " ms (%s)", link->stuck,
                 (uint64_t)(stuck_ns / NS_PER_MS), error_name(link->stuck_code));
        return true;
    }
    if (link_misses_one(link, now_ns, missing_ns)) {
        snprintf(text, room,
                 "a sealed message has not come for %" PRIu64
                 " ms, and later ones have: it was lost or altered on its way",
                 (uint64_t)(missing_ns / NS_PER_MS));
        return true;
    }
    return false;
}
