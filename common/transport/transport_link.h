/* What a node's link to the network can carry, as the system knows it. */
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

/* That of the interface which has this address; 0 also: none has it. */
uint32_t transport_link_mbits_at(const struct sockaddr *address);

#endif
