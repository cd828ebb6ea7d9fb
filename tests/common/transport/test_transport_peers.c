/* The libfabric kinds: how pairs begin and end. Addresses, deaths. */
#include "common/transport/transport.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/ends.h"
#include "tests/lib/suite.h"

static const char *const providers[] = {"tcp", "tcp;ofi_rxm", "shm"};
#define PROVIDERS ((int)(sizeof(providers) / sizeof(providers[0])))

#define ADMIT_MS 120000
/* The size of a message that libfabric would send in segments. */
#define LARGE_BYTES (1 << 16)

/* --- connecting --- */

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
    ends_wait(&a, TRANSPORT_PEER_DOWN, 1, NULL, 0, 0);
    ck_assert_int_eq(end_count(&a, TRANSPORT_RETURNED), posted == 0);
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
    ck_assert_int_eq(end_poll(&a), 0);
    end_close(&a);
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
        ends_connect(&a, 0, &b, 1);
        if (datagram ? round == 1 : true) {
            for (int i = 0; i < 4; i++)
                ck_assert_int_eq(
                    transport_post_receive(b.transport, 1, in[i], sizeof(in[i]), NULL, in[i]), 0);
        }
        int received = end_count(&b, TRANSPORT_RECEIVED), sent = end_count(&a, TRANSPORT_SENT);
        if (datagram && round > 4)
            break;
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
        ends_wait(&a, TRANSPORT_SENT, sent + 1, &b, TRANSPORT_RECEIVED, received + 1);
        int down = end_count(&b, TRANSPORT_PEER_DOWN), back = end_count(&b, TRANSPORT_RETURNED);
        transport_disconnect(a.transport, 0);
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), ERR_LOST);
        if (datagram) {
            transport_disconnect(b.transport, 1);
        } else {
            ends_wait(&b, TRANSPORT_PEER_DOWN, down + 1, NULL, 0, 0);
            ck_assert_int_eq(end_count(&b, TRANSPORT_RETURNED), back + 3);
            ck_assert_int_eq(b.events[b.count - 1].type, TRANSPORT_PEER_DOWN);
            if (round == 1)
                descriptors = descriptor_count();
            ck_assert_int_eq(descriptor_count(), descriptors);
        }
        ck_assert_int_eq(end_count(&a, TRANSPORT_PEER_DOWN), 0);
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
        int back = end_count(&b, TRANSPORT_RETURNED);
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in, sizeof(in), NULL, in), 0);
        for (int i = 0; i < round / 2; i++)
            end_poll((i + round) % 2 ? &a : &b);
        transport_disconnect(a.transport, 0);
        transport_disconnect(b.transport, 0);
        ends_wait(&b, TRANSPORT_RETURNED, back + 1, NULL, 0, 0);
        while (end_poll(&a) + end_poll(&b) > 0)
            continue;
        ck_assert_int_eq(end_count(&b, TRANSPORT_RETURNED), back + 1);
    }
    end_assert_quiet(&a);
    end_assert_quiet(&b);
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
    ends_connect(&a, 0, &b, 0);
    size_t bytes = 1 << 20;
    uint8_t *out = calloc(1, bytes), *in = calloc(1, bytes);
    struct iovec part = {out, bytes};
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in, (uint32_t)bytes, NULL, in), 0);
    end_poll(&a);
    end_poll(&b);
    end_close(&a);
    end_poll(&b);
    end_close(&b);
    free(out);
    free(in);
}
END_TEST

/* Each endpoint, queue and listener of libfabric has a descriptor: closing must close all. */
START_TEST(nothing_left_open)
{
    const char *provider = providers[_i];
    if (!provider_there("nothing_left_open", provider))
        return;
    int before = 0;
    for (int round = 0; round < 5; round++) {
        struct end a, b;
        uint8_t in[64];
        end_open(&a, provider);
        end_open(&b, provider);
        ends_connect(&a, 0, &b, 0);
        ck_assert_int_eq(transport_post_receive(a.transport, 0, in, sizeof(in), NULL, in), 0);
        end_close(&a);
        end_close(&b);
        if (round == 0)
            before = descriptor_count(); /* libfabric itself keeps a few */
        ck_assert_int_eq(descriptor_count(), before);
    }
}
END_TEST

START_TEST(message_too_long)
{
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    ends_connect(&a, 0, &b, 0);
    uint8_t in[3][100], out[200] = {0};
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(transport_post_receive(b.transport, 0, in[i], 100, NULL, in[i]), 0);
    struct iovec fits = {out, 100}, long_one = {out, 200};
    ck_assert_int_eq(transport_send(a.transport, 0, &fits, NULL, 1, out), 0);
    ck_assert_int_eq(transport_send(a.transport, 0, &long_one, NULL, 1, out), 0);
    ends_wait(&b, TRANSPORT_PEER_DOWN, 1, &a, TRANSPORT_PEER_DOWN, 1);
    ck_assert_int_eq(end_count(&b, TRANSPORT_RECEIVED), 1);
    ck_assert_int_eq(end_count(&b, TRANSPORT_RETURNED), 2);
    ck_assert_int_eq(end_count(&a, TRANSPORT_SENT), 2);
    const struct transport_event *down = end_find(&b, TRANSPORT_PEER_DOWN);
    ck_assert_int_eq(down->status, ERR_LOST);
    ck_assert_msg(strstr(down->text, "longer than the 100 bytes"), "%s", down->text);
    ends_connect(&a, 0, &b, 0);
    end_close(&a);
    end_close(&b);
}
END_TEST

/* --- a peer in a process of its own --- */

struct other {
    pid_t process;
    int to, from;    /* pipes */
    char region[64]; /* of shm: what a killed process leaves in /dev/shm, or "" */
};

/* Send as much as goes, once the other side is there. */
static void other_send(struct end *end, bool *up)
{
    static uint8_t out[LARGE_BYTES];
    struct iovec part = {out, sizeof(out)};
    *up = *up || end_count(end, TRANSPORT_PEER_UP) > 0;
    while (*up && transport_send(end->transport, 0, &part, NULL, 1, out) == 0)
        continue;
    end->count = 0;
}

static void other_run(const char *provider, bool sends, int to, int from)
{
    struct end end;
    struct error error = {0};
    uint8_t record[4 + TRANSPORT_ADDRESS_BYTES] = {0};
    static uint8_t in[LARGE_BYTES];
    uint32_t bytes = 0;
    if (end_try_open(&end, provider, &error) == 0)
        transport_address(end.transport, record + 4, &bytes, &error);
    memcpy(record, &bytes, 4);
    if (bytes > 0)
        transport_admit(end.transport, ADMIT_MS);
    if (write(to, record, sizeof(record)) != sizeof(record) || bytes == 0 ||
        read(from, record, sizeof(record)) != sizeof(record))
        _exit(1);
    memcpy(&bytes, record, 4);
    if (transport_expect(end.transport, 0, record + 4, bytes, token_a, &error) != 0)
        _exit(2);
    transport_post_receive(end.transport, 0, in, sizeof(in), NULL, in);
    struct end *ends[1] = {&end};
    for (bool told = false, up = false;;) {
        if (sends)
            other_send(&end, &up);
        if (end_poll(&end) == 0)
            ends_sleep(ends, 1, 1000);
        if (!told && end_count(&end, TRANSPORT_RECEIVED) > 0)
            told = write(to, "r", 1) == 1;
    }
}

/* Before this process uses libfabric, which does not survive a fork. */
static struct other other_start(const char *provider, bool sends)
{
    int to[2], from[2];
    ck_assert_int_eq(pipe2(to, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(from, O_CLOEXEC), 0);
    pid_t process = fork();
    ck_assert_int_ge(process, 0);
    if (process == 0) {
        close(to[1]);
        close(from[0]);
        other_run(provider, sends, from[1], to[0]);
    }
    close(to[0]);
    close(from[1]);
    return (struct other){.process = process, .to = to[1], .from = from[0]};
}

static void other_kill(struct other *other)
{
    kill(other->process, SIGKILL);
    waitpid(other->process, NULL, 0);
    if (other->region[0])
        shm_unlink(other->region);
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
    static const char scheme[] = "fi_shm://";
    if (memcmp(record + 4, scheme, sizeof(scheme) - 1) == 0)
        snprintf(other->region, sizeof(other->region), "%.63s",
                 (const char *)record + 4 + sizeof(scheme) - 1);
    ck_assert_int_eq(transport_address(here->transport, own + 4, &own_bytes, &error), 0);
    memcpy(own, &own_bytes, 4);
    ck_assert_int_eq(write(other->to, own, sizeof(own)), sizeof(own));
    int code = 0;
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    int downs = 0;
    /* The other process expects this side only after it has read the address: until then it
     * rejects. */
    do {
        downs = end_count(here, TRANSPORT_PEER_DOWN);
        code = transport_connect(here->transport, 0, record + 4, bytes, token_a, &error);
        ck_assert_msg(code == 0, "%s", error.text);
        struct end *ends[1] = {here};
        while (end_count(here, TRANSPORT_PEER_UP) == 0 &&
               end_count(here, TRANSPORT_PEER_DOWN) == downs) {
            if (end_poll(here) == 0)
                ends_sleep(ends, 1, 1000);
            ck_assert(clock_now_ns() < end_ns);
        }
    } while (end_count(here, TRANSPORT_PEER_UP) == 0);
    return true;
}

/* Until the other process says that it received the first message. */
static void other_received(struct other *other, struct end *here)
{
    struct pollfd fd = {other->from, POLLIN, 0};
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    while (poll(&fd, 1, 1) == 0) {
        end_poll(here);
        ck_assert(clock_now_ns() < end_ns);
    }
}

START_TEST(peer_killed)
{
    struct other other = other_start("tcp", false);
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    ck_assert(other_connect(&other, &a));
    ends_connect(&a, 1, &b, 0);
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
    ends_wait(&a, TRANSPORT_PEER_DOWN, 1, NULL, 0, 0);
    const struct transport_event *down = &a.events[a.count - 1];
    ck_assert_int_eq(down->type, TRANSPORT_PEER_DOWN);
    ck_assert_uint_eq(down->peer, 0);
    ck_assert_msg(strlen(down->text) > 0, "no reason");
    ck_assert_int_eq(end_count(&a, TRANSPORT_RETURNED), 4);
    ck_assert_int_eq(end_count(&a, TRANSPORT_SENT), sends);
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), ERR_LOST);
    /* The other pair lives. */
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in[0], 64, NULL, in[0]), 0);
    ck_assert_int_eq(transport_send(a.transport, 1, &small, NULL, 1, out), 0);
    ends_wait(&a, TRANSPORT_SENT, sends + 1, &b, TRANSPORT_RECEIVED, 1);
    end_assert_quiet(&a);
    ck_assert_int_eq(end_count(&a, TRANSPORT_PEER_DOWN), 1);
    end_close(&a);
    end_close(&b);
}
END_TEST

/* On datagram endpoints nobody tells; giving the peer up must return every send, at once, and
 * leave nothing behind that a later completion could trip over. */
START_TEST(datagram_peer_killed)
{
    const char *provider = providers[_i];
    struct other other = other_start(provider, false);
    if (!provider_there("datagram_peer_killed", provider)) {
        other_kill(&other);
        return;
    }
    struct end a, b;
    end_open(&a, provider);
    end_open(&b, provider);
    ck_assert(other_connect(&other, &a));
    ends_connect(&a, 1, &b, 0);
    static uint8_t in[64], out[LARGE_BYTES];
    struct iovec small = {out, 64}, large = {out, sizeof(out)};
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), 0);
    other_received(&other, &a);
    other_kill(&other);
    int sends = 1, code = 0;
    for (int round = 0; round < 200; round++) {
        code = transport_send(a.transport, 0, &large, NULL, 1, out);
        sends += code == 0;
        ck_assert(code == 0 || code == ERR_AGAIN);
        end_poll(&a);
    }
    transport_disconnect(a.transport, 0);
    ends_wait(&a, TRANSPORT_SENT, sends, NULL, 0, 0);
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), ERR_LOST);
    ck_assert_int_eq(transport_post_receive(b.transport, 0, in, sizeof(in), NULL, in), 0);
    ck_assert_int_eq(transport_send(a.transport, 1, &small, NULL, 1, out), 0);
    ends_wait(&a, TRANSPORT_SENT, sends + 1, &b, TRANSPORT_RECEIVED, 1);
    for (int i = 0; i < 50; i++)
        end_poll(&a);
    ck_assert_int_eq(end_count(&a, TRANSPORT_SENT), sends + 1);
    end_close(&a);
    end_close(&b);
}
END_TEST

/* In libfabric 2 one that has the first segments of a message crashes when its peer ends: none is
 * sent in segments. */
START_TEST(datagram_peer_killed_amid_a_message)
{
    struct other other = other_start("tcp;ofi_rxm", true);
    struct end a;
    end_open(&a, "tcp;ofi_rxm");
    ck_assert(other_connect(&other, &a));
    static uint8_t in[RECEIVES][LARGE_BYTES];
    for (int i = 0; i < RECEIVES; i++)
        ck_assert_int_eq(transport_post_receive(a.transport, 0, in[i], sizeof(in[i]), NULL, in[i]),
                         0);
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    for (int received = 0; received < 100; a.count = 0) {
        int got = end_poll(&a);
        for (int i = 0; i < got; i++) {
            void *again = a.events[i].context;
            if (a.events[i].type != TRANSPORT_RECEIVED)
                continue;
            received++;
            transport_post_receive(a.transport, 0, again, LARGE_BYTES, NULL, again);
        }
        ck_assert(clock_now_ns() < end_ns);
    }
    other_kill(&other);
    for (int i = 0; i < 200; i++)
        end_poll(&a);
    transport_disconnect(a.transport, 0);
    for (int i = 0; i < 200; i++)
        end_poll(&a);
    end_close(&a);
}
END_TEST

/* A stopped peer looks healthy. Giving it up must not wait for it. */
START_TEST(peer_stopped)
{
    const char *provider = providers[_i];
    struct other other = other_start(provider, false);
    if (!provider_there("peer_stopped", provider)) {
        other_kill(&other);
        return;
    }
    struct end a;
    end_open(&a, provider);
    ck_assert(other_connect(&other, &a));
    size_t bytes = 1 << 20;
    uint8_t *out = calloc(1, bytes), in[64];
    struct iovec small = {out, 64}, large = {out, bytes};
    ck_assert_int_eq(transport_send(a.transport, 0, &small, NULL, 1, out), 0);
    other_received(&other, &a);
    int posted = transport_post_receive(a.transport, 0, in, sizeof(in), NULL, in) == 0;
    kill(other.process, SIGSTOP);
    int sends = 1;
    for (int round = 0; round < 200; round++) {
        sends += transport_send(a.transport, 0, &large, NULL, 1, out) == 0;
        end_poll(&a);
    }
    ck_assert_int_lt(end_count(&a, TRANSPORT_SENT), sends);
    ck_assert_int_eq(end_count(&a, TRANSPORT_PEER_DOWN), 0);
    transport_disconnect(a.transport, 0);
    ends_wait(&a, TRANSPORT_SENT, sends, NULL, 0, 0);
    if (transport_info(a.transport)->per_peer_receives)
        ends_wait(&a, TRANSPORT_RETURNED, posted, NULL, 0, 0);
    ck_assert_int_eq(end_poll(&a), 0);
    end_close(&a);
    free(out);
    other_kill(&other);
}
END_TEST

/* Messages that were sent before the end arrive before the news of the end. */
START_TEST(last_words)
{
    struct end a, b;
    end_open(&a, "tcp");
    end_open(&b, "tcp");
    static uint8_t in[RECEIVES][4096], out[4096];
    struct iovec part = {out, sizeof(out)};
    for (int round = 1; round <= 5; round++) {
        ends_connect(&a, 0, &b, 0);
        for (int i = 0; i < RECEIVES; i++)
            ck_assert_int_eq(
                transport_post_receive(b.transport, 0, in[i], sizeof(in[i]), NULL, in[i]), 0);
        for (int i = 0; i < 10; i++)
            ck_assert_int_eq(transport_send(a.transport, 0, &part, NULL, 1, out), 0);
        ends_wait(&a, TRANSPORT_SENT, 10 * round, NULL, 0, 0);
        transport_disconnect(a.transport, 0);
        ends_wait(&b, TRANSPORT_PEER_DOWN, round, NULL, 0, 0);
        ck_assert_int_eq(end_count(&b, TRANSPORT_RECEIVED), 10 * round);
        ck_assert_int_eq(end_count(&b, TRANSPORT_RETURNED), (RECEIVES - 10) * round);
    }
    end_close(&a);
    end_close(&b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("transport_peers");
    TCase *c = tcase_create("libfabric");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, nobody_listens);
    tcase_add_loop_test(c, addresses_are_checked, 0, PROVIDERS);
    tcase_add_loop_test(c, reconnect, 0, PROVIDERS);
    tcase_add_test(c, disconnect_early);
    tcase_add_loop_test(c, close_with_work, 0, PROVIDERS);
    tcase_add_loop_test(c, nothing_left_open, 0, PROVIDERS);
    tcase_add_test(c, message_too_long);
    tcase_add_test(c, last_words);
    tcase_add_test(c, peer_killed);
    tcase_add_loop_test(c, peer_stopped, 0, PROVIDERS);
    tcase_add_loop_test(c, datagram_peer_killed, 1, PROVIDERS);
    tcase_add_loop_test(c, datagram_peer_killed_amid_a_message, 0, 4);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    transport_prepare_environment();
    return suite_main(suite());
}
