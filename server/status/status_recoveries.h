/* A job's recoveries: what it has gone on from, and for whom a job that has failed waits. Only
 * files of this room include it. */
#ifndef SERVER_STATUS_STATUS_RECOVERIES_H
#define SERVER_STATUS_STATUS_RECOVERIES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text/json_text.h"
#include "server/status/status.h"

/* The failed generation of which nobody here knows that the job has gone on; NULL: none. */
const struct succession *status_succession(const struct coordinator *coordinator, uint64_t lineage);
/* Whether somebody waits here for the generation after it. views: [count]. */
bool status_succession_waits(const struct succession *succession,
                             const struct coordinator_worker_view *views, uint32_t count);
void status_put_recoveries(struct json_text *text, const struct recoveries *recoveries);
/* The key `lost`: null without a succession. `room`: how many ranks may still be listed. */
void status_put_lost(struct json_text *text, const struct succession *succession,
                     const struct status_source *source, uint32_t *room);
void metrics_put_recoveries(struct json_text *text, const struct status_source *source);

#endif
