#include "common/format/wire.h"

#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/format/route.h"
#include "common/reduce/dtype.h"

/* The low bytes of a number, as many as it has. Every size is constant: one move each, where a loop
 * over the bytes was a sixth of a daemon's instructions for a message. */
static inline void wire_put(uint8_t *bytes, uint64_t value, size_t size)
{
    uint64_t little = htole64(value);
    memcpy(bytes, &little, size);
}

static inline uint64_t get(const uint8_t *bytes, size_t size)
{
    uint64_t little = 0;
    memcpy(&little, bytes, size);
    return le64toh(little);
}

/* Behind the ask. */
enum { AT_GENERATION = 64, AT_IDENTITY = 72, AT_NUMBER = 80, AT_RECEIVED = 88, AT_STABLE = 96 };

/* The ask takes 20 bytes of both forms, beginning with the kind; the identity comes later. */
#define ASK_BYTES 20
#define AT_ASK 44
#define AT_CODEC 47
#define IDENTITY_BYTES 8

static void put_ask(uint8_t *bytes, const struct wire_ask *ask)
{
    bytes[0] = ask->kind;
    bytes[1] = ask->dtype;
    bytes[2] = ask->op;
    bytes[3] = 0;
    wire_put(bytes + 4, ask->root, 4);
    wire_put(bytes + 8, ask->block, 4);
    wire_put(bytes + 12, ask->count, 8);
}

/* All but the identity; the byte between is the codec in a header. */
static void get_ask(const uint8_t *bytes, struct wire_ask *ask)
{
    *ask = (struct wire_ask){.kind = bytes[0],
                             .dtype = bytes[1],
                             .op = bytes[2],
                             .root = (uint32_t)get(bytes + 4, 4),
                             .block = (uint32_t)get(bytes + 8, 4),
                             .count = get(bytes + 12, 8)};
}

/* Read an identity, of 32 bits in a place of 64; false if the upper half is not zero. */
static bool get_identity(const uint8_t *bytes, struct wire_ask *ask)
{
    ask->identity = (uint32_t)get(bytes, 4);
    return get(bytes + 4, 4) == 0;
}

void wire_encode_header(uint8_t bytes[WIRE_HEADER_BYTES], const struct wire_header *header)
{
    wire_put(bytes, WIRE_MAGIC, 4);
    bytes[4] = WIRE_VERSION;
    bytes[5] = header->type;
    wire_put(bytes + 6, (uint16_t)header->status, 2);
    wire_put(bytes + 8, header->token, 8);
    wire_put(bytes + 16, header->job, 8);
    wire_put(bytes + 24, header->sequence, 8);
    wire_put(bytes + 32, header->group, 4);
    wire_put(bytes + 36, header->chunk, 4);
    wire_put(bytes + 40, header->payload_bytes, 4);
    put_ask(bytes + AT_ASK, &header->ask);
    bytes[AT_CODEC] = header->codec;
    wire_put(bytes + AT_GENERATION, header->generation, 4);
    wire_put(bytes + AT_GENERATION + 4, 0, 4);
    wire_put(bytes + AT_IDENTITY, header->ask.identity, IDENTITY_BYTES);
    wire_put(bytes + AT_NUMBER, header->number, 8);
    wire_put(bytes + AT_RECEIVED, header->received, 8);
    memset(bytes + AT_STABLE, 0, WIRE_HEADER_BYTES - AT_STABLE);
}

void wire_write_session(uint8_t bytes[WIRE_HEADER_BYTES], uint64_t token, uint64_t number,
                        uint64_t received)
{
    wire_put(bytes + 8, token, 8);
    wire_put(bytes + AT_NUMBER, number, 8);
    wire_put(bytes + AT_RECEIVED, received, 8);
}

/* Whether all bytes of the header that have no meaning yet are zero. */
static bool rest_is_zero(const uint8_t *message)
{
    uint64_t any = get(message + AT_GENERATION + 4, 4);
    for (size_t at = AT_STABLE; at < WIRE_HEADER_BYTES; at += 8)
        any |= get(message + at, 8);
    return any == 0;
}

/* A job has one; signs of life are of no job. */
static bool generation_is_right(const struct wire_header *header)
{
    bool sign = header->type == WIRE_KEEPALIVE || header->type == WIRE_ALIVE;
    return sign == (header->generation == 0);
}

/* A group's collectives are counted from 0, and the control plane, which says that a rank is late
 * with one, has numbers up to 2^63 - 1. */
static bool sequence_is_right(const struct wire_header *header)
{
    return header->ask.kind > COLLECTIVE_ALL_TO_ALL || header->sequence <= INT64_MAX;
}

int wire_decode_header(const uint8_t *message, size_t length, struct wire_header *header,
                       struct error *error)
{
    if (length < WIRE_HEADER_BYTES)
        return error_set(error, ERR_PROTOCOL, "a message of %zu bytes is shorter than its header",
                         length);
    if (get(message, 4) != WIRE_MAGIC)
        return error_set(error, ERR_PROTOCOL,
                         "a message begins with 0x%08" PRIx64 ", not the magic", get(message, 4));
    if (message[4] != WIRE_VERSION)
        return error_set(error, ERR_PROTOCOL, "a message has version %u, this daemon speaks %u",
                         message[4], WIRE_VERSION);
    struct wire_header decoded = {
        .type = message[5],
        .status = (int16_t)get(message + 6, 2),
        .token = get(message + 8, 8),
        .job = get(message + 16, 8),
        .sequence = get(message + 24, 8),
        .group = (uint32_t)get(message + 32, 4),
        .chunk = (uint32_t)get(message + 36, 4),
        .payload_bytes = (uint32_t)get(message + 40, 4),
        .codec = message[AT_CODEC],
        .generation = (uint32_t)get(message + AT_GENERATION, 4),
        .number = get(message + AT_NUMBER, 8),
        .received = get(message + AT_RECEIVED, 8),
    };
    if (decoded.type < WIRE_CONTRIBUTION || decoded.type > WIRE_DELIVERED)
        return error_set(error, ERR_PROTOCOL, "a message has the unknown type %u", decoded.type);
    if (decoded.payload_bytes != length - WIRE_HEADER_BYTES)
        return error_set(error, ERR_PROTOCOL,
                         "a message announces a payload of %" PRIu32 " bytes and has %zu",
                         decoded.payload_bytes, length - WIRE_HEADER_BYTES);
    if (decoded.codec != WIRE_CODEC_AS_IS)
        return error_set(error, ERR_PROTOCOL,
                         "the payload of a message has codec %u, this daemon knows %d alone",
                         decoded.codec, WIRE_CODEC_AS_IS);
    get_ask(message + AT_ASK, &decoded.ask);
    if (!get_identity(message + AT_IDENTITY, &decoded.ask) || !rest_is_zero(message))
        return error_set(error, ERR_PROTOCOL, "a message has a reserved byte that is not zero");
    if (!generation_is_right(&decoded))
        return error_set(error, ERR_PROTOCOL, "a message of type %u has generation %" PRIu32,
                         decoded.type, decoded.generation);
    bool is_error = decoded.type == WIRE_ERROR;
    if (is_error ? !error_is_known(decoded.status) : decoded.status != 0)
        return error_set(error, ERR_PROTOCOL, "a message of type %u has status %d", decoded.type,
                         decoded.status);
    if (!sequence_is_right(&decoded))
        return error_set(error, ERR_PROTOCOL, "a message for %s numbered %" PRIu64,
                         collective_name(decoded.ask.kind), decoded.sequence);
    *header = decoded;
    return 0;
}

_Static_assert(4 + ASK_BYTES + IDENTITY_BYTES == WIRE_RANK_ASK_BYTES, "a rank and its ask");

void wire_encode_rank_ask(uint8_t *bytes, uint32_t rank, const struct wire_ask *ask)
{
    wire_put(bytes, rank, 4);
    put_ask(bytes + 4, ask);
    wire_put(bytes + 4 + ASK_BYTES, ask->identity, IDENTITY_BYTES);
}

int wire_decode_rank_ask(const uint8_t *bytes, size_t length, uint32_t *rank, struct wire_ask *ask)
{
    struct wire_ask decoded;
    if (length < WIRE_RANK_ASK_BYTES)
        return ERR_PROTOCOL;
    get_ask(bytes + 4, &decoded);
    if (bytes[4 + AT_CODEC - AT_ASK] != 0 || !get_identity(bytes + 4 + ASK_BYTES, &decoded))
        return ERR_PROTOCOL;
    *rank = (uint32_t)get(bytes, 4);
    *ask = decoded;
    return 0;
}

int wire_ask_equal(const struct wire_ask *a, const struct wire_ask *b)
{
    if (a->kind != b->kind || a->block != b->block)
        return 0;
    if (a->kind == COLLECTIVE_BARRIER)
        return 1;
    return a->dtype == b->dtype && a->count == b->count && a->identity == b->identity &&
           (!collective_has_op(a->kind) || a->op == b->op) &&
           (!collective_has_root(a->kind) || a->root == b->root);
}

bool wire_send_fits(const struct wire_ask *sent, const struct wire_ask *wanted)
{
    return sent->dtype == wanted->dtype &&
           (wanted->op == WIRE_TAKE_UP_TO ? sent->count <= wanted->count
                                          : sent->count == wanted->count);
}

uint64_t wire_ask_elements(const struct wire_ask *ask)
{
    bool in_blocks = route_in_blocks((enum collective_kind)ask->kind);
    return ask->kind == COLLECTIVE_BARRIER || (in_blocks && ask->block == 0) ? 0 : ask->count;
}

int wire_ask_check(const struct wire_ask *ask, uint32_t ranks, struct error *error)
{
    if (ask->kind >= COLLECTIVE_KIND_COUNT)
        return error_set(error, ERR_INVALID, "collective %u does not exist", ask->kind);
    if (ask->identity > 0 && !collective_in_shards(ask->kind))
        return error_set(error, ERR_INVALID, "%s is of no tensor with an identity",
                         collective_name(ask->kind));
    if (ask->kind == COLLECTIVE_BARRIER && (ask->count > 0 || ask->block > 0))
        return error_set(error, ERR_INVALID, "a barrier has %" PRIu64 " elements", ask->count);
    if (ask->kind == COLLECTIVE_BARRIER)
        return 0;
    if (ask->dtype >= DTYPE_COUNT)
        return error_set(error, ERR_INVALID,
                         "data type %u is none of this version's, 0 to %d: is a newer one asking?",
                         ask->dtype, DTYPE_COUNT - 1);
    if (collective_has_op(ask->kind) && ask->op >= REDUCE_OP_COUNT)
        return error_set(error, ERR_INVALID,
                         "operation %u is none of this version's, 0 to %d: is a newer one asking?",
                         ask->op, REDUCE_OP_COUNT - 1);
    if (collective_has_op(ask->kind) && !reduce_op_allows(ask->op, ask->dtype))
        return error_set(error, ERR_INVALID, "operation %s (%u) is not defined for %s",
                         reduce_op_name(ask->op), ask->op, dtype_name(ask->dtype));
    if (collective_has_root(ask->kind) && ask->root >= ranks)
        return error_set(error, ERR_INVALID, "root %" PRIu32 " in a group of %" PRIu32 " ranks",
                         ask->root, ranks);
    if (ask->kind == COLLECTIVE_SEND && ask->block == 0)
        return error_set(error, ERR_INVALID, "a send goes between two ranks");
    if (ask->kind == COLLECTIVE_SEND && ask->op > WIRE_TAKE_UP_TO)
        return error_set(error, ERR_INVALID, "a receive takes its count in way %u, which is none",
                         ask->op);
    if (ask->block > 0 &&
        !route_block_valid((enum collective_kind)ask->kind, ask->root, ask->block, ranks))
        return error_set(error, ERR_INVALID,
                         "%s has no block %" PRIu32 " in a group of %" PRIu32 " ranks",
                         collective_name(ask->kind), ask->block, ranks);
    if (ask->count > (UINT64_C(1) << 62) / 8)
        return error_set(error, ERR_INVALID, "%" PRIu64 " elements are too many", ask->count);
    return 0;
}

static void identity_text(uint32_t identity, char *text, size_t bytes)
{
    uint32_t buffer = identity & ((1u << WIRE_IDENTITY_FUSION_SHIFT) - 1);
    uint32_t fusion = (identity & ~WIRE_IDENTITY_FUSION) >> WIRE_IDENTITY_FUSION_SHIFT;
    if (identity == 0)
        text[0] = '\0';
    else if (!(identity & WIRE_IDENTITY_FUSION))
        snprintf(text, bytes, " of tensor %" PRIu32, identity);
    else if (fusion == 0)
        snprintf(text, bytes, " of fusion buffer %" PRIu32, buffer);
    else
        snprintf(text, bytes, " of buffer %" PRIu32 " of fusion %" PRIu32, buffer, fusion);
}

void wire_ask_text(const struct wire_ask *ask, uint32_t ranks, char *text, size_t bytes)
{
    char op[16] = "", root[32] = "", part[64] = "", tensor[48];
    bool up_to = ask->kind == COLLECTIVE_SEND && ask->op == WIRE_TAKE_UP_TO;
    identity_text(ask->identity, tensor, sizeof(tensor));
    if (ask->kind == COLLECTIVE_BARRIER) {
        snprintf(text, bytes, "%s", collective_name(ask->kind));
        return;
    }
    if (collective_has_op(ask->kind))
        snprintf(op, sizeof(op), " %s", reduce_op_name(ask->op));
    if (collective_has_root(ask->kind))
        snprintf(root, sizeof(root), " root %" PRIu32, ask->root);
    if (ask->block > 0 &&
        route_block_valid((enum collective_kind)ask->kind, ask->root, ask->block, ranks)) {
        struct route route =
            route_find((enum collective_kind)ask->kind, ask->root, ask->block, ranks);
        if (route.from < ranks && route.to < ranks)
            snprintf(part, sizeof(part), " from rank %" PRIu32 " to rank %" PRIu32 " of the group",
                     route.from, route.to);
        else
            snprintf(part, sizeof(part), " for the part of rank %" PRIu32 " of the group",
                     route.owner);
    }
    snprintf(text, bytes, "%s%s %s%s count %" PRIu64 "%s%s%s", collective_name(ask->kind), op,
             dtype_name(ask->dtype), up_to ? " up to" : "", ask->count, root, part, tensor);
}
