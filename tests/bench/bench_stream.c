/* The floor of the wire: every rank sends to the next one and receives from the one before, so that
 * each link is loaded both ways at once, over plain TCP.
 *
 *   scripts/cluster.sh run -- bench_stream [MEBIBYTES [PORT]]
 *
 * So much is received by each and timed (default 128). With a port the way to the next rank is what
 * listens there on this node, such as a tunnel's end.
 * An eighth more comes first, for the windows to open. Then a byte goes round all ranks: what it
 * takes to the next one, where it wakes a process, is the delay. Each rank prints {"rank",
 * "stream_GBps", "delay_us"}.
 * Reads RANK, WORLD_SIZE, MASTER_PORT and CLUSTER_ADDRESSES, which `cluster.sh run` sets. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

#define PIECE_BYTES (256u << 10)
#define CONNECT_TRIES 1000
#define DELAY_ROUNDS 200

struct sender {
    int fd;
    uint64_t bytes;
    int error;
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_stream: %s: %s\n", what, strerror(errno));
    exit(1);
}

static unsigned long number_of(const char *name, unsigned long most)
{
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long value = text ? strtoul(text, &end, 10) : 0;
    if (!text || end == text || *end || value > most) {
        fprintf(stderr, "bench_stream: %s is missing or wrong: run it by scripts/cluster.sh run\n",
                name);
        exit(2);
    }
    return value;
}

/* The address of a rank: the i-th word of the list, divided by commas. */
static struct sockaddr_in address_of(unsigned long rank, unsigned long port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const char *word = getenv("CLUSTER_ADDRESSES");
    for (; word && rank; rank--) {
        word = strchr(word, ',');
        word = word ? word + 1 : NULL;
    }
    char text[INET_ADDRSTRLEN];
    snprintf(text, sizeof(text), "%.*s", word ? (int)strcspn(word, ",") : 0, word ? word : "");
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
        fprintf(stderr, "bench_stream: CLUSTER_ADDRESSES has no address of every rank\n");
        exit(2);
    }
    return address;
}

static int listener_open(unsigned long port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 1))
        fail("cannot listen");
    return fd;
}

/* Until the other rank listens. */
static int peer_connect(const struct sockaddr_in *address)
{
    for (int i = 0; i < CONNECT_TRIES; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            fail("cannot open a socket");
        if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
            return fd;
        close(fd);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    fail("cannot connect to the next rank");
    return -1;
}

static void *sender_run(void *context)
{
    static const uint8_t piece[PIECE_BYTES];
    struct sender *sender = context;
    for (uint64_t sent = 0; sent < sender->bytes;) {
        uint64_t left = sender->bytes - sent;
        ssize_t bytes =
            send(sender->fd, piece, left < PIECE_BYTES ? left : PIECE_BYTES, MSG_NOSIGNAL);
        if (bytes < 0) {
            sender->error = errno;
            return NULL;
        }
        sent += (uint64_t)bytes;
    }
    return NULL;
}

static void receive(int fd, uint64_t bytes)
{
    static uint8_t piece[PIECE_BYTES];
    while (bytes > 0) {
        ssize_t received = recv(fd, piece, bytes < PIECE_BYTES ? bytes : PIECE_BYTES, 0);
        if (received <= 0)
            fail("the rank before has gone");
        bytes -= (uint64_t)received;
    }
}

/* A byte goes round the ring so often. After two rounds everybody is there. */
static void ring_go_round(unsigned long rank, int from, int to, int rounds)
{
    uint8_t token = 0;
    for (int round = 0; round < rounds; round++) {
        if (rank == 0 && send(to, &token, 1, MSG_NOSIGNAL) != 1)
            fail("cannot send");
        receive(from, 1);
        if (rank != 0 && send(to, &token, 1, MSG_NOSIGNAL) != 1)
            fail("cannot send");
    }
}

int main(int argc, char **argv)
{
    unsigned long tunnel = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 128) << 20;
    unsigned long rank = number_of("RANK", 1000), size = number_of("WORLD_SIZE", 1000);
    unsigned long port = number_of("MASTER_PORT", 65535);
    if (!bytes || size < 2 || rank >= size || tunnel > 65535) {
        fprintf(stderr, "usage: bench_stream [MEBIBYTES [PORT]], with two ranks or more\n");
        return 2;
    }
    struct sockaddr_in next = address_of((rank + 1) % size, port);
    if (tunnel) {
        next.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        next.sin_port = htons((uint16_t)tunnel);
    }
    int listener = listener_open(port);
    int to = peer_connect(&next);
    int from = accept(listener, NULL, NULL), one = 1;
    if (from < 0)
        fail("cannot accept");
    if (setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
        fail("cannot set TCP_NODELAY");
    ring_go_round(rank, from, to, 2);
    struct sender sender = {.fd = to, .bytes = bytes + bytes / 8};
    pthread_t thread;
    if (pthread_create(&thread, NULL, sender_run, &sender))
        fail("no thread");
    receive(from, bytes / 8);
    uint64_t start = clock_now_ns();
    receive(from, bytes);
    uint64_t time = clock_now_ns() - start;
    pthread_join(thread, NULL);
    errno = sender.error;
    if (sender.error)
        fail("cannot send");
    ring_go_round(rank, from, to, 2); /* the queues are empty */
    start = clock_now_ns();
    ring_go_round(rank, from, to, DELAY_ROUNDS);
    double delay_ns = (double)(clock_now_ns() - start) / (DELAY_ROUNDS * (double)size);
    /* In one piece: the ranks share the output. */
    char line[128];
    int length =
        snprintf(line, sizeof(line), "{\"rank\":%lu,\"stream_GBps\":%.6f,\"delay_us\":%.3f}\n",
                 rank, (double)bytes / (double)time, delay_ns / 1e3);
    return write(STDOUT_FILENO, line, (size_t)length) == length ? 0 : 1;
}
