/* The control thread: the Unix socket of the node's workers and shoalctl, the TCP connections to
 * the other daemons, the engine's events, and the clock, all for one coordinator. One libevent
 * loop; everything here is of the thread that calls control_run. */
#ifndef SERVER_CONTROL_CONTROL_H
#define SERVER_CONTROL_CONTROL_H

#include "server/control/ground/control_options.h"

struct control;

/* Bind and listen. Everything that options points to must outlive it. ERR_SYSTEM, ERR_CONFIG,
 * ERR_REFUSED (another daemon answers on the Unix socket), ERR_MEMORY. */
int control_create(struct control **control, const struct control_options *options,
                   struct error *error);
/* Until the drain is over: 0. ERR_STATE: ended at once by a second signal. */
int control_run(struct control *control);
void control_free(struct control *control);

/* The bound TCP port, for tests that bind port 0. */
uint16_t control_port(const struct control *control);

#endif
