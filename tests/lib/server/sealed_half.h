/* An engine whose messages are sealed, on the fabric in memory, without threads, so that the order
 * of events is the test's. The engine is node 0; the test is node 1, and has its keys. */
#ifndef TESTS_LIB_SERVER_SEALED_HALF_H
#define TESTS_LIB_SERVER_SEALED_HALF_H

#include <check.h>

#include "common/transport/transport_memory.h"
#include "server/engine/engine.h"
#include "server/engine/engine_private.h"

#define HALF_JOB 7ull /* of both nodes; the engine's is the only server */
#define HALF_CHUNK_BYTES 262144u
#define HALF_LARGE_BYTES 200000u /* more than the engine's thread seals or opens itself */
#define HALF_MESSAGE_BYTES (WIRE_HEADER_BYTES + HALF_CHUNK_BYTES + SEAL_TRAILER_BYTES)
#define HALF_MESSAGES 16

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

struct sealed_half {
    struct engine engine;
    struct config config;
    struct config_server servers[2];
    const char *names[2];
    struct log log; /* nowhere */
    struct memory_fabric *fabric;
    struct transport *other;
    struct seal *sealer, *opener; /* the test's */
    uint64_t now_ns, next;        /* sequence of the test's next message */
    uint8_t messages[HALF_MESSAGES][HALF_MESSAGE_BYTES];
};

/* Connect both sides and open the job. shared_receives, reorder: as on datagram endpoints. */
void half_start(struct sealed_half *half, bool shared_receives, bool reorder);
/* Nothing may be under way or kept then. */
void half_stop(struct sealed_half *half);
/* Give the engine the command, and connect the test's side. The test's next message is the first
 * of the connection. */
void half_connect(struct sealed_half *half);
uint64_t half_token(uint32_t node);
/* Whatever is under way arrives in the transports' queues. */
void half_deliver(struct sealed_half *half);
/* Rounds of the engine until nothing comes any more. */
void half_poll(struct sealed_half *half);
/* The first event after news of the peer's coming up, or NULL. */
struct engine_event *half_event(struct sealed_half *half);
/* The next event is the end of the connection, and says this. */
void half_expect_down(struct sealed_half *half, const char *text);
/* The engine's figure: messages to groups that do not exist. */
uint64_t half_dropped(struct sealed_half *half);

/* A contribution to a group that does not exist, which is dropped and counted; sealed. Its bytes.
 */
uint32_t half_make(struct sealed_half *half, uint8_t *message, uint64_t sequence,
                   uint32_t payload_bytes);
void half_post(struct sealed_half *half, const uint8_t *message, uint32_t bytes);
/* An all_reduce of which the engine's node owns all chunks; its own rank has handed over its part,
 * 0, 1, 2, ... */
void half_take_part(struct sealed_half *half, uint64_t sequence, uint64_t count);
/* The test's part of a chunk, 1000 everywhere, sealed and posted as the next message. */
void half_contribute(struct sealed_half *half, uint8_t *message, uint64_t sequence, uint64_t count,
                     uint32_t chunk, uint32_t bytes);

#endif
