/* How windows into a node are bounded: the figures, and the option on sockets of this machine. */
#include "common/transport/transport_inflow.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"

#define SECOND_NS NS_PER_S

/* A second of `mbits` from so many senders, of whose segments so many of 10000 are disordered. */
static struct inflow_count second_of(uint32_t mbits, uint32_t senders, uint32_t disordered)
{
    return (struct inflow_count){.segments = 10000,
                                 .disordered = disordered,
                                 .bytes = mbits * 125000ull,
                                 .ns = SECOND_NS,
                                 .senders = senders};
}

static void conclude(struct inflow_bound *bound, uint32_t mbits, uint32_t senders,
                     uint32_t disordered, uint32_t times)
{
    struct inflow_count count = second_of(mbits, senders, disordered);
    while (times-- > 0)
        inflow_conclude(bound, &count);
}

START_TEST(test_windows_share_what_the_link_carries)
{
    const struct {
        uint32_t mbits, senders, disordered, window;
    } cases[] = {
        {100, 11, 200, 17045}, {150, 6, 200, 46875},
        {1000, 29, 11, 64655}, {1000, 28, 200, 0}, /* a burst of each */
        {10, 11, 200, 5792},                       /* 4 segments at the least */
        {300, 7, 200, 0},      {100, 11, 10, 0},   /* one in a thousand is not more */
        {100, 11, 0, 0},       {100, 0, 200, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct inflow_bound bound = {0};
        conclude(&bound, cases[i].mbits, cases[i].senders, cases[i].disordered, INFLOW_LOSSES);
        ck_assert_uint_eq(inflow_window(&bound, 0), cases[i].window);
    }
}
END_TEST

/* The bytes that a long line holds are no queue: a connection is not slower for its length. */
START_TEST(test_long_lines_have_wide_windows)
{
    const struct {
        uint32_t mbits, senders, least_rtt_us, window;
    } cases[] = {
        {100, 11, UINT32_MAX, 17045}, /* not known */
        {100, 11, 0, 17045},
        {100, 11, 1000, 18181},
        {100, 11, 50000, 73863}, /* more than a burst, and still bounded */
        {150, 6, 100000, 359375},
        {10, 11, 10000, 5792},           /* 2840 by the formula */
        {300, 7, 100000, 0},             /* its queue holds a burst of each */
        {100, 11, 4000000000u, 1 << 30}, /* no more than an int */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct inflow_bound bound = {0};
        conclude(&bound, cases[i].mbits, cases[i].senders, 200, INFLOW_LOSSES);
        ck_assert_uint_eq(inflow_window(&bound, cases[i].least_rtt_us), cases[i].window);
    }
}
END_TEST

START_TEST(test_losses_now_and_then_bound_nothing)
{
    struct inflow_bound bound = {0};
    ck_assert_uint_eq(inflow_window(&bound, 0), 0);
    for (int i = 0; i < 100; i++) {
        conclude(&bound, 200, 6, 500, INFLOW_LOSSES - 1);
        ck_assert_uint_eq(inflow_window(&bound, 0), 0);
        conclude(&bound, 200, 6, 0, INFLOW_LOSSES - 1);
    }
    conclude(&bound, 200, 6, 0, 100); /* what is without losses is not saved up */
    conclude(&bound, 200, 6, 500, INFLOW_LOSSES);
    ck_assert_uint_eq(inflow_window(&bound, 0), 62499);
}
END_TEST

/* Windows that are bounded well lose nothing; were they opened again, they would. */
START_TEST(test_a_bound_stays_and_follows_rate_and_senders)
{
    struct inflow_bound bound = {0};
    conclude(&bound, 100, 5, 500, INFLOW_LOSSES);
    ck_assert_uint_eq(inflow_window(&bound, 0), 37500);
    conclude(&bound, 20, 5, 0, 100); /* less has come: it says nothing of the link */
    ck_assert_uint_eq(inflow_window(&bound, 0), 37500);
    conclude(&bound, 150, 5, 0, 1);
    ck_assert_uint_eq(inflow_window(&bound, 0), 56250);
    conclude(&bound, 20, 2, 0, 1);
    ck_assert_uint_eq(inflow_window(&bound, 0), 0);
}
END_TEST

/* --- sockets */

static int listener;
static struct sockaddr_storage listener_address;

static void address_of(int fd, struct sockaddr_storage *address)
{
    socklen_t bytes = sizeof(*address);
    memset(address, 0, sizeof(*address));
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)address, &bytes), 0);
}

static void setup(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(listener, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&any, sizeof(any)), 0);
    ck_assert_int_eq(listen(listener, 4), 0);
    address_of(listener, &listener_address);
}

static void teardown(void)
{
    close(listener);
}

static void connect_pair(int ends[2])
{
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(ends[0], 0);
    ck_assert_int_eq(
        connect(ends[0], (struct sockaddr *)&listener_address, sizeof(struct sockaddr_in)), 0);
    ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(ends[1], 0);
}

static int window_of(int fd)
{
    int window = 0;
    socklen_t bytes = sizeof(window);
    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, &bytes), 0);
    return window;
}

static uint32_t least_rtt_us_of(int fd)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);
    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes), 0);
    return info.tcpi_min_rtt;
}

static void begin(struct inflow *inflow, uint32_t peer, const int ends[2])
{
    struct sockaddr_storage local, remote;
    address_of(ends[1], &local);
    address_of(ends[0], &remote);
    inflow_begin(inflow, peer, &local, &remote);
}

START_TEST(test_bounded_windows_are_set_on_peers_alone)
{
    struct inflow *inflow = inflow_open(3);
    ck_assert_ptr_nonnull(inflow);
    int peer[2], other[2];
    connect_pair(peer);
    connect_pair(other);
    begin(inflow, 1, peer);
    int before = window_of(peer[1]), of_other = window_of(other[1]);
    inflow_look(inflow, SECOND_NS);
    ck_assert_int_eq(window_of(peer[1]), before);
    conclude(inflow_concluded(inflow), 100, 11, 500, INFLOW_LOSSES);
    inflow_look(inflow, SECOND_NS + 1); /* too soon */
    ck_assert_int_eq(window_of(peer[1]), before);
    inflow_look(inflow, 2 * SECOND_NS);
    uint32_t window = inflow_window(inflow_concluded(inflow), least_rtt_us_of(peer[1]));
    ck_assert_uint_ge(window, 17045);
    ck_assert_int_eq(window_of(peer[1]), (int)window);
    ck_assert_int_eq(window_of(other[1]), of_other);
    conclude(inflow_concluded(inflow), 100, 1, 0, 1); /* alone it may send what it likes */
    inflow_look(inflow, 3 * SECOND_NS);
    ck_assert_int_ge(window_of(peer[1]), before);
    close(peer[0]), close(peer[1]), close(other[0]), close(other[1]);
    inflow_close(inflow);
}
END_TEST

/* Small segments, for a whole count. */
static void send_a_count(const int ends[2])
{
    struct tcp_info info = {0};
    socklen_t room = sizeof(info);
    char data[128] = {0};
    int on = 1;
    ck_assert_int_eq(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
    do {
        for (int i = 0; i < 256; i++) {
            ck_assert_int_eq(send(ends[0], data, sizeof(data), 0), sizeof(data));
            ck_assert_int_eq(recv(ends[1], data, sizeof(data), MSG_WAITALL), sizeof(data));
        }
        ck_assert_int_eq(getsockopt(ends[1], IPPROTO_TCP, TCP_INFO, &info, &room), 0);
    } while (info.tcpi_data_segs_in < INFLOW_SEGMENTS);
}

START_TEST(test_idle_time_makes_no_link_slow)
{
    struct inflow *inflow = inflow_open(1);
    ck_assert_ptr_nonnull(inflow);
    int peer[2];
    connect_pair(peer);
    begin(inflow, 0, peer);
    inflow_look(inflow, 1000 * SECOND_NS);
    ck_assert_int_eq(send(peer[0], "alive", 5, 0), 5);
    inflow_look(inflow, 2000 * SECOND_NS);
    send_a_count(peer);
    inflow_look(inflow, 2002 * SECOND_NS);
    struct tcp_info info = {0};
    socklen_t room = sizeof(info);
    ck_assert_int_eq(getsockopt(peer[1], IPPROTO_TCP, TCP_INFO, &info, &room), 0);
    ck_assert_uint_eq(inflow_concluded(inflow)->bytes_per_s, info.tcpi_bytes_received / 2);
    ck_assert_uint_eq(inflow_concluded(inflow)->senders, 1);
    close(peer[0]), close(peer[1]);
    inflow_close(inflow);
}
END_TEST

/* The first is far from all that was found before, the second behind it, the third far below. */
START_TEST(test_peers_are_found_at_any_descriptor)
{
    struct inflow *inflow = inflow_open(3);
    ck_assert_ptr_nonnull(inflow);
    int ends[3][2];
    for (int i = 0; i < 3; i++) {
        connect_pair(ends[i]);
        if (i == 2)
            continue;
        int far = fcntl(ends[i][1], F_DUPFD_CLOEXEC, 200);
        ck_assert_int_ge(far, 200);
        close(ends[i][1]);
        ends[i][1] = far;
    }
    conclude(inflow_concluded(inflow), 100, 11, 500, INFLOW_LOSSES);
    for (uint32_t i = 0; i < 3; i++) {
        begin(inflow, i, ends[i]);
        inflow_look(inflow, (1 + i) * SECOND_NS);
        ck_assert_int_eq(window_of(ends[i][1]),
                         (int)inflow_window(inflow_concluded(inflow), least_rtt_us_of(ends[i][1])));
    }
    for (int i = 0; i < 3; i++)
        close(ends[i][0]), close(ends[i][1]);
    inflow_close(inflow);
}
END_TEST

/* A number that libfabric has closed may be another's by now. */
START_TEST(test_a_number_that_is_anothers_is_left_alone)
{
    struct inflow *inflow = inflow_open(1);
    ck_assert_ptr_nonnull(inflow);
    int peer[2], other[2];
    connect_pair(peer);
    connect_pair(other);
    begin(inflow, 0, peer);
    conclude(inflow_concluded(inflow), 100, 11, 500, INFLOW_LOSSES);
    ck_assert_int_eq(dup2(other[1], peer[1]), peer[1]);
    int before = window_of(other[1]);
    inflow_look(inflow, SECOND_NS);
    ck_assert_int_eq(window_of(other[1]), before);
    close(peer[0]), close(peer[1]), close(other[0]), close(other[1]);
    inflow_end(inflow, 0);
    inflow_close(inflow);
}
END_TEST

START_TEST(test_what_is_no_socket_here_is_passed_over)
{
    struct inflow *inflow = inflow_open(2);
    ck_assert_ptr_nonnull(inflow);
    struct sockaddr_storage nowhere = {0};
    inflow_begin(inflow, 0, &nowhere, &nowhere);
    inflow_begin(inflow, 1, &listener_address, &listener_address);
    conclude(inflow_concluded(inflow), 100, 11, 500, INFLOW_LOSSES);
    inflow_look(inflow, SECOND_NS);
    inflow_end(inflow, 0);
    inflow_end(inflow, 1);
    inflow_close(inflow);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_inflow");
    TCase *figures = tcase_create("figures");
    tcase_add_test(figures, test_windows_share_what_the_link_carries);
    tcase_add_test(figures, test_long_lines_have_wide_windows);
    tcase_add_test(figures, test_losses_now_and_then_bound_nothing);
    tcase_add_test(figures, test_a_bound_stays_and_follows_rate_and_senders);
    suite_add_tcase(suite, figures);
    TCase *sockets = tcase_create("sockets");
    tcase_add_checked_fixture(sockets, setup, teardown);
    tcase_add_test(sockets, test_bounded_windows_are_set_on_peers_alone);
    tcase_add_test(sockets, test_idle_time_makes_no_link_slow);
    tcase_add_test(sockets, test_peers_are_found_at_any_descriptor);
    tcase_add_test(sockets, test_a_number_that_is_anothers_is_left_alone);
    tcase_add_test(sockets, test_what_is_no_socket_here_is_passed_over);
    suite_add_tcase(suite, sockets);
    return suite_main(suite);
}
