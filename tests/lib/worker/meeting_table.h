/* A meeting place, all of whose ranks the test plays in one thread. */
#ifndef TESTS_LIB_WORKER_MEETING_TABLE_H
#define TESTS_LIB_WORKER_MEETING_TABLE_H

#include "worker/meeting/meeting.h"

#define TABLE_RANKS 3u

struct table {
    struct meeting at[TABLE_RANKS];
    void *memory; /* to be freed by the test */
};

/* All ranks use the place, and have come to no round. */
void table_set(struct table *table);
/* Set the table as table_set does, for `ranks` ranks. */
void table_set_of(struct table *table, uint32_t ranks);

/* All reduce one number. */
extern const struct meeting_ask one_number;

#endif
