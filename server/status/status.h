/* The daemon's state in words: the status document (JSON) and the metrics (Prometheus's text), both
 * from one snapshot. Pure. */
#ifndef SERVER_STATUS_STATUS_H
#define SERVER_STATUS_STATUS_H

#include <stddef.h>
#include <stdint.h>

#include "common/config/config.h"
#include "common/log/log_ring.h"
#include "common/text/json_text.h"
#include "common/transport/transport.h"
#include "server/coordinator/coordinator.h"
#include "server/engine/engine.h"
#include "server/jobs/account.h"
#include "server/jobs/membership.h"
#include "server/waits/overlap.h"
#include "server/waits/verdict.h"
#include "server/waits/waits.h"

/* Traffic over the fabric in the last second or so. */
struct status_rates {
    uint64_t sampled_ns; /* 0: never */
    uint64_t bytes_in, bytes_out;
    double in_GBps, out_GBps; /* 1e9 bytes per second */
};
void status_rates_sample(struct status_rates *rates, uint64_t now_ns, uint64_t bytes_in,
                         uint64_t bytes_out);

/* The verdict on who makes a job wait, as it was last found. */
struct status_verdict {
    uint64_t job;
    struct verdict verdict;
};

/* Ranks that are listed in a document, in all: those of the largest job. */
#define STATUS_RANKS_MAX MESSAGE_RANKS_MAX

struct status_source {
    const char *software;
    uint32_t pid;
    uint64_t now_ns, started_ns;
    uint32_t connections; /* on the Unix socket */
    const char *instruction_set;
    const char *topology;
    const struct config *config;
    const struct transport_info *transport;
    const struct engine_status *engine;
    const struct membership *membership;
    const struct coordinator *coordinator;
    const struct account_book *accounts;
    const struct status_rates *rates;
    const struct status_verdict *verdicts; /* [verdict_count], for the metrics */
    uint32_t verdict_count;
    const struct log_line *warnings; /* [warning_count], the oldest first */
    uint32_t warning_count;
};

/* The keys of what a daemon tells of a job's waits, into an open object. */
void status_put_waits(struct json_text *text, const struct waits_figures *figures,
                      const struct config *config);
/* Put the keys of how a job's time splits, into an open object. */
void status_put_overlap(struct json_text *text, const struct overlap_figures *figures);
/* One line with its newline, the caller's to free; NULL: out of memory. */
char *status_document(const struct status_source *source, size_t *length);
/* Prometheus's text format 0.0.4, the caller's to free; NULL: out of memory. */
char *status_metrics(const struct status_source *source, size_t *length);

#endif
