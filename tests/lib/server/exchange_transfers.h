/* Sends from rank to rank, for tests of the exchange: what ranks and other nodes bring of them. */
#ifndef TESTS_LIB_SERVER_EXCHANGE_TRANSFERS_H
#define TESTS_LIB_SERVER_EXCHANGE_TRANSFERS_H

#include "tests/lib/server/exchange_fixture_blocks.h"

#define TRANSFER_WINDOW 4u

/* Ranks 0 and 3 are on node 0, 1 on node 2, 2 and 4 on node 1; node 3 is the server. */
struct fixture *transfer_fixture(uint32_t self);
uint64_t transfer_number(uint32_t tag, uint32_t counter);
/* Return a submission of `count` elements at place `place` of the rank's arena; its request has the
 * place's number. */
struct arena_submission transfer_ask(const struct fixture *fixture, uint32_t rank, uint32_t from,
                                     uint32_t to, uint64_t sequence, uint64_t count,
                                     uint32_t place);
void transfer_send(struct fixture *fixture, uint32_t from, uint32_t to, uint64_t sequence,
                   uint32_t count, uint32_t place);
void transfer_receive(struct fixture *fixture, uint32_t from, uint32_t to, uint64_t sequence,
                      uint32_t count, uint32_t place);
struct wire_header transfer_header(uint32_t node, uint8_t type, uint32_t from, uint32_t to,
                                   uint64_t sequence, uint64_t count, uint32_t chunk);
/* The receiver's node asks for a chunk. */
int transfer_asked(struct fixture *fixture, uint32_t node, uint32_t from, uint32_t to,
                   uint64_t sequence, uint64_t count, uint32_t chunk);
/* The sender's node answers, with the data of transfer_send. */
int transfer_answered(struct fixture *fixture, uint32_t node, uint32_t from, uint32_t to,
                      uint64_t sequence, uint32_t count, uint32_t chunk, uint32_t place);
void transfer_expect(struct fixture *fixture, uint32_t rank, uint32_t place, uint32_t count,
                     float first);

#endif
