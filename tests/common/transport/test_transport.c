/* The libfabric kinds, over loopback and shared memory: opening, exchange, sleeping. */
#include "common/transport/transport.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/transport/transport_fabric.h"
#include "tests/lib/ends.h"
#include "tests/lib/suite.h"

static const char *const providers[] = {"tcp", "tcp;ofi_rxm", "shm"};
#define PROVIDERS ((int)(sizeof(providers) / sizeof(providers[0])))

/* --- exchange --- */

/* One direction of traffic: messages of a header (64 bytes) and a payload, each with its number. */
struct stream {
    struct end *from, *to;
    uint32_t to_number, from_number; /* as the sender and the receiver call each other */
    uint32_t payload;
    uint32_t total, next, done, window;
    uint8_t *out[4], *in[8];
    void *out_registration[4], *in_registration[8];
    bool out_busy[4];
};

static void stream_open(struct stream *s)
{
    size_t bytes = 64 + (size_t)s->payload;
    for (int i = 0; i < 4; i++) {
        s->out[i] = malloc(bytes);
        s->out_registration[i] = end_register(s->from, s->out[i], bytes);
    }
    for (int i = 0; i < 8; i++) {
        s->in[i] = malloc(bytes);
        s->in_registration[i] = end_register(s->to, s->in[i], bytes);
        ck_assert_int_eq(transport_post_receive(s->to->transport, s->from_number, s->in[i],
                                                (uint32_t)bytes, s->in_registration[i], s->in[i]),
                         0);
    }
}

static void stream_close(struct stream *s)
{
    for (int i = 0; i < 4; i++)
        transport_unregister(s->from->transport, s->out_registration[i]);
    for (int i = 0; i < 8; i++)
        transport_unregister(s->to->transport, s->in_registration[i]);
}

static void stream_free(struct stream *s)
{
    for (int i = 0; i < 4; i++)
        free(s->out[i]);
    for (int i = 0; i < 8; i++)
        free(s->in[i]);
}

static void stream_send(struct stream *s)
{
    for (int i = 0; i < 4 && s->next < s->total && s->next - s->done < 8; i++) {
        if (s->out_busy[i])
            continue;
        uint32_t number = s->next;
        memcpy(s->out[i], &number, 4);
        fill(s->out[i] + 4, 60 + (size_t)s->payload, number);
        struct iovec parts[2] = {{s->out[i], 64}, {s->out[i] + 64, s->payload}};
        void *registrations[2] = {s->out_registration[i], s->out_registration[i]};
        int code = transport_send(s->from->transport, s->to_number, parts, registrations,
                                  s->payload > 0 ? 2 : 1, &s->out_busy[i]);
        if (code == ERR_AGAIN)
            return;
        ck_assert_int_eq(code, 0);
        s->out_busy[i] = true;
        s->next++;
    }
}

static void stream_event(struct stream *s, const struct end *at, const struct transport_event *e)
{
    if (e->type == TRANSPORT_SENT && at == s->from) {
        for (int i = 0; i < 4; i++) {
            if (e->context == &s->out_busy[i]) {
                ck_assert_int_eq(e->status, 0);
                s->out_busy[i] = false;
            }
        }
    }
    for (int i = 0; e->type == TRANSPORT_RECEIVED && at == s->to && i < 8; i++) {
        if (e->context != s->in[i])
            continue;
        uint32_t number = UINT32_MAX;
        memcpy(&number, s->in[i], 4);
        ck_assert_uint_eq(e->bytes, 64 + s->payload);
        ck_assert_uint_eq(number, s->done);
        ck_assert_uint_eq(e->peer, s->from_number);
        ck_assert(filled(s->in[i] + 4, 60 + (size_t)s->payload, number));
        memset(s->in[i], 0, 64 + (size_t)s->payload);
        s->done++;
        ck_assert_int_eq(transport_post_receive(s->to->transport, s->from_number, s->in[i],
                                                64 + s->payload, s->in_registration[i], s->in[i]),
                         0);
    }
}

static void streams_run(struct stream *streams, int count, struct end **ends, int end_count)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    for (bool busy = true; busy;) {
        int got = 0;
        for (int i = 0; i < count; i++)
            stream_send(&streams[i]);
        for (int i = 0; i < end_count; i++) {
            struct transport_event events[8];
            int n = transport_poll(ends[i]->transport, events, 8);
            for (int j = 0; j < n; j++) {
                for (int k = 0; k < count; k++)
                    stream_event(&streams[k], ends[i], &events[j]);
            }
            got += n;
        }
        busy = false;
        for (int i = 0; i < count; i++) {
            busy |= streams[i].done < streams[i].total;
            for (int j = 0; j < 4; j++)
                busy |= streams[i].out_busy[j];
        }
        if (busy && got == 0)
            ends_sleep(ends, end_count, 1000);
        ck_assert_msg(clock_now_ns() < end_ns, "waited in vain: %u of %u", streams[0].done,
                      streams[0].total);
    }
}

START_TEST(exchange)
{
    const char *provider = providers[_i];
    static const uint32_t payloads[] = {0, 1, 4095, 65536, 1u << 20, 4u << 20};
    if (!provider_there("exchange", provider))
        return;
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    ends_connect(&a, 0, &b, 2);
    for (size_t i = 0; i < sizeof(payloads) / sizeof(payloads[0]); i++) {
        uint32_t total = payloads[i] < 100000 ? 300 : 12;
        /* Datagram receives are shared, so only one side at a time would know its own: one
         * direction, then the other. */
        bool both = transport_info(a.transport)->per_peer_receives;
        struct stream streams[2] = {{.from = &a,
                                     .to = &b,
                                     .to_number = 0,
                                     .from_number = 2,
                                     .payload = payloads[i],
                                     .total = total},
                                    {.from = &b,
                                     .to = &a,
                                     .to_number = 2,
                                     .from_number = 0,
                                     .payload = payloads[i],
                                     .total = total}};
        struct end *ends[2] = {&a, &b};
        stream_open(&streams[0]);
        stream_open(&streams[1]);
        if (both) {
            streams_run(streams, 2, ends, 2);
        } else {
            streams_run(&streams[0], 1, ends, 2);
            streams_run(&streams[1], 1, ends, 2);
        }
        stream_close(&streams[0]);
        stream_close(&streams[1]);
        /* The receives that are still posted hold these buffers: start over without them. */
        end_close(&a);
        end_close(&b);
        stream_free(&streams[0]);
        stream_free(&streams[1]);
        end_open(&a, provider);
        end_open(&b, provider);
        ends_connect(&a, 0, &b, 2);
    }
    end_close(&a);
    end_close(&b);
}
END_TEST

START_TEST(three_nodes)
{
    const char *provider = providers[_i];
    if (!provider_there("three_nodes", provider))
        return;
    struct end nodes[3];
    struct end *ends[3] = {&nodes[0], &nodes[1], &nodes[2]};
    for (int i = 0; i < 3; i++)
        end_open(&nodes[i], provider);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t j = i + 1; j < 3; j++)
            ends_connect(&nodes[i], j, &nodes[j], i);
    }
    /* A ring, so that each node receives from one peer (shared receives cannot tell in advance). */
    struct stream streams[3];
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t next = (i + 1) % 3;
        streams[i] = (struct stream){.from = &nodes[i],
                                     .to = &nodes[next],
                                     .to_number = next,
                                     .from_number = i,
                                     .payload = 30000,
                                     .total = 100};
        stream_open(&streams[i]);
    }
    streams_run(streams, 3, ends, 3);
    for (int i = 0; i < 3; i++)
        stream_close(&streams[i]);
    for (int i = 0; i < 3; i++)
        end_close(&nodes[i]);
    for (int i = 0; i < 3; i++)
        stream_free(&streams[i]);
}
END_TEST

START_TEST(many_in_flight)
{
    const char *provider = providers[_i];
    if (!provider_there("many_in_flight", provider))
        return;
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    ends_connect(&a, 1, &b, 0);
    static uint8_t out[SENDS + 1][65536], in[RECEIVES][65536];
    for (int i = 0; i < RECEIVES; i++)
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in[i], sizeof(in[i]), NULL, in[i]),
                         0);
    if (transport_info(b.transport)->per_peer_receives)
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in[0], 64, NULL, NULL), ERR_AGAIN);
    for (uint32_t i = 0; i < SENDS; i++) {
        fill(out[i], sizeof(out[i]), i);
        struct iovec part = {out[i], sizeof(out[i])};
        ck_assert_int_eq(transport_send(a.transport, 1, &part, NULL, 1, out[i]), 0);
    }
    /* Nothing was polled, so nothing is finished: the queue is full. */
    struct iovec part = {out[SENDS], sizeof(out[SENDS])};
    ck_assert_int_eq(transport_send(a.transport, 1, &part, NULL, 1, out[SENDS]), ERR_AGAIN);
    ends_wait(&a, TRANSPORT_SENT, SENDS, &b, TRANSPORT_RECEIVED, SENDS);
    uint32_t next = 0;
    for (int i = 0; i < b.count; i++) {
        if (b.events[i].type != TRANSPORT_RECEIVED)
            continue;
        ck_assert_uint_eq(b.events[i].bytes, sizeof(out[0]));
        ck_assert(filled(b.events[i].context, sizeof(out[0]), next++));
    }
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in[0], sizeof(in[0]), NULL, in[0]), 0);
    ck_assert_int_eq(transport_send(a.transport, 1, &part, NULL, 1, out[SENDS]), 0);
    ends_wait(&a, TRANSPORT_SENT, SENDS + 1, &b, TRANSPORT_RECEIVED, SENDS + 1);
    end_close(&a);
    end_close(&b);
}
END_TEST

/* --- connections under load --- */

/* One small message. Over loopback it is there when it has been sent, so the receiver's first poll
 * finds it. */
static void message_pass(struct end *from, struct end *to, uint8_t in[64])
{
    static uint8_t out[64];
    struct iovec part = {out, sizeof(out)};
    int sent = end_count(from, TRANSPORT_SENT), received = end_count(to, TRANSPORT_RECEIVED);
    ck_assert_int_eq(transport_post_receive(to->transport, 0, in, sizeof(out), NULL, in), 0);
    ck_assert_int_eq(transport_send(from->transport, 1, &part, NULL, 1, out), 0);
    ends_wait(from, TRANSPORT_SENT, sent + 1, NULL, TRANSPORT_SENT, 0);
    ends_wait(to, TRANSPORT_RECEIVED, received + 1, NULL, TRANSPORT_SENT, 0);
}

/* Whoever polls and always finds data must still find who connects. */
START_TEST(connection_while_data_comes)
{
    if (!provider_there("connection_while_data_comes", "tcp"))
        return;
    struct end a, b, c;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    end_open(&c, "tcp");
    ends_connect(&a, 1, &b, 0);
    uint8_t of_b[TRANSPORT_ADDRESS_BYTES], in[64];
    uint32_t bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(b.transport, of_b, &bytes, &error), 0);
    ck_assert_int_eq(transport_expect(b.transport, 2, of_b, bytes, token_b, &error), 0);
    ck_assert_int_eq(transport_connect(c.transport, 1, of_b, bytes, token_b, &error), 0);
    int up = end_count(&b, TRANSPORT_PEER_UP), messages = 0;
    for (; messages < 4000 && end_count(&b, TRANSPORT_PEER_UP) == up; messages++) {
        message_pass(&a, &b, in);
        end_poll(&c);
    }
    ck_assert_int_lt(messages, 4000);
    end_close(&a);
    end_close(&b);
    end_close(&c);
}
END_TEST

/* --- opening --- */

START_TEST(provider_missing)
{
    static const char *const names[] = {"nonsense", "udp", "sockets", "net",
                                        "",         "efa", "verbs",   "tcp:rdm"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct end end;
        struct error error = {0};
        bool on_list = i >= 5;
        if (on_list && transport_fabric_available(i == 7 ? "tcp" : names[i], i == 6, "127.0.0.1")) {
            suite_skip("provider_missing", "this machine has %s", names[i]);
            continue;
        }
        ck_assert_int_eq(end_try_open(&end, names[i], &error), ERR_UNSUPPORTED);
        ck_assert_int_eq(error.code, ERR_UNSUPPORTED);
        char quoted[32];
        snprintf(quoted, sizeof(quoted), "\"%s\"", names[i]);
        ck_assert_msg(strstr(error.text, quoted) != NULL, "%s", error.text);
        ck_assert_msg(strstr(error.text, "this machine has \"tcp\"") != NULL, "%s", error.text);
        ck_assert_msg(on_list == !strstr(error.text, "not known"), "%s", error.text);
    }
}
END_TEST

START_TEST(address_missing)
{
    struct log log;
    log_init(&log, "test", LOG_LEVEL_ERROR, -1, false);
    struct transport_options options = {.provider = "tcp",
                                        .interface_address = "203.0.113.77",
                                        .message_bytes = 100,
                                        .peers = 1,
                                        .sends_per_peer = 1,
                                        .receives_per_peer = 1,
                                        .log = &log};
    struct transport *transport = NULL;
    struct error error = {0};
    ck_assert_int_ne(transport_open(&transport, &options, &error), 0);
    ck_assert_ptr_null(transport);
    ck_assert_msg(strlen(error.text) > 0, "no text");
}
END_TEST

/* Messages have come that nobody has looked for: once the transport has stopped, the memory that
 * waits for them is gone for it, though it has yet to be closed. */
START_TEST(posted_memory_goes_before_the_transport)
{
    enum { BYTES = 1000 };
    const char *provider = providers[_i];
    if (!provider_there("posted_memory_goes_before_the_transport", provider))
        return;
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    ends_connect(&a, 1, &b, 0);
    size_t posted = (size_t)RECEIVES * 4096;
    uint8_t *in = mmap(NULL, posted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(in != MAP_FAILED);
    for (size_t i = 0; i < RECEIVES; i++)
        ck_assert_int_eq(
            transport_post_receive(b.transport, 0, in + i * 4096, 4096, NULL, in + i * 4096), 0);
    static uint8_t out[BYTES];
    struct iovec part = {out, sizeof(out)};
    ck_assert_int_eq(transport_send(a.transport, 1, &part, NULL, 1, out), 0);
    ends_wait(&a, TRANSPORT_SENT, 1, &b, TRANSPORT_RECEIVED,
              1); /* now both have found each other */
    for (uint32_t i = 1; i < SENDS; i++)
        ck_assert_int_eq(transport_send(a.transport, 1, &part, NULL, 1, out), 0);
    for (int i = 0; i < 100; i++)
        end_poll(&a);
    /* Messages that wait to be sent make a provider look at what has come while it closes. */
    static uint8_t large[65536];
    struct iovec all = {large, sizeof(large)};
    for (uint32_t i = 0; i < SENDS; i++)
        ck_assert_int_eq(transport_send(b.transport, 0, &all, NULL, 1, large), 0);
    if (transport_info(b.transport)->per_peer_receives)
        transport_disconnect(b.transport, 0);
    transport_stop(b.transport);
    munmap(in, posted);
    end_close(&b);
    end_close(&a);
}
END_TEST

/* Open on this address and close; what it called itself. */
static void open_on(const char *interface_address, uint16_t port, char local[TRANSPORT_NAME_BYTES])
{
    struct log log;
    log_init(&log, "test", LOG_LEVEL_ERROR, -1, false);
    struct transport_options options = {.provider = "tcp",
                                        .interface_address = interface_address,
                                        .interface_port = port,
                                        .message_bytes = 100,
                                        .peers = 1,
                                        .sends_per_peer = 5000, /* more than tcp queues */
                                        .receives_per_peer = 1u << 20,
                                        .log = &log};
    struct transport *transport = NULL;
    struct error error = {0};
    int code = transport_open(&transport, &options, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    snprintf(local, TRANSPORT_NAME_BYTES, "%s", transport_info(transport)->local);
    transport_close(transport);
}

START_TEST(addresses)
{
    char local[TRANSPORT_NAME_BYTES];
    open_on("127.0.0.1", 0, local);
    ck_assert_msg(strncmp(local, "127.0.0.1:", 10) == 0 && atoi(local + 10) > 0, "%s", local);
    int port = atoi(local + 10); /* it was free just now */
    open_on("127.0.0.1", (uint16_t)port, local);
    ck_assert_int_eq(atoi(local + 10), port);
    open_on(NULL, 0, local);
    ck_assert_msg(strchr(local, ':') && strncmp(local, "0.0.0.0", 7) != 0, "%s", local);
    if (transport_fabric_available("tcp", true, "::1")) {
        open_on("::1", 0, local);
        ck_assert_msg(strncmp(local, "[::1]:", 6) == 0, "%s", local);
    } else {
        suite_skip("addresses", "no IPv6 loopback");
    }
}
END_TEST

/* A peer's number of its interface says nothing here; addresses of another form are refused. */
START_TEST(peers_addresses)
{
    struct fi_info info = {.addr_format = FI_SOCKADDR_IN6};
    static const struct {
        const char *own, *peer;
        uint32_t interface; /* of the peer, here; it has 7 where it is */
    } cases[] = {{"fe80::1", "fe80::2", 3}, {"fe80::1", "fd00::2", 7}, {"fd00::1", "fd00::2", 7}};
    for (int i = 0; i < 3; i++) {
        struct sockaddr_in6 own = {.sin6_family = AF_INET6, .sin6_scope_id = 3};
        struct sockaddr_in6 peer = {.sin6_family = AF_INET6, .sin6_scope_id = 7, .sin6_port = 9};
        inet_pton(AF_INET6, cases[i].own, &own.sin6_addr);
        inet_pton(AF_INET6, cases[i].peer, &peer.sin6_addr);
        uint8_t here[TRANSPORT_ADDRESS_BYTES];
        ck_assert(fabric_address_take(&info, &own, sizeof(own), &peer, sizeof(peer), here));
        peer.sin6_scope_id = cases[i].interface;
        ck_assert_mem_eq(here, &peer, sizeof(peer));
        ck_assert(!fabric_address_take(&info, &own, sizeof(own), &peer, sizeof(peer) - 1, here));
        ck_assert(!fabric_address_take(&info, &own, sizeof(own), &peer, 0, here));
        peer.sin6_family = AF_INET;
        ck_assert(!fabric_address_take(&info, &own, sizeof(own), &peer, sizeof(peer), here));
    }
}
END_TEST

START_TEST(information)
{
    struct end end;
    for (int i = 0; i < PROVIDERS; i++) {
        if (!provider_there("information", providers[i]))
            continue;
        end_open(&end, providers[i]);
        const struct transport_info *info = transport_info(end.transport);
        ck_assert_str_eq(info->provider, providers[i]);
        ck_assert_str_eq(info->endpoint, i == 0 ? "connected" : "datagram");
        ck_assert_int_eq(info->per_peer_receives, i == 0);
        uint32_t version = fi_version();
        char expected[32];
        snprintf(expected, sizeof(expected), "libfabric %u.%u", FI_MAJOR(version),
                 FI_MINOR(version));
        ck_assert_str_eq(info->version, expected);
        const char *start = strcmp(providers[i], "shm") == 0 ? "fi_shm://" : "127.0.0.1:";
        ck_assert_msg(strncmp(info->local, start, strlen(start)) == 0, "%s", info->local);
        end_close(&end);
    }
    end_open(&end, "auto");
    ck_assert_msg(strcmp(transport_info(end.transport)->provider, "tcp") == 0 ||
                      strcmp(transport_info(end.transport)->provider, "verbs") == 0 ||
                      strcmp(transport_info(end.transport)->provider, "efa") == 0,
                  "auto took %s", transport_info(end.transport)->provider);
    end_close(&end);
}
END_TEST

static void own_handler(int number)
{
    (void)number;
}

START_TEST(signals_stay_ours)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGSEGV, SIGABRT, SIGBUS, SIGILL};
    void (*before[6])(int);
    struct sigaction action;
    signal(SIGTERM, own_handler);
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(sigaction(numbers[i], NULL, &action), 0);
        before[i] = action.sa_handler;
    }
    ck_assert(before[1] == own_handler);
    for (int p = 0; p < PROVIDERS; p++) {
        if (!provider_there("signals_stay_ours", providers[p]))
            continue;
        struct end end;
        end_open(&end, providers[p]);
        for (int i = 0; i < 6; i++) {
            ck_assert_int_eq(sigaction(numbers[i], NULL, &action), 0);
            ck_assert_msg(action.sa_handler == before[i], "%s took signal %d", providers[p],
                          numbers[i]);
        }
        end_close(&end);
    }
}
END_TEST

/* The first call of main() has prepared the environment: a program under libfabric dies of SIGTERM
 * again. */
START_TEST(environment_prepared)
{
    static const int numbers[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL};
    for (int i = 0; i < 4; i++) {
        struct sigaction action;
        ck_assert_int_eq(sigaction(numbers[i], NULL, &action), 0);
#ifndef SHOAL_SANITIZED
        ck_assert_msg(action.sa_handler == SIG_DFL, "signal %d is caught", numbers[i]);
#endif
    }
    ck_assert_str_eq(getenv("IPATH_NO_BACKTRACE"), "1");
    ck_assert_str_eq(getenv("HFI_NO_BACKTRACE"), "1");
    ck_assert_int_ge(atoi(getenv("FI_OFI_RXM_EAGER_LIMIT")), (16 << 20) + 64);
    ck_assert_str_eq(getenv("FI_OFI_RXM_SAR_LIMIT"), "1");
}
END_TEST

/* --- a fabric that fails --- */

static ssize_t read_fails(struct fid_cq *queue, void *entries, size_t count)
{
    (void)queue, (void)entries, (void)count;
    return -FI_EIO;
}

static ssize_t readfrom_fails(struct fid_cq *queue, void *entries, size_t count, fi_addr_t *sources)
{
    (void)sources;
    return read_fails(queue, entries, count);
}

/* Nothing completes any more: on connected endpoints the peers are down, on the others whoever asks
 * after its messages comes to know. The log is not filled with it. */
START_TEST(completions_cannot_be_read)
{
    const char *provider = providers[_i];
    if (!provider_there("completions_cannot_be_read", provider))
        return;
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    ends_connect(&a, 0, &b, 0);
    static uint8_t in[1000];
    ck_assert_int_eq(transport_post_receive(a.transport, 0, in, sizeof(in), NULL, in), 0);
    end_logged(&a, "");
    struct fid_cq *queue = ((struct fabric *)a.transport)->cq;
    struct fi_ops_cq *real = queue->ops, failing = *real;
    failing.read = read_fails;
    failing.readfrom = readfrom_fails;
    queue->ops = &failing;
    for (int i = 0; i < 1000; i++)
        end_poll(&a);
    char lines[16384];
    ssize_t bytes = read(a.log_fd, lines, sizeof(lines) - 1);
    ck_assert_int_gt(bytes, 0);
    lines[bytes] = '\0';
    int told = 0;
    for (const char *at = lines; (at = strstr(at, "completion queue: ")) != NULL; at++)
        told++;
    ck_assert_msg(told >= 1 && told <= 20, "%d lines", told);
    bool connected = transport_info(a.transport)->per_peer_receives;
    const struct transport_event *down = end_find(&a, TRANSPORT_PEER_DOWN);
    ck_assert_int_eq(down != NULL, connected);
    ck_assert_int_eq(end_count(&a, TRANSPORT_RETURNED), connected);
    if (down)
        ck_assert_ptr_nonnull(strstr(down->text, "completion queue"));
    queue->ops = real;
    end_close(&a);
    end_close(&b);
}
END_TEST

/* --- sleeping --- */

START_TEST(descriptor_wakes)
{
    const char *provider = providers[_i];
    if (!provider_there("descriptor_wakes", provider))
        return;
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    if (transport_descriptor(b.transport) < 0) {
        ck_assert(transport_can_sleep(b.transport));
        suite_skip("descriptor_wakes", "%s has no wait objects", provider);
        end_close(&a);
        end_close(&b);
        return;
    }
    ends_connect(&a, 0, &b, 0);
    static uint8_t in[1 << 20], out[1 << 20];
    struct iovec part = {out, sizeof(out)};
    struct pollfd fd = {transport_descriptor(b.transport), POLLIN, 0};
    for (int round = 1; round <= 5; round++) {
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in, sizeof(in), NULL, in), 0);
        end_assert_quiet(&a);
        end_assert_quiet(&b);
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
        uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
        while (end_count(&b, TRANSPORT_RECEIVED) < round) {
            end_poll(&a);
            if (transport_can_sleep(b.transport) && end_count(&a, TRANSPORT_SENT) == round)
                ck_assert_int_eq(poll(&fd, 1, (int)(PATIENCE_NS / NS_PER_MS)), 1);
            end_poll(&b);
            ck_assert(clock_now_ns() < end_ns);
        }
        ends_wait(&a, TRANSPORT_SENT, round, &b, TRANSPORT_RECEIVED, round);
    }
    end_close(&a);
    end_close(&b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("transport");
    TCase *c = tcase_create("libfabric");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, exchange, 0, PROVIDERS);
    tcase_add_loop_test(c, three_nodes, 0, PROVIDERS);
    tcase_add_loop_test(c, many_in_flight, 0, PROVIDERS);
    tcase_add_test(c, connection_while_data_comes);
    tcase_add_loop_test(c, posted_memory_goes_before_the_transport, 0, PROVIDERS);
    tcase_add_test(c, provider_missing);
    tcase_add_test(c, address_missing);
    tcase_add_test(c, addresses);
    tcase_add_test(c, peers_addresses);
    tcase_add_test(c, information);
    tcase_add_test(c, signals_stay_ours);
    tcase_add_test(c, environment_prepared);
    tcase_add_loop_test(c, completions_cannot_be_read, 0, PROVIDERS);
    tcase_add_loop_test(c, descriptor_wakes, 0, PROVIDERS);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    transport_prepare_environment();
    return suite_main(suite());
}
