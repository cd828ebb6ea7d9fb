#include "tests/lib/server/exchange_transfers.h"

#include <string.h>

/* Ranks 0 and 3 are on node 0, 1 on node 2, 2 and 4 on node 1; node 3 is the server. */
struct fixture *transfer_fixture(uint32_t self)
{
    struct fixture_options options = {.self = self,
                                      .nodes = 4,
                                      .ranks = BLOCKS_RANKS,
                                      .weights = {0, 0, 0, 1},
                                      .window = TRANSFER_WINDOW};
    memcpy(options.rank_nodes, blocks_rank_nodes, sizeof(blocks_rank_nodes));
    return fixture_create(&options);
}

uint64_t transfer_number(uint32_t tag, uint32_t counter)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | counter;
}

/* Return a submission of `count` elements at place `place` of the rank's arena; its request has the
 * place's number. */
struct arena_submission transfer_ask(const struct fixture *fixture, uint32_t rank, uint32_t from,
                                     uint32_t to, uint64_t sequence, uint64_t count, uint32_t place)
{
    return (struct arena_submission){.type = ARENA_SUBMIT,
                                     .kind = COLLECTIVE_SEND,
                                     .dtype = DTYPE_F32,
                                     .request = place,
                                     .sequence = sequence,
                                     .count = count,
                                     .in_offset = fixture_offset(fixture, rank, place),
                                     .out_offset = fixture_offset(fixture, rank, place),
                                     .block = pair(from, to)};
}

void transfer_send(struct fixture *fixture, uint32_t from, uint32_t to, uint64_t sequence,
                   uint32_t count, uint32_t place)
{
    struct arena_submission it = transfer_ask(fixture, from, from, to, sequence, count, place);
    fixture_fill(fixture, from, place, count, (float)(100 * from + place));
    EXPECT_MSG(fixture_submit(fixture, from, &it) == 0, "%s", fixture->error.text);
}

void transfer_receive(struct fixture *fixture, uint32_t from, uint32_t to, uint64_t sequence,
                      uint32_t count, uint32_t place)
{
    struct arena_submission it = transfer_ask(fixture, to, from, to, sequence, count, place);
    memset(fixture_data(fixture, to, place), 0, count * sizeof(float));
    EXPECT_MSG(fixture_submit(fixture, to, &it) == 0, "%s", fixture->error.text);
}

struct wire_header transfer_header(uint32_t node, uint8_t type, uint32_t from, uint32_t to,
                                   uint64_t sequence, uint64_t count, uint32_t chunk)
{
    struct wire_header header = fixture_header(node, type, sequence, chunk, count);
    header.ask = (struct wire_ask){
        .kind = COLLECTIVE_SEND, .dtype = DTYPE_F32, .block = pair(from, to), .count = count};
    return header;
}

/* The receiver's node asks for a chunk. */
int transfer_asked(struct fixture *fixture, uint32_t node, uint32_t from, uint32_t to,
                   uint64_t sequence, uint64_t count, uint32_t chunk)
{
    struct wire_header header =
        transfer_header(node, WIRE_CONTRIBUTION, from, to, sequence, count, chunk);
    return fixture_message(fixture, node, header, NULL, 0);
}

/* The sender's node answers, with the data of transfer_send. */
int transfer_answered(struct fixture *fixture, uint32_t node, uint32_t from, uint32_t to,
                      uint64_t sequence, uint32_t count, uint32_t chunk, uint32_t place)
{
    float payload[FIXTURE_CHUNK];
    uint32_t first = chunk * FIXTURE_CHUNK;
    uint32_t elements = count - first < FIXTURE_CHUNK ? count - first : FIXTURE_CHUNK;
    for (uint32_t i = 0; i < elements; i++)
        payload[i] = (float)(100 * from + place) + (float)(first + i);
    struct wire_header header =
        transfer_header(node, WIRE_RESULT, from, to, sequence, count, chunk);
    return fixture_message(fixture, node, header, payload, elements * (uint32_t)sizeof(float));
}

void transfer_expect(struct fixture *fixture, uint32_t rank, uint32_t place, uint32_t count,
                     float first)
{
    for (uint32_t i = 0; i < count; i++)
        EXPECT_MSG(fixture_data(fixture, rank, place)[i] == first + (float)i, "element %u: %f", i,
                   (double)fixture_data(fixture, rank, place)[i]);
}
