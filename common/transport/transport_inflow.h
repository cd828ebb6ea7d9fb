/* How much peers may have under way to this node at once, over TCP.
 *
 * A switch's port has a short queue. It drops what many nodes send to one at the same time, and
 * they send it again. Where that goes on, the window of each connection into this node is bounded
 * (TCP_WINDOW_CLAMP) to its share of what the link carries in INFLOW_WINDOW_MS and the connection's
 * least round trip. Where nothing is lost, or only now and then, or a share of INFLOW_WINDOW_MS
 * holds a whole burst, nothing is set.
 *
 * The sockets are libfabric's. They are found among the descriptors of the process by their
 * addresses, and known by the kernel's cookie: a number that has become another's is left alone.
 * One thread uses an inflow, the one that calls libfabric: nobody else closes these sockets.
 */
#ifndef COMMON_TRANSPORT_TRANSPORT_INFLOW_H
#define COMMON_TRANSPORT_TRANSPORT_INFLOW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define INFLOW_WINDOW_MS 15u
#define INFLOW_LEAST_BYTES 5792u /* of a window: 4 segments of 1448 */
/* TCP hands the network no more at once: a queue that holds so much of every sender is long. */
#define INFLOW_BURST_BYTES (64u << 10)
#define INFLOW_SEGMENTS 8192u /* of a count: fewer say nothing of how many are lost */
#define INFLOW_LOSSES 5u      /* counts with losses, beyond those without */
/* A peer with fewer in a count sends nothing that is worth a window. */
#define INFLOW_SENDS_BYTES (64u << 10)

/* All connections together received so much since the count before. */
struct inflow_count {
    uint64_t segments;
    uint64_t disordered; /* of them: behind a gap */
    uint64_t bytes;
    uint64_t ns;      /* in which they came, without idle time */
    uint32_t senders; /* peers with INFLOW_SENDS_BYTES of them */
};

/* A node's conclusion from its counts. Begins as zeros. */
struct inflow_bound {
    uint64_t bytes_per_s; /* the most that came in any count */
    uint32_t losses;      /* counts with losses less those without; stays at INFLOW_LOSSES */
    uint32_t senders;     /* in the last count */
};

/* Takes a count of INFLOW_SEGMENTS at the least. One in a thousand behind a gap is a loss. */
void inflow_conclude(struct inflow_bound *bound, const struct inflow_count *count);
/* The most bytes of the window of a connection with this least round trip, UINT32_MAX where it is
 * not known; 0: whatever the kernel likes. */
uint32_t inflow_window(const struct inflow_bound *bound, uint32_t least_rtt_us);

struct inflow;

/* NULL: no memory. */
struct inflow *inflow_open(uint32_t peers);
void inflow_close(struct inflow *inflow);

/* The peer has a connection between these addresses. Where it is no socket, nothing is done. */
void inflow_begin(struct inflow *inflow, uint32_t peer, const struct sockaddr_storage *local,
                  const struct sockaddr_storage *remote);
/* Before libfabric closes it; of a peer without one it does nothing. */
void inflow_end(struct inflow *inflow, uint32_t peer);

/* The conclusion so far, to be shown; a test may conclude something else. */
struct inflow_bound *inflow_concluded(struct inflow *inflow);

/* Call it as often as you like: a few connections are looked at every 20 ms. */
void inflow_look(struct inflow *inflow, uint64_t now_ns);

#endif
