/* Two or more transports over libfabric in one test, and what they reported. For the tests of the
 * transport only, and all in this header: as an object of tests/lib it would load libfabric into
 * every test program. */
#ifndef TESTS_LIB_ENDS_H
#define TESTS_LIB_ENDS_H

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/transport.h"
#include "tests/lib/suite.h"

#define ENDS_API static __attribute__((unused))

#define MESSAGE_BYTES (64 + (4u << 20))
#define PEERS 3
#define SENDS 16
#define RECEIVES 16
#define EVENTS 65536
#define PATIENCE_NS (40 * NS_PER_S)

/* One side: a transport and all that it reported. */
struct end {
    struct transport *transport;
    struct transport_event *events;
    int count;
    int log_fd; /* read end */
    struct log log;
};

static const __attribute__((unused)) uint8_t token_a[TRANSPORT_TOKEN_BYTES] = "expected token!";
static const __attribute__((unused)) uint8_t token_b[TRANSPORT_TOKEN_BYTES] = "quite another 1";

/* Check's assertions write a record each time, also when they hold, to a file that forked processes
 * share: end_try_open, end_poll and ends_sleep, which run in those too, go without. */

/* Open on 127.0.0.1; end_open fails the test when it cannot. */
ENDS_API int end_try_open(struct end *end, const char *provider, struct error *error)
{
    int fds[2];
    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC) != 0)
        ck_abort_msg("pipe2 failed");
    *end = (struct end){.log_fd = fds[0]};
    log_init(&end->log, "test", LOG_LEVEL_DEBUG, fds[1], false);
    if (end->log.fd != fds[1]) /* the log has opened the pipe once more */
        close(fds[1]);
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
        close(end->log.fd);
    }
    return code;
}

ENDS_API void end_open(struct end *end, const char *provider)
{
    struct error error = {0};
    int code = end_try_open(end, provider, &error);
    ck_assert_msg(code == 0, "%s", error.text);
}

ENDS_API void end_close(struct end *end)
{
    transport_close(end->transport);
    free(end->events);
    close(end->log_fd);
    close(end->log.fd);
}

/* Whether the log says this since it was asked last. */
ENDS_API bool end_logged(struct end *end, const char *text)
{
    char lines[16384];
    ssize_t bytes = read(end->log_fd, lines, sizeof(lines) - 1);
    lines[bytes > 0 ? bytes : 0] = '\0';
    return strstr(lines, text) != NULL;
}

ENDS_API int end_count(const struct end *end, enum transport_event_type type)
{
    int count = 0;
    for (int i = 0; i < end->count; i++)
        count += end->events[i].type == type;
    return count;
}

ENDS_API const struct transport_event *end_find(const struct end *end,
                                                enum transport_event_type type)
{
    for (int i = 0; i < end->count; i++) {
        if (end->events[i].type == type)
            return &end->events[i];
    }
    return NULL;
}

/* Sleep on the descriptors as a daemon would. */
ENDS_API void ends_sleep(struct end *const *ends, int count, int timeout_ms)
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

/* Poll once, into end->events. How many events came. */
ENDS_API int end_poll(struct end *end)
{
    if (end->count + 16 > EVENTS)
        ck_abort_msg("too many events");
    int got = transport_poll(end->transport, end->events + end->count, 16);
    end->count += got;
    return got;
}

/* Let both go on until each has so many events of its type. b may be NULL. */
ENDS_API void ends_wait(struct end *a, enum transport_event_type type_a, int count_a, struct end *b,
                        enum transport_event_type type_b, int count_b)
{
    struct end *ends[2] = {a, b};
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    while (end_count(a, type_a) < count_a || (b && end_count(b, type_b) < count_b)) {
        int got = end_poll(a) + (b ? end_poll(b) : 0);
        if (got == 0)
            ends_sleep(ends, b ? 2 : 1, 1000);
        ck_assert_msg(clock_now_ns() < end_ns, "waited in vain: %d of %d, %d of %d",
                      end_count(a, type_a), count_a, b ? end_count(b, type_b) : 0, count_b);
    }
}

/* a connects, b expects, with token_a; both are up on return. */
ENDS_API void ends_connect(struct end *a, uint32_t number_of_b, struct end *b, uint32_t number_of_a)
{
    uint8_t of_a[TRANSPORT_ADDRESS_BYTES], of_b[TRANSPORT_ADDRESS_BYTES];
    uint32_t bytes_a = 0, bytes_b = 0;
    struct error error = {0};
    int up_a = end_count(a, TRANSPORT_PEER_UP), up_b = end_count(b, TRANSPORT_PEER_UP);
    ck_assert_int_eq(transport_address(a->transport, of_a, &bytes_a, &error), 0);
    ck_assert_int_eq(transport_address(b->transport, of_b, &bytes_b, &error), 0);
    int code = transport_expect(b->transport, number_of_a, of_a, bytes_a, token_a, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    code = transport_connect(a->transport, number_of_b, of_b, bytes_b, token_a, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    ends_wait(a, TRANSPORT_PEER_UP, up_a + 1, b, TRANSPORT_PEER_UP, up_b + 1);
}

/* Whether this machine has the provider; prints the skip line if not. */
ENDS_API bool provider_there(const char *name, const char *provider)
{
    bool connected = strcmp(provider, "tcp") == 0;
    if (transport_fabric_available(provider, connected, "127.0.0.1"))
        return true;
    suite_skip(name, "libfabric has no %s here", provider);
    return false;
}

ENDS_API void *end_register(struct end *end, void *memory, size_t bytes)
{
    void *registration = NULL;
    struct error error = {0};
    int code = transport_register(end->transport, memory, bytes, &registration, &error);
    ck_assert_msg(code == 0, "%s", error.text);
    return registration;
}

/* A pattern that depends on place and seed. */
ENDS_API void fill(uint8_t *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)((i * 2654435761u >> 7) + seed * 31u);
}

ENDS_API bool filled(const uint8_t *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != (uint8_t)((i * 2654435761u >> 7) + seed * 31u))
            return false;
    }
    return true;
}

ENDS_API int descriptor_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The descriptor must fall quiet: a loop that sleeps on it must not spin. */
ENDS_API void end_assert_quiet(struct end *end)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    struct pollfd fd = {transport_descriptor(end->transport), POLLIN, 0};
    for (int calm = 0; calm < 3;) {
        int got = end_poll(end);
        if (got == 0 && transport_can_sleep(end->transport) && poll(&fd, 1, 10) == 0)
            calm++;
        ck_assert_msg(clock_now_ns() < end_ns, "the descriptor stays readable");
    }
}

#endif
