/* A job's steps of the last minutes, for the page: how long the ranks computed, waited for the
 * slowest of them, and waited for the network. Pure. */
#ifndef SERVER_STATUS_STATUS_STEPS_H
#define SERVER_STATUS_STATUS_STEPS_H

#include <stdint.h>

#include "common/text/json_text.h"
#include "server/waits/finding.h"
#include "server/waits/overlap.h"

#define STATUS_STEPS 150u           /* points of a job: five minutes */
#define STATUS_STEPS_NS 2000000000u /* from one to the next, at least */

/* A step, as it was for some seconds. */
struct status_step {
    uint64_t at_ns;
    uint32_t step_us;
    uint32_t waiting_us; /* of it, for a rank or for the ranks of a node */
    uint32_t network_us; /* of it, for communication with nothing beside it */
};

/* Begins as zeros. The oldest point makes room. */
struct status_steps {
    uint32_t step;  /* collectives of a step, as last known; 0: never, and a point is of one */
    uint32_t count; /* of points that there have been */
    struct status_step points[STATUS_STEPS];
};

/* Add what is known now, if the last point is old enough: the verdict on the job, and how its time
 * splits on this node, which is `self`. `step`: collectives that repeat; 0: none do. Nothing is
 * added without a verdict, nor while nothing repeats in a job whose steps were known. */
void status_steps_add(struct status_steps *steps, uint64_t now_ns, const struct verdict *verdict,
                      uint32_t step, const struct overlap_figures *overlap, uint32_t self);
/* Put the points as an array, the oldest first: how many seconds ago, and three times in ms. */
void status_put_steps(struct json_text *text, const char *key, const struct status_steps *steps,
                      uint64_t now_ns);

#endif
