/* The speed of a node's link to the network, as the system knows it. */
#ifndef COMMON_TRANSPORT_TRANSPORT_LINK_H
#define COMMON_TRANSPORT_TRANSPORT_LINK_H

#include <stdint.h>
#include <sys/socket.h>

/* Where the system shows network interfaces. */
#define TRANSPORT_LINK_INTERFACES "/sys/class/net"

/* The speed, in Mbit/s, of the interface NAME that `interfaces` shows (TRANSPORT_LINK_INTERFACES).
 * 0: not known, or not one that hardware sets: a bridge, a tunnel, or a virtual cable tells what it
 * likes. */
uint32_t transport_link_mbits(const char *interfaces, const char *name);

/* Return the speed, in Mbit/s, of the interface that has this address; 0 also if no interface has
 * it. */
uint32_t transport_link_mbits_at(const struct sockaddr *address);

#endif
