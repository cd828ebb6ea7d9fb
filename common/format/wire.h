/* The data plane between daemons: one 128-byte little-endian header, then the payload.
 * Described in doc/protocol/data.md. Calls route.h, common/reduce and common/base. */
#ifndef COMMON_FORMAT_WIRE_H
#define COMMON_FORMAT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define WIRE_MAGIC 0x4c4f4853u /* "SHOL" */
#define WIRE_VERSION 10
#define WIRE_HEADER_BYTES 128

enum wire_type {
    WIRE_CONTRIBUTION = 1, /* node to owner: its part of the chunk, that is the sum of its ranks or
                            * one rank's data; nothing where it has none to give, as for a send */
    WIRE_RESULT = 2,       /* owner to node: the sum or one rank's data; or nothing */
    WIRE_DISAGREE = 3,     /* node to owner of chunk 0: its ranks disagree; payload: ranks, asks */
    WIRE_ERROR = 4,        /* owner to node: the group has failed; payload: text without NUL */
    WIRE_PROBE = 5,        /* to a sender's node: has it sent this, or later, with this tag? */
    WIRE_READY = 6,        /* the answer: it has */
    WIRE_GONE = 7,         /* the answer: it has left the job, and has not */
    WIRE_KEEPALIVE = 8,    /* a sign of life; the sender waits for the receiver, and wants such
                            * signs back. Nothing behind the token but zeros */
    WIRE_ALIVE = 9,        /* the same, from one that waits for nothing */
    /* In jobs with recovery: */
    WIRE_HELD = 10,   /* node to the group's root: its ranks have all results before `sequence` */
    WIRE_STABLE = 11, /* the root to a node: all ranks of the group have */
    WIRE_DELIVERED = 12, /* a receiver's node to the sender's: the send has come to its rank */
};

/* The sequence number of a send is not one of the group's collectives. It is
 *
 *   WIRE_SEND_SEQUENCE | tag << WIRE_SEND_TAG_SHIFT | n
 *
 * for the n-th send, from 0 and modulo 2^32, from the one rank to the other with that tag, which is
 * 0 to WIRE_SEND_TAG_MAX. That of a replay, or of what asks for one (common/format/route.h), is
 * WIRE_SEND_SEQUENCE and the number of the result.
 *
 * A PROBE and its answers READY and GONE are about such a send: block and sequence are its own,
 * `chunk` is the place of the receive from any rank among those of the receiving rank in the group,
 * below 64, and ask.count a version, which is larger for each such receive of the receiver's node.
 */
#define WIRE_SEND_SEQUENCE (1ull << 63)
#define WIRE_SEND_TAG_MAX 0x7fffffffu
#define WIRE_SEND_TAG_SHIFT 32

/* A receive has this in place of an operation: it takes exactly its count, or up to that. */
enum wire_take { WIRE_TAKE_ALL = 0, WIRE_TAKE_UP_TO = 1 };

/* How a payload is encoded. */
enum wire_codec { WIRE_CODEC_AS_IS = 0 };

/* Bit of an identity: the identity is that of a fusion buffer. The next 15 bits are the number of
 * the fusion among those of its group, the last 16 that of the buffer. Without the bit the identity
 * is the program's. */
#define WIRE_IDENTITY_FUSION (1u << 31)
#define WIRE_IDENTITY_FUSION_SHIFT 16

/* Ask: the collective that a rank has called, with its arguments. All ranks of a collective must
 * ask for the same. */
struct wire_ask {
    uint8_t kind;      /* enum collective_kind */
    uint8_t dtype;     /* enum dtype */
    uint8_t op;        /* enum reduce_op; of a receive enum wire_take */
    uint32_t root;     /* rank in the group; 0 where the kind has none */
    uint64_t count;    /* elements, of the block where there is one; or a version, see above */
    uint32_t block;    /* of the collective (common/format/route.h); 0: the collective itself */
    uint32_t identity; /* of the tensor, by which it is cut (common/format/layout.h); 0: none. Only
                        * collectives that travel in shards have one: collective_in_shards */
};

struct wire_header {
    uint8_t type;      /* enum wire_type */
    int16_t status;    /* WIRE_ERROR: enum error_code; otherwise 0 */
    uint64_t token;    /* given by the receiver to this sender over the control connection */
    uint64_t job;      /* the job's random id */
    uint64_t sequence; /* of the collective in its group; of HELD and STABLE the first that is not
                        * said to be so */
    uint32_t group;
    uint32_t chunk; /* of PROBE, READY and GONE: a receive's place, see above */
    uint32_t payload_bytes;
    uint8_t codec; /* enum wire_codec */
    struct wire_ask ask;
    uint32_t generation; /* of the job's membership, from 1; of KEEPALIVE and ALIVE 0 */
    uint64_t number;     /* of the message in its session, from 1; 0: it is not counted */
    uint64_t received;   /* of the receiver's messages: the last number of which has come */
};

/* Write the header. Byte offsets: 0 magic u32, 4 version u8, 5 type u8, 6 status i16, 8 token u64,
 * 16 job u64, 24 sequence u64, 32 group u32, 36 chunk u32, 40 payload_bytes u32, 44 kind u8, 45
 * dtype u8, 46 op u8, 47 codec u8, 48 root u32, 52 block u32, 56 count u64, 64 generation u32, 68
 * zero u32, 72 identity u64, 80 number u64, 88 received u64, 96 stable u64, 104 zero. Number and
 * received are 0 where recovery is off. Stable has a place and no meaning yet: it is written as 0,
 * and nothing else is taken. */
void wire_encode_header(uint8_t bytes[WIRE_HEADER_BYTES], const struct wire_header *header);

/* Write anew, into an encoded header, what depends on the connection and the moment. */
void wire_write_session(uint8_t bytes[WIRE_HEADER_BYTES], uint64_t token, uint64_t number,
                        uint64_t received);

/* Check and decode a message of `length` bytes: magic, version, type, that payload_bytes is just
 * what follows the header, that the codec is known, that zero bytes are zero, that an ERROR has a
 * known code and others none, that all but signs of life have a generation, and that a collective's
 * sequence number is below 2^63; the ask is wire_ask_check's. Returns 0 or ERR_PROTOCOL with the
 * reason. */
int wire_decode_header(const uint8_t *message, size_t length, struct wire_header *header,
                       struct error *error);

#define WIRE_RANK_ASK_BYTES 32

/* One rank's ask in a WIRE_DISAGREE payload: rank u32, then the ask as in a header from offset 44,
 * with zero for the codec, then the identity u64. */
void wire_encode_rank_ask(uint8_t *bytes, uint32_t rank, const struct wire_ask *ask);
/* Read the rank and the ask from a payload of which `length` bytes remain, the reverse of
 * wire_encode_rank_ask. ERR_PROTOCOL: the bytes are too few, or one that must be zero is not. */
int wire_decode_rank_ask(const uint8_t *bytes, size_t length, uint32_t *rank, struct wire_ask *ask);

/* 1 when equal in everything that the kind gives a meaning to. */
int wire_ask_equal(const struct wire_ask *a, const struct wire_ask *b);
/* Whether the numbers are known and allowed together, root below `ranks`, the block one that the
 * kind has. 0 or ERR_INVALID. */
int wire_ask_check(const struct wire_ask *ask, uint32_t ranks, struct error *error);
/* Whether a receive takes what a send gives. Both are checked, and of one block. */
bool wire_send_fits(const struct wire_ask *sent, const struct wire_ask *wanted);
/* How many elements travel: none for a barrier, or for a collective whose blocks carry them. */
uint64_t wire_ask_elements(const struct wire_ask *ask);
/* "all_reduce sum float count 1000", "all_reduce sum float count 9 of tensor 7", or "of fusion
 * buffer 3", or "of buffer 3 of fusion 2", "broadcast float count 3 root 1", "barrier", "all_gather
 * float count 4 for the part of rank 2 of the group", "all_to_all float count 3 from rank 0 to rank
 * 2 of the group". `ranks` is the size of the group. */
void wire_ask_text(const struct wire_ask *ask, uint32_t ranks, char *text, size_t bytes);

#endif
