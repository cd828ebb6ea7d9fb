#include "common/log/log_ring.h"

#include <stdio.h>

void log_ring_init(struct log_ring *ring)
{
    *ring = (struct log_ring){.count = 0};
    pthread_mutex_init(&ring->lock, NULL);
}

void log_ring_destroy(struct log_ring *ring)
{
    pthread_mutex_destroy(&ring->lock);
}

void log_ring_put(struct log_ring *ring, enum log_level level, const char *time, const char *text)
{
    pthread_mutex_lock(&ring->lock);
    struct log_line *line = &ring->lines[ring->count++ % LOG_RING_LINES];
    line->level = level;
    snprintf(line->time, sizeof(line->time), "%s", time);
    snprintf(line->text, sizeof(line->text), "%s", text);
    pthread_mutex_unlock(&ring->lock);
}

uint32_t log_ring_read(struct log_ring *ring, struct log_line lines[LOG_RING_LINES])
{
    pthread_mutex_lock(&ring->lock);
    uint32_t count = ring->count < LOG_RING_LINES ? (uint32_t)ring->count : LOG_RING_LINES;
    for (uint32_t i = 0; i < count; i++)
        lines[i] = ring->lines[(ring->count - count + i) % LOG_RING_LINES];
    pthread_mutex_unlock(&ring->lock);
    return count;
}
