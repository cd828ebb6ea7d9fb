#include "common/log/log_ring.h"

#include <stdio.h>
#include <string.h>

void log_ring_init(struct log_ring *ring)
{
    *ring = (struct log_ring){.places.limit = LOG_RING_LINES_MAX};
    pthread_mutex_init(&ring->lock, NULL);
}

void log_ring_destroy(struct log_ring *ring)
{
    quota_clear(&ring->places);
    pthread_mutex_destroy(&ring->lock);
}

/* Drop the oldest line of whoever has most. Where all have one line, drop the oldest of all. */
static void ring_make_room(struct log_ring *ring, uint64_t owner)
{
    uint32_t gone = 0, count = (uint32_t)ring->places.used;
    uint64_t giver = quota_giver(&ring->places, owner, 1);
    while (gone < count && ring->lines[gone].owner != giver)
        gone++;
    if (gone == count)
        gone = 0;
    quota_give_back(&ring->places, ring->lines[gone].owner, 1);
    memmove(&ring->lines[gone], &ring->lines[gone + 1],
            (count - gone - 1) * sizeof(ring->lines[0]));
}

void log_ring_put(struct log_ring *ring, uint64_t owner, enum log_level level, const char *time,
                  const char *text)
{
    pthread_mutex_lock(&ring->lock);
    if (quota_is_short(&ring->places, 1))
        ring_make_room(ring, owner);
    if (quota_take(&ring->places, owner, 1) == 0) { /* or there is no memory, and it is not kept */
        struct log_line *line = &ring->lines[ring->places.used - 1];
        line->owner = owner;
        line->level = level;
        snprintf(line->time, sizeof(line->time), "%s", time);
        snprintf(line->text, sizeof(line->text), "%s", text);
    }
    pthread_mutex_unlock(&ring->lock);
}

uint32_t log_ring_read(struct log_ring *ring, struct log_line lines[LOG_RING_LINES_MAX])
{
    pthread_mutex_lock(&ring->lock);
    uint32_t count = (uint32_t)ring->places.used;
    memcpy(lines, ring->lines, count * sizeof(lines[0]));
    pthread_mutex_unlock(&ring->lock);
    return count;
}
