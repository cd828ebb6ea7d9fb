#include "tests/lib/worker/meeting_table.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

const struct meeting_ask one_number = {
    .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_I32, .op = REDUCE_SUM, .count = 1};

void table_set_of(struct table *table, uint32_t ranks)
{
    uint64_t bytes = meeting_bytes(ranks);
    table->memory = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(table->memory);
    memset(table->memory, 0, bytes);
    for (uint32_t i = 0; i < ranks; i++) {
        ck_assert_int_eq(i > 0 && meeting_complete(&table->at[0]), false);
        ck_assert(meeting_init(&table->at[i], table->memory, bytes, i, ranks));
    }
    ck_assert(meeting_complete(&table->at[0]));
}

void table_set(struct table *table)
{
    table_set_of(table, TABLE_RANKS);
}
