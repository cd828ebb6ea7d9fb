/* One metric after the other, in Prometheus's text format. Only files of this room, and its test,
 * include it. */
#ifndef SERVER_STATUS_STATUS_METRIC_H
#define SERVER_STATUS_STATUS_METRIC_H

#include "common/config/config.h"
#include "common/text/json_text.h"

#define METRICS_LABEL_BYTES (4 * CONFIG_NAME_BYTES) /* of the longest name, escaped */

struct status_source;

void metrics_put_line(struct json_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void metrics_put_family(struct json_text *text, const char *name, const char *type,
                        const char *help);
/* Escape a label's value: quotes, backslashes and controls. Returns `escaped`. */
const char *metrics_label(const char *value, char escaped[METRICS_LABEL_BYTES]);

/* status_waits.c: of each job, whom it waits for on this node. */
void metrics_put_waits(struct json_text *text, const struct status_source *source);

#endif
