/* The libfabric kinds, over loopback and shared memory: real providers, real processes. */
#include "common/transport.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/lib/suite.h"

#define MESSAGE_BYTES (64 + (4u << 20))
#define PEERS 3
#define SENDS 16
#define RECEIVES 16
#define EVENTS 65536
#define PATIENCE_NS (40 * NS_PER_S)

static const char *const providers[] = {"tcp", "tcp;ofi_rxm", "shm"};
#define PROVIDERS ((int)(sizeof(providers) / sizeof(providers[0])))

/* One side: a transport and all that it reported. */
struct end {
    struct transport *transport;
    struct transport_event *events;
    int count;
    int log_fd; /* read end */
    struct log log;
};

static const uint8_t token_a[TRANSPORT_TOKEN_BYTES] = "expected token!";
static const uint8_t token_b[TRANSPORT_TOKEN_BYTES] = "quite another 1";

static int end_try_open(struct end *end, const char *provider, struct error *error)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    *end = (struct end){.log_fd = fds[0]};
    log_init(&end->log, "test", LOG_LEVEL_DEBUG, fds[1], false);
    struct transport_options options = {.provider = provider,
                                        .interface_address = "127.0.0.1",
                                        .message_bytes = MESSAGE_BYTES,
                                        .peers = PEERS,
                                        .sends_per_peer = SENDS,
                                        .receives_per_peer = RECEIVES,
                                        .log = &end->log};
    end->events = calloc(EVENTS, sizeof(end->events[0]));
    int code = transport_open(&end->transport, &options, error);
    if (code) {
        free(end->events);
        close(fds[0]);
        close(fds[1]);
    }
    return code;
}

static void end_open(struct end *end, const char *provider)
{
    struct error error = {0};
    int code = end_try_open(end, provider, &error);
    ck_assert_msg(code == 0, "%s", error.text);
}

static void end_close(struct end *end)
{
    transport_close(end->transport);
    free(end->events);
    close(end->log_fd);
    close(end->log.fd);
}

static bool end_logged(struct end *end, const char *text)
{
    char lines[16384];
    ssize_t bytes = read(end->log_fd, lines, sizeof(lines) - 1);
    lines[bytes > 0 ? bytes : 0] = '\0';
    return strstr(lines, text) != NULL;
}

static int count_of(const struct end *end, enum transport_event_type type)
{
    int count = 0;
    for (int i = 0; i < end->count; i++)
        count += end->events[i].type == type;
    return count;
}

static const struct transport_event *find(const struct end *end, enum transport_event_type type)
{
    for (int i = 0; i < end->count; i++) {
        if (end->events[i].type == type)
            return &end->events[i];
    }
    return NULL;
}

static void sleep_on(struct end *const *ends, int count, int timeout_ms)
{
    struct pollfd fds[4];
    for (int i = 0; i < count; i++) {
        if (!transport_can_sleep(ends[i]->transport))
            return;
        fds[i] = (struct pollfd){transport_descriptor(ends[i]->transport), POLLIN, 0};
        if (fds[i].fd < 0)
            timeout_ms = 1;
    }
    poll(fds, (nfds_t)count, timeout_ms);
}

static int poll_once(struct end *end)
{
    ck_assert_int_le(end->count + 16, EVENTS);
    int got = transport_poll(end->transport, end->events + end->count, 16);
    end->count += got;
    return got;
}

/* Let both go on until each has so many events of its type. Sleeps on the descriptors. */
static void wait_for(struct end *a, enum transport_event_type type_a, int count_a, struct end *b,
                     enum transport_event_type type_b, int count_b)
{
    struct end *ends[2] = {a, b};
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    while (count_of(a, type_a) < count_a || (b && count_of(b, type_b) < count_b)) {
        int got = poll_once(a) + (b ? poll_once(b) : 0);
        if (got == 0)
            sleep_on(ends, b ? 2 : 1, 1000);
        ck_assert_msg(clock_now_ns() < end_ns, "waited in vain: %d of %d, %d of %d",
                      count_of(a, type_a), count_a, b ? count_of(b, type_b) : 0, count_b);
    }
}

static void connect_ends(struct end *a, uint32_t number_of_b, struct end *b, uint32_t number_of_a)
{
    uint8_t of_a[TRANSPORT_ADDRESS_BYTES], of_b[TRANSPORT_ADDRESS_BYTES];
    uint32_t bytes_a = 0, bytes_b = 0;
    struct error error = {0};
    int up_a = count_of(a, TRANSPORT_PEER_UP), up_b = count_of(b, TRANSPORT_PEER_UP);
    ck_assert_int_eq(transport_address(a->transport, of_a, &bytes_a, &error), 0);
    ck_assert_int_eq(transport_address(b->transport, of_b, &bytes_b, &error), 0);
    int code = transport_expect(b->transport, number_of_a, of_a, bytes_a, token_a, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    code = transport_connect(a->transport, number_of_b, of_b, bytes_b, token_a, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    wait_for(a, TRANSPORT_PEER_UP, up_a + 1, b, TRANSPORT_PEER_UP, up_b + 1);
}

/* Whether this machine has the provider; prints the skip line if not. */
static bool provider_there(const char *name, const char *provider)
{
    bool connected = strcmp(provider, "tcp") == 0;
    if (transport_fabric_available(provider, connected, "127.0.0.1"))
        return true;
    suite_skip(name, "libfabric has no %s here", provider);
    return false;
}

static void *reg(struct end *end, void *memory, size_t bytes)
{
    void *registration = NULL;
    struct error error = {0};
    int code = transport_register(end->transport, memory, bytes, &registration, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    return registration;
}

static void fill(uint8_t *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)((i * 2654435761u >> 7) + seed * 31u);
}

static bool filled(const uint8_t *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != (uint8_t)((i * 2654435761u >> 7) + seed * 31u))
            return false;
    }
    return true;
}

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
        s->out_registration[i] = reg(s->from, s->out[i], bytes);
    }
    for (int i = 0; i < 8; i++) {
        s->in[i] = malloc(bytes);
        s->in_registration[i] = reg(s->to, s->in[i], bytes);
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
            sleep_on(ends, end_count, 1000);
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
    connect_ends(&a, 0, &b, 2);
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
        connect_ends(&a, 0, &b, 2);
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
            connect_ends(&nodes[i], j, &nodes[j], i);
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
    connect_ends(&a, 1, &b, 0);
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
    wait_for(&a, TRANSPORT_SENT, SENDS, &b, TRANSPORT_RECEIVED, SENDS);
    uint32_t next = 0;
    for (int i = 0; i < b.count; i++) {
        if (b.events[i].type != TRANSPORT_RECEIVED)
            continue;
        ck_assert_uint_eq(b.events[i].bytes, sizeof(out[0]));
        ck_assert(filled(b.events[i].context, sizeof(out[0]), next++));
    }
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in[0], sizeof(in[0]), NULL, in[0]), 0);
    ck_assert_int_eq(transport_send(a.transport, 1, &part, NULL, 1, out[SENDS]), 0);
    wait_for(&a, TRANSPORT_SENT, SENDS + 1, &b, TRANSPORT_RECEIVED, SENDS + 1);
    end_close(&a);
    end_close(&b);
}
END_TEST

/* --- opening --- */

START_TEST(provider_missing)
{
    static const char *const names[] = {"nonsense", "udp", "sockets", "net", "", "efa", "verbs"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct end end;
        struct error error = {0};
        bool on_list = i >= 5;
        if (on_list && transport_fabric_available(names[i], i == 6, "127.0.0.1")) {
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
        ck_assert_int_eq(strncmp(info->version, "libfabric 1.", 12), 0);
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

/* What the first call of main() is for: a program under libfabric dies of SIGTERM again. */
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
}
END_TEST

/* --- connecting --- */

START_TEST(wrong_token)
{
    struct end a, b, stranger;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    end_open(&stranger, "tcp");
    connect_ends(&a, 0, &b, 0);
    uint8_t address[TRANSPORT_ADDRESS_BYTES], in[2][256], out[256];
    uint32_t bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(b.transport, address, &bytes, &error), 0);
    ck_assert_int_eq(transport_expect(b.transport, 1, address, bytes, token_b, &error), 0);
    ck_assert_int_eq(transport_post_receive(b.transport, 1, in[1], 256, NULL, in[1]), 0);

    /* token_a is spent: it was good for peer 0 once. */
    ck_assert_int_eq(transport_connect(stranger.transport, 0, address, bytes, token_a, &error), 0);
    wait_for(&stranger, TRANSPORT_PEER_DOWN, 1, &b, TRANSPORT_PEER_UP, 1);
    ck_assert(end_logged(&b, "rejected"));
    ck_assert_int_eq(count_of(&stranger, TRANSPORT_PEER_UP), 0);
    ck_assert_msg(strlen(find(&stranger, TRANSPORT_PEER_DOWN)->text) > 0, "no reason");

    /* The others go on, and the one that is expected still may come. */
    memset(out, 7, sizeof(out));
    struct iovec part = {out, sizeof(out)};
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in[0], 256, NULL, in[0]), 0);
    ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
    wait_for(&a, TRANSPORT_SENT, 1, &b, TRANSPORT_RECEIVED, 1);
    ck_assert_ptr_eq(find(&b, TRANSPORT_RECEIVED)->context, in[0]);
    ck_assert_int_eq(transport_connect(stranger.transport, 0, address, bytes, token_b, &error), 0);
    wait_for(&stranger, TRANSPORT_PEER_UP, 1, &b, TRANSPORT_PEER_UP, 2);
    memset(out, 8, sizeof(out));
    ck_assert_int_eq(transport_send(stranger.transport, 0, &part, NULL, 1, out), 0);
    wait_for(&stranger, TRANSPORT_SENT, 1, &b, TRANSPORT_RECEIVED, 2);
    ck_assert_int_eq(in[1][255], 8);
    ck_assert_int_eq(count_of(&b, TRANSPORT_PEER_DOWN), 0);
    end_close(&a);
    end_close(&b);
    end_close(&stranger);
}
END_TEST

START_TEST(nobody_expects)
{
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    uint8_t address[TRANSPORT_ADDRESS_BYTES], zero[TRANSPORT_TOKEN_BYTES] = {0};
    uint32_t bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(b.transport, address, &bytes, &error), 0);
    /* All zero is what an unused place holds: it must not count as a token. */
    for (int i = 1; i <= 3; i++) {
        ck_assert_int_eq(transport_connect(a.transport, 0, address, bytes, zero, &error), 0);
        ck_assert_int_eq(transport_connect(a.transport, 0, address, bytes, zero, &error),
                         ERR_STATE);
        wait_for(&a, TRANSPORT_PEER_DOWN, i, &b, TRANSPORT_PEER_UP, 0);
    }
    ck_assert_int_eq(b.count, 0);
    ck_assert_int_eq(count_of(&a, TRANSPORT_PEER_UP), 0);
    end_close(&a);
    end_close(&b);
}
END_TEST

START_TEST(nobody_listens)
{
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    uint8_t address[TRANSPORT_ADDRESS_BYTES], in[64];
    uint32_t bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(b.transport, address, &bytes, &error), 0);
    end_close(&b);
    ck_assert_int_eq(transport_connect(a.transport, 1, address, bytes, token_a, &error), 0);
    int posted = transport_post_receive(a.transport, 1, in, sizeof(in), NULL, in);
    wait_for(&a, TRANSPORT_PEER_DOWN, 1, NULL, 0, 0);
    ck_assert_int_eq(count_of(&a, TRANSPORT_RETURNED), posted == 0);
    ck_assert_msg(strstr(a.events[a.count - 1].text, "onnection"), "%s",
                  a.events[a.count - 1].text);
    struct iovec part = {in, sizeof(in)};
    ck_assert_int_eq(transport_send(a.transport, 1, &part, NULL, 1, in), ERR_LOST);
    ck_assert_int_eq(transport_post_receive(a.transport, 1, in, sizeof(in), NULL, in), ERR_LOST);
    end_close(&a);
}
END_TEST

START_TEST(addresses_are_checked)
{
    const char *provider = providers[_i];
    if (!provider_there("addresses_are_checked", provider))
        return;
    struct end a;
    end_open(&a, provider);
    uint8_t address[TRANSPORT_ADDRESS_BYTES], wrong[TRANSPORT_ADDRESS_BYTES];
    uint32_t bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(a.transport, address, &bytes, &error), 0);
    memset(wrong, 0xff, sizeof(wrong));
    for (uint32_t n = 0; n <= TRANSPORT_ADDRESS_BYTES; n++)
        ck_assert_int_eq(transport_connect(a.transport, 0, wrong, n, token_a, &error),
                         ERR_PROTOCOL);
    ck_assert_int_eq(transport_connect(a.transport, PEERS, address, bytes, token_a, &error),
                     ERR_INVALID);
    ck_assert_int_eq(transport_expect(a.transport, PEERS, address, bytes, token_a, &error),
                     ERR_INVALID);
    struct iovec part = {wrong, 1};
    ck_assert_int_eq(transport_send(a.transport, PEERS, &part, NULL, 1, NULL), ERR_INVALID);
    ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, NULL), ERR_LOST);
    transport_disconnect(a.transport, 0);
    transport_disconnect(a.transport, PEERS);
    ck_assert_int_eq(poll_once(&a), 0);
    end_close(&a);
}
END_TEST

static int raw_connect(const struct end *end)
{
    struct sockaddr_in address;
    uint8_t bytes[TRANSPORT_ADDRESS_BYTES];
    uint32_t count = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(end->transport, bytes, &count, &error), 0);
    ck_assert_uint_eq(count, sizeof(address));
    memcpy(&address, bytes, sizeof(address));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* How many descriptors this process has. */
static int descriptor_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The descriptor must fall quiet: a loop that sleeps on it must not spin. */
static void assert_quiet(struct end *end)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    struct pollfd fd = {transport_descriptor(end->transport), POLLIN, 0};
    for (int calm = 0; calm < 3;) {
        int got = poll_once(end);
        if (got == 0 && transport_can_sleep(end->transport) && poll(&fd, 1, 10) == 0)
            calm++;
        ck_assert_msg(clock_now_ns() < end_ns, "the descriptor stays readable");
    }
}

START_TEST(garbage_on_the_port)
{
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    connect_ends(&a, 0, &b, 0);
    assert_quiet(&b);
    int before = descriptor_count();
    unsigned state = 12345;
    for (int round = 0; round < 40; round++) {
        uint8_t bytes[600];
        size_t length = (size_t)round * 15;
        for (size_t i = 0; i < length; i++)
            bytes[i] = (uint8_t)(rand_r(&state) >> 8);
        if (round % 4 == 1 && length >= 16) {
            bytes[0] = 3; /* looks like the provider's own header */
            bytes[1] = 1;
        }
        int fd = raw_connect(&b);
        if (length > 0)
            ck_assert_int_eq(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
        poll_once(&b);
        errno = EAGAIN;
        poll_once(&b);
        close(fd);
        poll_once(&b);
    }
    assert_quiet(&b);
    ck_assert_int_eq(descriptor_count(), before);
    ck_assert_int_eq(count_of(&b, TRANSPORT_PEER_DOWN), 0);
    ck_assert_int_eq(count_of(&b, TRANSPORT_RECEIVED), 0);
    uint8_t in[64], out[64] = {9};
    struct iovec part = {out, sizeof(out)};
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in, sizeof(in), NULL, in), 0);
    ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
    wait_for(&a, TRANSPORT_SENT, 1, &b, TRANSPORT_RECEIVED, 1);
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
    connect_ends(&a, 0, &b, 0);
    static uint8_t in[1 << 20], out[1 << 20];
    struct iovec part = {out, sizeof(out)};
    struct pollfd fd = {transport_descriptor(b.transport), POLLIN, 0};
    for (int round = 1; round <= 5; round++) {
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in, sizeof(in), NULL, in), 0);
        assert_quiet(&a);
        assert_quiet(&b);
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
        uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
        while (count_of(&b, TRANSPORT_RECEIVED) < round) {
            poll_once(&a);
            if (transport_can_sleep(b.transport) && count_of(&a, TRANSPORT_SENT) == round)
                ck_assert_int_eq(poll(&fd, 1, (int)(PATIENCE_NS / NS_PER_MS)), 1);
            poll_once(&b);
            ck_assert(clock_now_ns() < end_ns);
        }
        wait_for(&a, TRANSPORT_SENT, round, &b, TRANSPORT_RECEIVED, round);
    }
    end_close(&a);
    end_close(&b);
}
END_TEST

/* --- the end of a pair --- */

START_TEST(reconnect)
{
    const char *provider = providers[_i];
    if (!provider_there("reconnect", provider))
        return;
    struct end a, b;
    bool datagram = strcmp(provider, "tcp") != 0;
    end_open(&a, provider);
    end_open(&b, provider);
    uint8_t in[4][64], out[64] = {3};
    struct iovec part = {out, sizeof(out)};
    int descriptors = 0;
    for (int round = 1; round <= 6; round++) {
        connect_ends(&a, 0, &b, 1);
        if (datagram ? round == 1 : true) {
            for (int i = 0; i < 4; i++)
                ck_assert_int_eq(
                    transport_post_receive(b.transport, 1, in[i], sizeof(in[i]), NULL, in[i]), 0);
        }
        int received = count_of(&b, TRANSPORT_RECEIVED), sent = count_of(&a, TRANSPORT_SENT);
        if (datagram && round > 4)
            break;
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
        wait_for(&a, TRANSPORT_SENT, sent + 1, &b, TRANSPORT_RECEIVED, received + 1);
        int down = count_of(&b, TRANSPORT_PEER_DOWN), back = count_of(&b, TRANSPORT_RETURNED);
        transport_disconnect(a.transport, 0);
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), ERR_LOST);
        if (datagram) {
            transport_disconnect(b.transport, 1);
        } else {
            wait_for(&b, TRANSPORT_PEER_DOWN, down + 1, NULL, 0, 0);
            ck_assert_int_eq(count_of(&b, TRANSPORT_RETURNED), back + 3);
            ck_assert_int_eq(b.events[b.count - 1].type, TRANSPORT_PEER_DOWN);
            if (round == 1)
                descriptors = descriptor_count();
            ck_assert_int_eq(descriptor_count(), descriptors);
        }
        ck_assert_int_eq(count_of(&a, TRANSPORT_PEER_DOWN), 0);
    }
    end_close(&a);
    end_close(&b);
}
END_TEST

/* Both sides disconnect before the connection is up, at each moment that there is. */
START_TEST(disconnect_early)
{
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    uint8_t address[TRANSPORT_ADDRESS_BYTES], in[64];
    uint32_t bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(transport_address(b.transport, address, &bytes, &error), 0);
    int descriptors = descriptor_count();
    for (int round = 0; round < 30; round++) {
        ck_assert_int_eq(transport_expect(b.transport, 0, address, bytes, token_a, &error), 0);
        ck_assert_int_eq(transport_connect(a.transport, 0, address, bytes, token_a, &error), 0);
        int back = count_of(&b, TRANSPORT_RETURNED);
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in, sizeof(in), NULL, in), 0);
        for (int i = 0; i < round / 2; i++)
            poll_once((i + round) % 2 ? &a : &b);
        transport_disconnect(a.transport, 0);
        transport_disconnect(b.transport, 0);
        wait_for(&b, TRANSPORT_RETURNED, back + 1, NULL, 0, 0);
        while (poll_once(&a) + poll_once(&b) > 0)
            continue;
        ck_assert_int_eq(count_of(&b, TRANSPORT_RETURNED), back + 1);
    }
    assert_quiet(&a);
    assert_quiet(&b);
    ck_assert_int_eq(descriptor_count(), descriptors);
    end_close(&a);
    end_close(&b);
}
END_TEST

START_TEST(close_with_work)
{
    const char *provider = providers[_i];
    if (!provider_there("close_with_work", provider))
        return;
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    connect_ends(&a, 0, &b, 0);
    size_t bytes = 1 << 20;
    uint8_t *out = calloc(1, bytes), *in = calloc(1, bytes);
    struct iovec part = {out, bytes};
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in, (uint32_t)bytes, NULL, in), 0);
    poll_once(&a);
    poll_once(&b);
    end_close(&a);
    poll_once(&b);
    end_close(&b);
    free(out);
    free(in);
}
END_TEST

START_TEST(message_too_long)
{
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    connect_ends(&a, 0, &b, 0);
    uint8_t in[3][100], out[200] = {0};
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in[i], 100, NULL, in[i]), 0);
    struct iovec fits = {out, 100}, long_one = {out, 200};
    ck_assert_int_eq(transport_send(a.transport, 0, &fits, NULL, 1, out), 0);
    ck_assert_int_eq(transport_send(a.transport, 0, &long_one, NULL, 1, out), 0);
    wait_for(&b, TRANSPORT_PEER_DOWN, 1, &a, TRANSPORT_PEER_DOWN, 1);
    ck_assert_int_eq(count_of(&b, TRANSPORT_RECEIVED), 1);
    ck_assert_int_eq(count_of(&b, TRANSPORT_RETURNED), 2);
    ck_assert_int_eq(count_of(&a, TRANSPORT_SENT), 2);
    const struct transport_event *down = find(&b, TRANSPORT_PEER_DOWN);
    ck_assert_int_eq(down->status, ERR_LOST);
    ck_assert_msg(strstr(down->text, "longer than the 100 bytes"), "%s", down->text);
    connect_ends(&a, 0, &b, 0);
    end_close(&a);
    end_close(&b);
}
END_TEST

/* --- a peer in a process of its own --- */

struct other {
    pid_t process;
    int to, from; /* pipes */
};

static void other_run(const char *provider, int to, int from)
{
    struct end end;
    struct error error = {0};
    uint8_t record[4 + TRANSPORT_ADDRESS_BYTES] = {0};
    static uint8_t in[1 << 16];
    uint32_t bytes = 0;
    if (end_try_open(&end, provider, &error) == 0)
        transport_address(end.transport, record + 4, &bytes, &error);
    memcpy(record, &bytes, 4);
    if (write(to, record, sizeof(record)) != sizeof(record) || bytes == 0 ||
        read(from, record, sizeof(record)) != sizeof(record))
        _exit(1);
    memcpy(&bytes, record, 4);
    if (transport_expect(end.transport, 0, record + 4, bytes, token_a, &error) != 0)
        _exit(2);
    transport_post_receive(end.transport, 0, in, sizeof(in), NULL, in);
    struct end *ends[1] = {&end};
    for (bool told = false;;) {
        if (poll_once(&end) == 0)
            sleep_on(ends, 1, 1000);
        if (!told && count_of(&end, TRANSPORT_RECEIVED) > 0)
            told = write(to, "r", 1) == 1;
    }
}

/* Before this process uses libfabric, which does not survive a fork. */
static struct other other_start(const char *provider)
{
    int to[2], from[2];
    ck_assert_int_eq(pipe2(to, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(from, O_CLOEXEC), 0);
    pid_t process = fork();
    ck_assert_int_ge(process, 0);
    if (process == 0) {
        close(to[1]);
        close(from[0]);
        other_run(provider, from[1], to[0]);
    }
    close(to[0]);
    close(from[1]);
    return (struct other){process, to[1], from[0]};
}

static void other_kill(struct other *other)
{
    kill(other->process, SIGKILL);
    waitpid(other->process, NULL, 0);
    close(other->to);
    close(other->from);
}

/* Connect `here` with the other process; false when it has no such provider. */
static bool other_connect(struct other *other, struct end *here)
{
    uint8_t record[4 + TRANSPORT_ADDRESS_BYTES] = {0}, own[4 + TRANSPORT_ADDRESS_BYTES] = {0};
    uint32_t bytes = 0, own_bytes = 0;
    struct error error = {0};
    ck_assert_int_eq(read(other->from, record, sizeof(record)), sizeof(record));
    memcpy(&bytes, record, 4);
    if (bytes == 0)
        return false;
    ck_assert_int_eq(transport_address(here->transport, own + 4, &own_bytes, &error), 0);
    memcpy(own, &own_bytes, 4);
    ck_assert_int_eq(write(other->to, own, sizeof(own)), sizeof(own));
    int code = 0;
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    int downs = 0;
    /* It expects this side only after it has read the address: until then it rejects. */
    do {
        downs = count_of(here, TRANSPORT_PEER_DOWN);
        code = transport_connect(here->transport, 0, record + 4, bytes, token_a, &error);
        ck_assert_msg(code == 0, "%s", error.text);
        struct end *ends[1] = {here};
        while (count_of(here, TRANSPORT_PEER_UP) == 0 &&
               count_of(here, TRANSPORT_PEER_DOWN) == downs) {
            if (poll_once(here) == 0)
                sleep_on(ends, 1, 1000);
            ck_assert(clock_now_ns() < end_ns);
        }
    } while (count_of(here, TRANSPORT_PEER_UP) == 0);
    return true;
}

/* Until the other process says that it received the first message. */
static void other_received(struct other *other, struct end *here)
{
    struct pollfd fd = {other->from, POLLIN, 0};
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    while (poll(&fd, 1, 1) == 0) {
        poll_once(here);
        ck_assert(clock_now_ns() < end_ns);
    }
}

START_TEST(peer_killed)
{
    struct other other = other_start("tcp");
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    ck_assert(other_connect(&other, &a));
    connect_ends(&a, 1, &b, 0);
    static uint8_t in[4][64], out[1 << 20];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(transport_post_receive(a.transport, 0, in[i], 64, NULL, in[i]), 0);
    struct iovec small = {out, 64}, large = {out, sizeof(out)};
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), 0);
    other_received(&other, &a);
    /* No receive is posted for these: they are under way when it dies. */
    int sends = 1;
    while (sends < SENDS && transport_send(a.transport, 0, &large, NULL, 1, out) == 0)
        sends++;
    other_kill(&other);
    wait_for(&a, TRANSPORT_PEER_DOWN, 1, NULL, 0, 0);
    const struct transport_event *down = &a.events[a.count - 1];
    ck_assert_int_eq(down->type, TRANSPORT_PEER_DOWN);
    ck_assert_uint_eq(down->peer, 0);
    ck_assert_msg(strlen(down->text) > 0, "no reason");
    ck_assert_int_eq(count_of(&a, TRANSPORT_RETURNED), 4);
    ck_assert_int_eq(count_of(&a, TRANSPORT_SENT), sends);
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), ERR_LOST);
    /* The other pair lives. */
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in[0], 64, NULL, in[0]), 0);
    ck_assert_int_eq(transport_send(a.transport, 1, &small, NULL, 1, out), 0);
    wait_for(&a, TRANSPORT_SENT, sends + 1, &b, TRANSPORT_RECEIVED, 1);
    assert_quiet(&a);
    ck_assert_int_eq(count_of(&a, TRANSPORT_PEER_DOWN), 1);
    end_close(&a);
    end_close(&b);
}
END_TEST

/* On datagram endpoints nobody tells; giving the peer up must return every send, at once, and
 * leave nothing behind that a later completion could trip over. */
START_TEST(datagram_peer_killed)
{
    const char *provider = providers[_i];
    struct other other = other_start(provider);
    if (!provider_there("datagram_peer_killed", provider)) {
        other_kill(&other);
        return;
    }
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    ck_assert(other_connect(&other, &a));
    connect_ends(&a, 1, &b, 0);
    static uint8_t in[64], out[1 << 16];
    struct iovec small = {out, 64}, large = {out, sizeof(out)};
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), 0);
    other_received(&other, &a);
    other_kill(&other);
    int sends = 1, code = 0;
    for (int round = 0; round < 200; round++) {
        code = transport_send(a.transport, 0, &large, NULL, 1, out);
        sends += code == 0;
        ck_assert(code == 0 || code == ERR_AGAIN);
        poll_once(&a);
    }
    transport_disconnect(a.transport, 0);
    wait_for(&a, TRANSPORT_SENT, sends, NULL, 0, 0);
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), ERR_LOST);
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in, sizeof(in), NULL, in), 0);
    ck_assert_int_eq(transport_send(a.transport, 1, &small, NULL, 1, out), 0);
    wait_for(&a, TRANSPORT_SENT, sends + 1, &b, TRANSPORT_RECEIVED, 1);
    for (int i = 0; i < 50; i++)
        poll_once(&a);
    ck_assert_int_eq(count_of(&a, TRANSPORT_SENT), sends + 1);
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
    tcase_add_test(c, provider_missing);
    tcase_add_test(c, address_missing);
    tcase_add_test(c, information);
    tcase_add_test(c, signals_stay_ours);
    tcase_add_test(c, environment_prepared);
    tcase_add_test(c, wrong_token);
    tcase_add_test(c, nobody_expects);
    tcase_add_test(c, nobody_listens);
    tcase_add_loop_test(c, addresses_are_checked, 0, PROVIDERS);
    tcase_add_test(c, garbage_on_the_port);
    tcase_add_loop_test(c, descriptor_wakes, 0, PROVIDERS);
    tcase_add_loop_test(c, reconnect, 0, PROVIDERS);
    tcase_add_test(c, disconnect_early);
    tcase_add_loop_test(c, close_with_work, 0, PROVIDERS);
    tcase_add_test(c, message_too_long);
    tcase_add_test(c, peer_killed);
    tcase_add_loop_test(c, datagram_peer_killed, 1, PROVIDERS);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    transport_prepare_environment();
    return suite_main(suite());
}
