/* The last lines of a log that were warnings or errors, for whoever asks what has happened: of the
 * program itself, and of each user or stranger who has caused lines, so that none of them pushes
 * out the others'. Any thread may put and read. */
#ifndef COMMON_LOG_LOG_RING_H
#define COMMON_LOG_LOG_RING_H

#include <pthread.h>
#include <stdint.h>

#include "common/base/quota.h"
#include "common/log/log.h"

#define LOG_RING_LINES_MAX 16u
#define LOG_RING_TEXT_BYTES 512u

struct log_line {
    enum log_level level;
    char time[LOG_TIME_BYTES];
    char text[LOG_RING_TEXT_BYTES]; /* a longer one is cut */
    uint64_t owner;
};

struct log_ring {
    pthread_mutex_t lock;
    struct quota places;                       /* of its lines, by their owners */
    struct log_line lines[LOG_RING_LINES_MAX]; /* [places.used], the oldest first */
};

void log_ring_init(struct log_ring *ring);
void log_ring_destroy(struct log_ring *ring);

/* time: as in the log's lines. The oldest line of the owner who has most makes room. */
void log_ring_put(struct log_ring *ring, uint64_t owner, enum log_level level, const char *time,
                  const char *text);
/* The oldest first; how many there are. */
uint32_t log_ring_read(struct log_ring *ring, struct log_line lines[LOG_RING_LINES_MAX]);

#endif
