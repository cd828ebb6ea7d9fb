/* Where the first node of a step takes the others in: all who have connected are heard at once, so
 * that nobody's silence keeps another one waiting. Calls common/base. */
#ifndef WORKER_PROGRAMS_STEP_DOOR_H
#define WORKER_PROGRAMS_STEP_DOOR_H

#include <stdint.h>

#include "common/base/error.h"

struct door;

/* limit: how many may be heard at once; where one more comes, the one that has been there longest
 * goes. NULL: ERR_SYSTEM (the port is in use), ERR_MEMORY. */
struct door *door_open(uint16_t port, uint32_t limit, struct error *error);
void door_close(struct door *door);

/* The next line that somebody has said: 1, with the connection and the line without its end, both
 * the caller's. 0: the time has passed. ERR_STATE: `alive` has hung up; ERR_SYSTEM. Who says
 * nothing for 5 s, or more than a line of 4 KiB, is sent away with a line in the log. */
int door_next(struct door *door, int alive, uint64_t deadline_ns, int *connection, char **line,
              struct error *error);

#endif
