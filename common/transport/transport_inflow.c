#include "common/transport/transport_inflow.h"

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/text/number_text.h"
#include "common/transport/transport_port.h"

#define LOOK_NS (20 * NS_PER_MS)
#define LOOK_PEERS 16u
#define DISORDERED_PER_MILLE 1u
#define ROUND_BYTES 8192u   /* a round in which fewer come, such as signs of life, is idle */
#define NEAR_DESCRIPTORS 16 /* behind the last one that was found: the next may be among them */
#define UNBOUNDED_BYTES (1 << 30) /* the kernel's own bounds are smaller */

struct inflow_peer {
    int fd; /* -1: none */
    uint64_t cookie;
    uint64_t bytes; /* as of the last look, and the next two */
    uint32_t segments, disordered;
    uint64_t counted_bytes; /* since the last count */
    bool bounded;           /* its window is */
};

struct inflow {
    uint32_t peers, connected;
    uint32_t next; /* to be looked at */
    int found;     /* the descriptor, for the last peer that has one */
    uint64_t looked_ns;
    uint64_t round_ns, round_bytes; /* when the last round ended, and what was counted by then */
    struct inflow_count count;
    struct inflow_bound bound;
    struct inflow_peer peer[];
};

/* --- the bound */

void inflow_conclude(struct inflow_bound *bound, const struct inflow_count *count)
{
    uint64_t us = count->ns / 1000;
    uint64_t rate = us ? count->bytes * 1000000 / us : 0;
    if (rate > bound->bytes_per_s)
        bound->bytes_per_s = rate;
    bound->senders = count->senders;
    bool lost = count->disordered * 1000 > count->segments * DISORDERED_PER_MILLE;
    if (bound->losses < INFLOW_LOSSES && lost)
        bound->losses++;
    else if (bound->losses < INFLOW_LOSSES && bound->losses > 0)
        bound->losses--;
}

/* A queue's share decides whether there is a bound. A long line holds more than its queue. */
uint32_t inflow_window(const struct inflow_bound *bound, uint32_t least_rtt_us)
{
    if (bound->losses < INFLOW_LOSSES || bound->senders == 0)
        return 0;
    uint64_t us = INFLOW_WINDOW_MS * 1000ull, rate = bound->bytes_per_s / bound->senders;
    if (rate * us / 1000000 >= INFLOW_BURST_BYTES)
        return 0;
    if (least_rtt_us != UINT32_MAX)
        us += least_rtt_us;
    uint64_t window = rate * us / 1000000;
    if (window > UNBOUNDED_BYTES)
        return UNBOUNDED_BYTES;
    return window < INFLOW_LEAST_BYTES ? INFLOW_LEAST_BYTES : (uint32_t)window;
}

/* --- sockets */

struct inflow *inflow_open(uint32_t peers)
{
    struct inflow *inflow = calloc(1, sizeof(*inflow) + peers * sizeof(inflow->peer[0]));
    if (!inflow)
        return NULL;
    inflow->peers = peers;
    for (uint32_t i = 0; i < peers; i++)
        inflow->peer[i].fd = -1;
    return inflow;
}

void inflow_close(struct inflow *inflow)
{
    free(inflow);
}

struct inflow_bound *inflow_concluded(struct inflow *inflow)
{
    return &inflow->bound;
}

static uint64_t inflow_cookie(int fd)
{
    uint64_t cookie = 0;
    socklen_t bytes = sizeof(cookie);
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) == 0 ? cookie : 0;
}

static bool inflow_is_between(int fd, const struct sockaddr_storage *local,
                              const struct sockaddr_storage *remote)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
    return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
           port_address_equal(&here, local) &&
           getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 &&
           port_address_equal(&there, remote);
}

/* The descriptor, or -1. Connections of a cluster that comes up are near each other, so that few
 * need a walk over all descriptors. */
static int inflow_find(int last, const struct sockaddr_storage *local,
                       const struct sockaddr_storage *remote)
{
    for (int fd = last + 1; fd <= last + NEAR_DESCRIPTORS; fd++) {
        if (inflow_is_between(fd, local, remote))
            return fd;
    }
    const struct dirent *entry;
    int found = -1;
    DIR *descriptors = opendir("/proc/self/fd");
    while (descriptors && found < 0 && (entry = readdir(descriptors)) != NULL) {
        uint64_t number;
        if (number_text_parse(entry->d_name, 0, INT32_MAX, &number, NULL) == 0 &&
            inflow_is_between((int)number, local, remote))
            found = (int)number;
    }
    if (descriptors)
        closedir(descriptors);
    return found;
}

void inflow_begin(struct inflow *inflow, uint32_t peer, const struct sockaddr_storage *local,
                  const struct sockaddr_storage *remote)
{
    inflow_end(inflow, peer);
    int fd = inflow_find(inflow->found, local, remote);
    uint64_t cookie = fd < 0 ? 0 : inflow_cookie(fd);
    if (cookie == 0)
        return;
    inflow->found = fd;
    inflow->peer[peer] = (struct inflow_peer){.fd = fd, .cookie = cookie};
    inflow->connected++;
}

void inflow_end(struct inflow *inflow, uint32_t peer)
{
    if (inflow->peer[peer].fd < 0)
        return;
    inflow->peer[peer].fd = -1;
    inflow->connected--;
}

/* The kernel raises a window's bound when it gives the socket more memory, so it is set each time.
 */
static bool inflow_set_window(const struct inflow_bound *bound, struct inflow_peer *peer,
                              uint32_t least_rtt_us)
{
    int window = (int)inflow_window(bound, least_rtt_us);
    if (window == 0 && peer->bounded)
        window = UNBOUNDED_BYTES;
    if (window > 0 &&
        setsockopt(peer->fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof(window)) != 0)
        return false;
    peer->bounded = window > 0 && window < UNBOUNDED_BYTES;
    return true;
}

/* Counts the bytes since the look before. Returns whether the socket is there. */
static bool inflow_look_at(struct inflow *inflow, struct inflow_peer *peer)
{
    struct tcp_info info = {0};
    socklen_t room = sizeof(info);
    if (inflow_cookie(peer->fd) != peer->cookie ||
        getsockopt(peer->fd, IPPROTO_TCP, TCP_INFO, &info, &room) != 0 ||
        !inflow_set_window(&inflow->bound, peer, info.tcpi_min_rtt))
        return false;
    uint64_t bytes = info.tcpi_bytes_received - peer->bytes;
    inflow->count.segments += info.tcpi_data_segs_in - peer->segments;
    inflow->count.disordered += info.tcpi_rcv_ooopack - peer->disordered;
    inflow->count.bytes += bytes;
    peer->segments = info.tcpi_data_segs_in;
    peer->disordered = info.tcpi_rcv_ooopack;
    peer->bytes = info.tcpi_bytes_received;
    peer->counted_bytes += bytes;
    return true;
}

/* All have been looked at. The time of an idle round would make the link slower than it is. */
static void inflow_end_round(struct inflow *inflow, uint64_t now_ns)
{
    struct inflow_count *count = &inflow->count;
    inflow->next = 0;
    if (count->bytes - inflow->round_bytes >= ROUND_BYTES && inflow->round_ns > 0)
        count->ns += now_ns - inflow->round_ns;
    inflow->round_ns = now_ns;
    inflow->round_bytes = count->bytes;
    if (count->segments < INFLOW_SEGMENTS)
        return;
    for (uint32_t i = 0; i < inflow->peers; i++) {
        count->senders += inflow->peer[i].counted_bytes >= INFLOW_SENDS_BYTES;
        inflow->peer[i].counted_bytes = 0;
    }
    inflow_conclude(&inflow->bound, count);
    *count = (struct inflow_count){0};
    inflow->round_bytes = 0;
}

void inflow_look(struct inflow *inflow, uint64_t now_ns)
{
    if (inflow->connected == 0 || now_ns - inflow->looked_ns < LOOK_NS)
        return;
    inflow->looked_ns = now_ns;
    for (uint32_t looked = 0; looked < LOOK_PEERS && inflow->next < inflow->peers; inflow->next++) {
        struct inflow_peer *peer = &inflow->peer[inflow->next];
        if (peer->fd < 0)
            continue;
        looked++;
        if (!inflow_look_at(inflow, peer))
            inflow_end(inflow, inflow->next);
    }
    if (inflow->next == inflow->peers)
        inflow_end_round(inflow, now_ns);
}
