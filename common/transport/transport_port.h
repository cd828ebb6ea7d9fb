/* The TCP port on which libfabric listens. libfabric takes every connection, waits for its first
 * words without a limit of time or number, and gives no hold on either (its sources 1.17 and 2.1,
 * prov/tcp). For this reason this file finds the listening socket among the descriptors of the
 * process, and adds what is missing:
 *
 * The door. While no peer is expected, a filter of the kernel (SO_ATTACH_FILTER) drops what would
 * begin a connection, so that a stranger costs nothing here. A socket that was accepted inherits
 * the filter of its listener; this one drops packets with SYN only, which no connection that stands
 * ever gets, so that it would not matter there.
 *
 * Silence. The kernel keeps a connection to itself until its first bytes have come, or a minute has
 * passed (TCP_DEFER_ACCEPT).
 *
 * Half a request. libfabric would wait for the other half; here it is not there, and may come
 * later.
 *
 * Strangers. While the door is open, or where the kernel refuses the filter (some let only root
 * attach one), the accepted sockets that belong to no peer are looked for now and then. A socket
 * that is older than PORT_SILENCE_MS is shut down, and where there are too many, so is the oldest
 * of the address that has most; libfabric then reads their end and closes them. Whoever is expected
 * speaks at once, so it is never among the oldest for long.
 *
 * One thread uses a port, the one that calls libfabric: nobody else closes these sockets.
 */
#ifndef COMMON_TRANSPORT_TRANSPORT_PORT_H
#define COMMON_TRANSPORT_TRANSPORT_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/log/log.h"

#define PORT_SILENCE_MS 5000u

struct port;

/* `address` is the one that libfabric listens on; `strangers` is how many may be there at once;
 * without a door it is always open, for connections that nobody announces. NULL: no memory. If the
 * process has no such socket, as with verbs, the port does nothing. */
struct port *port_open(const struct sockaddr_storage *address, uint32_t strangers, bool door,
                       struct log *log);
/* Before libfabric closes its listener. */
void port_close(struct port *port);

/* Whether libfabric's listener is a socket, and whether the kernel takes the filter. */
bool port_is_found(const struct port *port);
bool port_has_door(const struct port *port);
bool port_is_open(const struct port *port);

/* Let connections in until then, and as long as a peer is expected. */
void port_admit(struct port *port, uint64_t until_ns);
void port_expect(struct port *port, bool expected, uint64_t now_ns);

/* Whether the accepted connection with this remote address is a peer's. */
typedef bool port_owned(void *context, const struct sockaddr_storage *remote);

/* In every round; when there is nothing to do, port_is_busy says so for less. */
bool port_is_busy(const struct port *port);
void port_look(struct port *port, uint64_t now_ns, port_owned *owned, void *context);

bool port_address_equal(const struct sockaddr_storage *one, const struct sockaddr_storage *other);
/* Without their ports. */
bool port_host_equal(const struct sockaddr_storage *one, const struct sockaddr_storage *other);

#endif
