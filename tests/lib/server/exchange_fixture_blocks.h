/* The exchange's fixture for collectives that travel in blocks: one node of a group over three. */
#ifndef TESTS_LIB_SERVER_EXCHANGE_FIXTURE_BLOCKS_H
#define TESTS_LIB_SERVER_EXCHANGE_FIXTURE_BLOCKS_H

#include "tests/lib/server/exchange_fixture.h"

#define BLOCK_COUNT 16u
#define BLOCK_BYTES (BLOCK_COUNT * sizeof(float))
#define BLOCKS_RANKS 5u

/* Ranks 0 and 3 on node 0, 1 on node 2, 2 and 4 on node 1. Node 3 has none, and is the only server
 * of the job: every node of the group owns its ranks' blocks all the same. */
extern const uint32_t blocks_rank_nodes[BLOCKS_RANKS];

struct fixture *blocks_fixture(uint32_t self);
uint32_t pair(uint32_t from, uint32_t to);
float value_of(uint32_t rank, uint32_t block);
uint64_t block_offset(const struct fixture *fixture, uint32_t rank, uint32_t block, bool out);
float *block_data(struct fixture *fixture, uint32_t rank, uint32_t block, bool out);
struct arena_submission block_ask(const struct fixture *fixture, uint32_t rank, uint64_t sequence,
                                  uint8_t kind, uint32_t root, uint32_t block);
void submit_block(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint8_t kind,
                  uint32_t root, uint32_t block);
uint32_t next_block(uint8_t kind, uint32_t root, uint32_t rank, uint32_t block);
void submit_until(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint8_t kind,
                  uint32_t root, uint32_t end);
void submit_all(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint8_t kind,
                uint32_t root);
struct wire_header block_header(uint32_t node, uint8_t type, uint64_t sequence, uint8_t kind,
                                uint32_t root, uint32_t block);
int block_message(struct fixture *fixture, const struct wire_header *header, uint32_t node,
                  bool carries, float value);
void contribute_block(struct fixture *fixture, uint32_t node, uint8_t kind, uint32_t root,
                      uint32_t block, bool carries, float value);
uint32_t find_send(const struct fixture *fixture, uint32_t node, uint8_t type, uint32_t block);
bool sends_block(const struct fixture *fixture, uint32_t block);
void expect_send(const struct fixture *fixture, uint32_t node, uint8_t type, uint32_t block,
                 bool carries, float value);
void expect_result(struct fixture *fixture, uint32_t rank, uint32_t block, float value);

#endif
