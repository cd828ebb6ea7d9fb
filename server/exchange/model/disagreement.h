/* The text about ranks that disagree on a collective: which ranks asked for what.
 *
 * Layer: calls nothing else of the exchange.
 */
#ifndef SERVER_EXCHANGE_MODEL_DISAGREEMENT_H
#define SERVER_EXCHANGE_MODEL_DISAGREEMENT_H

#include <stddef.h>
#include <stdint.h>

#include "common/format/wire.h"

#define DISAGREEMENT_ASKS 8   /* different asks told apart; further ones are counted */
#define DISAGREEMENT_RANKS 16 /* ranks named for each ask; further ones are counted */

struct disagreement_ask {
    struct wire_ask ask;
    uint32_t ranks[DISAGREEMENT_RANKS];
    uint32_t count;
};

struct disagreement {
    uint32_t group;
    uint32_t size; /* ranks of the group */
    uint64_t sequence;
    struct disagreement_ask asks[DISAGREEMENT_ASKS];
    uint32_t ask_count;
    uint32_t others; /* ranks that asked for yet something else */
};

/* sequence: of a send its sequence; of a collective the number that its ranks count. */
void disagreement_init(struct disagreement *all, uint32_t group, uint32_t size, uint64_t sequence);
void disagreement_add(struct disagreement *all, uint32_t rank, const struct wire_ask *ask);
/* Write "collective 3 of group 0 differs between ranks: rank 0 asked for all_reduce sum float count
 * 8; ranks 1, 2 asked for barrier". Returns its length. */
size_t disagreement_text(const struct disagreement *all, char *text, size_t bytes);

#endif
