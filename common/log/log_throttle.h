/* Lines that a stranger or an unprivileged user can cause as often as he likes: a burst of them
 * goes, then one each interval, which says how many were left out. A throttle is one such class of
 * lines and belongs to one thread; zeroed, it is ready. Where one user's lines must not hide
 * another's there is a throttle for each, picked from a fixed table by a number. */
#ifndef COMMON_BASE_LOG_THROTTLE_H
#define COMMON_BASE_LOG_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/log/log.h"

#define LOG_THROTTLE_BURST 32u
#define LOG_THROTTLE_INTERVAL_NS (5 * NS_PER_S)
#define LOG_THROTTLES_MAX 64u

struct log_throttle {
    uint64_t paid_ns;  /* the lines so far have used up the time until here */
    uint64_t left_out; /* since the last line that went */
};

struct log_throttles {
    struct log_throttle of[LOG_THROTTLES_MAX];
};

/* Whether a line may go at now_ns; if not, it counts as left out. If so, *left_out is how many
 * were before it, to be told with it. */
bool log_throttle_pass(struct log_throttle *throttle, uint64_t now_ns, uint64_t *left_out);

/* log_write, if the throttle lets it pass. A line that the log's level keeps back costs nothing. */
void log_throttled(struct log *log, struct log_throttle *throttle, uint64_t now_ns,
                   enum log_level level, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The throttle of a user, a node, an address; two numbers may share one. */
struct log_throttle *log_throttle_of(struct log_throttles *throttles, uint64_t number);

/* Now and then: say how many lines were left out of those of which no more come. `what` they are
 * about: "connections of strangers". */
void log_throttle_sweep(struct log *log, struct log_throttle *throttle, uint64_t now_ns,
                        const char *what);
void log_throttles_sweep(struct log *log, struct log_throttles *throttles, uint64_t now_ns,
                         const char *what);

#endif
