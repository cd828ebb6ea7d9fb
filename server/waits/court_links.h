/* Whether a link is slow, of what owners have waited for the data of others: where less is known of
 * the results, as of two nodes, or of buffers that are too small for all to own a part.
 *
 * Pure. Calls server/waits/court.h.
 */
#ifndef SERVER_WAITS_COURT_LINKS_H
#define SERVER_WAITS_COURT_LINKS_H

#include "server/waits/court.h"

/* Accuses a link, a receiver, or a server at one of its ends; or nobody. */
void court_hear_links(struct court *court);

#endif
