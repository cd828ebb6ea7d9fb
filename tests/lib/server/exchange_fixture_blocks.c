#include "tests/lib/server/exchange_fixture_blocks.h"

#include "common/format/route.h"

const uint32_t blocks_rank_nodes[BLOCKS_RANKS] = {0, 2, 1, 0, 1};

struct fixture *blocks_fixture(uint32_t self)
{
    struct fixture_options options = {
        .self = self, .nodes = 4, .ranks = BLOCKS_RANKS, .weights = {0, 0, 0, 1}, .window = 32};
    memcpy(options.rank_nodes, blocks_rank_nodes, sizeof(blocks_rank_nodes));
    return fixture_create(&options);
}

uint32_t pair(uint32_t from, uint32_t to)
{
    return 1 + from * BLOCKS_RANKS + to;
}

/* --- asking ----------------------------------------------------------------------------------- */

float value_of(uint32_t rank, uint32_t block)
{
    return (float)(100 * rank + block);
}

/* The block's data lies in the arena where its number says: the inputs in the first half of a place
 * of the fixture, the results in the second. */
uint64_t block_offset(const struct fixture *fixture, uint32_t rank, uint32_t block, bool out)
{
    return fixture_offset(fixture, rank, block / 8) + (block % 8) * 4096ull + (out ? 32768 : 0);
}

float *block_data(struct fixture *fixture, uint32_t rank, uint32_t block, bool out)
{
    return (float *)(void *)(fixture->workers[rank].arena.base +
                             block_offset(fixture, rank, block, out));
}

struct arena_submission block_ask(const struct fixture *fixture, uint32_t rank, uint64_t sequence,
                                  uint8_t kind, uint32_t root, uint32_t block)
{
    return (struct arena_submission){.type = ARENA_SUBMIT,
                                     .kind = kind,
                                     .dtype = DTYPE_F32,
                                     .op = REDUCE_SUM,
                                     .request = 1000 * sequence + block,
                                     .sequence = sequence,
                                     .count = BLOCK_COUNT,
                                     .in_offset = block_offset(fixture, rank, block, false),
                                     .out_offset = block_offset(fixture, rank, block, true),
                                     .root = root,
                                     .block = block};
}

void submit_block(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint8_t kind,
                  uint32_t root, uint32_t block)
{
    struct arena_submission it = block_ask(fixture, rank, sequence, kind, root, block);
    float *data = block_data(fixture, rank, block, false);
    for (uint32_t i = 0; i < BLOCK_COUNT; i++)
        data[i] = value_of(rank, block);
    memset(block_data(fixture, rank, block, true), 0, BLOCK_BYTES);
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
}

uint32_t next_block(uint8_t kind, uint32_t root, uint32_t rank, uint32_t block)
{
    return route_next_block((enum collective_kind)kind, root, rank, BLOCKS_RANKS, block + 1);
}

/* The collective and all blocks of the rank, or those before `end`. */
void submit_until(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint8_t kind,
                  uint32_t root, uint32_t end)
{
    submit_block(fixture, rank, sequence, kind, root, 0);
    for (uint32_t block = next_block(kind, root, rank, 0); block > 0 && block < end;
         block = next_block(kind, root, rank, block))
        submit_block(fixture, rank, sequence, kind, root, block);
}

void submit_all(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint8_t kind,
                uint32_t root)
{
    submit_until(fixture, rank, sequence, kind, root, UINT32_MAX);
}

/* --- the other nodes -------------------------------------------------------------------------- */

struct wire_header block_header(uint32_t node, uint8_t type, uint64_t sequence, uint8_t kind,
                                uint32_t root, uint32_t block)
{
    struct wire_header header = fixture_header(node, type, sequence, 0, BLOCK_COUNT);
    header.ask.kind = kind;
    header.ask.root = root;
    header.ask.block = block;
    return header;
}

int block_message(struct fixture *fixture, const struct wire_header *header, uint32_t node,
                  bool carries, float value)
{
    float payload[BLOCK_COUNT];
    for (uint32_t i = 0; i < BLOCK_COUNT; i++)
        payload[i] = value;
    return fixture_message(fixture, node, *header, payload, carries ? BLOCK_BYTES : 0);
}

void contribute_block(struct fixture *fixture, uint32_t node, uint8_t kind, uint32_t root,
                      uint32_t block, bool carries, float value)
{
    struct wire_header header = block_header(node, WIRE_CONTRIBUTION, 0, kind, root, block);
    EXPECT_MSG(block_message(fixture, &header, node, carries, value) == 0, "%s",
               fixture->error.text);
}

/* The number of the send of this block to the node, or fails. */
uint32_t find_send(const struct fixture *fixture, uint32_t node, uint8_t type, uint32_t block)
{
    for (uint32_t i = 0; i < fixture->send_count; i++) {
        struct wire_header header = fixture_sending(fixture, i);
        if (fixture->sends[i]->node == node && header.type == type && header.ask.block == block)
            return i;
    }
    ck_abort_msg("nothing of block %u is sent to node %u", block, node);
    return 0;
}

bool sends_block(const struct fixture *fixture, uint32_t block)
{
    for (uint32_t i = 0; i < fixture->send_count; i++) {
        if (fixture_sending(fixture, i).ask.block == block)
            return true;
    }
    return false;
}

void expect_send(const struct fixture *fixture, uint32_t node, uint8_t type, uint32_t block,
                 bool carries, float value)
{
    const struct exchange_send *send = fixture->sends[find_send(fixture, node, type, block)];
    ck_assert_msg(send->payload_bytes == (carries ? BLOCK_BYTES : 0),
                  "block %u to node %u: %u bytes", block, node, send->payload_bytes);
    if (carries)
        ck_assert_msg(((const float *)send->payload)[BLOCK_COUNT - 1] == value,
                      "block %u to node %u: %f", block, node,
                      (double)((const float *)send->payload)[BLOCK_COUNT - 1]);
}

void expect_result(struct fixture *fixture, uint32_t rank, uint32_t block, float value)
{
    const float *data = block_data(fixture, rank, block, true);
    ck_assert_msg(data[0] == value && data[BLOCK_COUNT - 1] == value, "rank %u, block %u: %f", rank,
                  block, (double)data[0]);
    ck_assert_msg(fixture_completed(fixture, rank, block), "rank %u, block %u", rank, block);
}
