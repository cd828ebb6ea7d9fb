/* Somebody who hears all that goes between two daemons. In a network namespace of its own, where
 * nothing else is said. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/certificates.h"
#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define JOB "a-name-that-nobody-else-is-to-know"
#define SECRET "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define EQUAL 32 /* floats in a row */
#define HEARD_BYTES ((size_t)64 << 20)

/* Packets that pass, and what of them can be understood. */
struct listener {
    int fd, stop;
    pthread_t thread;
    uint64_t packets, bytes;
    bool name, number, key; /* the job's; of a buffer; of the secret file */
};

static char *directory;

static void setup(void)
{
    directory = suite_make_directory();
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

/* A network with a loopback of its own, for this process and its children. */
static bool network_make(void)
{
    if (unshare(CLONE_NEWNET) < 0)
        return false;
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    close(fd);
    return up;
}

static void listener_hear(struct listener *listener, const uint8_t *packet, size_t count)
{
    listener->packets++;
    listener->bytes += count;
    listener->name |= memmem(packet, count, JOB, strlen(JOB)) != NULL;
    listener->key |= memmem(packet, count, SECRET, 20) != NULL;
    /* The rows are those of the two ranks, and their sum. */
    for (int value = 1; value <= 3; value++) {
        float row[EQUAL];
        for (int i = 0; i < EQUAL; i++)
            row[i] = (float)value;
        listener->number |= memmem(packet, count, row, sizeof(row)) != NULL;
    }
}

static void *listener_run(void *argument)
{
    struct listener *listener = argument;
    uint8_t *packet = malloc(1 << 17);
    ck_assert_ptr_nonnull(packet);
    for (;;) {
        struct pollfd waits[] = {{listener->fd, POLLIN, 0}, {listener->stop, POLLIN, 0}};
        ck_assert_int_gt(poll(waits, 2, -1), 0);
        ssize_t count = recv(listener->fd, packet, 1 << 17, MSG_DONTWAIT);
        if (count > 0)
            listener_hear(listener, packet, (size_t)count);
        else if (waits[1].revents)
            break;
    }
    free(packet);
    return NULL;
}

static void listener_start(struct listener *listener)
{
    int bytes = (int)HEARD_BYTES;
    struct sockaddr_ll address = {.sll_family = AF_PACKET,
                                  .sll_protocol = htons(ETH_P_ALL),
                                  .sll_ifindex = (int)if_nametoindex("lo")};
    *listener =
        (struct listener){.fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)),
                          .stop = eventfd(0, EFD_CLOEXEC)};
    ck_assert_int_ge(listener->fd, 0);
    ck_assert_int_eq(bind(listener->fd, (struct sockaddr *)&address, sizeof(address)), 0);
    setsockopt(listener->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
    ck_assert_int_eq(pthread_create(&listener->thread, NULL, listener_run, listener), 0);
}

static void listener_end(struct listener *listener)
{
    struct tpacket_stats statistics = {0};
    socklen_t length = sizeof(statistics);
    eventfd_write(listener->stop, 1);
    pthread_join(listener->thread, NULL);
    getsockopt(listener->fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &length);
    ck_assert_uint_eq(statistics.tp_drops, 0);
    close(listener->fd);
    close(listener->stop);
}

static void write_secret(const char *path)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    fprintf(file, "%s\n", SECRET);
    fclose(file);
}

/* One job of two ranks on two nodes, heard from the first connection to the end. */
static void listen_to_job(struct listener *listener, const char *extra, const char *log)
{
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    struct process *workers[2];
    listener_start(listener);
    struct cluster *cluster = cluster_start(2, extra);
    cluster_job(cluster, JOB, 1, argv, workers);
    ck_assert_int_eq(cluster_job_end(workers, 2), 0);
    for (uint32_t node = 0; node < 2; node++)
        ck_assert_msg(cluster_wait_log(cluster, node, log, CLUSTER_PATIENCE_MS), "no '%s' in %s",
                      log, cluster_log(cluster, node));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    listener_end(listener);
    /* All of the job was heard: 40 kB of each rank. */
    ck_assert_uint_gt(listener->bytes, 60000);
    ck_assert(!listener->key);
}

/* The listener hears a job in the clear: without that the next tests would mean nothing. */
START_TEST(test_in_the_clear)
{
    struct listener listener;
    char extra[600];
    if (!network_make()) {
        suite_skip("test_in_the_clear", "no right to make a network");
        return;
    }
    snprintf(extra, sizeof(extra), "%.400s/secret", directory);
    write_secret(extra);
    snprintf(extra, sizeof(extra), "{\"secret_file\":\"%.400s/secret\",\"protect\":\"none\"}",
             directory);
    listen_to_job(&listener, extra, "is connected\n");
    ck_assert(listener.name && listener.number);
}
END_TEST

START_TEST(test_secret)
{
    struct listener listener;
    char extra[600];
    if (!network_make()) {
        suite_skip("test_secret", "no right to make a network");
        return;
    }
    snprintf(extra, sizeof(extra), "%.400s/secret", directory);
    write_secret(extra);
    snprintf(extra, sizeof(extra), "{\"secret_file\":\"%.400s/secret\"}", directory);
    listen_to_job(&listener, extra, "is connected, encrypted by secret ");
    ck_assert(!listener.name);
    ck_assert(!listener.number);
}
END_TEST

/* One certificate for both, since the configuration is one. */
START_TEST(test_certificates)
{
    struct listener listener;
    char authority_path[300], certificate[300], key[300], extra[1200];
    if (!network_make()) {
        suite_skip("test_certificates", "no right to make a network");
        return;
    }
    struct authority *authority = authority_make("the authority");
    snprintf(authority_path, sizeof(authority_path), "%.250s/authority", directory);
    snprintf(certificate, sizeof(certificate), "%.250s/certificate", directory);
    snprintf(key, sizeof(key), "%.250s/key", directory);
    authority_write(authority, authority_path);
    certificate_write(authority, "node0,DNS:node1", 10, certificate, key);
    authority_free(authority);
    snprintf(extra, sizeof(extra),
             "{\"certificate_file\":\"%s\",\"key_file\":\"%s\",\"authority_file\":\"%s\"}",
             certificate, key, authority_path);
    listen_to_job(&listener, extra, "is connected, encrypted by certificates");
    ck_assert(!listener.name);
    ck_assert(!listener.number);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_wire");
    TCase *tests = tcase_create("attack_wire");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_in_the_clear);
    tcase_add_test(tests, test_secret);
    tcase_add_test(tests, test_certificates);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
