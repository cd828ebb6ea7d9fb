/* Attacks by strangers at the control port, and by a second daemon of a name: a cluster's jobs
 * notice nothing, and its log says it in lines that can be counted. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/job_name.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

enum { HELD = 300, KEPT = 64 };

static struct stop_file stop;
static struct cluster *cluster;
static struct process *workers[4];

static void setup(void)
{
    stop_file_create(&stop);
}

/* Without a secret, or with one. */
static void cluster_begin(bool secret)
{
    char path[400], extra[512];
    snprintf(path, sizeof(path), "%.300s/secret", stop.directory);
    snprintf(extra, sizeof(extra), "{\"secret_file\":\"%s\"}", path);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n", file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0600), 0);
    cluster = cluster_start(2, secret ? extra : NULL);
}

static void teardown(void)
{
    cluster_free(cluster);
    stop_file_free(&stop);
}

/* A job that loops, of two ranks on each of the nodes; the first of them is its home. */
static void job_start(uint32_t first_node, uint32_t nodes)
{
    const char *argv[] = {CLUSTER_HELPER, "loop", stop.path, NULL};
    char name[64];
    job_name_with_home(name, "undisturbed", first_node, cluster->count);
    for (uint32_t rank = 0; rank < 2 * nodes; rank++)
        workers[rank] = cluster_worker(cluster, first_node + rank / 2, name, rank, 2 * nodes, argv);
    for (uint32_t rank = 0; rank < 2 * nodes; rank++)
        ck_assert_msg(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS),
                      "rank %u does not run: %.900s", rank, process_output(workers[rank]));
}

static void job_end(uint32_t nodes)
{
    stop_file_raise(&stop);
    ck_assert_int_eq(cluster_job_end(workers, 2 * nodes), 0);
}

static uint32_t count_text(const char *text, const char *piece)
{
    uint32_t count = 0;
    for (; (text = strstr(text, piece)); text += strlen(piece))
        count++;
    return count;
}

static struct process *daemon_start(const char *config, const char *log_name)
{
    char path[400];
    snprintf(path, sizeof(path), "%.300s/%s", stop.directory, log_name);
    const char *argv[] = {CLUSTER_BIN "shoald", "--config", config, NULL};
    const char *environment[] = {"IPATH_NO_BACKTRACE=1", "HFI_NO_BACKTRACE=1", NULL};
    struct process_start start = {.argv = argv, .environment = environment, .errors_path = path};
    return process_start(&start);
}

/* From 127.0.0.`host`; -1: it cannot be now. */
static int connect_from(uint8_t host, uint16_t port)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u | host)};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* The port that it gets may be that of the daemon which is away. */
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0 &&
        connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static atomic_bool flooding;

/* New connections to node 1 without an end, from the address that its peer has too. */
static void *flood(void *argument)
{
    int kept[KEPT];
    (void)argument;
    memset(kept, -1, sizeof(kept));
    for (uint32_t i = 0; flooding; i++) {
        int *place = &kept[i % KEPT];
        if (*place >= 0)
            close(*place);
        *place = connect_from(1, cluster->nodes[1].port);
        if (*place < 0)
            poll(NULL, 0, 1);
        else if (i % 3 == 0)
            send(*place, "nonsense\n", 9, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (int i = 0; i < KEPT; i++) {
        if (kept[i] >= 0)
            close(kept[i]);
    }
    return NULL;
}

static bool peer_is_up(const json_t *status)
{
    const json_t *peer = json_array_get(json_object_get(status, "peers"), 0);
    const char *state = json_string_value(json_object_get(peer, "state"));
    return state && strcmp(state, "up") == 0;
}

/* Strangers hold what they get and take what becomes free while a daemon is away: it comes back
 * all the same, and the log of the other one stays short. */
START_TEST(test_restart_among_strangers)
{
    static int held[HELD];
    pthread_t thread;
    char config[400];
    cluster_begin(_i == 1);
    job_start(1, 1);
    ck_assert(cluster_wait_status(cluster, 1, peer_is_up, CLUSTER_PATIENCE_MS));
    process_signal(cluster->nodes[0].daemon, SIGKILL);
    ck_assert_int_eq(process_wait(cluster->nodes[0].daemon, CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    ck_assert(cluster_wait_log(cluster, 1, "is over", CLUSTER_PATIENCE_MS));
    for (int i = 0; i < HELD; i++)
        held[i] = connect_from(i % 2 ? 1 : (uint8_t)(2 + i / 2), cluster->nodes[1].port);
    flooding = true;
    ck_assert_int_eq(pthread_create(&thread, NULL, flood, NULL), 0);
    process_free(cluster->nodes[0].daemon);
    snprintf(config, sizeof(config), "%.300s/%.64s.json", cluster->directory,
             cluster->nodes[0].name);
    cluster->nodes[0].daemon = daemon_start(config, "again.log");
    ck_assert(cluster_wait_status(cluster, 1, peer_is_up, CLUSTER_PATIENCE_MS));
    flooding = false;
    pthread_join(thread, NULL);
    for (int i = 0; i < HELD; i++) {
        if (held[i] >= 0)
            close(held[i]);
    }
    uint32_t lines = count_text(cluster_log(cluster, 1), "\n");
    ck_assert_msg(lines < 200, "%u lines", lines);
    job_end(1);
    ck_assert(cluster_wait_status(cluster, 0, peer_is_up, CLUSTER_PATIENCE_MS));
    struct process *others[4];
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    cluster_job(cluster, "afterwards", 2, argv, others);
    ck_assert_int_eq(cluster_job_end(others, 4), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
}
END_TEST

/* The configuration of node 0, with sockets of its own: *path. */
static void config_copy(char *path, size_t bytes)
{
    char original[400], socket_path[400];
    snprintf(original, sizeof(original), "%.300s/%.64s.json", cluster->directory,
             cluster->nodes[0].name);
    snprintf(path, bytes, "%.300s/second.json", stop.directory);
    snprintf(socket_path, sizeof(socket_path), "%.80s/second.sock", stop.directory);
    json_t *config = json_load_file(original, 0, NULL);
    ck_assert_ptr_nonnull(config);
    json_t *own = json_pack("{s:{s:s},s:{s:i}}", "socket", "path", socket_path, "listen", "port",
                            (int)cluster_free_port());
    ck_assert_int_eq(json_object_update_recursive(config, own), 0);
    ck_assert_int_eq(json_dump_file(config, path, 0), 0);
    json_decref(own);
    json_decref(config);
}

START_TEST(test_two_daemons_of_one_name)
{
    char config[400], text[256];
    cluster_begin(_i == 1);
    job_start(0, 2);
    config_copy(config, sizeof(config));
    struct process *second = daemon_start(config, "second.log");
    snprintf(text, sizeof(text),
             "it refuses: another daemon of that name is connected with node %.64s, from "
             "127.0.0.1:",
             cluster->nodes[1].name);
    ck_assert_msg(process_wait_text(second, text, CLUSTER_PATIENCE_MS), "%.1500s",
                  process_errors(second));
    snprintf(text, sizeof(text),
             "two daemons are called %.64s: the one at 127.0.0.1:", cluster->nodes[0].name);
    ck_assert(cluster_wait_log(cluster, 1, text, CLUSTER_PATIENCE_MS));
    ck_assert(cluster_wait_log(cluster, 0,
                               "another daemon of that name, at 127.0.0.1:", CLUSTER_PATIENCE_MS));
    job_end(2);
    ck_assert_ptr_null(strstr(cluster_log(cluster, 1), "has connected again"));
    process_signal(second, SIGTERM);
    ck_assert_int_eq(process_wait(second, CLUSTER_PATIENCE_MS), 0);
    process_free(second);
    ck_assert_int_eq(cluster_stop(cluster), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_strangers");
    TCase *tests = tcase_create("attack_strangers");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_restart_among_strangers, 0, 2);
    tcase_add_loop_test(tests, test_two_daemons_of_one_name, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
